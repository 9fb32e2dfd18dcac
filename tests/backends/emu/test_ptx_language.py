"""Test parts of PTX that compilers rarely write: vectors of registers, parameters in registers, aliases, constant expressions, old and new instructions."""

from __future__ import annotations

import numpy as np
import pytest

from gluon_core.errors import BackendError
from gluon_emu.errors import AccessError, UnknownInstructionError
from gluon_emu.memory import Allocation
from gluon_emu.ptx.launcher import execute, prepared
from gluon_emu.ptx.loaded import code_of
from gluon_emu.settings import Settings
from tests.backends.emu.test_ptx_machine import HEADER, STORE, module, run

pytestmark = pytest.mark.once
LANES = np.arange(64)


def test_registers_of_several_parts():
    body = """
    .reg .v4 .u32 v; .reg .v2 .f32 w; mov.v4.u32 v, %tid; add.u32 v.y, v.x, 5; mov.v4.u32 v, {v.y, v.x, v.x, 3};
    st.global.u32 [%d1], v.x; ld.global.u32 v.z, [%d1]; mov.v2.f32 w, {0f3F800000, 0f40000000}; add.f32 w.x, w.x, w.y;
    cvt.rzi.u32.f32 v.w, w.x; mad.lo.u32 %r10, v.z, 100, v.y; add.u32 %r10, %r10, v.w;"""
    np.testing.assert_array_equal(run(module(body + STORE)), (LANES + 5) * 100 + LANES + 3)


FUNCTIONS = """
.func (.reg .u32 sum) added(.reg .u32 a, .reg .pred twice) { add.u32 sum, a, 1; @twice add.u32 sum, sum, a; ret; }
.visible .func named(); .alias named, other; .global .u32 count;
.visible .func other() { .reg .u32 %a; atom.global.add.u32 %a, [count], 1; ret; }
.func (.reg .u32 r) factorial(.reg .u32 n) {
  .reg .pred p; .reg .u32 m; setp.gt.u32 p, n, 1; @p bra MORE; mov.u32 r, 1; ret;
  MORE: sub.u32 m, n, 1; call (r), factorial, (m); mul.lo.u32 r, r, n; ret; }
"""


def test_parameters_in_registers_and_aliases():
    body = """
    setp.eq.u32 %p0, %r0, 7; call (%r10), added, (%r0, %p0); call (%r11), added, (40, 0); add.u32 %r10, %r10, %r11;
    call named; bar.sync 0; ld.global.u32 %r11, [count]; mad.lo.u32 %r10, %r11, 1000, %r10;"""
    wanted = LANES + 1 + np.where(LANES == 7, 7, 0) + 41 + 64_000
    np.testing.assert_array_equal(run(module(body + STORE, FUNCTIONS)), wanted)


def test_recursion_with_parameters_in_registers():
    body = "and.b32 %r4, %r0, 7; call (%r10), factorial, (%r4);"
    wanted = np.array([1, 1, 2, 6, 24, 120, 720, 5040])[LANES % 8]
    np.testing.assert_array_equal(run(module(body + STORE, FUNCTIONS)), wanted)


def test_calls_by_an_address_with_listed_targets():
    body = """
    mov.u64 %d5, added; listed: .calltargets added; setp.ne.u32 %p0, 0, 0; call (%r10), %d5, (%r0, %p0), listed;"""
    np.testing.assert_array_equal(run(module(body + STORE, FUNCTIONS)), LANES + 1)


@pytest.mark.parametrize(
    "text, value",
    [
        ("(4 > 2) ? 7 : 9", 7),
        ("1 ? 0 ? 3 : (2 == 2 ? 4 : 5) : 6", 4),
        ("(-7) / 2 + 10", 7),
        ("(-7) % 4 + 10", 7),
        ("3 && 0 || 2 != 1", 1),
        ("!0 << 4 | 017", 31),
        ("(.s64) 0x10U + ~-4", 19),
        ("-1 < 0", 1),
    ],
)
def test_constant_expressions(text, value):
    assert run(module(f"mov.u32 %r10, {text};{STORE}"))[0] == value


def test_addresses_of_variables_and_their_parts():
    before = '#line 3 "a.cu"\n.global .u32 table[4] = {1, 2, 3, 4}; .global .samplerref s = { addr_mode_0 = wrap };'
    body = "mov.u64 %d5, table+8; ld.global.u32 %r10, [%d5];"
    assert run(module(body + STORE, before))[0] == 3


def test_blocks_that_are_clusters():
    text = module("mov.u32 %r10, %cluster_nctarank; mad.lo.u32 %r10, %r1, 10, %r10;" + STORE)
    text = text.replace("out)", "out) .reqntid 32 .reqnctapercluster 2 .blocksareclusters", 1)
    out = np.zeros(128, np.uint32)
    wanted = np.repeat(np.arange(4) * 10 + 2, 32)
    memory = [Allocation("out", out.view(np.uint8))]
    request = prepared(code_of(text), (2, 1, 1), [("out", "*", out.ctypes.data)], [], memory, 0)
    execute(request, Settings())
    np.testing.assert_array_equal(out, wanted)


def _nth_bit(mask, base, offset):
    """Follow the words of the PTX ISA, 9.7.1.19."""
    if offset == 0:
        return base if 0 <= base < 32 and mask >> base & 1 else 0xFFFFFFFF
    place, left, step = base, abs(offset) - 1, 1 if offset > 0 else -1
    while 0 <= place < 32:
        if mask >> place & 1:
            if left == 0:
                return place
            left -= 1
        place += step
    return 0xFFFFFFFF


@pytest.mark.parametrize("offset", [0, 1, 3, -1, -4, 40])
@pytest.mark.parametrize("mask", [0xF0F0_8001, 0, 0xFFFF_FFFF])
def test_the_nth_bit_that_is_set(mask, offset):
    body = f"sub.u32 %r4, %r0, 8; fns.b32 %r10, {mask:#x}, %r4, {offset};"
    wanted = [_nth_bit(mask, lane - 8, offset) for lane in range(64)]
    np.testing.assert_array_equal(run(module(body + STORE)), np.array(wanted, np.uint32))


def test_products_of_elements_outside_of_a_tensor_are_zero():
    body = """
    .reg .b16 %h<4>; mov.b16 %h0, 0x7ff7; mov.b16 %h1, 0x3c00; mov.b16 %h2, 0x4000;
    fma.rn.oob.f16 %h3, %h0, %h1, %h2; mov.b32 %r4, {%h3, %h1}; mov.b32 %r5, {%h1, %h0}; mov.b32 %r6, {%h2, %h2};
    fma.rn.oob.f16x2 %r10, %r6, %r5, %r6; xor.b32 %r10, %r10, %r4;"""
    assert run(module(body + STORE))[0] == 0x4400 ^ 0x3C000000


def test_accesses_to_mapped_memory():
    body = "st.mmio.relaxed.sys.global.u32 [%d1], %r0; ld.mmio.relaxed.sys.global.u32 %r10, [%d1]; add.u32 %r10, %r10, 1;"
    np.testing.assert_array_equal(run(module(body + STORE)), LANES + 1)


FILL = """
.shared .align 16 .b8 room[256]; mov.u32 %r4, room; mad.lo.u32 %r5, %r0, 4, %r4; st.shared.u32 [%r5], 7; bar.sync 0;
setp.ne.u32 %p0, %r0, 0; @%p0 bra $DONE; st.bulk.weak.shared::cta [%r4+{start}], 32, 0; $DONE: bar.sync 0; ld.shared.u32 %r10, [%r5];"""


def test_zeros_in_bulk():
    text = module(FILL.format(start=16) + STORE).replace("sm_90a", "sm_100a")
    wanted = np.where((LANES >= 4) & (LANES < 12), 0, 7)
    np.testing.assert_array_equal(run(text), wanted)
    with pytest.raises(AccessError, match="multiple of 8"):
        run(module(FILL.format(start=4)).replace("sm_90a", "sm_100a"))


def test_arrivals_that_a_state_misses():
    body = """
    .shared .b64 bar; mov.u32 %r4, bar; setp.ne.u32 %p0, %r0, 0; @%p0 bra $WAIT; mbarrier.init.shared.b64 [%r4], 64;
    $WAIT: bar.sync 0; mbarrier.arrive.shared.b64 %d4, [%r4]; mbarrier.pending_count.b64 %r10, %d4;
    $AGAIN: mbarrier.test_wait.shared.b64 %p1, [%r4], %d4; @!%p1 bra $AGAIN;"""
    assert sorted(run(module(body + STORE))) == list(range(1, 65))


def test_bulk_copies_of_some_bytes():
    body = """
    .shared .align 16 .b8 room[256]; mov.u32 %r4, room; mad.lo.u32 %r5, %r0, 4, %r4; st.shared.u32 [%r5], 0x01010101;
    st.global.u32 [%d1], 0x02020202; fence.proxy.async; bar.sync 0; setp.ne.u32 %p0, %r0, 0; @%p0 bra $DONE; .reg .b16 %h<2>;
    mov.b16 %h0, 0x8003; cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%d0], [%r4], 256, %h0;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; $DONE:"""
    out = run(module(body).replace("sm_90a", "sm_100a"))
    np.testing.assert_array_equal(out.view(np.uint8).reshape(-1, 16)[3], [1, 1, *[2] * 13, 1])


@pytest.mark.parametrize(
    "line, words",
    [
        ("tex.2d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [t, {%r1, %r2}]", "`tex` is not known.*texture"),
        ("suld.b.1d.b32.trap %r0, [t, {%r1}]", "`suld` is not known.*surface"),
        (
            "multimem.ld_reduce.global.add.u32 %r0, [%d1]",
            "`multimem` is not known.*several devices",
        ),
    ],
)
def test_instructions_of_other_units_are_named(line, words):
    with pytest.raises(UnknownInstructionError, match=f"{words}[^$]*line 8 of the PTX"):
        run(module(f"{line};"))


@pytest.mark.parametrize(
    "text, words",
    [
        (HEADER.replace("64", "32"), "line 3 of the PTX: addresses of 64 bits alone"),
        (HEADER + ".alias a, b;", "line 4 of the PTX: an alias of b, which has no body"),
        (
            HEADER + ".global .b32 x[2] = {1, 2, 3};",
            "line 4 of the PTX: 12 bytes of values for a variable of 8 bytes",
        ),
        (
            HEADER + ".global .b32 x = y;",
            "line 4 of the PTX: 8 bytes of values for a variable of 4 bytes",
        ),
        (HEADER + ".alias a;", "line 4 of the PTX: an alias has two names"),
        (HEADER + ".global .u32 x = 3 ? ;", "line 4 of the PTX: neither a register nor a number"),
    ],
)
def test_malformed_texts_name_their_line(text, words):
    with pytest.raises(BackendError, match=words):
        run(text)


def test_products_of_bits_by_a_warpgroup():
    """64 rows of 256 bits in registers, 8 columns in shared memory as two matrices of 8 x 16 bytes."""
    body = f"""
    .shared .align 1024 .b8 room[256]; ld.param.u64 %d3, [x]; mul.wide.u32 %d4, %r0, 16; add.u64 %d4, %d4, %d3;
    ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%d4]; setp.gt.u32 %p0, %r0, 63; @%p0 bra $IN; mul.wide.u32 %d4, %r0, 4;
    add.u64 %d4, %d4, %d3; ld.global.b32 %r14, [%d4+2048]; mov.u32 %r4, room; mad.lo.u32 %r5, %r0, 4, %r4;
    st.shared.b32 [%r5], %r14; $IN: fence.proxy.async.shared::cta; bar.sync 0; mov.u32 %r4, room; shr.u32 %r4, %r4, 4;
    cvt.u64.u32 %d5, %r4; or.b64 %d5, %d5, {(128 >> 4) << 16 | (256 >> 4) << 32:#x}; setp.ne.u32 %p1, 0, 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {{%r20, %r21, %r22, %r23}}, {{%r10, %r11, %r12, %r13}}, %d5, %p1;
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; shl.b32 %r21, %r21, 8; shl.b32 %r22, %r22, 16;
    shl.b32 %r23, %r23, 24; or.b32 %r20, %r20, %r21; or.b32 %r22, %r22, %r23; or.b32 %r20, %r20, %r22; st.global.u32 [%d1], %r20;"""
    x = np.random.default_rng(0).integers(0, 1 << 32, 576, dtype=np.uint32)
    out = run(module(body, parameters=".param .u64 out, .param .u64 x"), 128, arrays=[x])
    words, lane = x[:512].reshape(128, 4), np.arange(128)
    rows = np.zeros((64, 8), np.uint32)
    row = lane // 32 * 16 + lane % 32 // 4
    for register in range(4):
        rows[row + 8 * (register % 2), register // 2 * 4 + lane % 4] = words[:, register]
    columns = x[512:].reshape(2, 8, 4).swapaxes(0, 1).reshape(8, 8)
    both = rows[:, None] & columns[None]
    wanted = np.unpackbits(both.view(np.uint8), axis=-1).sum(-1)
    for register in range(4):
        column = lane % 4 * 2 + register % 2
        got = out >> (8 * register) & 255
        np.testing.assert_array_equal(got, wanted[row + register // 2 * 8, column])
