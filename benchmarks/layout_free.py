"""Measure kernels without layouts against Triton's own form of them, torch, and explicit kernels.

Each kernel of tests/write/triton_kernels runs as plain Triton and as `gluon port` writes it, with the
same configuration; GEMM, attention, transposes and rows also run against gluon_kernels and torch. All
in one process, in CUDA graphs, with intervals (paired.py); rivals with our machine code have no
ratio, or with `--controls` one that shows the error of the measurement, with a star.

  python benchmarks/layout_free.py [--only WORDS] [--first WORDS] [--seconds N] [--seed N] [--form pipelined|specialized] [--workers N] [--json FILE [--resume]]

With `--workers` that many processes compile first, and one measures. A row is kept in FILE as soon as it is measured; with `--resume` a later run measures those that FILE lacks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]
Runs = dict[str, Callable[[], Any]]
Cases = Callable[[Path, list[str]], Iterator[tuple[str, Runs]]]
RIVALS = ("triton", "torch", "kernels")


def row_of(times: dict[str, list[float]], same: set[str], seed: int) -> dict[str, Any]:
    """Return the row of a table: seconds of each kernel, and its ratio to ours with the interval.

    Args:
        same: rivals with our machine code, which need no times.
    """
    from paired import ratio_of

    ratios = {name: "same code" for name in same} | {
        name: str(ratio_of(times, name, "ours", seed)) for name in times if name != "ours"
    }
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    return {**medians, "ratios": ratios, "same": sorted(same), "rounds": len(times["ours"])}


def same_code(runs: Runs) -> set[str]:
    """Return the rivals whose machine code is ours."""
    from machine_code import code_of

    codes = {}
    for name, run in runs.items():
        kernel = run()
        if hasattr(kernel, "asm"):
            codes[name] = code_of(kernel)
    return {name for name, code in codes.items() if name != "ours" and code == codes.get("ours")}


def compile_first(workers: int) -> None:
    """Run every kernel that was asked for once, in so many processes, which fill the caches of the compilers."""
    words = [sys.executable, *sys.argv, "--workers", "0", "--compile"]
    parts = [f"{index}/{workers}" for index in range(workers)]
    running = [subprocess.Popen([*words, "--part", part]) for part in parts]
    for process in running:
        process.wait()


def main(families: Sequence[Cases], description: str | None) -> int:
    """Measure the cases of the families that the command line asks for."""
    parser = argparse.ArgumentParser(description=description)
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
    parser.add_argument("--seed", type=int, default=0, help="of operands, order, and intervals")
    parser.add_argument("--controls", action="store_true", help="time rivals of one code, too")
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
    import layout_free_cases
    from paired import raced
    from runs import Twins

    from gluon_write.preferred import preferred_form

    if asked.compile:
        layout_free_cases.PLACES = 1
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
        for words, cases in itertools.product(passes, families):
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
                    if isinstance(runs, Twins):
                        runs.check()
                    same = same_code(runs)
                    timed = {n: r for n, r in runs.items() if n not in same or asked.controls}
                    row = row_of(raced(timed, asked.seed), same, asked.seed)
                except Exception as error:
                    print(
                        f"| {name} | {type(error).__name__}: {str(error)[:300]} | | | |", flush=True
                    )
                    failed += 1
                    continue
                ratios = [
                    row["ratios"].get(n, "") + " *" * (n in same & timed.keys()) for n in RIVALS
                ]
                print(f"| {name} | {row['ours'] * 1e6:.1f} us | {' | '.join(ratios)} |", flush=True)
                table.append({"case": name, **row})
                if asked.json:
                    asked.json.write_text(json.dumps(table))
    return 1 if failed or not (table or asked.compile) else 0


if __name__ == "__main__":
    from layout_free_cases import CASES

    raise SystemExit(main(CASES, __doc__))
