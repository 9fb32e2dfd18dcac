"""Long lines of written functions are broken where Black breaks them."""

import ast

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.registry.load import registry
from gluon_write.command import written
from gluon_write.text.breaking import broken

pytestmark = pytest.mark.once
A, B, C = ("first_" + "a" * 34, "second_" + "b" * 34, "third_" + "c" * 9)


@pytest.mark.parametrize(
    "line, lines",
    [
        (f"x = {A} * {B} + {C}", ["x = (", f"    {A} * {B}", f"    + {C}", ")"]),
        (
            f"f({A}, mask=({B} < {C}) & {A})",
            ["f(", f"    {A},", f"    mask=({B} < {C})", f"    & {A},", ")"],
        ),
        (f"x = fun(g({A}, {B}), 2)", ["x = fun(", f"    g({A}, {B}), 2", ")"]),
        (
            f"x = {A} + f({A}, {B})[None, :]",
            ["x = (", f"    {A}", "    + f(", f"        {A}, {B}", "    )[None, :]", ")"],
        ),
        (f"x = ({C} * (f({C}))) + -({C} + 1)", [f"x = {C} * f({C}) + -({C} + 1)"]),
        (f"x = f(({C} < 1), ({C}, 1))", [f"x = f({C} < 1, ({C}, 1))"]),
        (f"x = f(\n    {C}, -1\n)", [f"x = f({C}, -1)"]),
        (f"x = {A} or {B}  # {C}", [f"x = {A} or {B}  # {C}"]),
    ],
)
def test_lines(line, lines):
    head = "def f(x):\n"
    text = head + "".join(f"    {one}\n" for one in line.splitlines())
    done = broken(text, set())
    assert [one.removeprefix("    ") for one in done.splitlines()[1:]] == lines
    assert ast.dump(ast.parse(done)) == ast.dump(ast.parse(text))
    assert broken(text, {one.strip() for one in text.splitlines()}) == text  # the user's


@gluon.jit(layouts="auto")
def sums(x, out, A: gl.constexpr):
    # The rows.
    i = gl.arange(0, A)
    v = gl.load(x + i[:, None, None] * A * A + i[None, :, None] * A + i[None, None, :])
    gl.store(out + i[:, None] * A + i[None, :], gl.sum(v, 2))


if __name__ == "__main__":
    sums[(1,)](np.ones((4, 4, 4), np.float32), np.zeros((4, 4), np.float32), 4)


def test_layouts_have_the_names_of_their_values():
    """Slices that no value of the source has by a name are named by their dimensions."""
    text, _ = written(__file__, registry().target("sm_90"))
    assert "v_dim_2_layout: gl.constexpr = gl.SliceLayout(0, " in text
    assert "    # The rows.\n    i = " in text
    assert "\n    layout: " not in text and "\n    layout_2: " not in text
