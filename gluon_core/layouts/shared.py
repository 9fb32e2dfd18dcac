"""Place buffers in shared memory, for every vendor: swizzled, padded, linear.

In-dims are "offset" (in elements, from the start of a block's buffer) and "block".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import index
from typing import Any, Optional, Sequence

from gluon_core.errors import LayoutError
from gluon_core.features import INTERLEAVED_BUFFERS, PADDED_BY_TILE
from gluon_core.layouts.base import (
    SharedLayout,
    check_bases,
    check_cga,
    check_int,
    check_ints,
    check_order,
    check_shape,
    in_kernels,
    is_power_of_two,
    joined,
    joined_bases,
    unwrap,
)
from gluon_core.layouts.dialect import follows
from gluon_core.layouts.distributed import check_blocks_on_top, check_one_hot
from gluon_core.layouts.later import np
from gluon_core.layouts.linear import LinearLayout
from gluon_core.layouts.tiling import cga_linear, combine_with_cga, dim_names, identity_nd, shrink

__all__ = ["PaddedSharedLayout", "SharedLinearLayout", "SwizzledSharedLayout"]


def _check_power(value: Any, argument: str) -> int:
    value = unwrap(value)
    if not is_power_of_two(value):
        raise LayoutError(
            "not a power of two", argument=argument, expected="1, 2, 4, ...", got=repr(value)
        )
    return index(value)


def _tile_of(rows: Sequence[Sequence[int]], rank: int) -> list[int]:
    """Return the least power-of-two shape that holds all of the bases."""
    return [1 << max((row[d].bit_length() for row in rows), default=0) for d in range(rank)]


@dataclass(frozen=True)
class SwizzledSharedLayout(SharedLayout):
    """Rows one after the other, where row r has its vectors permuted by an xor with its phase.

    The phase of row r is `(r // per_phase) % max_phase`; vectors have `vec` elements. With
    `vec=1, per_phase=1, max_phase=1` the buffer is plain. With numbers that are no powers of two
    the formula holds for rows 1, 2, 4, ..., and other rows are the xor of theirs, as the compiler
    has it.

    Args:
        vec: elements that stay together; with all three powers of two.
        per_phase: rows that share a phase.
        max_phase: number of phases.
        order: the dimensions, the fastest first.
        cga_layout: one basis per bit of the block index; [] for one block.

    Raises:
        LayoutError: an entry is 0, `order` is no permutation, ranks differ.
    """

    vec: int
    per_phase: int
    max_phase: int
    order: list[int]
    cga_layout: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        order = check_ints(self.order, "order")
        self._set(
            vec=check_int(self.vec, "vec"),
            per_phase=check_int(self.per_phase, "per_phase"),
            max_phase=check_int(self.max_phase, "max_phase"),
            order=order,
            cga_layout=check_bases(self.cga_layout, "cga_layout", len(order)),
        )

    def verify(self) -> None:
        if not self.order:
            raise LayoutError("a shared layout needs at least one dimension", argument="order")
        for name in ("vec", "per_phase", "max_phase"):
            check_int(getattr(self, name), name, 1)
        check_order(self.order, "order")
        check_cga(self.cga_layout, self.rank)

    def mangle(self) -> str:
        swizzle = joined([self.vec, self.per_phase, self.max_phase], self.order)
        return f"SSS_{swizzle}_{joined_bases(self.cga_layout)}_SSS"

    def _emit(self, builder: Any) -> Any:
        return builder.get_swizzled_shared_layout(
            self.vec, self.per_phase, self.max_phase, self.order, self.cga_layout
        )

    @property
    def rank(self) -> int:
        return len(self.order)

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        sizes = dict(zip(dim_names(self.rank), shape))
        cga = shrink(cga_linear(self.cga_layout, self.rank), sizes)
        per_block = [max(1, sizes[dim] // cga.out_size(dim)) for dim in sizes]
        cta = identity_nd("offset", per_block, self.order[:1])
        if self.rank > 1:
            column, row = self.order[:2]
            columns, rows = per_block[column], per_block[row]
            bases = [[1 << i, 0] for i in range(columns.bit_length() - 1)]
            for i in range(rows.bit_length() - 1):
                phase = ((1 << i) // self.per_phase) % self.max_phase
                bases.append([(self.vec * phase) % columns, 1 << i])
            cta = LinearLayout({"offset": bases}, {f"dim{column}": columns, f"dim{row}": rows})
            for d in self.order[2:]:
                cta = cta * LinearLayout.identity_1d(per_block[d], "offset", f"dim{d}")
        return combine_with_cga(cta, self.cga_layout, shape)


@dataclass(frozen=True, init=False)
class PaddedSharedLayout(SharedLayout):
    """A linear order of elements with gaps: after each `interval` elements, `padding` unused ones.

    Args:
        interval_padding_pairs: [interval, padding] pairs, in elements, powers of two; the
            intervals differ.
        offset_bases: where each bit of the (unpadded) offset moves within one block's tile.
        cga_layout: one basis per bit of the block index, in tiles.
        shape: of the whole buffer, over all blocks.
        block_bases: the earlier spelling of `cga_layout`, in elements instead of tiles.

    Raises:
        LayoutError: pairs or bases of another form, or bases that do not cover `shape` once.
    """

    interval_padding_pairs: list[list[int]]
    offset_bases: list[list[int]]
    cga_layout: list[list[int]]
    shape: list[int]

    def __init__(
        self,
        interval_padding_pairs: Any,
        offset_bases: Any,
        cga_layout: Any = None,
        shape: Any = None,
        *,
        block_bases: Any = None,
    ):
        if unwrap(shape) is None:
            raise LayoutError("missing", argument="shape", expected="the shape of the buffer")
        if unwrap(block_bases) is not None and unwrap(cga_layout):
            raise LayoutError(
                "given together with cga_layout, which means the same", argument="block_bases"
            )
        shape = check_ints(shape, "shape")
        rank = len(shape)
        offset_bases = check_bases(offset_bases, "offset_bases", rank)
        tile = _tile_of(offset_bases, rank)
        bases = unwrap(block_bases) if unwrap(block_bases) is not None else cga_layout
        argument = "block_bases" if unwrap(block_bases) is not None else "cga_layout"
        blocks = check_bases(bases, argument, rank)
        # In elements (the earlier form, also positional) or in tiles: where they differ, a
        # dimension's least basis is the tile's extent or one.
        in_elements = any(0 < v and v >= tile[d] > 1 for row in blocks for d, v in enumerate(row))
        least = [min((row[d] for row in blocks if row[d]), default=1) for d in range(rank)]
        if in_elements and all(v in (1, t) for v, t in zip(least, tile)) and least != [1] * rank:
            blocks = [[value // tile[d] for d, value in enumerate(row)] for row in blocks]
        self._set(
            interval_padding_pairs=unwrap(interval_padding_pairs),
            offset_bases=offset_bases,
            cga_layout=blocks,
            shape=shape,
        )
        self._check_pairs()

    def _check_pairs(self) -> None:
        pairs = self.interval_padding_pairs
        name = "interval_padding_pairs"
        if not isinstance(pairs, list) or not pairs:
            raise LayoutError(
                "needs at least one pair", argument=name, expected="e.g. [[128, 8]]", got=pairs
            )
        for i, pair in enumerate(pairs):
            if not isinstance(pair, list) or len(pair) != 2 or not all(map(is_power_of_two, pair)):
                raise LayoutError(
                    "not a pair of powers of two",
                    argument=f"{name}[{i}]",
                    expected="[interval, padding] in elements",
                    got=pair,
                )
        intervals = [interval for interval, _ in pairs]
        if len(set(intervals)) != len(intervals):
            raise LayoutError("an interval repeats", argument=name, got=pairs)

    def verify(self) -> None:
        """Check all fields; every use of the layout does.

        Raises:
            LayoutError: see the class.
        """
        check_shape(self.shape, None)
        check_cga(self.cga_layout, self.rank)
        tile = _tile_of(self.offset_bases, self.rank)
        if any(not any(row) for row in self.offset_bases):
            raise LayoutError("a basis is zero", argument="offset_bases", got=self.offset_bases)
        check_one_hot({"offset_bases": self.offset_bases}, tile)
        blocks = _tile_of(self.cga_layout, self.rank)
        covered = [t * b for t, b in zip(tile, blocks)]
        if covered != self.shape:
            raise LayoutError(
                "the bases do not cover the shape",
                argument="shape",
                expected=f"{covered} ({tile} in each block, {blocks} blocks)",
                got=self.shape,
            )

    @classmethod
    @in_kernels
    def with_identity_for(
        cls,
        interval_padding_pairs: Any,
        shape: Any,
        order: Any,
        cga_layout: Any = None,
    ) -> "PaddedSharedLayout":
        """Return the padded layout that walks a buffer of `shape` in `order`, the fastest first."""
        shape = list(check_shape(shape, None))
        rank = len(shape)
        order = check_order(order, "order", rank)
        cga = check_cga(cga_layout, rank)
        blocks = _tile_of(cga, rank)
        if any(b > s for b, s in zip(blocks, shape)):
            raise LayoutError(
                "a dimension has more blocks than elements",
                argument="cga_layout",
                expected=f"at most {shape} blocks",
                got=blocks,
            )
        rows = [
            [1 << bit if i == d else 0 for i in range(rank)]
            for d in order
            for bit in range((shape[d] // blocks[d]).bit_length() - 1)
        ]
        return cls(interval_padding_pairs, rows, cga, shape)

    def mangle(self) -> str:
        bases = f"{self.offset_bases}_{self.cga_layout}"
        return f"PaddedShared_{self.interval_padding_pairs}_{bases}_{self.shape}_PaddedShared"

    def _emit(self, builder: Any) -> Any:
        by_tile = follows(PADDED_BY_TILE)  # older builders count blocks in elements
        if not by_tile and any(not any(row) for row in self.cga_layout):
            raise LayoutError(
                "the installed Triton has no padded buffers that blocks hold copies of",
                argument="cga_layout",
                expected="no zero bases",
                got=self.cga_layout,
                remedy=f"Use {PADDED_BY_TILE.releases}.",
            )
        return builder.get_padded_shared_layout(
            [interval for interval, _ in self.interval_padding_pairs],
            [padding for _, padding in self.interval_padding_pairs],
            self.offset_bases,
            self.cga_layout if by_tile else self.block_bases,
            self.shape,
        )

    @property
    def block_bases(self) -> list[list[int]]:
        """`cga_layout` in elements instead of tiles."""
        tile = _tile_of(self.offset_bases, self.rank)
        return [[value * tile[d] for d, value in enumerate(row)] for row in self.cga_layout]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        """Return the order of the elements, before padding; see `pad`."""
        if list(shape) != self.shape:
            raise LayoutError(
                "a padded layout is for one shape", argument="shape", expected=self.shape, got=shape
            )
        sizes = dict(zip(dim_names(self.rank), shape))
        bases = {"offset": self.offset_bases, "block": self.block_bases}
        return LinearLayout(bases, sizes)

    def pad(self, offsets: Any) -> Any:
        """Unpadded offsets (elements; an integer or an array) -> offsets in the padded buffer."""
        padded = np.asarray(offsets, dtype=np.int64)
        result = padded.copy()
        for interval, padding in self.interval_padding_pairs:
            result += padded // interval * padding
        return int(result) if result.ndim == 0 else result

    def place(self, offset: int) -> int:
        return int(self.pad(offset))

    def padded_size(self, elements: Optional[int] = None) -> int:
        """Elements that one block's buffer takes, gaps included (none after the last element)."""
        if elements is None:
            elements = 1 << len(self.offset_bases)
        return int(self.pad(elements - 1)) + 1


@dataclass(frozen=True)
class SharedLinearLayout(SharedLayout):
    """A shared memory layout given by its bases.

    Args:
        offset_bases: where each bit of the offset moves; bases may mix dimensions (swizzles).
        block_bases: where each bit of the block index moves, in elements.
        alignment: of the buffer, in bytes, a power of two.

    Raises:
        LayoutError: without its zero bases the map is no bijection onto a power-of-two shape.
    """

    offset_bases: list[list[int]]
    block_bases: list[list[int]] = field(default_factory=list)
    alignment: int = 16

    def __post_init__(self) -> None:
        offsets = check_bases(self.offset_bases, "offset_bases")
        if not offsets:
            raise LayoutError("empty", argument="offset_bases", expected="at least one basis")
        self._set(
            offset_bases=offsets,
            block_bases=check_bases(self.block_bases, "block_bases", len(offsets[0])),
            alignment=_check_power(self.alignment, "alignment"),
        )

    def verify(self) -> None:
        offsets, blocks = self.offset_bases, self.block_bases
        if not self.rank:
            raise LayoutError("the bases have no coordinates", argument="offset_bases", got=offsets)
        layout = self.own_linear()
        if not layout.is_surjective():
            raise LayoutError(
                "the bases do not reach every element",
                argument="offset_bases",
                expected=f"a map onto the shape {self.shape}",
                got=f"offset_bases={offsets}, block_bases={blocks}",
            )
        live = sum(any(row) for row in offsets + blocks)
        if layout.rank != live:
            raise LayoutError(
                "two places hold the same element",
                argument="offset_bases",
                expected="independent bases, apart from zeros",
                got=f"offset_bases={offsets}, block_bases={blocks}",
            )

    def check_compiler(self) -> None:
        """Refuse layouts that the compiler in use cannot represent.

        Raises:
            LayoutError: before Triton 3.7, blocks that interleave.
        """
        if not follows(INTERLEAVED_BUFFERS):
            check_blocks_on_top(self.block_bases, self.offset_bases)

    def mangle(self) -> str:
        bases = f"{self.offset_bases}_{self.block_bases}"
        return f"SharedLinear_{bases}_{self.alignment}_SharedLinear"

    def _emit(self, builder: Any) -> Any:
        self.check_compiler()
        return builder.get_shared_linear_layout(self.offset_bases, self.block_bases, self.alignment)

    @property
    def rank(self) -> int:
        return len(self.offset_bases[0])

    @property
    def shape(self) -> list[int]:
        """Return the shape of the buffer that the bases describe."""
        return _tile_of(self.offset_bases + self.block_bases, self.rank)

    @property
    def cga_layout(self) -> list[list[int]]:
        """Return the block bases in units of one block's tile."""
        tile = _tile_of(self.offset_bases, self.rank)
        return [[value // tile[d] for d, value in enumerate(row)] for row in self.block_bases]

    @classmethod
    def from_linear(cls, layout: LinearLayout, alignment: int = 16) -> "SharedLinearLayout":
        """Return the layout object for a linear map with the in-dims offset and block."""
        bases = layout.bases
        return cls(bases.get("offset", []), bases.get("block", []), alignment).check()

    def own_linear(self) -> LinearLayout:
        """Return the linear map for `self.shape`."""
        bases = {"offset": self.offset_bases, "block": self.block_bases}
        return LinearLayout(bases, dict(zip(dim_names(self.rank), self.shape)))

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        if list(shape) != self.shape:
            raise LayoutError(
                "a linear shared layout is for one shape",
                argument="shape",
                expected=self.shape,
                got=list(shape),
            )
        return self.own_linear()
