"""Aggregates without a constructor of their own take their fields, on every Triton."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, DtypeError
from tests.frontend.aggregates import Mean, Pair, decorated

LAYOUT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def kernel(x, out, rounds):
    places = gl.arange(0, 128, LAYOUT)
    mean = Mean(gl.zeros([128], gl.float32, LAYOUT), gl.to_tensor(0))
    for i in range(rounds):
        mean = mean.push(gl.load(x + i * 128 + places))
    pair = Pair(second=mean.value(), first=(mean, 3))
    gl.store(out + places, pair.second * pair.first[1] * pair.first[0].scale)


@pytest.mark.once
@pytest.mark.parametrize("target", ["sim:sm_90", "emu:sm_90"])
def test_fields_by_place_and_by_name_and_defaults(target):
    x = np.random.default_rng(0).integers(-9, 9, (4, 128)).astype(np.float32)
    out = np.zeros(128, np.float32)
    kernel[(1,)](x, out, 4, target=target)
    np.testing.assert_array_equal(out, 6 * x.mean(0))


def test_annotations_are_read_where_the_class_is_written():
    """They are text here; the decorator is called in another module, which has other names."""
    number = gl.constexpr

    class Step:
        size: number
        previous: Mean
        near: Size

    decorated(Step)
    assert list(Step.__annotations__.values()) == [gl.constexpr, Mean, gl.tuple]


Size = gl.tuple


@gluon.jit
def wrong(x, FORM: gl.constexpr):
    if FORM == "few":
        Pair((x, x))
    elif FORM == "unknown":
        Pair((x, x), gl.load(x), third=x)
    else:
        Pair(gl.load(x), gl.load(x))


@pytest.mark.parametrize(
    "form, error, words",
    [
        ("few", ArgumentError, "missing a? ?required argument: 'second'"),
        ("unknown", ArgumentError, "unexpected keyword argument 'third'"),
        ("kind", DtypeError, "Expected tuple for attribute 'first', got tensor"),
    ],
)
def test_other_arguments_are_named(form, error, words):
    with pytest.raises(error, match=words):
        wrong[(1,)](np.zeros(1, np.float32), form, target="sim:sm_90")
