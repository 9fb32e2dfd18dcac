"""Quotients of scalars that all steps of a loop share: divided once, before the loop."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = [pytest.mark.once, pytest.mark.sampled(8)]

SIGNATURE = {"x": "*fp32:16", "y": "*fp32:16", "n": "i32", "count": "i32"}


@gluon.jit(layouts="auto")
def shared(x, y, n, count, B: gl.constexpr):
    for start in range(0, n, B):
        places = start + gl.arange(0, B)
        scale = 1.0 / (count + 1.0)  # of no step
        gl.store(y + places, gl.load(x + places, mask=places < n) * scale, mask=places < n)


@gluon.jit(layouts="auto")
def nested(x, y, n, count, B: gl.constexpr):
    for row in range(0, count):
        for start in range(0, n, B):
            scale = (
                2.0
                / count
            )  # fmt: skip
            places = row * n + start + gl.arange(0, B)
            inside = start + gl.arange(0, B) < n
            gl.store(y + places, gl.load(x + places, mask=inside) * scale, mask=inside)


@gluon.jit(layouts="auto")
def of_steps(x, y, n, count, B: gl.constexpr):
    """Divide by what a step changes, and by its number."""
    for start in range(0, n, B):
        places = start + gl.arange(0, B)
        first = 1.0 / (start + 1.0)
        second = 1.0 / count
        count += 1
        value = gl.load(x + places, mask=places < n) * first * second
        gl.store(y + places, value, mask=places < n)


@gluon.jit(layouts="auto")
def assigned_before(x, y, n, count, B: gl.constexpr):
    """The first step has another factor."""
    scale = 3.0
    for start in range(0, n, B):
        places = start + gl.arange(0, B)
        gl.store(y + places, gl.load(x + places, mask=places < n) * scale, mask=places < n)
        scale = 1.0 / count


@pytest.mark.parametrize(
    "kernel, count, wanted",
    [
        (shared, 3, lambda x: x / 4),
        (nested, 2, lambda x: np.concatenate([x, x])),
        (
            of_steps,
            3,
            lambda x: x * [1 / (i // 32 * 32 + 1) / (3 + i // 32) for i in range(len(x))],
        ),
        (assigned_before, 4, lambda x: np.where(np.arange(len(x)) < 32, 3 * x, x / 4)),
    ],
)
def test_results(kernel, count, wanted):
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    source = np.concatenate([x, x]) if kernel is nested else x
    y = np.zeros_like(source)
    kernel[(1,)](source, y, 100, count, 32, target="sim:hopper")
    assert np.allclose(y, wanted(x), rtol=1e-5)


@pytest.mark.parametrize(
    "kernel, outside", [(shared, 1), (nested, 1), (of_steps, 0), (assigned_before, 0)]
)
def test_places(kernel, outside):
    asked = gluon.compile(kernel, target="sm_90", signature=SIGNATURE, constexprs={"B": 32})
    before, _, inside = asked.asm["ttgir"].partition("scf.for")
    assert before.count("arith.divf") == outside
    assert ("arith.divf" in inside) == (not outside)
