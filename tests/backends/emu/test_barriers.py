"""Barriers of gfx12 other than the workgroup's, and loads that workgroups of a cluster share."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import BackendError
from gluon_core.language.amd.gfx1250 import async_copy, cluster, tdm
from gluon_core.testing import TRITON_VERSION
from gluon_emu.errors import AccessError, DeadlockError, RaceError
from tests.backends.emu.assembly import MISCOUNTED, run

# Wave 0 fills LDS and arrives at barrier 2; the other three wait there, having joined.
HAND_OVER = """
s_load_b64 s[4:5], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
v_and_b32_e32 v2, 0x7c, v1
s_mov_b32 m0, 0x10002
s_barrier_init m0
s_barrier_join 2
s_barrier_signal -1
s_barrier_wait -1
s_wait_kmcnt 0x0
v_readfirstlane_b32 s6, v0
s_cmp_lg_u32 s6, 0
s_cbranch_scc1 .Lothers
ds_store_b32 v1, v0
s_wait_dscnt 0x0
s_barrier_signal m0
s_endpgm
.Lothers:
s_barrier_wait 2
ds_load_b32 v3, v2
s_wait_dscnt 0x0
global_store_b32 v1, v3, s[4:5]
"""


def hand_over(body):
    out = np.full(128, 77, np.uint32)
    run(body, out, arch="gfx1250", waves=4, lds=128)
    return out


def test_a_named_barrier_hands_over():
    out = hand_over(HAND_OVER)
    assert (out[:32] == 77).all()
    np.testing.assert_array_equal(out[32:].reshape(3, 32), np.tile(np.arange(32), (3, 1)))


def test_a_named_barrier_without_its_waits_and_arrivals():
    with pytest.raises(RaceError, match="no barrier between"):
        hand_over(HAND_OVER.replace("s_barrier_wait 2\n", ""))
    with pytest.raises(RaceError, match="no wait before the barrier"):
        hand_over(HAND_OVER.replace("s_wait_dscnt 0x0\ns_barrier_signal m0", "s_barrier_signal m0"))
    with pytest.raises(DeadlockError, match=r"s_barrier_wait 2"):
        hand_over(HAND_OVER.replace("s_barrier_signal m0\n", ""))
    with pytest.raises(DeadlockError):  # it wants two
        hand_over(HAND_OVER.replace("0x10002", "0x20002"))


def test_barriers_that_there_are_not():
    with pytest.raises(BackendError, match="no such barrier"):
        hand_over(HAND_OVER.replace("s_barrier_wait 2", "s_barrier_wait 17"))
    with pytest.raises(AccessError, match="no barrier 32"):
        hand_over(HAND_OVER.replace("0x10002", "0x10020"))


def test_the_state_of_a_named_barrier():
    body = """
s_load_b64 s[4:5], s[0:1], 0x0
s_mov_b32 m0, 0x30005
s_barrier_init m0
s_barrier_signal 5
s_barrier_signal_isfirst 5
s_cselect_b32 s7, 0x100000, 0
s_get_barrier_state s6, 5
s_or_b32 s6, s6, s7
v_mov_b32_e32 v1, s6
v_lshlrev_b32_e32 v2, 2, v0
s_wait_kmcnt 0x0
global_store_b32 v2, v1, s[4:5]
"""
    out = np.zeros(32, np.uint32)
    run(body, out, arch="gfx1250")
    assert (out == 1 | 2 << 4 | 3 << 12).all()


if TRITON_VERSION >= (3, 7):
    SPLIT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0], cga_layout=[[1]]))
    SAME = gl.constexpr(gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0], cga_layout=[[0, 0]]))
    BOTH = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0], cga_layout=[[0, 0]]))


@gluon.jit
def transposed(x, middle, out, ARRIVE: gl.constexpr):
    # One workgroup reads the data that the other wrote.
    offsets = gl.arange(0, 256, SPLIT)
    gl.store(middle + offsets, gl.load(x + offsets) * 2)
    if ARRIVE:
        cluster.arrive()
    cluster.wait()
    gl.store(out + offsets, gl.load(middle + 255 - offsets))


@gluon.jit
def shared_box(x, out):
    d = tdm.make_tensor_descriptor(x, [32, 64], [64, 1], [32, 64], BOTH)
    smem = gl.allocate_shared_memory(gl.float32, [32, 64], BOTH)
    tdm.async_load(d, [0, 0], smem)
    tdm.async_wait(0)
    cluster.arrive()
    cluster.wait()
    rows = gl.arange(0, 32, gl.SliceLayout(1, SAME))
    columns = gl.arange(0, 64, gl.SliceLayout(0, SAME))
    gl.store(out + rows[:, None] * 64 + columns[None, :], smem.load(SAME))


@gluon.jit
def shared_copy(x, out):
    smem = gl.allocate_shared_memory(gl.float32, [32, 64], BOTH)
    rows = gl.arange(0, 32, gl.SliceLayout(1, SAME))
    columns = gl.arange(0, 64, gl.SliceLayout(0, SAME))
    offsets = rows[:, None] * 64 + columns[None, :]
    async_copy.global_to_shared(smem, x + offsets)
    async_copy.commit_group()
    async_copy.wait_group(0)
    cluster.arrive()
    cluster.wait()
    gl.store(out + offsets, smem.load(SAME))


clusters = pytest.mark.skipif(TRITON_VERSION < (3, 7), reason="clusters need Triton 3.7")
OPTIONS = {"target": "emu:gfx1250", "num_ctas": 2, "num_warps": 4}


@pytest.mark.once
@clusters
def test_the_barrier_of_a_cluster():
    x = np.arange(256, dtype=np.float32)
    middle, out = np.zeros_like(x), np.zeros_like(x)
    transposed[(1,)](x, middle, out, True, **OPTIONS)
    np.testing.assert_array_equal(out, 2 * x[::-1])
    with pytest.raises(DeadlockError, match="s_barrier_wait -3"):
        transposed[(1,)](x, middle, out, False, **OPTIONS)


@pytest.mark.once
@clusters
@pytest.mark.parametrize(
    "kernel, instruction",
    [
        (shared_box, "tensor_load_to_lds"),
        pytest.param(shared_copy, "cluster_load_async_to_lds_b128", marks=MISCOUNTED),
    ],
)
def test_workgroups_of_a_cluster_load_the_same(kernel, instruction):
    x, out = np.arange(2048, dtype=np.float32), np.zeros(2048, np.float32)
    compiled = kernel[(1,)](x, out, **OPTIONS)
    assert instruction in compiled.asm["amdgcn"]
    np.testing.assert_array_equal(out, x)


# Wave 0 of the first workgroup waits at the second barrier when the others come there, some of them from the first.
LATE = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
v_readfirstlane_b32 s6, v0
s_lshl_b32 s7, s2, 9
v_lshl_add_u32 v1, v0, 2, s7
v_mov_b32_e32 v2, 1
s_or_b32 s6, s6, s2
s_cmp_lg_u32 s6, 0
s_cbranch_scc1 .Lfar
s_branch .Lsecond
.Lfirst:
s_cmp_eq_u32 s2, 1
s_cbranch_scc0 .Lmiddle
s_barrier
.Lmiddle:
v_add_u32_e32 v2, 0, v2
.Lsecond:
s_barrier
s_waitcnt lgkmcnt(0)
global_store_dword v1, v2, s[4:5]
s_branch .Lend
.Lfar:
s_branch .Lfirst
.Lend:
"""


def test_waves_that_join_others_at_a_barrier_arrive():
    out = np.zeros(256, np.uint32)
    run(LATE, out, waves=2, grid=2)
    assert (out == 1).all()
