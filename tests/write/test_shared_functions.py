"""Functions of layout-free kernels that get a new text: calls of others stay, and lines move."""

import pytest

import gluon_core as gluon
from gluon_core import language as gl

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.once


@gluon.jit
def pointers(base, stride, B: gl.constexpr):
    return base + gl.arange(0, B)[:, None] * stride + gl.arange(0, B)[None, :]


@gluon.jit
def summed(acc, a, b, K, B: gl.constexpr):
    for k in range(0, K, B):
        x = gl.load(pointers(a + k, K, B))
        y = gl.load(pointers(b + k * B, B, B))
        acc = gl.portable.mma(x, y, acc)
    return acc


@gluon.jit(layouts="auto")
def product(a, b, c, K, B: gl.constexpr):
    begin = gl.load(pointers(c, B, B)).to(gl.float32)
    acc = summed(begin, a, b, K, B)
    gl.store(pointers(c, B, B), acc.to(c.dtype.element_ty))


def test_calls_of_one_type(monkeypatch):
    """`pointers` knows the name of `summed`, whose loop is pipelined, and does not call it."""
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    a, b, c = torch.randn(16, 48).half(), torch.randn(48, 16).half(), torch.randn(16, 16).half()
    wanted = c.float() + a.float() @ b.float()
    product[(1,)](a, b, c, 48, B=16, num_stages=3)
    assert (c.float() - wanted).abs().max() < 0.05


@gluon.jit(layouts="auto")
def two_products(x, w, y, H, B: gl.constexpr):
    x_tiles = gl.portable.descriptor(x, [B, B], [B, 1], [B, B])
    w_tiles = gl.portable.descriptor(w, [H, B], [B, 1], [B, B])
    rows = gl.portable.load(x_tiles, [0, 0])
    acc = gl.zeros([B, B], gl.float32)
    for h in range(0, H, B):
        mid = gl.portable.mma(
            rows, gl.portable.load(w_tiles, [h, 0]).T, gl.zeros([B, B], gl.float32)
        )
        acc = gl.portable.mma(mid.to(rows.dtype), gl.portable.load(w_tiles, [h, 0]), acc)
    i = gl.arange(0, B)
    gl.store(y + i[:, None] * B + i[None, :], acc)


def test_loads_within_two_products(monkeypatch):
    """Each load gets a statement before its product, which moves the lines of the other one."""
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    x, w, y = torch.randn(16, 16).half(), torch.randn(48, 16).half(), torch.empty(16, 16)
    two_products[(1,)](x, w, y, 48, B=16)
    mid = (x.float() @ w.float().T).half().float()
    torch.testing.assert_close(y, mid @ w.float(), atol=0.3, rtol=1e-2)


@gluon.jit
def put_in_order(pointers, value):
    gl.store(pointers, value)
    gl.thread_barrier()


@gluon.jit(layouts="auto")
def stored_ahead(a, b, c, K, B: gl.constexpr):
    rows, columns = gl.arange(0, B)[:, None], gl.arange(0, B)[None, :]
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, B):
        x = gl.load(a + rows * K + (k + columns))
        y = gl.load(b + (k + rows) * B + columns)
        acc = gl.portable.mma(x, y, acc)
        put_in_order(a + rows * K + (k + B + columns), gl.full([B, B], 2.0, gl.float16))
    gl.store(c + rows * B + columns, acc)


@gluon.jit
def in_memory():
    gl.nvidia.hopper.tma.store_wait(0, read_only=False)
    gl.thread_barrier()


@gluon.jit(layouts="auto")
def stored_ahead_by_tiles(a, b, c, K, B: gl.constexpr):
    a_tiles = gl.portable.descriptor(a, [B, K + B], [K, 1], [B, B])
    b_tiles = gl.portable.descriptor(b, [K, B], [B, 1], [B, B])
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, B):
        x = gl.portable.load(a_tiles, [0, k])
        y = gl.portable.load(b_tiles, [k, 0])
        acc = gl.portable.mma(x, y, acc)
        gl.portable.store(a_tiles, [0, k + B], gl.full([B, B], 2.0, gl.float16))
        in_memory()
    rows, columns = gl.arange(0, B)[:, None], gl.arange(0, B)[None, :]
    gl.store(c + rows * B + columns, acc)


@pytest.mark.parametrize("kernel", [stored_ahead, stored_ahead_by_tiles])
def test_tiles_that_a_step_stores_for_the_next_are_not_copied_ahead(kernel, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    memory, b, c = torch.randn(65, 192).half(), torch.randn(192, 64).half(), torch.empty(64, 64)
    read = torch.full((64, 192), 2.0)
    read[:, :64] = memory[:64, :64]
    kernel[(1,)](memory, b, c, 192, B=64, num_stages=3)
    torch.testing.assert_close(c, read @ b.float(), atol=0.1, rtol=1e-2)
