"""A report points at the expression that did it."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.testing import TRITON_VERSION
from gluon_sim.errors import OutOfBoundsError

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def assigned(x):
    é = 1 + gl.load(x + gl.arange(0, 128, layout=L1))  # a comment
    gl.store(x + gl.arange(0, 128, layout=L1), é)


@gluon.jit
def over_lines(x):
    gl.store(
        x + gl.arange(0, 128, layout=L1), gl.full([128], 0, gl.float32, L1)
    )  # fmt: skip


def nested():
    if True:

        @gluon.jit
        def inner(x):
            gl.store(x + gl.arange(0, 128, layout=L1), gl.full([128], 0, gl.float32, L1))

    return inner


CASES = {
    "assigned": (assigned, "gl.load(x + gl.arange(0, 128, layout=L1))", "é = 1 + gl.load("),
    "over lines": (over_lines, "gl.store(", "gl.store("),
    "nested": (nested(), "gl.store(x + gl.arange(0, 128, layout=L1), gl.full(", "gl.store(x"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_caret_is_under_the_expression(name):
    kernel, exact, statement = CASES[name]
    if name == "over lines" and TRITON_VERSION < (3, 8):
        pytest.skip("locations are those of the last argument before Triton 3.8")
    with pytest.raises(OutOfBoundsError) as caught:
        kernel[(1,)](np.zeros(64, np.float32))
    span = caught.value.span
    shown = span.text[span.column : span.end_column]
    wanted = exact if TRITON_VERSION >= (3, 8) else statement
    assert shown.startswith(wanted) and shown.count("(") >= shown.count(")") >= shown.count("(") - 1
    assert "#" not in shown
    assert f"{span.text}\n    {' ' * span.column}^" in str(caught.value)
