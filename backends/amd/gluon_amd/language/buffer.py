"""Buffer addressing: a scalar base and 32-bit offsets, with masks that cost nothing.

The hardware checks each offset against the buffer's size, so a masked-off element is one whose offset
is out of range: no branch is needed.
"""

from __future__ import annotations

from typing import Any, Optional, Protocol

from gluon_amd.features import BUFFER_SIGNED_EXTREMA, BUFFER_XCHG
from gluon_core.errors import DtypeError, LayoutError, ShapeError
from gluon_core.features import Feature
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Operand

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
    ptr: tl.tensor,
    offsets: tl.tensor,
    mask: Optional[Operand] = None,
    other: Optional[Operand] = None,
    cache: Optional[Const[str]] = None,
) -> tl.tensor:
    """Read `ptr + offsets`.

    Args:
        ptr: scalar pointer.
        offsets: tensor of int32 or uint32, in elements, not negative.
        mask: int1, broadcast to the offsets; where false nothing is read.
        other: value of the result where `mask` is false, a scalar or a tensor; 0 by default.
        cache: `".ca"`, `".cg"`, `".cs"` or `".cv"`; before Triton 3.9 a hint for CDNA only.

    Returns:
        A tensor of `offsets`' shape and layout, of the pointed-to dtype.

    Raises:
        DtypeError: not a scalar pointer, other offsets, a mask that is not boolean.
        ShapeError: mask or other do not fit the offsets.
        ArgumentError: `other` without a mask, or no such cache modifier.

    ISA: CDNA3 9.1, buffer_load_*.
    """
    semantic = semantic_layer()
    check_address(semantic, ptr, offsets)
    element = ptr.dtype.element_ty
    modifier = semantic.cache_modifier(cache, argument="cache")
    offsets = _together(semantic, offsets, mask=mask, other=other)
    mask, other = semantic.masked(offsets, element, mask, other, "offsets")
    result = offsets.type.with_element_ty(element)
    handle = semantic.builder.create_buffer_load(
        result.to_ir(semantic.builder),
        ptr.handle,
        offsets.handle,
        semantic.handle_or_absent(mask),
        semantic.handle_or_absent(other),
        modifier,
    )
    return semantic.make_tensor(handle, result)


@builtin(requires=_REQUIRES, name="gl.amd.cdna3.buffer_store", instead="gl.portable.store")
def buffer_store(
    stored_value: Operand,
    ptr: tl.tensor,
    offsets: tl.tensor,
    mask: Optional[Operand] = None,
    cache: Optional[Const[str]] = None,
) -> None:
    """Write `stored_value` to `ptr + offsets`.

    Args:
        stored_value: tensor of `offsets`' shape and layout and of the pointed-to dtype, or
            integers of the other sign; or a scalar, which is cast.
        ptr: scalar pointer.
        offsets: tensor of int32 or uint32, in elements, not negative.
        mask: int1, broadcast to the offsets; where false nothing is written.
        cache: `".wb"`, `".cg"`, `".cs"` or `".wt"`; before Triton 3.9 a hint for CDNA only.

    Raises:
        DtypeError: not a scalar pointer, a const one, other offsets, a tensor of another dtype, a
            mask that is not boolean.
        ShapeError: value or mask do not fit the offsets.
        ArgumentError: no such cache modifier.

    ISA: CDNA3 9.1, buffer_store_*.
    """
    semantic = semantic_layer()
    check_address(semantic, ptr, offsets, write=True)
    modifier = semantic.cache_modifier(cache, store=True, argument="cache")
    offsets = _together(semantic, offsets, mask=mask, stored_value=stored_value)
    value = _value(semantic, ptr, offsets, stored_value, "stored_value")
    mask, _ = semantic.masked(offsets, value.dtype, mask, subject="offsets")
    semantic.builder.create_buffer_store(
        value.handle,
        ptr.handle,
        offsets.handle,
        semantic.handle_or_absent(mask),
        modifier,
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


class _Atomic(Protocol):
    def __call__(
        self,
        ptr: tl.tensor,
        offsets: tl.tensor,
        value: Operand,
        mask: Optional[Operand] = None,
        sem: Optional[Const[str]] = None,
        scope: Optional[Const[str]] = None,
    ) -> tl.tensor:
        """Change numbers at `ptr + offsets` atomically; return their old values."""


def _atomic(kind: str, action: str) -> _Atomic:
    """Return the op `buffer_atomic_KIND`, documented."""

    def op(
        ptr: tl.tensor,
        offsets: tl.tensor,
        value: Operand,
        mask: Optional[Operand] = None,
        sem: Optional[Const[str]] = None,
        scope: Optional[Const[str]] = None,
    ) -> tl.tensor:
        return _emit_atomic(semantic_layer(), kind, ptr, offsets, value, mask, sem, scope)

    op.__doc__ = f"""Atomically {action} at `ptr + offsets`.

    Args:
        ptr: scalar pointer to one of {", ".join(map(str, _ATOMIC_DTYPES.get(kind, _INTEGERS)))}.
        offsets: tensor of int32 or uint32, in elements, not negative.
        value: tensor of `offsets`' shape and layout and of the pointed-to dtype, or a scalar.
        mask: numbers, broadcast to the offsets; where 0 or false nothing happens.
        sem: "acq_rel" (default), "acquire", "release" or "relaxed".
        scope: "gpu" (default), "cta" or "sys".

    Returns:
        Old values, a tensor like `value`.

    Raises:
        DtypeError: another pointer, other offsets, another value.
        ShapeError: value or mask do not fit the offsets.
        ArgumentError: no such order or scope.
        LayoutError: a 16-bit float, of which the hardware adds pairs, held one by one.
        CapabilityError: the target, or the installed Triton, does not have it for this dtype.

    ISA: CDNA3 9.1, buffer_atomic_*.
    """
    return builtin(
        requires=("amd.buffer_atomics",),
        name=f"gl.amd.cdna3.buffer_atomic_{kind}",
        instead=f"gl.atomic_{kind}",
    )(op)


def _emit_atomic(
    semantic: SemanticLayer,
    op: str,
    ptr: tl.tensor,
    offsets: tl.tensor,
    value: Operand,
    mask: Optional[Operand],
    sem: Optional[Const[str]],
    scope: Optional[Const[str]],
) -> tl.tensor:
    name = f"gl.amd.cdna3.buffer_atomic_{op}"
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
        semantic.check_capabilities(f"{name} of {element}", needs, f"gl.atomic_{op}")
        _check_pairs(offsets)
    since = _lowered_since(op, element)
    if since is not None:
        semantic.require(since, f"{name} of {element}")
    mask = _truth(semantic, mask)
    offsets = _together(semantic, offsets, mask=mask, value=value)
    mask, _ = semantic.masked(offsets, element, mask, subject="offsets")
    value = _value(semantic, ptr, offsets, value, "value")
    order = semantic.memory_order(sem, scope)
    handle = semantic.builder.create_buffer_atomic_rmw(
        _kind(op, element),
        ptr.handle,
        offsets.handle,
        value.handle,
        *order,
        semantic.handle_or_absent(mask),
    )
    return semantic.make_tensor(handle, value.type.with_element_ty(element))


def _truth(semantic: SemanticLayer, mask: Optional[Operand]) -> Any:
    """Return the mask of an atomic as booleans: any number but 0 is true."""
    mask = unwrap(mask)
    if mask is None:
        return None
    condition = semantic.to_tensor(mask)
    if condition.dtype.is_ptr() or condition.dtype == tl.int1:
        return condition
    return semantic.cast(condition, tl.int1)


def _lowered_since(op: str, element: tl.dtype) -> Optional[Feature]:
    """Raise before the first Triton that lowers the op; earlier builders take it, and LLVM then fails."""
    if op == "xchg":
        return BUFFER_XCHG
    if op in ("max", "min") and not element.is_int_unsigned():
        return BUFFER_SIGNED_EXTREMA
    return None


def _kind(op: str, element: tl.dtype) -> Any:
    name = op.upper()
    if op == "add" and element.is_floating():
        name = "FADD"
    elif op in ("max", "min") and element.is_int_unsigned():
        name = f"U{name}"
    return semantic_layer().enum("ATOMIC_OP", name)


buffer_atomic_add = _atomic("add", "add `value` to the number")
buffer_atomic_and = _atomic("and", "and `value` with the bits")
buffer_atomic_or = _atomic("or", "or `value` with the bits")
buffer_atomic_xor = _atomic("xor", "xor `value` with the bits")
buffer_atomic_max = _atomic("max", "keep the larger of `value` and the number")
buffer_atomic_min = _atomic("min", "keep the smaller of `value` and the number")
buffer_atomic_xchg = _atomic("xchg", "put `value` in place of the number")


# -- operands ------------------------------------------------------------------------------------


def check_address(
    semantic: SemanticLayer, ptr: Any, offsets: tl.tensor, write: bool = False
) -> None:
    ptr = semantic.check_pointer(ptr, "ptr")
    if ptr.type.is_block():
        raise DtypeError(
            "must be a scalar pointer",
            argument="ptr",
            got=semantic.describe(ptr),
            remedy="Pass the base here and the rest as offsets, or use gl.load and gl.store.",
        )
    if write and ptr.dtype.is_const():
        raise DtypeError(
            "cannot write through a const pointer", argument="ptr", got=semantic.describe(ptr)
        )
    if ptr.dtype.element_ty.primitive_bitwidth < 8:
        raise DtypeError("buffers hold whole bytes", argument="ptr", got=semantic.describe(ptr))
    semantic.require_distributed(offsets, "offsets")
    if offsets.dtype not in (tl.int32, tl.uint32):
        raise DtypeError(
            "buffer offsets have 32 bits",
            argument="offsets",
            expected="int32 or uint32",
            got=offsets.dtype,
            remedy="Cast them with .to(gl.int32), or move ptr by the large part.",
        )


def _together(semantic: SemanticLayer, offsets: tl.tensor, **operands: Any) -> tl.tensor:
    """Return the offsets with the shape that they and the operands have together, in a layout of
    theirs."""
    for argument, value in operands.items():
        value = unwrap(value)
        if not isinstance(value, tl.tensor) or not value.type.is_block():
            continue
        have, want = semantic.shape_of(value), semantic.shape_of(offsets)
        fits = len(have) == len(want) and all(h == w or 1 in (h, w) for h, w in zip(have, want))
        if not fits:
            raise ShapeError(
                "does not match the offsets", argument=argument, expected=want, got=have
            )
        if have == want and semantic.is_placeholder(value.type.layout):
            continue  # takes theirs, once it has its dtype
        offsets, _ = semantic.broadcast_impl_value(offsets, value)
    return offsets


def _value(
    semantic: SemanticLayer,
    ptr: tl.tensor,
    offsets: tl.tensor,
    value: Operand,
    argument: str,
) -> tl.tensor:
    """Return the tensor to write: of the pointed-to dtype, or integers of the other sign."""
    element = ptr.dtype.element_ty
    number: Any = semantic.to_tensor(unwrap(value))
    if not number.type.is_block():
        number = semantic.cast(number, element)
    elif not semantic.same_bits(number.dtype, element):
        raise DtypeError(
            "the dtype is not the pointer's",
            argument=argument,
            expected=element,
            got=number.dtype,
            remedy=f"Cast it with .to({element}).",
        )
    return semantic.like(offsets, number, argument, "offsets")


def _check_pairs(offsets: tl.tensor) -> None:
    semantic = semantic_layer()
    layout = offsets.type.layout
    if semantic.is_placeholder(layout):
        return
    linear = layout.to_linear(semantic.shape_of(offsets))
    registers = linear.bases["register"]
    if not any(sum(row) == 1 for row in registers):
        raise LayoutError(
            "the hardware adds pairs of 16-bit floats, and each thread holds them one by one",
            argument="offsets",
            expected="two neighbours in each thread",
            got=repr(layout),
            remedy="Give the layout size_per_thread >= 2 along the fastest dimension.",
        )
