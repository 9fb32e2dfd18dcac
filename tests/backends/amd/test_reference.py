"""The meaning of CDNA's ops: kernels against NumPy, as the simulator and as machine code has them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GluonError
from gluon_core.language.amd import cdna3, cdna4
from gluon_core.language.amd.cdna4 import async_copy
from gluon_core.testing import triton_at_least

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

rng = np.random.default_rng(5)
L = gl.constexpr(gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0]))
since_39 = pytest.mark.skipif(not triton_at_least(3, 9), reason="needs Triton 3.9")


def emulated(on):
    return on("gfx950").startswith("emu")


@gluon.jit
def at(rows: gl.constexpr, columns: gl.constexpr, layout: gl.constexpr):
    row = gl.arange(0, rows, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, columns, layout=gl.SliceLayout(0, layout))
    return row[:, None] * columns + column[None, :]


# -- buffers ----------------------------------------------------------------------------------


@gluon.jit
def shifted(src, dst, by, other: gl.constexpr):
    offsets = gl.arange(0, 256, layout=gl.BlockedLayout([1], [64], [4], [0]))
    x = cdna3.buffer_load(src, offsets + by, mask=offsets < 250, other=other)
    cdna3.buffer_store(x, dst, offsets)
    cdna3.buffer_store(x, dst, offsets - 300)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_negative_offsets_read_zero_and_write_nothing(on, dtype):
    src = np.arange(1, 257).astype(dtype)
    dst = np.full(256, 77, dtype)
    shifted[(1,)](src, dst, -6, 5, target=on("gfx942"))
    want = np.concatenate([np.zeros(6, dtype), src[:244], np.full(6, 5, dtype)])
    np.testing.assert_array_equal(dst, want)


def test_offsets_past_the_tensor_are_errors(on):
    with pytest.raises(GluonError, match="(?i)outside|out of|past the end"):
        shifted[(1,)](
            np.zeros(256, np.float32), np.zeros(256, np.float32), 7, 0, target=on("gfx942")
        )


# -- copies past the registers ----------------------------------------------------------------


@gluon.jit
def pipelined(src, dst, n, STAGES: gl.constexpr, PENDING: gl.constexpr, POINTERS: gl.constexpr):
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    smem = gl.allocate_shared_memory(src.dtype.element_ty, [STAGES, 32, 64], shared)
    offsets = at(32, 64, L)
    for i in range(n + STAGES - 1):
        if i < n:
            mask = offsets + i * 2048 < n * 2048 - 128
            if POINTERS:
                pointers = src + i * 2048 + offsets
                async_copy.global_load_to_shared(smem.index(i % STAGES), pointers, mask, 9)
            else:
                async_copy.buffer_load_to_shared(
                    smem.index(i % STAGES), src, offsets + i * 2048, mask, other=9
                )
        async_copy.commit_group()
        if i >= STAGES - 1:
            done = i - STAGES + 1
            async_copy.wait_group(PENDING)
            x = async_copy.load_shared_relaxed(smem.index(done % STAGES), L)
            gl.store(dst + done * 2048 + offsets, x)


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:buffer_load_to_shared")  # of `other` before Triton 3.8
@pytest.mark.parametrize("pointers", [False, True])
def test_copies_land_when_they_are_waited_for(on, pointers):
    src = rng.standard_normal(5 * 2048).astype(np.float16)
    want = np.concatenate([src[:-128], np.full(128, 9, np.float16)])
    if not pointers and emulated(on) and not triton_at_least(3, 8):
        want[-128:] = src[2048:4096][-128:]  # docs/known-compiler-bugs.md: three copies ago
    dst = np.zeros_like(src)
    pipelined[(1,)](src, dst, 5, 3, 2, pointers, target=on("gfx950"))
    np.testing.assert_array_equal(dst, want)


@pytest.mark.filterwarnings("ignore:buffer_load_to_shared")  # of `other` before Triton 3.8
@pytest.mark.parametrize("pointers", [False, True])
def test_copies_that_are_not_waited_for_are_found(on, pointers):
    src = rng.standard_normal(5 * 2048).astype(np.float16)
    if emulated(on) and not triton_at_least(3, 8):  # whose code waits for all of them
        compiled = pipelined[(1,)](src, np.zeros_like(src), 5, 3, 3, pointers, target=on("gfx950"))
        assert "vmcnt(0)" in compiled.asm["amdgcn"]
        return
    with pytest.raises(GluonError, match="(?i)race|not.*waited|uninitiali|missing"):
        pipelined[(1,)](src, np.zeros_like(src), 5, 3, 3, pointers, target=on("gfx950"))


@gluon.jit
def partly(src, dst, POINTERS: gl.constexpr):
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    offsets = at(32, 64, L)
    smem = gl.allocate_shared_memory(
        gl.float16, [32, 64], shared, gl.full([32, 64], 7, gl.float16, L)
    )
    if POINTERS:
        async_copy.global_load_to_shared(smem, src + offsets, offsets < 1000)
    else:
        async_copy.buffer_load_to_shared(smem, src, offsets, offsets < 1000)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.store(dst + offsets, smem.load(L))


@pytest.mark.parametrize("pointers, rest", [(True, 7), (False, 0)])
def test_bytes_that_a_masked_copy_leaves(on, pointers, rest):
    """Lanes that are switched off write nothing; a buffer access out of bounds writes 0."""
    src = rng.standard_normal(2048).astype(np.float16)
    dst = np.zeros_like(src)
    partly[(1,)](src, dst, pointers, target=on("gfx950"))
    want = np.concatenate([src[:1000], np.full(1048, rest, np.float16)])
    np.testing.assert_array_equal(dst, want)


# -- scaled matrix multiplication ---------------------------------------------------------------

ACC = gl.constexpr(gl.amd.AMDMFMALayout(4, [16, 16, 128], True, [2, 2]))
A = gl.constexpr(gl.DotOperandLayout(0, ACC, 16))
B = gl.constexpr(gl.DotOperandLayout(1, ACC, 16))
KINDS = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


@gluon.jit
def scaled_product(
    a,
    sa,
    b,
    sb,
    c,
    K: gl.constexpr,
    KIND_A: gl.constexpr,
    KIND_B: gl.constexpr,
    SCALED: gl.constexpr,
):
    KA: gl.constexpr = K // 2 if KIND_A == "e2m1" else K
    KB: gl.constexpr = K // 2 if KIND_B == "e2m1" else K
    AS: gl.constexpr = cdna4.get_mfma_scale_layout(A, [64, K // 32])
    BS: gl.constexpr = cdna4.get_mfma_scale_layout(B, [32, K // 32])
    x = cdna4.buffer_load(a, at(64, KA, A))
    y = cdna4.buffer_load(b, at(KB, 32, B))
    acc = gl.full([64, 32], 1.0, gl.float32, layout=ACC)
    if SCALED:
        s = cdna4.buffer_load(sa, at(64, K // 32, AS))
        t = cdna4.buffer_load(sb, at(32, K // 32, BS))
        acc = cdna4.mfma_scaled(x, s, KIND_A, y, t, KIND_B, acc)
    else:
        acc = cdna4.mfma_scaled(x, 128, KIND_A, y, None, KIND_B, acc)
    cdna4.buffer_store(acc, c, at(64, 32, ACC))


def numbers(shape, kind, axis):
    """(bytes, their values): random numbers of a kind, e2m1 packed along `axis`."""
    values = rng.uniform(-6, 6, shape).astype(KINDS[kind])
    codes = values.view(np.uint8)
    if kind == "e2m1":
        even, odd = (np.take(codes, range(i, shape[axis], 2), axis) for i in (0, 1))
        codes = (even & 15) | (odd & 15) << 4
    return np.ascontiguousarray(codes), values.astype(np.float64)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kinds", list(itertools.product(KINDS, KINDS)))
def test_scaled_mfma(on, kinds):
    k = 256
    a, wide_a = numbers((64, k), kinds[0], 1)
    b, wide_b = numbers((k, 32), kinds[1], 0)
    sa, sb = (rng.integers(120, 132, (rows, k // 32)).astype(np.uint8) for rows in (64, 32))
    c = np.zeros((64, 32), np.float32)
    scaled_product[(1,)](a, sa, b, sb, c, k, *kinds, True, target=on("gfx950"))
    left = wide_a * np.repeat(2.0 ** (sa.astype(int) - 127), 32, 1)
    right = wide_b * np.repeat(2.0 ** (sb.astype(int) - 127), 32, 1).T
    np.testing.assert_allclose(c, left @ right + 1, rtol=1e-5, atol=1e-6 * np.abs(c).max())
    scaled_product[(1,)](a, sa, b, sb, c, k, *kinds, False, target=on("gfx950"))
    np.testing.assert_allclose(c, 2 * wide_a @ wide_b + 1, rtol=1e-5, atol=1e-6 * np.abs(c).max())


def test_the_scale_255_is_not_a_number(on):
    a, _ = numbers((64, 128), "e4m3", 1)
    b, _ = numbers((128, 32), "e4m3", 0)
    sa, sb = np.full((64, 4), 127, np.uint8), np.full((32, 4), 127, np.uint8)
    sa[3, 2] = 255
    c = np.zeros((64, 32), np.float32)
    scaled_product[(1,)](a, sa, b, sb, c, 128, "e4m3", "e4m3", True, target=on("gfx950"))
    assert np.isnan(c[3]).all() and not np.isnan(np.delete(c, 3, 0)).any()


# -- narrow floats ------------------------------------------------------------------------------

BLOCKS = gl.constexpr(
    gl.DistributedLinearLayout(
        [], [[0, 0], [0, 0], [0, 1], [1, 0], [2, 0], [4, 0]], [[8, 0], [16, 0]], [], [32, 2]
    )
)


@gluon.jit
def narrowed(src, scales, dst, KIND: gl.constexpr):
    x = gl.load(src + at(32, 64, L))
    s = gl.load(scales + at(32, 2, BLOCKS))
    y = cdna4.scaled_downcast(x, s, KIND).to(gl.int8, bitcast=True)
    columns: gl.constexpr = 32 if KIND == "e2m1" else 64
    gl.store(dst + at(32, columns, y.type.layout), y)


@since_39
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("kind", list(KINDS))
def test_scaled_downcast(on, kind, dtype):
    src = (rng.uniform(-1, 1, (32, 64)) * 2.0 ** rng.integers(-3, 3, (32, 64))).astype(dtype)
    src[0, :16] = np.arange(16) / 4  # ties
    scales = rng.integers(125, 128, (32, 2)).astype(np.uint8)
    scales[0] = 127
    dst = np.zeros((32, 32 if kind == "e2m1" else 64), np.int8)
    narrowed[(1,)](src, scales, dst, kind, target=on("gfx950"))
    exact = src.astype(np.float64) / np.repeat(2.0 ** (scales.astype(int) - 127), 32, 1)
    want = np.clip(exact, -6, 6) if kind == "e2m1" else exact
    codes = want.astype(np.float32).astype(KINDS[kind]).view(np.uint8)
    if kind == "e2m1":
        codes = codes[:, ::2] & 15 | (codes[:, 1::2] & 15) << 4
    np.testing.assert_array_equal(dst.view(np.uint8), codes)


@gluon.jit
def repacked(src, dst):
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    smem = gl.allocate_shared_memory(gl.uint8, [64, 64], shared, gl.load(src + at(64, 64, L)))
    x = cdna4.load_shared_fp4_repacked(smem, B)
    gl.store(dst + at(32, 128, B), x)


@since_39
def test_fp4_repacked(on):
    """[K, N] packed along N comes back packed along K."""
    codes = rng.integers(0, 16, (64, 128)).astype(np.uint8)
    dst = np.zeros((32, 128), np.uint8)
    repacked[(1,)](codes[:, ::2] | codes[:, 1::2] << 4, dst, target=on("gfx950"))
    np.testing.assert_array_equal(dst, codes[::2] | codes[1::2] << 4)


# -- what has no model ----------------------------------------------------------------------------


def test_every_op_has_a_model():
    """The builder ops that gl.amd emits and nobody says the meaning of."""
    import gluon_amd
    import gluon_amd.reference as models
    from gluon_sim.tracing.builder import SimBuilder

    folder = Path(gluon_amd.__file__).parent / "language"
    emitted = {
        name
        for file in folder.rglob("*.py")
        for name in re.findall(r"builder\.create_(\w+)", file.read_text())
    }
    assert {"buffer_load", "dot_scaled", "local_load_packed_transposed"} <= emitted
    lacking = {name for name in emitted if not hasattr(models, name)}
    assert {name for name in lacking if not hasattr(SimBuilder, f"create_{name}")} == set()
