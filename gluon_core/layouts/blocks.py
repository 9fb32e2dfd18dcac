"""Which elements each block of a cluster holds."""

from __future__ import annotations

from typing import Sequence

from gluon_core.layouts.f2 import Span
from gluon_core.layouts.linear import LinearLayout

__all__ = ["another_blocks", "split_over_blocks"]


def _parts(layout: LinearLayout) -> tuple[list[int], list[int]]:
    """The bases within a block, and those of the blocks, each as one integer."""
    flat = {dim: [v for (v,) in rows] for dim, rows in layout.flatten_outs().bases.items()}
    blocks = flat.pop("block", [])
    return [v for rows in flat.values() for v in rows], blocks


def _reached(vectors: Sequence[int]) -> Span:
    span = Span()
    for vector in vectors:
        span.add(vector, 0)
    return span


def another_blocks(held: LinearLayout, wanted: LinearLayout) -> bool:
    """Whether some block wants elements that it does not hold itself."""
    (own, blocks), (wants, others) = _parts(held), _parts(wanted)
    count = max(len(blocks), len(others))
    blocks, others = (rows + [0] * (count - len(rows)) for rows in (blocks, others))
    span = _reached(own)
    return any(span.reduce(v)[0] for v in [*wants, *(a ^ b for a, b in zip(blocks, others))])


def split_over_blocks(layout: LinearLayout, axis: int) -> bool:
    """Whether some block lacks elements along a dimension."""
    own, _ = _parts(layout)
    sizes = list(layout.out_dims.values())
    below = sum(size.bit_length() - 1 for size in sizes[:axis])
    span = _reached(own)
    return any(span.reduce(1 << below + bit)[0] for bit in range(sizes[axis].bit_length() - 1))
