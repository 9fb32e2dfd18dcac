"""Block pointers of plain Triton that kernels make anew under one name."""

import ast

import numpy as np
import pytest

from gluon_write.porting.port import port
from tests.write.test_port import imported

pytestmark = pytest.mark.once

KERNEL = '''import triton
import triton.language as tl


@triton.jit
def sums(first, x, steps, out, N, s_t, s_d, T: tl.constexpr, D: tl.constexpr):
    """Store the sum before each step, begun with a tile whose rows are D apart, and the last one."""
    p = tl.make_block_ptr(first, (T, D), (D, 1), (0, 0), (T, D), (1, 0))
    total = tl.load(p, boundary_check=(0, 1))
    for i in range(N):
        p = tl.make_block_ptr(steps + i * T * D, (T, D), (s_t, s_d), (0, 0), (T, D), (1, 0))
        tl.store(p, total, boundary_check=(0, 1))
        total += tl.load(tl.make_block_ptr(x, (N * T, D), (s_t, s_d), (i * T, 0), (T, D), (1, 0)))
    p = tl.make_block_ptr(out, (T, D), (D, 1), (0, 0), (T, D), (1, 0))
    tl.store(p, total, boundary_check=(0, 1))
'''


def test_blocks_of_one_name_have_their_own_types(tmp_path):
    """A loop would carry the constant distances of the first block into its own, which has others."""
    text = port(KERNEL, "kernels.py").text
    names = [
        node.targets[0].id
        for node in ast.walk(ast.parse(text).body[-1])
        if isinstance(node, ast.Assign) and "block_of" in ast.unparse(node.value)
    ]
    assert sorted(names) == ["p", "p_2", "p_3"]
    path = tmp_path / "kernels_of_blocks.py"
    path.write_text(text)
    rng = np.random.default_rng(0)
    first, x = (rng.standard_normal((n, 16)).astype(np.float32) for n in (8, 24))
    steps, out = np.zeros((3, 8, 16), np.float32), np.zeros((8, 16), np.float32)
    kernel = imported(path, "kernels_of_blocks").sums
    kernel[(1,)](first, x, steps, out, 3, 16, 1, 8, 16, target="sim:hopper")
    wanted = first + np.cumsum(np.concatenate([np.zeros((1, 8, 16)), x.reshape(3, 8, 16)]), 0)
    assert np.allclose(steps, wanted[:3], atol=1e-5) and np.allclose(out, wanted[3], atol=1e-5)


def test_blocks_that_move_keep_their_name():
    moved = KERNEL.replace(
        "    for i in range(N):", "    for i in range(N):\n        p = tl.advance(p, (T, 0))"
    )
    assert "p_2" not in port(moved, "kernels.py").text
    read = KERNEL + "    if N == 0:\n        tl.store(p, total)\n"
    assert "gl.store(block_pointers(p_3), total)" in port(read, "kernels.py").text
    before = KERNEL.replace(
        "    p = tl.make_block_ptr(out", "    tl.store(p, total)\n    p = tl.make_block_ptr(out"
    )
    assert "p_2" not in port(before, "kernels.py").text


METHODS = '''import triton
import triton.language as tl


@triton.jit
def counted(x, doubled, counts, N: tl.constexpr):
    """Double blocks of rows, and count their digits, by methods."""
    p = tl.make_block_ptr(x, (N, N), (N, 1), (0, 0), (8, N), (1, 0))
    q = tl.make_block_ptr(doubled, (N, N), (N, 1), (0, 0), (8, N), (1, 0))
    total = tl.zeros([16], tl.int32)
    for _ in range(N // 8):
        digits = tl.load(p)
        q.store(digits * 2, boundary_check=(0,))
        total += (digits.ravel() & 15).histogram(16)
        p, q = p.advance((8, 0)), q.advance([8, 0])
    (counts + tl.arange(0, 16)).store(total, mask=tl.arange(0, 16) < 10)
'''


def test_methods_of_pointers_and_blocks(tmp_path):
    path = tmp_path / "kernels_by_methods.py"
    path.write_text(port(METHODS, "kernels.py").text)
    x = np.random.default_rng(0).integers(0, 16, (16, 16), dtype=np.int32)
    doubled, counts = np.zeros_like(x), np.zeros(16, np.int32)
    imported(path, "kernels_by_methods").counted[(1,)](x, doubled, counts, 16, target="sim:sm_80")
    wanted = np.where(np.arange(16) < 10, np.bincount(x.ravel(), minlength=16), 0)
    assert np.array_equal(doubled, x * 2) and np.array_equal(counts, wanted)
