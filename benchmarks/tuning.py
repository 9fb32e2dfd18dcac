"""Measure `gluon tune` on the portable matmul and attention: its result, their own configuration, and
all others.

Every configuration of a space is tried, then the search tries some, with an empty compilation cache
each time. The best of both and the example's own are then measured once more, in turns.
`--compile` counts instead how many compilations per second 200 configurations give, with one process,
with as many as there are cores, and on a local Dask cluster of 4 workers, or on the engines of
`--engines`; it needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import gluon_tune as tune  # noqa: E402
from gluon_tune import work  # noqa: E402
from gluon_tune.engine import Dask, Engine, Local  # noqa: E402
from gluon_tune.report import spoken  # noqa: E402
from gluon_tune.task import Reference  # noqa: E402

CORES = len(os.sched_getaffinity(0))
MATMUL: dict[str, list[Any]] = {
    "BLOCK_M": [64, 128, 256],
    "BLOCK_N": [64, 128, 256],
    "BLOCK_K": [32, 64, 128],
    "STAGES": [2, 3, 4, 5],
    "GROUP": [4, 8],
    "num_warps": [4, 8],
}


ATTENTION: dict[str, list[Any]] = {
    "BLOCK_M": [32, 64, 128, 256],
    "BLOCK_N": [16, 32, 64, 128, 256],
    "num_warps": [2, 4, 8, 16],
}


def task_of(kernel: str, size: int) -> Reference:
    """Return the reference to a task: a matmul of bf16, `size` cubed; attention of 32 heads over `size`
    rows."""
    space, shape = {
        "matmul": (MATMUL, {"sizes": (size, size, size), "dtype": "bfloat16"}),
        "attention": (ATTENTION, {"shape": (32, size, 64)}),
    }[kernel]
    return Reference.to(str(ROOT / "tests" / "kernels" / "cases" / f"{kernel}.py"), space, [shape])


def searched(
    reference: Reference, how: str, folder: str, processes: int, **more: Any
) -> tune.Outcome:
    """Run one search with nothing compiled before it."""
    os.environ["TRITON_CACHE_DIR"] = f"{folder}/cache-{how}"
    engine = Local(processes)

    def say(outcome: Any) -> None:
        if outcome.done % 25 == 0:
            best = outcome.best.value * 1e6 if outcome.best else 0.0
            print(
                f"{how}: {outcome.done} of {outcome.wanted}, {best:.1f} us",
                file=sys.stderr,
                flush=True,
            )

    with tune.Store(f"{folder}/{how}.db") as store:
        settings = tune.Settings(search=how, **more)
        (result,) = tune.search(reference, settings, engine=engine, store=store, progress=say)
        engine.close()
    return result


def _warm(reference: Reference, processes: int) -> None:
    """Start all processes once: whoever is first reads all libraries from the disk."""
    engine = Local(processes)
    job = (reference, None, reference.load().shapes[0])
    begun = [engine.compile(work.about, *job, False) for _ in range(processes)]
    for future in [engine.measure(work.about, *job, True), *begun]:
        future.result()
    engine.close()


def on_device(kernel: str, size: int, trials: int | None, processes: int) -> dict[str, Any]:
    reference = task_of(kernel, size)
    folder = tempfile.mkdtemp()
    _warm(reference, processes)
    some = searched(reference, "optuna", folder, processes, trials=trials)
    everything = searched(reference, "exhaustive", folder, processes)
    task = reference.load()
    configs = [dict(o.best.config) if o.best else {} for o in (everything, some)]
    configs.append(dict(some.default or {}))
    (results, facts) = work.measure(
        reference, None, task.shapes[0], configs, rounds=20, devices=1, limit=10.0
    )
    best, tuned, default = (result["value"] for result in results)
    counts: dict[str, int] = {}
    for trial in everything.trials:
        counts[trial.status] = counts.get(trial.status, 0) + 1
    return {
        "kernel": kernel,
        "size": size,
        "configurations": everything.total,
        "statuses": counts,
        "trials": some.tried,
        "exhaustive": {"seconds": everything.seconds, "best_us": best * 1e6, "config": configs[0]},
        "search": {"seconds": some.seconds, "best_us": tuned * 1e6, "config": configs[1]},
        "default": {"best_us": default * 1e6, "config": configs[2]},
        "of_exhaustive": best / tuned,
        "of_its_time": some.seconds / everything.seconds,
        "over_default": default / tuned,
        "device": facts,
    }


def throughput(engine: Engine, reference: Reference, count: int, target: str) -> float:
    """Compilations per second, counted from when all workers have begun."""
    task = reference.load()
    known = list(task.searched)
    configs = [known[i * len(known) // count] for i in range(min(count, len(known)))]
    limits = tune.Settings().limits()
    shape = task.shapes[0]
    for future in [
        engine.compile(work.about, reference, target, shape, False) for _ in range(engine.slots)
    ]:
        future.result()
    began = time.monotonic()
    futures = [
        engine.compile(work.compile_one, reference, target, shape, config, "registers", limits)
        for config in configs
    ]
    for future in futures:
        future.result()
    return len(configs) / (time.monotonic() - began)


def engine_of(text: str) -> Engine:
    """Return the engine that `local:N` or `dask:N` names, of N processes of this machine."""
    kind, _, number = text.partition(":")
    if kind == "local":
        return Local(int(number))
    import distributed

    cluster = distributed.LocalCluster(
        n_workers=int(number), threads_per_worker=1, dashboard_address=None
    )
    return Dask(distributed.Client(cluster))


def compiling(count: int, target: str, engines: list[str]) -> dict[str, Any]:
    reference = task_of("matmul", 4096)
    results = {}
    for name in engines:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TRITON_CACHE_DIR"] = folder
            try:
                engine = engine_of(name)
            except ImportError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            results[name] = throughput(engine, reference, count, target)
            engine.close()
        print(f"{name}: {results[name]:.2f} compilations/s", file=sys.stderr, flush=True)
    one = results.get("local:1")
    ratios = {name: rate / one for name, rate in results.items()} if one else {}
    return {"cores": CORES, "compilations_per_second": results, "to_one": ratios}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", choices=("matmul", "attention"), default="matmul")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--engines", nargs="+", default=["local:1", f"local:{CORES}", "dask:4"])
    parser.add_argument("--processes", type=int, default=CORES, help="that compile in a search")
    parser.add_argument("--target", default="hopper")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if chosen.compile:
        table = compiling(chosen.count, chosen.target, chosen.engines)
    else:
        table = on_device(chosen.kernel, chosen.size, chosen.trials, chosen.processes)
        for method in ("exhaustive", "search", "default"):
            one = table[method]
            print(f"{method:10} {one['best_us']:8.1f} us  {spoken(one['config'])}")
    print(json.dumps(table, indent=1, default=str))
    if chosen.json:
        chosen.json.write_text(json.dumps(table, indent=1, default=str))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
