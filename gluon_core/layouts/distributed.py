"""Place tensors in registers, for every vendor: blocked, slices, linear, dot operands."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, Sequence

from gluon_core.errors import LayoutError, refuse
from gluon_core.features import (
    INTERLEAVED_SLICES,
    MIXED_WARPS,
    ONLY_PERMUTED_BASES,
    REGISTERS_BY_BITS,
)
from gluon_core.layouts.base import (
    DistributedLayout,
    check_bases,
    check_cga,
    check_int,
    check_ints,
    check_order,
    check_powers,
    check_shape,
    is_power_of_two,
    joined,
    joined_bases,
    unwrap,
)
from gluon_core.layouts.dialect import follows
from gluon_core.layouts.linear import LinearLayout
from gluon_core.layouts.tiling import combine_with_cga, dim_names, fit, identity_nd

__all__ = [
    "AutoLayout",
    "BlockedLayout",
    "CoalescedLayout",
    "DistributedLinearLayout",
    "DotOperandLayout",
    "SliceLayout",
]


_BASES = ("reg_bases", "lane_bases", "warp_bases", "block_bases")


@dataclass(frozen=True)
class AutoLayout(DistributedLayout):
    """The compiler picks the layout. It has no rank and cannot be drawn."""

    def mangle(self) -> str:
        return "AL"

    def _emit(self, builder: Any) -> Any:
        return builder.get_auto_layout()

    @property
    def rank(self) -> int:
        raise LayoutError("an AutoLayout has no rank until the compiler has resolved it")


@dataclass(frozen=True)
class CoalescedLayout(DistributedLayout):
    """The compiler picks a layout for coalesced global memory access. It has no rank."""

    def mangle(self) -> str:
        return "CL"

    def _emit(self, builder: Any) -> Any:
        return builder.get_coalesced_layout()

    @property
    def rank(self) -> int:
        raise LayoutError("a CoalescedLayout has no rank until the compiler has resolved it")


@dataclass(frozen=True)
class BlockedLayout(DistributedLayout):
    """Each lane holds a small tile; lanes tile a warp, warps tile a block, blocks a cluster.

    The tile repeats along the tensor until it is covered; where it is larger than the tensor, it
    wraps and elements are held more than once.

    Args:
        size_per_thread: the tile of one lane, per dimension.
        threads_per_warp: lanes along each dimension.
        warps_per_cta: warps along each dimension.
        order: the dimensions, the fastest first.
        cga_layout: one basis per bit of the block index; [] for one block.

    Raises:
        LayoutError: ranks differ, an entry is no power of two, `order` is no permutation.
    """

    size_per_thread: list[int]
    threads_per_warp: list[int]
    warps_per_cta: list[int]
    order: list[int]
    cga_layout: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = check_ints(self.size_per_thread, "size_per_thread")
        rank = len(size)
        self._set(
            size_per_thread=size,
            threads_per_warp=check_ints(self.threads_per_warp, "threads_per_warp", rank),
            warps_per_cta=check_ints(self.warps_per_cta, "warps_per_cta", rank),
            order=check_ints(self.order, "order", rank),
            cga_layout=check_bases(self.cga_layout, "cga_layout", rank),
        )

    def verify(self) -> None:
        if not self.rank:
            raise LayoutError("a blocked layout needs at least one dimension", argument="rank")
        for name in ("size_per_thread", "threads_per_warp", "warps_per_cta"):
            check_powers(getattr(self, name), name)
        check_order(self.order, "order")
        check_cga(self.cga_layout, self.rank)

    def mangle(self) -> str:
        tile = joined(self.size_per_thread, self.threads_per_warp, self.warps_per_cta, self.order)
        return f"B{tile}_{joined_bases(self.cga_layout)}B"

    def _emit(self, builder: Any) -> Any:
        return builder.get_blocked_layout(
            self.size_per_thread,
            self.threads_per_warp,
            self.warps_per_cta,
            self.order,
            self.cga_layout,
        )

    @property
    def rank(self) -> int:
        return len(self.order)

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        cta = (
            identity_nd("register", self.size_per_thread, self.order)
            * identity_nd("lane", self.threads_per_warp, self.order)
            * identity_nd("warp", self.warps_per_cta, self.order)
        )
        return combine_with_cga(cta, self.cga_layout, shape)

    def _check_dot_operand(self, operand_index: int, k_width: int) -> None:
        if k_width != 0:
            raise LayoutError(
                "a blocked parent has no k_width", argument="k_width", expected=0, got=k_width
            )

    def dot_operand_linear(
        self, operand_index: int, k_width: int, shape: Sequence[int]
    ) -> LinearLayout:
        """Operands of a dot that runs on plain FMAs: each lane holds all of K."""
        self._check_dot_operand(operand_index, k_width)
        k_dim = self.rank - 1 - operand_index
        size = list(self.size_per_thread)
        size[k_dim] = shape[k_dim]
        cta = identity_nd("register", size, self.order)
        for name, counts in (("lane", self.threads_per_warp), ("warp", self.warps_per_cta)):
            for d in self.order:
                make = LinearLayout.zeros_1d if d == k_dim else LinearLayout.identity_1d
                cta = cta * make(counts[d], name, f"dim{d}")
        cga = [[0 if d == k_dim else v for d, v in enumerate(row)] for row in self.cga_layout]
        return combine_with_cga(cta, cga, shape, keep_copies=True)


@dataclass(frozen=True)
class SliceLayout(DistributedLayout):
    """The layout of the rest of a tensor in layout `parent` after dimension `dim` is gone.

    Reducing along `dim` gives it, `expand_dims` at `dim` undoes it.

    Raises:
        LayoutError: `parent` is no register layout of rank 2 or more, or lacks `dim`.
    """

    dim: int
    parent: DistributedLayout

    def __post_init__(self) -> None:
        parent = unwrap(self.parent)
        if not isinstance(parent, DistributedLayout):
            raise LayoutError(
                "the parent is not a register layout",
                argument="parent",
                expected="e.g. a BlockedLayout",
                got=repr(parent),
            )
        self._set(dim=check_int(self.dim, "dim"), parent=parent)

    def verify(self) -> None:
        parent = self.parent
        if isinstance(parent, (AutoLayout, CoalescedLayout)):
            raise LayoutError(
                f"{type(parent).__name__} cannot be sliced before it is resolved",
                argument="parent",
                remedy="Give the values AutoLayout() itself, or slice a concrete layout.",
            )
        parent.check()
        if parent.rank < 2:
            raise LayoutError(
                "a slice needs a parent of rank 2 or more", argument="parent", got=repr(parent)
            )
        check_int(self.dim, "dim", 0, parent.rank - 1)

    def mangle(self) -> str:
        return f"SL{self.dim}_{self.parent.mangle()}SL"

    def _emit(self, builder: Any) -> Any:
        self.check_compiler()
        return builder.get_slice_layout(self.dim, self.parent._to_ir(builder))

    def check_compiler(self) -> None:
        """Refuse layouts that the compiler in use cannot slice.

        Raises:
            LayoutError: before Triton 3.8, a linear parent in which the blocks interleave.
        """
        parent = self.parent
        while isinstance(parent, SliceLayout):
            parent = parent.parent
        if isinstance(parent, DistributedLinearLayout) and not follows(INTERLEAVED_SLICES):
            check_blocks_on_top(
                parent.block_bases, parent.reg_bases + parent.lane_bases + parent.warp_bases
            )

    @property
    def rank(self) -> int:
        return self.parent.rank - 1

    @property
    def cga_layout(self) -> list[list[int]]:
        return [row[: self.dim] + row[self.dim + 1 :] for row in self.parent.cga_layout]

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        parent = self.parent.to_linear([*shape[: self.dim], 1, *shape[self.dim :]])
        kept = [name for d, name in enumerate(parent.out_dims) if d != self.dim]
        layout = parent.sublayout(parent.in_dims, kept)
        renamed = dict(zip(kept, dim_names(len(kept))))
        return layout.rename(outs=renamed).without_zero_bases("register")


@dataclass(frozen=True)
class DistributedLinearLayout(DistributedLayout):
    """A register layout given by its bases, for a tensor of `shape`.

    Args:
        reg_bases, lane_bases, warp_bases, block_bases: where each bit of the register, lane, warp
            and block index moves. A basis is zero (a copy) or moves along one dimension; with Triton
            3.8 or later, warps along several.
        shape: of the tensor; the bases reach every element of it, those that are not zero once.

    Raises:
        LayoutError: a basis of another form, one that repeats, or a shape that is not reached.
    """

    reg_bases: list[list[int]]
    lane_bases: list[list[int]]
    warp_bases: list[list[int]]
    block_bases: list[list[int]]
    shape: list[int]

    def __post_init__(self) -> None:
        shape = check_ints(self.shape, "shape")
        rank = len(shape)
        named = {name: check_bases(getattr(self, name), name, rank) for name in _BASES}
        self._set(shape=shape, **named)

    def verify(self) -> None:
        if not self.rank:
            raise LayoutError("a linear layout needs at least one dimension", argument="shape")
        check_shape(self.shape, None)
        check_bijection({name: getattr(self, name) for name in _BASES}, self.shape)
        mixed = [
            f"{name}[{i}]"
            for name in _BASES
            for i, row in enumerate(getattr(self, name))
            if sum(map(bool, row)) > 1 and (name != "warp_bases" or not follows(MIXED_WARPS))
        ]
        if mixed:
            raise LayoutError(
                "a basis moves along several dimensions at once",
                argument=mixed[0],
                expected="one dimension"
                + (f", but for warps with {MIXED_WARPS.releases}" if "warp" in mixed[0] else ""),
                got=getattr(self, mixed[0].partition("[")[0]),
            )
        several = [row for row in self.reg_bases if any(v & (v - 1) for v in row)]
        if several and not follows(REGISTERS_BY_BITS):
            raise LayoutError(
                "the installed Triton has no registers that move along several bits",
                argument="reg_bases",
                expected="zeros and powers of two",
                got=several[0],
                remedy="Give such bases to lanes or warps.",
            )

    def mangle(self) -> str:
        bases = f"{self.reg_bases}_{self.lane_bases}_{self.warp_bases}_{self.block_bases}"
        return f"DLL{bases}_{self.shape}DLL"

    def _emit(self, builder: Any) -> Any:
        return builder.get_distributed_linear_layout(
            self.reg_bases, self.lane_bases, self.warp_bases, self.block_bases, self.shape
        )

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def cga_layout(self) -> list[list[int]]:
        """Return the block bases in units of one block's tile."""
        tile = list(self.shape)
        for row in self.block_bases:
            for d, value in enumerate(row):
                if value:
                    tile[d] = min(tile[d], value)
        return [[value // tile[d] for d, value in enumerate(row)] for row in self.block_bases]

    @classmethod
    def from_linear(cls, layout: LinearLayout) -> "DistributedLinearLayout":
        """Return the layout object for a linear map with the in-dims register, lane, warp, block."""
        bases = layout.bases
        return cls(
            bases.get("register", []),
            bases.get("lane", []),
            bases.get("warp", []),
            bases.get("block", []),
            list(layout.out_dims.values()),
        ).check()

    def own_linear(self) -> LinearLayout:
        """Return the linear map for `self.shape`."""
        bases = {
            "register": self.reg_bases,
            "lane": self.lane_bases,
            "warp": self.warp_bases,
            "block": self.block_bases,
        }
        return LinearLayout(bases, dict(zip(dim_names(self.rank), self.shape)))

    @property
    def repeats(self) -> bool:
        """True where two places hold one element without a zero basis; compilers hang converting those."""
        linear = self.own_linear()
        return linear.rank != sum(any(row) for rows in linear.bases.values() for row in rows)

    def register_order(self) -> list[int]:
        """Return the dimensions by how early the registers walk them; the rest from the last to first."""
        order = []
        for row in self.reg_bases:
            order += [d for d, value in enumerate(row) if value and d not in order]
        return order + [d for d in reversed(range(self.rank)) if d not in order]

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        layout = self.own_linear()
        if list(shape) == self.shape:
            return layout
        names = dim_names(self.rank)
        layout = layout.transpose_outs([names[d] for d in self.register_order()])
        fitted = fit(layout, dict(zip(names, shape)), drop_registers=True)
        return fitted.transpose_outs(names)


def check_blocks_on_top(blocks: list[list[int]], others: list[list[int]]) -> None:
    """Refuse block bases below other bases of a dimension, for compilers that abort on them."""
    for d in range(len((blocks or [[]])[0])):
        ours = [row[d] for row in blocks if row[d]]
        if ours and min(ours) < max((row[d] for row in others), default=0):
            raise LayoutError(
                "the installed Triton cannot handle blocks that interleave",
                argument="block_bases",
                expected=f"the largest bases of dimension {d}",
                got=blocks,
                remedy="Use a newer Triton, or give each block a contiguous tile.",
            )


def check_bijection(named: dict[str, list[list[int]]], shape: Sequence[int]) -> None:
    """Check that all of `shape` is reached, each element once but for zero bases."""
    for name, rows in named.items():
        for i, row in enumerate(rows):
            if any(value >= size for value, size in zip(row, shape)):
                raise LayoutError(
                    f"a basis leaves the shape {list(shape)}",
                    argument=f"{name}[{i}]",
                    expected=f"less than {list(shape)}",
                    got=row,
                )
    bases = {name: [row for row in rows if any(row)] for name, rows in named.items()}
    outs = dict(zip(dim_names(len(shape)), shape))
    linear = LinearLayout(bases, outs)
    live = sum(map(len, bases.values()))
    if not linear.is_surjective():
        raise LayoutError(
            f"the bases do not reach every element of the shape {list(shape)}",
            argument="shape",
            expected=f"{prod(shape)} elements",
            got=", ".join(f"{name}={rows}" for name, rows in named.items()),
        )
    if linear.rank != live:
        error = LayoutError(
            "a basis is the sum of others: two places hold one element",
            argument=next(name for name in named if bases[name]),
            got=", ".join(f"{name}={rows}" for name, rows in named.items()),
            remedy="Use a zero basis for hardware that holds copies.",
        )
        if follows(ONLY_PERMUTED_BASES):
            raise error
        refuse(error)


def check_one_hot(named: dict[str, list[list[int]]], shape: Sequence[int]) -> None:
    """Check that each basis is zero or a power of two in one dimension, none twice, all of `shape` reached."""
    seen: dict[tuple[int, ...], str] = {}
    for name, rows in named.items():
        for i, row in enumerate(rows):
            where = f"{name}[{i}]"
            hot = [(d, v) for d, v in enumerate(row) if v]
            if not hot:
                continue
            if len(hot) > 1 or not is_power_of_two(hot[0][1]):
                raise LayoutError(
                    "a basis does not move by a power of two in one dimension",
                    argument=where,
                    expected="zeros and at most one power of two",
                    got=row,
                )
            d, value = hot[0]
            if value >= shape[d]:
                raise LayoutError(
                    f"a basis leaves the shape {list(shape)}",
                    argument=where,
                    expected=f"less than {shape[d]} in dimension {d}",
                    got=row,
                )
            if tuple(row) in seen:
                raise LayoutError(
                    f"a basis repeats {seen[tuple(row)]}",
                    argument=where,
                    got=row,
                    remedy="Use a zero basis for hardware that holds copies.",
                )
            seen[tuple(row)] = where
    for d, size in enumerate(shape):
        for bit in range(size.bit_length() - 1):
            wanted = tuple(1 << bit if i == d else 0 for i in range(len(shape)))
            if wanted not in seen:
                raise LayoutError(
                    f"the bases do not reach every element of the shape {list(shape)}",
                    argument="shape",
                    expected=f"a basis {list(wanted)}",
                    got=", ".join(f"{name}={rows}" for name, rows in named.items()),
                )


@dataclass(frozen=True)
class DotOperandLayout(DistributedLayout):
    """The layout of operand A or B of a matrix multiply whose accumulator has layout `parent`.

    Args:
        operand_index: 0 for A, 1 for B.
        parent: the accumulator's layout.
        k_width: consecutive elements along K in one lane; 0 for a blocked parent.

    Raises:
        LayoutError: another operand index, or a parent that cannot hold dot operands.
    """

    operand_index: int
    parent: DistributedLayout
    k_width: int

    def __post_init__(self) -> None:
        parent = unwrap(self.parent)
        index = check_int(self.operand_index, "operand_index")
        k_width = check_int(self.k_width, "k_width")
        if not isinstance(parent, DistributedLayout) or (
            type(parent).dot_operand_linear is DistributedLayout.dot_operand_linear
        ):
            raise LayoutError(
                "the parent cannot hold dot operands",
                argument="parent",
                expected="a BlockedLayout or a matrix-unit layout of a vendor",
                got=repr(parent),
            )
        self._set(operand_index=index, parent=parent, k_width=k_width)

    def verify(self) -> None:
        parent = self.parent
        parent.check()
        if parent.rank < 2:
            raise LayoutError(
                "a dot operand needs a parent of rank 2 or more",
                argument="parent",
                got=repr(parent),
            )
        check_int(self.operand_index, "operand_index", 0, 1)
        parent._check_dot_operand(self.operand_index, self.k_width)

    def mangle(self) -> str:
        return f"DO{self.operand_index}_{self.parent.mangle()}_{self.k_width}DO"

    def _emit(self, builder: Any) -> Any:
        return builder.get_dot_operand_layout(
            self.operand_index, self.parent._to_ir(builder), self.k_width
        )

    @property
    def rank(self) -> int:
        return self.parent.rank

    @property
    def cga_layout(self) -> list[list[int]]:
        """Return the parent's, with K not split: every block holds all of it."""
        k_dim = self.rank - 1 - self.operand_index
        parent = self.parent.cga_layout
        return [[0 if d == k_dim else v for d, v in enumerate(row)] for row in parent]

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        return self.parent.dot_operand_linear(self.operand_index, self.k_width, list(shape))
