"""Write a page of a timeline that `benchmarks/timeline.py` recorded, with the prediction of the same launch below it.

    python benchmarks/timeline_page.py MEASURED.json attention 1x32x2048x128 PAGE.html [--auto AUTO.json]

`--auto` is a recording of the same launch with automatic scopes, which says what its warps wait for. No GPU is needed. The page names files relative to the checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
os.environ["GLUON_TARGET"] = "sim:sm_90"  # the launch is made without a GPU

from timeline_cases import Case  # noqa: E402

from gluon_core.timeline import predict  # noqa: E402
from gluon_timeline.page import render  # noqa: E402
from gluon_timeline.predictor import joined, predicted_data  # noqa: E402

BLOCKS = 2  # whose measured lanes are kept


def relative(value: Any) -> Any:
    """Return plain data with paths of the checkout, here or on the machine that measured, shortened."""
    if isinstance(value, list):
        return [relative(item) for item in value]
    if isinstance(value, dict):
        return {key: relative(item) for key, item in value.items()}
    if isinstance(value, str):
        for folder in (
            "kernels/gluon_kernels/",
            "extras/",
            "backends/",
            "gluon_core/",
            "benchmarks/",
        ):
            if value.startswith("/") and f"/{folder}" in value:
                return folder + value.split(f"/{folder}", 1)[1]
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", type=Path)
    parser.add_argument("family")
    parser.add_argument("size")
    parser.add_argument("page", type=Path)
    parser.add_argument("--auto", type=Path)
    options = parser.parse_args()
    size = tuple(map(int, options.size.split("x")))
    with predict("sm_90") as predictions:
        Case(options.family, size).launch("cpu")()
    measured = json.loads(options.measured.read_text())["gluon"][-1:]
    for launch in measured:
        launch["left_out"] += max(0, len(launch["blocks"]) - BLOCKS)
        launch["blocks"] = launch["blocks"][:BLOCKS]
        if options.auto is not None:
            automatic = json.loads(options.auto.read_text())["gluon"][-1]
            launch["limits"] = automatic["limits"]
            launch["limits_of"] = (
                f"From a recording with automatic scopes, which took {automatic['nanoseconds'] / 1e3:.1f} us."
            )
    predicted = [
        {"kernel": one.kernel, "predicted": predicted_data(one)} for one in predictions.launches
    ]
    title = f"{options.family.capitalize()} {options.size} on Hopper, measured above predicted"
    options.page.write_text(
        render(relative(joined(measured, predicted)), title=title), encoding="utf-8"
    )
    print(predictions.table())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
