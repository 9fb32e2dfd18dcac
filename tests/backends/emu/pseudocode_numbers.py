"""Numbers of the vendor's pseudocode: integers whose width wraps, NumPy's floats, and its functions."""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Callable

import numpy as np

FLOATS = {16: np.float16, 32: np.float32, 64: np.float64}


class Unsupported(Exception):
    """The text uses more than this interpreter knows."""


@dataclass(frozen=True)
class Int:
    value: int
    width: int = 32
    signed: bool = True
    literal: bool = False

    @staticmethod
    def of(bits: int, width: int, signed: bool) -> "Int":
        bits &= (1 << width) - 1
        if signed and bits >> (width - 1):
            bits -= 1 << width
        return Int(bits, width, signed)


def bits_of(value: Any) -> tuple[int, int]:
    """(bits, width) of a number."""
    if isinstance(value, Int):
        return value.value & (1 << value.width) - 1, value.width
    if isinstance(value, bool):
        return int(value), 1
    return int.from_bytes(value.tobytes(), "little"), value.dtype.itemsize * 8


def typed(bits: int, kind: str) -> Any:
    """Bits as the type that `.kind` names."""
    match = re.fullmatch(r"(u|i|b|f|bf)(\d+)", kind)
    if not match:
        raise Unsupported(f".{kind}")
    width = int(match[2])
    if match[1] == "bf":
        return np.array([(bits & 0xFFFF) << 16], np.uint32).view(np.float32)[0]
    if match[1] == "f":
        return np.array([bits & (1 << width) - 1], f"u{width // 8}").view(FLOATS[width])[0]
    return Int.of(bits, width, match[1] == "i")


def truth(value: Any) -> bool:
    return bool(value.value) if isinstance(value, Int) else bool(value)


def whole(value: Any) -> int:
    if isinstance(value, Int):
        return value.value
    if isinstance(value, bool):
        return int(value)
    raise Unsupported("a float as an index")


def as_float(value: Any) -> Any:
    return np.float64(value.value) if isinstance(value, Int) else value


def binary(sign: str, a: Any, b: Any) -> Any:
    if isinstance(a, bool):
        a = Int(int(a), 1, False)
    if isinstance(b, bool):
        b = Int(int(b), 1, False)
    compare = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
               "==": operator.eq, "!=": operator.ne}  # fmt: skip
    if isinstance(a, Int) and isinstance(b, Int):
        if sign in compare:
            return compare[sign](a.value, b.value)
        if sign in ("<<", ">>"):
            if not 0 <= b.value < 64 + 64:
                raise Unsupported("a shift by more than all")
            shifted = a.value << b.value if sign == "<<" else a.value >> b.value
            return Int.of(shifted, max(a.width, 32), a.signed)
        width = max([x.width for x in (a, b) if not x.literal] or [max(a.width, b.width)])
        width = max(width, 32)
        signed = all(x.signed for x in (a, b) if not x.literal) if not (a.literal and b.literal) else True  # fmt: skip
        if sign == "/" or sign == "%":
            raise Unsupported("integer division")
        if sign == "**":
            return Int.of(a.value**b.value, 64, True)
        act = {"+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_,
               "|": operator.or_, "^": operator.xor}  # fmt: skip
        return Int.of(act[sign](a.value, b.value), width, signed)
    if sign == "**":
        base, power = np.float64(as_float(a)), np.float64(as_float(b))
        wide = np.ldexp(1.0, int(power)) if base == 2 and abs(power) < 5000 else base**power
        return np.float64(wide)
    if isinstance(a, Int) or isinstance(b, Int):
        kind = b.dtype if isinstance(a, Int) else a.dtype
        a, b = (kind.type(x.value) if isinstance(x, Int) else x for x in (a, b))
    if sign in compare:
        return bool(compare[sign](a, b))
    if sign not in "+-*/":
        raise Unsupported(sign)
    return {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[sign](a, b)  # fmt: skip


def literal(token: str) -> Any:
    if token.endswith("F") and not token.startswith("0x"):
        return np.float32(float(token[:-1]))
    if "." in token:
        return np.float64(float(token))
    digits = token.rstrip("UL")
    return Int(int(digits, 0), 64 if "LL" in token else 32, "U" not in token, "U" not in token)


def cast(value: Any, width: int, kind: str) -> Any:
    """`32'F(x)` and so on: a conversion, or for B a view of the bits."""
    if kind == "F" and isinstance(value, Int) and value.value >> width - 1 == 1:
        return typed(value.value, f"f{width}")  # a NaN, by its bits
    if kind == "F":
        return FLOATS[width](value.value if isinstance(value, Int) else value)
    if isinstance(value, bool):
        value = Int(int(value), 1, False)
    if kind == "B":
        return Int(bits_of(value)[0] & (1 << width) - 1, width, False)
    if not isinstance(value, Int):
        if math.isnan(value) or math.isinf(value):
            raise Unsupported("an integer of no number")
        value = Int(int(value), 128)
    return Int.of(value.value, width, kind == "I")


def converted(value: Any, kind: str) -> Any:
    """Return the value that an assignment to `.kind` stores."""
    match = re.fullmatch(r"(u|i|b|f)(\d+)", kind)
    if not match:
        raise Unsupported(f".{kind}")
    width = int(match[2])
    if isinstance(value, bool):
        value = Int(int(value), 1, False)
    if match[1] == "f":
        if isinstance(value, Int):
            return (
                typed(bits_of(value)[0], kind) if not value.literal else FLOATS[width](value.value)
            )
        return FLOATS[width](value)
    if not isinstance(value, Int):
        return value
    return Int.of(value.value, width, match[1] == "i")


CONSTANTS = {"INF": math.inf, "PI": math.pi, "NAN": math.nan, "OVERFLOW_F32": math.inf, "OVERFLOW_F64": math.inf,
              "UNDERFLOW_F32": 0.0, "UNDERFLOW_F64": 0.0}  # fmt: skip

# -- functions -------------------------------------------------------------------------------------


def _parts(x: Any) -> tuple[int, int, int]:
    """(sign, exponent field, mantissa field) of a float."""
    bits, width = bits_of(x)
    mantissa = {16: 10, 32: 23, 64: 52}[width]
    return (
        bits >> width - 1,
        bits >> mantissa & (1 << width - 1 - mantissa) - 1,
        bits & (1 << mantissa) - 1,
    )


def _fma(a: Any, b: Any, c: Any) -> Any:
    kind = type(a)
    if not all(map(np.isfinite, (a, b, c))):
        return kind(np.float64(a) * np.float64(b) + np.float64(c))
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return kind(a * b + c)
    return rounded(exact, kind)


def rounded(exact: Any, kind: Any) -> Any:
    """The float of type `kind` nearest to a fraction, ties to even."""
    digits, least = {np.float16: (11, -24), np.float32: (24, -149), np.float64: (53, -1074)}[kind]
    size = abs(exact)
    power = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** power > size:
        power -= 1
    unit = max(power - digits + 1, least)
    units = round(size / Fraction(2) ** unit)
    with np.errstate(all="ignore"):
        value = kind(math.ldexp(units, unit)) if power < 1024 else kind(math.inf)
    return -value if exact < 0 else value


def _saturated(low: int, high: int, width: int, signed: bool) -> Callable[[Any], Any]:
    def convert(x: Any) -> Any:
        x = as_float(x)
        if math.isnan(x):
            return Int(0, width, signed)
        return Int(int(min(max(float(x), low), high)) if math.isfinite(x) else (high if x > 0 else low), width, signed)  # fmt: skip

    return convert


def _integers() -> dict[str, Callable[..., Any]]:
    functions: dict[str, Callable[..., Any]] = {}
    for width in (8, 16, 32):
        for source in ("f16", "f32", "f64"):
            functions[f"{source}_to_u{width}"] = _saturated(0, 2**width - 1, width, False)
            top = 2 ** (width - 1)
            functions[f"{source}_to_i{width}"] = _saturated(-top, top - 1, width, True)
    for source in ("u16", "i16", "u32", "i32"):
        for size, kind in FLOATS.items():
            functions[f"{source}_to_f{size}"] = lambda x, kind=kind: kind(x.value)
    for source, width in (("u8", 8), ("u4", 4), ("i8", 8), ("i4", 4), ("i16", 16), ("u16", 16)):
        signed = source[0] == "i"
        functions[f"{source}_to_{source[0]}32"] = lambda x, w=width, s=signed: Int(
            Int.of(x.value, w, s).value, 32, s
        )
    for source in ("f16", "f32", "f64"):
        for size, kind in FLOATS.items():
            functions[f"{source}_to_f{size}"] = lambda x, kind=kind: kind(as_float(x))
    functions["u32_to_u16"] = lambda x: Int(min(x.value, 0xFFFF), 16, False)
    functions["i32_to_i16"] = lambda x: Int(min(max(x.value, -0x8000), 0x7FFF), 16, True)
    return functions


def _extreme(pick: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: pick(xs, key=lambda x: x.value if isinstance(x, Int) else x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": lambda x: Int(abs(x.value), x.width, x.signed) if isinstance(x, Int) else abs(x),
    "isNAN": lambda x: bool(np.isnan(as_float(x))),
    "isQuietNAN": lambda x: bool(np.isnan(x)),
    "isSignalNAN": lambda x: False,  # none among the operands
    "isINF": lambda x: bool(np.isinf(x)),
    "cvtToQuietNAN": lambda x: x,
    "sign": lambda x: Int(_parts(x)[0], 1, False),
    "exponent": lambda x: Int(_parts(x)[1], 32, True),
    "mantissa": lambda x: type(x)(np.frexp(x)[0]),
    "signext": lambda x: Int(Int.of(x.value, x.width, True).value, 64, True),
    "signext_from_bit": lambda x, n: Int.of(
        Int.of(x.value, n.value, True).value if n.value else 0, x.width, x.signed
    ),  # fmt: skip
    "fma": _fma,
    "trunc": np.trunc,
    "floor": np.floor,
    "fract": lambda x: x - np.floor(x),
    "isEven": lambda x: bool(np.float64(x) % 2 == 0),
    "sqrt": lambda x: np.sqrt(np.float64(x)),
    "pow": lambda x, y: np.float64(as_float(x)) ** np.float64(as_float(y)),
    "log2": lambda x: np.log2(np.float64(x)),
    "ldexp": lambda x, n: np.ldexp(x, n.value),
    "bf16_to_f32": lambda x: typed(bits_of(x)[0], "bf16") if isinstance(x, Int) else x,
    "LT_NEG_ZERO": lambda a, b: bool(
        a < b or (a == 0 and b == 0 and _parts(a)[0] and not _parts(b)[0])
    ),  # fmt: skip
    "GT_NEG_ZERO": lambda a, b: bool(
        a > b or (a == 0 and b == 0 and _parts(b)[0] and not _parts(a)[0])
    ),  # fmt: skip
    "SAT8": lambda x: Int(min(max(x.value, 0), 255), 8, False),
    **_integers(),
}
