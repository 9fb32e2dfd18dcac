"""Layouts as text: the holders of each element, and the elements of each piece of hardware."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, Callable, Optional, Sequence

from gluon_core.layouts.base import check_shape
from gluon_core.layouts.cost import ConversionCost, conversion
from gluon_core.layouts.later import np
from gluon_core.layouts.linear import LinearLayout

if TYPE_CHECKING:
    from gluon_core.layouts.base import DistributedLayout, Layout

__all__ = ["describe", "explain", "explain_layout", "hardware_view", "tensor_view"]


def _grid(cells: np.ndarray) -> str:
    """Nested brackets around cells of one width, the last dimension along a line."""
    width = max((len(cell) for cell in cells.ravel()), default=0)

    def block(part: np.ndarray, depth: int) -> str:
        if part.ndim <= 1:
            return "[" + ", ".join(cell.rjust(width) for cell in np.atleast_1d(part)) + "]"
        gap = ",\n" + "\n" * (part.ndim - 2) + " " * (depth + 1)
        return "[" + gap.join(block(row, depth + 1) for row in part) + "]"

    return block(cells, 0)


def _walk(linear: LinearLayout) -> tuple[list[str], np.ndarray, np.ndarray]:
    """In-dims, all inputs (one row each) and their coordinates (one row each)."""
    sizes = list(linear.in_dims.values())
    inputs = np.array(list(np.ndindex(*sizes)), dtype=np.int64).reshape(prod(sizes), len(sizes))
    names = list(linear.in_dims)
    images = linear.apply_arrays(**{name: inputs[:, i] for i, name in enumerate(names)})
    coords = np.stack([images[dim] for dim in linear.out_dims], axis=-1)
    return names, inputs, coords


def tensor_view(layout: Layout, shape: Sequence[int]) -> str:
    """For each element, in the place it has in the tensor, who holds it.

    Registers: `T<thread>:<register>`, where thread counts through the warps of a block; several
    holders are separated by `|`, and `B<block>:` precedes in a cluster. Shared memory: the
    offset in elements (padding included), with `B<block>:` in a cluster.

    Raises:
        LayoutError: the layout has no linear form, or does not fit the shape.
    """
    linear = layout.to_linear(shape)
    sizes = tuple(linear.out_dims.values())
    names, inputs, coords = _walk(linear)
    clustered = linear.in_size("block") > 1
    label = _offset_label(layout) if "offset" in linear.in_dims else _thread_label(linear)
    cells: dict[tuple[int, ...], list[tuple[tuple[int, ...], str]]] = {}
    for values, coord in zip(inputs.tolist(), coords.tolist()):
        place = dict(zip(names, values))
        order, text = label(place)
        if clustered:
            order, text = (place["block"], *order), f"B{place['block']}:{text}"
        cells.setdefault(tuple(coord), []).append((order, text))
    width = max((len(text) for held in cells.values() for _, text in held), default=0)
    table: np.ndarray = np.empty(sizes, dtype=object)
    for coord in np.ndindex(*sizes):
        held = sorted(cells.get(coord, []))
        table[coord] = "|".join(text.rjust(width) for _, text in held)
    return _grid(table)


_Label = Callable[["dict[str, int]"], "tuple[tuple[int, ...], str]"]


def _thread_label(linear: LinearLayout) -> _Label:
    lanes = linear.in_size("lane")

    def label(place: dict[str, int]) -> tuple[tuple[int, ...], str]:
        thread = place.get("warp", 0) * lanes + place.get("lane", 0)
        register = place.get("register", 0)
        return (thread, register), f"T{thread}:{register}"

    return label


def _offset_label(layout: Layout) -> _Label:
    def label(indices: dict[str, int]) -> tuple[tuple[int, ...], str]:
        offset = layout.place(indices["offset"])
        return (offset,), str(offset)

    return label


def _coord(coord: Sequence[int]) -> str:
    return "(" + ",".join(map(str, coord)) + ")"


def hardware_view(layout: Layout, shape: Sequence[int]) -> str:
    """For each piece of hardware, which elements it holds.

    Registers: for each block and warp one line per register, one column per lane. Shared memory:
    for each block one line per offset; padding shows as gaps between the offsets.

    Raises:
        LayoutError: the layout has no linear form, or does not fit the shape.
    """
    linear = layout.to_linear(shape)
    lines: list[str] = []
    clustered = linear.in_size("block") > 1
    if "offset" in linear.in_dims:
        for block in range(linear.in_size("block")):
            lines.append(f"Block {block}:")
            for offset in range(linear.in_size("offset")):
                coord = linear.apply(offset=offset, block=block).values()
                lines.append(f"Offset {layout.place(offset)} -> {_coord(list(coord))}")
        return "\n".join(lines)
    lanes, registers = linear.in_size("lane"), linear.in_size("register")
    grid = np.arange(registers)[:, None], np.arange(lanes)[None, :]
    for block, warp in product(range(linear.in_size("block")), range(linear.in_size("warp"))):
        if clustered and warp == 0:
            lines.append(f"Block {block}:")
        lines.append(f"Warp {warp}:")
        position = {"register": grid[0], "lane": grid[1], "warp": warp, "block": block}
        images = linear.apply_arrays(**{dim: position[dim] for dim in linear.in_dims})
        coords = np.stack([np.broadcast_to(a, (registers, lanes)) for a in images.values()], -1)
        texts = [[_coord(coords[r, lane]) for lane in range(lanes)] for r in range(registers)]
        width = max(len(text) for row in texts for text in row)
        lines += [", ".join(text.rjust(width) for text in row) for row in texts]
    return "\n".join(lines)


def explain_layout(layout: Layout, shape: Sequence[int]) -> str:
    """Text: how each index of the hardware moves through the tensor, and the elements that are held twice.

    Raises:
        LayoutError: the layout has no linear form, or does not fit the shape.
    """
    linear = layout.to_linear(shape)
    lines = [repr(layout), f"for a tensor of shape {list(linear.out_dims.values())}:"]
    for dim, rows in linear.bases.items():
        steps = []
        for i, row in enumerate(rows):
            steps.append(f"{1 << i} -> {_coord(row) if any(row) else 'copy'}")
        moves = ", ".join(steps) or "one value"
        lines.append(f"  {dim} ({linear.in_size(dim)}): {moves}")
    copies = linear.total_in_size >> linear.rank
    if copies > 1:
        lines.append(f"  each element is held {copies} times")
    last = linear.in_size("offset") - 1
    if layout.place(last) != last:
        lines.append(f"  one block's buffer takes {layout.place(last) + 1} elements with its gaps")
    return "\n".join(lines)


# -- conversions ---------------------------------------------------------------------------------


def describe(cost: ConversionCost) -> str:
    """Return one line of text for a cost."""
    if cost.kind == "none":
        return "no data moves"
    if cost.kind == "registers":
        return f"within each lane: {cost.moved_registers} registers change places"
    if cost.kind == "shuffle":
        return f"within each warp: about {cost.shuffles} shuffles per lane"
    scope = "within each block" if cost.kind == "shared" else "between the blocks of the cluster"
    return (
        f"{scope}: through {cost.shared_bytes} bytes of shared memory and a barrier; unswizzled, "
        f"stores take {cost.store_conflicts} and loads {cost.load_conflicts} extra passes"
    )


def explain(
    src: DistributedLayout,
    dst: DistributedLayout,
    shape: Sequence[int],
    bits: Optional[int] = None,
) -> str:
    """Return text: the work of a conversion from `src` to `dst`, for elements of `bits` (32 if not given)."""
    bits = 32 if bits is None else bits
    return "\n".join(
        [
            f"from {src!r}",
            f"to   {dst!r}",
            f"for a tensor of shape {list(check_shape(shape, None))}, {bits} bits per element:",
            f"  {describe(conversion(src, dst, shape, bits))}",
        ]
    )
