"""Blocks of a cluster that meet in each other's shared memory, each at its own pace."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.features import CLUSTER_ENDS
from gluon_core.language.nvidia import hopper
from gluon_core.language.nvidia.hopper import mbarrier, tma
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.testing import TRITON_VERSION
from gluon_sim.errors import RaceError
from gluon_sim.settings import using

since_8 = pytest.mark.skipif(TRITON_VERSION < (3, 8), reason="needs Triton 3.8")
ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[1, 0]]))
COLUMNS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[0, 1]]))
COPIES = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[0, 0]]))
BY_COLUMNS = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 1]]))
BY_ROWS = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[1, 0]]))
EVERYWHERE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 0]]))
SCHEDULES = [("latest", 0), ("eager", 0), ("random", 3)]


@gluon.jit
def places(LAYOUT: gl.constexpr):
    rows = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, 128, gl.SliceLayout(0, LAYOUT))
    return rows[:, None] * 128 + columns[None, :]


@gluon.jit
def exchange(a, out, IN: gl.constexpr, OUT: gl.constexpr, SYNC: gl.constexpr, END: gl.constexpr):
    """Load in one block the stores of another."""
    tile = gl.allocate_shared_memory(gl.float16, [64, 128], BY_COLUMNS)
    tile.store(gl.load(a + places(IN)))
    if SYNC == "cluster":
        gl.barrier(cluster=True)
    elif SYNC == "block":
        gl.barrier()
    gl.store(out + places(OUT), tile.load(OUT))
    if END:
        gl.barrier(cluster=True)


def matrix():
    a = np.arange(64 * 128, dtype=np.float16).reshape(64, 128)
    return a, np.zeros_like(a)


def run(kernel, *constants):
    a, out = matrix()
    kernel[(1,)](a, out, *constants, num_ctas=2, target="sim:sm_90")
    np.testing.assert_array_equal(out, a)


@pytest.mark.once
@since_8
@pytest.mark.parametrize("there, back", [(COLUMNS, ROWS), (ROWS, COLUMNS), (ROWS, ROWS)])
def test_stores_and_loads_of_another_block_need_a_barrier_of_the_cluster(there, back):
    run(exchange, there, back, "cluster", True)
    for sync in ("nothing", "block"):
        if there is back:  # each block reads its own writes
            run(exchange, there, back, sync, True)
            continue
        with pytest.raises(RaceError, match="by block 1") as error:
            run(exchange, there, back, sync, True)
        assert error.value.report == "race.blocks"
        assert {a.kind for a in error.value.accesses} == {"read", "write"}
        assert "gl.barrier(cluster=True) between line" in error.value.remedy


@gluon.jit
def exchanges(a, out, PART: gl.constexpr):
    """Programs of which only one, or each through another buffer, loads what the other block stored."""
    program = gl.program_id(0)
    tiles = gl.allocate_shared_memory(gl.float16, [2, 64, 128], BY_COLUMNS)
    a += program * 64 * 128
    tiles.index(0).store(gl.load(a + places(COLUMNS)))
    tiles.index(1).store(gl.load(a + places(COLUMNS)))
    if PART == "branch":
        if program == 1:
            gl.store(out + places(ROWS), tiles.index(0).load(ROWS))
    else:
        gl.store(out + places(ROWS), tiles.index(program).load(ROWS))
    gl.barrier(cluster=True)


@pytest.mark.once
@since_8
@pytest.mark.parametrize("part", ["branch", "buffer"])
def test_blocks_of_programs_that_do_not_do_the_same(part):
    a, out = np.ones((2, 64, 128), np.float16), np.zeros((64, 128), np.float16)
    with pytest.raises(RaceError, match="by block . of the cluster") as error:
        exchanges[(2,)](a, out, part, num_ctas=2, target="sim:sm_90")
    assert error.value.program == ((1, 0, 0) if part == "branch" else (0, 0, 0))


@pytest.mark.once
@since_8
def test_a_block_that_ends_while_another_reads_its_memory():
    run(exchange, COLUMNS, COLUMNS, "nothing", False)  # nobody reads another's
    if CLUSTER_ENDS.held_by(TRITON_VERSION):
        run(exchange, COLUMNS, ROWS, "cluster", False)
        return
    with pytest.raises(RaceError, match="block . of the cluster may have ended") as error:
        run(exchange, COLUMNS, ROWS, "cluster", False)
    assert "End the kernel with gl.barrier(cluster=True)" in error.value.remedy


@gluon.jit
def hand_over_all(a, out, ROUNDS: gl.constexpr, SYNC: gl.constexpr):
    """Each round brings a tile to all blocks, into the memory of the round before."""
    tile = gl.allocate_shared_memory(gl.float16, [64, 128], EVERYWHERE)
    there = mbarrier.allocate_mbarrier()
    gone = mbarrier.allocate_mbarrier(two_ctas=SYNC == "one barrier for both")
    mbarrier.init(there, count=1)
    mbarrier.init(gone, count=1)
    gl.barrier(cluster=True)
    for i in range(ROUNDS):
        mbarrier.expect(there, 64 * 128 * 2)
        tma.async_copy_global_to_shared(a, [0, 0], there, tile, multicast=True)
        mbarrier.wait(there, i % 2)
        gl.store(out + places(COPIES), tile.load(COPIES))
        if SYNC == "cluster":
            gl.barrier(cluster=True)
        elif SYNC != "nothing":
            mbarrier.arrive(gone)
            mbarrier.wait(gone, i % 2)
    mbarrier.invalidate(there)


def multicast(rounds, sync):
    a, out = matrix()
    box = TensorDescriptor.from_tensor(a, [64, 128], EVERYWHERE.value)
    hand_over_all[(1,)](box, out, rounds, sync, num_ctas=2, target="sim:sm_90")
    np.testing.assert_array_equal(out, a)


@pytest.mark.skipif(TRITON_VERSION < (3, 7), reason="needs Triton 3.7")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_copy_to_all_blocks_over_bytes_that_another_block_still_reads(schedule):
    with using(schedule=schedule[0], seed=schedule[1]):
        multicast(1, "nothing")
        multicast(3, "cluster")
        multicast(3, "one barrier for both")
        for sync in ("nothing", "a barrier each"):
            with pytest.raises(RaceError, match="by block 0 of the cluster, and the read") as error:
                multicast(3, sync)
            assert error.value.report == "race.blocks"


@gluon.jit
def send(a, out, ROUNDS: gl.constexpr, SYNC: gl.constexpr):
    """Rows of one block to columns of the other."""
    tile = gl.allocate_shared_memory(gl.float16, [64, 128], BY_COLUMNS)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    gl.barrier(cluster=True)
    x = gl.load(a + places(ROWS))
    for i in range(ROUNDS):
        mbarrier.expect(bar, tile.nbytes_per_cta)
        hopper.async_store(tile, x, bar)
        mbarrier.wait(bar, i % 2)
        gl.store(out + places(COLUMNS), tile.load(COLUMNS))
        if SYNC:
            gl.barrier(cluster=True)


@pytest.mark.once
@since_8
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stores_to_a_block_that_still_reads(schedule):
    with using(schedule=schedule[0], seed=schedule[1]):
        run(send, 1, False)
        run(send, 3, True)
        with pytest.raises(RaceError, match="by block"):
            run(send, 3, False)


@gluon.jit
def converted(a, out):
    """The compiler itself lets the blocks wait for each other around a conversion."""
    tile = gl.allocate_shared_memory(gl.float16, [64, 128], BY_ROWS)
    tile.store(gl.load(a + places(ROWS)))
    x = gl.convert_layout(gl.load(a + places(ROWS)), COLUMNS)
    gl.store(out + places(COLUMNS), x)


@since_8
def test_conversions_between_blocks():
    run(converted)


@since_8
def test_the_checks_can_be_switched_off():
    with using(races=False):
        run(exchange, COLUMNS, ROWS, "nothing", False)
