"""Vectors that a loop moves on and that two operands want in two layouts: each layout has its own."""

import runpy

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.registry.load import registry
from gluon_write.command import written

pytestmark = [pytest.mark.once, pytest.mark.sampled(3)]


@gluon.jit(layouts="auto")
def moved_on(a, b, c, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    rows, columns = gl.arange(0, BM), gl.arange(0, BN)
    along = gl.arange(0, BK)
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, gl.cdiv(K, BK)):
        inside = along < K
        x = gl.load(a + rows[:, None] * K + along[None, :], mask=inside[None, :], other=0.0)
        y = gl.load(b + along[:, None] * N + columns[None, :], mask=inside[:, None], other=0.0)
        acc = gl.portable.mma(x, y, acc)
        along += BK
    gl.store(c + rows[:, None] * N + columns[None, :], acc)


@gluon.jit(layouts="auto")
def moved_two_ways(a, b, c, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Move the vector on in a branch: it has no twin."""
    rows, columns = gl.arange(0, BM), gl.arange(0, BN)
    along = gl.arange(0, BK)
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, gl.cdiv(K, BK)):
        x = gl.load(a + rows[:, None] * K + along[None, :], mask=along[None, :] < K, other=0.0)
        y = gl.load(b + along[:, None] * N + columns[None, :], mask=along[:, None] < K, other=0.0)
        acc = gl.portable.mma(x, y, acc)
        if k >= 0:
            along += BK
    gl.store(c + rows[:, None] * N + columns[None, :], acc)


@gluon.jit(layouts="auto")
def listed(a, b, blocks, c, count, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Multiply the blocks that a list names: the vectors of both operands begin at one number of it."""
    rows, columns = gl.arange(0, BM), gl.arange(0, BN)
    acc = gl.zeros([BM, BN], gl.float32)
    step = 0
    while step < count:
        along = gl.load(blocks + step) * BK + gl.arange(0, BK)
        x = gl.load(a + rows[:, None] * K + along[None, :], mask=along[None, :] < K, other=0.0)
        y = gl.load(b + along[:, None] * N + columns[None, :], mask=along[:, None] < K, other=0.0)
        acc = gl.portable.mma(x, y, acc)
        step += 1
    gl.store(c + rows[:, None] * N + columns[None, :], acc)


@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
@pytest.mark.parametrize("kernel", [moved_on, moved_two_ways])
def test_results(kernel, target):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((32, 80), (80, 64)))
    c = np.zeros((32, 64), np.float32)
    kernel[(1,)](a, b, c, 64, 80, 32, 64, 32, target=target)
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-3)


def test_vectors_that_begin_at_a_number_from_memory():
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((32, 80), (80, 64)))
    c, blocks = np.zeros((32, 64), np.float32), np.array([2, 0], np.int32)
    listed[(1,)](a, b, blocks, c, 2, 64, 80, 32, 64, 32, target="sim:hopper")
    a[:, 32:64] = 0
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-3)
    signature = {
        n: f"*{t}:16" for n, t in (("a", "fp16"), ("b", "fp16"), ("blocks", "i32"), ("c", "fp32"))
    }
    signature |= {"count": "i32", "N": "i32:16", "K": "i32:16"}
    sizes = {"BM": 32, "BN": 64, "BK": 32}
    text = gluon.compile(listed, target="sm_90", signature=signature, constexprs=sizes).asm["ttgir"]
    loop = text[text.index("scf.while") : text.index("scf.yield")]
    assert not [one for one in loop.splitlines() if "ttg.convert_layout" in one and "xi" in one]


def test_no_step_converts_a_vector():
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "N": "i32:16", "K": "i32:16"}
    sizes = {"BM": 32, "BN": 64, "BK": 32}
    text = gluon.compile(moved_on, target="sm_90", signature=signature, constexprs=sizes).asm[
        "ttgir"
    ]
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    converted = [line for line in loop.splitlines() if "ttg.convert_layout" in line]
    assert not [line for line in converted if "tensor<32xi" in line]


@gluon.jit(layouts="auto")
def swapped(x, y, n, N: gl.constexpr):
    """Add the running sums of a vector to its own square, transposed."""
    i = gl.arange(0, N)
    values = gl.load(x + i, mask=i < n, other=0.0)
    other = gl.reshape(gl.permute(gl.reshape(values, [N // 8, 8]), (1, 0)), [N])
    gl.store(y + i, gl.cumsum(values, 0) + gl.exp(values) + other)


@pytest.mark.parametrize("size, loads", [(128, 2), (1024, 1)])
def test_a_small_vector_is_loaded_again(size, loads, chosen_sources):
    x, y = np.arange(size, dtype=np.float32) % 4, np.zeros(size, np.float32)
    swapped[(1,)](x, y, size, size, target="sim:sm_90")
    assert np.allclose(y, x.cumsum() + np.exp(x) + x.reshape(-1, 8).T.ravel())
    assert chosen_sources[0].count("gl.load(") == loads


FILE = '''"""A product whose steps move one vector on."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def product(a, b, c, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    rows, columns, along = gl.arange(0, BM), gl.arange(0, BN), gl.arange(0, BK)
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, gl.cdiv(K, BK)):
        x = gl.load(a + rows[:, None] * K + along[None, :], mask=along[None, :] < K, other=0.0)
        y = gl.load(b + along[:, None] * N + columns[None, :], mask=along[:, None] < K, other=0.0)
        acc = gl.portable.mma(x, y, acc)
        along += BK
    gl.store(c + rows[:, None] * N + columns[None, :], acc)


@gluon.jit(layouts="auto")
def transpose(x, out, M, N, BLOCK: gl.constexpr):
    row = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK)[:, None]
    column = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK)[None, :]
    gl.store(out + column * M + row, gl.load(x + row * N + column))


if __name__ == "__main__":
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((32, 80), (80, 64)))
    c = np.zeros((32, 64), np.float32)
    product[(1,)](a, b, c, 64, 80, 32, 64, 32)
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-3)
    out = np.zeros((64, 32), np.float32)
    transpose[(1, 2)](c, out, 32, 64, 32)
    assert (out == c.T).all()
'''


def test_written_files_leave_out_a_vector_that_nothing_reads(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    path, explicit = tmp_path / "auto.py", tmp_path / "explicit.py"
    path.write_text(FILE)
    explicit.write_text(written(str(path), registry().target("sm_90"))[0])
    assert "along_ahead += BK" in explicit.read_text()
    assert " along += BK" not in explicit.read_text()
    # Vectors that are computed again in a long line have the names of the source.
    assert "gl.load(x + row_2 * N + column_2)" in explicit.read_text()
    runpy.run_path(str(explicit), run_name="__main__")
