"""Kernels whose structs have methods that make tensors."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once


@gl.aggregate
class Span:
    start: gl.tensor
    stop: gl.tensor
    STEP: gl.constexpr

    @gluon.jit
    def places(self, step):
        return self.start + step * self.STEP + gl.arange(0, self.STEP)

    @gluon.jit
    def at(self, step):
        places = self.places(step)
        return places, places < self.stop

    @gluon.jit
    def moved(self, steps):
        return Span(self.start + steps * self.STEP, self.stop, self.STEP)


@gluon.jit(layouts="auto")
def sums(x, ends, y, BLOCK: gl.constexpr):
    row = gl.program_id(0)
    span = Span(gl.load(ends + row), gl.load(ends + row + 1), BLOCK)
    total = gl.zeros([BLOCK], gl.float32)
    for step in range(0, gl.cdiv(span.stop - span.start, BLOCK)):
        places, inside = (
            span
            .moved(step).at(
                0
            )
        )  # fmt: skip
        total += gl.load(x + places, mask=inside, other=0.0)
    gl.store(y + row, gl.sum(total, 0))


def test_methods_get_layouts(chosen_sources):
    x = np.random.default_rng(0).standard_normal(70).astype(np.float32)
    ends, y = np.array([0, 5, 5, 40, 70], np.int32), np.zeros(4, np.float32)
    sums[(4,)](x, ends, y, 16, target="sim:hopper")
    wanted = [x[a:b].sum() for a, b in zip(ends, ends[1:])]
    assert np.allclose(y, wanted, atol=1e-5)
    assert not any(f".{name}(" in chosen_sources[0] for name in ("places", "at", "moved"))
