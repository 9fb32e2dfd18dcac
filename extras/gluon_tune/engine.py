"""Run the work of a search: in processes of this machine, on a Dask cluster, on a Ray cluster.

Each engine is two executors of `concurrent.futures`: one compiles, as much at once as it can, the
other measures, once per device. Workers that do not answer are the engine's to replace.
"""

from __future__ import annotations

import importlib.util
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Callable, Mapping, Optional

from gluon_tune import isolated
from gluon_tune.errors import TuneError, TuneWorkerError

__all__ = ["Dask", "Engine", "Local", "RayCluster"]


class Engine:
    """Runs functions elsewhere.

    Attributes:
        name: for people.
        slots: how many compilations run at once.
        meters: how many measurements run at once.
    """

    name = ""
    slots = 1
    meters = 1

    def __init__(self, compiling: Executor, measuring: Executor):
        self._compiling, self._measuring = compiling, measuring

    def compile(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run it on any worker."""
        return self._compiling.submit(function, *arguments)

    def measure(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run it on a worker with a device."""
        return self._measuring.submit(function, *arguments)

    def close(self) -> None:
        """End the tasks that still run."""
        self._compiling.shutdown(wait=False)
        self._measuring.shutdown(wait=False)


class Local(Engine):
    """Processes of this machine, each driven by a thread.

    Args:
        workers: how many compile at once.
        meters: how many devices measure at once.
    """

    name = "local processes"

    def __init__(self, workers: int, meters: int = 1):
        super().__init__(
            ThreadPoolExecutor(workers, "gluon-tune-compile"),
            ThreadPoolExecutor(meters, "gluon-tune-measure"),
        )
        self.slots, self.meters = workers, meters

    def close(self) -> None:
        self._compiling.shutdown(wait=False, cancel_futures=True)
        self._measuring.shutdown(wait=False, cancel_futures=True)
        isolated.close_all()
        self._compiling.shutdown()
        self._measuring.shutdown()


def _need(package: str, install: str) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # a folder of that name has no origin
        raise TuneError(
            f"{package} is not installed",
            argument=f"--{install}",
            remedy=f"pip install '{'ray[default]' if install == 'ray' else 'distributed'}'.",
        )


class Dask(Engine):
    """A Dask cluster. Workers that die are replaced by it, and their work is done again.

    Args:
        address: of the scheduler, or a `distributed.Client`.
        resources: resources that a measuring worker must have, such as {"H200": 1}.

    Raises:
        TuneError: Dask is not installed.
        TuneWorkerError: no cluster answers, or it has no workers.
    """

    def __init__(self, address: Any, resources: Optional[Mapping[str, float]] = None):
        _need("distributed", "dask")
        import distributed

        self._own = isinstance(address, str)
        try:
            client = distributed.Client(address, timeout=20) if self._own else address
            workers = _workers(client)
        except (OSError, ValueError) as error:
            raise TuneWorkerError(
                "no Dask scheduler answers", argument="--dask", got=f"{address}: {error}"
            ) from None
        self._client = client
        self.name = f"Dask, {len(workers)} workers"
        wanted = dict(resources or {})
        self._require(wanted, workers)
        self.slots = sum(int(worker["nthreads"]) for worker in workers.values())
        having = [w for w in workers.values() if _offers(w, wanted)]
        self.meters = len(having) if wanted else 1
        options = {"resources": wanted} if wanted else {}
        super().__init__(
            client.get_executor(pure=False, retries=2),
            client.get_executor(pure=False, retries=2, **options),
        )

    def _require(self, wanted: Mapping[str, float], workers: Mapping[str, Any]) -> None:
        if not workers:
            raise TuneWorkerError("the Dask cluster has no workers", argument="--dask")
        if wanted and not any(_offers(worker, wanted) for worker in workers.values()):
            offered = {name for worker in workers.values() for name in worker.get("resources", {})}
            raise TuneWorkerError(
                "no worker has the resources that measuring needs",
                argument="--resource",
                expected=", ".join(f"{name}={count:g}" for name, count in wanted.items()),
                got=", ".join(sorted(offered)) or "workers without resources",
                remedy="Start workers so: dask worker ADDRESS --nthreads 1 --resources 'GPU=1'.",
            )

    def close(self) -> None:
        super().close()
        if self._own:
            self._client.close(timeout=5)


def _workers(client: Any, patience: float = 10.0) -> dict[str, Any]:
    until = time.monotonic() + patience
    while True:
        workers: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
        if workers or time.monotonic() > until:
            return workers
        time.sleep(0.2)


def _offers(worker: Mapping[str, Any], wanted: Mapping[str, float]) -> bool:
    own = worker.get("resources", {})
    return all(own.get(name, 0) >= count for name, count in wanted.items())


class _RayExecutor(Executor):
    """Submits to Ray."""

    def __init__(self, ray: Any, options: Mapping[str, Any]):
        self._ray, self._options = ray, dict(options)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        remote = self._ray.remote(function).options(**self._options)
        future: Future[Any] = remote.remote(*args, **kwargs).future()
        return future


class RayCluster(Engine):
    """A Ray cluster.

    Args:
        address: of the cluster; "auto" for the one that is there, "local" for one of this machine alone.
        resources: resources that a measuring worker must have: "GPU", "CPU" or a custom resource.

    Raises:
        TuneError: Ray is not installed.
        TuneWorkerError: no cluster answers, or it lacks the resources.
    """

    def __init__(self, address: str, resources: Optional[Mapping[str, float]] = None):
        _need("ray", "ray")
        import ray

        try:
            ray.init(address, ignore_reinit_error=True, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise TuneWorkerError(
                "no Ray cluster answers", argument="--ray", got=f"{address}: {error}"
            ) from None
        self._ray = ray
        wanted = dict(resources or {})
        there = ray.cluster_resources()
        lacking = [name for name, count in wanted.items() if there.get(name, 0) < count]
        if lacking:
            ray.shutdown()
            raise TuneWorkerError(
                "the Ray cluster lacks the resources that measuring needs",
                argument="--resource",
                expected=", ".join(lacking),
                got=", ".join(sorted(there)),
            )
        self.slots = max(1, int(there.get("CPU", 1)))
        self.name = f"Ray, {self.slots} CPUs"
        options: dict[str, Any] = {}
        custom = {name: count for name, count in wanted.items() if name not in ("CPU", "GPU")}
        if "GPU" in wanted:
            options["num_gpus"] = wanted["GPU"]
        if custom:
            options["resources"] = custom
        self.meters = max(1, min((int(there[n] // c) for n, c in wanted.items() if c), default=1))
        super().__init__(
            _RayExecutor(ray, {"num_cpus": 1, "max_retries": 2}),
            _RayExecutor(ray, {"num_cpus": 0, "max_retries": 2, **options}),
        )

    def close(self) -> None:
        self._ray.shutdown()
