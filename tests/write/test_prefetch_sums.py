"""Loops with several sums of products, and those of functions: copies of their operands run ahead, too."""

import warnings

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim.settings import using
from gluon_write.preferred import preferred_form
from tests.write.products import code, operands, product

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]


@pytest.fixture(autouse=True)
def copied_through_pointers():
    """Keep tiles of pointers from those of descriptors, which Hopper's unit copies."""
    with preferred_form("pipelined"):
        yield


@gluon.jit
def summed(acc, left, right, K, N, along, BK: gl.constexpr):
    for k in range(0, K, BK):
        inside = k + along
        x = gl.load(left + inside[None, :], mask=inside[None, :] < K, other=0.0)
        y = gl.load(right + inside[:, None] * N, mask=inside[:, None] < K, other=0.0)
        acc = gl.portable.mma(x, y, acc)
        if BK > 32:
            acc = acc * 1.0
    return acc


@gluon.jit(layouts="auto")
def through_function(a, b, c, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    rows, columns = gl.arange(0, BM)[:, None], gl.arange(0, BN)[None, :]
    acc = gl.zeros([BM, BN], gl.float32)
    acc = summed(acc, a + rows * K, b + columns, K, N, gl.arange(0, BK), BK)
    gl.store(c + rows * N + columns, acc)


@pytest.mark.once
@pytest.mark.parametrize("block", [32, 64])
def test_loops_of_functions(block):
    a, b, c, wanted = operands(64, 64, 144)
    for schedule in ("eager", "latest"):
        c[:] = 0
        with using(schedule=schedule):
            through_function[(1,)](a, b, c, 64, 144, 64, 64, block, target="sim:hopper")
        assert np.allclose(c, wanted, atol=1e-3), schedule


def test_products_are_asynchronous_where_nothing_reads_their_sum():
    sizes = {"BM": 64, "BN": 64, "BK": 64}
    free, read = code(product, "sm_90", **sizes), code(through_function, "sm_90", **sizes)
    assert "cp.async.cg" in free and "cp.async.cg" in read
    pending = "wgmma.wait_group.sync.aligned 1"
    assert pending in free and pending not in read


def test_index_vectors_are_computed_again_instead_of_converted():
    text = code(through_function, "sm_90", "ttgir", BM=128, BN=128, BK=64)
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    assert "ttg.async_copy_global_to_local" in loop and "ttg.convert_layout" not in loop


@gluon.jit(layouts="auto")
def gated(a, b, g, c, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Two sums of one loop, and a third product whose result the step itself needs."""
    rows, columns, along = gl.arange(0, BM)[:, None], gl.arange(0, BN)[None, :], gl.arange(0, BK)
    up, gate = gl.zeros([BM, BN], gl.float32), gl.zeros([BM, BN], gl.float32)
    most = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        inside = (k + along)[:, None] < K
        x = gl.load(a + rows * K + k + along[None, :], mask=(k + along)[None, :] < K, other=0.0)
        y = gl.load(b + (k + along)[:, None] * N + columns, mask=inside, other=0.0)
        z = gl.load(g + (k + along)[:, None] * N + columns, mask=inside, other=0.0)
        w = gl.load(b + (k + along)[:, None] * N + columns, mask=inside, other=0.0)
        up = gl.portable.mma(x, y, up)
        part = gl.portable.mma(x, w, gl.zeros([BM, BN], gl.float32))
        most = gl.maximum(most, part)
        gate = gl.portable.mma(x, z, gate)
    gl.store(c + rows * N + columns, up * gate + most)


@pytest.mark.once
@pytest.mark.parametrize("schedule", ["eager", "latest"])
def test_several_products_of_one_loop(schedule):
    a, b, c, up = operands(64, 64, 144)
    g = np.random.default_rng(2).standard_normal((144, 64)).astype(np.float16)
    with using(schedule=schedule):
        gated[(1,)](a, b, g, c, 64, 144, 64, 64, 32, target="sim:hopper")
    a32, b32 = a.astype(np.float32), b.astype(np.float32)
    parts = [a32[:, k : k + 32] @ b32[k : k + 32] for k in range(0, 144, 32)]
    wanted = up * (a32 @ g.astype(np.float32)) + np.maximum(0, np.max(parts, 0))
    assert np.allclose(c, wanted, atol=1e-2)


@pytest.mark.once
def test_all_products_of_a_loop_are_asynchronous():
    """Without a warning of ptxas, which waits after each product where two sums stay under way."""
    signature = {"a": "*fp16:16", "b": "*fp16:16", "g": "*fp16:16", "c": "*fp32:16"}
    signature |= {"N": "i32:16", "K": "i32:16"}
    sizes = {"BM": 64, "BN": 64, "BK": 32}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked = gluon.compile(gated, target="sm_90", signature=signature, constexprs=sizes)
    text = asked.asm["ttgir"]
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    assert loop.count("isAsync = true") == 3 and loop.count("warp_group_dot_wait") == 2


@gluon.jit(layouts="auto")
def both(a, b, c, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Two sums of a loop that begins anywhere, and may have no steps."""
    rows, columns = gl.arange(0, BM)[:, None], gl.arange(0, BN)[None, :]
    first, second = gl.zeros([BM, BN], gl.float32), gl.zeros([BM, BN], gl.float32)
    for k in range(gl.program_id(0) * BK, K, BK):
        along = k + gl.arange(0, BK)
        x = gl.load(a + rows * K + along[None, :], mask=along[None, :] < K, other=0.0)
        y = gl.load(b + along[:, None] * N + columns, mask=along[:, None] < K, other=0.0)
        z = gl.load(b + along[:, None] * N + columns, mask=along[:, None] < K - 16, other=0.0)
        first = gl.portable.mma(x, y, first)
        second = gl.portable.mma(x, z, second)
    gl.store(c + gl.program_id(0) * BM * N + rows * N + columns, first + 2 * second)


@pytest.mark.parametrize("schedule", ["eager", "latest"])
def test_sums_of_one_loop_stay_under_way(schedule):
    a, b, _, whole = operands(64, 64, 144)
    c = np.zeros((6, 64, 64), np.float32)
    with using(schedule=schedule):
        both[(6,)](a, b, c, 64, 144, 64, 64, 32, target="sim:hopper")
    a, b = a.astype(np.float32), b.astype(np.float32)
    for i, k in enumerate(range(0, 192, 32)):
        assert np.allclose(
            c[i], 3 * a[:, k:] @ b[k:] - 2 * a[:, max(k, 128) :] @ b[max(k, 128) :], atol=1e-2
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = code(both, "sm_90", "ttgir", BM=64, BN=64, BK=32)
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    assert loop.count("warp_group_dot_wait") == loop.count("pendings = 2") == 1
    assert "scf.if" in text[: text.index("scf.for")]  # sums meet zeros when products are over


@pytest.mark.parametrize(
    "sizes, warps, stages, buffers",
    [
        ((128, 128, 32), 4, 3, 4),  # sums take the registers of half a multiprocessor
        ((128, 128, 64), 8, 4, 3),  # two programs for one
    ],
)
def test_buffers_let_more_programs_run(sizes, warps, stages, buffers):
    """A loop has one more, or fewer, than it asks for."""
    words = {"num_warps": warps, "num_stages": stages}
    text = code(product, "sm_90", "ttgir", words, **dict(zip(("BM", "BN", "BK"), sizes)))
    assert f"memdesc<{buffers}x{sizes[0]}x{sizes[2]}xf16" in text


@gluon.jit(layouts="auto")
def adapted(a, b, c, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Add the product of the first columns of a sum, and of the first rows of B, to the sum."""
    rows, columns = gl.arange(0, BM)[:, None], gl.arange(0, BN)[None, :]
    along = gl.arange(0, BK)
    acc, low = gl.zeros([BM, BN], gl.float32), gl.zeros([BM, BK], gl.float32)
    for k in range(0, K, BK):
        x = gl.load(a + rows * K + (k + along)[None, :])
        y = gl.load(b + (k + along)[:, None] * N + columns)
        narrow = gl.load(b + (k + along)[:, None] * N + along[None, :])
        acc = gl.portable.mma(x, y, acc)
        low = gl.portable.mma(x, narrow, low)
    up = gl.load(b + along[:, None] * N + columns)
    acc = gl.portable.mma((low * 0.125).to(gl.float16), up, acc)
    gl.store(c + rows * N + columns, acc)


def test_product_behind_a_loop_adds_to_its_sum():
    """The unit of the loop multiplies: another one has sums of another layout."""
    a, b, c, wanted = operands(64, 64, 96)
    adapted[(1,)](a, b, c, 64, 96, 64, 64, 32, num_stages=3, target="sim:hopper")
    low = (wanted[:, :32] * 0.125).astype(np.float16).astype(np.float32)
    assert np.allclose(c, wanted + low @ b[:32].astype(np.float32), atol=2e-2)
    ptx = code(adapted, "sm_90", BM=64, BN=64, BK=32)
    assert "wgmma.mma_async" in ptx and "mma.sync" not in ptx


@gluon.jit(layouts="auto")
def scaled(a, b, c, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Add products that begin anew in each step."""
    rows, columns = gl.arange(0, BM)[:, None], gl.arange(0, BN)[None, :]
    along = gl.arange(0, BK)
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        x = gl.load(a + rows * K + (k + along)[None, :])
        y = gl.load(b + (k + along)[:, None] * N + columns)
        acc += gl.portable.mma(x, y, gl.zeros([BM, BN], gl.float32)) * 0.5
    gl.store(c + rows * N + columns, acc)


@pytest.mark.parametrize("rows, behind", [(128, True), (64, False)])
def test_copies_come_behind_products_that_fill_registers(rows, behind):
    """A product of 128x128 and its sum leave four warps no registers for addresses."""
    text = code(scaled, "sm_90", "ttgir", BM=rows, BN=128, BK=64)
    body = text[text.index("scf.for") :]
    copied = body.index("async_copy_global_to_local")
    assert (copied > body.index("warp_group_dot_wait")) == behind


@gluon.jit(layouts="auto")
def of_bytes(a, b, c, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Multiply by bytes, which each step converts."""
    rows, columns = gl.arange(0, BM)[:, None], gl.arange(0, BN)[None, :]
    along = gl.arange(0, BK)
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        x = gl.load(a + rows * K + (k + along)[None, :])
        y = gl.load(b + (k + along)[:, None] * N + columns)
        acc = gl.portable.mma(x, y.to(gl.float16), acc)
    gl.store(c + rows * N + columns, acc)


@pytest.mark.parametrize("columns, buffers", [(128, 1), (64, 2)])
def test_one_buffer_of_stored_tiles_lets_more_programs_run(columns, buffers):
    """Two programs of four warps for one more; where three run so, products stay under way."""
    sizes = {"BM": 64, "BN": columns, "BK": 64}
    signature = {"a": "*fp16:16", "b": "*i8:16", "c": "*fp32:16", "N": "i32:16", "K": "i32:16"}
    asked = gluon.compile(of_bytes, target="sm_90", signature=signature, constexprs=sizes)
    assert f"memdesc<{buffers}x64x{columns}xf16" in asked.asm["ttgir"]
    a, b, c, _ = operands(64, columns, 192)
    b = (b * 40).astype(np.int8)
    of_bytes[(1,)](a, b, c, columns, 192, *sizes.values(), num_stages=3, target="sim:hopper")
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-1)
