"""The arrays of a kernel that `gluon emu` ran: those to be saved, and the changes that it made."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Any

import numpy as np

from gluon_core.errors import ArgumentError

__all__ = ["saved", "show"]

_SHOWN = 8


def saved(texts: list[str], arrays: dict[int, np.ndarray]) -> dict[int, Path]:
    targets = {}
    for text in texts:
        number, equals, path = text.partition("=")
        if not equals or not number.isdigit() or int(number) not in arrays:
            raise ArgumentError(
                "names no array",
                argument="--save",
                expected="N=FILE.npy, N one of " + (", ".join(map(str, arrays)) or "no arrays"),
                got=text,
            )
        targets[int(number)] = Path(path)
    return targets


def show(
    json: bool,
    name: str,
    before: dict[int, np.ndarray],
    arrays: dict[int, np.ndarray],
    ran: int,
    warps: str = "waves",
    verdict: str = "nothing wrong",
) -> None:
    """Print the changes that the kernel made to its arrays."""
    rows: list[dict[str, Any]] = []
    for number, array in arrays.items():
        old, new = (a.reshape(-1, 1).view("u1") for a in (before[number], array))
        rows.append({
            "argument": number, "dtype": str(array.dtype), "shape": list(array.shape),
            "changed": int((old != new).any(1).sum()),
            "first": [value.item() for value in array.reshape(-1)[:_SHOWN]],
        })  # fmt: skip
    if json:
        print(
            json_.dumps(
                {"kernel": name, "instructions": ran, "verdict": verdict, "arrays": rows}, indent=2
            )
        )
        return
    print(f"{name}: {ran} instructions of {warps}, {verdict}")
    for row in rows:
        shape = "x".join(map(str, row["shape"]))
        values = [f"{v:g}" if isinstance(v, float) else str(v) for v in row["first"]]
        more = [] if len(values) < _SHOWN else ["..."]
        print(
            f"  argument {row['argument']}, {row['dtype']}[{shape}], {row['changed']} changed:",
            *values,
            *more,
        )
