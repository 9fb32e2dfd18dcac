"""Buffer addressing: a scalar base and 32-bit offsets, with masks that cost nothing.

The hardware checks each offset against the buffer's size, so a masked-off element is one whose
offset lies outside: no branch is needed.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from gluon_core import _triton
from gluon_core._triton import ir, tl, unwrap
from gluon_core.builtin import builtin, check_capabilities
from gluon_core.errors import DtypeError, LayoutError
from gluon_core.semantic.base import describe, is_placeholder, shape_of
from gluon_core.semantic.copies import like, masked
from gluon_core.semantic.memory import LOAD_CACHE, STORE_CACHE, check_choice
from gluon_core.semantic.operands import handle_or_absent

__all__ = [
    "buffer_atomic_add",
    "buffer_atomic_and",
    "buffer_atomic_max",
    "buffer_atomic_min",
    "buffer_atomic_or",
    "buffer_atomic_xchg",
    "buffer_atomic_xor",
    "buffer_load",
    "buffer_store",
]

_REQUIRES = ("amd.buffer_ops",)


@builtin(requires=_REQUIRES, name="gl.amd.cdna3.buffer_load", instead="gl.portable.load")
def buffer_load(
    ptr: Any,
    offsets: Any,
    mask: Any = None,
    other: Any = None,
    cache: Any = None,
    _semantic: Any = None,
) -> Any:
    """Read `ptr + offsets`.

    Args:
        ptr: scalar pointer.
        offsets: tensor of int32 or uint32, in elements, not negative.
        mask: int1, broadcast to the offsets; where false nothing is read.
        other: what the result holds where `mask` is false, a scalar or a tensor; 0 by default.
        cache: `".ca"`, `".cg"`, `".cs"` or `".cv"`; before Triton 3.9 a hint for CDNA only.

    Returns:
        A tensor of `offsets`' shape and layout, of the pointed-to dtype.

    Raises:
        DtypeError: not a scalar pointer, other offsets, a mask that is not boolean.
        ShapeError: mask or other do not fit the offsets.
        ArgumentError: `other` without a mask, or no such cache modifier.

    ISA: CDNA3 9.1, buffer_load_*.
    """
    check_address(_semantic, ptr, offsets)
    element = ptr.dtype.element_ty
    modifier = check_choice("cache", cache, LOAD_CACHE)
    mask, other = masked(_semantic, offsets, element, mask, other, "offsets")
    result = offsets.type.with_element_ty(element)
    handle = _semantic.builder.create_buffer_load(
        result.to_ir(_semantic.builder),
        ptr.handle,
        offsets.handle,
        handle_or_absent(_semantic, mask),
        handle_or_absent(_semantic, other),
        _semantic._str_to_load_cache_modifier(modifier),
    )
    return _semantic.make_tensor(handle, result)


@builtin(requires=_REQUIRES, name="gl.amd.cdna3.buffer_store", instead="gl.portable.store")
def buffer_store(
    stored_value: Any,
    ptr: Any,
    offsets: Any,
    mask: Any = None,
    cache: Any = None,
    _semantic: Any = None,
) -> None:
    """Write `stored_value` to `ptr + offsets`.

    Args:
        stored_value: tensor of `offsets`' shape and layout and of the pointed-to dtype, or a
            scalar, which is cast.
        ptr: scalar pointer.
        offsets: tensor of int32 or uint32, in elements, not negative.
        mask: int1, broadcast to the offsets; where false nothing is written.
        cache: `".wb"`, `".cg"`, `".cs"` or `".wt"`; before Triton 3.9 a hint for CDNA only.

    Raises:
        DtypeError: not a scalar pointer, a const one, other offsets, a tensor of another dtype, a
            mask that is not boolean.
        ShapeError: value or mask do not fit the offsets.

    ISA: CDNA3 9.1, buffer_store_*.
    """
    check_address(_semantic, ptr, offsets, write=True)
    modifier = check_choice("cache", cache, STORE_CACHE)
    value = _value(_semantic, ptr, offsets, stored_value, "stored_value")
    mask, _ = masked(_semantic, offsets, value.dtype, mask, what="offsets")
    _semantic.builder.create_buffer_store(
        value.handle,
        ptr.handle,
        offsets.handle,
        handle_or_absent(_semantic, mask),
        _semantic._str_to_store_cache_modifier(modifier),
    )


# -- atomics -------------------------------------------------------------------------------------

_INTEGERS = (tl.int32, tl.uint32, tl.int64, tl.uint64)
_ATOMIC_DTYPES = {
    "add": (tl.float16, tl.bfloat16, tl.float32, tl.float64, *_INTEGERS),
    "max": (tl.float64, *_INTEGERS),
    "min": (tl.float64, *_INTEGERS),
}
_ATOMIC_NEEDS = {
    tl.float16: "amd.buffer_atomics_f16",
    tl.bfloat16: "amd.buffer_atomics_bf16",
}


def _atomic(op: str, what: str) -> Callable[..., Any]:
    name = f"gl.amd.cdna3.buffer_atomic_{op}"

    def atomic(
        ptr: Any,
        offsets: Any,
        value: Any,
        mask: Any = None,
        sem: Any = None,
        scope: Any = None,
        _semantic: Any = None,
    ) -> Any:
        return _emit_atomic(_semantic, op, name, ptr, offsets, value, mask, sem, scope)

    dtypes = ", ".join(map(str, _ATOMIC_DTYPES.get(op, _INTEGERS)))
    atomic.__name__ = atomic.__qualname__ = f"buffer_atomic_{op}"
    atomic.__doc__ = f"""Atomically {what} at `ptr + offsets`.

    Args:
        ptr: scalar pointer to one of {dtypes}.
        offsets: tensor of int32 or uint32, in elements, not negative.
        value: tensor of `offsets`' shape and layout and of the pointed-to dtype, or a scalar.
        mask: int1, broadcast to the offsets; where false nothing happens.
        sem: "acq_rel" (default), "acquire", "release" or "relaxed".
        scope: "gpu" (default), "cta" or "sys".

    Returns:
        What was there before, a tensor like `value`.

    Raises:
        DtypeError: another pointer, other offsets, another value, a mask that is not boolean.
        ShapeError: value or mask do not fit the offsets.
        LayoutError: a 16-bit float, of which the hardware adds pairs, held one by one.
        CapabilityError: the target, or the installed Triton, does not have it for this dtype.

    ISA: CDNA3 9.1, buffer_atomic_*.
    """
    return builtin(
        atomic,
        requires=("amd.buffer_atomics",),
        name=name,
        instead=f"gl.atomic_{op}",
    )


def _emit_atomic(
    semantic: Any,
    op: str,
    name: str,
    ptr: Any,
    offsets: Any,
    value: Any,
    mask: Any,
    sem: Any,
    scope: Any,
) -> Any:
    check_address(semantic, ptr, offsets, write=True)
    element = ptr.dtype.element_ty
    dtypes = _ATOMIC_DTYPES.get(op, _INTEGERS)
    if element not in dtypes:
        raise DtypeError(
            f"buffer_atomic_{op} does not work on this dtype",
            argument="ptr",
            expected=", ".join(map(str, dtypes)),
            got=element,
            remedy=f"Use gl.atomic_{op}." if op != "xchg" else "Exchange the bits as integers.",
        )
    if element in _ATOMIC_NEEDS:
        needs = (_ATOMIC_NEEDS[element],)
        check_capabilities(semantic, f"{name} of {element}", needs, f"gl.atomic_{op}")
        _check_pairs(offsets)
    since = _lowered_since(op, element)
    if since is not None:
        _triton.require(since, f"{name} of {element}")
    value = _value(semantic, ptr, offsets, value, "value")
    mask, _ = masked(semantic, offsets, value.dtype, mask, what="offsets")
    sem, scope = semantic._order(sem, scope)
    handle = semantic.builder.create_buffer_atomic_rmw(
        _kind(op, element),
        ptr.handle,
        offsets.handle,
        value.handle,
        semantic._str_to_sem(sem),
        semantic._str_to_scope(scope),
        handle_or_absent(semantic, mask),
    )
    return semantic.make_tensor(handle, value.type)


def _lowered_since(op: str, element: Any) -> Optional[tuple[int, int]]:
    """The first Triton that lowers the op; earlier builders take it, and LLVM then fails."""
    if op == "xchg":
        return (3, 9)
    if op in ("max", "min") and not element.is_int_unsigned():
        return (3, 8)
    return None


def _kind(op: str, element: Any) -> Any:
    kinds = ir.ATOMIC_OP
    if op == "add":
        return kinds.FADD if element.is_floating() else kinds.ADD
    if op in ("max", "min") and element.is_int_unsigned():
        return getattr(kinds, f"U{op.upper()}")
    return getattr(kinds, op.upper())


buffer_atomic_add = _atomic("add", "add `value` to the number")
buffer_atomic_and = _atomic("and", "and `value` with the bits")
buffer_atomic_or = _atomic("or", "or `value` with the bits")
buffer_atomic_xor = _atomic("xor", "xor `value` with the bits")
buffer_atomic_max = _atomic("max", "keep the larger of `value` and the number")
buffer_atomic_min = _atomic("min", "keep the smaller of `value` and the number")
buffer_atomic_xchg = _atomic("xchg", "put `value` in place of the number")


# -- operands ------------------------------------------------------------------------------------


def check_address(semantic: Any, ptr: Any, offsets: Any, write: bool = False) -> None:
    ptr = semantic.check_pointer(ptr, "ptr")
    if ptr.type.is_block():
        raise DtypeError(
            "must be a scalar pointer",
            argument="ptr",
            got=describe(ptr),
            remedy="Pass the base here and the rest as offsets, or use gl.load and gl.store.",
        )
    if write and ptr.dtype.is_const():
        raise DtypeError("cannot write through a const pointer", argument="ptr", got=describe(ptr))
    if ptr.dtype.element_ty.primitive_bitwidth < 8:
        raise DtypeError("buffers hold whole bytes", argument="ptr", got=describe(ptr))
    semantic.require_distributed(offsets, "offsets")
    if offsets.dtype not in (tl.int32, tl.uint32):
        raise DtypeError(
            "buffer offsets have 32 bits",
            argument="offsets",
            expected="int32 or uint32",
            got=offsets.dtype,
            remedy="Cast them with .to(gl.int32), or move ptr by the large part.",
        )


def _value(semantic: Any, ptr: Any, offsets: Any, value: Any, argument: str) -> Any:
    element = ptr.dtype.element_ty
    value = semantic.to_tensor(unwrap(value))
    if not value.type.is_block():
        value = semantic.cast(value, element)
    elif value.dtype != element:
        raise DtypeError(
            "the dtype is not the pointer's",
            argument=argument,
            expected=element,
            got=value.dtype,
            remedy=f"Cast it with .to({element}).",
        )
    return like(semantic, offsets, value, argument, "offsets")


def _check_pairs(offsets: Any) -> None:
    layout = offsets.type.layout
    if is_placeholder(layout):
        return
    linear = layout.to_linear(shape_of(offsets))
    registers = linear.bases["register"]
    if not any(sum(row) == 1 for row in registers):
        raise LayoutError(
            "the hardware adds pairs of 16-bit floats, and each thread holds them one by one",
            argument="offsets",
            expected="two neighbours in each thread",
            got=repr(layout),
            remedy="Give the layout size_per_thread >= 2 along the fastest dimension.",
        )
