"""Test the execution of PTX: control flow, barriers, memory spaces and calls, in texts of our own."""

from __future__ import annotations

import numpy as np
import pytest

from gluon_core.errors import BackendError
from gluon_emu.errors import (
    AccessError,
    DeadlockError,
    EmulatorError,
    TimeLimitError,
    TrapError,
    UninitialisedError,
    UnknownInstructionError,
)
from gluon_emu.memory import Allocation
from gluon_emu.ptx import launcher
from gluon_emu.ptx.launcher import execute, prepared
from gluon_emu.ptx.loaded import code_of
from gluon_emu.settings import Settings

pytestmark = pytest.mark.once
HEADER = """.version 8.4
.target sm_90a
.address_size 64
"""
SCHEDULES = pytest.mark.parametrize("schedule", ["latest", "eager", "random"])


def module(body, before="", parameters=".param .u64 out"):
    registers = ".reg .b32 %r<40>; .reg .b64 %d<20>; .reg .pred %p<10>; .reg .b32 %f<10>;"
    start = (
        "ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x;"
        "mad.lo.u32 %r3, %r1, %r2, %r0; mul.wide.u32 %d1, %r3, 4; add.s64 %d1, %d0, %d1;"
    )
    return f"{HEADER}{before}\n.visible .entry kernel({parameters}) {{\n{registers}\n{start}\n{body}\nret;\n}}"


def run(text, threads=64, blocks=1, cluster=1, shared=0, settings=None, arrays=()):
    """The words that a kernel stores to `out`, one for each thread."""
    out = np.zeros(threads * blocks, np.uint32)
    every = [out, *arrays]
    leaves = [(f"a{i}", "*", a.ctypes.data) for i, a in enumerate(every)]
    names = ["out", *(f"a{i}" for i in range(len(arrays)))]
    memory = [Allocation(n, a.view(np.uint8).ravel()) for n, a in zip(names, every)]
    code = code_of(text)
    request = prepared(
        code, (blocks, 1, 1), leaves, [], memory, shared, (cluster, 1, 1), (threads, 1, 1)
    )
    execute(request, settings or Settings())
    return out


STORE = "st.global.u32 [%d1], %r10;"


def test_threads_take_different_branches_and_meet_again():
    body = f"""
    and.b32 %r4, %r0, 3; mov.u32 %r10, 0; setp.eq.u32 %p0, %r4, 0; @%p0 bra $ZERO;
    setp.eq.u32 %p1, %r4, 1; @%p1 bra $ONE;
    add.u32 %r10, %r0, 1000; bra $END;
    $ZERO: mov.u32 %r10, 7; bra $END;
    $ONE: mul.lo.u32 %r10, %r0, 2;
    $END: redux.sync.add.s32 %r11, %r10, -1; sub.u32 %r10, %r11, %r10; {STORE}"""
    lane = np.arange(64)
    own = np.select([lane % 4 == 0, lane % 4 == 1], [7, lane * 2], lane + 1000)
    wanted = own.reshape(2, 32).sum(1).repeat(32) - own
    np.testing.assert_array_equal(run(module(body)), wanted)


def test_loops_with_a_count_for_each_thread():
    body = f"""
    mov.u32 %r10, 0; mov.u32 %r4, 0;
    $LOOP: setp.ge.u32 %p0, %r4, %r0; @%p0 bra $END;
    add.u32 %r10, %r10, %r4; add.u32 %r4, %r4, 1; bra $LOOP;
    $END: {STORE}"""
    n = np.arange(96)
    np.testing.assert_array_equal(run(module(body), 96), n * (n - 1) // 2)


def test_tables_of_branches_and_guarded_exits():
    body = f"""
    mov.u32 %r10, 5; setp.gt.u32 %p0, %r0, 59; @%p0 exit;
    rem.u32 %r4, %r0, 3; TABLE: .branchtargets $A, $B, $C; brx.idx %r4, TABLE;
    $A: mov.u32 %r10, 1; bra $END;
    $B: mov.u32 %r10, 2; bra $END;
    $C: mov.u32 %r10, 3;
    $END: {STORE}"""
    n = np.arange(64)
    np.testing.assert_array_equal(run(module(body)), np.where(n > 59, 0, n % 3 + 1))


def test_functions_return_values_and_divergent_calls():
    before = """.func (.param .b32 result) twice(.param .b32 x, .param .b32 y) {
    .reg .b32 %r<4>; .reg .pred %p<2>; ld.param.u32 %r0, [x]; ld.param.u32 %r1, [y];
    setp.gt.u32 %p0, %r0, 40; @%p0 bra $BIG; add.u32 %r0, %r0, %r0;
    $BIG: add.u32 %r0, %r0, %r1; st.param.b32 [result], %r0; ret; }"""
    body = f"""
    setp.lt.u32 %p1, %r0, 10; mov.u32 %r10, 0; @%p1 bra $END;
    {{ .param .b32 a; .param .b32 b; .param .b32 c; st.param.b32 [a], %r0; st.param.b32 [b], 3;
    call.uni (c), twice, (a, b); ld.param.b32 %r10, [c]; }}
    add.u32 %r10, %r10, %r0;
    $END: {STORE}"""
    n = np.arange(64)
    wanted = np.where(n < 10, 0, np.where(n > 40, n, 2 * n) + 3 + n)
    np.testing.assert_array_equal(run(module(body, before)), wanted)


@SCHEDULES
def test_named_barriers_between_warps(schedule):
    """A warp that makes numbers, and one that waits for them."""
    shared = ".shared .align 4 .b8 room[256];"
    body = f"""
    mov.u32 %r5, room; and.b32 %r6, %r0, 31; shl.b32 %r6, %r6, 2; add.u32 %r5, %r5, %r6;
    setp.ge.u32 %p0, %r0, 32; @%p0 bra $USE;
    mul.lo.u32 %r10, %r0, 3; st.shared.u32 [%r5], %r10; bar.arrive 1, 64; bra $END;
    $USE: bar.sync 1, 64; ld.shared.u32 %r10, [%r5]; add.u32 %r10, %r10, 1;
    $END: {STORE}"""
    n = np.arange(32) * 3
    got = run(module(body, shared), blocks=3, settings=Settings(schedule=schedule, seed=3))
    np.testing.assert_array_equal(got, np.tile(np.concatenate((n, n + 1)), 3))


def test_threads_of_one_warp_come_late_to_a_barrier_where_other_warps_wait():
    body = f"""
    mov.u32 %r10, 1; mov.u32 %r4, 0; setp.ne.u32 %p0, %r0, 40; @%p0 bra $MEET;
    $LOOP: add.u32 %r4, %r4, 1; atom.global.add.u32 %r6, [%d0+128], 0; setp.lt.u32 %p1, %r4, 5; @%p1 bra $LOOP;
    $MEET: bar.sync 0; add.u32 %r10, %r10, %r4; {STORE}"""
    wanted = np.ones(96, np.uint32)
    wanted[40] = 6
    np.testing.assert_array_equal(run(module(body), 96), wanted)


def test_barriers_that_reduce():
    body = f"""
    and.b32 %r4, %r0, 1; setp.eq.u32 %p0, %r4, 0;
    bar.red.popc.u32 %r10, 0, %p0; bar.red.and.pred %p1, 0, %p0; bar.red.or.pred %p2, 0, %p0;
    selp.u32 %r11, 100, 0, %p1; add.u32 %r10, %r10, %r11; selp.u32 %r11, 1000, 0, %p2;
    add.u32 %r10, %r10, %r11; {STORE}"""
    assert (run(module(body), 96) == 1048).all()


@SCHEDULES
def test_blocks_of_a_cluster_reach_each_other(schedule):
    shared = ".shared .align 8 .b8 room[16]; .shared .align 8 .b64 gate;"
    body = f"""
    mov.u32 %r4, room; mov.u32 %r5, %cluster_ctarank; mov.u32 %r8, gate;
    setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [%r8], 1;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    xor.b32 %r6, %r5, 1; mapa.shared::cluster.u32 %r7, %r4, %r6; mapa.shared::cluster.u32 %r9, %r8, %r6;
    add.u32 %r11, %r5, 40; @%p0 st.shared::cluster.u32 [%r7], %r11;
    @%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r9];
    $WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r8], 0; @!%p1 bra $WAIT;
    ld.shared.u32 %r10, [%r4]; barrier.cluster.arrive; barrier.cluster.wait; {STORE}"""
    got = run(module(body, shared), 32, 4, 2, settings=Settings(schedule=schedule))
    np.testing.assert_array_equal(got, np.repeat([41, 40, 41, 40], 32))


def test_local_and_generic_addresses():
    body = f"""
    .local .align 8 .b8 own[32]; .shared .align 4 .b8 room[512]; mov.u64 %d4, own; cvta.local.u64 %d5, %d4;
    mov.u64 %d6, room; cvta.shared.u64 %d7, %d6; mul.wide.u32 %d8, %r0, 4; add.s64 %d7, %d7, %d8;
    and.b32 %r4, %r0, 1; setp.eq.u32 %p0, %r4, 0; selp.b64 %d9, %d5, %d7, %p0;
    add.u32 %r5, %r0, 9; st.u32 [%d9], %r5; bar.sync 0; ld.u32 %r10, [%d9]; {STORE}"""
    np.testing.assert_array_equal(run(module(body)), np.arange(64) + 9)


def test_offsets_of_addresses_of_32_bits_wrap():
    """Compilers add to the base of an offset what makes it negative, as in `x - 16384`."""
    body = f"""
    .shared .align 4 .b8 room[512]; mov.u32 %r4, room; shl.b32 %r5, %r0, 2; add.u32 %r4, %r4, %r5; sub.u32 %r5, %r4, 16384;
    st.shared.u32 [%r5+16384], %r0; ld.shared.u32 %r10, [%r4]; add.u32 %r5, %r4, 8192; st.shared.u32 [%r5+-8192], 5;
    ld.shared.u32 %r6, [%r4]; add.u32 %r10, %r10, %r6; {STORE}"""
    np.testing.assert_array_equal(run(module(body)), np.arange(64) + 5)


def test_constants_and_addresses_of_variables():
    before = """.const .align 4 .u32 table[4] = {2, 3, 5, 7};
    .global .align 8 .u64 where = table; .global .u32 counter = 1;"""
    body = f"""
    mov.u64 %d4, where; ld.global.u64 %d5, [%d4]; and.b32 %r4, %r0, 3; mul.wide.u32 %d6, %r4, 4;
    add.s64 %d5, %d5, %d6; ld.const.u32 %r10, [%d5]; red.global.add.u32 [counter], 1; {STORE}"""
    np.testing.assert_array_equal(run(module(body, before)), np.array([2, 3, 5, 7] * 16))


def test_a_lock_that_threads_of_one_warp_take_in_turn():
    """Each holds it once; the others of its warp spin meanwhile."""
    before = ".global .u32 lock; .global .u32 count;"
    body = f"""
    $TRY: atom.global.cas.b32 %r4, [lock], 0, 1; setp.ne.u32 %p0, %r4, 0; @%p0 bra $TRY;
    ld.volatile.global.u32 %r10, [count]; add.u32 %r5, %r10, 1; st.volatile.global.u32 [count], %r5;
    atom.global.exch.b32 %r6, [lock], 0; {STORE}"""
    assert sorted(run(module(body, before))) == list(range(64))


def test_early_copies_are_seen_late():
    """Without its wait, a copy brings nothing yet."""
    source = np.arange(64, dtype=np.uint32) + 100
    shared = ".shared .align 16 .b8 room[1024];"
    text = (
        """
    ld.param.u64 %d4, [a]; mul.wide.u32 %d5, %r0, 4; add.s64 %d4, %d4, %d5;
    mov.u32 %r4, room; shl.b32 %r5, %r0, 2; add.u32 %r4, %r4, %r5;
    cp.async.ca.shared.global [%r4], [%d4], 4; cp.async.commit_group; WAIT
    ld.shared.u32 %r10, [%r4]; """
        + STORE
    )
    parameters = ".param .u64 out, .param .u64 a"
    waits = module(text.replace("WAIT", "cp.async.wait_group 0;"), shared, parameters)
    np.testing.assert_array_equal(run(waits, arrays=[source]), source)
    forgets = module(text.replace("WAIT", ""), shared, parameters)
    assert not (run(forgets, arrays=[source]) == source).any()


# ---- mistakes ------------------------------------------------------------------------------------

MISTAKES = {
    "past the end of out": ("st.global.u32 [%d1+256], %r0;", AccessError),
    "the address is no multiple of 4": ("st.global.u32 [%d1+2], %r0;", AccessError),
    "a null pointer": ("mov.u64 %d2, 0; ld.global.u32 %r4, [%d2];", AccessError),
    "before the block's shared memory": ("mov.u32 %r4, 0; ld.shared.u32 %r5, [%r4];", AccessError),
    "misses 1 of 1 arrivals|of a cluster of 1": (
        "mov.u32 %r4, 16778240; ld.shared::cluster.u32 %r5, [%r4];", AccessError),
    "no mbarrier was initialised": ("mov.u32 %r4, 1024; mbarrier.arrive.shared.b64 _, [%r4];", UninitialisedError),
    "there is no barrier 16": ("bar.sync 16;", EmulatorError),
    "40 threads at a barrier": ("bar.sync 1, 40;", EmulatorError),
    "the kernel trapped": ("trap;", TrapError),
    "32 of 64 threads came to barrier 1": ("setp.lt.u32 %p0, %r0, 32; @%p0 bar.sync 1, 64;", DeadlockError),
    "the other threads of the warp do not come": (
        "setp.lt.u32 %p0, %r0, 3; @!%p0 bra $L; shfl.sync.idx.b32 %r5, %r4, 0, 31, -1; $L: bar.sync 0;",
        DeadlockError),
    "a loop of kernel does not end": ("$L: add.u32 %r4, %r4, 1; bra $L;", TimeLimitError),
    "is not known": ("frob.u32 %r4, %r5;", UnknownInstructionError),
    "there is no label": ("bra $NOWHERE;", UnknownInstructionError),
    "neither a register nor a number": ("mov.u32 %r4 %r5;", BackendError),
    "the register `%x1` is not known": ("mov.u32 %x1, 3;", UnknownInstructionError),
    "has 64 bits": ("add.u32 %r4, %d4, 1;", UnknownInstructionError),
}  # fmt: skip


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_name_the_instruction_and_its_line(words, monkeypatch):
    monkeypatch.setattr("gluon_emu.ptx.machine.run._IDLE", 500)
    text, kind = MISTAKES[words]
    shared = ".shared .align 8 .b8 room[64];"
    with pytest.raises(kind, match=words) as caught:
        run(module(text, shared))
    if kind is not DeadlockError:
        assert "of the PTX" in str(caught.value)


def test_arrivals_that_a_barrier_misses_are_reported():
    shared = ".shared .align 8 .b64 gate;"
    body = """
    mov.u32 %r4, gate; setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [%r4], 2; bar.sync 0;
    @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 512;
    $L: mbarrier.try_wait.parity.shared.b64 %p1, [%r4], 0; @!%p1 bra $L;"""
    with pytest.raises((DeadlockError, TimeLimitError)):
        run(module(body, shared), settings=Settings(timeout=5))


def test_sums_do_not_depend_on_the_exponents_of_other_warps():
    """Products whose exponents are far apart are added in float64, together with those of the other warps."""
    body = """
    mad.lo.u32 %r4, %r3, 32, %r4; mul.wide.u32 %d2, %r3, 32; ld.param.u64 %d3, [x]; add.u64 %d2, %d2, %d3;
    ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%d2]; ld.global.v2.b32 {%r14, %r15}, [%d2+16];
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r10, %r11, %r12, %r13},
        {%r14, %r15}, {0f3F800001, 0f00000000, 0f34000001, 0f3EAAAAAB};
    xor.b32 %r16, %f0, %f1; shf.l.wrap.b32 %r16, %r16, %r16, 7; xor.b32 %r16, %r16, %f2;
    shf.l.wrap.b32 %r16, %r16, %r16, 7; xor.b32 %r16, %r16, %f3; st.global.u32 [%d1], %r16;"""
    text = module(body, parameters=".param .u64 out, .param .u64 x")
    rng = np.random.default_rng(1)
    numbers = rng.standard_normal((64, 8, 2)) * 2.0 ** rng.integers(-6, 7, (64, 8, 2))
    near = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    far = near.copy()
    far[32:] = (near[32:] & 0x807F) | 0x6000  # 2^65
    near, far = (run(text, arrays=[words]) for words in (near, far))
    assert len(set(near[:32])) > 16
    np.testing.assert_array_equal(near[:32], far[:32])
    assert (near[32:] != far[32:]).all()


def test_blocks_whose_copies_come_go_on_together(monkeypatch):
    """The schedule "latest" lets one copy of each block come, so that all blocks execute the next instruction at once."""
    machines = []

    class Kept(launcher.Machine):
        def run(self):
            machines.append(self)
            super().run()

    monkeypatch.setattr(launcher, "Machine", Kept)
    body = """
    .shared .align 128 .b8 room[256]; .shared .b64 bar; mov.u32 %r4, bar; mov.u32 %r5, room; setp.ne.u32 %p0, %r0, 0;
    @%p0 bra $WAIT; mbarrier.init.shared.b64 [%r4], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 256;
    ld.param.u64 %d3, [x]; mul.wide.u32 %d4, %r1, 256; add.u64 %d3, %d3, %d4;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%d3], 256, [%r4];
    $WAIT: bar.sync 0;
    $AGAIN: mbarrier.try_wait.parity.shared.b64 %p1, [%r4], 0; @!%p1 bra $AGAIN;
    mad.lo.u32 %r6, %r0, 4, %r5; ld.shared.u32 %r10, [%r6]; st.global.u32 [%d1], %r10;"""
    x = np.arange(64 * 40, dtype=np.uint32)
    text = module(body, parameters=".param .u64 out, .param .u64 x")
    np.testing.assert_array_equal(run(text, blocks=40, arrays=[x]), x)
    assert machines[0].counted < 3 * len(machines[0].steps)
