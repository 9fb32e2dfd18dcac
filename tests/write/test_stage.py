"""Mainloops of layout-free GEMMs: pipelined through shared memory where the form allows it."""

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim.settings import using
from gluon_write.pipelines.stage import staged
from gluon_write.tracing.sketch import Sketch

pytestmark = [pytest.mark.once, pytest.mark.sampled(8)]


@gluon.jit(layouts="auto")
def matmul(a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    row, column = gl.program_id(0) * BM, gl.program_id(1) * BN
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, BN])
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BM, BN])
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        x = gl.portable.load(a_tiles, [row, k])
        y = gl.portable.load(b_tiles, [k, column])
        acc = gl.portable.mma(x, y, acc)
    gl.portable.store(c_tiles, [row, column], gl.maximum(acc, 0.0))


@gluon.jit(layouts="auto")
def from_middle(a, b, c, first, K, BM: gl.constexpr, BK: gl.constexpr):
    """Sum the products of columns from `first` on, and how many there are."""
    a_tiles = gl.portable.descriptor(a, [BM, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [K, BM], [BM, 1], [BK, BM])
    tiles = gl.zeros([BM, BM], gl.float32)
    counted = 0
    for k in range(first, K, BK):
        y = gl.portable.load(b_tiles, [k, 0])
        x = gl.portable.load(a_tiles, [0, k])
        tiles = gl.portable.mma(x, acc=tiles, b=y)
        counted += gl.minimum(K - k, BK)
    i = gl.arange(0, BM)
    gl.store(c + i[:, None] * BM + i[None, :], tiles + counted)


@gluon.jit(layouts="auto")
def scaled(a, b, c, K, BM: gl.constexpr, BK: gl.constexpr):
    """Use a tile twice: no form that is staged."""
    a_tiles = gl.portable.descriptor(a, [BM, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [K, BM], [BM, 1], [BK, BM])
    acc = gl.zeros([BM, BM], gl.float32)
    for k in range(0, K, BK):
        x = gl.portable.load(a_tiles, [0, k])
        y = gl.portable.load(b_tiles, [k, 0])
        acc = gl.portable.mma(x * 2, y, acc)
    i = gl.arange(0, BM)
    gl.store(c + i[:, None] * BM + i[None, :], acc)


@gluon.jit
def place_of(tile, columns, BM: gl.constexpr, BN: gl.constexpr):
    return tile // columns * BM, tile % columns * BN


@gluon.jit(layouts="auto")
def rounds(a, b, c, M, N, K, first, programs, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):  # fmt: skip
    """Walk over the tiles; the result of each goes to memory, by a place of its own, before the next one begins."""
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, BN])
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BM, BN])
    columns = gl.cdiv(N, BN)
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * columns, programs):
        row, column = place_of(tile, columns, BM, BN)
        acc = gl.zeros([BM, BN], gl.float32)
        for k in range(first, K, BK):
            x = gl.portable.load(a_tiles, [row, k])
            y = gl.portable.load(b_tiles, [k, column])
            acc = gl.portable.mma(x, y, acc)
        row, column = place_of(tile, columns, BM, BN)
        gl.portable.store(c_tiles, [row, column], acc + 1.0)


def operands(m, n, k):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    return a, b, np.zeros((m, n), np.float32), a.astype(np.float32) @ b.astype(np.float32)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["sim:sm_80", "sim:hopper", "sim:sm_100", "sim:gfx942"])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_matmul(target, stages):
    a, b, c, wanted = operands(96, 72, 168)
    launch = matmul[(2, 2)]
    for schedule in ("eager", "latest"):
        c[:] = 0
        with using(schedule=schedule):
            launch(a, b, c, 96, 72, 168, 64, 64, 32, num_stages=stages, target=target)
        assert np.allclose(c, np.maximum(wanted, 0), atol=1e-3), schedule


@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
def test_other_forms(target):
    a, b, c, _ = operands(32, 32, 144)
    wanted = a[:, 32:].astype(np.float32) @ b[32:].astype(np.float32)
    from_middle[(1,)](a, b, c, 32, 144, 32, 32, target=target)
    assert np.allclose(c, wanted + 112, atol=1e-3)
    scaled[(1,)](a, b, c, 144, 32, 32, target=target)
    assert np.allclose(c, 2 * a.astype(np.float32) @ b.astype(np.float32), atol=1e-3)


def test_ring_is_written_where_the_form_allows_it():
    text = staged(matmul, Sketch(), 3).src
    assert "gl.portable.pipeline([a_tiles, b_tiles], 3)" in text and "is_async=True" in text
    assert staged(matmul, Sketch(), 1) is matmul and staged(scaled, Sketch(), 3) is scaled
    text = staged(from_middle, Sketch(), 2).src
    assert "tiles_2 = gl.portable.pipeline(" in text  # `tiles` is the kernel's own
    assert "k = first + step * BK" in text  # counted needs it
    assert "tiles.fetch" not in matmul.src


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", ["sim:sm_80", "sim:hopper", "sim:gfx942"])
@pytest.mark.parametrize("depth, first", [(168, 0), (40, 32), (32, 32), (168, 64)])
def test_copies_walk_over_the_rounds(target, depth, first):
    """With more and fewer steps in a round than buffers, with none, and programs without a round."""
    a, b, c, _ = operands(96, 72, depth)
    wanted = a[:, first:].astype(np.float32) @ b[first:].astype(np.float32) + 1
    for schedule, programs in (("eager", 4), ("latest", 4), ("latest", 11)):
        c[:] = 0
        with using(schedule=schedule):
            rounds[(programs,)](
                a, b, c, 96, 72, depth, first, programs, 32, 32, 32, num_stages=3, target=target
            )
        assert np.allclose(c, wanted, atol=1e-3), schedule


@pytest.mark.parametrize("stages, depth", [(3, 64), (2, 128)])
def test_stages_have_room(stages, depth):
    """64 KiB hold two stages of 32 KiB, and one of 64 KiB."""
    a, b, c, wanted = operands(64, 64, 256)
    matmul[(1, 1)](a, b, c, 64, 64, 256, 128, 128, depth, num_stages=stages, target="sim:gfx942")
    assert np.allclose(c, np.maximum(wanted, 0), atol=1e-2)


def test_ring_outlives_the_rounds():
    signature = dict.fromkeys(("a", "b"), "*fp16:16") | {"c": "*fp16:16", "first": "i32"}
    signature |= dict.fromkeys(("M", "N", "K"), "i32:16") | {"programs": "i32"}
    sizes = {"BM": 32, "BN": 32, "BK": 32}
    text = gluon.compile(rounds, target="sm_90", signature=signature, constexprs=sizes).asm["ttgir"]
    body = text[text.index("scf.for") :]
    assert "init_barrier" in text and "init_barrier" not in body
    assert body.count("async_tma_copy_global_to_local") == 2
    stored = body.index("async_tma_copy_local_to_global")  # the next round waits for it
    assert body.index("async_tma_store_wait") < stored


@gluon.jit(layouts="auto")
def gated(x, w, v, y, H, BM: gl.constexpr, BH: gl.constexpr, D: gl.constexpr):
    """Multiply by one matrix, keep what is positive, and multiply by the other: few rows, which warps multiply."""
    x_tiles = gl.portable.descriptor(x, [BM, D], [D, 1], [BM, D])
    w_tiles = gl.portable.descriptor(w, [H, D], [D, 1], [BH, D])
    v_tiles = gl.portable.descriptor(v, [H, D], [D, 1], [BH, D])
    rows = gl.portable.load(x_tiles, [0, 0])
    acc = gl.zeros([BM, D], gl.float32)
    for h in range(0, H, BH):
        first = gl.portable.load(w_tiles, [h, 0])
        inner = gl.portable.mma(rows, first.T, gl.zeros([BM, BH], gl.float32))
        second = gl.portable.load(v_tiles, [h, 0])
        acc = gl.portable.mma(gl.maximum(inner, 0.0).to(gl.float16), second, acc)
    i, j = gl.arange(0, BM), gl.arange(0, D)
    gl.store(y + i[:, None] * D + j[None, :], acc)


@pytest.mark.parametrize("rows", [32, 64])
def test_products_of_few_rows_have_a_ring(rows, chosen_sources):
    rng = np.random.default_rng(4)
    x, w, v = (rng.integers(-2, 3, (n, 32)).astype(np.float16) for n in (rows, 160, 160))
    y = np.zeros((rows, 32), np.float32)
    for schedule in ("eager", "latest"):
        with using(schedule=schedule):
            gated[(1,)](x, w, v, y, 160, rows, 32, 32, num_stages=3, target="sim:hopper")
        inner = np.maximum(x.astype(np.float32) @ w.astype(np.float32).T, 0)
        assert np.array_equal(y, inner @ v.astype(np.float32)), schedule
    assert ("first.permute((1, 0)).load()" in chosen_sources[0]) == (rows < 64)
    assert rows > 32 or "tiles = gl.portable.pipeline([w_tiles, v_tiles], 3)" in chosen_sources[0]


def test_wgmma_reads_the_ring():
    compiled = gluon.compile(
        matmul,
        target="sm_90",
        signature={
            "a": "*fp16:16",
            "b": "*fp16:16",
            "c": "*fp32:16",
            "M": "i32:16",
            "N": "i32:16",
            "K": "i32:16",
        },  # fmt: skip
        constexprs={"BM": 128, "BN": 128, "BK": 64},
    )
    assert "wgmma.mma_async" in compiled.asm["ptx"]
    assert "cp.async.bulk.tensor" in compiled.asm["ptx"]


@gluon.jit(layouts="auto")
def persistent(a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Walk over tiles of C; B is [N, K], and coordinates have names."""
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [N, K], [K, 1], [BN, BK])
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BM, BN])
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        row, column = tile // gl.cdiv(N, BN) * BM, tile % gl.cdiv(N, BN) * BN
        acc = gl.zeros([BM, BN], gl.float32)
        for i in range(gl.cdiv(K, BK)):
            k = i * BK
            x = gl.portable.load(a_tiles, [row, k])
            y = gl.portable.load(b_tiles, [column, k])
            acc = gl.portable.mma(x, y.T, acc)
        gl.portable.store(c_tiles, [row, column], acc)


@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_100", "sim:gfx942"])
def test_persistent(target):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, 160)).astype(np.float16) for n in (192, 136))
    c = np.zeros((192, 136), np.float32)
    persistent[(2,)](a, b, c, 192, 136, 160, 64, 64, 32, num_stages=3, target=target)
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32).T, atol=1e-2)


def test_persistent_on_the_units_of_tiles():
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "M": "i32:16", "N": "i32:16", "K": "i32:16"}  # fmt: skip
    for target, word in (("sm_90", "wgmma.mma_async"), ("sm_100", "tcgen05.mma")):
        asked = gluon.compile(
            persistent,
            target=target,
            signature=signature,
            constexprs={"BM": 128, "BN": 128, "BK": 64},
        )
        ptx = asked.asm["ptx"]
        assert word in ptx and "mma.sync" not in ptx and "cp.async.bulk.tensor" in ptx


def test_operands_that_have_the_shape_of_the_sum():
    """The operands of one instruction have other layouts than its sum, though all are 32x32."""
    a, b, c, wanted = operands(64, 32, 96)
    matmul[(2, 1)](a, b, c, 64, 32, 96, 32, 32, 32, num_stages=3, target="sim:hopper")
    assert np.allclose(c, np.maximum(wanted, 0), atol=1e-3)


@gluon.jit(layouts="auto")
def of_bytes(a, b, c, K, B: gl.constexpr, BK: gl.constexpr, ALONG: gl.constexpr):
    """Multiply by a matrix whose tiles constants choose, and which is transposed behind its load."""
    a_tiles = gl.portable.descriptor(a, [B, K], [K, 1], [B, BK])
    if ALONG:
        b_tiles = gl.portable.descriptor(b, [B, K], [K, 1], [B, BK])
    else:
        b_tiles = gl.portable.descriptor(b, [K, B], [B, 1], [BK, B])
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, BK):
        x = gl.portable.load(a_tiles, [0, k])
        if ALONG:
            y = gl.portable.load(b_tiles, [0, k]).T
        else:
            y = gl.portable.load(b_tiles, [k, 0])
        acc = gl.portable.mma(x, y, acc, input_precision="tf32")
    i = gl.arange(0, B)
    gl.store(c + i[:, None] * B + i[None, :], acc)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float32])
def test_unit_reads_transposed_tiles_along_k(dtype, chosen_sources):
    """Hopper's unit reads elements of 8 and 32 bits in no other way."""
    a, b = (torch.randn(64, 96).clamp(-2, 2).half().to(dtype) for _ in range(2))
    c = torch.zeros(64, 64)
    of_bytes[(1,)](a, b, c, 96, 64, 32, True, num_stages=3, target="sim:hopper")
    assert torch.allclose(c, a.float() @ b.float().T, atol=2e-2)
    assert 'operands="shared", b_transposed=True' in chosen_sources[0]
    assert "x, y = tiles_2.wait(step)" in chosen_sources[0]


@gluon.jit(layouts="auto")
def mirrored(a, b, c, high, N, K, B: gl.constexpr, BK: gl.constexpr):
    """Store the blocks of a product, transposed, and keep the largest element of each row."""
    a_tiles = gl.portable.descriptor(a, [B, K], [K, 1], [B, BK])
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, B])
    i = gl.arange(0, B)
    largest = gl.full([B], float("-inf"), gl.float32)
    for column in range(0, N, B):
        acc = gl.zeros([B, B], gl.float32)
        for k in range(0, K, BK):
            x = gl.portable.load(a_tiles, [0, k])
            y = gl.portable.load(b_tiles, [k, column])
            acc = gl.portable.mma(x, y, acc)
        largest = gl.maximum(largest, gl.max(acc, 1))
        gl.store(c + (column + i)[None, :] * B + i[:, None], acc)
    gl.store(high + i, largest)


def test_staged_sum_is_converted_where_that_pays(chosen_sources):
    """Statements behind a staged loop have layouts of its own: names that a loop carries, and rows of a store."""
    a, b, c, wanted = operands(64, 128, 96)
    c, high = c.T.copy(), np.zeros(64, np.float32)
    mirrored[(1,)](a, b, c, high, 128, 96, 64, 32, num_stages=3, target="sim:hopper")
    assert np.allclose(c, wanted.T, atol=1e-3) and np.allclose(high, wanted.max(1), atol=1e-3)
    assert "gl.portable.pipeline(" in chosen_sources[0]
    signature = dict.fromkeys(("a", "b"), "*fp16:16") | dict.fromkeys(("c", "high"), "*fp32:16")
    signature |= dict.fromkeys(("N", "K"), "i32:16")
    sizes = {"B": 64, "BK": 32}
    ptx = gluon.compile(mirrored, target="sm_90", signature=signature, constexprs=sizes).asm["ptx"]
    assert "wgmma.mma_async" in ptx and ptx.count("st.global.v4") == 64 * 64 // 128 // 4
