"""What NVIDIA hardware does with `gl.portable`."""

from __future__ import annotations

import pytest

from gluon_core import plugins
from gluon_core._triton import tl
from gluon_core.backend import load_path
from gluon_core.portable import MmaRequest
from tests.portable_kernels import check_on_simulator, compiled, selections

TENSOR_CORES = {"async_copy": "cp.async", "mma": "mma.sync", "load": "global_load", "store": "global_store"}
WITHOUT = {**TENSOR_CORES, "async_copy": "through_registers", "mma": "fma"}


@pytest.mark.parametrize(
    "target, dtype, shape, expected",
    [
        ("sm_80", "fp16", (64, 64, 32), TENSOR_CORES),
        ("sm_90", "bf16", (64, 64, 32), TENSOR_CORES),
        ("sm_100", "i8", (64, 64, 32), TENSOR_CORES),
        ("sm_120", "fp16", (128, 32, 64), TENSOR_CORES),
        ("sm_89", "fp8e4nv", (64, 64, 32), TENSOR_CORES),
        ("sm_75", "fp16", (64, 64, 32), WITHOUT),
        ("sm_80", "fp32", (64, 64, 32), {**TENSOR_CORES, "mma": "fma"}),
        ("sm_80", "fp16", (8, 64, 16), {**TENSOR_CORES, "mma": "fma"}),
    ],
)
def test_the_lowering_that_is_taken(target, dtype, shape, expected):
    assert selections(target, dtype, shape)[0] == expected


def test_the_reasons_name_the_hardware_and_the_operands():
    def reasons(*args):
        return {low.name: why for s in selections(*args)[1] for low, why in s.rejected}

    assert reasons("sm_75")["cp.async"] == "needs nvidia.cp_async, which nvidia:sm_75 lacks"
    assert "rounds fp32 to tf32" in reasons("sm_80", "fp32")["mma.sync"]
    assert reasons("sm_80", "fp8e5")["mma.sync"].startswith("fp8e5 needs nvidia.fp8")
    assert "8x64x16 is smaller than one mma.sync" in reasons("sm_80", "fp16", (8, 64, 16))["mma.sync"]
    # 16 elements of 2 bytes over 128 threads: nobody has two neighbours to copy.
    small = reasons("sm_80", "fp16", (16, 16, 4))
    assert "copies 2 contiguous bytes, cp.async needs 4" in small["cp.async"]


def test_the_instructions_are_in_the_ptx():
    ptx = compiled("sm_80").asm["ptx"]
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in ptx
    assert "cp.async.cg.shared.global" in ptx and "cp.async.wait_group" in ptx
    assert "ldmatrix.sync.aligned.m8n8.x4" in ptx
    assert "mma.sync" not in compiled("sm_75").asm["ptx"]
    assert "m16n8k32.row.col.f32.e4m3.e4m3.f32" in compiled("sm_89", "fp8e4nv").asm["ptx"]


def test_a_copy_that_only_the_compiler_sees_is_too_narrow_goes_through_registers():
    # Without attributes no address or limit is known to be even.
    ptx = compiled("sm_80", aligned=False).asm["ptx"]
    assert "cp.async.ca" not in ptx and "cp.async.cg" not in ptx
    assert "mma.sync" in ptx and "st.shared" in ptx
    # A float32 is as wide as the narrowest copy, wherever it lies.
    assert "cp.async.ca" in compiled("sm_80", "fp32", aligned=False).asm["ptx"]


@pytest.mark.parametrize("m, n, num_warps", [(64, 64, 4), (16, 8, 4), (128, 256, 8), (256, 16, 1)])
@pytest.mark.parametrize("dtype, width", [(tl.float16, 2), (tl.int8, 4), (tl.float32, 1)])
def test_the_layouts_fit_tile_and_warps(m, n, num_warps, dtype, width):
    target = plugins.registry().target("sm_80")
    accumulator = tl.int32 if dtype == tl.int8 else tl.float32
    request = MmaRequest(
        target, num_warps, (3, 9), m, n, 64, dtype, dtype, accumulator, input_precision="tf32"
    )
    assert load_path("gluon_nvidia.lower:mma_accepts")(request) is True
    layouts = load_path("gluon_nvidia.lower:mma_layouts")(request)
    dims = layouts.accumulator.to_linear([m, n]).in_dims
    assert dims["lane"] == 32 and dims["warp"] == num_warps
    assert (layouts.a.k_width, layouts.b.k_width) == (width, width)
    assert layouts.a.to_linear([m, 64]).in_dims["lane"] == 32


@pytest.mark.parametrize(
    "target, dtype, shape, num_warps",
    [
        ("sm_75", "fp16", (32, 32, 16), 4),
        ("sm_80", "fp16", (64, 64, 32), 4),
        ("sm_80", "i8", (32, 16, 32), 2),
        ("sm_90", "fp32", (16, 16, 16), 1),
        ("sm_80", "fp16", (16, 16, 4), 4),
    ],
)
def test_the_simulator_agrees_with_numpy(monkeypatch, target, dtype, shape, num_warps):
    check_on_simulator(monkeypatch, target, dtype, shape, num_warps)
