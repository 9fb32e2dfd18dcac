"""Results of PTX instructions on one set of registers, in exact arithmetic of Python.

Registers are integers. Floats are fractions, rounded by `fit`; conversions of eight bits and fewer are
ml_dtypes'.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Callable, Optional

import ml_dtypes
import numpy as np

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


KINDS: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
for _name, _kind in (
    ("e2m3", "float6_e2m3fn"),
    ("e3m2", "float6_e3m2fn"),
    ("e2m1", "float4_e2m1fn"),
):
    if hasattr(ml_dtypes, _kind):
        KINDS[_name] = getattr(ml_dtypes, _kind)
_DIGITS = {
    "f16": (11, -14),
    "bf16": (8, -126),
    "f32": (24, -126),
    "tf32": (11, -126),
    "f64": (53, -1022),
}
_LARGEST = {"f16": 65504.0, "bf16": float(2**128 - 2**120), "f32": float(2**128 - 2**104),
            "tf32": float(2**128 - 2**117), "f64": float(np.finfo(np.float64).max)}  # fmt: skip
NAN = {
    "f16": 0x7FFF,
    "bf16": 0x7FFF,
    "f32": 0x7FFFFFFF,
    "tf32": 0x7FFFE000,
    "e4m3": 0x7F,
    "e5m2": 0x7F,
}


def number(bits: int, kind: str) -> float:
    dtype = np.dtype(KINDS["f32" if kind == "tf32" else kind])
    raw = np.array([bits], np.dtype(f"u{dtype.itemsize}"))
    return float(raw.view(dtype)[0])


def pattern(x: float, kind: str) -> int:
    """Return the bits of a number that the kind has."""
    if math.isnan(x) and kind in NAN:
        return NAN[kind]
    dtype = np.dtype(KINDS["f32" if kind == "tf32" else kind])
    return int(np.array([x]).astype(dtype).view(np.dtype(f"u{dtype.itemsize}"))[0])


def fit(exact: Fraction, kind: str, mode: str = "rn") -> float:
    """The float of a kind that a number becomes."""
    digits, least = _DIGITS[kind]
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length(), least) - 1
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    unit = Fraction(2) ** (max(exponent, least) - digits + 1)
    low = exact // unit
    rest = exact / unit - low
    up = {"rm": False, "rp": rest > 0, "rz": exact < 0 and rest > 0,
          "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1),
          "rna": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and exact > 0)}[mode]  # fmt: skip
    rounded = (low + up) * unit
    most = Fraction(_LARGEST[kind])
    if abs(rounded) > most:
        inward = mode == "rz" or (mode == "rm" and exact > 0) or (mode == "rp" and exact < 0)
        return (_LARGEST[kind] if inward else math.inf) * (1 if exact > 0 else -1)
    return float(rounded) if rounded else -0.0 if exact < 0 else 0.0


def flush(x: float, kind: str) -> float:
    return math.copysign(0.0, x) if abs(x) < 2.0 ** _DIGITS[kind][1] else x


def exactly(op: str, xs: list[float], mode: str) -> Any:
    """A fraction, or a float where there is none."""
    if op == "fma" and math.isinf(xs[2]) and math.isfinite(xs[0]) and math.isfinite(xs[1]):
        return xs[2]
    if (
        not all(map(math.isfinite, xs))
        or (op in ("div", "rcp") and xs[-1] == 0)
        or (op == "sqrt" and xs[0] <= 0)
    ):
        with np.errstate(all="ignore"):
            big = [np.float64(x) for x in xs]
            return float({"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
                          "fma": lambda a, b, c: a * b + c, "div": lambda a, b: a / b, "rcp": lambda a: 1 / a,
                          "sqrt": np.sqrt}[op](*big))  # fmt: skip
    q = [Fraction(x) for x in xs]
    if op == "sqrt":
        scale = 1 << 400
        root = math.isqrt(q[0].numerator * scale * scale // q[0].denominator)
        exact = Fraction(root, scale)
        return exact if exact * exact == q[0] else exact + Fraction(1, 4 * scale)
    exact = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
             "fma": lambda a, b, c: a * b + c, "div": lambda a, b: a / b, "rcp": lambda a: 1 / a}[op](*q)  # fmt: skip
    if exact == 0:
        terms = {"add": [xs[0], xs[-1]], "sub": [xs[0], -xs[-1]],
                 "fma": [math.copysign(1, xs[0]) * math.copysign(1, xs[min(1, len(xs) - 1)]), xs[-1]]}.get(op)  # fmt: skip
        if terms is None:
            return math.copysign(0.0, math.prod(math.copysign(1, x) for x in xs))
        if op == "fma" and xs[0] * xs[1] != 0 and xs[2] == 0:
            return None
        signs = {math.copysign(1, t) for t in terms}
        if len(signs) == 1:
            return math.copysign(0.0, signs.pop())
        return -0.0 if mode == "rm" else 0.0
    return exact


def arithmetic(
    op: str, kind: str, mode: str = "rn", ftz: bool = False, sat: bool = False, relu: bool = False
) -> Callable[..., int]:
    def run(*bits: int) -> int:
        xs = [number(b, kind) for b in bits]
        if ftz:
            xs = [flush(x, kind) for x in xs]
        value = exactly(op, xs, mode)
        x = fit(value, kind, mode) if isinstance(value, Fraction) else value
        if ftz:
            x = flush(x, kind)
        if sat:
            x = 0.0 if math.isnan(x) else min(max(x, 0.0), 1.0) + 0.0
        if relu and x <= 0:
            x = 0.0
        return pattern(x, kind)

    return run


def neg_or_abs(op: str, kind: str, ftz: bool = False) -> Callable[[int], int]:
    """neg, abs. Which NaN the ISA leaves open; GPUs make the one of sums."""
    top = 1 << (np.dtype(KINDS[kind]).itemsize * 8 - 1)

    def run(raw: int) -> int:
        if math.isnan(number(raw, kind)):
            return NAN[kind]
        if ftz:
            raw = pattern(flush(number(raw, kind), kind), kind)
        return raw ^ top if op == "neg" else raw & ~top

    return run


def lanes(size: int, count: int, fn: Callable[..., int]) -> Callable[..., int]:
    mask = (1 << size) - 1

    def run(*bits: int) -> int:
        return sum(
            (fn(*((b >> size * i) & mask for b in bits)) & mask) << size * i for i in range(count)
        )

    return run


def signed(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def integers(
    fn: Callable[..., int], bits: int, sign: bool, out: Optional[int] = None
) -> Callable[..., int]:
    return lambda *xs: (
        fn(*(signed(x, bits) if sign else x for x in xs)) & ((1 << (out or bits)) - 1)
    )


def toward_zero(a: int, b: int) -> int:
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


def extreme(kind: str, least: bool, nan: bool = False, ftz: bool = False) -> Callable[..., int]:
    def run(*bits: int) -> int:
        xs = [number(b, kind) for b in bits]
        if ftz:
            xs = [flush(x, kind) for x in xs]
        kept = [x for x in xs if not math.isnan(x)]
        if nan and len(kept) < len(xs) or not kept:
            return NAN[kind]
        return pattern((min if least else max)(kept, key=lambda x: (x, math.copysign(1, x))), kind)

    return run


def to_integer(mode: str, bits: int, sign: bool, source: str) -> Callable[[int], int]:
    def run(raw: int) -> int:
        x = number(raw, source)
        if math.isnan(x):
            return 1 << (bits - 1) if source == "f64" or bits == 64 else 0
        low = -(1 << (bits - 1)) if sign else 0
        high = (1 << (bits - sign)) - 1
        if math.isinf(x):
            return (high if x > 0 else low) & ((1 << bits) - 1)
        whole = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode](
            Fraction(x)
        )
        return min(max(whole, low), high) & ((1 << bits) - 1)

    return run


def small(kind: str, source: str = "f32", relu: bool = False) -> Callable[[int], int]:
    """To eight bits or fewer, saturated: the nearest that ml_dtypes has."""
    most = float(ml_dtypes.finfo(KINDS[kind]).max)

    def run(raw: int) -> int:
        x = number(raw, source)
        if math.isnan(x):
            return NAN.get(kind, pattern(most, kind) if kind not in NAN else 0)
        if relu and x <= 0:
            x = 0.0
        return pattern(min(max(x, -most), most), kind)

    return run


def widened(kind: str, target: str, size: int) -> Callable[[int], int]:
    return lambda raw: pattern(fit_all(number(raw & ((1 << size) - 1), kind), target), target)


def fit_all(x: float, kind: str, mode: str = "rn") -> float:
    return x if not math.isfinite(x) or x == 0 else fit(Fraction(x), kind, mode)


def convert(source: str, target: str, mode: str = "rn", **how: bool) -> Callable[[int], int]:
    def run(raw: int) -> int:
        x = number(raw, source)
        if how.get("ftz"):
            x = flush(x, source)
        x = fit_all(x, target, mode)
        if how.get("sat"):
            x = 0.0 if math.isnan(x) else min(max(x, 0.0), 1.0) + 0.0
        if how.get("finite") and math.isinf(x):
            x = math.copysign(_LARGEST[target], x)
        if how.get("relu") and x <= 0:
            x = 0.0
        if how.get("ftz") and target == "f32":
            x = flush(x, target)
        return pattern(x, target)

    return run


def keeping(
    fn: Callable[[int], int], source: str, kept: Callable[[int], int]
) -> Callable[[int], int]:
    """A conversion in which a NaN leaves something of itself. The ISA is silent; GPUs do it."""
    return lambda raw: kept(raw) if math.isnan(number(raw, source)) else fn(raw)


def both(fn: Callable[[int], int], size: int) -> Callable[[int, int], int]:
    """Two registers into one, the first on top."""
    return lambda a, b: (fn(a) << size) | fn(b)


def compare(op: str, kind: str, unordered: bool = False) -> Callable[[int, int], bool]:
    def run(a: int, b: int) -> bool:
        if kind[0] in "su":
            x, y = (signed(v, int(kind[1:])) if kind[0] == "s" else v for v in (a, b))
        else:
            x, y = number(a, kind), number(b, kind)
            if math.isnan(x) or math.isnan(y):
                return unordered
        return {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[
            op
        ]

    return run


def near(fn: Callable[..., float], kind: str, ftz: bool = False) -> Callable[..., int]:
    """A function of floats, rounded; NumPy's values at the ends of its domain."""

    def run(*bits: int) -> int:
        xs = [number(b, kind) for b in bits]
        if ftz:
            xs = [flush(x, kind) for x in xs]
        with np.errstate(all="ignore"):
            x = fit_all(float(fn(*(np.float64(x) for x in xs))), kind)
        return pattern(flush(x, kind) if ftz else x, kind)

    return run


def extreme64(a: int, b: int, least: bool) -> int:
    x, y = number(a, "f64"), number(b, "f64")
    if math.isnan(x) and math.isnan(y):
        return pattern(math.nan, "f64")
    kept = [v for v in (x, y) if not math.isnan(v)]
    return pattern((min if least else max)(kept, key=lambda v: (v, math.copysign(1, v))), "f64")


def xorsign(a: int, b: int, least: bool) -> int:
    extreme_value = extreme("f32", least)(a & ~(1 << 31), b & ~(1 << 31))
    return extreme_value if extreme_value == NAN["f32"] else extreme_value | ((a ^ b) & 1 << 31)


def words(x: int) -> tuple[int, int]:
    return x & M32, x >> 32 & M32


def byte(x: int, i: int, kind: str) -> int:
    return signed(x >> 8 * i, 8) if kind == "s" else x >> 8 * i & 255


def field(a: int, start: int, count: int, width: int, sign: bool) -> int:
    """Bit by bit, as the ISA has it."""
    top = width - 1
    spare = 0 if not sign or count == 0 else a >> min(start + count - 1, top) & 1
    word = 0
    for i in range(width):
        bit = a >> (start + i) & 1 if i < count and start + i <= top else spare
        word |= bit << i
    return word


def inserted(a: int, b: int, start: int, count: int, width: int) -> int:
    for i in range(min(count, width)):
        if start + i < width:
            b = b & ~(1 << start + i) | (a >> i & 1) << start + i
    return b


def looked_up(a: int, b: int, c: int, table: int) -> int:
    return sum(
        (table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i for i in range(32)
    )


def permuted(a: int, b: int, selector: int) -> int:
    selected = 0
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = (b << 32 | a) >> 8 * (nibble & 7) & 255
        selected |= (255 * (byte >> 7) if nibble & 8 else byte) << 8 * i
    return selected


def u8(x: int) -> int:
    return min(max(signed(x, 32), 0), 255)


def s16(x: int) -> int:
    return min(max(signed(x, 32), -(1 << 15)), (1 << 15) - 1) & 0xFFFF


def power(code: int) -> int:
    return 0x7FFF if code == 255 else pattern(2.0 ** (code - 127), "bf16")


def exponent(raw: int) -> int:
    """The power of two that is no smaller."""
    x = abs(number(raw, "f32"))
    if math.isnan(x):
        return 255
    if x == 0:
        return 0
    if math.isinf(x):
        return 254
    mantissa, exponent = math.frexp(x)
    return min(max(exponent - (mantissa == 0.5) + 127, 0), 254)


def whole(raw: int, kind: str, mode: str) -> int:
    x = number(raw, kind)
    if not math.isfinite(x):
        return pattern(x, kind)
    whole = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode](
        Fraction(x)
    )
    return pattern(math.copysign(float(whole), x), kind)
