"""Bits of products, which do not depend on the order in which a BLAS adds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gluon_emu.amdgcn.isa import matrix
from gluon_sim.executor import products

pytestmark = pytest.mark.once
_matmul = np.matmul


def in_halves(a, b, out=None):
    """Sum even and odd terms apart, backwards, as some kernels of a BLAS do."""
    total = _matmul(a[..., ::-2], b[..., ::-2, :]) + _matmul(a[..., -2::-2], b[..., -2::-2, :])
    if out is None:
        return total
    out[...] = total
    return out


def float32s(rng, shape, kind):
    if kind == "integers":
        return rng.integers(-4096, 4096, shape).astype(np.float32)
    if kind == "wide":
        return (rng.standard_normal(shape) * 2.0 ** rng.integers(-30, 30, shape)).astype(np.float32)
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["normal", "integers", "wide", "cancelling", "masked"])
def test_float32(monkeypatch, kind):
    """Every order gives the exact sum, rounded; halves go away from zero."""
    rng = np.random.default_rng(5)
    a, b = (float32s(rng, shape, kind) for shape in ((3, 17, 40), (3, 40, 19)))
    acc = float32s(rng, (3, 17, 19), "normal")
    if kind == "cancelling":
        a[..., 20:], b[:, 20:], acc = -a[..., :20], b[:, :20], acc * 0
    if kind == "masked":
        a[:, 5:], b[..., 3] = 0, 0
    result = products.rounded(a, b, acc, False)
    terms = a[..., :, None, :].astype(np.float64) * b.swapaxes(-1, -2)[..., None, :, :]
    sums = np.apply_along_axis(math.fsum, -1, terms)
    assert result.tobytes() == ((sums + acc) * (1 + 2.0**-30)).astype(np.float32).tobytes()
    monkeypatch.setattr(np, "matmul", in_halves)
    assert result.tobytes() == products.rounded(a, b, acc, False).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow(monkeypatch, dtype):
    """Sums of narrow operands are exact; those of float32 are not, so the other order shows there."""
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((64, 48, 64)), rng.standard_normal((64, 64, 48))
    narrow = (
        np.dtype("float16") if dtype == "float16" else pytest.importorskip("ml_dtypes").bfloat16
    )
    cut = [x.astype(narrow).astype(np.float32) for x in (a, b)]
    acc = np.zeros((64, 48, 48), np.float32)
    result = products.rounded(*cut, acc, True)
    plain = _matmul(a, b)
    monkeypatch.setattr(np, "matmul", in_halves)
    assert result.tobytes() == products.rounded(*cut, acc, True).tobytes()
    assert (plain != np.matmul(a, b)).any()


def test_infinities_and_nan():
    a, b = np.ones((1, 3, 4), np.float32), np.ones((1, 4, 2), np.float32)
    a[0, 0, 0], a[0, 1, 1], b[0, 0, 1] = np.inf, np.nan, 0
    result = products.rounded(a, b, np.zeros((1, 3, 2), np.float32), False)
    np.testing.assert_array_equal(result[0], [[np.inf, np.nan], [np.nan, np.nan], [4, 3]])


def test_more_than_a_buffer_and_one_for_all():
    rng = np.random.default_rng(7)
    a, b = rng.integers(-9, 9, (40, 64, 16)), rng.integers(-9, 9, (1, 16, 64))
    acc = np.ones((1, 64, 64), np.float32)
    for narrow in (True, False):
        assert (products.rounded(a, b, acc, narrow) == a @ b + 1).all()


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_an_instruction_adds_along_k(monkeypatch, kind):
    rng = np.random.default_rng(8)
    left, right = rng.standard_normal((2, 16, 7)), rng.standard_normal((2, 16, 7))
    result = matrix.product(left, right, kind)
    np.testing.assert_allclose(result, left @ right.swapaxes(-1, -2))
    monkeypatch.setattr(np, "matmul", in_halves)
    assert result.tobytes() == matrix.product(left, right, kind).tobytes()


def test_float64_adds_along_k():
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((2, 20, 30)), rng.standard_normal((2, 30, 10))
    acc = rng.standard_normal((2, 20, 10))
    result = products.ordered(a, b, acc)
    np.testing.assert_allclose(result, acc + a @ b)
    assert result[:, 7:9].tobytes() == products.ordered(a[:, 7:9], b, acc[:, 7:9]).tobytes()


def test_one_accumulator_for_all_elements():
    a, b = np.full((1, 4, 3), 2.0), np.full((1, 3, 5), 0.5)
    for result in (
        products.ordered(a, b, np.ones((1, 1, 1))),
        products.rounded(a, b, np.ones((1, 1, 1), np.float32), False),
    ):
        assert result.shape == (1, 4, 5) and (result == 4).all()
