"""Shared buffers without a layout: the layouts that they may have, and the price of an access."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Iterator, Optional, Sequence

from gluon_core._triton import VERSION
from gluon_core.errors import GluonError
from gluon_core.layouts import (
    DistributedLayout,
    DotOperandLayout,
    SharedLayout,
    SwizzledSharedLayout,
    bank_conflicts,
    infer,
)
from gluon_core.layouts.cost import copied_bits, matrix_rows, vector_elements
from gluon_core.plugin.targets import Target
from gluon_core.portable.requests import TileRequest
from gluon_core.portable.selection import available, code
from gluon_core.semantic.copies import consecutive_elements
from gluon_core.values import MBarrierLayout

__all__ = [
    "View",
    "conflicts_of",
    "first_layout",
    "is_open",
    "matrices_of",
    "shared_candidates",
    "shared_price",
    "unit_candidates",
]

_ISSUE = 4.0  # an access, next to an arithmetic instruction; as of memory
_LEAST_COPY = 4  # bytes that an asynchronous copy moves per thread
_PASS_BITS = 1024  # of all banks at once, where there are 32
_ALIGNED = 16
_MOST_FASTEST = 3  # dimensions of which each may be the contiguous one


@dataclass(frozen=True)
class View:
    """Hold how an access sees a buffer.

    Attributes:
        steps: ("permute" or "reshape", detail, shape before) of each view, the first outermost.
        shape: of the view. bits: of an element. banks: of the target.
        copied: by an asynchronous copy from global memory, which moves at least 4 bytes a thread.
        side_by_side: the lanes of such a copy write 16 bytes each, one after the other.
        matrices: operands of a product may be loaded as matrices of eight rows of 16 bytes.
        name, line: of the access; views are equal without them, and share their prices.
    """

    steps: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    shape: tuple[int, ...]
    bits: int
    banks: int
    copied: bool
    name: str = field(compare=False)
    line: int = field(compare=False)
    side_by_side: bool = False
    matrices: bool = False

    def layout(self, buffer: SharedLayout) -> SharedLayout:
        """Return the layout of the view of a buffer.

        Raises:
            GluonError: the buffer's layout has no such view.
        """
        for kind, detail, shape in self.steps:
            rule = infer.memdesc_permute if kind == "permute" else infer.memdesc_reshape
            buffer = rule(buffer, list(shape), list(detail))
        return buffer


def first_layout(
    target: Target, warps: int, dtype: Any, shape: Sequence[int], rank: Optional[int] = None
) -> SharedLayout:
    """Return the layout with which a kernel is traced first: the one that the target's unit for copies
    of tiles wants, or that of a barrier.

    Args:
        rank: of the layout: that of the buffer, or one less where its first dimension counts tiles. None for
            the usual one: matrices are one tile, and buffers of more dimensions a ring of tiles.
    """
    if str(dtype) == "int64" and shape[-1] == 1 and len(shape) <= 2:
        return MBarrierLayout()
    if rank is None:
        ring = len(shape) > 2 or len(shape) == 2 and shape[0] & (shape[0] - 1) != 0
        rank = len(shape) - ring
    block = list(shape)[len(shape) - rank :]
    if 2 <= rank <= 5 and not any(size & (size - 1) for size in block):
        aligned = tuple(_ALIGNED for _ in block[1:])
        request = TileRequest(
            target, warps, VERSION, None, [None] * rank, [*aligned, 1], dtype, tuple(block),
            None, aligned, _ALIGNED,
        )  # fmt: skip
        for lowering in available("tile_copy", target, VERSION):
            try:
                layout: SharedLayout = code(lowering, "layout")(request)
                layout.to_linear(block)
            except GluonError:
                continue
            return layout
    return SwizzledSharedLayout(1, 1, 1, list(reversed(range(rank))))


def is_open(layout: Any) -> bool:
    """Return True for layouts that the solver may exchange: no barrier's."""
    return not isinstance(layout, MBarrierLayout)


def shared_candidates(
    shape: Sequence[int], bits: int, first: SharedLayout
) -> Iterator[SharedLayout]:
    """Yield layouts of a buffer, plain ones first, each once."""
    rank = first.rank or len(shape)
    inner = list(shape)[len(shape) - rank :]
    seen: set[Any] = set()
    dims = list(reversed(range(rank)))
    for fastest in dims if rank <= _MOST_FASTEST else dims[:1]:
        order = [fastest, *(dim for dim in dims if dim != fastest)]
        for layout in _swizzles(inner, order, bits):
            if layout not in seen:
                seen.add(layout)
                yield layout
    if first not in seen:
        yield first


def unit_candidates(shape: Sequence[int], bits: int, first: Any) -> Iterator[SharedLayout]:
    """Yield the layouts in which a matrix unit reads a buffer: rows or columns contiguous."""
    yield first
    inner = list(shape)[len(shape) - (first.rank or len(shape)) :]
    if len(inner) == 2 and bits == 16:  # units read other operands along K alone
        yield type(first).get_default_for(inner, _Element(bits), transposed=not first.transposed)


@dataclass(frozen=True)
class _Element:
    """Hold the bits of an element, as dtypes do."""

    primitive_bitwidth: int


def _swizzles(shape: Sequence[int], order: list[int], bits: int) -> Iterator[SharedLayout]:
    yield SwizzledSharedLayout(1, 1, 1, order)
    if len(shape) < 2:
        return
    columns = shape[order[0]]
    row_bytes = max(1, columns * bits // 8)
    for vector_bytes in (16, 8, 4, 2, 1):
        vector = max(1, vector_bytes * 8 // bits)
        per_phase = max(1, 128 // row_bytes)
        phases = min(columns // vector, max(1, 128 // max(vector_bytes, bits // 8)) // per_phase)
        while phases > 1:
            yield SwizzledSharedLayout(vector, per_phase, phases, order)
            phases //= 2


@lru_cache(maxsize=1 << 16)
def conflicts_of(register: DistributedLayout, buffer: SharedLayout, view: View) -> tuple[int, int]:
    """Return (elements per instruction of a thread, extra passes over the banks).

    Raises:
        GluonError: the layouts do not fit the view.
    """
    layout = view.layout(buffer)
    bits, shape = max(view.bits, 8), list(view.shape)
    vector = vector_elements(register, layout, shape, bits)
    return vector, bank_conflicts(register, layout, shape, bits, view.banks)


@lru_cache(maxsize=1 << 16)
def matrices_of(
    register: DistributedLayout, buffer: SharedLayout, view: View
) -> Optional[tuple[int, int]]:
    """Return (elements of a thread, extra passes) of a load of matrices; None where there is none.

    Raises:
        GluonError: the layouts do not fit the view.
    """
    if not view.matrices or not isinstance(register, DotOperandLayout):
        return None
    return matrix_rows(register, view.layout(buffer), list(view.shape), view.bits)


@lru_cache(maxsize=1 << 16)
def shared_price(
    register: DistributedLayout, buffer: SharedLayout, view: View, warps: int
) -> float:
    """Return the price of an access to a buffer from registers; infinite where it is impossible."""
    vector, extra = matrices_of(register, buffer, view) or conflicts_of(register, buffer, view)
    if view.copied:
        whole = consecutive_elements(register, view.layout(buffer), list(view.shape)) or 1
        if whole * view.bits < _LEAST_COPY * 8:
            return float("inf")
        if view.side_by_side:
            widths = (_ALIGNED * 8,)
            if copied_bits(register, view.layout(buffer), view.shape, view.bits, widths) is None:
                return float("inf")
            whole = _ALIGNED * 8 // view.bits
        vector = whole
    registers = register.to_linear(list(view.shape)).in_size("register")
    passes = max(1, vector * view.bits * 32 // _PASS_BITS)
    return warps * registers / vector * (_ISSUE + passes * (1 + extra))
