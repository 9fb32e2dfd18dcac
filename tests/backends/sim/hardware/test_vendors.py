"""Ops of vendors run through the vendors' reference models."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GluonError
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_sim.errors import OutOfBoundsError

rng = np.random.default_rng(17)
L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
L2 = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], [4, 1], order=[1, 0]))


@gluon.jit
def copies(a, b, out, n, BLOCK: gl.constexpr, STAGES: gl.constexpr):
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    x = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK], plain)
    y = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK], plain)
    o = gl.arange(0, BLOCK, layout=layout)
    for i in range(STAGES - 1):
        cp.async_copy_global_to_shared(x.index(i), a + i * BLOCK + o, mask=i * BLOCK + o < n)
        cp.async_copy_global_to_shared(y.index(i), b + i * BLOCK + o, mask=i * BLOCK + o < n)
        cp.commit_group()
    for i in range(gl.cdiv(n, BLOCK)):
        j = i + STAGES - 1
        cp.async_copy_global_to_shared(
            x.index(j % STAGES), a + j * BLOCK + o, mask=j * BLOCK + o < n
        )
        cp.async_copy_global_to_shared(
            y.index(j % STAGES), b + j * BLOCK + o, mask=j * BLOCK + o < n
        )
        cp.commit_group()
        cp.wait_group(STAGES - 1)
        total = x.index(i % STAGES).load(layout) + y.index(i % STAGES).load(layout)
        gl.store(out + i * BLOCK + o, total, mask=i * BLOCK + o < n)


def test_pipelined_cp_async():
    a, b = rng.standard_normal((2, 1000)).astype(np.float32)
    out = np.zeros_like(a)
    copies[(1,)](a, b, out, 1000, 128, 3)
    np.testing.assert_array_equal(out, a + b)


@gluon.jit
def mma(a, b, c, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr, KW: gl.constexpr):
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    rm = gl.arange(0, M, layout=gl.SliceLayout(1, L2))
    rk = gl.arange(0, K, layout=gl.SliceLayout(0, L2))
    km = gl.arange(0, K, layout=gl.SliceLayout(1, L2))
    rn = gl.arange(0, N, layout=gl.SliceLayout(0, L2))
    x = gl.convert_layout(
        gl.load(a + rm[:, None] * K + rk[None, :]), gl.DotOperandLayout(0, acc_layout, KW)
    )
    y = gl.convert_layout(
        gl.load(b + km[:, None] * N + rn[None, :]), gl.DotOperandLayout(1, acc_layout, KW)
    )
    acc = gl.zeros((M, N), c.dtype.element_ty, acc_layout)
    acc = gl.nvidia.ampere.mma_v2(x, y, acc)
    gl.store(c + rm[:, None] * N + rn[None, :], gl.convert_layout(acc, L2))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_mma_v2_of_half_operands(dtype):
    a, b = rng.standard_normal((64, 32)).astype(dtype), rng.standard_normal((32, 32)).astype(dtype)
    c = np.zeros((64, 32), np.float32)
    mma[(1,)](a, b, c, 64, 32, 32, 2)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-5)


def test_mma_v2_of_float32_uses_tf32():
    a, b = rng.standard_normal((2, 32, 32)).astype(np.float32)
    a = np.vstack([a, a])
    c = np.zeros((64, 32), np.float32)
    mma[(1,)](a, b, c, 64, 32, 32, 1)

    def tf32(x):
        return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)

    np.testing.assert_allclose(c, tf32(a) @ tf32(b), rtol=1e-4, atol=1e-5)
    assert np.abs(c - a.astype(np.float64) @ b).max() > 1e-4


def test_mma_v2_of_int8_is_exact():
    a, b = (
        rng.integers(-128, 128, (64, 32)).astype(np.int8),
        rng.integers(-128, 128, (32, 32)).astype(np.int8),
    )
    c = np.zeros((64, 32), np.int32)
    mma[(1,)](a, b, c, 64, 32, 32, 4)
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32))


# ---- AMD ------------------------------------------------------------------------------------


@gluon.jit
def buffers(src, dst, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [64], [4], order=[0])
    o = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    x = gl.amd.cdna3.buffer_load(src, o, mask=o < n, other=-1.0)
    gl.amd.cdna3.buffer_store(x * 2, dst, o)


@pytest.fixture
def cdna3(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:gfx942")


def test_buffer_load_and_store(cdna3):
    src, dst = torch.randn(300), torch.zeros(512)
    buffers[(2,)](src, dst, 300, 256)
    assert torch.equal(dst[:300], src * 2) and (dst[300:] == -2).all()


def test_buffer_loads_are_checked_too(cdna3):
    with pytest.raises(OutOfBoundsError, match="buffer_load outside .* of `src`"):
        buffers[(2,)](torch.zeros(100), torch.zeros(512), 300, 256)


@gluon.jit
def buffer_atomics(p, out, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [64], [4], order=[0])
    o = gl.arange(0, BLOCK, layout=layout)
    old = gl.amd.cdna3.buffer_atomic_add(p, o % 4, o)
    gl.amd.cdna3.buffer_store(old, out, o)
    gl.amd.cdna3.buffer_atomic_or(p, 4 + o % 2, o, mask=o < 100)
    gl.amd.cdna3.buffer_atomic_and(p, o * 0 + 6, ~o)


def test_buffer_atomics(cdna3):
    p, out = np.zeros(7, np.int32), np.zeros(256, np.int32)
    p[6] = -1
    buffer_atomics[(1,)](p, out, 256)
    o = np.arange(256)
    assert p.tolist() == [int(o[i::4].sum()) for i in range(4)] + [126, 127, -256]
    wanted = (
        np.concatenate([np.r_[0, o[i::4].cumsum()[:-1]] for i in range(4)]).reshape(4, 64).T.ravel()
    )
    np.testing.assert_array_equal(out, wanted)


@gluon.jit
def mfma(a, b, c, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr):
    acc_layout: gl.constexpr = gl.amd.AMDMFMALayout(
        version=3, instr_shape=[32, 32, 8], transposed=True, warps_per_cta=[4, 1]
    )
    load: gl.constexpr = gl.BlockedLayout([1, 4], [8, 8], [4, 1], [1, 0])
    rm = gl.arange(0, M, layout=gl.SliceLayout(1, load))
    rk = gl.arange(0, K, layout=gl.SliceLayout(0, load))
    km = gl.arange(0, K, layout=gl.SliceLayout(1, load))
    rn = gl.arange(0, N, layout=gl.SliceLayout(0, load))
    x = gl.amd.cdna3.buffer_load(a, rm[:, None] * K + rk[None, :])
    y = gl.amd.cdna3.buffer_load(b, km[:, None] * N + rn[None, :])
    x = gl.convert_layout(x, gl.DotOperandLayout(0, acc_layout, 4))
    y = gl.convert_layout(y, gl.DotOperandLayout(1, acc_layout, 4))
    acc = gl.amd.cdna3.mfma(x, y, gl.zeros((M, N), gl.float32, acc_layout))
    out = gl.convert_layout(acc, load)
    gl.amd.cdna3.buffer_store(out, c, rm[:, None] * N + rn[None, :])


def test_mfma(cdna3):
    a, b = (
        rng.standard_normal((128, 32)).astype(np.float16),
        rng.standard_normal((32, 32)).astype(np.float16),
    )
    c = np.zeros((128, 32), np.float32)
    mfma[(1,)](a, b, c, 128, 32, 32)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-5)


# ---- what is missing ---------------------------------------------------------------------------


def test_an_op_without_a_model_says_whose_it_is():
    from gluon_core.registry.load import registry
    from gluon_sim.tracing.builder import SimBuilder

    builder = SimBuilder(None, registry().target("sim:sm_90"))
    with pytest.raises(
        GluonError, match="no reference model for the builder op `flux_capacitor` of nvidia"
    ) as e:
        builder.create_flux_capacitor(1)
    assert "still compiles for nvidia" in str(e.value)


def test_options_are_those_of_the_vendor_and_the_program_is_readable():
    with pytest.raises(GluonError, match="num_warp"):
        copies[(1,)](
            np.zeros(8, np.float32),
            np.zeros(8, np.float32),
            np.zeros(8, np.float32),
            8,
            128,
            2,
            num_warp=2,
        )
    a, b = rng.standard_normal((2, 128)).astype(np.float32)
    compiled = copies[(1,)](a, b, np.zeros(128, np.float32), 128, 128, 2)
    text = compiled.asm["program"].decode()
    assert "kernel @copies(" in text and "async_copy_global_to_local" in text and "for %" in text
    report = compiled.report()
    assert (
        report.instruction_mix["async_copy_global_to_local"] == 4 and report.shared_memory == 2048
    )
    assert "#" not in compiled.function.str_nodebug().split("kernel")[1].split("{")[0]
