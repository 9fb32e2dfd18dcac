"""Products of `wgmma` with fewer columns than a tensor may have: PTX in which instructions have the N that marks name.

Tensors have powers of two of columns, `wgmma` any multiple of 8 up to 256. `warpgroup_mma(columns=N)` leaves a mark in front of its
instructions and one behind them, which have no effect and a comment. The stage that writes PTX gives the instructions between them this N. A thread has
the accumulator's columns in the order of its registers, so that the first ones are those of the narrower product.

The compiler keeps the order of marks and products within a basic block, and may move a mark that several branches share to the block before or behind
them. So one mark is enough in a block, and instructions that lack both multiply all columns, which is slower.

Source: PTX ISA, 9.7.15.5.2 (wgmma.mma_async), 9.7.15.5.1.1.1 (register fragments of D).
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Callable, Iterable, Optional

__all__ = ["marker", "narrowed"]

_Run = Callable[[Any, "dict[str, Any]"], Any]

_MARK = re.compile(r"// gluon\.columns (\d+) (begin|end)")
_PRODUCT = re.compile(
    r"(?P<head>wgmma\.mma_async\.sync\.aligned\.m64n)(?P<n>\d+)(?P<kind>k\d+\.[\w.]+\s*\{)(?P<sums>[^}]*)\}"
)
_BLOCK = re.compile(r"\s*(\$L__BB|\$L_brx|[{}]|\.entry|\.func|\.visible)")


def marker(columns: int, place: str) -> str:
    """Return the inline assembly of a mark, whose place is "begin" or "end"; its 32-bit result is unused."""
    return f"mov.b32 $0, 0; // gluon.columns {columns} {place}"


def narrowed(run: _Run) -> _Run:
    """Return the stage `run`, which writes PTX, with the columns that marks name."""

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        ptx = run(source, metadata)
        return _replaced(ptx) if _MARK.search(ptx) else ptx

    return stage


def _replaced(ptx: str) -> str:
    lines = ptx.split("\n")
    forward = _marked(lines, "begin")
    backward = reversed(list(_marked(reversed(lines), "end")))
    return "\n".join(
        line if columns is None else _PRODUCT.sub(partial(_product, columns), line)
        for line, columns in zip(lines, (one or other for one, other in zip(forward, backward)))
    )


def _marked(lines: Iterable[str], opens: str) -> Iterable[Optional[int]]:
    """Yield for each line the columns of the mark of its block that opens such products last, if none has closed them."""
    columns: Optional[int] = None
    for line in lines:
        mark = _MARK.search(line)
        if mark is not None:
            columns = int(mark[1]) if mark[2] == opens else None
        elif _BLOCK.match(line):
            columns = None
        yield columns


def _product(columns: int, match: re.Match[str]) -> str:
    sums = match["sums"].split(",")
    kept = sums[: len(sums) * columns // int(match["n"])]
    return f"{match['head']}{columns}{match['kind']}{','.join(kept)}}}"
