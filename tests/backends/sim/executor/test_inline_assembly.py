"""Inline assembly on the simulator: which elements meet in a register, memory, and reports."""

from __future__ import annotations

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import _triton
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, GluonError
from gluon_core.features import INLINE_ASM
from gluon_core.language.nvidia.ampere import async_copy
from gluon_sim.errors import OutOfBoundsError, RaceError, SimulatorError
from tests.prove.proofs import judged

pytestmark = pytest.mark.sampled(2)

L = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
SINGLE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
DOWN = gl.constexpr(gl.BlockedLayout([2, 2], [8, 4], [4, 1], [0, 1]))  # its registers go down first
TARGET = "sim:sm_90"
rng = np.random.default_rng(0)
FLOATS = rng.standard_normal(512).astype(np.float32)
WORDS = rng.integers(-(1 << 31), 1 << 31, 512).astype(np.int32)


@gluon.jit
def applied(x, out, ASM: gl.constexpr, CONSTRAINTS: gl.constexpr, PACK: gl.constexpr):
    i = gl.arange(0, 512, L)
    kind: gl.constexpr = out.dtype.element_ty
    gl.store(
        out + i, gl.inline_asm_elementwise(ASM, CONSTRAINTS, [gl.load(x + i)], kind, True, PACK)
    )


def made(x, dtype, text, constraints, pack=1):
    out = np.zeros(512, dtype)
    applied[(1,)](x, out, text, constraints, pack, target=TARGET)
    return out


TO_FP8 = """{
    .reg .b16 low, high;
    cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
    cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
    mov.b32 $0, {low, high};
}"""


@pytest.mark.parametrize(
    "text, constraints, pack, source, want",
    [
        ("fma.rn.f32 $0, $1, $1, 0f3F800000;", "=f,f", 1, FLOATS,
         (FLOATS.astype(np.float64) ** 2 + 1).astype(np.float32)),
        ("add.rn.bf16x2 $0, $1, $1;", "=r,r", 2, FLOATS.astype(ml_dtypes.bfloat16),
         2 * FLOATS.astype(ml_dtypes.bfloat16)),
        ("neg.f16 $0, $1;", "=h,h", 1, FLOATS.astype(np.float16), -FLOATS.astype(np.float16)),
        (TO_FP8, "=r,f,f,f,f", 4, FLOATS, FLOATS.astype(ml_dtypes.float8_e4m3fn)),
        ("cvt.rn.f16x2.e4m3x2 $0, $1;", "=r,h", 2, FLOATS.astype(ml_dtypes.float8_e4m3fn),
         FLOATS.astype(ml_dtypes.float8_e4m3fn).astype(np.float16)),
        ("xor.b32 $0, $1, 0x80808080;", "=r,r", 4, WORDS.astype(np.int8), WORDS.astype(np.int8) ^ -128),
        ("{ mov.b32 $0, $3; mov.b32 $1, $2; }", "=&r,=r,r,r", 2, WORDS, WORDS.reshape(-1, 2)[:, ::-1].ravel()),
        ("prmt.b32 $0, $1, 0, 0x0123;", "=r,r", 4, WORDS.astype(np.int8),
         WORDS.astype(np.int8).reshape(-1, 4)[:, ::-1].ravel()),
    ],
)  # fmt: skip
def test_elements_share_registers_and_runs(text, constraints, pack, source, want):
    np.testing.assert_array_equal(made(source, want.dtype, text, constraints, pack), want)


@gluon.jit
def transposed(x, out):
    rows, columns = (
        gl.arange(0, 64, gl.SliceLayout(1, DOWN)),
        gl.arange(0, 8, gl.SliceLayout(0, DOWN)),
    )
    index = rows[:, None] * 8 + columns[None, :]
    text: gl.constexpr = "{ mov.b32 $0, $3; mov.b32 $1, $2; }"
    gl.store(
        out + index,
        gl.inline_asm_elementwise(text, "=&r,=r,r,r", [gl.load(x + index)], gl.int32, True, 2),
    )


def test_the_layout_fixes_the_next_lane():
    out = np.zeros(512, np.int32)
    transposed[(1,)](WORDS, out, target=TARGET)
    np.testing.assert_array_equal(out.reshape(32, 2, 8), WORDS.reshape(32, 2, 8)[:, ::-1])


@gluon.jit
def several(x, low, high, total, first):
    i = gl.arange(0, 128, SINGLE)
    value = gl.load(x + i)
    text: gl.constexpr = "{ and.b32 $0, $2, 0xffff; cvt.u16.u32 $1, $2; shr.b16 $1, $1, 8; }"
    a, b = gl.inline_asm_elementwise(text, "=&r,=h,r", [value], (gl.int32, gl.int16), True, 1)
    gl.store(low + i, a)
    gl.store(high + i, b)
    # Two at a time of a thread's one: the second is anything.
    text2: gl.constexpr = "{ add.s32 $0, $2, 1; max.s32 $1, $2, $3; }"
    gl.store(total + i, gl.inline_asm_elementwise(text2, "=&r,=r,r,r", [value], gl.int32, True, 2))
    one = gl.inline_asm_elementwise(
        "mad.lo.s32 $0, $1, $2, 5;", "=r,r,r", [gl.num_programs(0), 3], gl.int32, True, 1
    )
    gl.store(first, one)


def test_several_results_threads_with_fewer_elements_and_scalars():
    low, high, total, first = (np.zeros(128, t) for t in (np.int32, np.int16, np.int32, np.int32))
    several[(1,)](WORDS, low, high, total, first, target=TARGET)
    np.testing.assert_array_equal(low, WORDS[:128] & 0xFFFF)
    np.testing.assert_array_equal(high, WORDS[:128] >> 8 & 0xFF)
    np.testing.assert_array_equal(total, WORDS[:128] + 1)
    assert first[0] == 8


@gluon.jit
def places(out, times):
    i = gl.arange(0, 512, L)
    text: gl.constexpr = (
        "{ .reg .u32 t; mov.u32 t, %ctaid.x; mov.u32 $0, %tid.x; mad.lo.u32 $0, t, 1000, $0; }"
    )
    gl.store(
        out + gl.program_id(0) * 512 + i,
        gl.inline_asm_elementwise(text, "=r,r", [i], gl.int32, False, 1),
    )
    before = gl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], gl.int64, False, 1)
    after = gl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], gl.int64, False, 1)
    gl.store(times + gl.program_id(0), after - before)


def test_registers_of_the_hardware():
    out, times = np.zeros((2, 512), np.int32), np.zeros(2, np.int64)
    places[(2,)](out, times, target=TARGET)
    np.testing.assert_array_equal(out[1], 1000 + np.arange(512) // 4)
    assert (times > 0).all()


@gluon.jit
def reaches(x, out, sums, n, OFF: gl.constexpr):
    i = gl.arange(0, 512, L)
    load: gl.constexpr = """{
        .reg .pred p; .reg .b64 at;
        cvta.to.global.u64 at, $1;
        setp.lt.s32 p, $2, $3;
        mov.b32 $0, 0;
        @p ld.global.nc.L1::no_allocate.b32 $0, [at+4];
    }"""
    value = gl.inline_asm_elementwise(load, "=r,l,r,r", [x + i + OFF, i, n], gl.int32, False, 1)
    store: gl.constexpr = "{ st.global.v2.b32 [$2], {$4, $5}; mov.b32 $0, 0; mov.b32 $1, 0; }"
    gl.inline_asm_elementwise(store, "=r,=r,l,l,r,r", [out + i, value], gl.int32, False, 2)
    add: gl.constexpr = (
        "{ atom.global.add.u32 $0, [$1], 1; red.relaxed.gpu.global.max.s32 [$1+4], $2; }"
    )
    gl.inline_asm_elementwise(add, "=r,l,r", [sums + 0 * i, i], gl.int32, False, 1)
    take: gl.constexpr = "atom.global.cas.b32 $0, [$1+8], 0, $2;"
    gl.inline_asm_elementwise(take, "=r,l,r", [sums + 0 * i, i + 1], gl.int32, False, 1)
    halves: gl.constexpr = "{ red.global.add.noftz.f16x2 [$1+12], $2; mov.b32 $0, 0; }"
    gl.inline_asm_elementwise(
        halves, "=r,l,r", [sums + 0 * i, 0 * i + 0x3C004000], gl.int32, False, 1
    )


def test_global_memory_by_its_addresses():
    out, sums = np.zeros(512, np.int32), np.zeros(4, np.int32)
    reaches[(1,)](WORDS, out, sums, 511, 0, target=TARGET)
    np.testing.assert_array_equal(out[:511], WORDS[1:])
    assert sums[:3].tolist() == [512, 511, 1] and sums[3:].view(np.float16).tolist() == [1024, 512]
    with pytest.raises(OutOfBoundsError, match="`x`") as error:
        reaches[(1,)](WORDS, out, sums, 511, 1, target=TARGET)
    assert "inline_asm_elementwise(load" in error.value.span.text


@gluon.jit
def in_pairs(sums, old):
    i = gl.arange(0, 128, SINGLE)
    text: gl.constexpr = """{
        .reg .f32 a, b; mov.f32 a, 1.0; mov.f32 b, 2.0;
        atom.global.add.v2.f32 {$0, b}, [$1], {a, b}; mov.f32 b, 2.0;
        red.global.add.v4.f32 [$1+16], {a, a, b, b};
    }"""
    gl.store(
        old + i, gl.inline_asm_elementwise(text, "=&f,l", [sums + 0 * i], gl.float32, False, 1)
    )


def test_atomics_of_vectors():
    sums, old = np.zeros(8, np.float32), np.zeros(128, np.float32)
    in_pairs[(1,)](sums, old, target=TARGET)
    assert sums.tolist() == [128, 256, 0, 0, 128, 128, 256, 256]
    assert sorted(old) == list(range(128))


@gluon.jit
def counts(total):
    """Every thread runs it, whoever needs the result."""
    text: gl.constexpr = "atom.global.add.u32 $0, [$1], 1;"
    gl.inline_asm_elementwise(text, "=r,l", [total], gl.int32, False, 1)


def test_every_thread_runs_it_on_scalars():
    total = np.zeros(1, np.int32)
    counts[(2,)](total, target=TARGET)
    assert total[0] == 2 * 128


@gluon.jit
def hand_over(data, flag, out, HOW: gl.constexpr):
    """Program 0 stores and raises a flag; program 1 waits for it."""
    if gl.program_id(0) == 0:
        gl.store(data, 7)
        raised: gl.constexpr = "{ st." + HOW + ".gpu.global.b32 [$1], 1; mov.b32 $0, 0; }"
        gl.inline_asm_elementwise(raised, "=r,l", [flag], gl.int32, False, 1)
    else:
        seen = gl.program_id(1)
        while seen == 0:
            look: gl.constexpr = "ld.acquire.gpu.global.b32 $0, [$1];"
            seen = gl.inline_asm_elementwise(look, "=r,l", [flag], gl.int32, False, 1)
        gl.store(out, gl.load(data))


def test_acquire_and_release_order_programs():
    def run(how):
        data, flag, out = (np.zeros(1, np.int32) for _ in range(3))
        hand_over[(2,)](data, flag, out, how, target=TARGET)
        return out[0]

    assert run("release") == 7
    with pytest.raises(RaceError):
        run("relaxed")


@pytest.mark.parametrize("how", ["fence.acq_rel.gpu; st.relaxed", "membar.gl; st.volatile"])
def test_fences_order_the_atomics_of_their_text(how):
    data, flag, out = (np.zeros(1, np.int32) for _ in range(3))
    store, _, rest = how.partition(" ")
    raised = f"{{ {store} {rest}{'' if 'volatile' in rest else '.gpu'}.global.b32 [$1], 1; mov.b32 $0, 0; }}"
    for look in (
        "ld.acquire.gpu.global.b32 $0, [$1];",
        "ld.relaxed.gpu.global.b32 $0, [$1]; fence.acq_rel.gpu;",
    ):
        data[:], flag[:], out[:] = 0, 0, 0
        fenced[(2,)](data, flag, out, raised, look, target=TARGET)
        assert out[0] == 7
    for text, look in (
        (raised, "ld.relaxed.gpu.global.b32 $0, [$1];"),  # none behind the load
        (raised, "fence.acq_rel.gpu; ld.relaxed.gpu.global.b32 $0, [$1];"),  # before it
        ("{ st.relaxed.gpu.global.b32 [$1], 1; fence.acq_rel.gpu; mov.b32 $0, 0; }", "ld.acquire.gpu.global.b32 $0, [$1];"),
    ):  # fmt: skip
        data[:], flag[:], out[:] = 0, 0, 0
        with pytest.raises(RaceError):
            fenced[(2,)](data, flag, out, text, look, target=TARGET)


@gluon.jit
def fenced(data, flag, out, RAISED: gl.constexpr, LOOK: gl.constexpr):
    if gl.program_id(0) == 0:
        gl.store(data, 7)
        gl.inline_asm_elementwise(RAISED, "=r,l", [flag], gl.int32, False, 1)
    else:
        seen = gl.program_id(1)
        while seen == 0:
            seen = gl.inline_asm_elementwise(LOOK, "=r,l", [flag], gl.int32, False, 1)
        gl.store(out, gl.load(data))


SUMS = """{
    .reg .b32 t;
    shfl.sync.bfly.b32 t, $1, 1, 31, -1; add.s32 $0, $1, t;
    shfl.sync.bfly.b32 t, $0, 2, 31, -1; add.s32 $0, $0, t;
    shfl.sync.bfly.b32 t, $0, 4, 31, -1; add.s32 $0, $0, t;
    shfl.sync.bfly.b32 t, $0, 8, 31, -1; add.s32 $0, $0, t;
    shfl.sync.bfly.b32 t, $0, 16, 31, -1; add.s32 $0, $0, t;
    bar.warp.sync -1; bar.sync 0; barrier.sync 1, 128;
    .reg .pred p; setp.ne.s32 p, 0, 0; @p trap;
}"""


@gluon.jit
def by_warps(x, out, few, SUM: gl.constexpr):
    i = gl.arange(0, 512, L)
    value = gl.load(x + i)
    gl.store(out + i, gl.inline_asm_elementwise(SUM, "=&r,r", [value], gl.int32, False, 1))
    two: gl.constexpr = "{ redux.sync.add.s32 $0, $3, -1; redux.sync.add.s32 $1, $2, -1; }"
    gl.store(
        out + 512 + i,
        gl.inline_asm_elementwise(two, "=&r,=r,r,r", [value], gl.int32, True, 2),
    )
    # Sixteen elements: lanes hold them twice, and warps again.
    j = gl.arange(0, 16, SINGLE)
    next_: gl.constexpr = "shfl.sync.down.b32 $0, $1, 3, 31, -1;"
    gl.store(few + j, gl.inline_asm_elementwise(next_, "=r,r", [j], gl.int32, True, 1))
    last: gl.constexpr = "{ mov.u32 $0, %laneid; redux.sync.max.u32 $0, $0, -1; }"
    gl.store(few + 16, gl.inline_asm_elementwise(last, "=&r", [], gl.int32, False, 1))


def summed(x):
    """Return an array of (warp, lane, register) over the lanes."""
    return np.broadcast_to(x.sum(1, dtype=np.int32, keepdims=True), x.shape)


def test_threads_of_a_warp_see_each_other():
    out, few = np.zeros(1024, np.int32), np.zeros(17, np.int32)
    by_warps[(1,)](WORDS, out, few, SUMS, target=TARGET)
    lanes = WORDS.reshape(4, 32, 4)
    np.testing.assert_array_equal(out[:512].reshape(4, 32, 4), summed(lanes))
    np.testing.assert_array_equal(out[512:].reshape(4, 32, 4), summed(lanes)[..., [1, 0, 3, 2]])
    np.testing.assert_array_equal(few, [*((np.arange(16) + 3) % 16), 31])


@pytest.mark.parametrize(
    "text, words",
    [
        ("{ bar.sync 1, 64; mov.b32 $0, $1; }", "64 threads are waited for, and 128 come"),
        ("{ .reg .pred p; setp.lt.s32 p, $1, 0; mov.b32 $0, 0; @p bar.sync 0; }", "only some of the threads"),
        ("redux.sync.or.b32 $0, $1, 1;", "has not itself"),
        ("{ .reg .pred p; setp.gt.s32 p, $1, 0; mov.b32 $0, 0; @p trap; }", "`@p trap` .* ends the kernel"),
    ],
)  # fmt: skip
def test_missing_threads_are_reported_with_the_line(text, words):
    with pytest.raises(GluonError, match=words) as error:
        by_warps[(1,)](WORDS, np.zeros(1024, np.int32), np.zeros(17, np.int32), text, target=TARGET)
    assert "inline_asm_elementwise(SUM" in error.value.span.text


@gluon.jit
def waits(out, WAIT: gl.constexpr):
    gl.store(out, gl.inline_asm_elementwise(WAIT, "=r", [], gl.int32, False, 1))


@gluon.jit
def specialized(out, HERE: gl.constexpr, THERE: gl.constexpr):
    gl.warp_specialize([(waits, (out, HERE)), (waits, (out + 1, THERE))], [1], [24])


def test_barriers_of_partitions_say_how_many_threads_come():
    own, every = "bar.sync 1, 128; mov.u32 $0, %ntid.x;", "bar.sync 0; mov.u32 $0, 1;"
    worker = "barrier.sync.aligned 2, 32; mov.u32 $0, %ntid.x;"
    out = np.zeros(2, np.int32)
    specialized[(1,)](out, own, worker, target=TARGET)
    assert out.all()
    for here, there in ((every, worker), (own, every)):
        with pytest.raises(ArgumentError, match="those of other partitions do not come"):
            specialized[(1,)](out, here, there, target=TARGET)


@pytest.mark.parametrize(
    "text, words",
    [
        ("bar.arrive 1, 64; mov.b32 $0, $1;", "this barrier of inline assembly.*bar.arrive 1, 64.*gl.barrier"),
        ("vabsdiff4.u32.u32.u32 $0, $1, $1, $1;", "`vabsdiff4` of inline assembly is not simulated.*gl.target"),
        ("{ .reg .b32 t; add.s32 $0, $1, t; }", "`t` is read before"),
        ("add.rn.f32x2 $0, $1, $1;", "`.f32x2` is not there on sim:sm_90"),
    ],
)  # fmt: skip
def test_an_unknown_instruction_is_reported_under_its_line(text, words):
    with pytest.raises(SimulatorError, match=words) as error:
        made(WORDS, np.int32, text, "=r,r")
    assert "gl.inline_asm_elementwise" in error.value.span.text


def test_constraints_are_counted():
    with pytest.raises(ArgumentError, match="expected 1, got 2"):
        made(WORDS, np.int32, "mov.b32 $0, $1;", "=r,r,r")


@gluon.jit
def elsewhere(x):
    i = gl.arange(0, 64, gl.BlockedLayout([1], [64], [4], [0]))
    gl.store(x + i, gl.inline_asm_elementwise("v_mov_b32 $0, $1", "=v,v", [i], gl.int32, True, 1))


def test_targets_without_an_interpreter_say_so():
    with pytest.raises(SimulatorError, match="inline assembly is not simulated for .*gfx942"):
        elsewhere[(1,)](np.zeros(64, np.int32), target="sim:gfx942")


@gluon.jit
def squares(x, out, tiles, TEXT: gl.constexpr, PURE: gl.constexpr):
    i = gl.arange(0, 512, L)
    ring = gl.allocate_shared_memory(gl.float32, [2, 512], FLAT)
    for t in range(tiles):
        async_copy.async_copy_global_to_shared(ring.index(t % 2), x + t * 512 + i)
        async_copy.commit_group()
        async_copy.wait_group(0)
        value = ring.index(t % 2).load(L)
        gl.store(
            out + t * 512 + i, gl.inline_asm_elementwise(TEXT, "=f,f", [value], gl.float32, PURE, 1)
        )


@pytest.mark.parametrize(
    "text, pure, verdict",
    [
        ("mul.rn.f32 $0, $1, $1;", True, "proved"),
        ("mul.rn.f32 $0, $1, $1;", False, "cannot say"),
        ("{ mul.rn.f32 $0, $1, $1; nanosleep.u32 9; }", True, "cannot say"),
    ],
)
def test_pure_arithmetic_is_data_to_a_proof(text, pure, verdict):
    pytest.importorskip("z3", reason="gluon-core[prove] is not installed")
    x, out = FLOATS.copy(), np.zeros(512, np.float32)
    outcome, _ = judged(squares, (1,), x, out, 1, text, pure, target=TARGET)
    assert outcome.verdict == verdict
    np.testing.assert_array_equal(out, FLOATS * FLOATS)


@gluon.jit
def by_threads(out):
    gl.store(out, gl.inline_asm("add.s32 $0, $1, 1;", "=r,r", (gl.program_id(0),), gl.int32))
    gl.inline_asm("nanosleep.u32 20;")


@pytest.mark.skipif(not _triton.has(INLINE_ASM), reason="came with Triton 3.9")
def test_scalars_of_every_thread():
    out = np.zeros(1, np.int32)
    by_threads[(1,)](out, target=TARGET)
    assert out[0] == 1


def test_without_an_interpreter_the_error_names_the_package_to_install(tmp_path):
    """In a process of its own, where the plugin that contributes it is left out."""
    file = tmp_path / "alone.py"
    file.write_text(
        "import numpy as np\n"
        "import gluon_core as gluon\n"
        "from gluon_core import language as gl\n\n"
        "@gluon.jit\n"
        "def kernel(out):\n"
        "    gl.store(out, gl.inline_asm_elementwise('mov.b32 $0, 7;', '=r', [], gl.int32, True, 1))\n\n"
        "kernel[(1,)](np.zeros(1, np.int32), target='sim:sm_90')\n"
    )
    left = {**os.environ, "GLUON_PLUGINS": "nvidia,sim"}
    run = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, env=left)
    assert run.returncode == 1
    assert "no installed plugin runs inline assembly in ptx" in run.stderr
    assert "gluon-core[all]" in run.stderr and "alone.py:7:" in run.stderr
