"""The parts of a litmus test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Union

from gluon_core.errors import GluonError, SourceSpan

__all__ = [
    "LEVELS",
    "Condition",
    "LitmusError",
    "Operand",
    "Program",
    "Step",
    "Test",
]

LEVELS = ("cta", "cluster", "gpu", "sys")
"""The scopes, from the narrowest to the widest."""

Operand = Union[int, str]


class LitmusError(GluonError):
    """A litmus test is malformed, or uses an instruction that the model lacks."""


@dataclass(frozen=True)
class Step:
    """An instruction of a thread.

    Args:
        kind: load, store, atom, red, fence, proxy, barrier, arrive, expect, wait, copy, commit, group,
            alu, bra, exit or label.
        guard: a predicate register, and True if the instruction runs where it is false.
        to: the register that gets the result, or the label of a branch.
        address: a location, or a register that holds one.
        values: the operands.
        sem: weak, relaxed, acquire, release, acq_rel or sc.
        scope: one of `LEVELS`; "" for weak operations.
        proxy: through which memory is accessed, or which a proxy fence joins with the generic one.
        function: of the operands; of the old value first in an atomic operation.
        detail: further facts of the kind.
    """

    kind: str
    text: str
    span: SourceSpan
    guard: Optional[tuple[str, bool]] = None
    to: str = ""
    address: str = ""
    values: tuple[Operand, ...] = ()
    sem: str = "weak"
    scope: str = ""
    proxy: str = "generic"
    function: Optional[Callable[..., Any]] = None
    detail: Mapping[str, Any] = None  # type: ignore[assignment]  # filled by `decode`


@dataclass(frozen=True)
class Program:
    """A thread.

    Args:
        place: the names of its block, cluster and GPU, each with those around it.
        registers: their initial values: numbers, or names of locations.
    """

    name: str
    place: tuple[tuple[str, ...], ...]
    steps: tuple[Step, ...]
    registers: Mapping[str, Operand]

    def shares(self, other: Program, scope: str) -> bool:
        """Return True if both threads are in one instance of a scope."""
        return scope == "sys" or self.place[LEVELS.index(scope)] == other.place[LEVELS.index(scope)]


@dataclass(frozen=True)
class Condition:
    """A condition on the final state.

    Args:
        holds: from the values, by "P0:r1" and "x", to the answer.
        registers: (thread, register) in it, and `locations` the names of locations.
    """

    text: str
    holds: Callable[[Mapping[str, Any]], bool]
    registers: tuple[tuple[str, str], ...] = ()
    locations: tuple[str, ...] = ()


@dataclass(frozen=True)
class Test:
    """A litmus test.

    Args:
        initial: the value of each location; (phase, pending arrivals, pending bytes) of a barrier
            object in memory.
        counts: the arrivals that each such object expects.
        aliases: a location -> the one whose bytes it names.
        quantifier: exists, forall or ~exists.
        kept_by: drop executions whose final state does not meet it.
    """

    name: str
    file: str
    threads: tuple[Program, ...]
    initial: Mapping[str, Any]
    counts: Mapping[str, int]
    aliases: Mapping[str, str]
    quantifier: str
    condition: Condition
    kept_by: Optional[Condition] = None
