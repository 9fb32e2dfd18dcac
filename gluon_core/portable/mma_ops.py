"""Define `gl.portable.mma` and its companions: layouts, accumulators, waiting, fences."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Optional, TypeVar, Union

from gluon_core import _triton
from gluon_core._triton import constexpr, tensor, tl, tl_tuple, unwrap
from gluon_core.errors import ArgumentError, CapabilityError, DtypeError, LayoutError, ShapeError
from gluon_core.layouts import DotOperandLayout, SwizzledSharedLayout
from gluon_core.plugin.language import Lowering
from gluon_core.plugin.ops import builtin, semantic_layer
from gluon_core.plugin.typing import Const, Dtype, Values
from gluon_core.portable.common import around, choose, lower
from gluon_core.portable.records import AccumulatorFacts, mma_accumulator
from gluon_core.portable.requests import MmaLayouts, MmaRequest
from gluon_core.portable.selection import available, code, named, select
from gluon_core.portable.tiles import row_swizzle
from gluon_core.semantic import layer
from gluon_core.semantic.base import shape_of
from gluon_core.semantic.operands import compile_time_int
from gluon_core.values import shared_memory_descriptor, unwrap_shape

__all__ = ["accumulator", "fence", "mma", "mma_layouts", "mma_wait", "read"]

_MOST_PENDING = 3
_PLACES = ("registers", "shared")
Accumulated = TypeVar("Accumulated", tensor, mma_accumulator)
_FROM_ONE = "Take all three layouts from one gl.portable.mma_layouts(...)."


@builtin(name="gl.portable.mma_layouts")
def mma_layouts(
    m: Const[int],
    n: Const[int],
    k: Const[int],
    a_dtype: Dtype,
    b_dtype: Dtype,
    acc_dtype: Optional[Dtype] = None,
    num_warps: Optional[Const[int]] = None,
    input_precision: Optional[Const[str]] = None,
    operands: Optional[Const[str]] = None,
    b_transposed: Const[bool] = False,
) -> constexpr:
    """Return the layouts that `mma` wants for a tile: `MmaLayouts` with the fields `accumulator`, `a`,
    `b` (registers), `a_shared`, `b_shared` (shared memory) and `lowering`.

    Args:
        m, n, k: of the tile, powers of two.
        a_dtype, b_dtype: element types of the operands.
        acc_dtype: of the accumulator; float32, or int32 for integer operands, by default.
        num_warps: warps that share the tile, those of the kernel by default.
        input_precision: as for `mma`.
        operands: where `mma` will find them: "registers", or "shared" memory, for units that read it on
            their own (`wgmma`, `tcgen05`). By default either will do: given
            buffers in `a_shared` and `b_shared` and an `accumulator(layouts)`, `mma` takes the best
            unit, and `read` converts to the layout `accumulator`; given tensors in the layouts `a`
            and `b`, one that multiplies registers. "shared" saves that conversion.
        b_transposed: B is stored as `(n, k)` in shared memory, with k contiguous, and is handed to
        `mma`
            by `.permute((1, 0))`. Some units read 8-bit and 32-bit operands in no other way.

    Raises:
        ArgumentError: `operands` are nowhere, or `b_transposed` without shared memory.
        CapabilityError: no lowering fits; lists each one's reason.
    """
    sizes = unwrap_shape([m, n, k])
    a_dtype, b_dtype, acc_dtype = unwrap(a_dtype), unwrap(b_dtype), unwrap(acc_dtype)
    for name, dtype in (("a_dtype", a_dtype), ("b_dtype", b_dtype)):
        if not isinstance(dtype, tl.dtype):
            raise DtypeError("not a dtype", argument=name, got=repr(dtype))
    for name, size in zip("mnk", sizes):
        if size < 1 or size & (size - 1):
            raise ShapeError("must be a power of two", argument=name, got=size)
    place, transposed = unwrap(operands), bool(unwrap(b_transposed))
    if place is not None and place not in _PLACES:
        raise ArgumentError(
            "no such place",
            argument="operands",
            expected=f"{' or '.join(map(repr, _PLACES))}, or None for either",
            got=repr(place),
        )
    if transposed and place != "shared":
        raise ArgumentError(
            "says how B is stored in shared memory",
            argument="b_transposed",
            expected="operands='shared' with it",
            got=f"operands={place!r}",
        )
    if acc_dtype is None:
        acc_dtype = tl.int32 if a_dtype.is_int() else tl.float32
    semantic = semantic_layer()
    target, warps, triton = around(semantic)
    request = MmaRequest(
        target,
        unwrap(num_warps) or warps,
        triton,
        sizes[0],
        sizes[1],
        sizes[2],
        a_dtype,
        b_dtype,
        acc_dtype,
        input_precision=_precision(input_precision),
        shared=place == "shared",
        b_transposed=transposed,
    )
    layouts = _layouts_for(request)
    if place is None:
        try:
            shared = _layouts_for(replace(request, shared=True))
        except CapabilityError:
            pass  # registers alone
        else:
            layouts = replace(
                layouts, a_shared=shared.a_shared, b_shared=shared.b_shared, in_shared=shared
            )
    # Each field is a constexpr of its own, so that kernels may hand it on to other functions.
    wrapped = {f.name: tl.constexpr(getattr(layouts, f.name)) for f in fields(layouts)}
    return tl.constexpr(MmaLayouts(**wrapped))


def _layouts_for(request: MmaRequest) -> MmaLayouts:
    """Return the layouts of the best lowering for operands that are where the request says."""
    refused = layer().session.refused
    chosen = select("mma", request, request.target, request.triton, refused=refused).chosen
    layouts: MmaLayouts = code(chosen, "layouts")(request)
    if request.b_transposed and isinstance(layouts.b_shared, SwizzledSharedLayout):
        turned_b = row_swizzle(request.k, request.b_dtype.primitive_bitwidth)
        layouts = replace(layouts, b_shared=turned_b)
    return replace(
        layouts,
        lowering=chosen.name,
        shape=(request.m, request.n),
        acc_dtype=request.acc_dtype,
    )


@builtin(name="gl.portable.accumulator")
def accumulator(
    layouts: Union[MmaLayouts, constexpr], start: Optional[tensor] = None
) -> mma_accumulator:
    """Hold the accumulator of `mma` where the matrix unit wants it: registers or tensor memory.

    Args:
        layouts: result of `mma_layouts(...)`. start: tensor in layout `layouts.accumulator` to begin
        with, such as a scaled result of `read`; zeros by default, from the first `mma` on: tensor
        memory holds nothing before. Give zeros where a loop may issue none.

    Returns:
        An `mma_accumulator`. In a loop over tiles make one for each tile, and end it by `read`.

    Raises:
        ArgumentError: `layouts` are none.
        DtypeError, ShapeError, LayoutError: `start` is not the accumulator's.
    """
    layouts = unwrap(layouts)
    if not isinstance(layouts, MmaLayouts):
        raise ArgumentError(
            "not layouts",
            argument="layouts",
            expected="what gl.portable.mma_layouts(...) returns",
            got=repr(layouts),
        )
    plain = MmaLayouts(**{f.name: unwrap(getattr(layouts, f.name)) for f in fields(layouts)})
    semantic, read_as = semantic_layer(), None
    if start is not None:
        _check_start(semantic.require_distributed(start, "start"), plain)
    if plain.in_shared is not None and plain.in_shared.lowering != plain.lowering:
        plain, read_as = plain.in_shared, plain.accumulator
        if start is not None:
            start = semantic.convert_layout(start, plain.accumulator)
    lowering = named("mma", plain.lowering)
    if "accumulator" in lowering.extras:
        parts = code(lowering, "accumulator")(plain, start, _semantic=semantic)
    elif start is not None:
        parts = [start]
    else:
        parts = [semantic.full(list(plain.shape), 0, plain.acc_dtype, plain.accumulator)]
    facts = AccumulatorFacts(
        tuple(plain.shape), plain.acc_dtype, plain.accumulator, plain.lowering, read_as
    )
    return mma_accumulator(parts, facts)


def _check_start(start: tensor, layouts: MmaLayouts) -> None:
    if start.dtype != layouts.acc_dtype:
        raise DtypeError(
            "not that of the accumulator",
            argument="start",
            expected=layouts.acc_dtype,
            got=start.dtype,
        )
    if shape_of(start) != list(layouts.shape):
        raise ShapeError(
            "not the accumulator's",
            argument="start",
            expected=list(layouts.shape),
            got=shape_of(start),
        )
    if start.type.layout != layouts.accumulator:
        raise LayoutError(
            "not the layout of the accumulator",
            argument="start",
            expected=layouts.accumulator,
            got=repr(start.type.layout),
            remedy="Convert it: gl.convert_layout(start, layouts.accumulator).",
        )


@builtin(name="gl.portable.mma")
def mma(
    a: Union[tensor, shared_memory_descriptor],
    b: Union[tensor, shared_memory_descriptor],
    acc: Accumulated,
    input_precision: Optional[Const[str]] = None,
    is_async: Const[bool] = False,
) -> Accumulated:
    """`acc + a @ b`, on operands in registers or in shared memory.

    Stores to operands in shared memory need a `gl.portable.fence()` before; copies that
    `gl.portable.wait` or a pipeline's `wait` waited for need none.

    Args:
        a: `(m, k)` tensor in layout `mma_layouts(...).a`, or in shared memory in layout `a_shared`.
        b: `(k, n)` tensor in layout `mma_layouts(...).b`, or in shared memory in layout `b_shared`.
        acc: `(m, n)` tensor in layout `mma_layouts(...).accumulator`; with operands in shared
            memory an `accumulator(...)`.
        input_precision: "ieee" (default) keeps float32 operands whole; "tf32" allows the matrix
            unit to round them to 10 bits of mantissa. Narrower operands are always exact.
        is_async: compile-time boolean; units that read shared memory on their own may still be at
            it afterwards. The operands must stay as they are until `mma_wait`. Other units multiply
            at once.

    Returns:
        A value like `acc`.

    Raises:
        ArgumentError: operands in shared memory and an accumulator that is a tensor, or the other
            way round.
        ShapeError: the shapes do not multiply.
        LayoutError: the operands' layouts do not belong to the accumulator's.
        CapabilityError: no lowering fits; lists each one's reason.
    """
    semantic = semantic_layer()
    shared = isinstance(a, shared_memory_descriptor) and isinstance(b, shared_memory_descriptor)
    if shared != isinstance(acc, mma_accumulator):
        raise ArgumentError(
            "operands in shared memory need an accumulator, operands in registers a tensor",
            argument="acc",
            expected="gl.portable.accumulator(layouts)" if shared else "a tensor",
            got=str(getattr(acc, "type", type(acc).__name__)),
        )
    if not shared:
        for name, value in (("a", a), ("b", b), ("acc", acc)):
            semantic.require_tensor(value, name, rank=2)
    (m, k), (rows, n) = _matrix(a, "a"), _matrix(b, "b")
    if rows != k or shape_of(acc) != [m, n]:
        raise ShapeError(
            "the shapes do not multiply",
            expected="a [M, K], b [K, N], acc [M, N]",
            got=f"{shape_of(a)}, {shape_of(b)}, {shape_of(acc)}",
        )
    target, warps, triton = around(semantic)
    request = MmaRequest(
        target,
        warps,
        triton,
        m,
        n,
        k,
        a.dtype,
        b.dtype,
        acc.dtype,
        input_precision=_precision(input_precision),
        a=a,
        b=b,
        acc=acc,
    )
    if isinstance(acc, mma_accumulator):
        asynchronous = unwrap(is_async)
        if asynchronous not in (True, False):
            raise ArgumentError(
                "must be a compile-time boolean", argument="is_async", got=repr(asynchronous)
            )
        request = replace(
            request,
            a_layout=a.type.layout,
            b_layout=b.type.layout,
            acc_layout=acc.layout,
            shared=True,
            is_async=bool(asynchronous),
        )
        return _mma_shared(request)
    parent = acc.type.layout
    for index, (name, value) in enumerate((("a", a), ("b", b))):
        layout = value.type.layout
        if not (
            isinstance(layout, DotOperandLayout)
            and layout.operand_index == index
            and layout.parent == parent
        ):
            raise LayoutError(
                "not the layout of this operand of the accumulator",
                argument=name,
                expected=f"DotOperandLayout({index}, {parent}, ...)",
                got=repr(layout),
                remedy=_FROM_ONE,
            )
    request = replace(request, a_layout=a.type.layout, b_layout=b.type.layout, acc_layout=parent)
    return lower("mma", request)


def _mma_shared(request: MmaRequest) -> Any:
    acc, semantic = request.acc, semantic_layer()
    chosen = choose("mma", request).chosen
    if chosen.name != acc.facts.lowering:
        raise LayoutError(
            f"the operands are for {chosen.name}, the accumulator for {acc.facts.lowering}",
            argument="acc",
            got=str(acc.type),
            remedy="Make it of the gl.portable.mma_layouts(...) that the operands have.",
        )
    reads_shared = _reads_shared(chosen)
    buffers = [request.a, request.b]
    semantic.record("deferred_read", buffers, request.is_async, reads_shared)
    if reads_shared:
        request = replace(request, acc=acc.parts)
        parts = code(chosen)(request, _semantic=semantic)
        return mma_accumulator(parts, acc.facts)
    wanted = code(chosen, "layouts")(request)
    a_layout = DotOperandLayout(0, acc.layout, wanted.a.k_width)
    b_layout = DotOperandLayout(1, acc.layout, wanted.b.k_width)
    request = replace(
        request,
        a=semantic.shared_load(request.a, a_layout),
        b=semantic.shared_load(request.b, b_layout),
        acc=acc.parts[0],
        a_layout=a_layout,
        b_layout=b_layout,
    )
    return mma_accumulator([code(chosen)(request, _semantic=semantic)], acc.facts)


@builtin(name="gl.portable.mma_wait")
def mma_wait(
    acc: mma_accumulator,
    pending: Const[int] = 0,
    deps: Union[shared_memory_descriptor, Values] = (),
) -> mma_accumulator:
    """Wait until at most `pending` of the last multiplications of `acc` are unfinished, so that the
    operands of the others may be overwritten. Nothing to do where `mma` multiplies at once.

    Args:
        acc: an `accumulator(...)`; use the result instead.
        pending: compile-time integer, 0 to 3.
        deps: buffers in shared memory that must stay allocated until then, in a sequence; those of
            a pipeline need not be named.

    Returns:
        An accumulator like `acc`.

    Raises:
        ArgumentError: `acc` is no accumulator, or an illegal number.
    """
    acc = _accumulator(acc)
    count = compile_time_int(pending, "pending", 0, _MOST_PENDING)
    lowering = named("mma", acc.facts.lowering)
    if "mma_wait" not in lowering.extras:
        semantic_layer().record("deferred_read_wait", count)
        return acc
    items = unwrap(deps)
    listed = list(items) if isinstance(items, (list, tuple, tl_tuple)) else [items]
    parts = code(lowering, "mma_wait")(acc.parts, count, listed, _semantic=semantic_layer())
    return mma_accumulator(parts, acc.facts)


@builtin(name="gl.portable.read")
def read(acc: mma_accumulator) -> tensor:
    """Wait for all multiplications of an accumulator, and end it.

    Args:
        acc: an `accumulator(...)`, which must not be used any more. One without `start` needs an
            `mma` before: it may be in tensor memory, which nobody has written.

    Returns:
        The tensor, in layout `mma_layouts(...).accumulator`.

    Raises:
        ArgumentError: `acc` is no accumulator.
    """
    acc = _accumulator(acc)
    lowering, semantic = named("mma", acc.facts.lowering), semantic_layer()
    if "read" in lowering.extras:
        value = code(lowering, "read")(acc.parts, _semantic=semantic)
    else:
        semantic.record("deferred_read_wait", 0)
        value = acc.parts[0]
    read_as = acc.facts.read_as
    return value if read_as is None else semantic.convert_layout(value, read_as)


@builtin(name="gl.portable.fence")
def fence() -> None:
    """Make earlier stores to shared memory visible to matrix units that read it on their own. Needed
    between `store` and an `mma` that reads the buffer; nothing elsewhere."""
    semantic = semantic_layer()
    known = available("mma", semantic.target, _triton.VERSION)
    fences = {low.extras["fence"]: low for low in known if "fence" in low.extras}
    for lowering in fences.values():
        code(lowering, "fence")(_semantic=semantic)
    semantic.record("deferred_fence")


def _reads_shared(lowering: Lowering) -> bool:
    return "accumulator" in lowering.extras


def _accumulator(value: Any) -> mma_accumulator:
    if isinstance(value, mma_accumulator):
        return value
    raise ArgumentError(
        "not an accumulator",
        argument="acc",
        expected="gl.portable.accumulator(layouts)",
        got=str(getattr(value, "type", type(value).__name__)),
    )


def _matrix(value: Any, name: str) -> list[int]:
    shape = shape_of(value)
    if len(shape) != 2:
        raise ShapeError("must be a matrix", argument=name, got=shape)
    return shape


def _precision(value: Any) -> str:
    name = unwrap(value) or "ieee"
    if name not in ("ieee", "tf32"):
        raise ArgumentError(
            "unsupported precision",
            argument="input_precision",
            expected="'ieee' or 'tf32'",
            got=repr(name),
        )
    return name
