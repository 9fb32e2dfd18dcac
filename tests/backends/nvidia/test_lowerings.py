"""Lowerings of `gl.portable` on NVIDIA hardware."""

from __future__ import annotations

import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core._triton import tl
from gluon_core.errors import CapabilityError
from gluon_core.plugin.paths import load_path
from gluon_core.portable.requests import MmaRequest
from gluon_core.registry import load as plugins
from tests.portable_kernels import (
    check,
    compiled,
    selections,
    tiles_compiled,
    tiles_selections,
)

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]

TENSOR_CORES = {
    "async_copy": "cp.async",
    "mma": "mma.sync",
    "load": "global_load",
    "store": "global_store",
}
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
    assert (
        "8x64x16 is smaller than one mma.sync" in reasons("sm_80", "fp16", (8, 64, 16))["mma.sync"]
    )
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
    # A float32 is as wide as the narrowest copy, wherever it is.
    assert "cp.async.ca" in compiled("sm_80", "fp32", aligned=False).asm["ptx"]


@gluon.jit(layouts="auto")
def bytes_times_bytes(a, b, c, K, N: gl.constexpr):
    row, column = gl.arange(0, 64), gl.arange(0, N)
    product = gl.zeros([64, N], gl.int32)
    for start in range(0, K, 64):
        step = start + gl.arange(0, 64)
        x = gl.load(a + row[:, None] * K + step[None, :])
        y = gl.load(b + column[None, :] * K + step[:, None])
        product = gl.portable.mma(x, y, product)
    gl.store(c + row[:, None] * N + column[None, :], product)


@pytest.mark.sampled(1)
def test_products_of_bytes_have_the_columns_that_triton_lowers():
    """PTX has instructions of 256 columns for bytes, too; Triton ends with an assertion of its own."""
    signature = {"a": "*i8", "b": "*i8", "c": "*i32", "K": "i32"}
    ptx = gluon.compile(
        bytes_times_bytes, "sm_90", signature=signature, constexprs={"N": 256},
        attrs=dict.fromkeys(signature, 16), num_warps=4, num_stages=3,
    ).asm["ptx"]  # fmt: skip
    assert "m64n128k32.s32.s8.s8" in ptx and "m64n256k32" not in ptx


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
def test_the_simulator_agrees_with_numpy(target, dtype, shape, num_warps):
    check(f"sim:{target}", dtype, shape, num_warps)


# -- tiles and units that read shared memory on their own ----------------------------------------

WGMMA = {"tile_copy": "tma", "mma": "wgmma", "tile_store": "tma_store"}
TCGEN05 = {**WGMMA, "mma": "tcgen05"}
MMA_SYNC = {**WGMMA, "mma": "mma.sync"}
MASKED = {
    "tile_copy": "masked_copies",
    "async_copy": "cp.async",
    "mma": "mma.sync",
    "tile_store": "masked_store",
    "store": "global_store",
}


@pytest.mark.parametrize(
    "target, dtype, num_warps, constants, expected",
    [
        ("sm_90", "fp16", 4, {}, WGMMA),
        ("sm_90", "bf16", 8, {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64}, WGMMA),
        ("sm_90", "fp8e4nv", 4, {"B_TRANSPOSED": True}, WGMMA),
        ("sm_90", "i8", 4, {"B_TRANSPOSED": True}, WGMMA),
        ("sm_90", "fp32", 4, {"B_TRANSPOSED": True, "PRECISION": "tf32"}, WGMMA),
        ("sm_100", "fp16", 4, {"BLOCK_M": 128}, TCGEN05),
        ("sm_100", "fp16", 8, {"BLOCK_M": 256}, TCGEN05),
        # Half of the lanes hold the right half of a tile of 64 rows.
        (
            "sm_100",
            "fp8e5",
            4,
            {},
            {**TCGEN05, "tile_store": "masked_store", "store": "global_store"},
        ),
        ("sm_80", "fp16", 4, {}, MASKED),
        ("sm_120", "fp16", 4, {}, MMA_SYNC),
        ("sm_90", "fp16", 2, {}, MMA_SYNC),
        ("sm_90", "fp16", 4, {"BLOCK_M": 32}, MMA_SYNC),
        # Its layouts are not those that TMA writes.
        ("sm_90", "fp32", 4, {}, {**MASKED, "mma": "fma"}),
    ],
)
def test_the_way_that_tiles_take(target, dtype, num_warps, constants, expected):
    taken, record = tiles_selections(target, dtype, num_warps, **constants)
    # A buffer for stores alone takes its own layout, which TMA writes.
    assert {**taken, "tile_copy": expected["tile_copy"]} == expected
    assert (record[0].op, record[0].chosen.name) == ("tile_copy", expected["tile_copy"])


@pytest.mark.parametrize(
    "unit, target, options, reason",
    [
        ("wgmma", "sm_80", {}, "needs nvidia.wgmma, which nvidia:sm_80 lacks"),
        ("wgmma", "sm_90", {"num_warps": 2}, "groups of 4 warps, and there are 2"),
        ("wgmma", "sm_90", {"m": 32}, "less than one wgmma each, 64x8x16"),
        ("wgmma", "sm_90", {"k": 8}, "less than one wgmma each, 64x8x16"),
        ("wgmma", "sm_90", {"num_warps": 64, "n": 64}, "64 warps less than one wgmma each"),
        ("wgmma", "sm_90", {"dtype": tl.int8, "acc": tl.int32}, "int8 along K only"),
        ("wgmma", "sm_90", {"dtype": tl.float32}, "rounds fp32 to tf32"),
        ("wgmma", "sm_90", {"acc": tl.float64}, "does not accumulate fp16 in fp64"),
        ("wgmma", "sm_90", {"shared": False}, "the operands are in registers"),
        ("tcgen05", "sm_100", {"m": 32}, "32x64x32 is smaller than one tcgen05.mma"),
        ("tcgen05", "sm_100", {"num_warps": 2}, "groups of 4 warps reach tensor memory"),
        ("tcgen05", "sm_100", {"m": 512, "n": 256}, "takes 1024 columns of tensor memory"),
        ("tcgen05", "sm_100", {"acc": tl.float16}, "are fp32 here, not fp16"),
        ("tcgen05", "sm_100", {"dtype": tl.int8, "acc": tl.int32}, "no form for int8 times int8"),
    ],
)
def test_why_a_unit_is_not_taken(unit, target, options, reason):
    from gluon_core.portable.selection import select

    resolved = plugins.registry().target(target)
    values = {"m": 64, "n": 64, "k": 32, "num_warps": 4, "dtype": tl.float16, "acc": tl.float32}
    values.update({"shared": True, **options})
    request = MmaRequest(
        resolved,
        values["num_warps"],
        (3, 9),
        values["m"],
        values["n"],
        values["k"],
        values["dtype"],
        values["dtype"],
        values["acc"],
        shared=values["shared"],
    )
    try:
        rejected = select("mma", request, resolved, (3, 9)).rejected
    except CapabilityError as error:
        assert reason in str(error)
        return
    assert reason in {low.name: why for low, why in rejected}[unit]


def test_tiles_in_the_ptx():
    large = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}
    hopper = tiles_compiled("sm_90", num_warps=8, **large)
    ptx = hopper.asm["ptx"]
    assert "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16" in ptx
    assert "wgmma.wait_group.sync.aligned 1" in ptx
    assert "cp.async.bulk.tensor.2d.shared::" in ptx
    assert "cp.async.bulk.tensor.2d.global.shared::cta" in ptx
    mix = hopper.report().instruction_mix
    assert mix["HGMMA"] and mix["UTMALDG"] and mix["UTMASTG"]
    assert hopper.report().spills == 0
    blackwell = tiles_compiled("sm_100", num_warps=4, **large)
    assert "tcgen05.mma" in blackwell.asm["ptx"] and "tcgen05.ld" in blackwell.asm["ptx"]
    assert blackwell.report().spills == 0
    ampere = tiles_compiled("sm_80", **large).asm["ptx"]
    assert "mma.sync" in ampere and "cp.async.cg.shared.global" in ampere


def test_wgmma_is_not_serialized(tmp_path):
    """ptxas says so where it must wait after each multiplication."""
    import subprocess
    from pathlib import Path

    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    tool = next((t for t in (tools / "ptxas-blackwell", tools / "ptxas") if t.exists()), None)
    if tool is None:
        pytest.skip("this Triton ships no ptxas")
    ptx = tmp_path / "kernel.ptx"
    ptx.write_text(tiles_compiled("sm_90", num_warps=8, BLOCK_M=128, BLOCK_K=64).asm["ptx"])
    command = [str(tool), "-v", "-arch=sm_90a", str(ptx), "-o", str(tmp_path / "x")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0 and "Used" in result.stderr
    assert "C7510" not in result.stderr and "serialized" not in result.stderr
