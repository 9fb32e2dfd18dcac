"""`gl.portable`: ops whose best form differs by hardware, with one source for all of it.

Addresses are a scalar pointer plus a tensor of offsets in elements. int32 offsets promise to be
non-negative and to stay within 2 GiB of the pointer, which lets hardware with buffer addressing
use it; int64 offsets promise nothing.

Each op picks, when the kernel is traced, the lowering of the highest priority that the target has
and whose predicate accepts the operands; `gluon explain` shows which, and why not the others.

A matrix multiplication that runs everywhere asks for its layouts instead of writing them:

    layouts: gl.constexpr = gl.portable.mma_layouts(BM, BN, BK, gl.float16, gl.float16)
    a_smem = gl.allocate_shared_memory(gl.float16, [BM, BK], layouts.a_shared)
    ...
    gl.portable.async_copy(a_smem, a_ptr, a_offsets, mask)
    gl.portable.commit()
    gl.portable.wait(0)
    acc = gl.portable.mma(a_smem.load(layouts.a), b_smem.load(layouts.b), acc)
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Optional

from gluon_core import _triton
from gluon_core._triton import tl, unwrap
from gluon_core.backend import load_path
from gluon_core.builtin import builtin
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError
from gluon_core.layouts import DotOperandLayout
from gluon_core.portable.requests import (
    AsyncCopyRequest,
    LoadRequest,
    MmaLayouts,
    MmaRequest,
    StoreRequest,
)
from gluon_core.portable.selection import available, select
from gluon_core.portable.tiles import blocked_layout as _blocked
from gluon_core.values import shared_memory_descriptor, unwrap_shape

__all__ = [
    "async_copy",
    "blocked_layout",
    "commit",
    "load",
    "mma",
    "mma_layouts",
    "store",
    "wait",
]


# -- memory --------------------------------------------------------------------------------------


@builtin(name="gl.portable.load")
def load(
    ptr: Any,
    offsets: Any,
    mask: Any = None,
    other: Any = None,
    cache_modifier: Any = "",
    _semantic: Any = None,
    _generator: Any = None,
) -> Any:
    """Read `ptr + offsets` from global memory.

    Args:
        ptr: scalar pointer.
        offsets: integer tensor in elements; its shape and layout are the result's.
        mask: bool tensor; where False nothing is read.
        other: scalar or tensor for where `mask` is False, 0 by default.
        cache_modifier: "", ".ca", ".cg", ".cs" or ".cv".

    Raises:
        DtypeError: `ptr` is no scalar pointer, or `offsets` are not integers.
    """
    _check_address(_semantic, ptr, offsets)
    mask, other = _tensor(_semantic, mask), _tensor(_semantic, other)
    if other is not None and mask is None:
        raise ArgumentError("needs a mask", argument="other", remedy="Pass mask=, or drop other.")
    cache = unwrap(cache_modifier) or ""
    request = LoadRequest(*_around(_semantic), ptr, offsets, mask, other, cache)
    return _lower("load", request, _semantic, _generator)


@builtin(name="gl.portable.store")
def store(
    ptr: Any,
    offsets: Any,
    value: Any,
    mask: Any = None,
    cache_modifier: Any = "",
    _semantic: Any = None,
    _generator: Any = None,
) -> None:
    """Write `value` to `ptr + offsets` in global memory.

    Args:
        ptr: scalar pointer.
        offsets: integer tensor in elements.
        value: tensor of `offsets`' shape and layout, or a scalar; converted to the element type.
        mask: bool tensor; where False nothing is written.
        cache_modifier: "", ".wb", ".cg", ".cs" or ".wt".

    Raises:
        DtypeError: `ptr` is no scalar pointer, or `offsets` are not integers.
    """
    _check_address(_semantic, ptr, offsets)
    value, mask = _tensor(_semantic, value), _tensor(_semantic, mask)
    cache = unwrap(cache_modifier) or ""
    request = StoreRequest(*_around(_semantic), ptr, offsets, value, mask, cache)
    _lower("store", request, _semantic, _generator)


@builtin(name="gl.portable.async_copy")
def async_copy(
    dest: Any,
    ptr: Any,
    offsets: Any,
    mask: Any = None,
    cache_modifier: Any = "",
    _semantic: Any = None,
    _generator: Any = None,
) -> None:
    """Copy `ptr + offsets` from global into shared memory, in the background where possible.

    `dest` may be read after the copy's group was closed with `commit` and waited for with `wait`.

    Args:
        dest: shared memory descriptor of `offsets`' shape and `ptr`'s element type.
        ptr: scalar pointer.
        offsets: integer tensor in elements; its layout says which thread copies what.
        mask: bool tensor; where False `dest` gets 0.
        cache_modifier: "", ".ca" or ".cg".

    Raises:
        DtypeError: the element types of `dest` and `ptr` differ.
        ShapeError: the shapes of `dest` and `offsets` differ.
    """
    _check_address(_semantic, ptr, offsets)
    if not isinstance(dest, shared_memory_descriptor):
        raise ArgumentError(
            "not shared memory",
            argument="dest",
            expected="a shared_memory_descriptor",
            got=str(getattr(dest, "type", type(dest).__name__)),
        )
    if dest.dtype != ptr.dtype.element_ty:
        raise DtypeError(
            "dest and ptr have different element types",
            argument="dest",
            expected=ptr.dtype.element_ty,
            got=dest.dtype,
        )
    if list(dest.shape) != _shape(offsets):
        raise ShapeError(
            "dest and offsets have different shapes",
            argument="dest",
            expected=_shape(offsets),
            got=list(dest.shape),
        )
    mask = _tensor(_semantic, mask)
    cache = unwrap(cache_modifier) or ""
    request = AsyncCopyRequest(*_around(_semantic), dest, ptr, offsets, mask, cache)
    _lower("async_copy", request, _semantic, _generator)


@builtin(name="gl.portable.commit")
def commit(_semantic: Any = None) -> None:
    """Close the group of the copies issued since the last `commit`."""
    for lowering in _copy_lowerings(_semantic):
        load_path(lowering.extras["commit"])(_semantic=_semantic)


@builtin(name="gl.portable.wait")
def wait(num_outstanding: Any = 0, _semantic: Any = None) -> None:
    """Wait until at most `num_outstanding` of the most recent groups are still being copied.

    Args:
        num_outstanding: compile-time integer, 0 waits for all.

    Raises:
        ArgumentError: not a compile-time integer >= 0.
    """
    count = unwrap(num_outstanding)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ArgumentError(
            "must be a compile-time integer",
            argument="num_outstanding",
            expected=">= 0",
            got=str(getattr(count, "type", repr(count))),
        )
    for lowering in _copy_lowerings(_semantic):
        load_path(lowering.extras["wait"])(count, _semantic=_semantic)


# Which way a copy took depends on its operands, and a loop may mix them; what closes or awaits a
# group depends on the target alone. An empty group costs one instruction and keeps the counts of
# all ways equal, so that `wait(n)` means the same whichever lowering the copies took.
def _copy_lowerings(semantic: Any) -> tuple:
    return available("async_copy", semantic.target, _triton.VERSION)


# -- matrix multiplication -----------------------------------------------------------------------


@builtin(name="gl.portable.mma_layouts")
def mma_layouts(
    m: Any,
    n: Any,
    k: Any,
    a_dtype: Any,
    b_dtype: Any,
    acc_dtype: Any = None,
    num_warps: Any = None,
    input_precision: Any = None,
    _semantic: Any = None,
    _generator: Any = None,
) -> Any:
    """The layouts that `mma` wants for a tile: `MmaLayouts` with the fields `accumulator`, `a`,
    `b` (registers), `a_shared`, `b_shared` (shared memory) and `lowering`.

    Args:
        m, n, k: of the tile, powers of two.
        a_dtype, b_dtype: element types of the operands.
        acc_dtype: of the accumulator; float32, or int32 for integer operands, by default.
        num_warps: warps that share the tile, those of the kernel by default.
        input_precision: as for `mma`.

    Raises:
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
    if acc_dtype is None:
        acc_dtype = tl.int32 if a_dtype.is_int() else tl.float32
    target, warps, triton = _around(_semantic)
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
    )
    chosen = select(
        "mma", request, target, triton, refused=_semantic.session.refused
    ).chosen
    layouts: MmaLayouts = load_path(chosen.extras["layouts"])(request)
    layouts = replace(layouts, lowering=chosen.name)
    # Each field is a constexpr of its own, so that kernels may hand it on to other functions.
    wrapped = {f.name: tl.constexpr(getattr(layouts, f.name)) for f in fields(layouts)}
    return tl.constexpr(MmaLayouts(**wrapped))


@builtin(name="gl.portable.mma")
def mma(
    a: Any,
    b: Any,
    acc: Any,
    input_precision: Any = None,
    _semantic: Any = None,
    _generator: Any = None,
) -> Any:
    """`acc + a @ b` on register operands.

    Args:
        a: `(m, k)` tensor in layout `mma_layouts(...).a`.
        b: `(k, n)` tensor in layout `mma_layouts(...).b`.
        acc: `(m, n)` tensor in layout `mma_layouts(...).accumulator`.
        input_precision: "ieee" (default) keeps float32 operands whole; "tf32" allows the matrix
            unit to round them to 10 bits of mantissa. Narrower operands are always exact.

    Returns:
        A tensor like `acc`.

    Raises:
        ShapeError: the shapes do not multiply.
        LayoutError: the operands' layouts do not belong to the accumulator's.
        CapabilityError: no lowering fits; lists each one's reason.
    """
    for name, value in (("a", a), ("b", b), ("acc", acc)):
        _semantic.require_tensor(value, name, rank=2)
    (m, k), (rows, n) = _shape(a), _shape(b)
    if rows != k or _shape(acc) != [m, n]:
        raise ShapeError(
            "the shapes do not multiply",
            expected="a [M, K], b [K, N], acc [M, N]",
            got=f"{_shape(a)}, {_shape(b)}, {_shape(acc)}",
        )
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
                remedy="Take all three layouts from one gl.portable.mma_layouts(...).",
            )
    target, warps, triton = _around(_semantic)
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
        a_layout=a.type.layout,
        b_layout=b.type.layout,
        acc_layout=parent,
    )
    return _lower("mma", request, _semantic, _generator)


@builtin(name="gl.portable.blocked_layout")
def blocked_layout(
    shape: Any, dtype: Any, order: Any = None, num_warps: Any = None, _semantic: Any = None
) -> Any:
    """A layout for moving a tile between global memory and registers or shared memory:
    neighbouring threads of the target's warp touch neighbouring vectors of 16 bytes.

    Args:
        shape: of the tile.
        dtype: of its elements.
        order: dimensions, fastest first; the last is the fastest by default.
        num_warps: warps that share the tile, those of the kernel by default.
    """
    dims = unwrap_shape(shape)
    wanted = unwrap(order)
    fastest_first = (
        list(reversed(range(len(dims)))) if wanted is None else unwrap_shape(wanted, "order")
    )
    if sorted(fastest_first) != list(range(len(dims))):
        raise LayoutError("not an order of the dimensions", argument="order", got=fastest_first)
    bits = unwrap(dtype).primitive_bitwidth
    warps = unwrap(num_warps) or _semantic.num_warps
    layout = _blocked(dims, bits, warps, _semantic.target.warp_size, fastest_first)
    return tl.constexpr(layout)


# -- shared --------------------------------------------------------------------------------------


def _around(semantic: Any) -> tuple[Any, int, tuple[int, int]]:
    return semantic.target, semantic.num_warps, _triton.VERSION


def _tensor(semantic: Any, value: Any) -> Any:
    value = unwrap(value)
    return None if value is None else semantic.to_tensor(value)


def _shape(value: Any) -> list[int]:
    return [int(unwrap(extent)) for extent in value.shape]


def _precision(value: Any) -> str:
    name = unwrap(value) or "ieee"
    if name not in ("ieee", "tf32"):
        raise ArgumentError(
            "no such precision", argument="input_precision", expected="'ieee' or 'tf32'", got=repr(name)
        )
    return name


def _check_address(semantic: Any, ptr: Any, offsets: Any) -> None:
    semantic.require_tensor(ptr, "ptr")
    if not ptr.dtype.is_ptr() or ptr.type.is_block():
        raise DtypeError(
            "must be a scalar pointer",
            argument="ptr",
            got=str(ptr.type),
            remedy="Pass the base here and the rest as offsets.",
        )
    semantic.require_distributed(offsets, "offsets")
    if not offsets.dtype.is_int():
        raise DtypeError("must be integers", argument="offsets", got=str(offsets.dtype))


def _where(generator: Any) -> Optional[str]:
    """`file:line` of the kernel's statement that is being traced."""
    line = getattr(getattr(generator, "cur_node", None), "lineno", None)
    if line is None:
        return None
    return f"{generator.file_name}:{generator.begin_line + line}"


def _lower(op: str, request: Any, semantic: Any, generator: Any) -> Any:
    refused = semantic.session.refused
    selection = select(op, request, request.target, request.triton, refused=refused)
    semantic.session.selections.append(replace(selection, where=_where(generator)))
    return load_path(selection.chosen.implement)(request, _semantic=semantic)
