"""Programs that walk over a grid, as many as a device has multiprocessors."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring
from tests.prove.proofs import LAYOUT, describe, judged

pytest.importorskip("z3", reason="gluon-core[prove] is not installed")


@gluon.jit
def copied(ring, tiles, blocks, ASM: gl.constexpr):
    slot = ring.producer()
    units = gl.inline_asm_elementwise(ASM, "=r", [], gl.int32, True, 1)
    for _ in range(gl.program_id(0), blocks, units):
        for i in range(tiles):
            ring.fetch(slot, [[0, i * 32]])
            slot = slot.next()


@gluon.jit
def summed(
    ring, dst, tiles, blocks, ASM: gl.constexpr, RELEASES: gl.constexpr, layout: gl.constexpr
):
    slot = ring.consumer()
    units = gl.inline_asm_elementwise(ASM, "=r", [], gl.int32, True, 1)
    for block in range(gl.program_id(0), blocks, units):
        total = gl.zeros([8, 32], gl.float32, layout)
        for i in range(tiles):
            total += ring.wait(slot).load(layout)
            if RELEASES:
                ring.release(slot)
            slot = slot.next()
        rows = gl.arange(0, 8, layout=gl.SliceLayout(1, layout))[:, None]
        columns = gl.arange(0, 32, layout=gl.SliceLayout(0, layout))[None, :]
        gl.store(dst + block * 256 + rows * 32 + columns, total)


@gluon.jit
def walking(
    src, dst, tiles, blocks, ASM: gl.constexpr, RELEASES: gl.constexpr, layout: gl.constexpr
):
    """Sum the tiles of a row for each block."""
    if gl.program_id(0) >= gl.inline_asm_elementwise(ASM, "=r", [], gl.int32, True, 1):
        return
    ring = tma_ring([src], 2)
    gl.warp_specialize(
        [
            (summed, (ring, dst, tiles, blocks, ASM, RELEASES, layout)),
            (copied, (ring, tiles, blocks, ASM)),
        ],
        [1],
        [24],
    )


def verdict(asm, releases):
    src, dst = np.ones((8, 96), np.float32), np.zeros((4, 8, 32), np.float32)
    arguments = describe(src), dst, 3, 4, asm, releases, LAYOUT
    return (*judged(walking, (4,), *arguments, target="sim:sm_90"), dst)


def test_any_number_of_multiprocessors():
    proof, error, dst = verdict("mov.u32 $0, %nsmid;", True)
    assert proof.verdict == "proved" and error is None, proof
    assert (dst == 3).all()


def test_a_slot_that_is_never_released():
    proof, error, _ = verdict("mov.u32 $0, %nsmid;", False)
    assert proof.verdict == "counterexample" and error.report == "deadlock.tasks", proof


def test_other_registers_are_not_followed():
    proof, _, _ = verdict("mov.u32 $0, %smid;", True)
    assert proof.verdict == "cannot say" and "inline assembly" in "\n".join(proof.lines), proof


@gluon.jit
def products(out, places, depth, BK: gl.constexpr, layout: gl.constexpr):
    """Multiply a tile by itself a few times; the places of later copies run ahead of the steps."""
    layouts: gl.constexpr = gl.portable.mma_layouts(
        128, 64, BK, gl.float16, gl.float16, operands="shared"
    )
    a = gl.allocate_shared_memory(gl.float16, [128, BK], layouts.a_shared)
    b = gl.allocate_shared_memory(gl.float16, [BK, 64], layouts.b_shared)
    a.store(gl.full([128, BK], 1, gl.float16, layout))
    b.store(gl.full([BK, 64], 1, gl.float16, layout))
    gl.nvidia.hopper.fence_async_shared()
    acc = gl.portable.accumulator(layouts)
    ahead = 2 * BK
    for _ in range(0, depth, BK):
        acc = gl.portable.mma(a, b, acc, is_async=True)
        ahead += BK
    gl.store(places + gl.program_id(0), ahead)
    rows = gl.arange(0, 128, layout=gl.SliceLayout(1, layouts.accumulator))[:, None]
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, layouts.accumulator))[None, :]
    gl.store(out + rows * 64 + columns, gl.portable.read(acc))


def test_counters_that_begin_behind_the_first_step():
    """A wait for the last product depends on how many there were; none is a case of its own, wherever other counters begin."""
    out, places = np.zeros((128, 64), np.float32), np.zeros(1, np.int32)
    proof, error = judged(products, (1,), out, places, 96, 32, LAYOUT, target="sim:sm_100")
    assert proof.verdict == "proved" and error is None, proof
    assert (out == 96).all() and places[0] == 160
