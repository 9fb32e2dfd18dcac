"""Choose how many buffers a loop of products has: a multiprocessor holds as many programs as these leave room for."""

from __future__ import annotations

import ast
from math import prod
from typing import Any, Sequence

from gluon_write.loops.loops import Loop

__all__ = ["ends_in_steps", "filling", "fills_registers", "takes_all"]

# A fourth buffer saves a barrier in each step. On an H200 convolutions of 3x3 in tiles of 64x64x32 and 128x64x32, of which a
# multiprocessor then holds two thirds as many, took 0.92 and 0.95 of the time; one of 128x128x64, left alone with its buffers, 1.40.
_SAVING, _ENOUGH_WARPS = 4, 16
# Three buffers for four let two programs of grouped products and of convolutions in tiles of 128x128x64 run: 0.90 and 0.72 to 0.84.
_PAIRING = 3
# Registers bound how many programs there are, too: a table of products in four warps, tiles of 128x128x32, took 0.85.
# Two programs of four warps for one more: experts whose weights are bytes took 0.75 of the time with products that end in their step.
_FEW_WARPS = 8
# Registers of a thread for a product and its sum: products of FP8 with scales, in tiles of 128x128 and four warps, took 0.87 of the
# time with copies behind both, and without scales ahead.
_FULL, _WORD = 256, 32
_REGISTERS, _OWN, _LANES = 1 << 16, 48, 32  # of a multiprocessor; of a thread besides sums


def filling(reader: Any, loop: Loop, fitting: int, size: int, left: int) -> int:
    """Return how many buffers a loop has: one more where a multiprocessor holds as many programs so, or enough, and three where it holds
    two programs with these alone.

    Args:
        reader: of the loop, a `Prefetcher`. fitting: buffers that a launch asks for.
        size: bytes of a step's copies. left: those that are free for them.
    """
    if not loop.issued:
        return fitting
    held, adds = _held(reader, loop), reader.adds_alone(loop)

    def programs(buffers: int) -> int:
        return min(left // (buffers * size), held)

    if adds and fitting >= _SAVING and programs(fitting) == 1 < programs(_PAIRING):
        fitting = _PAIRING
    more = programs(fitting + 1)
    saves = fitting + 1 == _SAVING and adds
    enough = saves and more * reader.warps >= _ENOUGH_WARPS
    return fitting + 1 if more and (more == programs(fitting) or enough) else fitting


def ends_in_steps(reader: Any, loop: Loop, stages: int, room: int) -> bool:
    """Return True if a multiprocessor holds more programs whose products are over in their step: tiles that a step stores have one buffer.

    Args:
        reader: of the loop, a `Prefetcher`. stages: buffers that a launch asks for. room: bytes of shared memory of a program.
    """
    stored = sum(tile.bytes for tile in loop.tiles.values() if tile.stored)
    alone = loop.node not in reader.begun and not reader.following(loop)
    if not loop.issued or not stored or not alone:
        return False
    held, used = _held(reader, loop), stages * sum(tile.bytes for tile in loop.copied)
    both, one = (min(room // (used + buffers * stored), held) for buffers in (2, 1))
    return bool(one > both and both * reader.warps <= _FEW_WARPS)


def fills_registers(reader: Any, loop: Loop) -> bool:
    """Return True if the one product of a step and the sum that it is added to take the registers of all threads: addresses of copies
    had better be computed behind both."""
    kinds = [reader.type_of(one.value) for one in loop.issued if isinstance(one, ast.Assign)]
    if len(kinds) != 1 or kinds[0] is None or reader.adds_alone(loop):
        return False
    shape, bits = kinds[0]
    return takes_all(shape, bits, reader.warps * _LANES)


def takes_all(shape: Sequence[int], bits: int, threads: int) -> bool:
    """Return True if a product of that shape and the sum that it is added to take the registers of all threads."""
    return 2 * prod(shape) * bits >= _FULL * _WORD * threads


def _held(reader: Any, loop: Loop) -> int:
    """Return how many programs a multiprocessor has registers for."""
    kinds = [reader.type_of(one.value) for one in loop.issued if isinstance(one, ast.Assign)]
    words = sum(prod(kind[0]) * kind[1] // _WORD for kind in kinds if kind)
    programs: int = _REGISTERS // (words + _OWN * reader.warps * _LANES)
    return max(1, programs)
