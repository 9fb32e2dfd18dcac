"""Choose the partitions of a kernel: one that copies, and as many that have a part of the rows as pay."""

from __future__ import annotations

import re
from typing import Any, Optional

from gluon_core.errors import GluonError
from gluon_write.partitions.partitions import (
    LAUNCHED,
    MOST_PARTS,
    REGISTERS,
    SHARERS,
    Order,
    Partitions,
)
from gluon_write.partitions.programs import reversed_programs
from gluon_write.partitions.ring_plan import GROUP, Crowded, NoForm, NoRoom
from gluon_write.partitions.rows import parted
from gluon_write.partitions.shared_walk import Sharing
from gluon_write.partitions.walk import walking
from gluon_write.pipelines.tiles_ahead import has_several_products
from gluon_write.tracing.branches import taken_alone
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.tracer import Tracer

__all__ = ["FewerWarps", "in_partitions"]

_PAYS = 97  # percents of the time of two groups that three may take at most
_THREE = 0.87  # of the model's time of a round that three groups take on an H200: one more is ready when others wait
_AXES = 2  # of a grid along which consumers may share tiles


class FewerWarps(Exception):
    """Say that a kernel takes less time with fewer warps: those of a launch only copy, and leave registers for more groups.

    Attributes:
        warps: of the kernel.
    """

    def __init__(self, warps: int):
        super().__init__(warps)
        self.warps = warps


def in_partitions(
    fn: Any, drawn: Sketch, traced: Tracer, form: Optional[str], fewer: bool, any_order: bool
) -> Any:
    """Return a kernel with a producer and consumers of their own rows, or the kernel where that does not pay.

    Args:
        form: "specialized" or "pipelined" to have that one; None for the one that costs less.
        fewer: the kernel may have fewer warps. any_order: steps of its loops may come in any order.

    Raises:
        FewerWarps: another number of warps takes less time.
    """
    able = traced.has("nvidia.wgmma") and traced.warps in REGISTERS
    if not able or not traced.copies_tiles(drawn) or form == "pipelined":
        return fn
    parts = MOST_PARTS if has_several_products(drawn, traced.target) else 1
    written: Optional[Partitions] = None
    try:
        written = _with_parts(fn, drawn, traced, parts, Order(any_order))
    except NoRoom:  # a program that walks stores its result when no tile is on its way
        pass
    except (NoForm, GluonError):
        return fn
    heavy = None if written is None else written.heavy_axis()
    walk = walking(fn, drawn, heavy)
    if walk is not None:
        try:
            order = Order(any_order, walk.ends)
            walks = _with_parts(walk.kernel, traced(walk.kernel), traced, parts, order)
            pays = walks.gain > 1 and (parts > 1 or walks.alone)
            try:
                shared = _sharing(fn, drawn, traced, walks, fewer, any_order)
            except GluonError:  # a part of the kernel that no trace has seen
                shared = None
            chosen = walks if shared is None else shared
            return chosen.kernel if form or pays else fn
        except (NoForm, GluonError):
            pass  # each program has its own block
    if written is None:
        return fn
    if parts == 1:
        pays = written.walks and written.alone and written.gain > 1
        return written.kernel if written.walks and form or pays else fn
    ordered = reversed_programs(fn, drawn, heavy) if heavy is not None else None
    if ordered is not None:
        try:
            written = _with_parts(ordered, traced(ordered), traced, parts, Order(any_order))
        except (NoForm, GluonError):
            pass  # in the order of the grid
    return written.kernel if form or written.gain > 1 else fn


def _with_parts(fn: Any, drawn: Sketch, traced: Tracer, parts: int, order: Order) -> Partitions:
    if parts == 1:
        return Partitions(fn, drawn, traced, 1, "", order)
    halved = parted(fn, drawn, parts)
    if halved is None:
        raise NoForm
    fn, part = halved
    return Partitions(fn, traced(fn, GROUP), traced, parts, part, order)


def _sharing(
    fn: Any, drawn: Sketch, traced: Tracer, other: Partitions, fewer: bool, any_order: bool
) -> Optional[Partitions]:
    """Return a kernel of which three consumers share the tiles of a step, or two where these take less time, or have to; None of
    kernels whose tiles differ by block.

    The tiles have to be the same for blocks that follow each other along an axis of the grid.

    Args:
        other: the walk whose consumers have a part of one block each.
        fewer: the kernel may have fewer warps. any_order: steps of its loops may come in any order.

    Raises:
        FewerWarps: three have registers if those of the launch are fewer.
    """
    parts, warps = other.parts, traced.warps
    if parts == 1:
        return None
    fn, drawn = traced.after(fn, drawn, taken_alone)  # other branches may have other tiles
    halved = parted(fn, drawn, parts)
    if halved is None:
        return None
    asks = any(re.search(r"\bnum_warps\b", jit.src) for jit in drawn.jits)
    launched = GROUP if fewer and not asks else warps
    cycles = other.cycles_of(parts)
    cost = round(100 * _THREE * other.cycles_of(SHARERS) / cycles) if cycles else 0
    pays = (launched, SHARERS) in LAUNCHED and 0 < cost * parts <= _PAYS * SHARERS
    kernel, part = halved
    half = traced(kernel, GROUP)
    for consumers, price, own_warps in ((SHARERS, cost, launched), (parts, 100, warps)):
        for axis in range(_AXES) if pays or consumers == parts else ():
            walk = walking(kernel, half, sharing=Sharing(axis, part, parts, consumers, price))
            if walk is None or walk.shared is None:
                continue
            try:
                own, member = traced(walk.kernel, GROUP), walk.shared.member
                order = Order(any_order, walk.ends, walk.shared)
                launch = traced.with_warps(own_warps)
                shared = Partitions(walk.kernel, own, launch, consumers, member, order)
            except Crowded:
                break  # along each axis
            except (NoForm, GluonError):
                continue
            if own_warps != warps:
                raise FewerWarps(own_warps)
            return shared
    return None
