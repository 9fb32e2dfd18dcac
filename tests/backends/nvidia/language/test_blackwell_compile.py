"""Kernels with tensor memory and tcgen05 down to a cubin: the instructions of their builtins."""

from __future__ import annotations

import re

import pytest

from gluon_core.compiler import compile
from gluon_core.errors import LimitError
from gluon_core.testing import MockTensor, bind
from tests.frontend import oracle
from tests.frontend.vendor_oracle import since

pytestmark = pytest.mark.once

HEAD = """
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma,
    tcgen05_mma_scaled,
)
"""
MATMUL = (
    HEAD
    + """
L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
S = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))

@gluon.jit
def tile(p, rows: gl.constexpr, columns: gl.constexpr, stride):
    m = gl.arange(0, rows, layout=gl.SliceLayout(1, L))
    n = gl.arange(0, columns, layout=gl.SliceLayout(0, L))
    return p + m[:, None] * stride + n[None, :]

@gluon.jit
def kernel(a, b, c, k):
    x = gl.allocate_shared_memory(gl.float16, [128, 64], S)
    y = gl.allocate_shared_memory(gl.float16, [64, 128], S)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    acc = allocate_tensor_memory(gl.float32, [128, 128], TensorMemoryLayout([128, 128], 1))
    phase = 0
    use = False
    for i in range(0, k, 64):
        x.store(gl.load(tile(a + i, 128, 64, k)))
        y.store(gl.load(tile(b + i * 128, 64, 128, 128)))
        fence_async_shared()
        tcgen05_mma(x, y, acc, use_acc=use)
        tcgen05_commit(bar)
        mbarrier.wait(bar, phase)
        phase ^= 1
        use = True
    mbarrier.invalidate(bar)
    gl.store(tile(c, 128, 128, 128), gl.convert_layout(acc.load().to(gl.float16), L))
"""
)
SCALED = (
    HEAD
    + """
S8 = gl.constexpr(gl.NVMMASharedLayout(128, 8, 2))
T8 = gl.constexpr(gl.NVMMASharedLayout(128, 8, 2, transposed=True))
BYTES = gl.constexpr(gl.BlockedLayout([1, 16], [4, 8], [4, 1], [1, 0]))
ONES = gl.constexpr(TensorMemoryScalesLayout())

@gluon.jit
def tile(p, layout: gl.constexpr):
    m = gl.arange(0, 128, layout=gl.SliceLayout(1, layout))
    n = gl.arange(0, 128, layout=gl.SliceLayout(0, layout))
    return p + m[:, None] * 128 + n[None, :]

@gluon.jit
def kernel(a, b, c):
    x = gl.allocate_shared_memory(gl.float8e5, [128, 128], S8, gl.load(tile(a, BYTES)))
    y = gl.allocate_shared_memory(gl.float8e5, [128, 128], S8, gl.load(tile(b, BYTES)))
    p = allocate_tensor_memory(gl.int8, [128, 4], ONES)
    q = allocate_tensor_memory(gl.int8, [128, 4], ONES)
    p.store(gl.full([128, 4], 127, gl.int8, p.get_reg_layout()))
    q.store(gl.full([128, 4], 127, gl.int8, q.get_reg_layout()))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    acc = allocate_tensor_memory(gl.float32, [128, 128], TensorMemoryLayout([128, 128], 1))
    fence_async_shared()
    tcgen05_mma_scaled(
        x, y.permute([1, 0]), acc, p, q, "e5m2", "e5m2", use_acc=False, mbarriers=[bar]
    )
    mbarrier.wait(bar, 0)
    OUT: gl.constexpr = acc.get_reg_layout()
    gl.store(tile(c, OUT), acc.load())
"""
)
SMALL = (
    HEAD
    + """
@gluon.jit
def kernel(n):
    acc = allocate_tensor_memory({dtype}, {shape}, {layout})
    {call}
"""
)


def built(source, *args, target="nvidia:sm_100", **options):
    module = oracle.load(source, oracle.OURS)
    bound, _ = bind(module.kernel, args, {})
    return compile(bound, target=target, options=options)


def holds(compiled, *patterns):
    ptx = compiled.asm["ptx"]
    missing = [pattern for pattern in patterns if not re.search(pattern, ptx)]
    assert not missing, ptx
    assert compiled.asm["cubin"]


def test_matmul():
    import torch

    half = MockTensor(torch.float16)
    holds(
        built(MATMUL, half, half, half, 256),
        r"tcgen05\.alloc",
        r"tcgen05\.mma\.cta_group::1\.kind::f16",
        r"tcgen05\.commit",
        r"tcgen05\.ld\.sync\.aligned\.32x32b\.x128\.b32",
        r"tcgen05\.wait::ld",
        r"fence\.proxy\.async",
        r"mbarrier\.(test|try)_wait",
    )


def test_scaled():
    import torch

    narrow, wide = MockTensor(torch.float8_e5m2), MockTensor(torch.float32)
    holds(
        built(SCALED, narrow, narrow, wide),
        r"tcgen05\.mma\.cta_group::1\.kind::mxf8f6f4\.block_scale",
        r"tcgen05\.st",
    )


@pytest.mark.parametrize(
    "variant, warps, instruction",
    [
        ("32x32b", 4, r"32x32b\.x64"),
        ("32x32b", 8, r"32x32b\.x32"),
        ("16x64b", 4, r"16x64b"),
        ("16x128b", 4, r"16x128b"),
        ("16x256b", 8, r"16x256b"),
        ("32x32b_splitn", 4, r"32x32b"),
    ],
)
def test_loads(variant, warps, instruction):
    source = SMALL.format(
        dtype="gl.float32",
        shape=[128, 64],
        layout="TensorMemoryLayout([128, 64], 1)",
        call=f"acc.store(acc.load(acc.get_reg_layout(instr_variant='{variant}')) + 1)",
    )
    holds(
        built(source, 5, num_warps=warps),
        rf"tcgen05\.ld\.sync\.aligned\.{instruction}",
        rf"tcgen05\.st\.sync\.aligned\.{instruction}",
    )


@pytest.mark.parametrize(
    "dtype, shape, layout, instruction",
    [
        ("gl.float32", [64, 64], "TensorMemoryLayout([64, 64], 1)", r"16x32bx2"),
        ("gl.float32", [128, 128], "TensorMemoryLayout([64, 64], 1)", r"32x32b"),
        ("gl.float16", [128, 64], "TensorMemoryLayout([128, 64], 2)", r"32x32b\.x32\.pack::16b"),
        ("gl.float16", [128, 64], "TensorMemoryLayout([128, 64], 1)", r"32x32b\.x32\.b32"),
    ],
)
def test_loads_of_every_kind_of_block(dtype, shape, layout, instruction):
    call = "acc.store(acc.load() + 1)"
    source = SMALL.format(dtype=dtype, shape=shape, layout=layout, call=call)
    holds(built(source, 5), rf"tcgen05\.ld\.sync\.aligned\.{instruction}")


@since(3, 7)
def test_loads_with_a_reduction():
    source = SMALL.format(
        dtype="gl.float32",
        shape=[128, 64],
        layout="TensorMemoryLayout([128, 64], 1)",
        call="v, r = acc.load_max(abs=True)\n    acc.store(v + gl.expand_dims(r, 1))",
    )
    holds(built(source, 5, target="nvidia:sm_103"), r"tcgen05\.ld\.red\S*32x32b\S*\.max\.abs\.f32")


def test_copies_of_scales():
    shared = (
        "gl.SharedLinearLayout([[0, 1], [0, 2], [32, 0], [64, 0], [1, 0], [2, 0], [4, 0], [8, 0], "
        "[16, 0], [0, 4], [0, 8]])"
    )
    source = SMALL.format(
        dtype="gl.int8",
        shape=[128, 16],
        layout="TensorMemoryScalesLayout()",
        call=f"tcgen05_copy(gl.allocate_shared_memory(gl.int8, [128, 16], {shared}), acc)",
    )
    holds(built(source, 5), r"tcgen05\.cp\.cta_group::1\.warpx4\.32x128b")


def test_more_columns_than_there_are():
    """Each fits, but they are alive together."""
    layout = "TensorMemoryLayout([128, 128], 1)"
    source = SMALL.format(
        dtype="gl.float32",
        shape=[2, 128, 128],
        layout=layout,
        call=f"more = allocate_tensor_memory(gl.float32, [4, 128, 128], {layout})\n"
        "    x = acc.index(0).load()\n    more.index(1).store(x)\n"
        "    acc.index(1).store(more.index(2).load())",
    )
    with pytest.raises(LimitError, match="tensor memory.*512 columns"):
        built(source, 5)
