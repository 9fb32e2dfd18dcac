"""Write which blocks of a grid each program takes, one on each multiprocessor, where taking every n-th block is not the best.

Where blocks have more and more steps along an axis, as under a causal mask, the heaviest blocks of a section come
first, and every other round deals them from the last program to the first: a program that gets the heavier
block of one round gets the lighter one of the next. The blocks of a section have indices along the other axes
that are close to each other, so that they find tiles of each other in the cache.

Where the parts of blocks that follow each other along an axis need the same tiles, three consumers take parts of them as one
group, or two do, or one. Groups of three take less time for each part; a launch has as many of them, and of smaller ones behind
them, as let all programs end together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Sequence

from gluon_write.text.form import factor, free_name

__all__ = ["DEALT", "Grid", "Shared", "Sharing", "dealt", "grid_digits", "shared_walk"]

_FULL = 95  # percents of the places of all sections that have blocks
_TRIED = 4  # numbers of rounds with groups of all consumers
_ONE = 62  # percents of the time of two parts that one takes: measured on an H200
_UP = 0.99999  # rounds quotients up, of which another one is a hundred-thousandth less at most
#: The comment on programs that are dealt blocks of different work.
DEALT = (
    "# The heaviest blocks of a section come first, dealt to and fro: all programs get equal work."
)


@dataclass(frozen=True)
class Sharing:
    """Say that consumers take parts of the rows of consecutive blocks along an axis, and share the tiles of their steps.

    Attributes:
        parts: of the rows of a block; the kernel computes the one with the number `part`.
        consumers: that share tiles. cost: percents of the time of a round with `consumers` over that with `parts`.
    """

    axis: int
    part: str
    parts: int
    consumers: int
    cost: int


@dataclass(frozen=True)
class Grid:
    """Hold the names of a walk over a grid.

    Attributes:
        space: of the language. units: the number of multiprocessors. first: the number of the program.
        index: axis -> name of the block's index. sides: axis -> the number of blocks along it.
    """

    space: str
    units: str
    first: str
    index: Mapping[int, str]
    sides: Mapping[int, str]

    def others(self, axis: int) -> list[int]:
        """Return the other axes."""
        return [one for one in self.sides if one != axis]


@dataclass(frozen=True)
class Shared:
    """Hold a walk of consumers that share tiles.

    Attributes:
        member: name of the constant that numbers them. before: lines in front of the loop over groups, and its head.
        indices: lines that begin a round. guard: the condition of a result.
        rows: the arguments of the loop's range for a consumer.
        passed: the line that finds the first group whose tiles a consumer lets pass; its name; the range from there.
    """

    member: str
    before: tuple[str, ...]
    indices: tuple[str, ...]
    guard: str
    rows: str
    passed: tuple[str, str, str]


def shared_walk(grid: Grid, sharing: Sharing, program: str, useful: str, taken: set[str]) -> Shared:
    """Return the walk over a list of groups: those of all consumers first, then those of some of them.

    Args:
        program: name of the loop's variable. useful: the number of parts along the axis that store anything. taken: names in use.
    """
    gl, units, axis, first = grid.space, grid.units, sharing.axis, grid.first
    parts, many = sharing.parts, sharing.consumers
    words = "member shares heads wide thin least tried spent trial wides items number groups share passed"
    member, shares, heads, wide, thin, least, tried, spent, trial, wides, items, number, groups, share, passed = (
        free_name(word, taken) for word in words.split()
    )  # fmt: skip
    unit, head, rounds, few = (free_name(word, taken) for word in ("unit", "head", "rounds", "few"))
    whole, early, large = (free_name(word, taken) for word in ("whole", "early", "large"))
    rest, price = (free_name(word, taken) for word in ("rest", "price"))
    others = grid.others(axis)

    def count(number: str) -> str:
        """Return rounds, rounded up: divisions of integers take long."""
        return f"({factor(number)} * {unit} + {_UP}).to({gl}.int32)"

    programs = [f"{gl}.num_programs({one})" for one in grid.sides]
    before = [
        f"{units} = {gl}.minimum({units}, {' * '.join(programs)})",
        f"{shares} = {useful}",
        f"{heads} = {' * '.join(grid.sides[one] for one in others) or '1'}",
        f"# Groups of {many} parts share the tiles of a step, and behind them some of fewer: as many as take the least time.",
        f"{unit}, {head} = 1.0 / {units}, 1.0 / {heads}",
        f"{rounds} = {count(f'{shares} // {many} * {heads}')}",
        f"{wide}, {thin} = 0, {parts}",
        f"{least} = {count(f'({shares} + {parts - 1}) // {parts} * {heads}')} * 100",
        f"for {trial} in {gl}.static_range({_TRIED * parts}):",
        f"    {tried} = ((({rounds} - {trial} // {parts}) * {units} + 0.5) * {head}).to({gl}.int32)",
        f"    {tried} = {gl}.minimum({gl}.maximum({tried}, 0), {shares} // {many})",
        f"    {groups} = ({shares} - {tried} * {many} + {trial} % {parts}) // ({trial} % {parts} + 1) * {heads}",
        f"    {whole} = (({tried} * {heads} + 0.5) * {unit}).to({gl}.int32)",
        f"    {rest} = {tried} * {heads} - {whole} * {units}",
        f"    {price} = {_ONE} + {(100 - _ONE) // (parts - 1)} * ({trial} % {parts})",
        f"    {spent} = {count(f'{groups} - 2 * ({units} - {rest})')} * {price}",
        f"    {spent} = {gl}.where({rest} > 0, {gl}.maximum({spent}, 0) + {sharing.cost}, 0)",
        f"    {spent} = {gl}.maximum({spent}, {count(f'{groups} + {rest}')} * {price}) + {whole} * {sharing.cost}",
        f"    {wide} = {gl}.where({spent} < {least}, {tried}, {wide})",
        f"    {thin} = {gl}.where({spent} < {least}, {trial} % {parts} + 1, {thin})",
        f"    {least} = {gl}.minimum({spent}, {least})",
        f"{wides} = {wide} * {heads}",
        f"{groups} = {gl}.cdiv({shares} - {wide} * {many}, {thin})",
        f"{items} = {wides} + {groups} * {heads}",
        "# Programs without a large group in its last round take smaller ones there.",
        f"{whole} = {wides} // {units} * {units}",
        f"{early} = {gl}.where({whole} < {wides}, {gl}.minimum({units} - {wides} + {whole}, {items} - {wides}), 0)",
    ]
    last = f"{gl}.where({factor(first)} < {early}, {whole}, {wides} + {early})"
    ends = f"{gl}.where({thin} > {member}, {items}, {last})"
    return Shared(
        member,
        (*before, f"for {program} in range({first}, {items}, {units}):"),
        (
            f"{large} = ({program} < {whole}) | ({program} >= {whole} + {early}) & ({program} < {wides} + {early})",
            f"{number} = {program} - {gl}.where({large}, {gl}.where({program} < {whole}, 0, {early}), {gl}.where({program} < {whole} + {early}, {whole}, {wides}))",
            f"{few} = {gl}.where({large}, {wide}, {groups})",
            f"{share} = {gl}.where({large}, {number} % {few} * {many}, {wide} * {many} + {number} % {few} * {thin}) + {member}",
            f"{grid.index[axis]} = {gl}.minimum({share}, {shares} - 1) // {parts}",
            f"{sharing.part} = {share} % {parts}",
            *grid_digits(f"{number} // {few}", others, grid.index, grid.sides),
        ),
        f"if {share} < {shares}:",
        f"{first}, {items} if {member} == 0 else {ends}, {units}",
        (
            f"{passed} = {first} + {gl}.cdiv({gl}.maximum({ends} - {factor(first)}, 0), {units}) * {units}",
            passed,
            f"{passed}, {items}, {units}",
        ),
    )


def dealt(grid: Grid, heavy: int, side: str, taken: set[str]) -> tuple[list[str], list[str], str]:
    """Return the lines up to the head of a loop over blocks of equal work, those that begin a round, and the condition of a block.

    The blocks of a section share what they read: two rounds long, it stays in the cache. Its last
    round has more places than blocks, for other programs in each section: these compute the lightest for themselves.

    Args:
        heavy: the axis along which blocks have more and more steps. side: the number of blocks along it.
    """
    gl, units, index = grid.space, grid.units, grid.index
    others = grid.others(heavy)
    words = "start heads share sections rounds empty turn section number place blocks"
    start, heads, share, sections, rounds, empty, turn, section, number, place, blocks = (
        free_name(word, taken) for word in words.split()
    )
    before = [
        DEALT,
        f"{start} = {grid.first}",
        f"{heads} = {' * '.join(grid.sides[axis] for axis in others) or '1'}",
        f"{share} = {gl}.maximum(2 * {units} // {side}, 1)",
        f"{sections} = {gl}.cdiv({heads}, {share})",
        f"{share} = {gl}.cdiv({heads}, {sections})",
        f"{rounds} = 2 * {gl}.cdiv({share} * {side}, 2 * {units})",
        "# One section for all blocks where shorter ones would leave many places empty.",
        f"if {sections} * {rounds} * {units} * {_FULL} > {heads} * {side} * 100:",
        f"    {share} = {heads}",
        f"    {sections} = 1",
        f"    {rounds} = {gl}.cdiv({heads} * {side}, {units})",
        f"{empty} = {rounds} * {units} - {share} * {side}",
        f"for {turn} in range(0, {sections} * {rounds}):",
    ]
    indices = [
        f"{section} = {turn} // {rounds}",
        f"{number} = ({start} + {section} * {empty}) % {units}",
        f"{place} = {turn} % {rounds} * {units} + {number} + {turn} % 2 * ({units} - 1 - 2 * {number})",
        f"{blocks} = {gl}.minimum({share}, {heads} - {section} * {share})",
        f"{index[heavy]} = {side} - 1 - {gl}.minimum({place} // {blocks}, {side} - 1)",
        *grid_digits(f"{section} * {share} + {place} % {blocks}", others, index, grid.sides),
    ]
    return before, indices, f"if {place} < {blocks} * {side}:"


def grid_digits(
    number: str, axes: Sequence[int], index: Mapping[int, str], sides: Mapping[int, str]
) -> list[str]:
    """Return the lines that split a number into the indices of axes, the first axis fastest."""
    lines = []
    for axis in axes[:-1]:
        lines.append(f"{index[axis]} = {number} % {sides[axis]}")
        number = f"{factor(number)} // {sides[axis]}"
    return [*lines, *(f"{index[axis]} = {number}" for axis in axes[-1:])]
