"""Packed arithmetic: one instruction for two (sm_100) or four (sm_107) neighbouring elements.

The compiler packs what a thread holds in neighbouring registers. What is computed does not depend
on the number in the name: `add4` is `add2` on hardware that has the wider instruction.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from gluon_core import _triton
from gluon_core._triton import tl, unwrap
from gluon_core.builtin import builtin, check_capabilities
from gluon_core.errors import ArgumentError, DtypeError
from gluon_core.semantic.base import describe
from gluon_core.values import distributed_type

__all__ = [
    "add2",
    "add4",
    "fma2",
    "fma4",
    "max2",
    "min2",
    "mul2",
    "mul4",
    "sub2",
    "sub4",
]

_SINCE = (3, 8)
_F32, _F16, _BF16 = tl.float32, tl.float16, tl.bfloat16
_FP8 = (tl.float8e4nv, tl.float8e5)

# Operand dtypes -> result dtypes. Each row is a form of the instruction (PTX 9.7.3 to 9.7.5).
_ADD = {
    (_F32, _F32): (_F32, _F16, _BF16),
    (_F16, _F32): (_F32,),
    (_BF16, _F32): (_F32,),
    (_F16, _F16): (_F16,),
    (_BF16, _BF16): (_BF16,),
    **{(a, b): (b,) for a in _FP8 for b in _FP8},
}
_MUL = {
    (_F32, _F32): (_F32, _F16, _BF16),
    (_F16, _F16): (_F16,),
    (_BF16, _BF16): (_BF16,),
    (_F16, _BF16): (_F16,),
    (_BF16, _F16): (_BF16,),
    **{(a, b): _FP8 for a in _FP8 for b in _FP8},
}
_FMA = {
    (_F32, _F32, _F32): (_F32,),
    (_F16, _F32, _F32): (_F32,),
    (_BF16, _F32, _F32): (_F32,),
    (_F16, _F16, _F16): (_F16,),
    (_BF16, _BF16, _BF16): (_BF16,),
    **{(a, b, c): (c,) for a in _FP8 for b in _FP8 for c in _FP8},
}
_PICK = {(_F16, _F16): (_F16,), (_BF16, _BF16): (_BF16,)}
_FORMS = {"add": _ADD, "sub": _ADD, "mul": _MUL, "fma": _FMA, "min": _PICK, "max": _PICK}

# Which operand's dtype the result has when none is asked for.
_LEADER = {"add": 1, "sub": 1, "mul": 0, "fma": 2, "min": 0, "max": 0}


def _emit(semantic: Any, kind: str, operands: dict[str, Any], dtype: Any) -> Any:
    for name, value in operands.items():
        if not _is_number(value):
            semantic.require_tensor(value, name)
    if not any(_has_layout(value) for value in operands.values()):
        raise ArgumentError(
            "needs at least one tensor with a layout",
            argument=next(iter(operands)),
            got=", ".join(describe(value) for value in operands.values()),
        )
    result = _result_dtype(kind, list(operands.values()), dtype)
    # A scalar takes the result's dtype, whatever it was.
    ready = [
        value if _has_layout(value) else _scalar(semantic, name, value, result)
        for name, value in operands.items()
    ]
    # Each operand meets each other, so that all end with one shape.
    for i in range(len(ready)):
        for j in range(len(ready)):
            if i != j:
                ready[i], ready[j] = semantic.broadcast_impl_value(ready[i], ready[j])
    dtypes = [value.dtype for value in ready]
    _check_form(kind, list(operands), dtypes, result)
    for capability in _needed(dtypes, result):
        shown = ", ".join(map(str, dtypes))
        what = f"packed {kind} of {shown} to {result}"
        check_capabilities(semantic, what, (capability,), "operands and a result of one dtype")
    type = ready[0].type.with_element_ty(result)
    handle = semantic.builder.create_packed_arith(
        type.to_ir(semantic.builder), kind, [value.handle for value in ready]
    )
    return semantic.make_tensor(handle, type)


def _is_number(value: Any) -> bool:
    return isinstance(unwrap(value), (bool, int, float))


def _has_layout(value: Any) -> bool:
    return isinstance(getattr(value, "type", None), distributed_type)


def _scalar(semantic: Any, name: str, value: Any, dtype: Any) -> Any:
    if _is_number(value):
        if _triton.at_least(3, 9):
            return semantic.scalar_constant(unwrap(value), dtype)
        value = semantic.to_tensor(unwrap(value))
    if value.dtype.is_ptr():
        raise DtypeError("a pointer is no number", argument=name, expected=dtype, got=value.dtype)
    return semantic.cast(value, dtype)


def _result_dtype(kind: str, values: list, dtype: Any) -> Any:
    dtype = unwrap(dtype)
    if dtype is not None:
        if not isinstance(dtype, tl.dtype) or not dtype.is_floating():
            raise DtypeError(
                "not a dtype of floats", argument="dtype", expected="float32", got=describe(dtype)
            )
        return dtype
    order = [values[_LEADER[kind]], *values]
    tensors = [value for value in order if _has_layout(value)]
    if tensors[0] is order[0]:
        return tensors[0].dtype
    return max((value.dtype for value in tensors), key=lambda kind: kind.primitive_bitwidth)


def _needed(dtypes: list, result: Any) -> tuple[str, ...]:
    """What a form needs beyond float32 pairs."""
    if dtypes[0] in _FP8:
        return ("nvidia.packed_fp8",)
    return () if {*dtypes, result} == {result} else ("nvidia.packed_mixed",)


def _check_form(kind: str, names: list[str], dtypes: list, result: Any) -> None:
    forms = _FORMS[kind]
    results = forms.get(tuple(dtypes))
    if results is None:
        known = dict.fromkeys(", ".join(map(str, form)) for form in forms)
        raise DtypeError(
            f"no packed {kind} of these dtypes",
            argument=", ".join(names),
            expected="; ".join(known),
            got=", ".join(map(str, dtypes)),
            remedy="Convert the operands with .to(...), or use plain arithmetic.",
        )
    if result not in results:
        raise DtypeError(
            f"packed {kind} of {', '.join(map(str, dtypes))} has no such result",
            argument="dtype",
            expected=" or ".join(map(str, results)),
            got=result,
        )


_TEXT = {
    "add": ("lhs + rhs", "rhs"),
    "sub": ("lhs - rhs", "rhs"),
    "mul": ("lhs * rhs", "lhs"),
    "fma": ("lhs * rhs + acc, rounded once", "acc"),
    "min": ("the smaller of lhs and rhs; of NaN and a number, the number", "lhs"),
    "max": ("the larger of lhs and rhs; of NaN and a number, the number", "lhs"),
}
_ISA = {
    "add": "PTX 9.7.3.3, 9.7.4.1, 9.7.5, add with .f32x2, .f16x2, .bf16x2 and mixed operands",
    "sub": "PTX 9.7.3.4, 9.7.4.2, 9.7.5, sub with .f32x2, .f16x2, .bf16x2 and mixed operands",
    "mul": "PTX 9.7.3.5, 9.7.4.3, mul with .f32x2, .f16x2, .bf16x2",
    "fma": "PTX 9.7.3.6, 9.7.4.4, 9.7.5, fma.rn with .f32x2, .f16x2, .bf16x2 and mixed operands",
    "min": "PTX 9.7.4.7, min with .f16x2, .bf16x2",
    "max": "PTX 9.7.4.8, max with .f16x2, .bf16x2",
}
_DOC = """`{text}`, {count} elements to an instruction.

    Args:
        {names}: tensors or scalars, broadcast to one shape; at least one tensor. A scalar takes the
            result's dtype.
        dtype: of the result; that of `{leader}` if left out.

    Forms, as operands -> result; of fp8 (sm_100, sm_103), of mixed dtypes (sm_107):
{forms}

    Raises:
        DtypeError: the hardware has no such form.
        LayoutError, ShapeError: the operands do not broadcast.
        CapabilityError: not {arch} or newer, a form that the target lacks, or a Triton older than 3.8.

    ISA: {isa}.
    """


def _forms_text(kind: str) -> str:
    rows = []
    for operands, results in _FORMS[kind].items():
        names = " or ".join(map(str, results))
        rows.append(f"        {', '.join(map(str, operands))} -> {names}")
    return "\n".join(rows)


def _make(kind: str, count: int) -> Callable:
    name = f"{kind}{count}"
    if kind == "fma":

        def op(lhs: Any, rhs: Any, acc: Any, dtype: Any = None, _semantic: Any = None) -> Any:
            return _emit(_semantic, kind, {"lhs": lhs, "rhs": rhs, "acc": acc}, dtype)

        names = "lhs, rhs, acc"
    else:

        def op(lhs: Any, rhs: Any, dtype: Any = None, _semantic: Any = None) -> Any:  # type: ignore[misc]
            return _emit(_semantic, kind, {"lhs": lhs, "rhs": rhs}, dtype)

        names = "lhs, rhs"
    generation, arch = ("blackwell", "sm_100") if count == 2 else ("rubin", "sm_107")
    text, leader = _TEXT[kind]
    op.__name__ = op.__qualname__ = name
    op.__doc__ = _DOC.format(
        text=text,
        count={2: "two", 4: "four"}[count],
        names=names,
        leader=leader,
        forms=_forms_text(kind),
        arch=arch,
        isa=_ISA[kind],
    )
    return builtin(
        op,
        requires=(f"nvidia.f32x{count}",),
        since=_SINCE,
        name=f"gl.nvidia.{generation}.{name}",
        instead=_INSTEAD.get((kind, count)),
    )


_INSTEAD: dict[tuple[str, int], Optional[str]] = {
    **{(kind, 2): "the operators of gl, or gl.fma" for kind in _FORMS},
    **{(kind, 4): f"gl.nvidia.blackwell.{kind}2" for kind in ("add", "sub", "mul", "fma")},
}

add2, sub2, mul2, fma2 = (_make(kind, 2) for kind in ("add", "sub", "mul", "fma"))
min2, max2 = (_make(kind, 2) for kind in ("min", "max"))
add4, sub4, mul4, fma4 = (_make(kind, 4) for kind in ("add", "sub", "mul", "fma"))
