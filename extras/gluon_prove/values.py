"""Scalars while a kernel is walked for all trip counts: numbers, numbers that stand for many, terms.

A number may stand for infinitely many: a loop's counter that is far enough from both ends looks the
same one period later. So a `Number` says by how much it changes when a counter, which it calls a
root, moves on by one period. Ops either keep that account exactly, or refuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, Callable, Optional, Union

__all__ = [
    "FREE",
    "CannotSay",
    "NeedsPrefix",
    "Number",
    "Term",
    "TimeIsOver",
    "apply",
    "common",
    "number",
    "reduced",
    "term",
    "wrap",
]

FREE = -1  # roots from here down are remainders of counters whose loops are over


class CannotSay(Exception):
    """The kernel is outside of the provable subset.

    Args:
        reason: why.
        loc: where.
        remedy: advice that may help.
    """

    def __init__(self, reason: str, loc: Any = None, remedy: str = ""):
        super().__init__(reason)
        self.reason = reason
        self.loc = loc
        self.remedy = remedy


class TimeIsOver(CannotSay):
    """It takes longer than it may."""

    def __init__(self) -> None:
        super().__init__("the time is over")


class NeedsPrefix(Exception):
    """A comparison tells counters apart that are to look the same: more first iterations are needed, or of
    remainders of counters (`FREE`), more of its first value."""

    def __init__(self, root: int):
        super().__init__(root)
        self.root = root


@dataclass(frozen=True)
class Number:
    """An integer that represents `value + k * change` for every k >= 0, for each of its roots.

    Args:
        value: the one that is walked.
        changes: (root, its increment per period), sorted; none is 0.
    """

    value: int
    changes: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Term:
    """An unknown scalar, as an expression of its operands.

    Args:
        name: "arg", "program", "programs", "induction", "trips", "flat", "data", "memory", "pointer", "unknown", or an op's name.
        args: positions, terms and integers.
    """

    name: str
    args: tuple[Any, ...] = ()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Term) or hash(self) != hash(other) or self.name != other.name:
            return False
        if self.args is not other.args:
            if self.args != other.args:
                return False
            object.__setattr__(self, "args", other.args)  # equal terms are compared once
        return True

    def __hash__(self) -> int:
        known: Optional[int] = self.__dict__.get("_hash")
        if known is None:
            known = hash((self.name, self.args))
            object.__setattr__(self, "_hash", known)
        return known

    @property
    def text(self) -> str:
        """Return the term as text, to sort by."""
        known: Optional[str] = self.__dict__.get("_text")
        if known is None:
            known = str(self)
            object.__setattr__(self, "_text", known)
        return known

    @property
    def fixed(self) -> bool:
        """Return whether the term is the same in all iterations, and in all partitions."""
        known: Optional[bool] = self.__dict__.get("_fixed")
        if known is None:
            known = self.name not in ("induction", "flat", "pointer", "unknown")
            known = known and all(a.fixed for a in self.args if isinstance(a, Term))
            object.__setattr__(self, "_fixed", known)
        return known


Scalar = Union[int, Number, Term]


def number(value: int, changes: dict[int, int]) -> Union[int, Number]:
    kept = tuple(sorted((root, c) for root, c in changes.items() if c))
    return Number(value, kept) if kept else value


def term(name: str, *args: Any) -> Term:
    return Term(name, args)


def wrap(value: int, bits: int) -> int:
    """As a signed integer of so many bits keeps it; one bit holds 0 and 1."""
    value &= (1 << bits) - 1
    return value if bits == 1 or not value >> (bits - 1) else value - (1 << bits)


def _parts(value: Union[int, Number]) -> tuple[int, dict[int, int]]:
    return (value.value, dict(value.changes)) if isinstance(value, Number) else (value, {})


def _divided(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_COMPARE = {
    "EQ": lambda d: d == 0, "NE": lambda d: d != 0, "LT": lambda d: d < 0, "LE": lambda d: d <= 0,
    "GT": lambda d: d > 0, "GE": lambda d: d >= 0,
}  # fmt: skip


Many = Callable[[int], bool]  # whether numbers stand for many because of that root, here and now


def _settled(difference: int, changes: dict[int, int], many: Many) -> None:
    """Refuse a sign of a difference that could be another one some periods later."""
    for root, change in changes.items():
        if many(root) and (difference == 0 or (difference < 0) != (change < 0)):
            raise NeedsPrefix(root)


def _from_zero(changes: dict[int, int]) -> None:
    """Refuse a number below 0, which is none some periods later."""
    if changes and min(changes.values()) > 0:
        raise NeedsPrefix(max(changes))
    raise CannotSay("a counter may be negative where it is taken not to be")


def apply(name: str, args: list[Any], bits: int, many: Many) -> Scalar:
    """Compute one scalar op on concrete operands, exactly, for all numbers that they stand for.

    Args:
        name: the op's.
        bits: of its operands.
        many: the roots because of which a number now represents many.

    Raises:
        CannotSay: the account of the roots cannot be kept.
        NeedsPrefix: it could from a later iteration on.
    """
    if name == "select":
        if isinstance(args[0], Number):
            raise CannotSay("a condition depends on the value of a counter")
        chosen: Scalar = args[1] if args[0] else args[2]
        return chosen
    if name == "zero_extend":
        if _parts(args[0])[0] < 0:
            raise CannotSay("a large unsigned number is followed as a negative one")
        return apply("int_cast", args, bits, many)
    if name in ("int_cast", "splat", "unsplat", "convert_layout", "bitcast"):
        same: Union[int, Number] = args[0]
        return same if isinstance(same, Number) else wrap(same, bits)
    if name.startswith("icmp"):
        (a, da), (b, db) = map(_parts, args)
        relation = name[-2:]
        unsigned = name[4] == "U"
        if unsigned and (a < 0 or b < 0):
            if da or db:
                raise CannotSay("an unsigned comparison of a counter with a negative number")
            a, b = a & ((1 << bits) - 1), b & ((1 << bits) - 1)
        changes = {r: da.get(r, 0) - db.get(r, 0) for r in {*da, *db}}
        changes = {r: c for r, c in changes.items() if c}
        if changes:
            _settled(a - b, changes, many)
        return int(_COMPARE[relation](a - b))
    if len(args) == 1:
        raise CannotSay(f"`{name}` of a scalar")
    (a, da), (b, db) = map(_parts, args)
    if name in ("add", "sub"):
        sign = 1 if name == "add" else -1
        changes = {r: da.get(r, 0) + sign * db.get(r, 0) for r in {*da, *db}}
        return _ranged(a + sign * b, changes, bits)
    if name == "mul":
        if da and db:
            raise CannotSay("a product of two counters")
        changes = {r: c * b for r, c in da.items()} if da else {r: c * a for r, c in db.items()}
        return _ranged(a * b, changes, bits)
    if name in ("minsi", "maxsi", "minui", "maxui"):
        less = apply("icmpSLE", args, bits, many)
        least: Scalar = args[0] if bool(less) == name.startswith("min") else args[1]
        return least
    if not (da or db):
        return _plain(name, a, b, bits)
    if db:
        raise CannotSay(f"`{name}` by a counter")
    if not any(many(root) for root in da):
        return _plain(name, a, b, bits)  # it represents itself alone
    if name in ("sdiv", "udiv", "srem", "urem"):
        if a < 0:
            _from_zero(da)
        if b <= 0 or a < 0 or any(c < 0 for c in da.values()):
            raise CannotSay(f"`{name}` of a counter that may be negative")
        if any(c % b for c in da.values()):
            raise CannotSay(f"a counter modulo {b} does not come back within a period")
        if name in ("srem", "urem"):
            return a % b
        return _ranged(a // b, {r: c // b for r, c in da.items()}, bits)
    if name in ("shl", "lshr", "ashr") and 0 <= b < bits:
        if name == "shl":
            return _ranged(a << b, {r: c << b for r, c in da.items()}, bits)
        if any(c < 0 or c % (1 << b) for c in da.values()):
            raise CannotSay("a counter is shifted right by bits that change")
        if a < 0 and name == "lshr":
            _from_zero(da)
        return _ranged(a >> b, {r: c >> b for r, c in da.items()}, bits)
    if name == "and" and b >= 0:
        if any(c % (1 << b.bit_length()) for c in da.values()):
            raise CannotSay("bits of a counter do not come back within a period")
        return a & b
    raise CannotSay(f"`{name}` of a counter")


def _ranged(value: int, changes: dict[int, int], bits: int) -> Scalar:
    left = {r: c for r, c in changes.items() if c}
    return number(value, left) if left else wrap(value, bits)


def _plain(name: str, a: int, b: int, bits: int) -> int:
    mask = (1 << bits) - 1
    if name in ("sdiv", "srem", "udiv", "urem"):
        if b == 0:
            raise CannotSay("a division by zero")
        if name[0] == "u":
            a, b = a & mask, b & mask
        quotient = _divided(a, b)
        return wrap(quotient if name.endswith("div") else a - quotient * b, bits)
    if name in ("and", "or", "xor"):
        return wrap({"and": a & b, "or": a | b, "xor": a ^ b}[name], bits)
    if name in ("shl", "lshr", "ashr"):
        if not 0 <= b < bits:
            raise CannotSay("a shift by more bits than there are")
        return wrap({"shl": a << b, "lshr": (a & mask) >> b, "ashr": a >> b}[name], bits)
    raise CannotSay(f"`{name}` of scalars")


def common(numbers: dict[int, Number], root: int) -> dict[int, Union[int, Number]]:
    """Return a task's numbers, by variable, once the loop of a root is over: its increments stay, in unknown number. Numbers with equal increments keep their distance, and share a root
    below `FREE`, of its own for each direction."""
    last = min((r for v in numbers.values() for r, _ in v.changes), default=0)
    last = min(last, FREE + 1)
    known: dict[Any, dict[int, int]] = {}
    after: dict[int, Union[int, Number]] = {}
    for var, value in numbers.items():
        if not any(r == root for r, _ in value.changes):
            after[var] = value
            continue
        over = tuple((r, c) for r, c in value.changes if r == root or r <= FREE)
        left = known.get(over)
        if left is None:
            left = known[over] = {}
            for some in ([c for _, c in over if c > 0], [c for _, c in over if c < 0]):
                if some:
                    last -= 1
                    left[last] = gcd(*some) if some[0] > 0 else -gcd(*some)
        rest = {r: c for r, c in value.changes if r != root and r > FREE}
        after[var] = number(value.value, {**rest, **left})
    return after


def reduced(numbers: dict[int, Number]) -> dict[int, Number]:
    """Return a task's numbers, by variable, reduced by the remainders of counters towards one period, with the same names in equal states. The counters of running loops stay: they are reduced later."""
    shifted = dict(sorted(numbers.items()))
    left = dict.fromkeys(r for v in shifted.values() for r, _ in v.changes if r <= FREE)
    for root in left:
        there = {v: dict(x.changes)[root] for v, x in shifted.items() if root in dict(x.changes)}
        if any(r > FREE for v in there for r, _ in shifted[v].changes):
            continue
        times = min(shifted[var].value // change for var, change in there.items()) - 1
        for var, change in there.items() if times > 0 else ():
            shifted[var] = Number(shifted[var].value - times * change, shifted[var].changes)
    if not left:
        return shifted
    names = {root: FREE - index for index, root in enumerate(left)}
    return {
        var: Number(x.value, tuple(sorted((names.get(r, r), c) for r, c in x.changes)))
        for var, x in shifted.items()
    }
