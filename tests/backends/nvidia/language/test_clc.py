"""gl.nvidia.blackwell.clc: the same modules as upstream, and errors instead of aborts."""

from __future__ import annotations

import pytest

import gluon_core
from gluon_core.compiler import compile
from gluon_core.errors import ArgumentError, CapabilityError, DtypeError, LayoutError, ShapeError
from gluon_core.testing import TRITON_VERSION, MockTensor, bind
from tests.frontend import oracle
from tests.frontend.vendor_oracle import agree, refuse, since

SETUP = """
from GLUON.language.nvidia.{generation} import clc
from GLUON.language.nvidia.ampere import mbarrier
TARGET = GPUTarget("cuda", {arch}, 32)
S = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
@gluon.jit
def kernel(p, n):
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    answer = gl.allocate_shared_memory({dtype}, {shape}, {layout})
    {body}
ARGS = (ptr(gl.int32), 3)
"""


def source(body, dtype="gl.int64", shape="[2]", layout="S", generation="blackwell", arch=100):
    return SETUP.format(
        body=body, dtype=dtype, shape=shape, layout=layout, generation=generation, arch=arch
    )


def gpu(arch):
    return gluon_core._triton.GPUTarget("cuda", arch, 32)


LOOP = """x = gl.program_id(0)
    y = gl.program_id(1)
    more = True
    phase = 0
    while more:
        clc.try_cancel(answer, bar)
        gl.store(p + x, y)
        mbarrier.wait(bar, phase)
        got = clc.load_result(answer)
        more = got.is_canceled()
        x = got.program_id(0)
        y = got.program_id(1) + got.program_id(dim=2)
        phase ^= 1"""
CARRIED = """clc.try_cancel(answer, bar)
    got = clc.load_result(answer)
    for i in range(n):
        if got.is_canceled():
            gl.store(p + i, got.program_id(0))
        got = clc.load_result(answer)
    gl.store(p, got.program_id(1))"""
SEVERAL = """clc.try_cancel(answer.index(n), bar)
    gl.store(p, clc.load_result(answer.index(1)).program_id(0))"""
CLUSTER = "gl.SwizzledSharedLayout(1, 1, 1, [0], cga_layout=[[{}]])"


@since(3, 8)
@pytest.mark.parametrize("body", [LOOP, CARRIED], ids=["loop", "carried"])
def test_the_same_modules(body):
    text = agree(source(body))
    assert "clc_try_cancel" in text and "clc_get_program_id" in text


@since(3, 8)
def test_one_of_several():
    layout = "gl.SwizzledSharedLayout(1, 1, 1, [0])"
    agree(source(SEVERAL, shape="[4, 2]", layout=layout))


@since(3, 8)
def test_in_a_cluster():
    body = source(LOOP, layout=CLUSTER.format(0)) + "KWARGS = {'num_ctas': 2}\n"
    agree(body)
    body = source("clc.try_cancel(answer, bar)  # HERE", layout=CLUSTER.format(1))
    refuse(body + "KWARGS = {'num_ctas': 2}\n", LayoutError, "whole answer")


@since(3, 9)
def test_rubin_and_sm_120():
    agree(source(LOOP, generation="rubin", arch=107))
    agree(source(LOOP), gpu(120))


@since(3, 8)
@pytest.mark.parametrize(
    "body, changes, error, match",
    [
        (
            "clc.try_cancel(answer, bar)",
            {"dtype": "gl.int32", "shape": "[4]"},
            DtypeError,
            "64-bit",
        ),
        ("clc.try_cancel(answer, bar)", {"shape": "[4]"}, ShapeError, "16 bytes"),
        ("clc.try_cancel(answer, bar)", {"shape": "[4, 2]"}, ShapeError, "index"),
        ("clc.try_cancel(p, bar)", {}, DtypeError, "not shared memory"),
        ("clc.try_cancel(answer, answer)", {}, ShapeError, "not one barrier"),
        ("clc.load_result(bar)", {}, ShapeError, "16 bytes"),
        ("clc.load_result(answer).program_id(3)", {}, ArgumentError, "0 to 2"),
        ("clc.load_result(answer).program_id(n)", {}, ArgumentError, "compile-time"),
    ],
)
def test_mistakes(body, changes, error, match):
    refuse(source(f"{body}  # HERE", **changes), error, match)


def test_targets_without_it():
    body = source("clc.try_cancel(answer, bar)  # HERE")
    if TRITON_VERSION < (3, 8):
        refuse(body, CapabilityError, "clc.try_cancel needs Triton >= 3.8")
    else:
        refuse(body, CapabilityError, "nvidia.clc .*sm_100", gpu(90))


@since(3, 8)
@pytest.mark.parametrize("target", ["nvidia:sm_100", "nvidia:sm_120"])
def test_instructions(target):
    import torch

    module = oracle.load(source(LOOP).replace("GLUON", "gluon_core"), oracle.OURS)
    bound, _ = bind(module.kernel, (MockTensor(torch.int32), 3), {})
    ptx = compile(bound, target=target).asm["ptx"]
    for wanted in (
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes",
        "clusterlaunchcontrol.query_cancel.is_canceled",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::x",
    ):
        assert wanted in ptx, wanted
    assert "expect_tx" not in ptx  # the kernel says how many bytes it expects
