"""Lowerings of `gl.portable` on AMD hardware."""

from __future__ import annotations

import re

import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core._triton import tl
from gluon_core.layouts import cost
from gluon_core.plugin.paths import load_path
from gluon_core.portable.requests import MmaRequest
from gluon_core.registry import load as plugins
from tests.backends.emu.assembly import MISCOUNTED
from tests.portable_kernels import check, compiled, selections

pytestmark = [pytest.mark.once, pytest.mark.sampled(8)]

BUFFER = {
    "async_copy": "buffer_load_through_registers",
    "load": "buffer_load",
    "store": "buffer_store",
}


@pytest.mark.parametrize(
    "target, dtype, shape, matrix",
    [
        ("gfx90a", "fp16", (64, 64, 32), "mfma"),
        ("gfx942", "fp16", (64, 64, 32), "mfma"),
        ("gfx942", "fp32", (64, 64, 32), "mfma"),
        ("gfx950", "i8", (64, 64, 64), "mfma"),
        ("gfx942", "fp16", (8, 64, 16), "fma"),
        ("gfx1100", "bf16", (64, 64, 32), "wmma"),
        ("gfx1200", "fp16", (64, 64, 32), "wmma"),
        ("gfx1100", "fp32", (64, 64, 32), "fma"),
        ("gfx1201", "fp8e4nv", (64, 64, 32), "wmma"),
        ("gfx1250", "fp16", (64, 64, 32), "wmma"),
        ("gfx1250", "fp32", (64, 64, 32), "wmma"),
        ("gfx1250", "fp8e5", (64, 64, 64), "wmma"),
    ],
)
def test_the_lowering_that_is_taken(target, dtype, shape, matrix):
    wanted = {**BUFFER, "mma": matrix}
    if target == "gfx950":
        wanted["async_copy"] = "buffer_load_to_lds"
    if target == "gfx1250":
        wanted["async_copy"] = "global_load_async_to_lds"
    assert selections(target, dtype, shape)[0] == wanted


@pytest.mark.parametrize("dtype, shape", [("bf16", (64, 64, 32)), ("i8", (64, 64, 64))])
def test_copies_pass_the_registers_where_16_bytes_fit(dtype, shape):
    assembly = compiled("gfx950", dtype, shape).asm["amdgcn"]
    assert re.search(r"buffer_load_dwordx4 .* lds", assembly)
    # Data without a known alignment goes through registers after all.
    assembly = compiled("gfx950", dtype, shape, aligned=False).asm["amdgcn"]
    assert "ds_write" in assembly and " lds" not in assembly
    assert " lds" not in compiled("gfx942", dtype, shape).asm["amdgcn"]


@pytest.mark.parametrize("dtype", ["fp16", "fp8e4nv"])
def test_asynchronous_copies_of_gfx1250(dtype):
    assembly = compiled("gfx1250", dtype, (64, 64, 64)).asm["amdgcn"]
    assert re.search(r"global_load_async_to_lds_b(128|64)", assembly)
    assert "s_wait_asynccnt 0x0" in assembly
    # Masked elements are zero, not the old contents of LDS.
    assert "ds_store_b" in assembly


def test_copies_of_gfx1250_that_are_not_aligned():
    """They go through registers after all."""
    assembly = compiled("gfx1250", aligned=False).asm["amdgcn"]
    assert "async_to_lds" not in assembly and "ds_store" in assembly


@pytest.mark.parametrize(
    "target, lowering, reason",
    [
        ("gfx950", "buffer_load_to_lds", "would not write 16 bytes each"),
        ("gfx1250", "global_load_async_to_lds", "would not copy 4 consecutive bytes"),
    ],
)
def test_copies_of_other_layouts_go_through_registers(target, lowering, reason):
    """Less per lane: a tile too small, of 4 bytes in every lane, or of one."""
    shape = (16, 16, 16) if target == "gfx950" else (16, 16, 32)
    taken, fragments = selections(target, "fp16", shape, 4 if target == "gfx950" else 16)
    assert taken["async_copy"] == "buffer_load_through_registers"
    (why,) = {why for s in fragments for low, why in s.rejected if low.name == lowering} - {
        f"fits, but {lowering} has priority 20 over 10"
    }
    assert reason in why


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "target, dtype, narrow",
    [
        ("gfx942", "fp16", "ds_read_u16"),
        ("gfx942", "i8", "ds_read_u8"),
        ("gfx90a", "bf16", "ds_read_u16"),
        ("gfx1100", "fp16", "ds_load_u16"),
        ("gfx1201", "fp16", "ds_load_u16"),
        ("gfx1250", "fp16", "ds_load_u16"),
        ("gfx950", "fp16", "ds_read_u16"),
    ],
)
def test_operands_are_read_from_lds_in_wide_pieces(target, dtype, narrow):
    assembly = compiled(target, dtype, (128, 128, 64)).asm["amdgcn"]
    assert narrow not in assembly and re.search(r"ds_(read|load)\w*_b(64|128)", assembly)


@pytest.mark.parametrize("target, dtype", [("gfx942", tl.float16), ("gfx1201", tl.float16)])
def test_b_is_read_from_lds_without_conflicts(target, dtype):
    resolved = plugins.registry().target(target)
    unit = "mfma" if resolved.has("amd.mfma") else "wmma"
    request = MmaRequest(resolved, 4, (3, 9), 128, 128, 64, dtype, dtype, tl.float32)
    layouts = load_path(f"gluon_amd.lower:{unit}_layouts")(request)
    bits = dtype.primitive_bitwidth
    assert cost.vector_elements(layouts.b, layouts.b_shared, [64, 128], bits) * bits >= 64
    banks = resolved.architecture.banks
    assert cost.bank_conflicts(layouts.b, layouts.b_shared, [64, 128], bits, banks) == 0


def test_the_reasons_name_the_hardware_and_the_operands():
    def reasons(*args):
        return {low.name: why for s in selections(*args)[1] for low, why in s.rejected}

    assert reasons("gfx942")["wmma"] == "needs amd.wmma, which amd:gfx942 lacks"
    assert "has no form for fp32 times fp32" in reasons("gfx1100", "fp32")["wmma"]
    assert "8x64x16 is smaller than one MFMA" in reasons("gfx942", "fp16", (8, 64, 16))["mfma"]


@gluon.jit
def far(x, y):
    layout: gl.constexpr = gl.portable.blocked_layout([256], gl.float32)
    offsets = gl.arange(0, 256, layout).to(gl.int64)
    gl.portable.store(y, offsets, gl.portable.load(x, offsets))


def test_64_bit_offsets_are_not_for_buffer_addressing():
    compiled = gluon.compile(far, target="gfx942", signature={"x": "*fp32", "y": "*fp32"})
    assert "buffer_load" not in compiled.asm["amdgcn"] and "global_load" in compiled.asm["amdgcn"]


INSTRUCTIONS = [
    ("gfx90a", "fp16", (64, 64, 32), "v_mfma_f32_32x32x8"),
    ("gfx942", "fp16", (64, 64, 32), "v_mfma_f32_32x32x8"),
    ("gfx942", "fp16", (32, 32, 32), "v_mfma_f32_16x16x16"),
    ("gfx942", "i8", (64, 64, 32), "v_mfma_i32_32x32x16_i8"),
    ("gfx950", "bf16", (64, 64, 32), "v_mfma_f32_32x32x16_bf16"),
    ("gfx950", "i8", (64, 64, 64), "v_mfma_i32_32x32x32_i8"),
    ("gfx942", "fp32", (64, 64, 32), "v_mfma_f32_32x32x2"),
    ("gfx942", "fp8e4b8", (64, 64, 32), "v_mfma_f32_32x32x16_fp8_fp8"),
    ("gfx950", "fp8e4nv", (64, 64, 32), "v_mfma_f32_32x32x16_fp8_fp8"),
    ("gfx1100", "fp16", (64, 64, 32), "v_wmma_f32_16x16x16_f16"),
    ("gfx1200", "bf16", (64, 64, 32), "v_wmma_f32_16x16x16_bf16"),
    ("gfx1201", "fp8e4nv", (64, 64, 32), "v_wmma_f32_16x16x16_fp8_fp8"),
    ("gfx1250", "bf16", (64, 64, 32), "v_wmma_f32_16x16x32_bf16"),
    ("gfx1250", "fp32", (64, 64, 32), "v_wmma_f32_16x16x4_f32"),
    ("gfx1250", "fp8e5", (64, 64, 64), "v_wmma_f32_16x16x64_bf8_bf8"),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("target, dtype, shape, instruction", INSTRUCTIONS)
def test_the_instructions_are_in_the_assembly(target, dtype, shape, instruction):
    assembly = compiled(target, dtype, shape).asm["amdgcn"]
    assert instruction in assembly
    assert "buffer_load" in assembly and "buffer_store" in assembly


@pytest.mark.parametrize("dtype", [tl.int8])
def test_int8_on_gfx1250_needs_a_newer_triton(dtype):
    target = plugins.registry().target("gfx1250")
    accepts = load_path("gluon_amd.lower:wmma_accepts")
    for version, wanted in (((3, 6), False), ((3, 7), True)):
        request = MmaRequest(target, 4, version, 64, 64, 64, dtype, dtype, tl.int32)
        answer = accepts(request)
        assert (answer is True) == wanted and (wanted or "needs Triton >= 3.7" in answer)


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1200", "gfx1250"])
@pytest.mark.parametrize("m, n, num_warps", [(64, 64, 4), (16, 16, 4), (128, 256, 8), (256, 16, 1)])
@pytest.mark.parametrize("dtype", [tl.float16, tl.int8])
def test_the_layouts_fit_tile_and_warps(target, m, n, num_warps, dtype):
    resolved = plugins.registry().target(target)
    unit = "mfma" if resolved.has("amd.mfma") else "wmma"
    accumulator = tl.int32 if dtype == tl.int8 else tl.float32
    request = MmaRequest(resolved, num_warps, (3, 9), m, n, 128, dtype, dtype, accumulator)
    assert load_path(f"gluon_amd.lower:{unit}_accepts")(request) is True
    layouts = load_path(f"gluon_amd.lower:{unit}_layouts")(request)
    dims = layouts.accumulator.to_linear([m, n]).in_dims
    assert dims["lane"] == resolved.warp_size and dims["warp"] == num_warps
    for operand, shape in ((layouts.a, [m, 128]), (layouts.b, [128, n])):
        assert operand.to_linear(shape).in_dims["lane"] == resolved.warp_size


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "target, dtype, shape, num_warps",
    [
        ("gfx942", "fp16", (64, 64, 32), 4),
        ("gfx942", "fp32", (16, 16, 16), 1),
        ("gfx950", "i8", (32, 32, 64), 2),
        ("gfx1100", "fp16", (32, 32, 16), 4),
        ("gfx1200", "fp16", (16, 32, 32), 2),
        ("gfx1250", "fp16", (64, 64, 32), 4),
        ("gfx1250", "fp32", (32, 32, 32), 4),
        ("gfx942", "i8", (64, 64, 32), 4),
        *((*row[:3], 4) for row in INSTRUCTIONS if row[:2] != ("gfx1250", "i8")),
    ],
)
def test_results_agree_with_numpy(on, target, dtype, shape, num_warps, request):
    if on(target) == "emu:gfx1250" and dtype in ("fp32", "fp8e5"):
        request.applymarker(MISCOUNTED)
    check(on(target), dtype, shape, num_warps)
