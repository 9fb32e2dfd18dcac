"""Tensor ops through the frontend: shapes, casts, reductions, scans, dots, math."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim.errors import OutOfBoundsError, SimulatorError

rng = np.random.default_rng(11)
L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
L2 = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]))


@gluon.jit
def load2(p, M: gl.constexpr, N: gl.constexpr):
    r = gl.arange(0, M, layout=gl.SliceLayout(1, L2))
    c = gl.arange(0, N, layout=gl.SliceLayout(0, L2))
    return gl.load(p + r[:, None] * N + c[None, :])


@gluon.jit
def store1(p, x, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    gl.store(p + o, gl.convert_layout(x, L1))


# ---- shapes ---------------------------------------------------------------------------------


@gluon.jit
def reshapes(a, out, M: gl.constexpr, N: gl.constexpr):
    x = load2(a, M, N)
    store1(out, gl.reshape(x, [M * N]), M * N)
    store1(out + M * N, gl.reshape(gl.permute(x, (1, 0)), [M * N]), M * N)
    pairs: gl.constexpr = gl.BlockedLayout([1, 1, 2], [4, 8, 1], [4, 1, 1], [2, 1, 0])
    y = gl.convert_layout(gl.reshape(x, [M, N // 2, 2]), pairs)
    even, odd = gl.split(y)
    both = gl.join(odd, even)
    store1(out + 2 * M * N, gl.reshape(both, [M * N]), M * N)
    z = gl.permute(gl.reshape(x, [2, M // 2, N]), (2, 0, 1))
    store1(out + 3 * M * N, gl.reshape(z, [M * N]), M * N)


def test_reshape_permute_join_split():
    a = rng.integers(0, 99, (8, 16)).astype(np.int32)
    out = np.zeros((4, 128), np.int32)
    reshapes[(1,)](a, out, 8, 16)
    np.testing.assert_array_equal(out[0], a.ravel())
    np.testing.assert_array_equal(out[1], a.T.ravel())
    np.testing.assert_array_equal(out[2], a.reshape(8, 8, 2)[..., ::-1].ravel())
    np.testing.assert_array_equal(out[3], a.reshape(2, 4, 16).transpose(2, 0, 1).ravel())


@gluon.jit
def picks(a, index, out, M: gl.constexpr, N: gl.constexpr):
    x = load2(a, M, N)
    i = load2(index, M, N)
    y = gl.gather(x, i, 1)
    r = gl.arange(0, M, layout=gl.SliceLayout(1, L2))
    c = gl.arange(0, N, layout=gl.SliceLayout(0, L2))
    gl.store(out + r[:, None] * N + c[None, :], y)


def test_gather_and_its_bounds():
    a = rng.integers(0, 99, (8, 32)).astype(np.int32)
    index = rng.integers(0, 32, (8, 32)).astype(np.int32)
    out = np.zeros_like(a)
    picks[(1,)](a, index, out, 8, 32)
    np.testing.assert_array_equal(out, np.take_along_axis(a, index, 1))
    index[3, 4] = 32
    with pytest.raises(
        SimulatorError, match="gather picks an element outside.*expected 0 to 31, got 32"
    ):
        picks[(1,)](a, index, out, 8, 32)


@gluon.jit
def counts(a, out, limit, N: gl.constexpr, BINS: gl.constexpr):
    o = gl.program_id(0) * N + gl.arange(0, N, layout=L1)
    x = gl.load(a + o)
    h = gl.histogram(x, BINS, mask=x < limit, layout=L1)
    gl.store(out + gl.program_id(0) * BINS + gl.arange(0, BINS, layout=L1), h)


def test_histogram_per_program_with_a_mask():
    a = rng.integers(0, 16, (3, 256)).astype(np.int32)
    out = np.zeros((3, 16), np.int32)
    counts[(3,)](a, out, 12, 256, 16)
    wanted = [np.bincount(row[row < 12], minlength=16) for row in a]
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("stray", [16, 37, -1])
def test_a_histogram_of_values_without_a_bin(stray):
    a = rng.integers(0, 16, (3, 256)).astype(np.int32)
    a[1, 7] = stray
    out = np.zeros((3, 16), np.int32)
    with pytest.raises(
        OutOfBoundsError, match=f"histogram.*expected 0 to 15, got {stray}"
    ) as caught:
        counts[(3,)](a, out, 100, 256, 16)
    assert caught.value.element == (7,) and caught.value.program == (1, 0, 0)
    counts[(3,)](a, out, 100, 256, 16, bounds=False)  # as GPUs, which look at the low bits alone
    np.testing.assert_array_equal(out, [np.bincount(row % 16, minlength=16) for row in a])


# ---- reductions and scans -------------------------------------------------------------------


@gluon.jit
def reduces(a, out, M: gl.constexpr, N: gl.constexpr):
    x = load2(a, M, N)
    r = gl.arange(0, M, layout=gl.SliceLayout(1, L2))
    c = gl.arange(0, N, layout=gl.SliceLayout(0, L2))
    gl.store(out + r, gl.sum(x, 1))
    gl.store(out + M + r, gl.max(x, 1))
    gl.store(out + 2 * M + r, gl.min(x, 1))
    gl.store(out + 3 * M + c, gl.sum(x, 0))
    gl.store(out + 3 * M + N, gl.sum(gl.sum(x, 0), 0))
    gl.store(out + 3 * M + N + 1, gl.xor_sum(gl.max(x, 0), 0))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_reductions_of_integers(dtype):
    a = rng.integers(0, 1 << 20, (8, 32)).astype(dtype)
    out = np.zeros(3 * 8 + 32 + 2, dtype)
    reduces[(1,)](a, out, 8, 32)
    wanted = [a.sum(1), a.max(1), a.min(1), a.sum(0), [a.sum()], [np.bitwise_xor.reduce(a.max(0))]]
    np.testing.assert_array_equal(out, np.concatenate(wanted))


@gluon.jit
def first_max(v0, i0, v1, i1):
    left = (v0 > v1) | ((v0 == v1) & (i0 < i1))
    return gl.where(left, v0, v1), gl.where(left, i0, i1)


@gluon.jit
def arg_reduces(a, values, places, M: gl.constexpr, N: gl.constexpr):
    x = load2(a, M, N)
    r = gl.arange(0, M, layout=gl.SliceLayout(1, L2))
    c = gl.arange(0, N, layout=gl.SliceLayout(0, L2))
    index = c[None, :] + gl.zeros((M, N), gl.int32, L2)
    v, i = gl.reduce((x, index), 1, first_max)
    gl.store(values + r, v)
    gl.store(places + r, i)


def test_reductions_of_pairs_give_the_place_of_the_first_maximum():
    a = rng.integers(0, 5, (8, 64)).astype(np.float32)
    values, places = np.zeros(8, np.float32), np.zeros(8, np.int32)
    arg_reduces[(1,)](a, values, places, 8, 64)
    np.testing.assert_array_equal(values, a.max(1))
    np.testing.assert_array_equal(places, a.argmax(1))


@gluon.jit
def compose(a0, b0, a1, b1):
    return a0 * a1, b0 * a1 + b1


@gluon.jit
def choose(a, b):
    if a > b:
        c = a * 2
    else:
        c = b - a
    return c


@gluon.jit
def custom(a, b, out, N: gl.constexpr, REVERSE: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    x, y = gl.load(a + o), gl.load(b + o)
    p, q = gl.associative_scan((x, y), 0, compose, reverse=REVERSE)
    gl.store(out + o, p)
    gl.store(out + N + o, q)
    s, t = gl.reduce((x, y), 0, compose)
    gl.store(out + 2 * N, s)
    gl.store(out + 2 * N + 1, t)


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_and_reductions_with_a_combine_function_that_does_not_commute(reverse):
    a, b = rng.integers(-3, 4, (2, 64)).astype(np.int64)
    out = np.zeros(2 * 64 + 2, np.int64)
    custom[(1,)](a, b, out, 64, reverse)
    pairs = list(zip(a.tolist(), b.tolist()))
    steps, state = [], None
    for pair in reversed(pairs) if reverse else pairs:
        state = pair if state is None else (state[0] * pair[0], state[1] * pair[0] + pair[1])
        steps.append(state)
    steps = steps[::-1] if reverse else steps
    wrap = lambda v: (int(v) + 2**63) % 2**64 - 2**63  # noqa: E731
    np.testing.assert_array_equal(out[:64], [wrap(s[0]) for s in steps])
    np.testing.assert_array_equal(out[64:128], [wrap(s[1]) for s in steps])
    total = None
    for pair in pairs:
        total = pair if total is None else (total[0] * pair[0], total[1] * pair[0] + pair[1])
    assert out[128:].tolist() == [wrap(total[0]), wrap(total[1])]


@gluon.jit
def branching_combine(a, out, N: gl.constexpr):
    o = gl.program_id(0) * N + gl.arange(0, N, layout=L1)
    gl.store(out + gl.program_id(0), gl.reduce(gl.load(a + o), 0, choose))


def test_a_combine_function_may_branch():
    a = rng.integers(-50, 50, (6, 16)).astype(np.int32)
    out = np.zeros(6, np.int32)
    branching_combine[(6,)](a, out, 16)

    def tree(row):
        while len(row) > 1:
            row = [x * 2 if x > y else y - x for x, y in zip(row[::2], row[1::2])]
        return row[0]

    assert out.tolist() == [tree(row.tolist()) for row in a]


@gluon.jit
def scans(a, out, M: gl.constexpr, N: gl.constexpr):
    x = load2(a, M, N)
    r = gl.arange(0, M, layout=gl.SliceLayout(1, L2))
    c = gl.arange(0, N, layout=gl.SliceLayout(0, L2))
    o = r[:, None] * N + c[None, :]
    gl.store(out + o, gl.associative_scan(x, 1, plus))
    gl.store(out + M * N + o, gl.associative_scan(x, 0, plus, reverse=True))


@gluon.jit
def plus(a, b):
    return a + b


def test_running_sums_along_both_axes():
    a = rng.integers(-9, 9, (8, 32)).astype(np.float32)
    out = np.zeros((2, 8, 32), np.float32)
    scans[(1,)](a, out, 8, 32)
    np.testing.assert_array_equal(out[0], a.cumsum(1))
    np.testing.assert_array_equal(out[1], a[::-1].cumsum(0)[::-1])


@gluon.jit
def both_ways(a, b):
    if a > b:
        return a - b, a
    return b, b - a


@gluon.jit
def mapped(a, b, out, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    x, y = gl.map_elementwise(both_ways, gl.load(a + o), gl.load(b + o))
    gl.store(out + o, x)
    gl.store(out + N + o, y)


def test_map_elementwise_runs_a_scalar_function_with_branches():
    a, b = rng.integers(0, 9, (2, 64)).astype(np.int32)
    out = np.zeros((2, 64), np.int32)
    mapped[(1,)](a, b, out, 64)
    np.testing.assert_array_equal(out[0], np.where(a > b, a - b, b))
    np.testing.assert_array_equal(out[1], np.where(a > b, a, b - a))


# ---- arithmetic ------------------------------------------------------------------------------


@gluon.jit
def int_ops(a, b, out, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    x, y = gl.load(a + o), gl.load(b + o)
    gl.store(out + o, x // y)
    gl.store(out + N + o, x % y)
    gl.store(out + 2 * N + o, x * y + (x >> 3) - (y << 2))
    gl.store(out + 3 * N + o, (x & y) ^ (x | ~y))
    gl.store(out + 4 * N + o, gl.where(x < y, gl.minimum(x, y), gl.maximum(x, -y)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.int8])
def test_integer_ops_wrap_and_divide_as_in_c(dtype):
    low = 1 if dtype == torch.uint8 else -120
    a = torch.randint(low, 120, (128,)).to(dtype)
    b = torch.randint(1, 12, (128,)).to(dtype)
    out = torch.zeros(5, 128, dtype=dtype)
    int_ops[(1,)](a, b, out, 128)
    x, y = a.numpy(), b.numpy()
    quotient = np.trunc(x.astype(np.float64) / y).astype(x.dtype)
    np.testing.assert_array_equal(out[0].numpy(), quotient)
    np.testing.assert_array_equal(out[1].numpy(), x - quotient * y)
    two, three = x.dtype.type(2), x.dtype.type(3)
    np.testing.assert_array_equal(out[2].numpy(), x * y + (x >> three) - (y << two))
    np.testing.assert_array_equal(out[3].numpy(), (x & y) ^ (x | ~y))
    np.testing.assert_array_equal(
        out[4].numpy(), np.where(x < y, np.minimum(x, y), np.maximum(x, -y))
    )


@gluon.jit
def maths(a, out, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    x = gl.load(a + o)
    gl.store(out + o, gl.exp(x))
    gl.store(out + N + o, gl.log(x))
    gl.store(out + 2 * N + o, gl.rsqrt(x))
    gl.store(out + 3 * N + o, gl.fma(x, x, x))
    gl.store(out + 4 * N + o, gl.sin(x) + gl.cos(x))
    gl.store(out + 5 * N + o, gl.erf(x))
    gl.store(out + 6 * N + o, gl.floor(x) + gl.ceil(x))
    gl.store(out + 7 * N + o, gl.exp2(x) * gl.log2(x))
    gl.store(out + 8 * N + o, gl.sqrt(x) / 3)
    gl.store(out + 9 * N + o, gl.abs(-x))


def test_math_functions():
    a = rng.uniform(0.1, 5, 64).astype(np.float32)
    out = np.zeros((10, 64), np.float32)
    maths[(1,)](a, out, 64)
    x = a.astype(np.float64)
    wanted = [
        np.exp(x), np.log(x), 1 / np.sqrt(x), x * x + x, np.sin(x) + np.cos(x),
        [math.erf(v) for v in x], np.floor(x) + np.ceil(x), np.exp2(x) * np.log2(x), np.sqrt(x) / 3, x,
    ]  # fmt: skip
    np.testing.assert_allclose(out, np.array(wanted), rtol=3e-6, atol=1e-6)


@gluon.jit
def casts(a, out, DTYPE: gl.constexpr, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    x = gl.load(a + o).to(DTYPE)
    gl.store(out + o, x.to(gl.float32))


@pytest.mark.parametrize(
    "name, dtype",
    [("float16", torch.float16), ("bfloat16", torch.bfloat16), ("float8e5", torch.float8_e5m2)],
)
def test_casts_inside_kernels_round_like_torch(name, dtype):
    a = torch.randn(4096) * 100
    out = torch.zeros(4096)
    casts[(1,)](a, out, getattr(gl, name), 4096)
    assert torch.equal(out, a.to(dtype).float())


@gluon.jit
def bf16_sum(a, b, out, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    gl.store(out + o, gl.load(a + o) + gl.load(b + o))


def test_bf16_arithmetic_rounds_every_result():
    a, b = torch.randn(2, 1024).bfloat16()
    out = torch.zeros(1024, dtype=torch.bfloat16)
    bf16_sum[(1,)](a, b, out, 1024)
    assert torch.equal(out, (a.float() + b.float()).bfloat16())


@gluon.jit
def bits(a, out, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    gl.store(out + o, gl.load(a + o).to(gl.int32, bitcast=True))


def test_bitcast():
    a, out = rng.standard_normal(64).astype(np.float32), np.zeros(64, np.int32)
    bits[(1,)](a, out, 64)
    np.testing.assert_array_equal(out, a.view(np.int32))


# ---- dot ------------------------------------------------------------------------------------


@gluon.jit
def dots(a, b, c, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr):
    x, y, z = load2(a, M, K), load2(b, K, N), load2(c, M, N)
    x = gl.convert_layout(x, gl.DotOperandLayout(0, L2, 0))
    y = gl.convert_layout(y, gl.DotOperandLayout(1, L2, 0))
    r = gl.arange(0, M, layout=gl.SliceLayout(1, L2))
    s = gl.arange(0, N, layout=gl.SliceLayout(0, L2))
    gl.store(c + r[:, None] * N + s[None, :], gl.dot_fma(x, y, z))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dot_fma_adds_to_its_accumulator(dtype):
    a, b = rng.standard_normal((16, 32)).astype(dtype), rng.standard_normal((32, 16)).astype(dtype)
    start = rng.standard_normal((16, 16)).astype(dtype)
    c = start.copy()
    dots[(1,)](a, b, c, 16, 16, 32)
    np.testing.assert_allclose(
        c, start + a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5
    )


@gluon.jit
def remainder(a, b, out, n, L: gl.constexpr):
    o = gl.arange(0, 128, layout=L)
    gl.store(out + o, gl.load(a + o, o < n, 0) % gl.load(b + o, o < n, 1), o < n)


@pytest.mark.parametrize("kind", ["float64", "float32", "float16"])
def test_remainders_of_each_vendor(kind):
    """NVIDIA's code rounds the quotient first, as seen on an H200; AMD's is exact."""
    a = np.array([2.5, 0.3, 7.75, -2.5, 5, np.inf, 1], kind)
    b = np.array([0.1, 0.1, 0.25, 0.1, np.inf, 1, 0], kind)
    remainders = {}
    for target in ("sim:sm_90", "sim:gfx942"):
        remainders[target] = np.zeros_like(a)
        warp_size = 64 if "gfx" in target else 32
        layout = gl.BlockedLayout([1], [warp_size], [4], [0])
        remainder[(1,)](a, b, remainders[target], len(a), layout, target=target)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(remainders["sim:gfx942"], np.fmod(a, b))
    work = np.dtype(np.float64 if kind == "float64" else np.float32)
    for x, y, r in zip(a[:4].astype(work), b[:4].astype(work), remainders["sim:sm_90"]):
        exact = Fraction(float(x)) - int(np.trunc(x / y)) * Fraction(float(y))
        assert r == work.type(float(exact)).astype(kind)
    np.testing.assert_array_equal(remainders["sim:sm_90"][4:], [5, np.nan, np.nan])
    if kind == "float64":
        assert remainders["sim:sm_90"][0] == -1.3877787807814457e-16
