"""Code that compilers make wrong for AMD, and the workarounds: docs/known-compiler-bugs.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest
import torch

import gluon_core as gluon
import gluon_kernels
from gluon_core import language as gl
from gluon_core.compiler import stages
from gluon_core.errors import KernelWarning, StageError
from gluon_core.language.amd.gfx1250 import tdm
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import recording
from gluon_core.testing import triton_at_least
from gluon_emu.errors import HazardError, RaceError, UninitialisedError
from gluon_emu.settings import using
from tests.kernels.launched import on_target

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]
FNUZ = pytest.mark.parametrize("goal", [gl.float8e5b16, gl.float8e4b8], ids=str)


ONLY_3_8 = triton_at_least(3, 8) and not triton_at_least(3, 9)


@gluon.jit
def narrowed(x, out, GOAL: gl.constexpr, ANEW: gl.constexpr):
    offsets = gl.arange(0, 512, gl.BlockedLayout([4], [gl.target.warp_size()], [4], [0]))
    gl.store(out + offsets, gl.load(x + offsets).to(GOAL).to(gl.int8, bitcast=True))


def bits(target, goal, dtype=torch.bfloat16, anew=0):
    out = torch.zeros(512, dtype=torch.int8)
    narrowed[(1,)](torch.arange(-200, 312).mul(0.37).to(dtype), out, goal, anew, target=target)
    return out


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Nothing is compiled yet, and no process did it."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    stages._pool.close()
    yield
    stages._pool.close()


@pytest.mark.sampled(4)
@FNUZ
@pytest.mark.parametrize("target", ["gfx90a", "gfx1100", "gfx1201"])
def test_bfloat16_becomes_fp8_of_the_fnuz_kind(target, goal):
    assert torch.equal(bits(f"emu:{target}", goal), bits("sim:gfx942", goal))


@gluon.jit
def widened(x, out, FROM: gl.constexpr, ANEW: gl.constexpr):
    offsets = gl.arange(0, 128, gl.BlockedLayout([1], [gl.target.warp_size()], [2], [0]))
    gl.store(out + offsets, gl.load(x + offsets).to(FROM, bitcast=True).to(gl.bfloat16))


def wide(target, source, anew=0):
    out = torch.zeros(128, dtype=torch.bfloat16)
    x = torch.arange(128).to(torch.int8)
    widened[(1,)](x, out, source, anew, num_warps=2, target=target)
    return out


@pytest.mark.sampled(4)
@FNUZ
@pytest.mark.parametrize("target", ["gfx90a", "gfx950", "gfx1201"])
def test_fp8_of_the_fnuz_kind_becomes_bfloat16(target, goal):
    assert torch.equal(wide(f"emu:{target}", goal), wide("sim:gfx942", goal))


def test_without_float32_between_gfx950_takes_it_for_another(monkeypatch, fresh):
    around = registry().target("gfx950").architecture.casts_by_float32
    monkeypatch.delitem(around, ("fp8e5b16", "bf16"))
    times = 1 if triton_at_least(3, 8) else 2
    finite = slice(0, 124)  # of both kinds
    converted = wide("emu:gfx950", gl.float8e5b16, anew=1)[finite]
    assert torch.equal(converted, times * wide("sim:gfx942", gl.float8e5b16)[finite])


@FNUZ
def test_without_float32_between_it_is_of_another_kind(goal, monkeypatch, fresh):
    monkeypatch.delitem(
        registry().target("gfx1201").architecture.casts_by_float32, ("bf16", str(goal))
    )
    ocp = gl.float8e5 if goal == gl.float8e5b16 else gl.float8e4nv
    like = goal if triton_at_least(3, 8) else ocp
    assert torch.equal(bits("emu:gfx1201", goal, anew=1), bits("sim:gfx942", like))


def test_a_process_compiles_for_one_architecture(monkeypatch, fresh):
    def both(anew):
        return [
            bits(f"emu:{name}", gl.float8e4b8, torch.float16, anew) for name in ("gfx942", "gfx950")
        ]

    assert torch.equal(*both(2))
    stages._pool.close()
    amd = type(registry().backend("amd").compiler)
    monkeypatch.setattr(amd, "process", lambda self, target: "")
    if triton_at_least(3, 7):
        assert torch.equal(*both(3))
    else:
        with pytest.raises(StageError, match="FNUZ_HW"):
            both(3)


@gluon.jit
def many(x, out, EACH: gl.constexpr):
    offsets = gl.arange(0, 128 * EACH, gl.BlockedLayout([EACH], [32], [4], [0]))
    gl.store(out + offsets, gl.load(x + offsets).to(gl.float32))


@pytest.mark.campaign
def test_many_numbers_of_fp8_take_minutes_on_rdna(fresh):
    """128 numbers of a thread, and 32: 15 to 27 times as long, or 5 times."""

    def seconds(each):
        begun = time.perf_counter()
        signature = {"x": "*fp8e4b8:16", "out": "*fp32:16"}
        gluon.compile(many, "gfx1100", signature=signature, constexprs={"EACH": each})
        return time.perf_counter() - begun

    seconds(8)
    few = seconds(32)
    assert (seconds(128) > 9 * few) == (not triton_at_least(3, 8))


def test_unaligned_rows_reach_lds(monkeypatch):
    """Products of float32 whose rows begin anywhere: with Triton 3.6 copies into LDS would overlap on gfx950."""
    monkeypatch.setenv("GLUON_TARGET", "emu:gfx950")
    a, b = torch.randn(5, 16), torch.randn(16, 9)
    torch.testing.assert_close(gluon_kernels.matmul(a, b), a @ b, rtol=0, atol=1e-4)


GELU_OF_THE_LIBRARY = """
import torch
import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels import matmul
from gluon_kernels.gemm import epilogue

epilogue.erf = gl.erf
torch.manual_seed(0)
a, b, c = (torch.randn(s, dtype=torch.float16) for s in ((136, 72), (72, 200), (200,)))
want = torch.nn.functional.gelu(matmul(a, b, bias=c).float())
wrong = ((matmul(a, b, bias=c, activation="gelu").float() - want).abs() > 0.1).nonzero()
print("columns", sorted({column % 64 for column in wrong[:, 1].tolist()}))
"""


@pytest.mark.campaign
def test_a_pair_is_copied_for_one_side_of_a_branch(tmp_path):
    script = tmp_path / "gelu.py"
    script.write_text(GELU_OF_THE_LIBRARY)
    own = {"GLUON_TARGET": "emu:gfx950", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, script], env={**os.environ, **own}, capture_output=True, text=True
    )
    columns = [] if triton_at_least(3, 7) else [8, 9, 12, 13, 40, 41, 44, 45]
    assert f"columns {columns}" in done.stdout, done.stdout + done.stderr


@gluon.jit
def waits_for_a_volatile_load(flag, out, MODIFIER: gl.constexpr):
    while gl.load(flag, volatile=True, cache_modifier=MODIFIER) == 0:
        pass
    gl.store(out, 1)


@pytest.mark.parametrize("target", ["gfx942", "gfx1250"])
def test_a_volatile_load_leaves_its_loop(target):
    flag, out = torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)

    def loads(modifier):
        compiled = waits_for_a_volatile_load[(1,)](flag, out, modifier, target=f"emu:{target}")
        return re.findall(r"global_load_\w+", compiled.asm["amdgcn"])

    assert loads(".cv")
    if triton_at_least(3, 9):
        assert loads("")
        return
    with pytest.warns(KernelWarning, match=r'cache_modifier="\.cv"'):
        assert not loads("")


@gluon.jit
def repeats_an_atomic(flag, out):
    seen = gl.atomic_add(flag, 0)
    while seen == 0:
        seen = gl.atomic_add(flag, 0)
    gl.store(out + gl.arange(0, 256, gl.portable.blocked_layout([256], gl.int32)), seen)


@pytest.mark.parametrize("target", ["gfx942", "gfx950", "gfx1250"])
def test_lanes_of_a_wave_part_at_a_barrier(target):
    flag, out = torch.full((1,), 7, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)
    if triton_at_least(3, 8):
        repeats_an_atomic[(1,)](flag, out, target=f"emu:{target}")
        assert (out == 7).all()
        return
    with pytest.raises(UninitialisedError, match="reads LDS byte 0, which nobody has written"):
        repeats_an_atomic[(1,)](flag, out, target=f"emu:{target}")


@gluon.jit
def waits_for_one_copy_after_the_other(src, out, rows, columns, BARRIER: gl.constexpr):
    shared: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[32, 4]], [32, 64], [1, 0])
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    tiles = tdm.make_tensor_descriptor(src, (rows, columns), (columns, 1), (32, 64), shared)
    buffers = gl.allocate_shared_memory(gl.float16, [2, 32, 64], shared)
    tdm.async_load(tiles, [0, 0], buffers.index(0))
    tdm.async_load(tiles, [32, 0], buffers.index(1))
    tdm.async_wait(1)
    total = buffers.index(0).load(layout)
    tdm.async_wait(0)
    if BARRIER:
        gl.barrier()
    total += buffers.index(1).load(layout)
    row = gl.arange(0, 32, gl.SliceLayout(1, layout))[:, None]
    gl.store(out + row * 64 + gl.arange(0, 64, gl.SliceLayout(0, layout))[None, :], total)


@pytest.mark.parametrize("barrier", [False, True])
def test_waves_do_not_meet_after_a_second_wait_for_the_tdm(barrier):
    src, out = torch.arange(64 * 64).view(64, 64).remainder(7).half(), torch.zeros(32, 64).half()
    # LLVM of 3.8 miscounts copies of the TDM
    for target in ("sim:gfx1250",) if ONLY_3_8 else ("sim:gfx1250", "emu:gfx1250"):
        if target.startswith("emu") and not (barrier or triton_at_least(3, 7)):
            with pytest.raises(RaceError, match="tensor_load_to_lds.*with no barrier"):
                waits_for_one_copy_after_the_other[(1,)](src, out, 64, 64, barrier, target=target)
            continue
        waits_for_one_copy_after_the_other[(1,)](src, out, 64, 64, barrier, target=target)
        assert torch.equal(out, src[:32] + src[32:])


def _product():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((72, 81), (81, 200)))
    torch.testing.assert_close(gluon_kernels.matmul(a, b), a @ b, atol=0.2, rtol=0.02)


def _attention():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 70, 128, generator=generator).half() for heads in (2, 1, 1))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(gluon_kernels.attention(q, k, v), wanted, atol=0.01, rtol=0.02)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "target, run, report, words, place, wait",
    [
        pytest.param(
            "emu:gfx950", _product, RaceError, "no wait before the barrier",
            r"(\n)(\ts_barrier\n)", "s_waitcnt lgkmcnt(0)", id="stores to LDS",
        ),
        pytest.param(
            "emu:gfx1250", _attention, HazardError, "depctr_vm_vsrc(0)",
            r"(s_wait_xcnt 0x0\n)(.*)", "s_wait_alu depctr_vm_vsrc(0)", id="sources of a store",
        ),
    ],
)  # fmt: skip
def test_a_wait_is_missing_and_suffices(target, run, report, words, place, wait, tmp_path):
    with on_target(target):
        if not ONLY_3_8:
            run()
            return
        with recording() as record, pytest.raises(report, match=re.escape(words)):
            run()
        (kernel,) = record.kernels.values()
        text = re.sub(place, rf"\1\t{wait}\n\2", kernel.asm["amdgcn"])
        (tmp_path / "waits.s").write_text(text)
        with using(assembly=f"{kernel.metadata.name}={tmp_path / 'waits.s'}"):
            run()


@gluon.jit
def masked_product(a, b, out, left):
    layouts: gl.constexpr = gl.portable.mma_layouts(64, 64, 32, gl.float16, gl.float16)
    rows = gl.arange(0, 64, gl.SliceLayout(1, layouts.accumulator))
    columns = gl.arange(0, 64, gl.SliceLayout(0, layouts.accumulator))
    of_a = gl.arange(0, 64, gl.SliceLayout(1, layouts.a))
    along_a = gl.arange(0, 32, gl.SliceLayout(0, layouts.a))
    along_b = gl.arange(0, 32, gl.SliceLayout(1, layouts.b))
    of_b = gl.arange(0, 64, gl.SliceLayout(0, layouts.b))
    x = gl.load(a + of_a[:, None] * 32 + along_a[None, :])
    y = gl.load(b + along_b[:, None] * 64 + of_b[None, :])
    acc = gl.portable.mma(x, y, gl.zeros([64, 64], gl.float32, layouts.accumulator))
    gl.store(out + rows[:, None] * 64 + columns[None, :], acc, mask=rows[:, None] < left)


@pytest.mark.parametrize("target", ["gfx1100", "gfx1201", "gfx1250"])
def test_no_product_moves_behind_a_mask(target):
    signature = {"a": "*fp16:16", "b": "*fp16:16", "out": "*fp32:16", "left": "i32"}
    compiled = gluon.compile(masked_product, target=target, signature=signature)
    places = re.findall(r"v_wmma|s_and_saveexec|s_or_b32 exec_lo", compiled.asm["amdgcn"])
    assert "v_wmma" in places and "s_and_saveexec" in places
    assert "v_wmma" not in places[places.index("s_and_saveexec") :]


def test_an_atomic_waits_for_the_caches(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "emu:gfx942")
    x, labels = torch.randn(5, 9), torch.tensor([1, 2, 3, 4, 5])
    wanted = torch.nn.functional.cross_entropy(x, labels)
    torch.testing.assert_close(gluon_kernels.cross_entropy(x, labels), wanted)


@gluon.jit
def extremes(x, places, largest, smallest, BLOCK: gl.constexpr):
    i = gl.arange(0, BLOCK, gl.BlockedLayout([1], [64], [1], [0]))
    values, place = gl.load(x + i), gl.load(places + i)
    gl.atomic_max(largest + place, values)
    gl.atomic_min(smallest + place, values)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32, torch.float32])
def test_lanes_compare_with_a_sign(dtype, monkeypatch):
    """Lanes with one address find their extreme, and one of them executes the atomic."""
    monkeypatch.setenv("GLUON_TARGET", "emu:gfx950")
    numbers = torch.randint(-50, 50, (128,), generator=torch.Generator().manual_seed(0))
    x = numbers.abs().to(dtype) if dtype == torch.uint32 else numbers.to(dtype)
    places = torch.randint(0, 4, (128,), generator=torch.Generator().manual_seed(1)).int()
    largest, smallest = (torch.full((4,), n).to(dtype) for n in (0, 99))
    if dtype != torch.uint32:
        largest -= 99
    extremes[(1,)](x, places, largest, smallest, BLOCK=128, num_warps=1)
    parts = [x.double()[places == place] for place in range(4)]
    assert largest.double().tolist() == [part.max().item() for part in parts]
    assert smallest.double().tolist() == [part.min().item() for part in parts]


@gluon.jit
def counted(lock, total, rounds):
    for _ in range(rounds):
        while gl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
            pass
        gl.store(total, gl.load(total) + 1)
        gl.barrier()
        gl.atomic_xchg(lock, 0, sem="release")


@pytest.mark.parametrize("target", ["gfx1250", "gfx1201", "gfx942"])
def test_a_scalar_is_compared_and_swapped(target):
    lock, total = torch.zeros(2, dtype=torch.int32).split(1)
    counted[(2,)](lock, total, 1, target=f"emu:{target}")
    assert total.item() == 2
