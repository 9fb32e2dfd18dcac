"""What machine code says about its loops: a vendor reads its assembly, this finds the bodies."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Mapping, Optional, Sequence

__all__ = ["Instruction", "Loop", "find_loops"]


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    Args:
        name: what to count it as, such as `ds_read_b128`.
        labels: what a branch may call its place: labels, or its address.
        target: the label that it branches to, None for other instructions.
    """

    name: str
    labels: tuple[str, ...] = ()
    target: Optional[str] = None


@dataclass(frozen=True)
class Loop:
    """A loop of the kernel: from a label to the last branch back to it.

    Args:
        label: where it begins.
        depth: 1 for an outermost loop.
        instruction_count: instructions of its body, those of loops inside it left out.
        instruction_mix: their mnemonics -> count, the most frequent first.
    """

    label: str
    depth: int
    instruction_count: int
    instruction_mix: Mapping[str, int]


def find_loops(instructions: Sequence[Instruction]) -> tuple[Loop, ...]:
    """The loops, in the order of their beginnings."""
    places = {label: i for i, one in enumerate(instructions) for label in one.labels}
    ends: dict[int, int] = {}
    labels: dict[int, str] = {}
    for i, one in enumerate(instructions):
        start = places.get(one.target) if one.target is not None else None
        if start is not None and start < i:  # a branch to itself is where the kernel has ended
            ends[start] = i
            labels[start] = one.target or ""
    spans = sorted(ends.items())
    innermost = [-1] * len(instructions)
    for number, (start, end) in enumerate(spans):
        innermost[start : end + 1] = [number] * (end + 1 - start)
    found = []
    for number, (start, end) in enumerate(spans):
        names = [instructions[i].name for i in range(start, end + 1) if innermost[i] == number]
        depth = sum(first <= start and end <= last for first, last in spans)
        mix = dict(Counter(names).most_common())
        found.append(Loop(labels[start], depth, len(names), mix))
    return tuple(found)
