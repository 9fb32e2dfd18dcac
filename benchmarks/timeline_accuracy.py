"""Compare predicted with measured times of kernels: ratios, and the rank correlation of configurations.

    python benchmarks/timeline_accuracy.py MEASURED.json [--to PREDICTED.json] [--share I/N]

`benchmarks/timeline.py --only kernels,sizes,configurations` writes MEASURED.json on a GPU; predictions need none. With `--to`, the
predictions are kept, and those that the file has already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
os.environ["GLUON_TARGET"] = "sim:sm_90"  # the launch is made without a GPU

from timeline_cases import CASES, SIZES, Case, configurations  # noqa: E402

from gluon_core.timeline import predict  # noqa: E402


def predicted(case: Case) -> float:
    """Return the predicted seconds of a launch."""
    launch = case.launch("cpu")
    with predict("sm_90") as predictions:
        launch()
    return float(predictions.launches[-1].nanoseconds) / 1e9


def ranks(values: list[float]) -> list[float]:
    """Return the rank of each value, from 0; equal ones share the mean."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    out = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for i in order[start:end]:
            out[i] = (start + end - 1) / 2
        start = end
    return out


def correlation(first: list[float], second: list[float]) -> float:
    """Return Spearman's rank correlation."""
    a, b = ranks(first), ranks(second)
    mean = (len(a) - 1) / 2
    covariance = sum((x - mean) * (y - mean) for x, y in zip(a, b))
    spread = sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)
    return covariance / spread**0.5


def compared(
    measured: list[dict[str, Any]], known: dict[str, float], share: str, to: Optional[Path]
) -> None:
    """Print a line for each case that was measured, and predict it unless `known` has it."""
    cases = {case.name: case for case in (*CASES, *SIZES, *configurations())}
    index, count = map(int, share.split("/"))
    groups: dict[str, list[tuple[float, float]]] = {}
    print("| kernel, size | measured, us | predicted, us | ratio |\n| --- | ---: | ---: | ---: |")
    for number, line in enumerate(measured):
        case = cases.get(line["name"])
        if case is None or number % count != index:
            continue
        if case.name not in known:
            started = time.perf_counter()
            try:
                known[case.name] = predicted(case)
            except Exception as error:  # the other cases go on
                print(f"{case.name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
                continue
            if to is not None:
                to.write_text(json.dumps(known, indent=1))
            print(
                f"{case.name}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True
            )
        seconds, forecast = line["seconds"], known[case.name]
        mark = " (fit)" if case.fit else ""
        print(
            f"| {case.name}{mark} | {seconds * 1e6:.2f} | {forecast * 1e6:.2f} | {forecast / seconds:.2f} |",
            flush=True,
        )
        if case.configuration is not None:
            groups.setdefault(f"{case.family} {'x'.join(map(str, case.size))}", []).append(
                (seconds, forecast)
            )
    for name, pairs in groups.items():
        rank = correlation([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        best = min(pairs)[0]
        chosen = min(pairs, key=lambda pair: pair[1])[0]
        print(f"{name}: rank correlation {rank:.3f} of {len(pairs)} configurations; "
              f"the best predicted takes {chosen / best:.3f} of the fastest")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", type=Path, nargs="+")
    parser.add_argument("--to", type=Path)
    parser.add_argument("--share", default="0/1", metavar="I/N")
    options = parser.parse_args()
    known: dict[str, float] = {}
    if options.to is not None and options.to.exists():
        known = json.loads(options.to.read_text())
    for file in options.measured:
        compared(json.loads(file.read_text()), known, options.share, options.to)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
