"""Lower the portable ops for every target: masked global access, copies through registers,
multiply-add."""

from __future__ import annotations

from typing import Any, Union

from gluon_core._triton import tl
from gluon_core.layouts import BlockedLayout, DotOperandLayout
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.portable.requests import (
    AsyncCopyRequest,
    LoadRequest,
    MmaLayouts,
    MmaRequest,
    StoreRequest,
)
from gluon_core.portable.tiles import row_swizzle, split_warps

__all__ = [
    "commit",
    "copy_through_registers",
    "load",
    "mma",
    "mma_accepts",
    "mma_layouts",
    "store",
    "wait",
]

_BANKS = 32  # of shared memory, with 4 bytes each


def load(request: LoadRequest, _semantic: SemanticLayer) -> Any:
    other = request.other
    if request.mask is not None and other is None:
        other = 0.0 if request.ptr.dtype.element_ty.is_floating() else 0
    pointers = _semantic.add(request.ptr, request.offsets, True)
    return _semantic.load_global(pointers, request.mask, other, request.cache_modifier)


def store(request: StoreRequest, _semantic: SemanticLayer) -> Any:
    pointers = _semantic.add(request.ptr, request.offsets, True)
    return _semantic.store_global(pointers, request.value, request.mask, request.cache_modifier)


def copy_through_registers(request: AsyncCopyRequest, _semantic: SemanticLayer) -> Any:
    loaded = load(
        LoadRequest(
            request.target,
            request.num_warps,
            request.triton,
            request.ptr,
            request.offsets,
            request.mask,
            None,
            request.cache_modifier,
        ),
        _semantic,
    )
    return _semantic.deferred_store(
        request.dest, loaded, request.ptr, request.offsets, request.mask
    )


def commit(_semantic: SemanticLayer) -> None:
    """Nothing is in flight: the copy was done when it was issued."""
    _semantic.record("deferred_commit")


def wait(outstanding: int, _semantic: SemanticLayer) -> None:
    """Nothing to wait for: the compiler puts the barrier between a store to shared memory and the
    loads of other threads by itself."""
    _semantic.record("deferred_wait", outstanding)


_EXACT = 2**24  # float32 holds each integer up to it
_BYTES = {tl.int8: 2**7, tl.uint8: 2**8}  # the largest magnitudes


def _integers(request: MmaRequest) -> Union[bool, str]:
    """Return True if float32 holds the sums of a product of integers, else the reason."""
    most = request.k
    for name, dtype in (("a", request.a_dtype), ("b", request.b_dtype)):
        if dtype not in _BYTES:
            return f"{name} is {dtype}, and multiply-add of integers takes int8 and uint8"
        most *= _BYTES[dtype]
    if most > _EXACT:
        return (
            f"sums of {request.k} products can exceed 2^24, up to which float32 holds every integer"
        )
    return True


def mma_accepts(request: MmaRequest) -> Union[bool, str]:
    if request.acc_dtype == tl.int32:
        integers = _integers(request)
        if integers is not True:
            return integers
    elif request.acc_dtype not in (tl.float16, tl.float32, tl.float64):
        return f"multiply-add accumulates in float16, float32, float64 or int32, not {request.acc_dtype}"
    else:
        for name, dtype in (("a", request.a_dtype), ("b", request.b_dtype)):
            if not dtype.is_floating():
                return f"{name} is {dtype}, not a floating point type"
    layout = request.acc_layout
    if layout is not None and not isinstance(layout, BlockedLayout):
        return f"the accumulator's layout is {type(layout).__name__}, not BlockedLayout"
    return True


def mma(request: MmaRequest, _semantic: SemanticLayer) -> Any:
    if request.acc_dtype == tl.int32:
        a, b = (_semantic.cast(x, tl.float32) for x in (request.a, request.b))
        zeros = _semantic.full([request.m, request.n], 0.0, tl.float32, request.acc_layout)
        product = _semantic.cast(_semantic.dot_fma(a, b, zeros), tl.int32)
        return _semantic.add(request.acc, product, False)
    a = _semantic.cast(request.a, request.acc_dtype)
    b = _semantic.cast(request.b, request.acc_dtype)
    return _semantic.dot_fma(a, b, request.acc)


def mma_layouts(request: MmaRequest) -> MmaLayouts:
    m, n, lanes = request.m, request.n, request.target.warp_size
    # 4 x 4 outputs per thread reuse each operand four times; fewer where the tile is too small to
    # give every thread that many. Rows of `a` are read 16 bytes at a time along K, and all lanes of a
    # row share them: a row costs less than a column. The lanes of a row read one line of banks of `b`.
    per_thread = max(1, m * n // (lanes * request.num_warps))
    rows = columns = 4
    while rows * columns > per_thread:
        if columns >= rows:
            columns //= 2
        else:
            rows //= 2
    rows, columns = min(rows, m), min(columns, n)
    lanes_n = max(1, min(n // columns, _BANKS // columns, lanes))
    lanes_m = lanes // lanes_n
    warps = split_warps(m, n, request.num_warps, rows * lanes_m, columns * lanes_n)
    accumulator = BlockedLayout([rows, columns], [lanes_m, lanes_n], warps, [1, 0])
    return MmaLayouts(
        accumulator=accumulator,
        a=DotOperandLayout(0, accumulator, 0),
        b=DotOperandLayout(1, accumulator, 0),
        a_shared=row_swizzle(request.k, request.a_dtype.primitive_bitwidth),
        b_shared=row_swizzle(request.n, request.b_dtype.primitive_bitwidth),
    )
