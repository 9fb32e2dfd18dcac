"""Measure kernels without layouts against Triton's own form of them, torch, and explicit kernels.

Each kernel of tests/write/triton_kernels runs as plain Triton and as `gluon port` writes it, with the
same configuration; GEMM, attention, transposes and rows also run against gluon_kernels and torch. All
in one process, in random order, in CUDA graphs.

  python benchmarks/layout_free.py [--only WORDS] [--first WORDS] [--seconds N] [--rounds N] [--seed N] [--form pipelined|specialized] [--workers N] [--json FILE [--resume]]

With `--workers` that many processes compile first, and one measures. A row is kept in FILE as soon as it is measured; with `--resume` a later run measures those that FILE lacks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]
Runs = dict[str, Callable[[], Any]]
RIVALS = ("triton", "torch", "kernels")


def graphed(run: Callable[[], Any], repeats: int) -> Any:
    import torch

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    return graph


def seconds_of(runs: Runs, rounds: int = 7, repeats: int = 10, seed: int = 0) -> dict[str, float]:
    """Return medians of `rounds`, in random order."""
    import torch

    graphs = {name: graphed(run, repeats) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for number in range(rounds + 1):
        random.Random(seed + number).shuffle(order)
        for name in order:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graphs[name].replay()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) / 1e3 / repeats)
    return {name: statistics.median(samples[1:]) for name, samples in times.items()}


def compile_first(workers: int) -> None:
    """Run every kernel that was asked for once, in so many processes, which fill the caches of the compilers."""
    words = [sys.executable, *sys.argv, "--workers", "0", "--compile"]
    parts = [f"{index}/{workers}" for index in range(workers)]
    running = [subprocess.Popen([*words, "--part", part]) for part in parts]
    for process in running:
        process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has one of these words, A;B")
    parser.add_argument("--first", default="", help="such cases come before the others")
    parser.add_argument("--form", choices=("pipelined", "specialized"), help="of loops of products")
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="start no case later than this"
    )
    parser.add_argument(
        "--compile", action="store_true", help="run each kernel once, without times"
    )
    parser.add_argument("--workers", type=int, default=0, help="processes that compile first")
    parser.add_argument("--part", default="0/1", help=argparse.SUPPRESS)  # of a worker
    parser.add_argument("--rounds", type=int, default=7, help="of which times are the medians")
    parser.add_argument("--seed", type=int, default=0, help="of operands and of the order")
    parser.add_argument("--json", type=Path, help="file for the table")
    parser.add_argument("--resume", action="store_true", help="leave out what the file has")
    asked = parser.parse_args()
    import torch
    import triton

    if not torch.cuda.is_available():
        print("there is no GPU here", file=sys.stderr)
        return 3
    if asked.workers:
        compile_first(asked.workers)
        if asked.compile:
            return 0
    from layout_free_cases import CASES

    from gluon_write.preferred import preferred_form

    triton.set_allocator(
        lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8)
    )
    torch.manual_seed(asked.seed)
    began, failed = time.monotonic(), 0
    before = asked.resume and asked.json and asked.json.exists()
    table = json.loads(asked.json.read_text()) if before else []
    if not asked.compile:
        print(
            f"| case | ours |{''.join(f' ratio of {n} |' for n in RIVALS)}\n| --- | ---: |{' ---: |' * len(RIVALS)}"
        )
    passes = [asked.first.split(";")] * bool(asked.first) + [asked.only.split(";")]
    done = {row["case"] for row in table}
    part, parts = map(int, asked.part.split("/"))
    with tempfile.TemporaryDirectory() as folder, preferred_form(asked.form):
        for words, cases in itertools.product(passes, CASES):
            for name, runs in cases(Path(folder), words):
                if name in done or time.monotonic() - began > asked.seconds:
                    continue
                done.add(name)
                if len(done) % parts != part:
                    continue
                try:
                    if asked.compile:
                        for run in runs.values():
                            run()
                        continue
                    times = seconds_of(runs, asked.rounds, seed=asked.seed)
                except Exception as error:
                    print(
                        f"| {name} | {type(error).__name__}: {str(error)[:300]} | | | |", flush=True
                    )
                    failed += 1
                    continue
                ratios = [f"{times[n] / times['ours']:.3f}" if n in times else "" for n in RIVALS]
                print(
                    f"| {name} | {times['ours'] * 1e6:.1f} us | {' | '.join(ratios)} |", flush=True
                )
                table.append({"case": name, **times})
                if asked.json:
                    asked.json.write_text(json.dumps(table))
    return 1 if failed or not (table or asked.compile) else 0


if __name__ == "__main__":
    raise SystemExit(main())
