"""The mistakes that kernels for AMD make most: class, rule and the kernel's line of each error."""

from __future__ import annotations

import pytest

from gluon_core import _triton
from gluon_core.errors import DtypeError, LayoutError, LimitError
from tests.frontend.vendor_oracle import parse, refuse
from tests.tables import mistakes

pytestmark = pytest.mark.once

HEAD = """\
from GLUON.language.amd import cdna3
L = gl.constexpr(gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0]))
WAVE32 = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
PADDED = gl.constexpr(gl.PaddedSharedLayout.with_identity_for([[64, 8]], [32, 64], [1, 0]))
ARGS = (ptr(gl.float16), 7)
"""
OFFSETS = """
@gluon.jit
def kernel(p, n):
    rows = gl.arange(0, 32, gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, gl.SliceLayout(0, L))
    offsets = rows[:, None] * n + columns[None, :]
    {}  # HERE
"""
TDM = """
from GLUON.language.amd.gfx1250 import tdm
@gluon.jit
def kernel(p, n):
    {}  # HERE
"""
MFMA = """
ACC = gl.constexpr(gl.amd.AMDMFMALayout({}, {}, True, [2, 2]))
@gluon.jit
def kernel(p, n):
    a = gl.full([64, 64], 1, {}, gl.DotOperandLayout(0, ACC, 4))
    b = gl.full([64, 64], 1, {}, gl.DotOperandLayout(1, ACC, 4))
    c = gl.zeros([64, 64], gl.float32, ACC)
    cdna3.mfma(a, b, c)  # HERE
"""
LDS = """
@gluon.jit
def kernel(p, n):
    x = gl.allocate_shared_memory(gl.float16, [{}, 128, 64], PLAIN)  # HERE
"""
LAYOUT = """
@gluon.jit
def kernel(p, n):
    x = gl.full([32, 64], 1, gl.int32, {})  # HERE
"""


def gpu(name):
    lanes = 64 if name in ("gfx90a", "gfx942", "gfx950") else 32
    return _triton.GPUTarget("hip", name, lanes)


@pytest.mark.parametrize("kind", ["int64", "int16", "float32"])
@pytest.mark.parametrize("call", ["load(p, {})", "store(x, p, {})"])
def test_offsets_have_32_bits(call, kind):
    call = "cdna3.buffer_" + call.format(f"offsets.to(gl.{kind})")
    values = "    x = gl.zeros([32, 64], gl.float16, L)\n    offsets ="
    source = HEAD + OFFSETS.format(call).replace("    offsets =", values)
    refuse(
        source, DtypeError, r"offsets: buffer offsets have 32 bits; expected int32", gpu("gfx942")
    )


@pytest.mark.parametrize("target", ["gfx942", "gfx1201"])
def test_the_base_is_one_pointer(target):
    source = HEAD + OFFSETS.format("cdna3.buffer_load(p + offsets, offsets)")
    if target == "gfx1201":
        source = source.replace(", L)", ", WAVE32)")
    refuse(source, DtypeError, "ptr: must be a scalar", gpu(target))


@pytest.mark.parametrize(
    "target, version, instr, dtype, match",
    [
        # CDNA3's instructions are half as deep as those that CDNA4 adds.
        (
            "gfx942",
            3,
            [32, 32, 16],
            "gl.float16",
            r"instr_shape: MFMA version 3 .* expected \[32, 32, 8\]",
        ),
        ("gfx90a", 2, [16, 16, 32], "gl.float16", r"instr_shape: MFMA version 2 .* \[16, 16, 16\]"),
        (
            "gfx950",
            4,
            [32, 32, 32],
            "gl.bfloat16",
            r"instr_shape: MFMA version 4 .* expected \[32, 32, 16\]",
        ),
    ],
)
def test_an_mfma_that_the_target_lacks(target, version, instr, dtype, match):
    source = HEAD + MFMA.format(version, instr, dtype, dtype)
    refuse(source, LayoutError, match, gpu(target))


@pytest.mark.parametrize("target", ["gfx1100", "gfx1201", "gfx1250"])
def test_a_layout_of_64_lanes_where_warps_have_32(target):
    refuse(HEAD + LAYOUT.format("L"), LayoutError, "32 threads per warp", gpu(target))
    parse(HEAD + LAYOUT.format("WAVE32").replace("# HERE", ""), gpu(target))


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
def test_a_layout_of_32_lanes_where_warps_have_64(target):
    refuse(HEAD + LAYOUT.format("WAVE32"), LayoutError, "64 threads per warp", gpu(target))
    parse(HEAD + LAYOUT.format("L").replace("# HERE", ""), gpu(target))


@pytest.mark.parametrize(
    "target, kib", [("gfx942", 64), ("gfx950", 160), ("gfx1201", 64), ("gfx1250", 320)]
)
def test_more_lds_than_there_is(target, kib):
    parse(HEAD + LDS.format(kib // 16), gpu(target))
    match = f"(?s)shared memory.*{kib * 1024}"
    refuse(HEAD + LDS.format(kib // 16 + 1), LimitError, match, gpu(target))


@mistakes("""
error | match | call
ArgumentError | strides: TDM reads rows.*expected 1 as the last stride | tdm.make_tensor_descriptor(p, [n, n], [1, 128], [32, 64], PADDED)
ArgumentError | strides: TDM reads rows.*expected 1 as the last stride | tdm.make_tensor_descriptor(p, [n, n], [n, 2], [32, 64], PADDED)
ShapeError | strides | tdm.make_tensor_descriptor(p, [n, n], [1], [32, 64], PADDED)
ArgumentError/DtypeError | strides | tdm.make_tensor_descriptor(p, [n, n], [n, 1.5], [32, 64], PADDED)
""")
def test_strides_of_tdm(call, error, match):
    refuse(HEAD + TDM.format(call), error, match, gpu("gfx1250"))


@pytest.mark.parametrize(
    "pads, match",
    [
        ("[[64, 8], [512, 16]]", "one interval of padding"),
        ("[[64, 1]]", r"the padding is not one that TDM has.*\(1 to 128 dwords\)"),
        ("[[1024, 8]]", r"the interval is not one that TDM has.*\(2 to 256 dwords\)"),
        ("[[64, 512]]", r"the padding is not one that TDM has.*\(1 to 128 dwords\)"),
    ],
)
def test_padding_of_tdm(pads, match):
    layout = f"gl.PaddedSharedLayout.with_identity_for({pads}, [32, 64], [1, 0])"
    call = f"tdm.make_tensor_descriptor(p, [n, n], [n, 1], [32, 64], {layout})"
    refuse(HEAD + TDM.format(call), LayoutError, f"layout: .*{match}", gpu("gfx1250"))
