"""The intervals of ratios of times, and machine code by which kernels are one."""

import random

import pytest

pytest.importorskip("torch")

import gluon_core as gluon
from benchmarks.machine_code import code_of
from benchmarks.paired import interval_of, launches_for
from gluon_core import language as gl

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    "mean, verdict", [(0.98, "slower"), (1.0, "no difference shown"), (1.02, "faster")]
)
def test_an_interval_has_the_ratio_of_most_rounds(mean, verdict):
    """One round in eight was disturbed."""
    order = random.Random(5)
    ratios = [mean + order.gauss(0, 0.01) + (i % 8 == 0) * 0.5 for i in range(64)]
    interval = interval_of(ratios)
    assert interval.verdict == verdict
    assert interval.low < mean < interval.high and interval.high - interval.low < 0.02
    assert interval == interval_of(ratios)


def test_graphs_last_long_enough_and_take_all_operands_in_turn():
    assert launches_for(35e-6) == 20 and launches_for(3e-6) == 200 and launches_for(2e-3) == 1


@gluon.jit(layouts="auto")
def scaled(x, out, factor: gl.constexpr, B: gl.constexpr):
    i = gl.arange(0, B)
    gl.store(out + i, gl.load(x + i) * factor)


def test_code_is_that_of_the_instructions():
    signature = {"x": "*fp32:16", "out": "*fp32:16"}
    codes = [
        code_of(
            gluon.compile(
                scaled,
                target="sm_90",
                signature=signature,
                constexprs={"factor": factor, "B": 256},
                options={"num_warps": warps},
            )
        )
        for factor, warps in ((2.0, 4), (2.0, 4), (3.0, 4), (2.0, 2))
    ]
    assert codes[0] == codes[1] != codes[2] and codes[0] != codes[3]
    assert sum(map(len, codes[0][0])) % 16 == 0 and codes[0][0][0]
