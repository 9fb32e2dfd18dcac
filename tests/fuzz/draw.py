"""Random choices that are most often right, and templates of code whose holes they fill."""

from __future__ import annotations

import random
import re
from typing import Mapping, Sequence

__all__ = ["Draw"]


class Draw:
    """Random numbers that most often fit a layout."""

    def __init__(self, random_: random.Random):
        self.random = random_
        self.faults = 0  # operands drawn that are wrong

    def pick(self, choices: Sequence):
        return self.random.choice(choices)

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def fill(self, template: str, kinds: Mapping[str, Sequence[str]]) -> str:
        """Return the template with a way to write `kind` for each hole `<kind>`, holes in ways included."""

        def way(hole: re.Match[str]) -> str:
            ways = kinds.get(hole[1])
            return hole[0] if ways is None else self.fill(self.pick(ways), kinds)

        return re.sub(r"<(\w+)>", way, template)

    def power(self, most: int) -> int:
        """A power of two up to 2**most, seldom something else."""
        if self.chance(0.02):
            return self.pick([0, 3, 5, 6])
        return 1 << self.random.randint(0, most)

    def parts(self, product: int, rank: int) -> list[int]:
        """`rank` powers of two with this product, seldom another."""
        sizes = [1] * rank
        if self.chance(0.03):
            product *= 2
        while product > 1:
            sizes[self.random.randrange(rank)] *= 2
            product //= 2
        return sizes

    def order(self, rank: int) -> list[int]:
        order = list(range(rank))
        self.random.shuffle(order)
        if self.chance(0.02):
            order[0] = self.pick([0, rank])
        return order

    def shape(self, rank: int, most: int = 11) -> list[int]:
        """A shape of at most 2**most elements; dimensions of size 1 occur."""
        return self.parts(1 << self.random.randint(0, most), rank)

    def bases(self, count: int, rank: int, most: int = 6) -> list[list[int]]:
        rows = []
        for _ in range(count):
            row = [0] * rank
            for _ in range(self.pick([0, 1, 1, 1, 1, 2])):
                row[self.random.randrange(rank)] = 1 << self.random.randint(0, most)
            rows.append(row)
        return rows

    def cover(self, shape: Sequence[int]) -> list[list[int]]:
        """The bases that count a shape's elements, in any order."""
        rows = []
        for d, size in enumerate(shape):
            for bit in range(size.bit_length() - 1):
                rows.append([1 << bit if i == d else 0 for i in range(len(shape))])
        self.random.shuffle(rows)
        return rows

    def cga(self, rank: int, ctas: int) -> list[list[int]]:
        """The bases of a cluster of so many blocks; seldom others."""
        rows = []
        counts = [1] * rank
        for _ in range(ctas.bit_length() - 1):
            row = [0] * rank
            if self.chance(0.75):
                d = self.random.randrange(rank)
                row[d] = counts[d]
                counts[d] *= 2
            rows.append(row)
        if self.chance(0.03):
            rows = rows[1:] if rows else [[1] + [0] * (rank - 1)]
        if rows and self.chance(0.03):
            rows[0] = [v * 2 for v in rows[0]]
        return rows
