"""Conversions: PTX ISA 9.7.9.21, `cvt`."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from gluon_emu.ptx.floats import least_of
from gluon_emu.ptx.numbers import FORMATS, encode, flushed, rounded, sum_to_odd, uint
from gluon_emu.ptx.program import (
    TYPES,
    Call,
    Step,
    Type,
    numbers,
    opcode,
    packed,
)

__all__: list[str] = []

_WHOLE: dict[str, Callable[..., np.ndarray]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil
}  # fmt: skip


@opcode("cvt")
def cvt(call: Call) -> Step:
    if call.flag("pack"):
        return _packs(call)
    mode = call.one_of("rn", "rz", "rm", "rp", "rna", *_WHOLE)
    if "rs" in call.left:
        raise call.refuse("`.rs`, a rounding by random bits, is not simulated")
    ftz, saturate = call.flag("ftz"), call.flag("sat")
    finite, relu = call.flag("satfinite"), call.flag("relu")
    result, source = call.take_types(2)
    if "b" in (result.kind, source.kind) or "p" in (result.kind, source.kind):
        raise call.refuse("`cvt` is between numbers")
    if result.lanes > 1 or source.lanes > 1:
        return _pairs(call, result, source, mode, finite, relu)
    whole = result.kind in "us"
    call.count(2)
    if source.kind in "us":
        if whole:
            return _one(call, result, source, lambda x: _clipped(x, source, result, saturate))
        if mode is None or mode in _WHOLE or mode == "rna":
            raise call.refuse("an integer becomes a float by .rn, .rz, .rm or .rp")

        def to_float(x: np.ndarray) -> np.ndarray:
            return _finished(_as_float(x, result, mode or "rn"), result, saturate, relu, ftz)

        return _one(call, result, source, to_float)
    flushes = ftz and source.element == "f32"

    def wide(raw: np.ndarray) -> np.ndarray:
        (x,) = numbers(raw, source)
        return flushed(x, least_of("f32")) if flushes else x

    if whole:
        if mode not in _WHOLE:
            raise call.refuse("a float becomes an integer by .rni, .rzi, .rmi or .rpi")
        return _one(call, result, source, lambda raw: _integral(wide(raw), result, source, mode))
    narrows = result.bits < source.bits or result.element in ("bf16", "tf32", "f16")
    # ptxas takes these without a rounding, and emits the instruction that .rn has.
    if mode is None and {source.element, result.element} == {"f16", "bf16"}:
        narrows = False
    if narrows and result.element != source.element and (mode is None or mode in _WHOLE):
        raise call.refuse(f"a float becomes `.{result.name}` by a rounding such as .rn")

    if result.element == source.element and mode in ("rn", "rz", "rm", "rp", "rna"):
        raise call.refuse(f"`.{result.name}` to itself is rounded to integers alone")

    def between(raw: np.ndarray) -> np.ndarray:
        x = wide(raw)
        nan = np.isnan(x)
        if mode in _WHOLE:
            x = np.copysign(_WHOLE[mode](x), x)
        elif result.element != "f64":
            x = rounded(x, result.element, mode or "rn", finite)
        converted = _finished(x, result, saturate, relu, ftz)
        if kept is None or saturate or not nan.any():
            return converted
        plain = raw.view(uint(source.bits))
        return np.where(nan, kept(plain, finite), converted.view(uint(result.bits))).view(
            result.dtype
        )

    kept = _KEPT.get((source.element, result.element, mode == "rna"))
    return _one(call, result, source, between)


# ---- NaN: the ISA leaves open which one comes out. Most conversions have one for all; of these some
# bits stay, as ptxas and the GPU make it.


def _shorter(bits: int, digits: int) -> Callable[[np.ndarray, bool], np.ndarray]:
    """Return the NaN of f64 as a float of `bits` with a fraction of `digits`: the sign, and the bits that fit. It is quiet."""
    quiet = ((1 << bits - 1) - 1) >> digits - 1 << digits - 1
    room = (1 << digits - 1) - 1

    def kept(raw: np.ndarray, finite: bool) -> np.ndarray:
        sign = raw >> np.uint64(63) << np.uint64(bits - 1)
        payload = raw >> np.uint64(52 - digits) & np.uint64(room)
        return np.asarray((sign | np.uint64(quiet) | payload).astype(uint(bits)))

    return kept


def _longer(raw: np.ndarray, finite: bool) -> np.ndarray:
    """Convert bf16 to f32: a shift."""
    return np.asarray(raw.astype(np.uint32) << np.uint32(16))


def _wider(bits: int, digits: int) -> Callable[[np.ndarray, bool], np.ndarray]:
    """Return the NaN of a float of `bits` with a fraction of `digits` as one of f64. It is quiet."""

    def kept(raw: np.ndarray, finite: bool) -> np.ndarray:
        wide = raw.astype(np.uint64)
        sign = wide >> np.uint64(bits - 1) << np.uint64(63)
        payload = (wide & np.uint64((1 << digits) - 1)) << np.uint64(52 - digits)
        return np.asarray(sign | np.uint64(0x7FF8000000000000) | payload)

    return kept


def _cut(raw: np.ndarray, finite: bool) -> np.ndarray:
    """Convert to tf32 by .rna: the low bits are cut off, after which it may be an infinity; .satfinite takes
    one from the rest."""
    return np.asarray((raw & np.uint32(0xFFFFE000)) - np.uint32(0x2000 * finite))


_KEPT: dict[tuple[str, str, bool], Callable[[np.ndarray, bool], np.ndarray]] = {
    ("f64", "f32", False): _shorter(32, 23),
    ("f64", "f16", False): _shorter(16, 10),
    ("f64", "bf16", False): _shorter(16, 7),
    ("f16", "f64", False): _wider(16, 10),
    ("bf16", "f64", False): _wider(16, 7),
    ("bf16", "f32", False): _longer,
    ("f32", "tf32", True): _cut,
}


def _one(call: Call, result: Type, source: Type, fn: Callable[..., Any]) -> Step:
    d, a = call.operands
    return call.step([(d, result)], [(a, source)], fn, wider=True)


def _finished(x: np.ndarray, result: Type, saturate: bool, relu: bool, ftz: bool) -> np.ndarray:
    if ftz and result.element == "f32":
        x = flushed(x, least_of("f32"))
    if saturate:
        x = np.where(np.isnan(x), 0.0, np.clip(x, 0.0, 1.0)) + 0.0
    if relu:
        x = np.where(x <= 0, 0.0, x)
    return encode(x, result.element).view(result.dtype)


def _clipped(x: np.ndarray, source: Type, result: Type, saturate: bool) -> np.ndarray:
    if saturate:
        to, own = np.iinfo(result.dtype), np.iinfo(source.dtype)
        x = np.clip(x, max(int(to.min), int(own.min)), min(int(to.max), int(own.max)))
    return x.astype(result.dtype)


def _as_float(x: np.ndarray, result: Type, mode: str) -> np.ndarray:
    """Return an integer rounded to the result's precision, as float64."""
    if x.dtype.itemsize < 8:
        exact = x.astype(np.float64)
        return exact if result.element == "f64" else rounded(exact, result.element, mode)
    low = (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64)
    high = (x >> x.dtype.type(32)).astype(np.float64) * 2.0**32
    if result.element != "f64":
        return rounded(sum_to_odd(high, low), result.element, mode)
    near = high + low
    error = low - (near - high)
    if mode == "rn":
        return np.asarray(near)
    down = (error < 0) & ((mode == "rm") | ((mode == "rz") & (near > 0)))
    up = (error > 0) & ((mode == "rp") | ((mode == "rz") & (near < 0)))
    near = np.where(down, np.nextafter(near, -np.inf), near)
    return np.asarray(np.where(up, np.nextafter(near, np.inf), near))


def _integral(x: np.ndarray, result: Type, source: Type, mode: str) -> np.ndarray:
    """Return the nearest integer that there is. NaN is 0, or among 64 bits the highest of the result's."""
    whole = _WHOLE[mode](x)
    info = np.iinfo(result.dtype)
    low, high = float(info.min), float(info.max)
    inside = (whole > low) & (whole < high)
    integral = np.where(inside, whole, 0.0).astype(result.dtype)
    integral = np.where(whole >= high, result.dtype.type(info.max), integral)
    integral = np.where(whole <= low, result.dtype.type(info.min), integral)
    nan = 0
    if source.bits == 64 or result.bits == 64:
        nan = info.min if result.kind == "s" else 1 << (result.bits - 1)
    return np.where(np.isnan(x), result.dtype.type(nan), integral)


# ---- two at a time -----------------------------------------------------------------------------


def _pairs(
    call: Call, result: Type, source: Type, mode: str | None, finite: bool, relu: bool
) -> Step:
    """Pairs: of two float32, of which the first becomes the upper element, or of another pair."""
    narrow = result.element
    if result.lanes == 1 or narrow in ("f32", "s16", "u16") or mode in (None, "rna", *_WHOLE):
        raise call.refuse(f"`cvt` from `.{source.name}` to `.{result.name}` is not known")
    small = narrow not in ("f16", "bf16")
    if small and not finite:
        raise call.refuse(f"`.{result.name}` wants `.satfinite`")
    if (narrow == "ue8m0") != (mode in ("rz", "rp")) and small:
        raise call.refuse(f"`.{mode}` to `.{result.name}` is not known")

    def lane(x: np.ndarray) -> np.ndarray:
        if narrow == "ue8m0":  # of magnitudes; zero is the smallest there is
            narrowed = rounded(np.abs(x), narrow, mode or "rn", True)
            return encode(np.maximum(narrowed, 2.0**-127), narrow)
        narrowed = rounded(x, narrow, mode or "rn", finite)
        if FORMATS[narrow].nan is None:
            narrowed = np.where(np.isnan(x), FORMATS[narrow].most, narrowed)
        if relu:
            narrowed = np.where(narrowed <= 0, 0.0, narrowed)
        return encode(narrowed, narrow)

    d = call.operands[0]
    if source.name == "f32":
        call.count(3)
        _, upper, lower = call.operands

        def two(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return _joined([lane(b.astype(np.float64)), lane(a.astype(np.float64))], result)

        return call.step([(d, result)], [(upper, source), (lower, source)], two)
    call.count(2)
    if source.lanes != result.lanes:
        raise call.refuse(f"`cvt` from `.{source.name}` to `.{result.name}` is not known")
    return call.step(
        [(d, result)],
        [(call.operands[1], source)],
        lambda raw: _joined([lane(x) for x in _apart(raw, source)], result),
    )


def _apart(raw: np.ndarray, type: Type) -> list[np.ndarray]:
    if type.bits == 8:  # two of four bits
        from_four = Type("", 8, "h", 1, type.element)
        return [
            numbers(raw & np.uint8(15), from_four)[0],
            numbers(raw >> np.uint8(4), from_four)[0],
        ]
    return numbers(raw, type)


def _joined(lanes: list[np.ndarray], type: Type) -> np.ndarray:
    if type.bits == 8:
        joined: np.ndarray = lanes[0] | (lanes[1] << np.uint8(4))
        return joined
    return packed(lanes, type)


def _packs(call: Call) -> Step:
    """cvt.pack.sat: two integers, saturated, next to each other; of narrow ones below a third."""
    saturates = call.flag("sat")
    result = call.one_of(*(f"{kind}{bits}" for kind in "us" for bits in (2, 4, 8, 16)))
    source, third = call.flag("s32"), call.flag("b32")
    if not saturates or result is None or not source or call.left:
        raise call.refuse("`cvt.pack` of these types is not known")
    s32, b32 = TYPES["s32"], TYPES["b32"]
    signed, bits = result[0] == "s", int(result[1:])
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def run(a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> np.ndarray:
        upper, lower = (
            np.clip(x, least, most).astype(np.int32).view(np.uint32) & np.uint32((1 << bits) - 1)
            for x in (a, b)
        )
        word: Any = lower | (upper << np.uint32(bits))
        if c:
            word = word | (c[0] << np.uint32(2 * bits))
        return np.asarray(word)

    return call.plain(b32, [s32, s32] + [b32] * third, run)
