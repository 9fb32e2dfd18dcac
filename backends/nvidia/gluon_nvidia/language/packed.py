"""Packed arithmetic: one instruction for two (sm_100) or four (sm_107) neighbouring elements.

The compiler packs values in neighbouring registers of a thread. The result does not depend on the
number in the name: `add4` is `add2` on hardware that has the wider instruction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Optional, Sequence, TypeVar

from gluon_core import errors
from gluon_core.layouts import BlockedLayout, DistributedLinearLayout
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Operand
from gluon_core.values import distributed_type
from gluon_nvidia.features import PACKED, PACKED_NUMBERS

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

_F32, _F16, _BF16 = tl.float32, tl.float16, tl.bfloat16
_FP8 = (tl.float8e4nv, tl.float8e5)

# Operand dtypes -> result dtypes. Each row is a form of the instruction (PTX 9.7.3 to 9.7.5).
_Forms = dict[tuple[tl.dtype, ...], tuple[tl.dtype, ...]]
_ADD: _Forms = {
    (_F32, _F32): (_F32, _F16, _BF16),
    (_F16, _F32): (_F32,),
    (_BF16, _F32): (_F32,),
    (_F16, _F16): (_F16,),
    (_BF16, _BF16): (_BF16,),
    **{(a, b): (b,) for a in _FP8 for b in _FP8},
}
_MUL: _Forms = {
    (_F32, _F32): (_F32, _F16, _BF16),
    (_F16, _F16): (_F16,),
    (_BF16, _BF16): (_BF16,),
    (_F16, _BF16): (_F16,),
    (_BF16, _F16): (_BF16,),
    **{(a, b): _FP8 for a in _FP8 for b in _FP8},
}
_FMA: _Forms = {
    (_F32, _F32, _F32): (_F32,),
    (_F16, _F32, _F32): (_F32,),
    (_BF16, _F32, _F32): (_F32,),
    (_F16, _F16, _F16): (_F16,),
    (_BF16, _BF16, _BF16): (_BF16,),
    **{(a, b, c): (c,) for a in _FP8 for b in _FP8 for c in _FP8},
}
# Packed fp4 (e2m1), two to a byte, next to fp8.
_FP4 = tl.uint8
for _x in _FP8:
    _ADD[_FP4, _x] = (_x,)
    _MUL[_FP4, _x] = _MUL[_x, _FP4] = _FP8
    for _y in _FP8:
        _FMA[_FP4, _y, _x] = _FMA[_y, _FP4, _x] = (_x,)
    _FMA[_FP4, _FP4, _x] = (_x,)
_MUL[_FP4, _FP4] = _FP8
_PICK: _Forms = {(_F16, _F16): (_F16,), (_BF16, _BF16): (_BF16,)}
_FORMS = {"add": _ADD, "sub": _ADD, "mul": _MUL, "fma": _FMA, "min": _PICK, "max": _PICK}

# Which operand's dtype the result has when none is asked for.
_LEADER = {"add": 1, "sub": 1, "mul": 0, "fma": 2, "min": 0, "max": 0}


def _emit(
    semantic: SemanticLayer,
    kind: str,
    operands: dict[str, Operand],
    dtype: Optional[Const[tl.dtype]],
) -> tl.tensor:
    for name, value in operands.items():
        if not _is_number(value):
            semantic.require_tensor(value, name)
    if not any(_has_layout(value) for value in operands.values()):
        raise errors.ArgumentError(
            "needs at least one tensor with a layout",
            argument=next(iter(operands)),
            got=", ".join(semantic.describe(value) for value in operands.values()),
        )
    result = _result_dtype(kind, list(operands.values()), dtype)
    number = _scalar_dtype(kind, list(operands.values()), result, dtype)
    ready: list[Any] = [
        value if _has_layout(value) else _scalar(semantic, name, value, number)
        for name, value in operands.items()
    ]
    # Each operand meets each other, so that all end with one shape; fp4 has half of it.
    floats = [i for i, value in enumerate(ready) if not _is_fp4(value)]
    for i in floats:
        for j in floats:
            if i != j:
                ready[i], ready[j] = semantic.broadcast_impl_value(ready[i], ready[j])
    dtypes = [_FP4 if _is_fp4(value) else value.dtype for value in ready]
    _check_form(kind, list(operands), dtypes, result)
    for capability in _needed(kind, dtypes, result):
        shown = ", ".join(map(str, dtypes))
        subject = f"packed {kind} of {shown} to {result}"
        instead = "operands and a result of one dtype"
        if semantic.target.has("nvidia.f32x4"):  # Rubin's namespace offers each of these forms
            semantic.check_assembler(subject, capability, instead)
        else:
            semantic.check_capabilities(subject, (capability,), instead)
    if len(floats) == len(ready):
        type = ready[0].type.with_element_ty(result)
    else:
        type = _unpacked(dict(zip(operands, ready)), result)
    handle = semantic.builder.create_packed_arith(
        type.to_ir(semantic.builder), kind, [value.handle for value in ready]
    )
    return semantic.make_tensor(handle, type)


def _is_fp4(value: Any) -> bool:
    return value.dtype in (tl.uint8, tl.int8)


def _unpacked(operands: dict[str, tl.tensor], result: tl.dtype) -> distributed_type:
    """Return the type of a result of which fp4 operands have half along one dimension."""
    semantic = semantic_layer()
    floats = [value for value in operands.values() if not _is_fp4(value)]
    packed = {name: value for name, value in operands.items() if _is_fp4(value)}
    if floats and not _has_layout(floats[0]):
        raise errors.ArgumentError(
            "fp4 needs a tensor of fp8 as well, or fp4 alone",
            argument=next(name for name, value in operands.items() if value is floats[0]),
            expected="float8e4nv or float8e5",
            got=semantic.describe(floats[0]),
        )
    first = next(iter(packed.values()))
    shape = semantic.shape_of(floats[0]) if floats else semantic.shape_of(first)
    halved = [d for d, size in enumerate(semantic.shape_of(first)) if 2 * size == shape[d]]
    axis = halved[0] if floats and halved else len(shape) - 1
    if not floats:
        shape[axis] *= 2
    half = [size // 2 if d == axis else size for d, size in enumerate(shape)]
    layout = floats[0].type.layout if floats else _doubled(first.type.layout, half, axis)
    for name, value in packed.items():
        if semantic.shape_of(value) != half:
            raise errors.ShapeError(
                "fp4 comes two to a byte, along one dimension",
                argument=name,
                expected=half,
                got=semantic.shape_of(value),
            )
        own = value.type.layout
        if semantic.is_placeholder(own) or semantic.is_placeholder(layout):
            raise errors.LayoutError("fp4 needs a known layout", argument=name, got=repr(own))
        doubled = _doubled(own, half, axis)
        if not semantic.same_places(doubled, layout, shape):
            raise errors.LayoutError(
                "a thread holds different elements of the fp4 operand and of the result",
                argument=name,
                expected=f"a layout that unpacks to {layout!r}",
                got=repr(own),
                remedy="Bring it there with gl.convert_layout.",
            )
    return distributed_type(result, shape, layout)


def _doubled(layout: Any, shape: list[int], axis: int) -> Any:
    """Return the layout of bytes of `shape`, for the two numbers that each of them holds along `axis`."""
    linear = layout.to_linear(shape)
    wide = [size * 2 if d == axis else size for d, size in enumerate(shape)]
    if isinstance(layout, BlockedLayout) and layout.order[0] == axis:
        each = [n * 2 if d == axis else n for d, n in enumerate(layout.size_per_thread)]
        return replace(layout, size_per_thread=each)
    bases = {
        name: [[v * 2 if d == axis else v for d, v in enumerate(row)] for row in rows]
        for name, rows in linear.bases.items()
    }
    pair = [int(d == axis) for d in range(len(shape))]
    register, lane, warp, block = (
        bases.get(name, []) for name in ("register", "lane", "warp", "block")
    )
    return DistributedLinearLayout([pair, *register], lane, warp, block, wide)


def _is_number(value: object) -> bool:
    return isinstance(unwrap(value), (bool, int, float))


def _has_layout(value: object) -> bool:
    return isinstance(getattr(value, "type", None), distributed_type)


def _scalar(semantic: SemanticLayer, name: str, value: Any, dtype: tl.dtype) -> tl.tensor:
    if _is_number(value):
        if semantic.has(PACKED_NUMBERS):
            return semantic.scalar_constant(unwrap(value), dtype)
        value = semantic.to_tensor(unwrap(value))
    if value.dtype.is_ptr():
        raise errors.DtypeError(
            "a pointer is not a number", argument=name, expected=dtype, got=value.dtype
        )
    return semantic.cast(value, dtype)


def _result_dtype(kind: str, values: list[Any], wanted: Optional[Const[tl.dtype]]) -> tl.dtype:
    wanted = unwrap(wanted)
    if wanted is not None:
        if not isinstance(wanted, tl.dtype) or not wanted.is_floating():
            raise errors.DtypeError(
                "not a floating-point dtype",
                argument="dtype",
                expected="float32",
                got=semantic_layer().describe(wanted),
            )
        chosen: tl.dtype = wanted
        return chosen
    leader = values[_LEADER[kind]]
    if _has_layout(leader) and leader.dtype.is_floating():
        own: tl.dtype = leader.dtype
        return own
    widest = _widest([leader, *values])
    if widest is None:
        raise errors.ArgumentError(
            "fp4 operands alone do not say the result's dtype",
            argument="dtype",
            expected="float8e4nv or float8e5",
        )
    return widest


def _widest(values: Sequence[Any]) -> Optional[tl.dtype]:
    """Return the dtype of tensors and, from 3.9 on, of run-time scalars together; None of fp4 alone."""
    tensors = [value.dtype for value in values if _has_layout(value) and not _is_fp4(value)]
    scalars = [value.dtype for value in values if not (_has_layout(value) or _is_number(value))]
    if tensors and semantic_layer().has(PACKED_NUMBERS):
        tensors += [kind for kind in scalars if kind.is_floating()]
    if not tensors:
        return None
    widest = max(tensors, key=lambda kind: kind.primitive_bitwidth)
    result: Optional[tl.dtype] = _F16 if widest == _BF16 and _F16 in tensors else widest
    return result


def _scalar_dtype(
    kind: str, values: Sequence[Any], result: tl.dtype, dtype: Optional[Const[tl.dtype]]
) -> tl.dtype:
    """Return the dtype that scalars are converted to: the result's, or from 3.9 on the widest of all
    operands where that is a form."""
    widest = _widest(values)
    if unwrap(dtype) is None and semantic_layer().has(PACKED_NUMBERS) and widest is not None:
        own = (value.dtype if _has_layout(value) else widest for value in values)
        form = tuple(_FP4 if of in (tl.int8, tl.uint8) else of for of in own)
        if result in _FORMS[kind].get(form, ()):
            return widest
    return result


# Four at once are two at a time where the instruction is narrower.
_REQUIRES = ("nvidia.ldmatrix",)


def _needed(kind: str, dtypes: Sequence[tl.dtype], result: tl.dtype) -> tuple[str, ...]:
    """Return the requirements of a form."""
    if {*dtypes} & {_FP4, *_FP8}:
        return ("nvidia.packed_fp8",)
    if {*dtypes, result} != {result}:
        return ("nvidia.packed_mixed",)
    if result == _BF16:
        return ("nvidia.packed_bf16",) if kind in ("add", "sub", "mul") else ("nvidia.bf16",)
    if result == _F16:
        return ("nvidia.bf16",) if kind in ("min", "max") else ()
    return ("nvidia.f32x2",)


def _check_form(kind: str, names: list[str], dtypes: Sequence[tl.dtype], result: tl.dtype) -> None:
    forms = _FORMS[kind]
    results = forms.get(tuple(dtypes))
    if results is None:
        known = dict.fromkeys(", ".join(map(str, form)) for form in forms)
        raise errors.DtypeError(
            f"no packed {kind} of these dtypes",
            argument=", ".join(names),
            expected="; ".join(known),
            got=", ".join(map(str, dtypes)),
            remedy="Convert the operands with .to(...), or use plain arithmetic.",
        )
    if result not in results:
        raise errors.DtypeError(
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
            result's dtype; with {numbers} one that is known when the kernel runs counts as a
            tensor does. Bytes are fp4 (e2m1), two in each: half as long along one dimension.
        dtype: of the result; that of `{leader}` if left out, which fp4 is not.

    Returns:
        A tensor of that shape, in the layout of the operands.

    Forms, as operands -> result; of fp8 (sm_100, sm_103), of mixed dtypes (sm_107):
{forms}

    Raises:
        DtypeError: the hardware has no such form.
        LayoutError, ShapeError: the operands do not broadcast.
        CapabilityError: a form that the target lacks (float32 needs sm_100), or a Triton older than 3.8.

    ISA: {isa}.
    """


def _forms_text(kind: str) -> str:
    rows = []
    for operands, results in _FORMS[kind].items():
        names = " or ".join(map(str, results))
        rows.append(f"        {', '.join(map(str, operands))} -> {names}")
    return "\n".join(rows)


F = TypeVar("F", bound=Callable[..., Any])


def _packed(fn: F) -> F:
    """Make an op of a function that is named as an instruction and its count, and document it."""
    name = fn.__name__
    kind, count = name[:-1], int(name[-1])
    generation = "blackwell" if count == 2 else "rubin"
    text, leader = _TEXT[kind]
    fn.__doc__ = _DOC.format(
        text=text,
        count={2: "two", 4: "four (on sm_100 two)"}[count],
        names="lhs, rhs, acc" if kind == "fma" else "lhs, rhs",
        leader=leader,
        numbers=PACKED_NUMBERS.releases,
        forms=_forms_text(kind),
        isa=_ISA[kind],
    )
    op: F = builtin(
        requires=_REQUIRES,
        since=PACKED,
        name=f"gl.nvidia.{generation}.{name}",
        instead="the operators of gl, or gl.fma",
    )(fn)
    return op


@_packed
def add2(lhs: Operand, rhs: Operand, dtype: Optional[Const[tl.dtype]] = None) -> tl.tensor:
    return _emit(semantic_layer(), "add", {"lhs": lhs, "rhs": rhs}, dtype)


@_packed
def sub2(lhs: Operand, rhs: Operand, dtype: Optional[Const[tl.dtype]] = None) -> tl.tensor:
    return _emit(semantic_layer(), "sub", {"lhs": lhs, "rhs": rhs}, dtype)


@_packed
def mul2(lhs: Operand, rhs: Operand, dtype: Optional[Const[tl.dtype]] = None) -> tl.tensor:
    return _emit(semantic_layer(), "mul", {"lhs": lhs, "rhs": rhs}, dtype)


@_packed
def fma2(
    lhs: Operand, rhs: Operand, acc: Operand, dtype: Optional[Const[tl.dtype]] = None
) -> tl.tensor:
    return _emit(semantic_layer(), "fma", {"lhs": lhs, "rhs": rhs, "acc": acc}, dtype)


@_packed
def min2(lhs: Operand, rhs: Operand, dtype: Optional[Const[tl.dtype]] = None) -> tl.tensor:
    return _emit(semantic_layer(), "min", {"lhs": lhs, "rhs": rhs}, dtype)


@_packed
def max2(lhs: Operand, rhs: Operand, dtype: Optional[Const[tl.dtype]] = None) -> tl.tensor:
    return _emit(semantic_layer(), "max", {"lhs": lhs, "rhs": rhs}, dtype)


@_packed
def add4(lhs: Operand, rhs: Operand, dtype: Optional[Const[tl.dtype]] = None) -> tl.tensor:
    return _emit(semantic_layer(), "add", {"lhs": lhs, "rhs": rhs}, dtype)


@_packed
def sub4(lhs: Operand, rhs: Operand, dtype: Optional[Const[tl.dtype]] = None) -> tl.tensor:
    return _emit(semantic_layer(), "sub", {"lhs": lhs, "rhs": rhs}, dtype)


@_packed
def mul4(lhs: Operand, rhs: Operand, dtype: Optional[Const[tl.dtype]] = None) -> tl.tensor:
    return _emit(semantic_layer(), "mul", {"lhs": lhs, "rhs": rhs}, dtype)


@_packed
def fma4(
    lhs: Operand, rhs: Operand, acc: Operand, dtype: Optional[Const[tl.dtype]] = None
) -> tl.tensor:
    return _emit(semantic_layer(), "fma", {"lhs": lhs, "rhs": rhs, "acc": acc}, dtype)
