"""Draw two layouts in one picture: the distance of moves, or the cost of an access."""

from __future__ import annotations

from itertools import product
from typing import Optional, Sequence

from gluon_core.errors import LayoutError
from gluon_core.layouts.base import DistributedLayout, Layout, SharedLayout
from gluon_core.layouts.cost import bank_conflicts, conversion, vector_elements
from gluon_core.layouts.later import np
from gluon_core.layouts.linear import LinearLayout
from gluon_pictures.draw import (
    Grid,
    Panel,
    Picture,
    bases_panel,
    cell,
    checked,
    colour,
    coord_text,
    natural_shape,
    picture,
    place_text,
)
from gluon_pictures.render import describe, explain

__all__ = ["MOVES", "compare", "moves"]

# How far an element travels, nearest first.
MOVES = ("stays", "to another register", "to another lane", "to another warp", "to another block")
_PLACES = ("register", "lane", "warp", "block")
_COLOURS = ("#e2e8f0", "#bbf7d0", "#fde68a", "#fdba74", "#fca5a5")


def moves(src: DistributedLayout, dst: DistributedLayout, shape: Sequence[int]) -> np.ndarray:
    """For each element how far it travels from `src` to `dst`: indices into `MOVES`, of `shape`.

    Where an element is held several times, each new holder takes it from the nearest old one, and
    the farthest of these ways counts.

    Raises:
        LayoutError: a layout does not fit the shape.
    """
    before, after = src.to_linear(shape), dst.to_linear(shape)
    path = after.invert_and_compose(before)
    names = list(after.in_dims)
    sizes = list(after.in_dims.values())
    grids = dict(zip(names, np.ogrid[tuple(slice(0, size) for size in sizes)]))
    came = path.apply_arrays(**grids)
    copies = [dict.fromkeys(_PLACES, 0)]
    for vector in before.kernel():
        copies += [{dim: held[dim] ^ vector.get(dim, 0) for dim in held} for held in copies]
    nearest: np.ndarray = np.full(sizes, len(MOVES) - 1)
    for copy in copies:
        way: np.ndarray = np.zeros(sizes, dtype=np.int64)
        for distance, dim in enumerate(_PLACES, 1):
            here = grids.get(dim, np.int64(0))
            there = came.get(dim, np.int64(0)) ^ copy[dim]
            way = np.where(here != there, distance, way)
        nearest = np.minimum(nearest, way)
    images = after.table()
    farthest: np.ndarray = np.zeros(tuple(shape), dtype=np.int64)
    np.maximum.at(farthest, tuple(images[dim] for dim in images), nearest)
    return farthest


def compare(
    first: Layout,
    second: Layout,
    shape: Optional[Sequence[int]] = None,
    *,
    bits: Optional[int] = None,
    banks: int = 32,
) -> Picture:
    """Draw two layouts of one tensor in a picture.

    Two register layouts: how far each element travels when a value is converted, and the cost. A
    register and a shared layout, in any order: the lanes that go together in the first
    pass of an access, the banks that they hit, and how many passes too many that makes.

    Args:
        shape: of the tensor; by default a small one that shows the first layout.
        bits: of one element; by default those of a layout, or 32.
        banks: of shared memory, 4 bytes each.

    Raises:
        LayoutError: a layout does not fit the shape, or the pair is neither of those.
    """
    extents = natural_shape(first) if shape is None else list(shape)
    if bits is None:
        widths = (getattr(layout, "element_bitwidth", None) for layout in (first, second))
        bits = next((width for width in widths if width), 32)
    if isinstance(first, DistributedLayout) and isinstance(second, DistributedLayout):
        return _conversion(first, second, extents, bits)
    for register, shared in ((first, second), (second, first)):
        if isinstance(register, DistributedLayout) and isinstance(shared, SharedLayout):
            return _access(register, shared, extents, bits, banks)
    raise LayoutError(
        "these two cannot be compared",
        argument="layouts",
        expected="two register layouts, or a register layout and a shared one",
        got=f"{type(first).__name__} and {type(second).__name__}",
    )


def _conversion(
    src: DistributedLayout, dst: DistributedLayout, shape: list[int], bits: int
) -> Picture:
    before, after = checked(src, shape), checked(dst, shape)
    far = moves(src, dst, shape)
    old, new = (_holders(linear, layout) for linear, layout in ((before, src), (after, dst)))
    grid = Grid(shape, 3)
    parts = [grid.frame()]
    for coord in np.ndindex(*shape):
        way = int(far[coord])
        parts.append(
            cell(
                *grid.place(coord),
                grid.width,
                grid.height,
                _COLOURS[way],
                f"element {coord_text(coord)}: {MOVES[way]}\n"
                + "\n".join(f"from {text}" for text in old[coord])
                + "\n"
                + "\n".join(f"to {text}" for text in new[coord]),
                "-rlwb"[way],
            )
        )
    counts = np.bincount(far.ravel(), minlength=len(MOVES))
    notes = [
        f"{count} of {far.size} elements: {MOVES[i]}" for i, count in enumerate(counts) if count
    ]
    cost = conversion(src, dst, shape, bits)
    panels = [
        Panel(f"How far each element travels. {describe(cost)}", "".join(parts), *grid.size()),
        _legend(),
        _titled(bases_panel(before), "The bases before"),
        _titled(bases_panel(after), "The bases after"),
    ]
    text = "\n".join([explain(src, dst, shape, bits), *(f"  {line}" for line in notes)])
    return Picture(
        f"{type(src).__name__} to {type(dst).__name__}, shape {shape}", text, tuple(panels)
    )


def _titled(panel: Panel, head: str) -> Panel:
    return Panel(panel.caption.replace("The bases", head, 1), panel.body, panel.width, panel.height)


def _legend() -> Panel:
    parts = [
        cell(i * 150, 2, 140, 18, _COLOURS[i], text, f"{'-rlwb'[i]} {text}")
        for i, text in enumerate(MOVES)
    ]
    return Panel("Colours", "".join(parts), 750, 24)


def _holders(linear: LinearLayout, layout: Layout) -> dict[tuple[int, ...], list[str]]:
    holders: dict[tuple[int, ...], list[str]] = {}
    for indices in product(*(range(size) for size in linear.in_dims.values())):
        place = dict(zip(linear.in_dims, indices))
        coord = tuple(linear.apply(**place).values())
        holders.setdefault(coord, []).append(place_text(linear, layout, place, 32, 32))
    return holders


def _access(
    register: DistributedLayout, shared: SharedLayout, shape: list[int], bits: int, banks: int
) -> Picture:
    checked(register, shape)
    buffer = checked(shared, shape)
    extra = bank_conflicts(register, shared, shape, bits, banks)
    vector = vector_elements(register, shared, shape, bits)
    hits = _first_pass(register, shared, shape, bits, banks, vector)
    most = max(len(words) for words in hits.values())
    tall = most * 18
    parts = []
    for bank in range(banks):
        words = hits.get(bank, {})
        for i, (word, readers) in enumerate(sorted(words.items())):
            parts.append(
                cell(
                    bank * 30,
                    tall - i * 18,
                    30,
                    18,
                    colour(i, max(most, 2), 0, 2),
                    f"bank {bank}, word at byte {word * 4}\n" + "\n".join(readers),
                    str(word * 4),
                )
            )
        parts.append(f'<text class="m" x="{bank * 30 + 15}" y="{tall + 30}">{bank}</text>')
    lanes = len(
        {
            line.split(":")[0]
            for words in hits.values()
            for readers in words.values()
            for line in readers
        }
    )
    caption = (
        f"The words that the first {lanes} lanes of warp 0 touch together, stacked over their "
        f"banks: {extra} extra passes"
    )
    drawn = Panel(caption, "".join(parts), banks * 30 + 4, tall + 36)
    rest = picture(shared, shape, bits=bits, banks=banks).panels
    text = "\n".join(
        [
            f"registers {register!r}",
            f"shared    {shared!r}",
            f"for a tensor of shape {shape}, {bits} bits per element, {banks} banks:",
            f"  one lane moves {vector} element{'s' * (vector != 1)} at once",
            f"  {extra} extra passes over the banks for each pass that is needed"
            if extra
            else "  no bank conflicts",
        ]
    )
    title = f"{type(register).__name__} and {type(shared).__name__}, shape {list(buffer.out_dims.values())}"
    return Picture(title, text, (drawn, *rest))


def _first_pass(
    register: DistributedLayout,
    shared: SharedLayout,
    shape: list[int],
    bits: int,
    banks: int,
    vector: int,
) -> dict[int, dict[int, list[str]]]:
    """Bank -> word -> the lanes that touch it: of warp 0, register 0, as many lanes as go together."""
    held = register.to_linear(shape).without_zero_bases("register")
    path = held.invert_and_compose(shared.to_linear(shape))
    words = max(1, vector * bits // 32)
    together = min(held.in_size("lane"), max(1, banks // words))
    passes: dict[int, dict[int, list[str]]] = {}
    for lane in range(together):
        offsets = []
        for step in range(vector):
            place = path.apply(register=0, lane=lane, warp=0, block=0)
            offsets.append(shared.place(place["offset"] ^ step))
        for word in sorted({offset * bits // 32 for offset in offsets}):
            passes.setdefault(word % banks, {}).setdefault(word, []).append(
                f"lane {lane}: elements at offsets "
                + ", ".join(str(o) for o in offsets if o * bits // 32 == word)
            )
    return passes
