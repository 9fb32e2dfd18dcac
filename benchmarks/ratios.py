"""Ratios of the rows of sweeps, and the words of their shapes; without torch."""

from __future__ import annotations

import ast
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any, Iterable, Mapping

GOALS = {"graph": (1.0, 0.9, 0.8), "eager": (0.98, 0.9, 0.8)}  # of `spread`

Row = Mapping[str, Any]


def rows_of(files: Iterable[Path]) -> list[Any]:
    """Return the rows of files; those that are missing or broken are named and left out."""
    rows: list[Any] = []
    for file in files:
        try:
            rows += json.loads(file.read_text())
        except (OSError, ValueError) as error:
            print(f"{file} is left out: {error}", file=sys.stderr)
    return rows


def ratio(row: Row, way: str) -> float | None:
    times = row.get(way)
    if not times or len(times) < 2:
        return None
    return min(t for name, t in times.items() if name != "ours") / times["ours"]


def rival(row: Row, way: str) -> str:
    """Return the fastest rival's name."""
    times = {name: t for name, t in row[way].items() if name != "ours"}
    return min(times, key=times.__getitem__)


def geometric(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(v) for v in values))


def spread(values: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean, the 5th percentile and the least."""
    values = sorted(values)
    return geometric(values), values[int(0.05 * (len(values) - 1))], values[0]


def met(values: list[float], way: str) -> bool:
    return all(value >= goal for value, goal in zip(spread(values), GOALS[way]))


def worded(shape: Mapping[str, Any]) -> dict[str, str]:
    """Return the words of a shape; equal lengths as their number and the length, many others as their number, sum and maximum."""
    words = {}
    for name, value in shape.items():
        words[name] = str(value)
        if isinstance(value, tuple) and len(value) > 1 and len(set(value)) == 1:
            words[name] = f"{len(value)}x{value[0]}"
        elif isinstance(value, tuple) and len(value) > 8:
            words[name] = f"{len(value)} of {sum(value)}, up to {max(value)}"
    return words


def value_of(text: str) -> Any:
    """Return the number, truth value or tuple that a text shows; the text itself where it shows none, such as a dtype."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def shape_of(row: Row) -> dict[str, Any]:
    return {name: value_of(text) for name, text in row["shape"].items()}


def text_of(row: Row) -> str:
    """Return the words of a row's shape, one after the other."""
    return " ".join(worded(shape_of(row)).values())
