"""Slots and phases that are counted from an unknown number: its remainder decides.

A term modulo 3 is one of three numbers, each of which is tried. Its operands matter modulo 3 only, and the count of a loop is added to the remainder.
"""

from __future__ import annotations

from typing import Any, Optional, Protocol

from gluon_prove.code import Guess, Pure, Spec
from gluon_prove.symbols import linear
from gluon_prove.values import CannotSay, Term

__all__ = ["Residues"]

_MOST = 16  # numbers that are tried


class _Makes(Protocol):
    """The code generator that `Residues` uses."""

    def var(self) -> int: ...

    def emit(self, step: Any) -> int: ...


class Residues:
    """See the module. Terms are taken not to be negative, which is said.

    Attributes:
        inductions: by the name of a loop's counter: its variable, start and step; None where that name has two.
    """

    def __init__(self, code: _Makes):
        self.code = code
        self.inductions: dict[Term, Optional[tuple[int, Any, Any]]] = {}

    def exact(self, value: Any, loc: Any) -> Spec:
        """Return the value of a term that is one of few numbers.

        Raises:
            CannotSay: it is not.
        """
        if isinstance(value, int):
            return Spec(value=value)
        if isinstance(value, Term) and len(value.args) == 2:
            one, other = value.args
            if value.name in ("srem", "urem", "and") and isinstance(other, int) and other > 0:
                by = other if value.name != "and" else 1 << other.bit_length()
                if value.name != "and":
                    self._counts_up(one, loc)
                return self._op(value.name, self._left(one, by, loc), Spec(value=other), loc)
            if value.name in ("add", "sub", "mul", "xor", "or"):
                sides = self.exact(one, loc), self.exact(other, loc)
                return self._op(value.name, *sides, loc)
        raise CannotSay("the part of the buffer is unknown", loc)

    def _op(self, name: str, one: Spec, other: Spec, loc: Any) -> Spec:
        out = self.code.var()
        self.code.emit(Pure(loc, name, [one, other], 64, out))
        return Spec(var=out)

    def _left(self, value: Any, by: int, loc: Any) -> Spec:
        """Return a number that is not negative and as much as the term when so many are taken away from
        either, any number of times."""
        if isinstance(value, int):
            return Spec(value=value % by)
        if not isinstance(value, Term):
            raise CannotSay("the part of the buffer is unknown", loc)
        counted = self.inductions.get(value)
        if counted is not None:
            counter, low, step = counted
            rounds = self._op("mul", Spec(var=counter), self._left(step, by, loc), loc)
            return self._op("add", rounds, self._left(low, by, loc), loc)
        if len(value.args) == 2 and (not value.fixed or isinstance(value.args[1], int)):
            one, other = value.args
            known = isinstance(other, int) and other > 0
            if value.name in ("srem", "urem", "and") and known:
                return self.exact(value, loc)
            if value.name in ("sdiv", "udiv") and known and not value.fixed:
                self._counts_up(one, loc)
                return self._op("sdiv", self._left(one, by * other, loc), Spec(value=other), loc)
            if value.name in ("add", "mul"):
                sides = self._left(one, by, loc), self._left(other, by, loc)
                return self._op(value.name, *sides, loc)
            if value.name == "sub":
                less = self._op("mul", self._left(other, by, loc), Spec(value=by - 1), loc)
                return self._op("add", self._left(one, by, loc), less, loc)
        if not value.fixed or by > _MOST:
            raise CannotSay("the part of the buffer is unknown", loc)
        out = self.code.var()
        self.code.emit(Guess(loc, value, by, out))
        return Spec(var=out)

    def _counts_up(self, value: Any, loc: Any) -> None:
        """Refuse a negative value of nonnegative operands: division differs there."""
        if isinstance(value, int) and value >= 0:
            return
        parts: Optional[tuple[Any, ...]] = None
        if isinstance(value, Term):
            core, more = linear(value)
            value = core if more >= 0 else value
            counted = self.inductions.get(value)
            if counted is not None:
                parts = counted[1:]
            elif value.name in ("add", "mul", "srem", "urem", "sdiv", "udiv", "and"):
                parts = value.args
            elif value.fixed and more >= 0:
                return
        if parts is None:
            raise CannotSay("the part of the buffer is unknown", loc)
        for part in parts:
            self._counts_up(part, loc)
