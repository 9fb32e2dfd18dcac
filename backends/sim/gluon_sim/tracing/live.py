"""Ops that are left when compilers look for layouts, after they removed dead code.

The model follows the passes in front of layout resolution (the inliner, and the simplification of
control flow that it runs). They erase an op without effects when no remaining op takes a result of
it, control flow that contains no effects included. They do not take single values out of control
flow that stays: values that a loop carries from one round to the next is live with the loop.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Callable, Collection, Iterator, Union

from gluon_core.features import DROPS_CARRIED
from gluon_core.plugin.ops import has
from gluon_sim.tracing.fold import Folder
from gluon_sim.tracing.ir import TERMINATORS, Function, Op, Region, Value
from gluon_sim.tracing.program import Program

__all__ = ["HANDS_ON", "links", "live_ops", "terminators"]

_JUMPS = frozenset(("branch", "cond_branch"))  # between the blocks of a function
# Ops with the index of the argument that declares them pure.
_PURE = {"inline_asm": 3, "extern_elementwise": 5}


def live_ops(program: Program) -> list[Op]:
    """Return the ops of `program` that are not dead code, in the order of its text."""
    ops = list(program.walk_ops())
    folder = Folder(ops)
    if whole := not has(DROPS_CARRIED):
        reached, never = ops, set[int]()
    else:
        reached, never = _reached(program, folder)
    search = _Search(reached, whole, folder, never)
    for op in reached:
        if _has_effect(op):
            search.keep(op)
    return [op for op in reached if id(op) in search.live]


def _reached(program: Program, folder: Folder) -> tuple[list[Op], set[int]]:
    """Return the ops that can run as far as constants tell, and the ids of regions that cannot."""
    ops: list[Op] = []
    never: set[int] = set()
    left = [function.body for function in reversed(program.functions.values())]
    while left:
        region = left.pop()
        for block in folder.blocks(region):
            for op in block.ops:
                ops.append(op)
                dead = folder.unreached(op)
                never |= {id(one) for one in dead}
                left += [one for one in op.regions if all(one is not other for other in dead)]
    order = {id(op): position for position, op in enumerate(program.walk_ops())}
    return sorted(ops, key=lambda op: order[id(op)]), never


def _has_effect(op: Op) -> bool:
    """Return whether an op does more than compute its results, regions and callees apart."""
    if op.name in _PURE:
        return not op.args[_PURE[op.name]]
    if op.name in _JUMPS or op.attrs.get("volatile") or op.attrs.get("determines"):
        return True
    if op.name == "call" or op.regions or op.name in TERMINATORS:
        return False
    return not op.results or "atomic" in op.name


class _Search:
    """A search for live ops, backwards from those that have effects.

    Args:
        ops: all ops of a program.
        whole: control flow that stays keeps all values that it carries and returns.
        folder: knows its constants.
        never: ids of regions that never run.
    """

    def __init__(self, ops: list[Op], whole: bool, folder: Folder, never: set[int]):
        self.live: set[int] = set()
        self._folder = folder
        self._never = never
        self._whole = whole
        self._left: list[Union[Op, Value]] = []
        self._needed: set[int] = set()  # values, by id
        self._calls: dict[int, list[Op]] = defaultdict(list)
        self._links: dict[int, list[tuple[Op, Value]]] = defaultdict(list)
        for op in ops:
            if op.name == "call":
                self._calls[id(op.args[0])].append(op)
            for value, source in links(op, never):
                self._links[id(value)].append((op, source))

    def keep(self, op: Op) -> None:
        """Mark an op and everything that it cannot do without."""
        self._left.append(op)
        while self._left:
            item = self._left.pop()
            if isinstance(item, Value):
                self._need(self._folder.selected(item))
            elif id(item) not in self.live:
                self.live.add(id(item))
                self._require(item)

    def _require(self, op: Op) -> None:
        owner = op.block.region.owner if op.block is not None and op.block.region else None
        if isinstance(owner, Op):
            self._left.append(owner)
        elif owner is not None:
            self._left += self._calls[id(owner)]
        if op.name in HANDS_ON:
            if all(id(region) not in self._never for region in op.regions):
                self._left += HANDS_ON[op.name](op)
            self._left += [
                s for v, s in links(op, self._never) if self._whole_of(op) or id(v) in self._needed
            ]
        else:
            self._left += op.operands()
            self._left += [end for region in op.regions for end in terminators(region)]

    def _whole_of(self, op: Op) -> bool:
        return bool(op.args[0].noinline) if op.name == "call" else self._whole

    def _need(self, value: Value) -> None:
        if id(value) not in self._needed and self._folder.constant(value) is None:
            self._needed.add(id(value))
            if isinstance(value.owner, Op):
                self._left.append(value.owner)
            self._left += [s for op, s in self._links[id(value)] if id(op) in self.live]


# Ops that hand values on, with the operands that each needs in any case.
HANDS_ON: dict[str, Callable[[Op], list[Value]]] = {
    "call": lambda op: [],
    "for": lambda op: list(op.args[:3]),
    "if": lambda op: [op.args[0]],
    "while": lambda op: [v for end in terminators(op.regions[0]) for v in end.operands()][:1],
}


def links(op: Op, never: Collection[int] = ()) -> Iterator[tuple[Value, Value]]:
    """Yield each value that control flow hands on, with a value that it may come from.

    Args:
        never: ids of regions that never run.
    """
    if op.name not in HANDS_ON:
        return
    bodies = [region.blocks[0].arguments for region in op.regions if region.blocks]
    ends = [
        [] if id(region) in never else list(end.operands())
        for region in op.regions
        for end in terminators(region)
    ]
    if op.name == "call":
        function: Function = op.args[0]
        yield from zip(function.arguments, op.args[1])
        for end in terminators(function.body):
            if end.name == "ret":
                yield from zip(op.results, end.operands())
    elif op.name == "for":
        for source in (op.args[3], *ends):
            yield from zip(bodies[0][1:], source)
            yield from zip(op.results, source)
    elif op.name == "if":
        for source in ends:
            yield from zip(op.results, source)
    else:
        for source in (op.args[0], ends[1]):
            yield from zip(bodies[0], source)
        for target in (bodies[1], op.results):
            yield from zip(target, ends[0][1:])


def terminators(region: Region) -> list[Op]:
    """Return the ops that end the blocks of `region`."""
    ends = (block.get_terminator() for block in region.blocks)
    return [op for op in ends if op is not None]
