"""Time inside kernels on a GPU: the cost of recording, kernel times that the model of time must predict, and timelines.

    python benchmarks/timeline.py --to FOLDER [--only overhead,kernels,sizes,configurations,recorded]

Kernels are measured in CUDA graphs of several launches, so that no host time counts. Contenders of a comparison are replayed in
random order, many times; the ratio is the median of the ratios of rounds. `--compile I/N` compiles a share of the kernels
into the cache without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from timeline_cases import CASES, SIZES, Case, Launch, configurations  # noqa: E402

SEED = 29
RECORDING = {"plain": {}, "scopes": {"instrumentation_mode": "timeline:256"},
             "auto": {"instrumentation_mode": "timeline:auto:256"}}  # fmt: skip
# Sizes at which recording is compared: the operators' own tilings, full waves.
RECORDED = (Case("GEMM", (4096, 4096, 4096)), Case("GEMM", (8192, 8192, 2048)),
            Case("attention", (1, 32, 4096, 128)), Case("attention", (1, 32, 4096, 64)))  # fmt: skip


class Graph:
    """A CUDA graph of several launches."""

    def __init__(self, launch: Callable[[], Any], launches: int):
        import torch

        self.torch, self.launches = torch, launches
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            launch()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for _ in range(launches):
                launch()
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.graph.replay()
        torch.cuda.synchronize()

    def seconds(self) -> float:
        """Return the time of one launch in one replay."""
        begin, end = self.events
        begin.record()
        self.graph.replay()
        end.record()
        self.torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / self.launches


def _graph(launch: Launch, **options: Any) -> Graph:
    """Return a graph of about two milliseconds, at least 4 launches, at most 50."""
    one = Graph(lambda: launch(**options), 2)
    seconds = min(one.seconds() for _ in range(3))
    return Graph(lambda: launch(**options), max(4, min(50, int(2e-3 / seconds))))


def kernels(cases: tuple[Case, ...], rounds: int = 7) -> list[dict[str, Any]]:
    """Return seconds of each case in graphs, the median of `rounds` replays."""
    lines = []
    for case in cases:
        try:
            graph = _graph(case.launch("cuda"))
            seconds = statistics.median(graph.seconds() for _ in range(rounds))
        except Exception as error:  # the other cases go on
            print(f"{case.name} failed: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        lines.append(
            {"name": case.name, "family": case.family, "fit": case.fit, "seconds": seconds}
        )
        print(f"{case.name}: {seconds * 1e6:.2f} us", flush=True)
    return lines


def overhead(rounds: int = 60) -> list[dict[str, Any]]:
    """Return the ratios of recorded to plain launches: median, and the middle half of the rounds."""
    lines = []
    order = random.Random(SEED)
    for case in RECORDED:
        launch = case.launch("cuda")
        graphs = {name: _graph(launch, **options) for name, options in RECORDING.items()}
        # A second graph of the plain launch shows how far equal contenders differ.
        graphs["plain again"] = _graph(launch)
        times: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(rounds):
            for name in order.sample(list(graphs), len(graphs)):
                times[name].append(graphs[name].seconds())
        line: dict[str, Any] = {
            "name": case.name,
            "plain_us": statistics.median(times["plain"]) * 1e6,
        }
        for name in graphs:
            ratios = sorted(t / p for t, p in zip(times[name], times["plain"]))
            line[name] = statistics.median(ratios)
            line[f"{name} quartiles"] = (ratios[rounds // 4], ratios[3 * rounds // 4])
        lines.append(line)
        print(line, flush=True)
    return lines


def recorded(to: Path) -> list[str]:
    """Write the timelines of the attention and GEMM kernels."""
    from gluon_core.timeline import record
    from gluon_timeline.page import launch_data

    written = []
    for case in (Case("attention", (1, 32, 2048, 128)), Case("GEMM", (2048, 2048, 2048))):
        for auto in (False, True):
            with record(auto=auto, events=1024, launches=2) as timeline:
                launch = case.launch("cuda")
                launch()
                launch()  # the first one fills caches
            file = to / f"{case.family}{'_auto' if auto else ''}.json"
            data = [launch_data(launch) for launch in timeline.launches[1:]]
            file.write_text(json.dumps({"traceEvents": [], "gluon": data}))
            written.append(file.name)
            print(timeline.table(), flush=True)
    return written


def compile_share(share: str) -> None:
    """Compile every N-th kernel into the cache; `share` is "I/N"."""
    index, count = map(int, share.split("/"))
    os.environ["GLUON_TARGET"] = "sim:sm_90"  # prepares launches without a GPU
    jobs = [(case, {}) for case in (*CASES, *SIZES, *configurations())]
    jobs += [(case, options) for case in RECORDED for options in RECORDING.values() if options]
    for case, options in jobs[index::count]:
        try:
            case.launch("cpu").warmup(target="sm_90", **options)
        except Exception as error:
            print(f"{case.name}: {type(error).__name__}: {str(error)[:200]}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=Path("."))
    parser.add_argument("--only", default="overhead,kernels,configurations,recorded")
    parser.add_argument("--compile", metavar="I/N")
    options = parser.parse_args()
    if options.compile:
        compile_share(options.compile)
        return 0
    parts: dict[str, Callable[[], Any]] = {
        "overhead": overhead,
        "kernels": lambda: kernels(CASES),
        "sizes": lambda: kernels(SIZES),
        "configurations": lambda: kernels(configurations(), 3),
        "recorded": lambda: recorded(options.to),
    }
    failures = 0
    for name in options.only.split(","):
        started = time.perf_counter()
        try:
            result: Optional[Any] = parts[name]()
        except Exception as error:  # the other parts go on
            failures += 1
            print(f"{name} failed: {type(error).__name__}: {error}", flush=True)
            continue
        print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
        (options.to / f"{name}.json").write_text(json.dumps(result, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
