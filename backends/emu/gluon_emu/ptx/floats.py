"""Arithmetic on floats: PTX ISA 9.7.3 to 9.7.5, with the approximate instructions."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import numpy as np

from gluon_emu.ptx.doubles import double
from gluon_emu.ptx.numbers import FORMATS, encode, flushed, rounded, sum_to_odd, uint
from gluon_emu.ptx.program import (
    TYPES,
    Call,
    Step,
    Type,
    lanes_of,
    numbers,
    opcode,
    packed,
)

__all__ = [
    "divide",
    "float_arithmetic",
    "float_extreme",
    "float_sign",
    "is_float",
    "least_of",
    "pick_extreme",
]

MODES = ("rn", "rz", "rm", "rp", "rna", "rs")
_FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "f32x2")


def least_of(element: str) -> float:
    """Return the smallest normal number of a format."""
    return 2.0 ** (-1022 if element == "f64" else FORMATS[element].least)


def _encoded(x: np.ndarray, type: Type, saturate: bool, relu: bool, ftz: bool) -> np.ndarray:
    """Convert float64 that the type's elements hold to the result of an instruction."""
    if ftz:
        x = flushed(x, least_of(type.element))
    if saturate:
        x = np.where(np.isnan(x), 0.0, np.clip(x, 0.0, 1.0)) + 0.0
    if relu:
        x = np.where(x <= 0, 0.0, x)
    return encode(x, type.element)


def _exact(kind: str, mode: str) -> Callable[..., np.ndarray]:
    """In float64, so that one rounding is left to do."""

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray(a * b)

    table: dict[str, Callable[..., np.ndarray]] = {
        "add": lambda a, b: sum_to_odd(a, b, mode),
        "sub": lambda a, b: sum_to_odd(a, -b, mode),
        "mul": product,
        "fma": lambda a, b, c: sum_to_odd(a * b, c, mode),
        "mad": lambda a, b, c: sum_to_odd(a * b, c, mode),
        # A quotient or root of 24 bits that 53 do not hold is not near a number of 25 bits.
        "div": lambda a, b: a / b,
        "rcp": lambda a: 1 / a,
        "sqrt": lambda a: np.sqrt(a),
    }
    return table[kind]


def _fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a * b + c of float32, rounded once."""
    wide = c.astype(np.float64)
    product = a.astype(np.float64) * b
    total = product + wide
    near = total.astype(np.float32)
    # Only where float64 is halfway between two float32, or these are subnormal, is it rounded twice.
    halfway = (total.view(np.int64) & 0x1FFFFFFF) == 0x10000000
    halfway |= np.abs(near) < _TINY
    if halfway.any():
        again = sum_to_odd(product, wide).astype(np.float32)
        near = np.where(halfway, again, near)
    return np.asarray(near)


_TINY = np.float32(2.0**-126)
_SINGLE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt,
    "fma": _fused, "mad": _fused,
}  # fmt: skip


def _single(fn: Callable[..., np.ndarray], ftz: bool, saturate: bool) -> Callable[..., np.ndarray]:
    """Round to nearest in float32, where NumPy does so."""

    def run(*xs: np.ndarray) -> np.ndarray:
        result = fn(*map(_flushed, xs)) if ftz else fn(*xs)
        if ftz:
            result = _flushed(result)
        if saturate:
            inside = np.where(np.isnan(result), np.float32(0), result.clip(0, 1))
            return np.asarray(inside + np.float32(0))
        nan = np.isnan(result)
        if nan.any():
            bits = np.where(nan, np.uint32(FORMATS["f32"].nan or 0), result.view(np.uint32))
            result = bits.view(np.float32)
        return result

    return run


def _flushed(x: np.ndarray) -> np.ndarray:
    small = np.abs(x) < _TINY
    return np.where(small, np.copysign(np.float32(0), x), x) if small.any() else x


_OUTSIDE = 0x7FF7  # the NaN of elements outside of a tensor, as an H200 fills them in


def _outside(raw: np.ndarray, type: Type) -> list[np.ndarray]:
    """Return which lanes of 16 bits are from outside of a tensor."""
    word = raw.view(uint(type.bits)).astype(np.uint32)
    return [
        (word >> np.uint32(16 * i) & np.uint32(0xFFFF)) == _OUTSIDE for i in range(type.bits // 16)
    ]


def _arithmetic(
    call: Call, kind: str, arity: int, types: Sequence[Type], outside: bool = False
) -> Step:
    """
    Args:
        outside: factors from outside of a tensor make the result zero.
    """
    result = types[0]
    arguments = list(types[1:]) or [result] * arity
    mode, ftz, saturate, relu = call.modes
    if result.name == "f64":
        if ftz or saturate or relu:
            raise call.unknown_type(result)
        return call.plain(result, arguments, double(kind, mode))
    alike = all(t.name == "f32" for t in (result, *arguments))
    if alike and kind in _SINGLE and mode == "rn":
        return call.plain(result, arguments, _single(_SINGLE[kind], ftz, saturate))
    exact = _exact(kind, mode)

    def run(*raw: np.ndarray) -> np.ndarray:
        lanes = list(zip(*(numbers(r, t) for r, t in zip(raw, arguments))))
        results = []
        for lane in lanes:
            if ftz:
                lane = tuple(flushed(x, least_of(t.element)) for x, t in zip(lane, arguments))
            value = rounded(exact(*lane), result.element, mode)
            results.append(_encoded(value, result, saturate, relu, ftz))
        if outside:
            flags = zip(*(_outside(r, t) for r, t in zip(raw[:2], arguments)))
            results = [np.where(a | b, r.dtype.type(0), r) for r, (a, b) in zip(results, flags)]
        return packed(results, result).view(result.dtype)

    return call.plain(result, arguments, run)


def _prepared(call: Call) -> list[Type]:
    """Take the modifiers that all arithmetic shares; return the types."""
    call.modes = (
        call.one_of(*MODES) or "rn",
        call.flag("ftz"),
        call.flag("sat"),
        call.flag("relu"),
    )
    if call.modes[0] in ("rna", "rs"):
        raise call.refuse(f"`.{call.modes[0]}` of `{call.name}` is not known")
    return call.take_types()


def is_float(call: Call) -> bool:
    return any(m in _FLOATS for m in call.left)


def float_arithmetic(call: Call) -> Step:
    """add, sub, mul, fma, mad: of one type, or of f32 with narrower factors."""
    if call.name in ("fma", "mad") and not any(m in MODES for m in call.left):
        raise call.refuse(f"`{call.name}` of floats needs a rounding mode, such as .rn")
    outside = call.name == "fma" and call.flag("oob")
    types = _prepared(call)
    arity = 3 if call.name in ("fma", "mad") else 2
    result = types[0]
    if outside and result.element not in ("f16", "bf16"):
        raise call.refuse(f"`.oob` of `.{result.name}` is not known")
    if len(types) == 1:
        return _arithmetic(call, call.name, arity, types, outside)
    if len(types) == 2 and result.name == "f32" and types[1].name in ("f16", "bf16"):
        narrow = types[1]
        rest = [narrow, narrow, result] if arity == 3 else [narrow, result]
        return _arithmetic(call, call.name, arity, [result, *rest])
    raise call.refuse(f"`{call.name}` of these types is not known")


opcode("fma")(float_arithmetic)


@opcode("rcp", "sqrt")
def divide(call: Call) -> Step:
    """div, rcp, sqrt."""
    full = call.flag("full")
    if call.flag("approx") or full:
        return _approximate(call, full)
    if call.one_of("rn", "rz", "rm", "rp") is None:
        raise call.refuse(f"`{call.name}` of floats needs a rounding mode, or `.approx`")
    call.left = list(call.statement.modifiers)
    types = _prepared(call)
    if types[0].name not in ("f32", "f64"):
        raise call.unknown_type(types[0])
    return _arithmetic(call, call.name, 1 + (call.name == "div"), types[:1])


def _divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By the reciprocal, which is zero where the divisor is huge."""
    size = np.abs(b)
    quotient: np.ndarray = np.where(
        (size > 2.0**126) & (size < np.inf), a * np.copysign(0.0, b), a / b
    )
    return quotient


def _turns(a: np.ndarray) -> np.ndarray:
    """Return angles as the unit gets them: as float32 multiples of a turn, rounded toward zero, as far as these go
    beyond whole ones."""
    turns = rounded(a * float(np.float32(0.15915494)), "f32", "rz")
    return np.asarray((turns - np.rint(turns)) * (2 * np.pi))


_APPROXIMATE: dict[str, tuple[Callable[..., np.ndarray], tuple[str, ...]]] = {
    "div": (_divided, ("f32",)),
    "rcp": (lambda a: 1 / a, ("f32", "f64")),
    "sqrt": (np.sqrt, ("f32",)),
    "rsqrt": (lambda a: 1 / np.sqrt(a), ("f32", "f64")),
    "ex2": (np.exp2, ("f32", "f16", "f16x2", "bf16", "bf16x2")),
    "lg2": (np.log2, ("f32",)),
    "sin": (lambda a: np.sin(_turns(a)), ("f32",)),
    "cos": (lambda a: np.cos(_turns(a)), ("f32",)),
    "tanh": (np.tanh, ("f32", "f16", "f16x2", "bf16", "bf16x2")),
}


@opcode("rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def approximated(call: Call) -> Step:
    if not call.flag("approx"):
        raise call.refuse(f"`{call.name}` is there with `.approx` alone")
    return _approximate(call, False)


def _approximate(call: Call, full: bool) -> Step:
    """Return the nearest float to the exact result, which is within the bounds of the ISA."""
    fn, fit = _APPROXIMATE[call.name]
    ftz = call.flag("ftz")
    type = call.type()
    if type.name not in fit:
        raise call.unknown_type(type)
    if full:
        fn = np.divide
    arity = 2 if call.name == "div" else 1
    double = type.name == "f64"
    high = double and ftz  # of these the lower half of operand and result counts as zero

    def run(*raw: np.ndarray) -> np.ndarray:
        if high:
            raw = tuple(_high(r.view(np.uint64)).view(np.float64) for r in raw)
        lanes = list(zip(*(numbers(r, type) for r in raw)))
        results = []
        for lane in lanes:
            if ftz or high:
                lane = tuple(flushed(x, least_of(type.element)) for x in lane)
            value = np.asarray(fn(*lane))
            if high:
                value = flushed(_high(value.view(np.uint64)).view(np.float64), 2.0**-1022)
                nan = np.uint64(0x7FFFFFFF00000000)
                value = np.where(np.isnan(value), nan, value.view(np.uint64)).view(np.float64)
            if double:  # without .ftz a sequence that comes close to the nearest
                results.append(value.view(np.uint64))
                continue
            results.append(_encoded(rounded(value, type.element), type, False, False, ftz))
        return packed(results, type).view(type.dtype)

    return call.plain(type, [type] * arity, run)


def _high(raw: np.ndarray) -> np.ndarray:
    return np.asarray((raw >> np.uint64(32)) << np.uint64(32))


# ---- signs, extremes ---------------------------------------------------------------------------


def _signs(type: Type) -> int:
    """Return the bits that hold the signs of a value's elements."""
    size = type.bits // type.lanes
    return sum(1 << (size * (i + 1) - 1) for i in range(type.lanes))


def float_sign(call: Call) -> Step:
    """abs, neg. A NaN becomes the one that results have: the ISA leaves it open, and ptxas makes
    additions of these. One of f64 stays as it is, but quiet."""
    ftz = call.flag("ftz")
    type = call.type()
    mask = type.bits and _signs(type)
    bits = TYPES[f"b{type.bits}"]
    negate = call.name == "neg"

    def run(raw: np.ndarray) -> np.ndarray:
        if ftz:
            raw = packed(
                [
                    encode(flushed(x, least_of(type.element)), type.element)
                    for x in numbers(raw.view(type.dtype), type)
                ],
                type,
            )
        wide = bits.dtype.type
        signed = raw ^ wide(mask) if negate else raw & wide(mask ^ ((1 << type.bits) - 1))
        nan = [np.isnan(x) for x in numbers(raw.view(type.dtype), type)]
        if not np.any(nan):
            return np.asarray(signed)
        if type.name == "f64":
            return np.asarray(np.where(nan[0], raw | np.uint64(1 << 51), signed))
        canonical = wide(FORMATS[type.element].nan or 0).astype(uint(type.bits // type.lanes))
        return packed(
            [np.where(n, canonical, lane) for n, lane in zip(nan, lanes_of(signed, type))], type
        )

    return call.plain(bits, [bits], run)


def pick_extreme(
    a: np.ndarray, b: np.ndarray, least: bool, nan: bool, xor: bool = False
) -> np.ndarray:
    """Return the smaller or the larger; -0 is less than 0.

    Args:
        nan: NaN where one is; else the other number.
        xor: of magnitudes, with the exclusive or of the signs.
    """
    sign = np.signbit(a) ^ np.signbit(b) if xor else None
    if xor:
        a, b = np.abs(a), np.abs(b)
    extreme = np.fmin(a, b) if least else np.fmax(a, b)
    equal, unknown = a == b, np.isnan(extreme)
    if equal.any():  # zeros may differ in their signs
        one, other = a.view(np.int64), b.view(np.int64)
        extreme = np.where(equal, (one | other if least else one & other).view(np.float64), extreme)
    if unknown.any():  # of a signalling NaN, too, NumPy makes NaN
        extreme = np.where(unknown, np.where(np.isnan(a), b, a), extreme)
    if sign is not None:
        extreme = np.where(sign, -extreme, extreme)
    if nan:
        extreme = np.where(np.isnan(a) | np.isnan(b), np.nan, extreme)
    return np.asarray(extreme)


def float_extreme(call: Call) -> Step:
    """min, max of two or three."""
    ftz, nan = call.flag("ftz"), call.flag("NaN")
    xor = call.flag("xorsign")
    if xor and not call.flag("abs"):
        raise call.refuse("`.xorsign` belongs before `.abs`")
    magnitudes = not xor and call.flag("abs")
    type = call.type()
    least = call.name == "min"
    call.count(*((3, 4) if type.name == "f32" else (3,)))

    def run(*raw: np.ndarray) -> np.ndarray:
        lanes = []
        for lane in zip(*(numbers(r, type) for r in raw)):
            if ftz:
                lane = tuple(flushed(x, least_of(type.element)) for x in lane)
            if magnitudes:
                lane = tuple(map(np.abs, lane))
            extreme = lane[0]
            for other in lane[1:]:
                extreme = pick_extreme(extreme, other, least, nan, xor)
            lanes.append(encode(extreme, type.element))
        return packed(lanes, type).view(type.dtype)

    return call.plain(type, [type] * (len(call.operands) - 1), run)


@opcode("copysign")
def copysign(call: Call) -> Step:
    type = call.type()
    if type.name not in ("f32", "f64"):
        raise call.unknown_type(type)
    return call.plain(type, [type, type], lambda a, b: np.copysign(b, a))


_TESTS: dict[str, Callable[[np.ndarray, float], Any]] = {
    "finite": lambda x, least: np.isfinite(x),
    "infinite": lambda x, least: np.isinf(x),
    "number": lambda x, least: ~np.isnan(x),
    "notanumber": lambda x, least: np.isnan(x),
    # Zeros count as normal numbers on an H100.
    "normal": lambda x, least: np.isfinite(x) & ((np.abs(x) >= least) | (x == 0)),
    "subnormal": lambda x, least: (x != 0) & (np.abs(x) < least),
}


@opcode("testp")
def testp(call: Call) -> Step:
    kind: Optional[str] = call.one_of(*_TESTS)
    type = call.type()
    if kind is None or type.name not in ("f32", "f64"):
        raise call.refuse("this test is not known")
    test, least = _TESTS[kind], least_of(type.element)
    return call.plain(TYPES["pred"], [type], lambda x: test(x, least))
