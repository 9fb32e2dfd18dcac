"""Hold a traced kernel: its ops, and the place of the expression of each."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence

from gluon_core.layouts import BlockedLayout

__all__ = ["Place", "Site", "Sketch", "partition_of", "place_of"]

# Kind of node, first line and column, last line and column, and the number of the function.
Place = tuple[str, int, int, int, int, int]
Site = tuple[tuple[Any, ...], Place]  # the calls around a place of a function, outermost first


@dataclass
class Sketch:
    """Hold a traced kernel.

    Attributes:
        program: the recorded ops, with `AutoLayout` wherever a layout was left out.
        jits: the kernel and the functions that it calls, by number; no library's.
        nodes: id of an op of theirs -> the expression that was evaluated.
        returned: place of an expression -> the values that it had.
        within: place of an expression -> the places in it, and whether each is a part of its own.
        functions: place of a call -> public name of the function.
        called: place of a call -> the function of the user's that it calls.
        methods: place of a call of a struct's method -> its function; None of several.
        multiples: the divisibility of each argument that is no constant, in bytes of pointers.
        odd: names of integers that are surely no multiples of 16.
        unaided: place of a product that no matrix unit takes -> the layout of its sum.
        bytes: place of a product of operands of 8 bits -> a group of warps may read them from shared memory.
        opened: places of calls on shared memory whose layout was left out.
        ranks: place of an allocation -> the dimensions that its layout must describe, and the line of that access.
        origins: id of the layout with which a buffer is traced -> place of its allocation, its dimensions, and the layout.
        warps: place of a worker partition -> its warps.
        rounds: place of the iterator of a compile-time loop -> the values that its variable had, once for each time.
        copied: places of tile loads that the target's unit for copies can do.
        falling: places of steps of ranges that are negative.
        banks: of shared memory. side_by_side: the lanes of a copy to it write one after the other.
        room: bytes of shared memory that a conversion can have, 0 for any number.
        matrices: operands may be loaded from it as matrices of eight rows.
        entered: the place of the partition whose function is traced next.
        constants: the compile-time arguments of the kernel, by name.
        decided: place of a call of `isinstance` or `hasattr` -> the results that it had.
        apart: tiles that are loaded may get other layouts than their own. loads_tiles: some are loaded.
        asked: place of the condition of a statement, of constants alone -> the results that it had.
    """

    program: Any = None
    jits: list[Any] = field(default_factory=list)
    nodes: dict[int, Place] = field(default_factory=dict)
    returned: dict[Place, list[Any]] = field(default_factory=dict)
    within: dict[Place, dict[Place, bool]] = field(default_factory=dict)
    functions: dict[Place, str] = field(default_factory=dict)
    called: dict[Place, Any] = field(default_factory=dict)
    methods: dict[Place, Any] = field(default_factory=dict)
    multiples: list[int] = field(default_factory=list)
    odd: set[str] = field(default_factory=set)
    unaided: dict[Place, BlockedLayout] = field(default_factory=dict)
    bytes: dict[Place, bool] = field(default_factory=dict)
    opened: set[Place] = field(default_factory=set)
    ranks: dict[Place, tuple[int, int]] = field(default_factory=dict)
    origins: dict[int, tuple[Optional[Place], int, Any]] = field(default_factory=dict)
    warps: dict[Place, int] = field(default_factory=dict)
    rounds: dict[Place, set[tuple[int, ...]]] = field(default_factory=dict)
    copied: set[Place] = field(default_factory=set)
    falling: set[Place] = field(default_factory=set)
    banks: int = 32
    side_by_side: bool = False
    matrices: bool = False
    room: int = 0
    entered: Optional[Place] = None
    constants: dict[str, Any] = field(default_factory=dict)
    decided: dict[Place, set[bool]] = field(default_factory=dict)
    asked: dict[Place, set[bool]] = field(default_factory=dict)
    apart: bool = False
    loads_tiles: bool = False
    kept: list[Any] = field(default_factory=list)  # ops, so that no id is used twice

    def values_of(self, node: Any, number: int) -> Sequence[Any]:
        """Return the values that an expression of function `number` had, once for each time that it was traced."""
        place = place_of(node, number)
        return self.returned.get(place, ()) if place else ()


def place_of(node: Any, number: int) -> Optional[Place]:
    """Return the place of an expression, by which another parse of function `number` has it."""
    if not isinstance(node, ast.expr) or getattr(node, "lineno", None) is None:
        return None
    last = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return (type(node).__name__, node.lineno, node.col_offset, *last, number)


def partition_of(place: Place, index: int) -> Place:
    """Return the place of the call of a partition, from that of `gl.warp_specialize`."""
    return (f"Partition {index}", *place[1:])
