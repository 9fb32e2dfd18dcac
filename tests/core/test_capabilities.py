"""Capabilities that a target lacks are reported under the kernel's line, by simulator and compiler."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import errors
from gluon_core import language as gl

nvidia = pytest.importorskip("gluon_core.nvidia")

pytestmark = pytest.mark.once


@gluon.jit
def first(p):
    gl.store(p, gl.load(p) + 1)


@gluon.jit
def second(p):
    gl.store(p + 1, gl.load(p + 1) + 2)


@gluon.jit
def split(p):
    gl.warp_specialize([(first, (p,)), (second, (p,))], [4], [48])  # <--


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("place", ["", "sim:"])
def test_partitions(place, target):
    with pytest.raises(errors.CapabilityError, match="gl.warp_specialize needs") as caught:
        gluon.compile(split, place + target, signature={"p": "*fp32"})
    assert "# <--" in caught.value.span.text and target in str(caught.value)
    assert "gfx1250" in str(caught.value) and "gl.portable.pipeline" in caught.value.remedy


@pytest.mark.parametrize("target", ["sim:sm_90", "sim:gfx1250"])
def test_partitions_where_they_are(target):
    values = np.ones(2, np.float32)
    split[(1,)](values, target=target)
    assert values.tolist() == [2.0, 3.0]
    compiled = gluon.compile(split, "sm_90", signature={"p": "*fp32"})
    assert "partition0" in compiled.asm["ttgir"]


@gluon.jit
def described(desc, out):
    gl.store(out, 1.0)


@pytest.mark.parametrize("target", ["gfx942", "gfx1201"])
@pytest.mark.parametrize("place", ["", "sim:"])
def test_descriptors(place, target):
    layout = gl.NVMMASharedLayout(128, 16, 2)
    signature = {"desc": f"tensordesc<fp16[32, 64],{layout!r}>", "out": "*fp32"}
    with pytest.raises(
        errors.CapabilityError, match=r"desc: .* needs nvidia.tma \(sm_90"
    ) as caught:
        gluon.compile(described, place + target, signature=signature)
    assert "gl.portable" in caught.value.remedy
    gluon.compile(described, "sim:sm_90", signature=signature)


def test_a_descriptor_in_a_launch():
    x, out = np.zeros((64, 64), np.float16), np.zeros(1, np.float32)
    desc = nvidia.hopper.TensorDescriptor.from_tensor(x, [32, 64], gl.NVMMASharedLayout(128, 16, 2))
    with pytest.raises(errors.CapabilityError, match="nvidia.tma"):
        described[(1,)](desc, out, target="sim:gfx942")
    described[(1,)](desc, out, target="sim:sm_90")
    assert out[0] == 1
