"""Have short launches of a kernel in partitions take its pipelined form.

Partitions take some microseconds until their first product: for barriers, their descriptors, and the registers that warps
exchange. Then they are faster, but one program of them is on a multiprocessor, and two of the pipelined form often are. Both
forms are compiled, and the host chooses for each launch, by its grid and the arguments that bound the steps of its loops.

Costs are rows of keys in whose time three groups of rows multiply them by heads of 64 columns, 13 ns on an H200. They are fitted
to 188 times of attention there, by pointers, blocks and descriptors, with and without a causal mask.
"""

from __future__ import annotations

import os
import re
from dataclasses import astuple, dataclass
from math import prod
from typing import Any, Callable, Optional, Sequence

from gluon_core.compiler import CompiledKernel
from gluon_core.compiler.driver import compile_source
from gluon_write.partitions.partitions import SHARERS
from gluon_write.partitions.row_bounds import RowBound, row_bounds
from gluon_write.partitions.shared_walk import DEALT
from gluon_write.partitions.walk import walks
from gluon_write.preferred import chosen_form, preferred_form
from gluon_write.rewrites.wider_steps import WIDE
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.tracer import Tracer

__all__ = ["LEAST", "ShortLaunches", "choosing", "short_launches_of"]

LEAST = 0.85  # of the time of a round that partitions take with few programs
_START = 512  # until the first product of partitions
_DEALT_START = 333  # where programs are dealt blocks of different work
_WORDS = 64  # of a thread for a sum: with more, the pipelined form has no registers
_OWN = 90  # registers of a thread besides scores and sums
_MOST = 255  # registers of a thread
_HEAD = 64  # columns of narrow heads
_REGISTERS = 1 << 16  # of a multiprocessor
_EXPONENTIAL = re.compile(r"\bexp2?\(")
_TILES = re.compile(r"\b(descriptor|block_of)\(")


@dataclass(frozen=True)
class ShortLaunches:
    """Say which launches take less time in the pipelined form.

    Attributes:
        bounds: multiples of sizes of a launch; its loops walk over no more rows than the largest.
        room: programs of the pipelined form that the device holds at once; units: its multiprocessors.
        slope, single: costs of a row in the pipelined form, with as many programs as there is room for, and with one on a
            multiprocessor. begin: rows in whose time its programs begin and end.
        places: programs in partitions whose rows are multiplied at once. start: until their first product.
        share: of the rows that a program has in the mean. each: rows in whose time a round begins and ends.
        warps: of the pipelined form.
    """

    bounds: tuple[RowBound, ...]
    units: int
    room: int
    slope: float
    single: float
    begin: int
    places: int
    start: int
    share: float
    each: int
    warps: int

    def test(self, names: Sequence[str]) -> Callable[[Sequence[int], Sequence[Any]], bool]:
        """Return a function that returns True if a launch is short.

        It takes the programs in x, y, z, and the arguments.

        Args:
            names: of the parameters.
        """
        along = [(b.factor, b.size) for b in self.bounds if isinstance(b.size, int)]
        passed = [(b.factor, names.index(b.size)) for b in self.bounds if isinstance(b.size, str)]
        _, units, room, slope, single, begin, places, start, share, each, _ = astuple(self)

        def is_short(grid: Sequence[int], values: Sequence[Any]) -> bool:
            programs, rows = grid[0] * grid[1] * grid[2], 0
            for factor, axis in along:
                rows = max(rows, factor * grid[axis])
            for factor, index in passed:
                rows = max(rows, factor * values[index])
            full, rest = divmod(programs, room)
            last = slope if rest > units else single if rest else 0.0
            pipelined = (slope * full + last) * (rows + begin)
            partitions = start + max(LEAST, programs / places) * (share * rows + each)
            return bool(pipelined < partitions)

        return is_short

    def facts(self) -> list[Any]:
        """Return the numbers as metadata of a compiled kernel has them."""
        _, *numbers = astuple(self)
        return [[[bound.factor, bound.size] for bound in self.bounds], *numbers]

    @classmethod
    def of_facts(cls, facts: Sequence[Any]) -> ShortLaunches:
        """Return what `facts` returned the numbers of."""
        bounds, *numbers = facts
        return cls(tuple(RowBound(*bound) for bound in bounds), *numbers)


def short_launches_of(
    fn: Any, before: Sketch, jits: Sequence[Any], traced: Tracer
) -> Optional[ShortLaunches]:
    """Return which launches of a kernel take the pipelined form; None where all take one form.

    Args:
        fn: the kernel without partitions. before: its trace.
        jits: the functions of the kernel as it was written for the target, itself first.
    """
    units = int(traced.target.architecture.peaks.get("units", 0))
    special = traced.has("nvidia.wgmma") and "tma_ring(" in jits[0].src
    if chosen_form() or not units or not special:
        return None
    if not any(_EXPONENTIAL.search(jit.src) for jit in before.jits):
        return None  # no attention
    shapes = _products(before)
    if len(shapes) < 2 or prod(shapes[-1]) > _WORDS * traced.threads:
        return None
    bounds = tuple(row_bounds(fn, before))
    two = _holds_two(shapes, traced)
    described = any("descriptor(" in jit.src for jit in before.jits)
    narrow_heads = shapes[-1][1] <= _HEAD
    if not bounds or described and not two and not narrow_heads:  # programs begin as late
        return None
    tiles = any(_TILES.search(jit.src) for jit in before.jits)
    narrow = tiles and shapes[0][1] < WIDE  # steps stay as short as they are
    if any(DEALT in jit.src for jit in jits):
        start, share, each = _DEALT_START if narrow_heads else _START, 0.5, 300 if tiles else 250
        each = 400 if narrow else each
    else:
        shared = f"consumers={SHARERS}" in jits[0].src
        start, share, each = _START, 1.0, 250 if narrow else 100 if shared else 200
    if not walks(jits):
        start, each = 0, each + start  # each program makes barriers and descriptors of its own
    if two:
        own = (2 * units, 1.45, 1.1, 325 if described else 170)
    else:
        own = (units, 0.87, 0.87, 300) if narrow_heads else (units, 1.4, 1.4, 360)
    places = units * 3 // 2 if narrow_heads else units
    return ShortLaunches(bounds, units, *own, places, start, share, each, traced.warps)


def _holds_two(shapes: Sequence[tuple[int, ...]], traced: Tracer) -> bool:
    """Return True if a multiprocessor holds two programs of the pipelined form.

    Args:
        shapes: of the results of products, scores first and sums last.
    """
    threads = traced.threads
    words = prod(shapes[0]) // threads + prod(shapes[-1]) // threads
    buffers = 2 * traced.stages * shapes[0][1]
    shared = 2 * shapes[-1][1] * (buffers + shapes[-1][0])  # bytes of keys, values and queries
    fits = 2 * threads * min(_MOST, words + _OWN) <= _REGISTERS
    return fits and 2 * shared <= traced.room


def _products(drawn: Sketch) -> list[tuple[int, ...]]:
    """Return the shapes of the results of a kernel's products, in the order in which they were traced."""
    shapes = {
        place: tuple(values[-1].type.dims)
        for place, values in drawn.returned.items()
        if drawn.functions.get(place) in ("gl.portable.mma", "gl.dot")
        and len(getattr(values[-1].type, "dims", ())) == 2
    }
    return list(shapes.values())


def choosing(
    compiled: CompiledKernel, launch: Callable[..., Any], options: Any
) -> Callable[..., Any]:
    """Return a launch that takes the pipelined form for short launches: the service `write.launch`.

    Args:
        compiled: the kernel in partitions. launch: of it, on the current device. options: that it was compiled with.
    """
    if getattr(options, "instrumentation_mode", None):
        return launch  # a recording describes one form
    device = compiled.backend.device.current()
    short = ShortLaunches.of_facts(compiled.metadata.short_launches)
    is_short = short.test(compiled.src.fn.arg_names)
    forms: list[Callable[..., Any]] = []

    def pipelined() -> Callable[..., Any]:
        if not forms:
            strict = os.environ.get("GLUON_NO_JIT", "0") not in ("", "0")
            with preferred_form("pipelined", short.warps):
                other = compile_source(
                    compiled.src, compiled.target, compiled.backend, options, load_only=strict
                )
            forms.append(launch if other is None else other.launcher(device))
        return forms[0]

    if not compiled.backend.simulates:
        pipelined()  # a graph that is captured cannot load it

    def chosen(sizes: Any, stream: Any, *values: Any) -> Any:
        return (pipelined() if is_short(sizes, values) else launch)(sizes, stream, *values)

    return chosen
