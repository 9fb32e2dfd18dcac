"""Blocks of ported kernels are tiles of descriptors where a unit copies them."""

import importlib.util
from pathlib import Path

import pytest

from gluon_write.porting.port import port

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.once, pytest.mark.sampled(8)]
FOLDER = Path(__file__).parent / "triton_kernels"
SHIFTED = '''
import triton
import triton.language as tl


@triton.jit
def product_kernel(a, b, c, rows, stride, K, BM: tl.constexpr, BK: tl.constexpr):
    """Read blocks that begin at a row of A and step over columns, `rows` of which are checked."""
    a_block = tl.make_block_ptr(a, (rows, K), (stride, 1), (tl.program_id(0) * BM, 0), (BM, BK), (1, 0))
    b_block = tl.make_block_ptr(b, (K, BM), (1, stride), (0, 0), (BK, BM), (0, 1))
    acc = tl.zeros((BM, BM), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a_block, CHECKED)
        y = tl.load(b_block)
        acc = tl.dot(x, y, acc)
        a_block = tl.advance(a_block, (0, BK))
        b_block = tl.advance(b_block, (BK, 0))
    out = tl.make_block_ptr(c, (rows, BM), (BM, 1), (tl.program_id(0) * BM, 0), (BM, BM), (1, 0))
    tl.store(out, acc)
'''


@pytest.fixture
def sources(monkeypatch, chosen_sources):
    """Collect the sources of the kernels that get layouts."""
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    return chosen_sources


def ported(text, folder):
    path = folder / "ported.py"
    path.write_text(port(text, str(path)).text)
    spec = importlib.util.spec_from_file_location("ported", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def halves(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half()


def test_attention(sources, tmp_path):
    """Rows of 64 bytes may be more than there are coordinates: such loops of products keep pointers."""
    module = ported((FOLDER / "blocks.py").read_text(), tmp_path)
    result, wanted = module.causal_block_attention()
    assert (result.float() - wanted.float()).abs().max() < 1e-2
    assert "async_load" in sources[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "stage, checked",
    [
        (3, False),
        pytest.param(1, False, marks=pytest.mark.campaign),
        pytest.param(1, True, marks=pytest.mark.campaign),
    ],
)
def test_blocks_of_heads(sources, tmp_path, stage, checked):
    """Blocks whose bases differ by program are tiles of one descriptor, unless rows behind the end of a head are zero."""
    text = (FOLDER / "blocks.py").read_text()
    if checked:
        text = text.replace("tl.load(V_block_ptr)", "tl.load(V_block_ptr, boundary_check=(0,))")
    module = ported(text, tmp_path)
    # Two sequences of two heads; the heads of a token are contiguous.
    q, k, v = (halves(2, 128, 2, 64, seed=seed).transpose(1, 2) for seed in range(3))
    out, logs = torch.empty_like(q), torch.empty(4, 128)
    module.attention_kernel[(1, 4)](
        q, k, v, 0.125, logs, out, *q.stride(), 2, 128, HEAD=64, BLOCK_M=128, BLOCK_N=64, STAGE=stage,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), is_causal=stage == 3, scale=0.125
    )
    assert (out.float() - wanted).abs().max() < 1e-2
    assert ("async_load" in sources[0]) == checked
    assert ("gl.portable.descriptor(K, [2147483647, 2147483647]" in sources[0]) != checked
    assert checked or "(offset // stride_qm).to(gl.int32)" in sources[0]


@pytest.mark.parametrize("K, aligned", [(144, True), (100, False)])
def test_strides(sources, tmp_path, K, aligned):
    """TMA needs strides of 16 bytes; a launch finds out."""
    module = ported((FOLDER / "blocks.py").read_text(), tmp_path)
    a, b, c = halves(64, K), halves(K, 64, seed=1), torch.empty(64, 64).half()
    module.block_matmul_kernel[(1,)](
        a, b, c, 64, 64, K, K, 1, 64, 1, 64, 1, 64, 64, 32, 1, num_warps=4, num_stages=2
    )
    assert (c.float() - a.float() @ b.float()).abs().max() < 5e-2
    assert ("block_pointers(" in sources[0]) != aligned


@pytest.mark.parametrize("checked", ["boundary_check=(0,)", ""])
def test_checked_dimensions(sources, tmp_path, checked):
    """Rows behind the end are zero where an access checks them, and read where none does."""
    module = ported(SHIFTED.replace("CHECKED", checked), tmp_path)
    a, b = halves(128, 64), halves(64, 64, seed=1)
    c = torch.zeros(128, 64)
    module.product_kernel[(2,)](a, b, c, 96, 64, 64, BM=64, BK=32, num_warps=4, num_stages=2)
    wanted = a.float() @ b.float().T
    if checked:
        wanted[96:] = 0
    assert "portable.descriptor(a," in "".join(sources[0].split())
    assert (c - wanted).abs().max() < 5e-2


ORDERED = """
import triton
import triton.language as tl


@triton.jit
def row_before(row, column):
    return row - 1, column


@triton.jit
def rows_between(row, column, first: tl.constexpr):
    if first < 0:
        return row + first, column
    at = row
    at += first
    return at, max(column, 0)


@triton.jit
def rows_around(row, column):
    row, column = rows_between(row, column, -1)
    return row, column


@triton.jit
def product_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    grid_m, grid_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    row, column = pid // grid_n, pid % grid_n
    pid_m, pid_n = ORDER
    rows, columns = pid_m * BM + tl.arange(0, BM), (pid_n * BN + tl.arange(0, BN))[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        x = tl.load(a + rows[:, None] * K + ks[None, :], mask=(rows[:, None] < M) & (ks[None, :] < K), other=0.0)
        y = tl.load(b + ks[:, None] * N + columns, mask=(ks[:, None] < K) & (columns < N), other=0.0)
        acc = tl.dot(x, y, acc)
    tl.store(c + rows[:, None] * N + columns, acc, mask=(rows[:, None] < M) & (columns < N))
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "order, before",
    [
        ("tl.swizzle2d(row, column, grid_m, grid_n, 2)", 0),
        ("rows_between(row, column, 0)", 0),
        ("row_before(row, column)", 1),
        ("rows_around(row, column)", 1),
    ],
)
def test_order_of_programs(sources, tmp_path, order, before):
    """Tiles of a function's rows are copied by descriptors where none begins before its tensor."""
    module = ported(ORDERED.replace("ORDER", order), tmp_path)
    a, b, c = halves(192, 64), halves(64, 128, seed=1), torch.zeros(192, 128)
    first = 64 * before  # the row at which the kernel's tensors begin; it reads those before it
    module.product_kernel[(2 * (3 - before),)](
        a[first:], b, c[first:], 192 - first, 128, 64, BM=64, BN=64, BK=32
    )
    wanted = a.float() @ b.float()
    wanted[192 - first :] = 0
    torch.testing.assert_close(c, wanted, atol=1e-3, rtol=1e-3)
    assert ("portable.descriptor(a," in "".join(sources[0].split())) != before


CLAIMED = """
import triton
import triton.language as tl


@triton.jit
def claimed_kernel(storage, addresses, c, K, B: tl.constexpr):
    a_ptr = tl.load(addresses).to(tl.pointer_type(tl.float16))
    b_ptr = tl.load(addresses + 1).to(tl.pointer_type(tl.float16))
    row, column = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    a_ptrs, b_ptrs = a_ptr + row * K + column, b_ptr + row * B + column
    acc = tl.zeros((B, B), dtype=tl.float32)
    for k in range(0, K, B):
        tl.multiple_of(a_ptrs, [16, 16])
        tl.multiple_of(b_ptrs, [16, 16])
        acc += tl.dot(tl.load(a_ptrs), tl.load(b_ptrs))
        a_ptrs += B
        b_ptrs += B * B
    tl.store(c + row * B + column, acc)
"""


@pytest.mark.sampled(1)
def test_claims_about_pointers_from_memory(sources, tmp_path):
    """Tiles whose alignment is claimed in the loop are copied ahead."""
    module = ported(CLAIMED, tmp_path)
    a, b, c = halves(64, 96), halves(96, 64, seed=1), torch.zeros(64, 64)
    storage = torch.cat([a.flatten(), b.flatten()])  # the simulator knows arguments alone
    addresses = storage.data_ptr() + torch.tensor([0, 2 * a.numel()])
    a, b = storage[: a.numel()].view(32, 192), storage[a.numel() :].view(192, 32)
    module.claimed_kernel[(1,)](storage, addresses, c, 192, B=32, num_stages=3)
    torch.testing.assert_close(
        c.flatten()[:1024].view(32, 32), a.float() @ b.float(), atol=1e-3, rtol=1e-3
    )
    assert "a_ptrs_ahead = gl.multiple_of(a_ptrs_ahead, [16, 16])" in sources[0]
    assert "async_load(" in sources[0]


SCALED = """
import triton
import triton.language as tl


@triton.jit
def scaled_kernel(a, sa, b, sb, c, K: tl.constexpr, B: tl.constexpr, BK: tl.constexpr):
    row, byte, group = tl.arange(0, B), tl.arange(0, BK // 2), tl.arange(0, BK // 32)
    acc = tl.zeros((B, B), dtype=tl.float32)
    for k in range(0, K // BK):
        x = tl.load(a + row[:, None] * (K // 2) + (k * (BK // 2) + byte)[None, :])
        y = tl.load(b + row[None, :] * (K // 2) + (k * (BK // 2) + byte)[:, None])
        x_scale = tl.load(sa + row[:, None] * (K // 32) + (k * (BK // 32) + group)[None, :])
        y_scale = tl.load(sb + row[:, None] * (K // 32) + (k * (BK // 32) + group)[None, :])
        acc = tl.dot_scaled(x, x_scale, "e2m1", y, y_scale, "e2m1", acc)
    tl.store(c + row[:, None] * B + row[None, :], acc)
"""


@pytest.mark.sampled(1)
def test_scaled_operands_are_copied_ahead(sources, tmp_path):
    """The function that multiplies them becomes a part of the loop."""
    module = ported(SCALED, tmp_path)
    a, b = (torch.full((64, 128), code, dtype=torch.uint8) for code in (0x21, 0xB7))
    scale, c = torch.full((64, 8), 128, dtype=torch.uint8), torch.zeros(64, 64)
    module.scaled_kernel[(1,)](a, scale, b, scale, c, 256, B=64, BK=128, num_stages=3)
    assert (c == 128 * 4 * (0.5 * 6 - 1 * 1.5)).all()
    assert "x_ring" in sources[0] and "= dot_scaled(" not in sources[0]
