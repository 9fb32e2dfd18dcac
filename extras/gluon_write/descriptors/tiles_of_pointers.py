"""Let a kernel load tiles of descriptors where it has blocks, or pointers to strided tiles."""

from __future__ import annotations

import contextlib
from math import prod
from typing import Any, Iterator, Optional

from gluon_core.errors import GluonError
from gluon_write.descriptors.describe import described
from gluon_write.descriptors.strided import strided
from gluon_write.loops.loops import viewed
from gluon_write.loops.tile_loops import loops_of_tiles
from gluon_write.partitions.partitions import SHARERS
from gluon_write.partitions.shared_walk import DEALT
from gluon_write.partitions.walk import walking
from gluon_write.pipelines.tiles_ahead import has_several_products, reads_tiles
from gluon_write.preferred import chosen_form
from gluon_write.rewrites.adjacent import with_adjacent_loops
from gluon_write.rewrites.hoist import hoisted
from gluon_write.rewrites.inline import in_own_text
from gluon_write.rewrites.wider_steps import takes_any_order, with_wider_steps
from gluon_write.text.syntax import argument, mentions, operands_of, stores
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.tracer import Tracer

__all__ = ["in_one_walk", "strided_tiles_pay", "with_strided_tiles", "with_tiles"]

_HALF = 128  # registers of a thread


def with_tiles(fn: Any, drawn: Sketch, traced: Tracer) -> tuple[Any, Sketch]:
    """Return a kernel with tiles for blocks, where the target's unit copies them, and its trace.

    Loops of several products keep pointers unless they can be in partitions whose programs walk over the grid: as tiles they took
    1.1 to 1.3 of the time on an H200.
    """
    tiled = described(fn, drawn) if traced.has("nvidia.tma") else fn
    if tiled is fn:
        return fn, drawn
    try:
        other = traced(tiled)
    except GluonError:  # a place or an extent that tiles cannot have
        return fn, drawn
    loads = {place for place, name in other.functions.items() if name == "gl.portable.load"}
    if not loads or loads != other.copied:
        return fn, drawn
    if not has_several_products(other, traced.target):
        return tiled, other
    walks = chosen_form() != "pipelined" and walking(tiled, other) is not None
    return (tiled, other) if walks else (fn, drawn)


def with_strided_tiles(
    fn: Any, drawn: Sketch, traced: Tracer
) -> Iterator[tuple[Any, Sketch, bool]]:
    """Yield forms of a kernel with tiles for strided pointers and its loops of products in its own text, their traces, and True where steps
    may come in any order.

    None where other loads than such tiles are operands, or the unit does not read them from shared memory. The first
    takes several steps of an online softmax at once.
    """
    unit = traced.has("nvidia.wgmma") or traced.has("nvidia.tcgen05")
    if not unit or not traced.has("nvidia.tma") or chosen_form() == "pipelined":
        return
    try:
        whole, own, _ = in_own_text(fn, drawn, traced)
    except GluonError:  # a part of the kernel has no trace
        return
    any_order = traced.has("nvidia.wgmma") and takes_any_order(whole, own)
    wide = with_wider_steps(whole, own) if traced.has("nvidia.wgmma") else whole
    if wide is not whole:
        with contextlib.suppress(GluonError):  # a size that does not fit the others
            tiled = _tiled(wide, traced(wide), traced)
            if tiled is not None:
                yield *tiled, any_order
    tiled = _tiled(whole, own, traced)
    if tiled is not None:
        yield *tiled, any_order


def in_one_walk(fn: Any, drawn: Sketch, traced: Tracer) -> tuple[Any, Sketch, bool]:
    """Return a kernel whose functions have steps of one online softmax in its own text, where their loops may follow each other, its
    trace, and True; or the kernel, its trace, and False."""
    if traced.has("nvidia.wgmma") and chosen_form() != "pipelined":
        with contextlib.suppress(GluonError):  # a part of the kernel has no trace
            whole, own, inlined = in_own_text(fn, drawn, traced)
            follows = inlined and with_adjacent_loops(whole, own) is not whole
            if follows and reads_tiles(own, traced.target) and takes_any_order(whole, own):
                return whole, own, True
    return fn, drawn, False


def _tiled(whole: Any, own: Sketch, traced: Tracer) -> Optional[tuple[Any, Sketch]]:
    try:
        tiled = strided(whole, own, steps=traced.has("nvidia.tcgen05"))  # its sums begin in a step
        if tiled is whole:
            return None
        # Products within expressions are read, too.
        tiled, other = traced.after(tiled, traced(tiled), hoisted)
    except GluonError:  # tiles cannot have a place
        return None
    loads = {place for place, name in other.functions.items() if name == "gl.portable.load"}
    return (tiled, other) if loads == other.copied and reads_tiles(other, traced.target) else None


def strided_tiles_pay(formed: Any, tiled: Sketch, traced: Tracer) -> bool:
    """Return True if tiles of strided pointers pay in the form that a kernel got.

    On Hopper they do where three groups of rows share them, and where programs are dealt blocks of different work, as
    under a causal mask: on an H200 attention took 0.73 to 0.92 and 0.71 to 0.98 of the time by pointers then, for 4096 keys. With two
    groups and blocks of equal work it took 1.05 to 1.08, a GEMM of 2048 1.03 and those of 4096 and 8192 0.98; but 0.57
    with heads of 128 in four warps, whose sums leave no registers for products that are under way.
    Partitions begin about 4 us later there.

    Args:
        tiled: the trace of the kernel with tiles.
    """
    if _is_asked(traced):
        return "tma_ring" in formed.src
    if _multiplies_tiles(tiled, traced):
        return "tma_ring" in formed.src or ".portable.pipeline(" in formed.src
    groups = "consumers=" in formed.src
    shared = f"consumers={SHARERS}" in formed.src
    return shared or groups and (_deals(formed) or _is_crowded(tiled, traced))


def _multiplies_tiles(tiled: Sketch, traced: Tracer) -> bool:
    """Return True if no product of a loop waits for another one: all operands are tiles."""
    readers = loops_of_tiles(tiled, traced.target, traced.warps)
    pairs = [(reader, loop) for reader in readers for loop in reader.loops()]
    return bool(pairs) and all(
        viewed(one, reader) in loop.tiles
        for reader, loop in pairs
        for product in loop.products
        for one in operands_of(product)
    )


def _is_crowded(tiled: Sketch, traced: Tracer) -> bool:
    """Return True if a sum that a loop carries takes half the registers of a launch's threads."""
    readers = loops_of_tiles(tiled, traced.target, traced.warps)
    for reader in readers:
        for loop in reader.loops():
            for product in loop.products:
                kind, acc = reader.type_of(product), argument(product, 2, "acc")
                carried = acc is not None and mentions(acc) & stores(loop.node)
                if kind and carried and prod(kind[0]) >= _HALF * traced.threads:
                    return True
    return False


def _deals(formed: Any) -> bool:
    """Return True if programs are dealt blocks of different work."""
    functions = [one for one in formed.get_capture_scope().values() if hasattr(one, "src")]
    return any(DEALT in one.src for one in functions)


def _is_asked(traced: Tracer) -> bool:
    """Return True where all rings of strided tiles pay, or a caller asks for them."""
    return traced.has("nvidia.tcgen05") or chosen_form() == "specialized"
