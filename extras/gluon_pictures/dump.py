"""Values as the hardware holds them: by thread and register, or by offset in shared memory."""

from __future__ import annotations

from itertools import product
from typing import Any, Optional

from gluon_core.errors import ArgumentError, LayoutError
from gluon_core.layouts.base import DistributedLayout, Layout
from gluon_core.layouts.later import np
from gluon_core.layouts.shared import PaddedSharedLayout

__all__ = ["dump"]


def dump(values: Any, layout: Layout, rows: Optional[int] = 64) -> str:
    """Text: each thread's registers, or each place of a buffer, with its value.

    Registers: one line per thread, `T<thread>`, with its registers in order (`B<block>` in front in
    a cluster). Shared memory: lines of neighbouring values behind the offset of the first, in
    elements; padding shows as a jump of the offset.

    Args:
        values: an array (or an argument of `numpy.asarray`) of the tensor's or the buffer's shape.
        layout: of registers or of shared memory.
        rows: lines at most; None prints all.

    Raises:
        LayoutError: the layout has no linear form, or does not fit the shape.
        ArgumentError: `values` has no dimensions.
    """
    array = np.asarray(values)
    if not isinstance(layout, Layout):
        raise ArgumentError(
            "not a layout", argument="layout", expected="a Layout", got=type(layout).__name__
        )
    if array.ndim == 0:
        raise ArgumentError("a scalar has no layout", argument="values")
    lines = _registers(array, layout) if isinstance(layout, DistributedLayout) else None
    if lines is None:
        lines = _places(array, layout)
    if rows is not None and len(lines) > rows:
        lines = [*lines[:rows], f"... {len(lines) - rows} lines more"]
    return "\n".join(lines)


def _texts(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind in "biu":
        texts = [str(v) for v in values.ravel().tolist()]
    else:
        texts = [f"{float(v):.6g}" for v in values.ravel()]
    width = max(map(len, texts), default=0)
    return np.array([t.rjust(width) for t in texts], dtype=object).reshape(values.shape)


def _at(array: np.ndarray, images: dict[str, np.ndarray]) -> np.ndarray:
    elements: np.ndarray = array[tuple(images[f"dim{d}"] for d in range(array.ndim))]
    return elements


def _registers(array: np.ndarray, layout: Layout) -> list[str]:
    linear = layout.to_linear(array.shape)
    sizes = linear.in_dims
    blocks, warps, lanes, registers = (
        sizes.get(d, 1) for d in ("block", "warp", "lane", "register")
    )
    texts = _texts(array)
    lines = []
    digits = len(str(warps * lanes - 1))
    for block, warp, lane in product(range(blocks), range(warps), range(lanes)):
        indices = {"register": np.arange(registers), "lane": lane, "warp": warp, "block": block}
        images = linear.apply_arrays(**{d: v for d, v in indices.items() if d in sizes})
        images = {d: np.broadcast_to(v, (registers,)) for d, v in images.items()}
        head = f"T{str(warp * lanes + lane).ljust(digits)}"
        head = f"B{block}:{head}" if blocks > 1 else head
        lines.append(f"{head}: " + " ".join(_at(texts, images)))
    return lines


def _places(array: np.ndarray, layout: Layout, per_line: int = 16) -> list[str]:
    rank = layout._rank_or_none() or array.ndim
    if rank < array.ndim:  # whole buffers, one after the other
        lines = []
        for i, part in enumerate(array):
            lines += [f"[{i}]", *_places(part, layout, per_line)]
        return lines
    if rank > array.ndim:
        raise LayoutError("the layout has more dimensions", expected=rank, got=array.ndim)
    linear = layout.to_linear(array.shape)
    sizes = linear.in_dims
    texts = _texts(array)
    count, blocks = sizes.get("offset", 1), sizes.get("block", 1)
    lines = []
    for block in range(blocks):
        indices = {"offset": np.arange(count), "block": block}
        images = linear.apply_arrays(**{d: v for d, v in indices.items() if d in sizes})
        images = {d: np.broadcast_to(v, (count,)) for d, v in images.items()}
        held = _at(texts, images)
        offsets = np.arange(count)
        if isinstance(layout, PaddedSharedLayout):
            offsets = np.asarray(layout.pad(offsets))
        digits = len(str(int(offsets[-1])))
        start = 0
        while start < count:
            stop = min(start + per_line, count)
            jumps = np.flatnonzero(np.diff(offsets[start:stop]) != 1)
            stop = start + int(jumps[0]) + 1 if jumps.size else stop
            head = f"B{block}:" if blocks > 1 else ""
            offset = str(int(offsets[start])).rjust(digits)
            lines.append(f"{head}{offset}: " + " ".join(held[start:stop]))
            start = stop
    return lines
