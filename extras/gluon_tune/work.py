"""Do the work of any engine's workers: functions of plain values that return plain values.

A worker keeps a process for each thing that it works on (`isolated`), so that a configuration that hangs or faults
there costs that process and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence

from gluon_tune.errors import TuneWorkerError
from gluon_tune.estimate import estimate
from gluon_tune.isolated import Ended, Failed, Isolated
from gluon_tune.spaces import Config
from gluon_tune.statistics import interval, losers
from gluon_tune.task import Reference
from gluon_tune.tuned import versions

__all__ = ["about", "compile_one", "measure"]

Shape = Mapping[str, Any]
Result = dict[str, Any]

_SAMPLE = 0.004  # seconds of launches that make one sample
_own = threading.local()


def _isolated(reference: Reference, target: Optional[str], index: Optional[int] = None) -> Isolated:
    """Return this thread's process for a target and a device, to be asked about a task."""
    kept: dict[Any, Isolated] = _own.__dict__.setdefault("kept", {})
    workbench = kept.setdefault((target, index), Isolated(target, index))
    return workbench.on(reference)


def about(
    reference: Reference, target: Optional[str], shape: Shape, measured: bool
) -> dict[str, Any]:
    """See `Workbench.about`; with `measured` also `devices`, how many there are on this machine.

    Raises:
        Failed, Ended: the facts cannot be determined.
    """
    bench = _isolated(reference, target, 0 if measured else None)
    facts: dict[str, Any] = bench.call("about", shape)
    if measured:
        facts["devices"] = bench.call("devices")
    return facts


def _failed(error: Exception) -> Result:
    """Return the status and the reason that an error gives a configuration."""
    if isinstance(error, Ended):
        return {"status": "bad", "reason": str(error)}
    name = error.name if isinstance(error, Failed) else ""
    statuses = {"WrongResultError": "bad", "LimitError": "pruned", "CapabilityError": "pruned"}
    return {"status": statuses.get(name, "failed"), "reason": str(error)}


def compile_one(
    reference: Reference,
    target: Optional[str],
    shape: Shape,
    config: Config,
    objective: str,
    limits: Mapping[str, Any],
) -> Result:
    """Compile a configuration and describe its code.

    Returns:
        `status` and `reason`, `detail`, and `value` where the objective needs no device.
    """
    bench = _isolated(reference, target)
    result: Result = {"versions": versions(), "detail": {}}
    detail = result["detail"]
    patience = limits.get("patience")
    try:
        if objective == "predicted":
            detail.update(bench.call("predicted", shape, config, limit=limits["simulate"]))
            return {**result, "status": "ok", "reason": "", "value": detail["seconds"]}
        detail.update(
            bench.call("compile", shape, config, limit=min(limits["compile"], patience or 1e9))
        )
        detail["conflicts"] = bench.call("conflicts", shape, config, limit=limits["compile"])
        if objective == "time":
            detail["bound"] = bench.call("bound", shape, config)
            return {**result, "status": "compiled", "reason": ""}
        if objective == "roofline":
            counted = bench.call("roofline", shape, config, limit=limits["simulate"])
            detail.update(counted)
            value = estimate(counted, detail, bench.call("peaks"))
            return {**result, "status": "ok", "reason": "", "value": value}
        if detail.get(objective) is None:
            return {**result, "status": "failed", "reason": f"the code tells no {objective}"}
        return {**result, "status": "ok", "reason": "", "value": float(detail[objective])}
    except (Ended, Failed) as error:
        if isinstance(error, Failed) and error.name == "TuneError":
            raise  # of the task, not of this configuration
        if isinstance(error, Ended) and error.hung and patience and patience < limits["compile"]:
            reason = f"still compiled after {patience:.1f} s, when others take a fraction of that"
            return {**result, "status": "pruned", "reason": reason}
        detail["large"] = isinstance(error, Failed) and error.name == "LimitError"
        return {**result, **_failed(error)}


def pruned(
    detail: Mapping[str, Any],
    limits: Mapping[str, Any],
    default: Optional[Mapping[str, Any]] = None,
) -> str:
    """Return the reason why a compiled configuration needs no measurement; "" where it does.

    Args:
        default: the facts of the default configuration, which never exceed a limit.
    """
    warps, room = detail["num_warps"], detail["occupancy"]
    if room is not None and room < warps:
        return f"{warps} warps do not fit where {room} do"
    own = default or {}
    spills, conflicts = detail["spills"] or 0, detail["conflicts"]
    if spills > max(limits["spills"], own.get("spills") or 0):
        return f"spills {spills}"
    most = limits["conflicts"]
    if most is not None and conflicts >= most and conflicts > own.get("conflicts", 0):
        return f"an access to shared memory takes {conflicts + 1} passes over the banks"
    return ""


# -- measuring -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _device(count: int) -> Iterator[int]:
    """Lock a device that no other measurement of this machine uses meanwhile."""
    visible = re.sub(r"\W", "-", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    while True:
        for index in range(max(1, count)):
            path = Path(tempfile.gettempdir(), f"gluon-device-{visible}-{index}.lock")
            with open(path, "a") as file:
                with contextlib.suppress(OSError):
                    path.chmod(0o666)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield index
                return
        time.sleep(0.05)


class _Round:
    """Configurations that are measured in turns.

    Args:
        bench: where.
        shape: of the arguments.
        configs: the contenders.
        limit: seconds that one call may take.
    """

    def __init__(self, bench: Isolated, shape: Shape, configs: Sequence[Config], limit: float):
        self._bench, self._shape, self._limit = bench, shape, limit
        self.configs = configs
        self.samples: dict[int, list[float]] = {}
        self.results: dict[int, Result] = {}
        self._launches: dict[int, int] = {}
        self._process = -1

    def sample(self, index: int) -> bool:
        """Take one sample of a contender; return False where it is out, with its result."""
        try:
            if self._process != self._bench.started:  # the one before took the process with it
                self._launches.clear()
            if index not in self._launches:
                known = (self._shape, self.configs[index], index)
                once = self._bench.call("prepare", *known, limit=self._limit + 10)
                self._process = self._bench.started
                self._launches[index] = max(3, min(40, int(_SAMPLE / max(once, 1e-7))))
            taken = self._bench.call("sample", index, self._launches[index], limit=self._limit)
        except (Ended, Failed) as error:
            if isinstance(error, Failed) and not error.ours:
                self._bench.close()  # a fault of the device stays with its process
            if isinstance(error, Ended) or not error.ours:
                self._still_there(error)
            self.results[index] = _failed(error)
            if isinstance(error, Failed) and not error.ours:
                self.results[index]["status"] = "bad"
            self.samples.pop(index, None)
            return False
        self.samples.setdefault(index, []).append(statistics.median(taken))
        return True

    def _still_there(self, error: Exception) -> None:
        """After a fault: whether another process finds the device, so that it was the configuration's.

        Raises:
            TuneWorkerError: it does not.
        """
        try:
            there, why = self._bench.call("devices", limit=60.0), ""
        except (Ended, Failed) as again:
            there, why = 0, f"; a new process: {again}"
        if not there:
            raise TuneWorkerError(
                "the device is gone",
                expected="the device that was there when the search began",
                got=f"{error}{why}",
                remedy="The results so far are kept: start again when the device is back.",
            )


def measure(
    reference: Reference,
    target: Optional[str],
    shape: Shape,
    configs: Sequence[Config],
    rounds: int,
    devices: int,
    limit: float,
) -> tuple[list[Result], dict[str, Any]]:
    """Measure configurations in turns, on one device that nothing else is measured on.

    Each round takes one sample of each contender: the median of launches of some milliseconds. Those
    that cannot win any more drop out.

    Args:
        rounds: how many samples of each at most.
        devices: how many there are to choose from.
        limit: seconds that a sample may take.

    Returns:
        For each configuration `status`, `reason`, `value`, `low`, `high` and `samples`; and what is
        known of the device: `clock_rate`, `power_draw`, `temperature`.

    Raises:
        TuneWorkerError: the device disappeared.
    """
    with _device(devices) as index:
        bench = _isolated(reference, target, index)
        turn = _Round(bench, shape, configs, limit)
        alive = list(range(len(configs)))
        for done in range(rounds):
            alive = [number for number in alive if turn.sample(number)]
            if done >= 1:
                lost = losers({number: turn.samples[number] for number in alive})
                alive = [number for number in alive if number not in lost]
            if not alive or (done >= 4 and len(alive) == 1):
                break
        try:
            facts = bench.call("facts", limit=30.0) if turn.samples else {}
        except (Ended, Failed):
            facts = {}
    results = []
    for number in range(len(configs)):
        result = turn.results.get(number)
        if result is None:
            value, low, high = interval(turn.samples[number])
            result = {"status": "ok", "reason": "", "value": value, "low": low, "high": high}
            result["samples"] = len(turn.samples[number])
        results.append(result)
    return results, {**facts, "versions": versions()}
