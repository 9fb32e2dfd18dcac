"""What whole programs written for Triton's own Gluon lean on, once their import lines are ours."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.extra import libdevice

LAYOUT = gl.BlockedLayout([1], [32], [4], [0])
Bounds = namedtuple("Bounds", ["low", "high"])


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")


def test_libdevice_is_one_module_however_it_is_imported():
    import gluon_core.language.extra as extra

    assert gl.extra is extra and extra.libdevice is libdevice


@gluon.jit
def clamp(x, bounds):
    return gl.minimum(gl.maximum(x, bounds.low), bounds.high)


@gluon.jit
def clamp_kernel(pointers, bounds, layout: gl.constexpr):
    i = gl.arange(0, 128, layout)
    gl.store(pointers[1] + i, clamp(gl.load(pointers[0] + i), bounds))


def test_a_named_tuple_argument_keeps_its_fields():
    x = np.linspace(-2, 2, 128, dtype=np.float32)
    out = np.zeros_like(x)
    clamp_kernel[(1,)]((x, out), Bounds(-0.5, 1.25), LAYOUT)
    np.testing.assert_array_equal(out, x.clip(-0.5, 1.25))
