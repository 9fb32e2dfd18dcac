"""Queries to z3: equality of bounds, feasibility of facts, and correctness of periods."""

from __future__ import annotations

from math import inf
from time import thread_time
from typing import Any, Iterable, Optional, Sequence

from gluon_core.errors import CapabilityError
from gluon_prove.values import Term, TimeIsOver

__all__ = ["Arithmetic", "load"]

_MOST_WORK = 20_000_000  # of a call, as z3 counts it: a busy machine does as much as an idle one
_MILLISECONDS = 20_000  # of a call, where z3 does not see that its work is done

_Interval = tuple[Term, int, Optional[int]]
_Intervals = tuple[_Interval, ...]
_Choices = tuple[tuple[Term, int], ...]


def load() -> Any:
    """Return the module `z3`.

    Raises:
        CapabilityError: it is not installed.
    """
    try:
        import z3
    except ImportError:
        raise CapabilityError(
            "proofs need the solver z3, which is not installed",
            argument="gluon prove",
            remedy="pip install 'gluon-core[prove]', or pip install z3-solver",
        ) from None
    return z3


class Arithmetic:
    """Terms as integers of z3.

    Args:
        bits: of each argument of the kernel.

    Attributes:
        deadline: when to give up, as `time.thread_time` tells.
    """

    def __init__(self, bits: dict[int, int]):
        self.deadline = inf
        self.z3 = load()
        self.bits = bits
        self._leaves: dict[Term, Any] = {}
        self._expressions: dict[Term, Any] = {}
        self._feasible: dict[Any, bool] = {}
        self._of_term: dict[Term, frozenset[Term]] = {}
        self.asked = 0
        self._assumed: dict[Term, None] = {}

    def leaf(self, value: Term) -> Any:
        leaf = self._leaves.get(value)
        if leaf is None:
            leaf = self._leaves[value] = self.z3.Int(f"{value.name}{len(self._leaves)}")
        return leaf

    def of(self, value: Any) -> Any:
        """Return a term, or a number."""
        if isinstance(value, bool) or not isinstance(value, Term):
            return self.z3.IntVal(int(value))
        expression = self._expressions.get(value)
        if expression is None:
            expression = self._expressions[value] = self._expression(value)
        return expression

    def _expression(self, value: Term) -> Any:
        z3, name = self.z3, value.name
        if name in ("arg", "program", "programs", "unknown", "induction", "flat", "data"):
            return self.leaf(value)
        if name == "trips":
            low, high, step = (self.of(a) for a in value.args)
            return z3.If(high > low, (high - low + step - 1) / step, 0)
        args = [self.of(a) for a in value.args]
        if name.startswith("icmp") and name[4] != "U":
            a, b = args
            relation = name[-2:]
            holds = {
                "EQ": a == b, "NE": a != b, "LT": a < b, "LE": a <= b, "GT": a > b, "GE": a >= b,
            }[relation]  # fmt: skip
            return z3.If(holds, 1, 0)
        if name in ("add", "sub", "mul"):
            a, b = args
            return a + b if name == "add" else a - b if name == "sub" else a * b
        if name in ("sdiv", "srem"):
            a, b = args
            quotient = z3.If(
                a >= 0, z3.If(b > 0, a / b, -(a / -b)), z3.If(b > 0, -((-a) / b), (-a) / -b)
            )
            return quotient if name == "sdiv" else a - quotient * b
        if name in ("minsi", "maxsi"):
            a, b = args
            return z3.If((a < b) if name == "minsi" else (a > b), a, b)
        if name == "select":
            return z3.If(args[0] != 0, args[1], args[2])
        if name in ("int_cast", "zero_extend"):
            return args[0]
        return self.leaf(value)

    def assume(self, condition: Term) -> None:
        """Let a condition of the kernel hold in all queries from now on."""
        self._assumed[condition] = None
        self._feasible.clear()

    def ranges(self) -> Iterable[Any]:
        """Return the constraints on arguments and program ids that always hold."""
        for condition in self._assumed:
            yield self.of(condition) != 0
        for value, leaf in list(self._leaves.items()):
            if value.name == "arg":
                limit = 1 << (self.bits.get(value.args[0], 32) - 1)
                yield leaf >= 0  # assumed, and said
                yield leaf < limit
            elif value.name == "programs":
                yield leaf >= 1
                yield leaf < 1 << 31
            elif value.name == "program":
                yield leaf >= 0
                yield leaf < self.leaf(Term("programs", value.args))

    def _solver(self, kind: str = "Solver") -> Any:
        if thread_time() >= self.deadline:
            raise TimeIsOver
        solver = getattr(self.z3, kind)()
        solver.set("rlimit", _MOST_WORK)
        solver.set("timeout", _MILLISECONDS)
        self.asked += 1
        return solver

    def equal(self, one: Term, other: Term) -> bool:
        """Return whether two terms are equal for all arguments; false where z3 cannot decide."""
        a, b = self.of(one), self.of(other)
        solver = self._solver()
        solver.add(a != b, *self.ranges())
        return bool(solver.check() == self.z3.unsat)

    def constraints(
        self, bounds: Sequence[tuple[Term, int, Optional[int]]], chosen: Sequence[tuple[Term, int]]
    ) -> list[Any]:
        """Return constraints: terms are in intervals, and conditions hold or do not."""
        conditions = []
        for value, low, high in bounds:
            expression = self.of(value)
            conditions.append(expression >= low)
            if high is not None:
                conditions.append(expression <= high)
        for value, truth in chosen:
            expression = self.of(value)
            conditions.append(expression != 0 if truth else expression == 0)
        return [*conditions, *self.ranges()]

    def feasible(
        self, bounds: Sequence[tuple[Term, int, Optional[int]]], chosen: Sequence[tuple[Term, int]]
    ) -> bool:
        """Return whether arguments satisfy the constraints; true where z3 cannot decide."""
        return all(self._satisfied(*part) for part in self._parts(bounds, chosen))

    def _satisfied(self, bounds: _Intervals, chosen: _Choices) -> bool:
        key = (bounds, chosen)
        feasible = self._feasible.get(key)
        if feasible is None:
            solver = self._solver()
            solver.add(*self.constraints(bounds, chosen))
            feasible = self._feasible[key] = bool(solver.check() != self.z3.unsat)
        return feasible

    def _parts(
        self, bounds: Sequence[_Interval], chosen: Sequence[tuple[Term, int]]
    ) -> list[tuple[_Intervals, _Choices]]:
        """Return constraints in groups without an unknown in common: all can hold where each can.

        An assumption is in no group, and joins those that it relates.
        """
        every: list[tuple[frozenset[Term], _Intervals, _Choices]] = [
            *((self._unknowns(bound[0]), (bound,), ()) for bound in bounds),
            *((self._unknowns(choice[0]), (), (choice,)) for choice in chosen),
            *((self._unknowns(condition), (), ()) for condition in self._assumed),
        ]
        groups: list[tuple[frozenset[Term], _Intervals, _Choices]] = []
        for group in every:
            for other in [one for one in groups if one[0] & group[0]]:
                groups.remove(other)
                group = (group[0] | other[0], other[1] + group[1], other[2] + group[2])
            groups.append(group)
        return [(intervals, choices) for _, intervals, choices in groups if intervals or choices]

    def _unknowns(self, value: Any) -> frozenset[Term]:
        """Return the unknowns of a term; a program's number has that of the programs in its range."""
        if not isinstance(value, Term):
            return frozenset()
        unknowns = self._of_term.get(value)
        if unknowns is None:
            unknowns = frozenset().union(*(self._unknowns(arg) for arg in value.args))
            if value.name == "program":
                unknowns |= {Term("programs", value.args)}
            elif not unknowns:
                unknowns = frozenset([value])
            self._of_term[value] = unknowns
        return unknowns

    def arguments(
        self, constraints: Sequence[Any], usual: dict[Term, int]
    ) -> Optional[dict[Term, int]]:
        """Arguments (and the number of programs) for which the constraints hold, as many as can be
        as they usually are."""
        solver = self._solver("Optimize")
        for value in usual:
            self.leaf(value)
        solver.add(*constraints, *self.ranges())
        for value, number in usual.items():
            # The simulator runs the usual program alone, with any arguments.
            solver.add_soft(self.leaf(value) == number, 1 if value.name == "arg" else 100)
        if solver.check() != self.z3.sat:
            return None
        model = solver.model()
        out = {}
        for value, leaf in self._leaves.items():
            if value.name in ("arg", "program", "programs"):
                out[value] = int(model.eval(leaf, model_completion=True).as_long())
        return out

    def comes_back(self, name: str, by: int, change: int, result: int, bits: int) -> bool:
        """Return whether, for every x that can be so large, `name(x + change, by)` is `name(x, by) + result`, in
        integers of so many bits; for divisions and shifts of unsigned numbers, that is not negative."""
        z3 = self.z3
        top = 1 << (bits - 1)
        solver = self._solver()
        if name in ("sdiv", "srem", "udiv", "urem"):
            x = z3.Int("x")
            solver.add(x >= 0, x + change < top)

            def applied(v: Any) -> Any:
                return v / by if name.endswith("div") else v % by

        else:
            x = z3.BitVec("x", bits)
            solver.add(x <= z3.BitVecVal(top - 1 - change, bits))
            if name == "lshr":
                solver.add(x >= 0)
            amount = z3.BitVecVal(by, bits)

            def applied(v: Any) -> Any:
                return {
                    "and": lambda: v & amount, "shl": lambda: v << amount,
                    "lshr": lambda: z3.LShR(v, amount), "ashr": lambda: v >> amount,
                }[name]()  # fmt: skip

        solver.add(applied(x + change) != applied(x) + result)
        return bool(solver.check() == z3.unsat)
