"""The unknown layouts of a kernel, the ops that relate two of them, and both together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional, Union

from gluon_core.errors import GluonError
from gluon_core.layouts import (
    BlockedLayout,
    DistributedLayout,
    DotOperandLayout,
    SharedLayout,
    SliceLayout,
    infer,
)
from gluon_write.partitions.short_launches import ShortLaunches
from gluon_write.tracing.sketch import Place, Site

__all__ = [
    "FMA",
    "UNIT",
    "Access",
    "AnyLayout",
    "Graph",
    "Reduction",
    "Relation",
    "Scan",
    "Unknown",
]

AnyLayout = Union[DistributedLayout, SharedLayout]
UNIT, FMA = "the matrix unit", "gl.dot_fma, since no matrix unit takes these operands"


@dataclass
class Access:
    """Hold one access to global memory.

    Attributes:
        strides: the elements per step of each dimension (None: far).
        together: neighbours that are surely aligned, and that a mask treats alike.
        place: of the call. least: bits that a thread has to move at once; 0 of loads and stores.
        alike: dimensions along which all elements have one condition.
        means: the elements per step in the mean, where neighbours share some.
        aligned: neighbours whose addresses are surely aligned, whatever the mask.
    """

    name: str
    line: int
    strides: tuple[Optional[int], ...]
    shape: tuple[int, ...]
    bits: int
    weight: int
    together: int = 64
    place: Optional[Place] = None
    least: int = 0
    alike: tuple[int, ...] = ()
    means: tuple[Optional[float], ...] = ()
    aligned: int = 64

    def form(self) -> tuple[Any, ...]:
        """Return the arguments of an access that costs as much, but for where it is in the source."""
        name = next((kind for kind in ("copy", "atomic", "store") if kind in self.name), "")
        how = self.bits, self.weight, self.together, None, self.least, (), self.means
        return name, 0, tuple(self.strides), tuple(self.shape), *how


class Scan(NamedTuple):
    """Hold a scan of some tensors of one shape, which runs `weight` times."""

    axis: int
    reverse: bool
    shape: tuple[int, ...]
    tensors: int
    weight: int


class Reduction(NamedTuple):
    """Hold a reduction of a tensor, which runs `weight` times.

    Attributes:
        at_once: one instruction could reduce the elements of a warp.
    """

    axis: int
    shape: tuple[int, ...]
    at_once: bool
    weight: int


@dataclass
class Unknown:
    """Hold one unknown layout, of tensors or of one shared buffer.

    Attributes:
        shape: of the largest value with it.
        fixed, fixed_by, fixed_line: the layout that an op or the kernel's source demands, which, and its line in the source.
        accesses: those to global memory through pointers with it.
        reductions, scans: those of tensors with it: Triton scans blocked layouts alone.
        steps: elementwise ops, those in loops counted often.
        sites: calls that make a tensor with it, each with the calls around it.
        homes: name of a value -> the functions that name it so.
        line: the first line where it occurs.
        conflict: another layout that is demanded, and by which op.
        unit: the matrix unit that reads a buffer, "" without one.
        first: of a buffer, the layout with which the kernel was traced; None of tensors.
        warps: over which a tensor is spread: those of the program, or of a partition.
        run: of an index vector, how many neighbours an access moves together at most: it takes the first index.
        compiled: all its values follow from numbers of the program, as `gl.arange(0, 4) == 2` does.
    """

    number: int
    shape: tuple[int, ...] = ()
    bits: int = 32
    fixed: Optional[AnyLayout] = None
    fixed_by: str = ""
    fixed_line: int = 0
    accesses: list[Access] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)
    steps: int = 0
    sites: list[Site] = field(default_factory=list)
    homes: dict[str, list[Any]] = field(default_factory=dict)
    line: int = 0
    conflict: Optional[tuple[Any, str]] = None
    unit: str = ""
    first: Optional[SharedLayout] = None
    warps: int = 0
    run: int = 1
    compiled: bool = True

    def form(self) -> tuple[Any, ...]:
        """Return all that the price of a layout depends on, but for the layout."""
        accesses = tuple((access.form(), access.alike) for access in self.accesses)
        ops = accesses, tuple(self.reductions), tuple(self.scans), self.steps, self.compiled
        kind = self.fixed is None, self.first is None, self.warps, self.run
        return tuple(self.shape), self.bits, ops, kind

    @property
    def names(self) -> list[str]:
        """Return the names of its values."""
        return list(self.homes)

    @property
    def demanded_by(self) -> str:
        """Return what demands the layout, without the line: a kernel in another form has other lines."""
        return self.fixed_by.partition(", line ")[0]


@dataclass
class Relation:
    """Hold an op between two unknown layouts, and the expression where a conversion can go.

    Attributes:
        kind: "same", "expand", "reduce", "trans", "infer", "operand", "convert": to whatever layout, or
            "view": of a shared buffer, the result, from a tensor's registers.
        detail: axis, order, function, operand index, or `View`.
        wrap: ("before" or "after", site), None where no conversion is possible.
        inverse: of "infer", the function from the result's layout to an operand's.
        room: bytes of shared memory that a conversion can have, 0 for any number.
        partitioned: the kernel has partitions, whose warps wait for each other next to products under way.
        known: the layouts that its rule has given so far; relations with one rule share them.
    """

    kind: str
    source: Any
    result: Any
    detail: Any
    source_shape: tuple[int, ...]
    result_shape: tuple[int, ...]
    bits: int
    wrap: Optional[tuple[str, Site]]
    op: str
    line: int
    weight: int = 1
    inverse: Any = None
    room: int = 0
    partitioned: bool = False
    known: dict[tuple[str, DistributedLayout], Any] = field(default_factory=dict, repr=False)

    def form(self) -> tuple[Any, ...]:
        """Return all that the price of the relation depends on, but for the two layouts."""
        place = self.wrap and self.wrap[0]
        around = self.source.warps, self.weight, self.bits, self.room, self.partitioned
        return self.rule(), place, around

    @property
    def waits(self) -> bool:
        """Return True if the barriers of a vector's conversion have their full price: other programs hide a part of it in loops."""
        return self.weight == 1 or self.partitioned

    def rule(self) -> tuple[Any, ...]:
        """Return all that the layout at one end depends on, but for that at the other."""
        detail = tuple(self.detail) if self.kind == "trans" else self.detail
        return self.kind, detail, self.inverse, tuple(self.source_shape), tuple(self.result_shape)

    def forward(self, layout: DistributedLayout) -> Optional[DistributedLayout]:
        """Return the layout that the op gives its result, None where it takes no such operand."""
        return self._once(self._forward, layout)

    def backward(self, layout: DistributedLayout) -> Optional[DistributedLayout]:
        """Return an operand's layout with which the result has `layout`, None without any."""
        return self._once(self._backward, layout)

    def _once(self, rule: Any, layout: DistributedLayout) -> Optional[DistributedLayout]:
        """Apply a rule once to each layout: tables ask for all pairs."""
        key = rule.__name__, layout
        if key not in self.known:
            try:
                self.known[key] = rule(layout)
            except GluonError as error:
                self.known[key] = error
        known: Any = self.known[key]
        if isinstance(known, GluonError):
            raise known
        result: Optional[DistributedLayout] = known
        return result

    def _forward(self, layout: DistributedLayout) -> Optional[DistributedLayout]:
        if self.kind in ("same", "convert"):
            return layout
        if self.kind == "reduce":
            return SliceLayout(self.detail, layout)
        if self.kind == "trans":
            permuted: DistributedLayout = infer.permute(layout, self.source_shape, self.detail)
            return permuted
        if self.kind == "infer":
            inferred: DistributedLayout = self.detail(layout)
            return inferred
        if self.kind == "operand":
            if isinstance(layout, DotOperandLayout) and layout.operand_index == self.detail:
                return layout.parent
            return None
        if isinstance(layout, SliceLayout) and layout.dim == self.detail:
            return layout.parent
        return None

    def _backward(self, layout: DistributedLayout) -> Optional[DistributedLayout]:
        if self.kind in ("same", "convert"):
            return layout
        if self.kind == "expand":
            return SliceLayout(self.detail, layout)
        if self.kind == "operand":
            return DotOperandLayout(self.detail, layout, 0)
        if self.kind == "trans":
            order = [list(self.detail).index(d) for d in range(len(self.detail))]
            permuted: DistributedLayout = infer.permute(layout, self.result_shape, order)
            return permuted
        if self.kind == "reduce" and isinstance(layout, SliceLayout) and layout.dim == self.detail:
            return layout.parent
        if self.kind == "infer" and self.inverse is not None:
            inverted: DistributedLayout = self.inverse(layout)
            return inverted
        return None


@dataclass
class Graph:
    """Hold the unknown layouts of a kernel.

    Attributes:
        unknowns: in the order of the program. relations: between two of them.
        lanes: of a warp. warps: of the program.
        jits: the kernel and the functions that it calls, by number.
        called: place of a call -> the function.
        contexts: the calls around each function that a pass has changed.
        tiles: (name, type, function that names it so) of each named view of a buffer whose layout is written.
        dependent: the kernel waits for the one in front of it, and can be placed before that has ended.
        short: which launches take the pipelined form of the kernel; None where all take one form.
        candidates: the layouts of each unknown, once somebody asked; few of them, or all.
    """

    unknowns: list[Unknown]
    relations: list[Relation]
    lanes: int
    warps: int
    jits: list[Any]
    called: dict[Place, Any]
    contexts: list[tuple[Place, ...]] = field(default_factory=list)
    tiles: list[tuple[str, Any, Any]] = field(default_factory=list)
    dependent: bool = False
    short: Optional[ShortLaunches] = None
    candidates: dict[bool, dict[int, list[AnyLayout]]] = field(default_factory=dict, repr=False)

    def multiplies(self) -> bool:
        """Return True if the kernel has products."""
        by_unit = any(u.unit or u.fixed_by.startswith((UNIT, FMA)) for u in self.unknowns)
        return by_unit or any(relation.kind == "operand" for relation in self.relations)

    def unit_loads(self) -> set[Place]:
        """Return the places of loads of tiles into a layout that a matrix unit demands."""
        units = (u for u in self.unknowns if u.fixed and not isinstance(u.fixed, BlockedLayout))
        accesses = (access for unknown in units for access in unknown.accesses)
        return {a.place for a in accesses if a.place and "load" in a.name and len(a.shape) > 1}
