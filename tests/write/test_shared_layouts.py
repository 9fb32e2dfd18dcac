"""Kernels with shared memory and without layouts: right, and with the layouts that the hardware wants."""

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import LayoutError, ShapeError
from gluon_core.language.nvidia.ampere import async_copy, mma_v2
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_core.layouts.cost import matrix_rows
from gluon_core.nvidia.hopper import TensorDescriptor

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def transpose(x, out, M, N, BLOCK: gl.constexpr):
    top = gl.program_id(0) * BLOCK
    left = gl.program_id(1) * BLOCK
    i = gl.arange(0, BLOCK)[:, None]
    j = gl.arange(0, BLOCK)[None, :]
    buffer = gl.allocate_shared_memory(gl.float32, [BLOCK, BLOCK])
    buffer.store(gl.load(x + (top + i) * N + left + j))
    transposed = buffer.permute((1, 0)).load()
    gl.store(out + (left + i) * M + top + j, transposed)


@gluon.jit
def fetch(a_at, b_at, N, k, left, right):
    async_copy.async_copy_global_to_shared(left, a_at + k)
    async_copy.async_copy_global_to_shared(right, b_at + k * N)
    async_copy.commit_group()


@gluon.jit(layouts="auto")
def ampere_matmul(a, b, c, M, N, K, BLOCK: gl.constexpr, STEP: gl.constexpr):
    rows = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK)[:, None]
    columns = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK)[None, :]
    a_at = a + rows * K + gl.arange(0, STEP)[None, :]
    b_at = b + gl.arange(0, STEP)[:, None] * N + columns
    left = gl.allocate_shared_memory(a.dtype.element_ty, [2, BLOCK, STEP])
    right = gl.allocate_shared_memory(b.dtype.element_ty, [2, STEP, BLOCK])
    acc = gl.zeros([BLOCK, BLOCK], gl.float32)
    fetch(a_at, b_at, N, 0, left.index(0), right.index(0))
    for step in range(K // STEP):
        ahead = (step + 1) % (K // STEP)
        fetch(a_at, b_at, N, ahead * STEP, left.index((step + 1) % 2), right.index((step + 1) % 2))
        async_copy.wait_group(1)
        acc = mma_v2(left.index(step % 2).load(), right.index(step % 2).load(), acc)
    async_copy.wait_group(0)
    gl.store(c + rows * N + columns, acc.to(c.dtype.element_ty))


@gluon.jit
def fetch_tiles(a, b, left, right, arrived, row, column, k, pred):
    mbarrier.expect(arrived, a.block_type.nbytes + b.block_type.nbytes, pred=pred)
    tma.async_copy_global_to_shared(a, [row, k], arrived, left, pred=pred)
    tma.async_copy_global_to_shared(b, [k, column], arrived, right, pred=pred)


@gluon.jit(layouts="auto")
def hopper_matmul(a, b, c, K, BLOCK: gl.constexpr, STEP: gl.constexpr, STAGES: gl.constexpr):
    row = gl.program_id(0) * BLOCK
    column = gl.program_id(1) * BLOCK
    left = gl.allocate_shared_memory(a.dtype, [STAGES, BLOCK, STEP])
    right = gl.allocate_shared_memory(b.dtype, [STAGES, STEP, BLOCK])
    arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1])
    for i in gl.static_range(STAGES):
        mbarrier.init(arrived.index(i), count=1)
    steps = K // STEP
    for i in gl.static_range(STAGES - 1):
        here = arrived.index(i)
        fetch_tiles(a, b, left.index(i), right.index(i), here, row, column, i * STEP, i < steps)
    acc = warpgroup_mma_init(gl.zeros([BLOCK, BLOCK], gl.float32))
    for step in range(steps):
        slot = step % STAGES
        mbarrier.wait(arrived.index(slot), step // STAGES & 1)
        acc = warpgroup_mma(left.index(slot), right.index(slot), acc, is_async=True)
        acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
        ahead = step + STAGES - 1
        free = ahead % STAGES
        fetch_tiles(
            a, b, left.index(free), right.index(free), arrived.index(free), row, column,
            ahead * STEP, ahead < steps,
        )  # fmt: skip
    result = warpgroup_mma_wait(0, deps=[acc])
    out = gl.allocate_shared_memory(c.dtype, [BLOCK, BLOCK])
    out.store(result.to(c.dtype))
    gl.nvidia.hopper.fence_async_shared()
    tma.async_copy_shared_to_global(c, [row, column], out)
    tma.store_wait(0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["sim:sm_80", "sim:hopper", "sim:gfx942", "sim:gfx1250"])
def test_transpose_through_a_buffer(target):
    x = np.arange(64 * 96, dtype=np.float32).reshape(64, 96)
    out = np.zeros((96, 64), np.float32)
    transpose[(2, 3)](x, out, 64, 96, 32, target=target)
    assert (out == x.T).all()


def operands(size=128):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(np.float16) for _ in range(2))
    return a, b, np.zeros((size, size), np.float16)


def test_asynchronous_copies_and_mma():
    a, b, c = operands()
    ampere_matmul[(2, 2)](a, b, c, 128, 128, 128, 64, 32, target="sim:sm_80")
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=0.05)


def test_tma_and_wgmma():
    a, b, c = operands()
    shapes = ([64, 32], [32, 64], [64, 64])
    boxes = [TensorDescriptor.from_tensor(x, shape) for x, shape in zip((a, b, c), shapes)]
    assert boxes[0].layout == gl.NVMMASharedLayout.get_default_for([64, 32], gl.float16)
    hopper_matmul[(2, 2)](*boxes, 128, 64, 32, 3, target="sim:hopper")
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=0.05)


def test_chosen_buffers_have_few_conflicts():
    """The transposed buffer of 32 x 32 floats: 32 passes without a swizzle."""
    compiled = gluon.compile(
        transpose,
        target="sm_90",
        signature={"x": "*fp32:16", "out": "*fp32:16", "M": "i32:16", "N": "i32:16"},
        constexprs={"BLOCK": 32},
    )
    assert "swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1" not in compiled.asm["ttgir"]
    assert "swizzled_shared" in compiled.asm["ttgir"]


@gluon.jit(layouts="auto")
def computed_accumulator(x, y, out, B: gl.constexpr):
    i = gl.arange(0, B)[:, None] * B + gl.arange(0, B)[None, :]
    gl.store(out + i, mma_v2(gl.load(x + i), gl.load(y + i), gl.load(out + i)))


def test_a_loaded_accumulator_takes_the_layout_of_the_unit():
    a, b, _ = operands(32)
    c = np.ones((32, 32), np.float32)
    computed_accumulator[(1,)](a, b, c, 32, target="sim:sm_80")
    assert np.allclose(c, 1 + a.astype(np.float32) @ b.astype(np.float32), atol=1e-2)


@gluon.jit(layouts="auto")
def asynchronous(x, y, out, B: gl.constexpr):
    i = gl.arange(0, B)[:, None] * B + gl.arange(0, B)[None, :]
    left = gl.allocate_shared_memory(gl.float16, [B, B], value=gl.load(x + i))
    right = gl.allocate_shared_memory(gl.float16, [B, B], value=gl.load(y + i))
    fence_async_shared()
    acc = warpgroup_mma(left, right, gl.load(out + i), is_async=True)
    gl.store(out + i, warpgroup_mma_wait(0, deps=[acc]))


def test_an_asynchronous_product_with_a_loaded_accumulator():
    a, b, _ = operands(64)
    c = np.ones((64, 64), np.float32)
    asynchronous[(1,)](a, b, c, 64, target="sim:hopper")
    assert np.allclose(c, 1 + a.astype(np.float32) @ b.astype(np.float32), atol=1e-2)


@gluon.jit(layouts="auto")
def masked_product(x, y, out, K, N, B: gl.constexpr):
    i, j = gl.arange(0, B)[:, None], gl.arange(0, B)[None, :]
    a = gl.allocate_shared_memory(gl.float16, [B, B], value=gl.load(x + i * K + j, j < K, 0.0))
    b = gl.allocate_shared_memory(gl.float16, [B, B], value=gl.load(y + i * N + j, i < K, 0.0))
    gl.store(out + i * N + j, gl.portable.mma(a.load(), b.load(), gl.zeros([B, B], gl.float32)))


def test_operands_are_loaded_as_matrices():
    """Rows of both operands begin anywhere, so that a thread stores single elements."""
    signature = {"x": "*fp16", "y": "*fp16", "out": "*fp32", "K": "i32", "N": "i32"}
    sizes = {"B": 32}
    text = gluon.compile(masked_product, target="sm_80", signature=signature, constexprs=sizes).asm[
        "ptx"
    ]
    assert re.search(r"ldmatrix\S*\.x4\.shared", text) and "x4.trans" in text


@gluon.jit
def passed_on(x, out, S: gl.constexpr, O: gl.constexpr, B: gl.constexpr, N: gl.constexpr):
    i = gl.arange(0, N, gl.SliceLayout(1, B))[:, None] * N
    j = gl.arange(0, N, gl.SliceLayout(0, B))[None, :]
    values = gl.load(x + i + j)
    buffer = gl.allocate_shared_memory(x.dtype.element_ty, [N, N], S, values)
    i = gl.arange(0, N, gl.SliceLayout(1, O))[:, None] * N
    j = gl.arange(0, N, gl.SliceLayout(0, O))[None, :]
    gl.store(out + i + j, buffer.load(O))


@pytest.mark.parametrize(
    "dtype, operand, swizzle, elements",
    [
        ("fp16", 0, (8, 2, 4, [1, 0]), 8),
        ("fp16", 1, (8, 2, 4, [1, 0]), 8),
        ("fp16", 1, (8, 2, 4, [0, 1]), 8),
        ("fp16", 0, (4, 2, 8, [1, 0]), None),
        ("fp16", 1, (1, 1, 1, [0, 1]), 8),
        ("fp8e5", 1, (16, 4, 2, [0, 1]), 16),
        ("fp8e5", 1, (16, 4, 2, [1, 0]), None),
    ],
)
def test_the_rows_of_matrices_are_those_of_the_compiler(dtype, operand, swizzle, elements):
    bits, k_width = (16, 2) if dtype == "fp16" else (8, 4)
    layout = gl.DotOperandLayout(
        operand, gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8]), k_width
    )
    buffer = gl.SwizzledSharedLayout(*swizzle)
    rows = matrix_rows(layout, buffer, [32, 32], bits)
    assert (rows and rows[0]) == elements
    blocked = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    compiled = gluon.compile(
        passed_on,
        target="sm_80",
        signature={"x": f"*{dtype}:16", "out": f"*{dtype}:16"},
        constexprs={"S": buffer, "O": layout, "B": blocked, "N": 32},
    )
    assert ("ldmatrix" in compiled.asm["ptx"]) == (elements is not None)


def test_rows_of_matrices_in_the_same_banks():
    layout = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8]), 2)
    passes = [
        matrix_rows(layout, gl.SwizzledSharedLayout(8, 1, phases, [1, 0]), [64, 64], 16)
        for phases in (1, 2, 8)
    ]
    assert passes == [(8, 7), (8, 3), (8, 0)]


@gluon.jit(layouts="auto")
def rings_and_blocks(x, out, whole: gl.constexpr, A: gl.constexpr, B: gl.constexpr):
    """Add vectors of a ring to the planes of a block of three dimensions, taken in another order."""
    i, j = gl.arange(0, A), gl.arange(0, B)
    place = (i[:, None, None] * A + i[None, :, None]) * B + j[None, None, :]
    ring = gl.allocate_shared_memory(gl.float32, [A, B])
    block = gl.allocate_shared_memory(gl.float32, [A, A, B])
    block.store(gl.load(x + place))
    total = gl.zeros([B], gl.float32)
    for s in range(A):
        ring.index(s).store(gl.load(x + s * B + j))
        gl.barrier()
        total += ring.index(s).load()
    if whole:
        gl.store(out + i[:, None] * B + j[None, :], ring.load())
    swapped = block.permute((1, 0, 2)).load()
    gl.store(out + place, swapped + total[None, None, :])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
def test_buffers_have_the_rank_that_their_accesses_need(target):
    x = np.random.default_rng(0).random((4, 4, 64)).astype(np.float32)
    out = np.zeros_like(x)
    rings_and_blocks[(1,)](x, out, False, 4, 64, target=target)
    assert np.allclose(out, x.transpose(1, 0, 2) + x[0].sum(0))
    with pytest.raises(LayoutError) as error:
        rings_and_blocks[(1,)](x, out, True, 4, 64, target=target)
    first = rings_and_blocks.fn.__code__.co_firstlineno
    words = str(error.value)
    assert f"a layout of rank 1, as line {first + 10} needs it" in words
    assert f"test_shared_layouts.py:{first + 14}" in words


@gluon.jit(layouts="auto")
def two_rings(x, out, B: gl.constexpr):
    ring = gl.allocate_shared_memory(gl.float32, [2, 2, B, B])
    place = gl.arange(0, B)[:, None] * B + gl.arange(0, B)[None, :]
    ring.index(0).index(1).store(gl.load(x + place))


def test_one_dimension_counts_buffers():
    x = np.zeros((32, 32), np.float32)
    with pytest.raises(ShapeError, match="One dimension counts buffers"):
        two_rings[(1,)](x, x, 32, target="sim:hopper")


@gluon.jit(layouts="auto")
def copied_portably(x, out, B: gl.constexpr):
    tile = gl.allocate_shared_memory(x.dtype.element_ty, [B, B])
    place = gl.arange(0, B)[:, None] * B + gl.arange(0, B)[None, :]
    gl.portable.async_copy(tile, x, place)
    gl.portable.commit()
    gl.portable.wait(0)
    gl.barrier()
    gl.store(out + place, tile.permute((1, 0)).load())


def test_portable_copies_are_asynchronous_where_the_chosen_layout_lets_them():
    x = np.arange(1024, dtype=np.float16).reshape(32, 32)
    out = np.zeros_like(x)
    copied_portably[(1,)](x, out, 32, target="sim:hopper")
    assert (out == x.T).all()
    types = {"x": "*fp16:16", "out": "*fp16:16"}
    compiled = gluon.compile(copied_portably, "sm_90", signature=types, constexprs={"B": 32})
    assert "cp.async.c" in compiled.asm["ptx"]
