"""Host-side TDM descriptors, and kernels of gfx1250 down to the ISA."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.amd.gfx1250 import TensorDescriptor
from gluon_core.compiler import compile
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError
from gluon_core.language.amd import gfx1250 as unit
from gluon_core.language.amd.gfx1250 import async_copy, mbarrier, tdm
from gluon_core.testing import MockTensor, bind, triton_at_least
from tests.frontend.vendor_oracle import since

PADDED = gl.PaddedSharedLayout.with_identity_for([[64, 8]], [32, 64], [1, 0])
PLAIN = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))


# -- the class --------------------------------------------------------------------------------------


def test_from_tensor():
    x = torch.zeros(70, 160, dtype=torch.float16)[:, :150]
    descriptor = TensorDescriptor.from_tensor(x, [32, 64], PADDED)
    assert descriptor.base is x and descriptor.padding == "zero" and descriptor.layout is PADDED
    assert (descriptor.shape, descriptor.strides, descriptor.block_shape) == (
        [70, 150],
        [160, 1],
        [32, 64],
    )


def test_both_spellings_are_one():
    from gluon_core.amd import cdna5

    assert cdna5.TensorDescriptor is TensorDescriptor


X = torch.zeros(70, 150, dtype=torch.float16)


@pytest.mark.parametrize(
    "fields, error, match",
    [
        ({"base": 5}, ArgumentError, "TensorDescriptor.base"),
        ({"shape": []}, ShapeError, "dimensions"),
        ({"strides": [150]}, ShapeError, "TensorDescriptor.strides"),
        ({"strides": [1, 150]}, ShapeError, "contiguous"),
        ({"shape": [0, 150]}, ShapeError, "extent"),
        ({"block_shape": [32, 48]}, ShapeError, "power of two"),
        ({"block_shape": [1 << 16, 64], "layout": PLAIN}, ShapeError, "65535"),
        ({"layout": gl.SwizzledSharedLayout(8, 1, 4, [1, 0])}, LayoutError, "does not swizzle"),
        ({"layout": gl.NVMMASharedLayout(128, 16, 2)}, LayoutError, "does not write"),
        ({"layout": gl.SwizzledSharedLayout(1, 1, 1, [0])}, LayoutError, "rank"),
        ({"layout": L.value}, LayoutError, "shared memory"),
        ({"padding": "nan"}, ArgumentError, "zero"),
        ({"base": torch.zeros(4, 4, dtype=torch.complex128)}, DtypeError, "1, 2, 4 or 8"),
    ],
)
def test_bad_fields(fields, error, match):
    good = {"base": X, "shape": [70, 150], "strides": [150, 1], "block_shape": [32, 64]}
    with pytest.raises(error, match=match):
        TensorDescriptor(**{**good, "layout": PADDED, **fields})


@gluon.jit
def add_one(src, dst, n):
    smem = gl.allocate_shared_memory(src.dtype, src.block_shape, src.layout)
    out = gl.allocate_shared_memory(dst.dtype, dst.block_shape, dst.layout)
    for i in range(n):
        tdm.async_load(src, [0, 64 * i], smem)
        tdm.async_wait(0)
        out.store(smem.load(L) + 1)
        gl.barrier()
        tdm.async_store(dst, [0, 64 * i], out)
        tdm.async_wait(0)


@pytest.mark.once
def test_kernels_take_them(on):
    for x in (np.arange(32 * 100, dtype=np.float32).reshape(32, 100), torch.randn(32, 100)):
        out = x * 0
        src = TensorDescriptor.from_tensor(x, [32, 64], PADDED)
        dst = TensorDescriptor.from_tensor(out, [32, 64], PLAIN)
        add_one[(1,)](src, dst, 2, target=on("gfx1250"))
        assert (out == x + 1).all()


# -- down to the ISA --------------------------------------------------------------------------------


def isa(kernel, arguments, **options):
    source, _ = bind(kernel, arguments, {})
    return compile(source, target="gfx1250", options=options or None)


HALVES = MockTensor(torch.float16)


@gluon.jit
def read(src, out):
    smem = gl.allocate_shared_memory(src.dtype, src.block_shape, src.layout)
    tdm.async_load(src, [0, 64], smem)
    tdm.async_wait(0)
    rows = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    gl.store(out + rows[:, None] * 64 + columns[None, :], smem.load(L))


@pytest.mark.once
def test_descriptor_arguments_compile():
    """Triton's own launcher makes the hardware's descriptor from the compiler's metadata."""
    compiled = isa(read, (TensorDescriptor.from_tensor(X, [32, 64], PADDED), HALVES))
    text = compiled.asm["amdgcn"]
    assert "tensor_load_to_lds" in text and "s_wait_tensorcnt" in text
    assert str(compiled.src.signature["src"]).startswith("tensordesc<fp16[32, 64],PaddedShared")
    (meta,) = compiled.metadata.tensordesc_meta
    assert meta["elem_bits"] == 16 and list(meta["block_size"]) == [32, 64]
    assert [list(pair) for pair in meta["interval_padding_pairs"]] == [[64, 8]]


@since(3, 7)
def test_descriptor_arguments(on):
    x = np.arange(40 * 130, dtype=np.float16).reshape(40, 130)
    out = np.zeros((32, 64), np.float16)
    read[(1,)](TensorDescriptor.from_tensor(x, [32, 64], PADDED), out, target=on("gfx1250"))
    np.testing.assert_array_equal(out, x[:32, 64:128])


@since(3, 7)  # 3.6 runs out of preloaded registers for two of them
def test_two_descriptor_arguments_compile():
    src = TensorDescriptor.from_tensor(X, [32, 64], PADDED)
    dst = TensorDescriptor.from_tensor(X.clone(), [32, 64], PLAIN)
    assert "tensor_store_from_lds" in isa(add_one, (src, dst, 2)).asm["amdgcn"]


@gluon.jit
def copies(p, q, n):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, 128)
    rows = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    offsets = rows[:, None] * 64 + columns[None, :]
    smem = gl.allocate_shared_memory(gl.float16, [32, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    async_copy.global_to_shared(smem, p + offsets, mask=rows[:, None] < n, other=0.0)
    async_copy.mbarrier_arrive(bar)
    mbarrier.wait(bar, 0)
    async_copy.global_to_shared(smem, p + offsets + 4096)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.store(q + offsets, smem.load(L))
    mbarrier.wait(bar, mbarrier.arrive(bar))


@pytest.mark.once
def test_copies_and_barriers_compile():
    text = isa(copies, (HALVES, HALVES, 7)).asm["amdgcn"]
    for pattern in (
        r"global_load_async_to_lds_b128",
        r"s_wait_asynccnt",
        r"ds_atomic_async_barrier_arrive_b64",
        r"ds_atomic_barrier_arrive_rtn_b64",
    ):
        assert re.search(pattern, text), pattern


def test_copies_and_barriers(on):
    p, q = np.arange(6144, dtype=np.float16), np.zeros(2048, np.float16)
    copies[(1,)](p, q, 7, target=on("gfx1250"))
    np.testing.assert_array_equal(q, p[4096:])


@gluon.jit
def rows_and_back(p, q, index):
    offsets: gl.constexpr = gl.SliceLayout(1, gl.BlockedLayout([32, 1], [1, 32], [1, 4], [1, 0]))
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    d = tdm.make_tensor_descriptor(p, [512, 64], [64, 1], [32, 64], plain)
    e = tdm.make_tensor_descriptor(q, [512, 64], [64, 1], [32, 64], plain)
    smem = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    i = gl.load(index + gl.arange(0, 32, layout=offsets))
    tdm.prefetch(d, [32, 0])
    tdm.async_gather(d, i, 0, smem)
    tdm.async_wait(0)
    tdm.async_scatter(e, i, 0, smem)
    tdm.async_wait(0)


@since(3, 7)
def test_gather_and_scatter_compile():
    text = isa(rows_and_back, (HALVES, HALVES, MockTensor(torch.int32))).asm["amdgcn"]
    for pattern in ("tensor_load_to_lds", "tensor_store_from_lds", "global_prefetch_b8"):
        assert pattern in text, pattern


@since(3, 7)
def test_gather_and_scatter(on):
    rng = np.random.default_rng(1)
    p, q = rng.standard_normal((512, 64)).astype(np.float16), np.zeros((512, 64), np.float16)
    index = rng.permutation(512)[:32].astype(np.int32)
    rows_and_back[(1,)](p, q, index, target=on("gfx1250"))
    wanted = np.zeros_like(p)
    wanted[index] = p[index]
    np.testing.assert_array_equal(q, wanted)


if triton_at_least(3, 7):
    ACC = gl.constexpr(gl.amd.AMDWMMALayout(3, True, [[0, 1], [1, 0]], [], [16, 16, 128]))
else:
    ACC = gl.constexpr(gl.amd.AMDWMMALayout(3, True, [2, 2], [16, 16, 128]))


@gluon.jit
def scaled(a, b, s, t, c):
    LA: gl.constexpr = gl.DotOperandLayout(0, ACC, 16)
    LB: gl.constexpr = gl.DotOperandLayout(1, ACC, 16)
    SA: gl.constexpr = unit.get_wmma_scale_layout(LA, [64, 4])
    SB: gl.constexpr = unit.get_wmma_scale_layout(LB, [64, 4])
    m = gl.arange(0, 64, layout=gl.SliceLayout(1, LA))
    k = gl.arange(0, 128, layout=gl.SliceLayout(0, LA))
    x = unit.buffer_load(a, m[:, None] * 128 + k[None, :])
    k = gl.arange(0, 128, layout=gl.SliceLayout(1, LB))
    n = gl.arange(0, 64, layout=gl.SliceLayout(0, LB))
    y = unit.buffer_load(b, n[None, :] * 128 + k[:, None])
    m = gl.arange(0, 64, layout=gl.SliceLayout(1, SA))
    i = gl.arange(0, 4, layout=gl.SliceLayout(0, SA))
    u = unit.buffer_load(s, m[:, None] * 4 + i[None, :])
    m = gl.arange(0, 64, layout=gl.SliceLayout(1, SB))
    i = gl.arange(0, 4, layout=gl.SliceLayout(0, SB))
    v = unit.buffer_load(t, m[:, None] * 4 + i[None, :])
    acc = gl.full([64, 64], 0, gl.float32, layout=ACC)
    acc = unit.wmma_scaled(x, u, "e4m3", y, v, "e5m2", acc)
    m = gl.arange(0, 64, layout=gl.SliceLayout(1, ACC))
    n = gl.arange(0, 64, layout=gl.SliceLayout(0, ACC))
    unit.buffer_store(acc, c, m[:, None] * 64 + n[None, :])


@pytest.mark.once
def test_scaled_wmma_compiles():
    bytes = MockTensor(torch.uint8)
    text = isa(scaled, (bytes, bytes, bytes, bytes, MockTensor(torch.float32))).asm["amdgcn"]
    assert text.count("v_wmma_scale_f32_16x16x128_f8f6f4") == 4  # 16 tiles of 4 warps


def test_scaled_wmma(on):
    import ml_dtypes

    rng = np.random.default_rng(3)
    a = rng.standard_normal((64, 128)).astype(ml_dtypes.float8_e4m3fn)
    b = rng.standard_normal((64, 128)).astype(ml_dtypes.float8_e5m2)
    s, t = rng.integers(120, 134, (2, 64, 4)).astype(np.uint8)
    c = np.zeros((64, 64), np.float32)
    scaled[(1,)](a.view(np.uint8), b.view(np.uint8), s, t, c, target=on("gfx1250"))
    wide = [
        x.astype(np.float64) * 2.0 ** (np.repeat(e, 32, 1).astype(int) - 127)
        for x, e in ((a, s), (b, t))
    ]
    np.testing.assert_allclose(c, wide[0] @ wide[1].T, rtol=1e-4, atol=1e-3)
