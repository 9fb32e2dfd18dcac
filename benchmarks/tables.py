r"""Print the section of `RESULTS.md` on all operators: the ratios of sweeps in one table, and the reason of each miss.

    python benchmarks/tables.py gemm.json attention.json --misses misses.json --seed 1 --commit 0123abcd \
        --facts "2026-11-29, one H200, torch 2.11, Triton 3.6.0" --command "python benchmarks/sweep.py gemm --seed 1"

The rows come from `sweep.py --out`, the reasons from `misses.py --out`. Neither torch nor a GPU is needed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from misses import key, misses
from ratios import GOALS, Row, ratio, rival, rows_of, spread, text_of

BELOW = 0.9
ORDER = (
    "matmul", "bmm", "matmul_fp8", "linear", "grouped_matmul", "moe", "quantize", "attention", "attention_varlen", "attention_decode", "mla_decode",
    "attention_fp8", "rotary", "softmax", "rms_norm", "layer_norm", "cross_entropy", "linear_cross_entropy", "swiglu", "topk", "cumsum",
)  # fmt: skip


def place(op: str) -> tuple[bool, int, str]:
    """Return where an op comes in the table: calls with gradients after the others."""
    name = op.removesuffix(" and gradients")
    return op != name, ORDER.index(name) if name in ORDER else len(ORDER), op


def named(name: str) -> str:
    return name.replace("quack", "QuACK")


def cell(rows: list[Row], way: str) -> str:
    """Return the mean, the 5th percentile and the worst of the ratios; bold ones are below the goals."""
    values = [value for row in rows if (value := ratio(row, way)) is not None]
    if not values:
        return "-"
    goals = GOALS.get(way, (0.0, 0.0, 0.0))
    texts = [
        f"{value:.3f}" if value >= goal else f"**{value:.3f}**"
        for value, goal in zip(spread(values), goals)
    ]
    return ", ".join(texts)


def operators(rows: list[Row]) -> list[str]:
    lines = [
        "| op | shapes | graph | eager | host | worst in a graph |",
        "| --- | ---: | --- | --- | --- | --- |",
    ]
    for op in sorted({row["op"] for row in rows}, key=place):
        own = [row for row in rows if row["op"] == op and ratio(row, "graph") is not None]
        if not own:
            continue
        worst = min(own, key=lambda row: ratio(row, "graph") or 0.0)
        cells = " | ".join(cell(own, way) for way in ("graph", "eager", "host"))
        lines.append(
            f"| {op} | {len(own)} | {cells} | {text_of(worst)} ({named(rival(worst, 'graph'))}) |"
        )
    return lines


def takers(rows: list[Row]) -> list[str]:
    """Return a sentence for each rival whose kernels were not all compiled before."""
    refusals = [
        name
        for row in rows
        for name, why in row.get("refused", {}).items()
        if why == "not compiled before"
    ]
    lines = []
    for name in dict.fromkeys(refusals):
        took = sum(name in row.get("eager", ()) for row in rows)
        number = took + refusals.count(name)
        lines.append(f"{named(name)}'s kernels were compiled for {took} of {number} shapes.")
    return lines


def agreement(rows: list[Row]) -> str:
    wrong = [row for row in rows if "wrong" in row]
    if not wrong:
        return f"All {len(rows):,} results agreed with their references."
    texts = [f"{row['op']} {text_of(row)} ({row['wrong']})" for row in wrong]
    return f"{len(rows) - len(wrong):,} of {len(rows):,} results agreed with their references; not: {'; '.join(texts)}."


def reasons(rows: list[Row], measured: list[Row], way: str) -> list[str]:
    """Return a table of the misses of graphs or of eager calls alone, each with its reason or why it has none."""
    known = {key(row): row for row in measured}
    lines = ["| op and shape | ratio | rival | reason |", "| --- | ---: | --- | --- |"]
    own = [miss for miss in misses(rows, BELOW) if miss["way"] == way]
    for miss in sorted(own, key=lambda one: (place(one["op"]), one["ratio"])):
        row = known.get(key(miss), {})
        why = row.get("reason")
        if why is None:
            why = f"none: {row.get('failed', 'the profiler did not get to it')}"
        again = f" (again {row['again']:.3f})" if "again" in row else ""
        lines.append(
            f"| {miss['op']} {text_of(miss)} | {miss['ratio']:.3f}{again} | {named(miss['rival'])} | {why} |"
        )
    return lines


def section(rows: list[Row], measured: list[Row], chosen: argparse.Namespace) -> list[str]:
    facts = [chosen.facts, f"commit {chosen.commit}", f"seed {chosen.seed}"]
    lines = [
        "## All operators at one commit\n",
        f"{', '.join(fact for fact in facts if fact)}: the operators of `gluon_kernels` as users call them, on shapes drawn at random, against the",
        "fastest of torch (cuBLAS, cuDNN), FlashAttention and QuACK, in one process and random order, with nothing else on the machine. Kernels were compiled in advance.",
        "**Nothing was tuned for these shapes**: none of them had been timed before.\n",
        *(f"    {command}" for command in chosen.command),
        "\nEach cell has the geometric mean of the ratios, the 5th percentile and the worst; above 1 ours is faster. Bold numbers are below the goals: 1, 0.9 and 0.8 in graphs, 0.98, 0.9 and 0.8 eager.",
        " ".join([*takers(rows), agreement(rows)]) + "\n",
        *operators(rows),
    ]
    graphs, eagers = (reasons(rows, measured, way) for way in ("graph", "eager"))
    lines += [
        f"\nThe {len(graphs) - 2} shapes below {BELOW} in graphs as Nsight Compute explains them (`python benchmarks/misses.py`; one call of each side with warm caches):",
        "the microseconds of both sides, the largest part of their difference, and what limits the longest kernel of each: shares of the peaks of memory, the L2 cache,",
        "the matrix unit and the issue of instructions, and of the time in which the average processor has a block.\n",
        *graphs,
        f"\nThe {len(eagers) - 2} shapes below {BELOW} in eager calls alone, as `torch.profiler` explains them: what the host does in a call; in brackets the ratio of the calls measured next to the trace.\n",
        *eagers,
    ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--misses", nargs="*", type=Path, default=[])
    parser.add_argument("--seed", default="?")
    parser.add_argument("--commit", default="?")
    parser.add_argument("--facts", default="", help="date, hardware and versions")
    parser.add_argument("--command", action="append", default=[], help="that made a sweep")
    chosen = parser.parse_args()
    rows = rows_of(chosen.sweeps)
    print(*section(rows, rows_of(chosen.misses), chosen), sep="\n")
    return 0 if rows else 3


if __name__ == "__main__":
    raise SystemExit(main())
