"""Integer polynomials over named values: the arithmetic of addresses."""

from __future__ import annotations

from collections import Counter
from typing import Callable, Iterable, Mapping, Optional, Union

__all__ = ["Monomial", "Polynomial"]

Monomial = tuple[str, ...]  # names, sorted; a name twice is its square


class Polynomial:
    """Hold a sum of products of names with integer factors.

    Args:
        terms: product of names -> its factor.
    """

    def __init__(self, terms: Mapping[Monomial, int]):
        self.terms = {names: count for names, count in terms.items() if count}

    @staticmethod
    def of(value: Union[int, str]) -> Polynomial:
        """Return a number or a name."""
        return Polynomial({(): value} if isinstance(value, int) else {(value,): 1})

    def __add__(self, other: Polynomial) -> Polynomial:
        total = Counter(self.terms)
        for names, count in other.terms.items():
            total[names] += count
        return Polynomial(total)

    def __neg__(self) -> Polynomial:
        return Polynomial({names: -count for names, count in self.terms.items()})

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        total: Counter[Monomial] = Counter()
        for names, count in self.terms.items():
            for more, factor in other.terms.items():
                total[tuple(sorted((*names, *more)))] += count * factor
        return Polynomial(total)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __bool__(self) -> bool:
        return bool(self.terms)

    @property
    def number(self) -> Optional[int]:
        """Return the value of a polynomial without names; None of others."""
        return self.terms.get((), 0) if set(self.terms) <= {()} else None

    @property
    def names(self) -> set[str]:
        """Return the names in it."""
        return {name for names in self.terms for name in names}

    def each(self) -> Iterable[Polynomial]:
        """Yield the terms."""
        return (Polynomial({names: count}) for names, count in self.terms.items())

    def having(self, keep: Callable[[Monomial], bool]) -> Polynomial:
        """Return the sum of the terms for whose names a condition holds."""
        return Polynomial({names: count for names, count in self.terms.items() if keep(names)})

    def over(self, other: Polynomial) -> Optional[Polynomial]:
        """Return the quotient by a polynomial of one term; None where it is none."""
        if len(other.terms) != 1:
            return None
        ((names, count),) = other.terms.items()
        terms: dict[Monomial, int] = {}
        for own, factor in self.terms.items():
            left = Counter(own)
            left.subtract(names)
            if factor % count or min(left.values(), default=0) < 0:
                return None
            terms[tuple(sorted(left.elements()))] = factor // count
        return Polynomial(terms)

    def text(self) -> str:
        """Return it as an expression; factors that are 1 are left out."""
        parts = []
        for names, count in self.terms.items():
            factors = [*(str(abs(count)) for _ in range(abs(count) != 1 or not names))]
            words = " * ".join([*names, *factors])
            sign = "-" if count < 0 else "+"
            parts.append(f"{sign} {words}")
        text = " ".join(parts) or "0"
        return (
            text.removeprefix("+ ").replace("- ", "-", 1)
            if text.startswith("- ")
            else text.removeprefix("+ ")
        )
