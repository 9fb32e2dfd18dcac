"""Arithmetic on integers and bits: PTX ISA 9.7.1, 9.7.2, 9.7.8."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from gluon_emu.ptx import floats
from gluon_emu.ptx.numbers import uint
from gluon_emu.ptx.program import (
    CARRY,
    TYPES,
    Call,
    Step,
    Type,
    lanes_of,
    opcode,
    packed,
)
from gluon_emu.ptx.text import Immediate, Pair, Register

__all__: list[str] = []

_CARRY = Register(CARRY)
_PRED, _U32 = TYPES["pred"], TYPES["u32"]


def _integer(call: Call) -> Type:
    type = call.type()
    if type.kind not in "us" or type.bits < 16:
        raise call.unknown_type(type)
    return type


def _wide(type: Type) -> Type:
    return TYPES[f"{type.kind}{type.bits * 2}"]


def high_product(a: np.ndarray, b: np.ndarray, type: Type) -> np.ndarray:
    """Return the upper half of a product."""
    if type.bits < 64:
        wide = _wide(type).dtype
        shift = wide.type(type.bits)
        return np.asarray(((a.astype(wide) * b.astype(wide)) >> shift).astype(type.dtype))
    x, y = a.view(np.uint64), b.view(np.uint64)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x1, x0, y1, y0 = x >> half, x & low, y >> half, y & low
    middle = x1 * y0 + ((x0 * y0) >> half)
    other = x0 * y1 + (middle & low)
    high = x1 * y1 + (middle >> half) + (other >> half)
    if type.kind == "s":
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return np.asarray(high).view(type.dtype)


def _piece(call: Call, type: Type) -> tuple[Callable[..., np.ndarray], Type]:
    """Which part of a product `.lo`, `.hi`, `.wide` ask for."""
    part = call.part
    if part == "wide":
        if type.bits == 64:
            raise call.unknown_type(type)
        wide = _wide(type)
        return lambda a, b: a.astype(wide.dtype) * b.astype(wide.dtype), wide
    if part == "hi":
        return lambda a, b: high_product(a, b, type), type
    if part == "lo":
        return lambda a, b: a * b, type
    raise call.refuse(f"`{call.name}` of integers is `.lo`, `.hi` or `.wide`")


def _added(a: np.ndarray, b: np.ndarray, carry: Any, type: Type) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of two and a carry, as unsigned integers, and the carry out."""
    x, y = a.view(uint(type.bits)), b.view(uint(type.bits))
    first = x + y
    out = first < x
    if carry is None:
        return first, out
    total = first + carry.astype(first.dtype)
    return total, out | (total < first)


@opcode("add", "sub", "addc", "subc")
def add(call: Call) -> Step:
    if floats.is_float(call):
        return floats.float_arithmetic(call)
    sets, saturate = call.flag("cc"), call.flag("sat")
    takes = call.name.endswith("c")
    call.count(3)
    d, a, b = call.operands
    packs = [m for m in call.left if m in ("u16x2", "s16x2")]
    if packs:
        return _by_halves(call, call.type(), np.add if call.name == "add" else np.subtract)
    type = _integer(call)
    less = call.name.startswith("sub")
    if saturate:
        if type.name != "s32":
            raise call.refuse("`.sat` is for `.s32`")

        def bounded(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            wide = x.astype(np.int64) + (-y.astype(np.int64) if less else y.astype(np.int64))
            return np.asarray(np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32))

        return call.plain(type, [type, type], bounded)
    if not sets and not takes:
        return call.plain(type, [type, type], np.subtract if less else np.add)

    def run(x: np.ndarray, y: np.ndarray, *carry: np.ndarray) -> Any:
        # a - b is a + ~b + 1, and the flag is the carry of that sum: `addc` behind `sub.cc` sees it, too.
        coming = carry[0] if carry else np.full((1, 1), less)
        total, out = _added(x, ~y if less else y, coming, type)
        return (total.view(type.dtype), out) if sets else total.view(type.dtype)

    results = [(d, type), (_CARRY, _PRED)] if sets else [(d, type)]
    return call.step(results, [(a, type), (b, type)] + [(_CARRY, _PRED)] * takes, run)


def _by_halves(call: Call, type: Type, fn: Callable[..., np.ndarray]) -> Step:
    dtype = np.int16 if type.element == "s16" else np.uint16

    def run(*raw: np.ndarray) -> np.ndarray:
        lanes = zip(*(lanes_of(r, type) for r in raw))
        halves = [fn(*(x.view(dtype) for x in lane)).view(np.uint16) for lane in lanes]
        return packed(halves, type)

    return call.plain(type, [type, type], run)


@opcode("mul")
def mul(call: Call) -> Step:
    if floats.is_float(call):
        return floats.float_arithmetic(call)
    call.part = call.one_of("lo", "hi", "wide")
    type = _integer(call)
    fn, result = _piece(call, type)
    return call.plain(result, [type, type], fn)


@opcode("mad", "madc")
def mad(call: Call) -> Step:
    if floats.is_float(call):
        return floats.float_arithmetic(call)
    call.part = call.one_of("lo", "hi", "wide")
    sets, saturate, takes = call.flag("cc"), call.flag("sat"), call.name == "madc"
    type = _integer(call)
    fn, result = _piece(call, type)
    call.count(4)
    d, a, b, c = call.operands

    def run(x: np.ndarray, y: np.ndarray, z: np.ndarray, *carry: np.ndarray) -> Any:
        product = np.asarray(fn(x, y))
        if saturate:
            total = product.astype(np.int64) + z
            return np.clip(total, -(2**31), 2**31 - 1).astype(np.int32)
        summed, out = _added(product, z, carry[0] if carry else None, result)
        return (summed.view(result.dtype), out) if sets else summed.view(result.dtype)

    if saturate and (type.name != "s32" or call.part != "hi" or sets or takes):
        raise call.refuse("`.sat` is for `mad.hi.sat.s32`")
    results = [(d, result), (_CARRY, _PRED)] if sets else [(d, result)]
    arguments = [(a, type), (b, type), (c, result)] + [(_CARRY, _PRED)] * takes
    return call.step(results, arguments, run)


@opcode("mul24", "mad24")
def mul24(call: Call) -> Step:
    high = call.one_of("lo", "hi") == "hi"
    saturates = call.name == "mad24" and high and call.flag("sat")
    type = _integer(call)
    if type.bits != 32 or saturates and type.kind != "s":
        raise call.unknown_type(type)

    def low(x: np.ndarray) -> np.ndarray:
        wide = (x.astype(np.int64) & 0xFFFFFF).astype(np.int64)
        return np.where(wide >> 23, wide - (1 << 24), wide) if type.kind == "s" else wide

    def run(a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> np.ndarray:
        product = (low(a) * low(b)) >> (16 if high else 0)
        total = product + c[0].astype(np.int64) if c else product
        if saturates:
            total = np.clip(total, -(2**31), 2**31 - 1)
        return np.asarray(total.astype(np.uint32).view(type.dtype))

    return call.plain(type, [type] * (3 if call.name == "mad24" else 2), run)


@opcode("div")
def div(call: Call) -> Step:
    """Divide toward zero; all ones where the divisor is zero, as on GPUs: the ISA leaves it open."""
    if floats.is_float(call):
        return floats.divide(call)
    type = _integer(call)
    return call.plain(type, [type, type], _quotient)


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    whole = a // safe
    if a.dtype.kind == "i":
        whole = whole + ((whole * safe != a) & ((a < 0) != (safe < 0)))
    return np.where(zero, ~np.zeros_like(whole), whole).astype(a.dtype)


@opcode("rem")
def rem(call: Call) -> Step:
    """Return the remainder with the dividend's sign; all ones where the divisor is zero, as on GPUs: the ISA leaves it open."""
    type = _integer(call)

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        rest = a - _quotient(a, b) * b
        return np.asarray(np.where(b == 0, ~np.zeros_like(rest), rest))

    return call.plain(type, [type, type], run)


@opcode("sad")
def sad(call: Call) -> Step:
    type = _integer(call)

    def run(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return np.asarray(np.where(a < b, b - a, a - b) + c)

    return call.plain(type, [type] * 3, run)


@opcode("abs", "neg")
def sign(call: Call) -> Step:
    if floats.is_float(call):
        return floats.float_sign(call)
    type = _integer(call)
    if type.kind != "s":
        raise call.unknown_type(type)
    return call.plain(type, [type], np.abs if call.name == "abs" else np.negative)


@opcode("min", "max")
def extreme(call: Call) -> Step:
    if floats.is_float(call):
        return floats.float_extreme(call)
    relu = call.flag("relu")
    pick = np.minimum if call.name == "min" else np.maximum

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        extreme: np.ndarray = pick(a, b)
        return np.maximum(extreme, extreme.dtype.type(0)) if relu else extreme

    if any(m in ("u16x2", "s16x2") for m in call.left):
        return _by_halves(call, call.type(), run)
    type = _integer(call)
    return call.plain(type, [type, type], run)


@opcode("dp4a", "dp2a")
def dot(call: Call) -> Step:
    second = call.name == "dp2a" and call.one_of("lo", "hi")
    kinds = [t.kind for t in call.take_types(2)]
    if len(call.statement.modifiers) - bool(second) != 2 or call.name == "dp2a" and not second:
        raise call.refuse(f"`{call.name}` of this kind is not known")
    step = 8 if call.name == "dp4a" else 16

    def element(x: np.ndarray, shift: int, size: int, kind: str) -> np.ndarray:
        raw = (x >> np.uint32(shift)).astype(uint(size))
        return np.asarray(
            (raw.view(np.dtype(f"i{size // 8}")) if kind == "s" else raw).astype(np.int64)
        )

    def run(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        total: Any = c.astype(np.int64)
        for i in range(32 // step):
            shift = i * 8 + (16 if second == "hi" else 0)
            total = total + element(a, i * step, step, kinds[0]) * element(b, shift, 8, kinds[1])
        return np.asarray(total).astype(np.uint32)

    b32 = TYPES["b32"]
    return call.plain(b32, [b32, b32, b32], run)


# ---- bits --------------------------------------------------------------------------------------


def _bitwise(fn: Callable[..., Any], arity: int) -> Callable[[Call], Step]:
    def make(call: Call) -> Step:
        type = call.type()
        if type.kind not in "bp" or type.bits == 8:
            raise call.unknown_type(type)
        return call.plain(type, [type] * arity, fn)

    return make


opcode("and")(_bitwise(np.bitwise_and, 2))
opcode("or")(_bitwise(np.bitwise_or, 2))
opcode("xor")(_bitwise(np.bitwise_xor, 2))
opcode("not")(_bitwise(np.invert, 1))
opcode("cnot")(_bitwise(lambda a: (a == 0).astype(a.dtype), 1))


@opcode("shl", "shr")
def shift(call: Call) -> Step:
    type = call.type()
    if type.kind not in "bus" or type.bits == 8:
        raise call.unknown_type(type)
    limit = np.uint32(type.bits - 1)

    def run(a: np.ndarray, count: np.ndarray) -> np.ndarray:
        by = np.minimum(count, limit).astype(a.dtype)
        over = count > limit
        if call.name == "shl":
            return np.asarray(np.where(over, a.dtype.type(0), a << by))
        far = a >> by
        return np.asarray(far if type.kind == "s" else np.where(over, a.dtype.type(0), far))

    return call.plain(type, [type, _U32], run)


@opcode("shf")
def funnel(call: Call) -> Step:
    left = call.one_of("l", "r") == "l"
    wraps = call.one_of("clamp", "wrap") == "wrap"
    b32 = call.type()
    if b32.name != "b32":
        raise call.unknown_type(b32)

    def run(low: np.ndarray, high: np.ndarray, count: np.ndarray) -> np.ndarray:
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        by = (count & np.uint32(31) if wraps else np.minimum(count, np.uint32(32))).astype(
            np.uint64
        )
        if left:
            return np.asarray((both << by) >> np.uint64(32)).astype(np.uint32)
        return np.asarray(both >> by).astype(np.uint32)

    return call.plain(b32, [b32, b32, _U32], run)


def popcount(x: np.ndarray) -> np.ndarray:
    table = np.array([bin(i).count("1") for i in range(256)], np.uint32)
    total: np.ndarray = table[np.ascontiguousarray(x)[..., None].view(np.uint8)].sum(-1)
    return total.astype(np.uint32)


def _highest(x: np.ndarray) -> np.ndarray:
    """Return the number of bits of a number."""
    filled = x
    by = 1
    while by < x.dtype.itemsize * 8:
        filled = filled | (filled >> x.dtype.type(by))
        by *= 2
    return popcount(filled)


@opcode("popc", "clz", "brev")
def count_bits(call: Call) -> Step:
    type = call.type()
    if type.name not in ("b32", "b64"):
        raise call.unknown_type(type)
    if call.name == "brev":
        return call.plain(type, [type], lambda x: _reversed(x, type.bits))
    if call.name == "popc":
        return call.plain(_U32, [type], popcount)
    return call.plain(_U32, [type], lambda x: np.uint32(type.bits) - _highest(x))


def _reversed(x: np.ndarray, bits: int) -> np.ndarray:
    kind = x.dtype.type
    by, masks = bits // 2, (1 << bits) - 1
    while by:
        masks ^= (masks << by) & ((1 << bits) - 1)
        x = ((x >> kind(by)) & kind(masks)) | ((x & kind(masks)) << kind(by))
        by //= 2
    return x


@opcode("bfind")
def bfind(call: Call) -> Step:
    amount = call.flag("shiftamt")
    type = _integer(call)

    def run(x: np.ndarray) -> np.ndarray:
        raw = (
            (x ^ (x >> x.dtype.type(type.bits - 1))).view(uint(type.bits))
            if type.kind == "s"
            else x
        )
        position = _highest(raw) - np.uint32(1)  # none found is all ones
        return np.asarray(
            np.where(position == 0xFFFFFFFF, position, np.uint32(type.bits - 1) - position)
            if amount
            else position
        )

    return call.plain(_U32, [type], run)


@opcode("fns")
def fns(call: Call) -> Step:
    """Find the bit that is so many set bits from a place, down for negative numbers."""
    if call.type().name != "b32":
        raise call.refuse("`fns` is of .b32")

    def run(mask: np.ndarray, base: np.ndarray, offset: np.ndarray) -> np.ndarray:
        mask, base, offset = np.broadcast_arrays(mask, base, offset)
        place = np.arange(32, dtype=np.int64)
        ones = (mask[..., None] >> place.astype(np.uint32) & np.uint32(1)) != 0
        start, far = base.astype(np.int64)[..., None], offset.astype(np.int64)[..., None]
        up = np.cumsum(ones & (place >= start), -1)
        down = np.cumsum((ones & (place <= start))[..., ::-1], -1)[..., ::-1]
        rank = np.where(far > 0, up, down)
        hit = ones & (rank == np.abs(far)) & np.where(far > 0, place >= start, place <= start)
        hit = np.where(far == 0, ones & (place == start), hit)
        hit &= (start >= 0) & (start < 32)
        return np.where(hit.any(-1), hit.argmax(-1), 0xFFFFFFFF).astype(np.uint32)

    return call.plain(_U32, [TYPES["b32"], TYPES["s32"], TYPES["s32"]], run)


def _place(x: np.ndarray, bits: int) -> np.ndarray:
    """Return the start or the length of a field.

    The ISA takes the lowest eight bits. For 64-bit fields ptxas emits shifts by the whole register.
    """
    wide: np.ndarray = x.astype(np.int64)
    return wide & 255 if bits == 32 else wide


@opcode("bfe")
def bfe(call: Call) -> Step:
    type = _integer(call)
    bits = type.bits

    def run(a: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        raw = a.view(np.dtype(f"u{bits // 8}")).astype(np.uint64)
        start, length = _place(start, bits), _place(length, bits)
        kept = np.minimum(length, np.maximum(bits - start, 0))
        shift = np.minimum(start, 63).astype(np.uint64)
        mask = _ones(kept)
        field = np.where(start < bits, raw >> shift, np.uint64(0)) & mask
        if type.kind == "s":
            top = np.minimum(start + length - 1, bits - 1).clip(0)
            negative = ((raw >> top.astype(np.uint64)) & np.uint64(1)) != 0
            field = np.where(negative & (length > 0), field | ~mask, field)
        return np.asarray(field).astype(np.dtype(f"u{bits // 8}")).view(type.dtype)

    return call.plain(type, [type, _U32, _U32], run)


def _ones(count: np.ndarray) -> np.ndarray:
    """So many low bits of 64."""
    some = np.uint64(0xFFFFFFFFFFFFFFFF) >> (64 - count).clip(0, 63).astype(np.uint64)
    return np.asarray(np.where(count > 0, some, np.uint64(0)))


@opcode("bfi")
def bfi(call: Call) -> Step:
    type = call.type()
    if type.name not in ("b32", "b64"):
        raise call.unknown_type(type)

    def run(a: np.ndarray, b: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        start, length = _place(start, type.bits), _place(length, type.bits)
        kept = np.minimum(length, np.maximum(type.bits - start, 0))
        shift = np.minimum(start, 63).astype(np.uint64)
        mask = _ones(kept) << shift
        inserted = (b.astype(np.uint64) & ~mask) | ((a.astype(np.uint64) << shift) & mask)
        return np.asarray(inserted.astype(type.dtype))

    return call.plain(type, [type, type, _U32, _U32], run)


@opcode("bmsk")
def bmsk(call: Call) -> Step:
    clamps = call.one_of("clamp", "wrap") == "clamp"
    type = call.type()

    def run(start: np.ndarray, length: np.ndarray) -> np.ndarray:
        start, length = (x.astype(np.int64) for x in (start, length))
        if not clamps:
            start, length = start & 31, length & 31
        length = np.minimum(length, 32)
        mask = np.where(
            start < 32, _ones(length) << start.clip(0, 32).astype(np.uint64), np.uint64(0)
        )
        return mask.astype(np.uint32)

    return call.plain(type, [type, type], run)


@opcode("szext")
def szext(call: Call) -> Step:
    clamps = call.one_of("clamp", "wrap") == "clamp"
    type = _integer(call)
    if type.bits != 32:
        raise call.unknown_type(type)

    def run(a: np.ndarray, count: np.ndarray) -> np.ndarray:
        n = np.minimum(count.astype(np.int64), 32) if clamps else count.astype(np.int64) & 31
        mask = _ones(n)
        low = a.view(np.uint32).astype(np.uint64) & mask
        if type.kind == "s":
            top = (low >> (n - 1).clip(0).astype(np.uint64)) & np.uint64(1)
            low = np.where((top != 0) & (n > 0), low | ~mask, low)
        return np.asarray(low.astype(np.uint32).view(type.dtype))

    return call.plain(type, [type, _U32], run)


@opcode("lop3")
def lop3(call: Call) -> Step:
    combine = call.one_of("and", "or")
    b32 = call.type()
    if b32.name != "b32":
        raise call.unknown_type(b32)
    call.count(6 if combine else 5)
    table = call.operands[4]
    if not isinstance(table, Immediate):
        raise call.refuse("the table of `lop3` is a number")
    lut = int(table.value)

    def run(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        result: Any = np.zeros((1, 1), np.uint32)
        for row in range(8):
            if lut >> row & 1:
                result = result | (
                    (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
                )
        return np.asarray(result)

    d = call.operands[0]
    arguments = [(o, b32) for o in call.operands[1:4]]
    if combine is None:
        return call.step([(d, b32)], arguments, run)
    if not isinstance(d, Pair):
        raise call.refuse(f"`lop3.{combine}` has two results, `d|p`")
    both = np.logical_or if combine == "or" else np.logical_and

    def with_predicate(
        a: np.ndarray, b: np.ndarray, c: np.ndarray, q: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        result = run(a, b, c)
        return result, both(result != 0, q)

    return call.step(
        [(d.first, b32), (d.second, _PRED)], [*arguments, (call.operands[5], _PRED)], with_predicate
    )


_PATTERNS: dict[str, tuple[tuple[int, ...], ...]] = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


@opcode("prmt")
def prmt(call: Call) -> Step:
    mode = next((m for m in call.left if m in _PATTERNS), None)
    if mode is not None:
        call.left.remove(mode)
    b32 = call.type()
    if b32.name != "b32":
        raise call.unknown_type(b32)

    def run(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        word: Any = np.zeros((1, 1), np.uint32)
        for i in range(4):
            if mode is None:
                nibble = (selector >> np.uint32(4 * i)) & np.uint32(15)
                byte_index, signs = nibble & np.uint32(7), nibble >> np.uint32(3)
            else:
                byte_index = np.array([p[i] for p in _PATTERNS[mode]], np.uint32)[
                    selector & np.uint32(3)
                ]
                signs = np.zeros((1, 1), np.uint32)
            byte = (
                (both >> (byte_index * np.uint32(8)).astype(np.uint64)) & np.uint64(255)
            ).astype(np.uint32)
            spread = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
            word = word | (np.where(signs != 0, spread, byte) << np.uint32(8 * i))
        return np.asarray(word)

    return call.plain(b32, [b32, b32, b32], run)
