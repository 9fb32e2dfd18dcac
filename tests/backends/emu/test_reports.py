"""Errors in machine code are reported with their instruction, and clean code is not."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import BackendError, GluonError
from gluon_core.registry.load import registry
from gluon_emu.errors import (
    AccessError,
    DeadlockError,
    MissingWaitError,
    RaceError,
    TimeLimitError,
    TrapError,
    UninitialisedError,
    UnknownInstructionError,
)
from gluon_emu.settings import Settings, using
from tests.backends.emu.assembly import run
from tests.backends.emu.mutants import Subject, distances, mutants

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

COPY = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_lshlrev_b32_e32 v1, 2, v0
.loc 1 7 3
global_load_dword v2, v1, s[4:5]
s_waitcnt vmcnt(0)
v_add_u32_e32 v2, 1, v2
global_store_dword v1, v2, s[6:7]
"""
# Each wave writes its part of LDS, and reads that of the other.
EXCHANGE = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_lshlrev_b32_e32 v1, 2, v0
v_xor_b32_e32 v2, 0x100, v1
ds_write_b32 v1, v0
s_waitcnt lgkmcnt(0)
s_barrier
ds_read_b32 v3, v2
s_waitcnt lgkmcnt(0)
global_store_dword v1, v3, s[4:5]
"""


def lines(count, of=np.uint32):
    return np.arange(count, dtype=of)


def test_clean_code_is_clean():
    x, out = lines(64), np.zeros(64, np.uint32)
    run(COPY, x, out)
    np.testing.assert_array_equal(out, x + 1)
    out = np.zeros(128, np.uint32)
    run(EXCHANGE, out, waves=2, lds=512)
    np.testing.assert_array_equal(out, lines(128) ^ 64)


def without(text, line):
    assert line in text
    return text.replace(line + "\n", "", 1)


def test_a_missing_wait_names_everything():
    body = without(COPY, "s_waitcnt vmcnt(0)")
    with pytest.raises(MissingWaitError) as caught:
        run(body, lines(64), np.zeros(64, np.uint32))
    text = str(caught.value)
    assert "missing s_waitcnt vmcnt(0)" in text and "v2" in text
    assert "`global_load_dword v2, v1, s[4:5]`" in text
    assert caught.value.instruction == "v_add_u32_e32 v2, 1, v2"
    assert caught.value.span.line == 7 and caught.value.span.file == "kernel.py"


def test_scalar_loads_end_in_any_order():
    body = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
s_load_dwordx2 s[6:7], s[0:1], 0x0
s_waitcnt lgkmcnt(1)
s_add_u32 s8, s4, 0
"""
    with pytest.raises(MissingWaitError, match=r"lgkmcnt\(0\).*reads s4"):
        run(body, lines(4))


def test_vector_loads_end_in_order():
    body = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_lshlrev_b32_e32 v1, 2, v0
global_load_dword v2, v1, s[4:5]
global_load_dword v3, v1, s[4:5]
s_waitcnt vmcnt(1)
v_add_u32_e32 v4, v2, v2
{}
"""
    run(body.format("s_nop 0"), lines(64))
    with pytest.raises(MissingWaitError, match=r"vmcnt\(0\).*reads v3"):
        run(body.format("v_add_u32_e32 v4, v3, v3"), lines(64))
    with pytest.raises(MissingWaitError, match="writes v3"):  # the load would win
        run(body.format("v_mov_b32_e32 v3, 0"), lines(64))


@pytest.mark.parametrize("line", ["s_barrier", "s_waitcnt lgkmcnt(0)\ns_barrier"])
def test_a_race_in_lds(line):
    with pytest.raises(RaceError, match="ds_write_b32 v1, v0"):
        run(without(EXCHANGE, line), np.zeros(128, np.uint32), waves=2, lds=512)


def test_a_wait_before_the_barrier_is_needed():
    body = EXCHANGE.replace("s_waitcnt lgkmcnt(0)\ns_barrier", "s_barrier")
    with pytest.raises(RaceError, match="no wait before the barrier"):
        run(body, np.zeros(128, np.uint32), waves=2, lds=512)


def test_waves_store_copies_of_a_tile_in_any_order():
    body = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_and_b32_e32 v1, 63, v0
v_lshlrev_b32_e32 v2, 2, v1
ds_write_b32 v2, {}
s_waitcnt lgkmcnt(0)
s_barrier
ds_read_b32 v3, v2
s_waitcnt lgkmcnt(0)
v_lshlrev_b32_e32 v4, 2, v0
global_store_dword v4, v3, s[4:5]
"""
    out = np.zeros(128, np.uint32)
    run(body.format("v1"), out, waves=2, lds=256)
    assert np.array_equal(out, np.tile(lines(64), 2))
    with pytest.raises(RaceError, match="writes what wave"):
        run(body.format("v0"), np.zeros(128, np.uint32), waves=2, lds=256)


@pytest.mark.parametrize("bits, right", [(20, False), (2, True)])
def test_waves_store_copies_of_floats_that_are_rounded_otherwise(bits, right):
    body = f"""
v_and_b32_e32 v1, 63, v0
v_lshlrev_b32_e32 v2, 2, v1
v_lshrrev_b32_e32 v3, 6, v0
v_lshlrev_b32_e32 v3, {bits}, v3
v_add_u32_e32 v3, 1.0, v3
ds_write_b32 v2, v3
"""
    if right:
        run(body, np.zeros(128, np.uint32), waves=2, lds=256)
    else:
        with pytest.raises(RaceError, match="writes what wave"):
            run(body, np.zeros(128, np.uint32), waves=2, lds=256)


def test_split_barriers():
    body = """
s_load_b64 s[4:5], s[0:1], 0x0
s_wait_kmcnt 0x0
v_lshlrev_b32_e32 v1, 2, v0
v_xor_b32_e32 v2, 0x80, v1
ds_store_b32 v1, v0
s_wait_dscnt 0x0
s_barrier_signal -1
s_barrier_wait -1
ds_load_b32 v3, v2
s_wait_dscnt 0x0
global_store_b32 v1, v3, s[4:5]
"""
    out = np.zeros(64, np.uint32)
    run(body, out, arch="gfx1201", waves=2, lds=256)
    np.testing.assert_array_equal(out, lines(64) ^ 32)
    late = body.replace(
        "s_wait_dscnt 0x0\ns_barrier_signal -1", "s_barrier_signal -1\ns_wait_dscnt 0x0"
    )
    with pytest.raises(RaceError):
        run(late, out, arch="gfx1201", waves=2, lds=256)


def test_addresses_outside_of_all_arrays():
    with pytest.raises(AccessError, match="past the end of argument 0") as caught:
        run(COPY, lines(60), np.zeros(64, np.uint32))
    assert caught.value.span.line == 7 and "lane 60" in str(caught.value)
    with pytest.raises(AccessError, match="in argument 1, which is read-only"):
        out = np.zeros(64, np.uint32)
        out.flags.writeable = False
        run(COPY, lines(64), out)


def test_addresses_outside_of_lds():
    with pytest.raises(AccessError, match="outside of LDS: 4 bytes at 256 of 256"):
        run(EXCHANGE, np.zeros(128, np.uint32), waves=2, lds=256)


@pytest.mark.parametrize(
    "load", ["ds_read_b32 v3, v2 offset:252", "ds_read2_b32 v[3:4], v2 offset0:63 offset1:62"]
)
def test_offsets_into_lds_wrap(load):
    """As compilers write `252 - 4 * lane`."""
    last = "v_add_u32_e32 v2, 4, v2\n" if "read2" in load else ""
    body = f"""
s_load_dwordx2 s[4:5], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
v_sub_u32_e32 v2, 0, v1
{last}s_waitcnt lgkmcnt(0)
ds_write_b32 v1, v0
ds_write_b32 v1, v0 offset:256
s_waitcnt lgkmcnt(0)
{load}
s_waitcnt lgkmcnt(0)
global_store_dword v1, {"v4" if last else "v3"}, s[4:5]
"""
    out = np.zeros(64, np.uint32)
    run(body, out, lds=512)
    np.testing.assert_array_equal(out, 63 - lines(64))


def test_unwritten_memory():
    with pytest.raises(UninitialisedError, match="uses v2"):
        run("v_add_u32_e32 v2, v9, v0\nds_write_b32 v2, v0", lds=256)
    with pytest.raises(UninitialisedError, match="LDS byte 0"):
        run("v_lshlrev_b32_e32 v1, 2, v0\nds_read_b32 v3, v1\ns_waitcnt lgkmcnt(0)", lds=512)


def test_unknown_instructions_are_listed_before_anything_runs():
    out = np.zeros(64, np.uint32)
    with pytest.raises(UnknownInstructionError) as caught:
        run(COPY + "v_frobnicate_b32 v1, v2\ns_jump_around s3\n", lines(64), out)
    text = str(caught.value)
    assert (
        "2 instructions" in text and "v_frobnicate_b32 v1, v2" in text and "s_jump_around" in text
    )
    assert not out.any()


def test_a_full_counter_is_a_wait():
    """A wave that has as many loads under way as the counter holds waits before it starts another."""

    def many(loads):
        body = [
            "s_load_dwordx4 s[4:7], s[0:1], 0x0", "s_waitcnt lgkmcnt(0)", "v_lshlrev_b32_e32 v1, 2, v0",
            "global_load_dword v2, v1, s[4:5]",
            *["global_load_dword v3, v1, s[4:5]"] * (loads - 1),
            "global_store_dword v1, v2, s[6:7]",
        ]  # fmt: skip
        out = np.zeros(64, np.uint32)
        run("\n".join(body), lines(64), out)
        return out

    np.testing.assert_array_equal(many(64), lines(64))
    with pytest.raises(MissingWaitError, match=r"vmcnt\(62\)"):
        many(63)


@pytest.mark.parametrize(
    "line",
    [
        "global_load_dword 5, v1, s[4:5]",
        "v_add_u32_e32 v2, v1",
        "s_movk_i32 s4, s5",
        "s_round_mode s4",
        "s_setreg_b32 hwreg(HW_REG_MODE), v1",
        "ds_read_b32 7, v1",
        "v_readlane_b32 s4, 7, 0",
        "v_mfma_f32_16x16x16_f16 a[0:3], 5, v[2:3], 0",
        "v_cmp_lt_u32_e64 5, v1, v2",
    ],
)
def test_operands_that_nobody_expects_are_refused_before_anything_runs(line):
    out = np.zeros(64, np.uint32)
    with pytest.raises(BackendError, match="(?s)does not understand.*at kernel.py:7") as caught:
        run(COPY + line + "\n", lines(64), out)
    assert line in str(caught.value)
    assert not out.any()


@pytest.mark.parametrize(
    "line", ["s_round_mode 0x3", "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 2, 2), 3"]
)
def test_rounding_that_is_not_modelled_is_an_error(line):
    with pytest.raises(
        BackendError, match="(?s)rounds to nearest even.*asks.*at kernel.py:7"
    ) as caught:
        run(".loc 1 7 3\n" + line, arch="gfx1201")
    assert f"`{line}`" in str(caught.value)
    run(line[:-1] + "0", arch="gfx1201")


def test_a_loop_without_end():
    with pytest.raises(
        TimeLimitError, match="(?s)workgroup .0, 0, 0., wave 0 and 1 more.*`s_branch top`"
    ):
        run("top:\ns_branch top", waves=2, settings=Settings(timeout=0.2))


@gluon.jit
def waits_for_ever(flag):
    while gl.atomic_add(flag, 0) == 0:
        pass


@pytest.mark.parametrize("arch", ["gfx942", pytest.param("gfx1250", marks=pytest.mark.once)])
def test_a_flag_that_nobody_stores(arch):
    """Waves that go from barrier to barrier, in batches that part and meet."""
    target = registry().target(f"emu:{arch}")
    with using(timeout=1):
        with pytest.raises(TimeLimitError) as caught:
            waits_for_ever[(2,)](np.zeros(1, np.int32), target=target, num_warps=2)
    text = str(caught.value)
    assert (
        "did not end in 1 s" in text and "at instruction" in text and "while gl.atomic_add" in text
    )
    shown = [line for line in text.splitlines() if line.startswith("  workgroup")]
    assert sum(1 + int("more" in s and s.split(" and ")[1].split()[0]) for s in shown) == 4


def test_a_barrier_that_one_wave_skips():
    """The other waits for ever, for the first has not ended."""
    body = """
v_readfirstlane_b32 s4, v0
s_cmp_eq_u32 s4, 0
s_cbranch_scc1 first
s_barrier_wait -1
s_endpgm
first:
s_barrier_signal -1
s_barrier_wait -1
"""
    with pytest.raises(DeadlockError, match="(?s)wave 1.*s_barrier_wait.*wave 0.*s_barrier_wait"):
        run(body, arch="gfx1201", waves=2)


def test_waves_that_ended_do_not_hold_up_a_barrier():
    run(
        "v_readfirstlane_b32 s4, v0\ns_cmp_eq_u32 s4, 0\ns_cbranch_scc1 end\ns_barrier\nend:",
        waves=2,
    )


def test_a_trap():
    with pytest.raises(TrapError, match="s_trap 2"):
        run("s_trap 2")


def test_waves_part_and_meet():
    """Each lane counts to its own number; waves leave the loop one after the other."""
    body = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_mov_b32_e32 v1, 0
s_mov_b64 s[6:7], exec
top:
v_cmpx_lt_u32_e64 s[8:9], v1, v0
s_cbranch_execz out
v_add_u32_e32 v1, 1, v1
s_branch top
out:
s_mov_b64 exec, s[6:7]
v_lshlrev_b32_e32 v2, 2, v0
global_store_dword v2, v1, s[4:5]
"""
    out = np.full(256, 7, np.uint32)
    run(body, out, waves=4)
    np.testing.assert_array_equal(out, lines(256))


def test_atomics_of_many_lanes_on_one_address():
    body = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_and_b32_e32 v1, 12, v0
v_mov_b32_e32 v2, 1
global_atomic_add v3, v1, v2, s[4:5] sc0
s_waitcnt vmcnt(0)
v_lshlrev_b32_e32 v4, 2, v0
global_store_dword v4, v3, s[6:7]
"""
    totals, olds = np.zeros(4, np.uint32), np.zeros(64, np.uint32)
    run(body, totals, olds)
    assert totals.tolist() == [16] * 4
    slot = np.arange(64) & 12
    for offset in (0, 4, 8, 12):
        assert sorted(olds[slot == offset]) == list(range(16))


def test_scratch_is_each_lanes_own():
    body = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
scratch_store_dword off, v0, off offset:8
s_waitcnt vmcnt(0) lgkmcnt(0)
scratch_load_dword v1, off, off offset:8
s_waitcnt vmcnt(0)
v_lshlrev_b32_e32 v2, 2, v0
global_store_dword v2, v1, s[4:5]
"""
    out = np.zeros(128, np.uint32)
    run(body, out, waves=2, scratch=16)
    np.testing.assert_array_equal(out, lines(128))
    with pytest.raises(AccessError, match="outside of scratch"):
        run(body, out, waves=2, scratch=8)


def test_halves_of_pairs_that_nothing_has_written_may_be_spilt():
    body = "v_mov_b32_e32 v2, 1\nscratch_store_dwordx2 off, v[2:3], off\n"
    run(body, scratch=16)
    with pytest.raises(UninitialisedError, match="uses v5"):
        run(body.replace("off, v", "v5, v"), scratch=16)
    with pytest.raises(UninitialisedError, match="uses v3"):
        run("v_mov_b32_e32 v2, 0\nglobal_store_dwordx2 v2, v[2:3], s[0:1]", arch="gfx942")


def test_a_copy_of_a_pair_copies_each_half():
    body = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_lshlrev_b32_e32 v1, 2, v0
v_mov_b32_e32 v3, 7
v_mov_b64_e32 v[4:5], v[2:3]
global_store_dword v1, v5, s[4:5]
"""
    out = np.zeros(64, np.uint32)
    run(body, out, arch="gfx942")
    assert (out == 7).all()
    with pytest.raises(UninitialisedError, match="uses v4"):  # the half that nothing has written
        run(body.replace("v1, v5", "v1, v4"), out, arch="gfx942")


def test_a_conversion_of_eight_numbers_converts_each():
    body = """
s_load_b64 s[4:5], s[0:1], 0x0
s_wait_kmcnt 0x0
v_lshlrev_b32_e32 v1, 2, v0
v_mov_b32_e32 v2, 1.0
v_mov_b32_e32 v3, 1.0
v_mov_b32_e32 v4, 1.0
v_mov_b32_e32 v5, 1.0
v_cvt_scalef32_pk8_fp8_f32 v[10:11], v[2:9], 1.0
v_cvt_scale_pk8_f32_fp8 v[12:19], v[10:11], 0x7f
global_store_b32 v1, v15, s[4:5]
"""
    out = np.zeros(32, np.float32)
    run(body, out, arch="gfx1250")
    assert (out == 1).all()
    with pytest.raises(UninitialisedError, match="uses v16"):  # of v6
        run(body.replace("v1, v15", "v1, v16"), out, arch="gfx1250")


def test_buffers_check_their_range():
    body = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
s_mov_b64 s[8:9], s[4:5]
s_movk_i32 s10, 0x80
s_mov_b32 s11, 0x27000
v_lshlrev_b32_e32 v1, 2, v0
buffer_load_dword v2, v1, s[8:11], 0 offen
s_waitcnt vmcnt(0)
global_store_dword v1, v2, s[6:7]
"""
    out = np.full(64, 7, np.uint32)
    run(body, lines(64) + 1, out)
    np.testing.assert_array_equal(out, np.where(lines(64) < 32, lines(64) + 1, 0))


# -- machine code with a mistake put in ------------------------------------------------------------


@pytest.mark.parametrize("parts", [3, pytest.param(1, marks=pytest.mark.campaign)])
def test_mutants_of_a_reduction(parts):
    from tests.kernels import cases

    examples = {e.name: e for e in cases.load_cases().values()}
    subject = Subject(examples["row softmax"], "gfx942")
    assert subject.run(subject.text) is None
    np.testing.assert_array_equal(subject.result(), subject.wanted)
    counts = subject.counts
    silent = []
    with using(timeout=20):
        for mutant in [*mutants(subject.text), *distances(subject.text)][::parts]:
            error: GluonError | None = subject.run(mutant.text)
            if error is None and counts[mutant.line]:
                silent.append(str(mutant))
    # a distance that the compiler keeps although there is a wait between
    assert len(silent) <= 1, silent
