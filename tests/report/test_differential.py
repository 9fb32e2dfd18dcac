"""Distances of two arrays, and kernels on two targets."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.registry.load import registry
from gluon_report.differential import compare, from_target, on_target, run_both

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


def test_equal_bits():
    x = np.array([1.5, np.nan, -0.0, np.inf], np.float32)
    same = compare("x", x, x.copy())
    assert same.exact and same.within() and "the same 4 elements" in str(same)
    other = x.copy()
    other.view(np.uint32)[1] ^= 1  # another NaN
    assert compare("x", x, other).exact
    zero = compare("x", x, np.array([1.5, np.nan, 0.0, np.inf], np.float32))
    assert zero.differing == 1 and zero.worst == 0 and zero.ulps == 0 and zero.first[0] == 2


def test_distances():
    x = np.array([1.0, 2.0, -4.0], np.float32)
    y = np.nextafter(x, np.float32(9))
    distances = compare("x", x, y)
    assert distances.differing == 3 and distances.ulps == 1 and distances.scale == 4
    assert (
        distances.within(ulps=1)
        and distances.within(relative=1e-6)
        and not distances.within(relative=1e-9)
    )
    across = compare("x", np.array([-1e-45], np.float32), np.array([1e-45], np.float32))
    assert across.ulps == 2
    assert compare("x", x, np.array([1.0, np.nan, -4.0], np.float32)).worst == np.inf
    whole = compare("i", np.array([2**62, 0]), np.array([2**62 - 3, 0]))
    assert whole.worst == 3 and whole.ulps == 0 and "1 of 2 elements differ" in str(whole)
    with pytest.raises(ValueError, match="x: "):
        compare("x", x, x.astype(np.float64))


@pytest.mark.parametrize(
    "name", ["float32", "float16", "int8", "int64", "uint32", "bool", "bfloat16"]
)
def test_there_and_back(name, monkeypatch):
    import ml_dtypes

    values = np.array([0, 1, 2, 3]).astype(getattr(ml_dtypes, name, None) or name)
    there = on_target(values, registry().target("sim:sm_90"))
    assert there is not values and there.dtype == values.dtype
    monkeypatch.setattr(type(registry().backend("nvidia").device), "tensor_device", "cpu")
    there = on_target(values, registry().target("nvidia:sm_90"))
    assert str(there.dtype) == f"torch.{name}"
    back = from_target(there, values)
    assert back.dtype == values.dtype and (back == values).all()


@gluon.jit
def asks(a, out, n):
    o = gl.arange(0, 128, layout=L1)
    extra = 1 if gl.target.has("nvidia.wgmma") else 0
    gl.store(out + o, gl.load(a + o) + extra, mask=o < n)


def test_a_kernel_on_two_targets():
    def launch(arguments, target):
        asks[(1,)](*arguments.values(), target=target)

    arguments = {"a": np.arange(128, dtype=np.int32), "out": np.zeros(128, np.int32), "n": 100}
    targets = [registry().target(f"sim:{name}") for name in ("sm_80", "sm_89", "sm_90")]
    assert all(d.exact for d in run_both(launch, arguments, *targets[:2]))
    a, out = run_both(launch, arguments, *targets[1:])
    assert a.exact and out.differing == 100 and out.worst == 1
    assert not arguments["out"].any()
