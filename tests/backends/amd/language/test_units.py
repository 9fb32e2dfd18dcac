"""gl.amd: the same modules as upstream, and errors instead of aborts."""

from __future__ import annotations

import itertools
import sys

import pytest

import gluon_core
from gluon_core import language as gl
from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DtypeError,
    KernelWarning,
    LayoutError,
    NotInKernelError,
    ShapeError,
)
from gluon_core.testing import TRITON_VERSION
from tests.frontend.vendor_oracle import agree, before, parse, refuse, since

pytestmark = pytest.mark.once

SETUP = """
from GLUON.language.amd import cdna3, cdna4, rdna3, rdna4
L = gl.constexpr(gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0]))
TARGET = GPUTarget("hip", "gfx942", 64)
"""
DOT = (
    SETUP
    + """
ACC = gl.constexpr({acc})
@gluon.jit
def kernel():
    a = gl.full({a_shape}, 1.0, gl.float32, layout={a}).to({a_type})
    b = gl.full({b_shape}, 1.0, gl.float32, layout={b}).to({b_type})
    c = gl.full({c_shape}, 1.0, gl.float32, layout={c}).to({c_type})
    d = {unit}(a, b, c{rest})  # HERE
    gl.static_assert(d.type == c.type)
"""
)


def gpu(name):
    warp = 64 if name.startswith("gfx9") else 32
    return gluon_core._triton.GPUTarget("hip", name, warp)


def dot(unit, acc, dtype, acc_type, width, **changes):
    values = {
        "unit": unit,
        "acc": acc,
        "a": f"gl.DotOperandLayout(0, ACC, {width})",
        "b": f"gl.DotOperandLayout(1, ACC, {width})",
        "c": "ACC",
        "a_shape": [64, 128],
        "b_shape": [128, 64],
        "c_shape": [64, 64],
        "a_type": dtype,
        "b_type": dtype,
        "c_type": acc_type,
        "rest": "",
    }
    return DOT.format(**{**values, **changes})


def mfma(version=3, instr=(32, 32, 8), dtype="gl.float16", acc="gl.float32", width=4, **changes):
    bits = ", element_bitwidth=64" if acc == "gl.float64" else ""
    layout = f"gl.amd.AMDMFMALayout({version}, {list(instr)}, True, [2, 2]{bits})"
    return dot(
        **{
            "unit": "cdna3.mfma",
            "acc": layout,
            "dtype": dtype,
            "acc_type": acc,
            "width": width,
            **changes,
        }
    )


def wmma(version=1, dtype="gl.float16", acc="gl.float32", width=16, **changes):
    unit = {1: "gl.amd.rdna3.wmma", 2: "gl.amd.rdna4.wmma", 3: "gl.amd.gfx1250.wmma"}[version]
    depth = changes.pop("depth", 16)
    warps = "[2, 2]" if TRITON_VERSION < (3, 7) else "[[0, 1], [1, 0]]"
    layout = f"gl.amd.AMDWMMALayout({version}, True, {warps}, instr_shape=[16, 16, {depth}])"
    return dot(
        **{"unit": unit, "acc": layout, "dtype": dtype, "acc_type": acc, "width": width, **changes}
    )


# -- matrix units -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target, version, instr, dtype, acc, width",
    [
        ("gfx942", 3, (32, 32, 8), "gl.float16", "gl.float32", 4),
        ("gfx942", 3, (16, 16, 16), "gl.bfloat16", "gl.float32", 4),
        ("gfx942", 3, (16, 16, 16), "gl.float16", "gl.float32", 8),
        ("gfx942", 3, (16, 16, 4), "gl.float32", "gl.float32", 1),
        ("gfx942", 3, (16, 16, 4), "gl.float64", "gl.float64", 1),
        ("gfx942", 3, (32, 32, 16), "gl.int8", "gl.int32", 8),
        ("gfx942", 3, (16, 16, 32), "gl.float8e4b8", "gl.float32", 8),
        ("gfx950", 4, (32, 32, 16), "gl.float16", "gl.float32", 8),
        ("gfx950", 4, (16, 16, 32), "gl.bfloat16", "gl.float32", 8),
        ("gfx950", 4, (16, 16, 32), "gl.float8e5", "gl.float32", 8),
        ("gfx950", 4, (32, 32, 32), "gl.int8", "gl.int32", 16),
        ("gfx950", 3, (32, 32, 8), "gl.float16", "gl.float32", 4),
    ],
)
def test_mfma(target, version, instr, dtype, acc, width):
    agree(mfma(version, instr, dtype, acc, width), gpu(target))
    cdna4 = mfma(version, instr, dtype, acc, width, unit="cdna4.mfma")
    assert parse(cdna4, gpu(target)) == parse(mfma(version, instr, dtype, acc, width), gpu(target))


def test_mfma_of_tiles_smaller_than_the_instruction():
    agree(mfma(a_shape=[16, 4], b_shape=[4, 16], c_shape=[16, 16]))


def test_mfma_of_narrow_tiles():
    agree(mfma(instr=(64, 4, 64)))
    agree(mfma(instr=(4, 64, 64), dtype="gl.int8", acc="gl.int32").replace("True", "False"))


@pytest.mark.filterwarnings("ignore:fp8e:UserWarning")
@pytest.mark.parametrize("kinds", [("4b8", "4b8"), ("5b16", "4b8"), ("4b8", "5"), ("4nv", "5b16")])
def test_mfma_of_fnuz_fp8_multiplies_float16_without_them(kinds):
    of_a, of_b = (f"gl.float8e{kind}" for kind in kinds)
    with pytest.warns(
        KernelWarning, match="has fp8 of the OCP kind, and multiplies these as float16"
    ):
        agree(mfma(4, (16, 16, 32), of_a, width=8, b_type=of_b), gpu("gfx950"))


def test_mfma_of_two_kinds_of_fp8():
    agree(mfma(4, (16, 16, 32), "gl.float8e5", width=8, b_type="gl.float8e4nv"), gpu("gfx950"))


@since(3, 9)
@pytest.mark.parametrize("regclass", ["None", "'a'", "'v'"])
def test_register_class(regclass):
    agree(mfma(rest=f", cd_regclass={regclass}"))
    agree(mfma(rest=f", {regclass}"))


@since(3, 9)
def test_no_such_register_class():
    refuse(mfma(rest=", cd_regclass='vgpr'"), ArgumentError, "cd_regclass")


@before(3, 9)
def test_register_class_names_the_triton_it_needs():
    refuse(mfma(rest=", cd_regclass='a'"), CapabilityError, "cd_regclass.*Triton >= 3.9")


@pytest.mark.parametrize(
    "target, version, dtype, acc, width",
    [
        ("gfx1100", 1, "gl.float16", "gl.float32", 16),
        ("gfx1100", 1, "gl.float16", "gl.float16", 16),
        ("gfx1100", 1, "gl.int8", "gl.int32", 16),
        ("gfx1200", 2, "gl.float16", "gl.float32", 8),
        ("gfx1200", 2, "gl.bfloat16", "gl.float32", 8),
        ("gfx1200", 2, "gl.float8e5", "gl.float32", 8),
        ("gfx1201", 2, "gl.int8", "gl.int32", 8),
    ],
)
def test_wmma(target, version, dtype, acc, width):
    agree(wmma(version, dtype, acc, width), gpu(target))


@pytest.mark.parametrize(
    "dtype, acc, depth", [("gl.float16", "gl.float32", 32), ("gl.int8", "gl.int32", 64)]
)
def test_wmma_of_gfx1250(dtype, acc, depth):
    source = wmma(3, dtype, acc, 8, depth=depth)
    if dtype == "gl.int8" and TRITON_VERSION < (3, 7):
        refuse(source, CapabilityError, "of int8 needs Triton >= 3.7", gpu("gfx1250"))
    else:
        agree(source, gpu("gfx1250"))


@pytest.mark.parametrize(
    "changes, error, match",
    [
        ({"c_shape": [64, 32]}, ShapeError, "do not multiply"),
        ({"b_shape": [64, 64]}, ShapeError, "do not multiply"),
        ({"instr": (64, 4, 4)}, LayoutError, "instr_shape"),
        ({"instr": (4, 64, 64)}, LayoutError, "4x64 transposed"),
        ({"b_type": "gl.bfloat16"}, DtypeError, "b: both operands"),
        ({"c_type": "gl.float16"}, DtypeError, "acc: MFMA does not accumulate"),
        ({"dtype": "gl.int16", "acc": "gl.int32"}, DtypeError, "a: MFMA does not take"),
        ({"dtype": "gl.float64", "acc": "gl.float64", "instr": (16, 16, 16)}, LayoutError, "instr_shape"),
        ({"instr": (32, 32, 16)}, LayoutError, "instr_shape"),
        ({"instr": (16, 16, 8)}, LayoutError, "instr_shape"),
        ({"dtype": "gl.float32", "width": 1}, LayoutError, "instr_shape"),
        ({"dtype": "gl.float8e5", "instr": (32, 32, 16), "width": 8}, CapabilityError, "fp8_ocp"),
        ({"version": 4, "instr": (32, 32, 16)}, CapabilityError, "version"),
        ({"b": "gl.DotOperandLayout(1, ACC, 8)"}, LayoutError, "k_width"),
        ({"a": "gl.DotOperandLayout(1, ACC, 4)"}, LayoutError, "a: not the operand layout"),
        ({"a": "ACC"}, LayoutError, "a: not the operand layout"),
        ({"c": "L"}, LayoutError, "accumulator of MFMA"),
    ],
)  # fmt: skip
def test_mfma_errors(changes, error, match):
    refuse(mfma(**changes), error, match, gpu("gfx942"))


@pytest.mark.parametrize(
    "changes, error, match",
    [
        ({"version": 2, "width": 8}, CapabilityError, "amd.wmma_v2"),
        ({"c_type": "gl.int32"}, DtypeError, "acc"),
        ({"depth": 16, "c_type": "gl.float64"}, DtypeError, "acc"),
        ({"dtype": "gl.float32"}, DtypeError, "a: WMMA version 1"),
        ({"dtype": "gl.uint8", "acc": "gl.int32"}, DtypeError, "a: WMMA version 1"),
        ({"b_type": "gl.bfloat16"}, DtypeError, "b: both operands"),
        ({"unit": "cdna3.mfma"}, CapabilityError, "amd.mfma"),
    ],
)  # fmt: skip
def test_wmma_errors(changes, error, match):
    refuse(wmma(**changes), error, match, gpu("gfx1100"))


def test_wmma_wants_its_own_version():
    source = wmma(1).replace("gl.amd.rdna3", "gl.amd.rdna4")
    refuse(source, LayoutError, r"accumulator of this WMMA", gpu("gfx1200"))


def test_no_wmma_on_cdna():
    refuse(mfma(unit="gl.amd.rdna3.wmma"), CapabilityError, "amd.wmma.*gfx1100", gpu("gfx942"))


# -- scaled conversions -------------------------------------------------------------------------

UPCAST = (
    SETUP
    + """
WIDE = gl.constexpr(gl.BlockedLayout([1, 16], [8, 8], [4, 1], [1, 0]))
@gluon.jit
def kernel(p):
    rows = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    x = gl.load(p + rows[:, None] * 64 + columns[None, :])
    s8 = gl.full([32, 64], 127, gl.uint8, layout=L)
    s4 = gl.full([32, 128], 127, gl.uint8, layout=WIDE)
    {call}  # HERE
ARGS = (ptr({pointee}),)
"""
)


@since(3, 8)
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize(
    "pointee, call",
    [
        ("gl.float8e4nv", "y = cdna3.scaled_upcast(x, s8, gl.bfloat16)"),
        ("gl.float8e5", "y = cdna4.scaled_upcast(x, s8.to(gl.int8, bitcast=True), gl.float16)"),
        ("gl.uint8", "y = cdna3.scaled_upcast(x, s4, gl.bfloat16, axis=1)"),
        ("gl.int8", "y = cdna3.scaled_upcast(x, s4, gl.float16, -1)"),
    ],
)
def test_scaled_upcast(target, pointee, call):
    used = f"{call}\n    gl.store(q + gl.zeros(y.shape, gl.int32, y.type.layout), y.to(gl.float32))"
    source = UPCAST.format(call=used, pointee=pointee).replace("kernel(p)", "kernel(p, q)")
    source = source.replace(f"({pointee}),)", f"({pointee}), ptr(gl.float32))")
    text = agree(source, gpu(target))
    # The compiler of 3.8 multiplies by scales, and aborts on the bytes that they are made of.
    assert ("scale %" in text) and ("bf16, #" in text) >= (TRITON_VERSION < (3, 9))


@since(3, 8)
@pytest.mark.parametrize(
    "pointee, call, error, match",
    [
        ("gl.float8e5", "cdna3.scaled_upcast(x, s8, gl.float32)", DtypeError, "elem_type"),
        ("gl.float8e5", "cdna3.scaled_upcast(x, s4, gl.float16)", ShapeError, "scale"),
        ("gl.float8e5", "cdna3.scaled_upcast(x, x, gl.float16)", DtypeError, "scale"),
        ("gl.float16", "cdna3.scaled_upcast(x, s8, gl.float16)", DtypeError, "src"),
        ("gl.uint8", "cdna3.scaled_upcast(x, s4, gl.float16)", ArgumentError, "axis"),
        ("gl.uint8", "cdna3.scaled_upcast(x, s4, gl.float16, 2)", ShapeError, "axis"),
        ("gl.uint8", "cdna3.scaled_upcast(x, s4, gl.float16, 0)", ShapeError, "scale"),
        ("gl.uint8", "cdna3.scaled_upcast(x, gl.full([32, 128], 127, gl.uint8, layout=L), "
         "gl.float16, 1)", LayoutError, "scale"),
        ("gl.uint8", "cdna3.scaled_upcast(x, 127, gl.float16, 1)", DtypeError, "scale"),
    ],
)  # fmt: skip
def test_scaled_upcast_errors(pointee, call, error, match):
    refuse(UPCAST.format(call=call, pointee=pointee), error, match)


@before(3, 8)
def test_scaled_upcast_names_the_triton_it_needs():
    source = UPCAST.format(call="cdna3.scaled_upcast(x, s4, gl.float16, 1)", pointee="gl.uint8")
    refuse(source, CapabilityError, "gl.amd.cdna3.scaled_upcast needs Triton >= 3.8, found 3")


SCALES = UPCAST.replace("    {call}", """    F: gl.constexpr = {factor}
    M: gl.constexpr = cdna3.get_scaled_upcast_fp4_scale_layout(x, F, TYPE, {axis})
    s = gl.full([32, 128 // F] if {axis} else [64 // F, 64], 127, gl.uint8, layout=M)
    gl.store(p + gl.full(s.shape, 0, gl.int32, layout=M), s)""").replace(
    "WIDE =", "TYPE = gl.bfloat16\nWIDE ="
)  # fmt: skip


@since(3, 9)
@pytest.mark.parametrize("factor", [32, 16])
def test_layout_of_fp4_scales(factor):
    # Upstream cannot take the dtype itself under this name: it does not open the constexpr.
    source = SCALES.format(factor=factor, axis=1, pointee="gl.uint8")
    agree(source.replace("TYPE,", "gl.bfloat16,"))


@since(3, 9)
@pytest.mark.parametrize(
    "factor, axis, error, match",
    [
        (3, 1, ShapeError, "scale_factor"),
        (0, 1, ArgumentError, "scale_factor"),
        (32, 2, ShapeError, "axis"),
        (32, 0, LayoutError, "no layout of the scales"),
    ],
)
def test_layout_of_fp4_scales_errors(factor, axis, error, match):
    source = SCALES.format(factor=factor, axis=axis, pointee="gl.uint8")
    source = source.replace("  # HERE", "").replace(
        f"TYPE, {axis})", f"gl.bfloat16, {axis})  # HERE"
    )
    refuse(source, error, match)


FP4 = (
    SETUP.replace("[1, 8]", "[1, 4]")
    + """
@gluon.jit
def kernel(p, out):
    x = gl.load(p + gl.full([32, 64], 0, gl.int32, layout=L))
    y = gl.fp4_to_fp(x, gl.bfloat16, 1)  # HERE
    gl.store(out + gl.full([32, 128], 0, gl.int32, layout=y.type.layout), y)
ARGS = (ptr(gl.uint8), ptr(gl.bfloat16))
"""
)


@before(3, 7)
def test_fp4_to_bfloat16_ended_the_process_for_one_target():
    refuse(FP4, CapabilityError, r"fp4_to_fp of bf16 on amd:gfx942, but with Triton >= 3.7")
    refuse(FP4, CapabilityError, r"Unpack to float16", gpu("gfx942"))
    agree(FP4.replace("gfx942", "gfx90a"))
    agree(FP4.replace("gl.bfloat16", "gl.float16"))


# -- slices, stages, hints ----------------------------------------------------------------------

SLICE = (
    SETUP
    + """
@gluon.jit
def kernel(p):
    x = gl.full([64, 128], 1.0, gl.float32, layout=L)
    y = gl.amd.slice(x, {shape}, {offsets})  # HERE
    gl.store(gl.full(y.shape, 0, gl.int32, layout=L) + p, y)
ARGS = (ptr(gl.float32),)
"""
)
PARTS = [
    ([32, 64], [0, 0]),
    ([32, 64], [32, 64]),
    ([32, 128], [32, 0]),
    ([64, 64], [0, 64]),
    ([64, 128], [0, 0]),
    ([32, 64], [16, 0]),
    ([32, 64], [0, 32]),
    ([16, 64], [0, 0]),
    ([32, 32], [0, 0]),
]


@since(3, 8)
@pytest.mark.parametrize("shape, offsets", PARTS)
def test_slice(shape, offsets):
    """Either both make the same module, or upstream's verifier refuses what we refuse."""
    source = SLICE.format(shape=shape, offsets=offsets)
    whole = shape[0] % 32 == 0 == offsets[0] % 32 and shape[1] % 64 == 0 == offsets[1] % 64
    if whole:
        assert ("extract_slice" in agree(source)) == (
            shape != [64, 128] or TRITON_VERSION >= (3, 8)
        )
        return
    refuse(source, LayoutError, "threads that would hold them")
    with pytest.raises(RuntimeError):
        agree(source)


@since(3, 8)
@pytest.mark.parametrize(
    "shape, offsets, match",
    [
        ([64], [0], "rank"),
        ([32, 64], [48, 0], "leaves the tensor"),
        ([32, 256], [0, 0], "leaves the tensor"),
        ([32, 64], [-32, 0], "leaves the tensor"),
        ([32, 48], [0, 0], "power-of-two"),
    ],
)
def test_slice_errors(shape, offsets, match):
    refuse(SLICE.format(shape=shape, offsets=offsets), ShapeError, match)


@before(3, 8)
def test_slice_names_the_triton_it_needs():
    source = SLICE.format(shape=[32, 64], offsets=[0, 0])
    refuse(source, CapabilityError, "gl.amd.slice needs Triton >= 3.8")


STAGES = (
    SETUP
    + """
@gluon.jit
def kernel(p, n):
    for i in range(n):
        with gl.amd.warp_pipeline_stage("load", priority=1):
            x = gl.load(p)
        with gl.amd.warp_pipeline_stage("compute"):
            x += 1
        with gl.amd.warp_pipeline_stage({stage}):  # HERE
            gl.store(p, x)
ARGS = (ptr(gl.float32), 10)
"""
)


@since(3, 7)
@pytest.mark.parametrize("target", ["gfx942", "gfx1250"])
def test_warp_pipeline(target):
    assert agree(STAGES.format(stage=""), gpu(target)).count("warp_pipeline.border") == 3


@since(3, 7)
@pytest.mark.parametrize("stage", ["1", "priority=4", "priority='high'"])
def test_warp_pipeline_errors(stage):
    refuse(STAGES.format(stage=stage), ArgumentError, "label|priority")


@before(3, 7)
def test_warp_pipeline_names_the_triton_it_needs():
    with pytest.raises(CapabilityError, match="warp_pipeline_stage needs Triton >= 3.7"):
        parse(STAGES.format(stage=""))


HINT = (
    SETUP
    + """
@gluon.jit
def kernel():
    gl.amd.hint.sched_barrier({allow})  # HERE
"""
)


@since(3, 9)
@pytest.mark.parametrize("allow", ["", "None", "allow=None"])
def test_sched_barrier(allow):
    assert "sched.barrier" in agree(HINT.format(allow=allow))


@since(3, 9)
def test_classes_that_may_pass_a_sched_barrier():
    """Upstream's names for them are not there yet; ours are the bits that LLVM documents."""
    assert "mfma" in parse(HINT.format(allow="'mfma'"))
    both = parse(HINT.format(allow="('ds_read', 'valu')"))
    assert "ds_read" in both and "valu" in both
    refuse(HINT.format(allow="'mfna'"), ArgumentError, "Did you mean 'mfma'")
    refuse(HINT.format(allow="3"), ArgumentError, "allow")


# -- names --------------------------------------------------------------------------------------


def test_namespaces():
    import gluon_core.language.amd.cdna3 as by_path

    assert by_path is gl.amd.cdna3
    assert gl.amd.AMDMFMALayout is sys.modules["gluon_amd.layouts"].AMDMFMALayout
    shared = {name for name in dir(gl.amd.cdna3) if not name.startswith("_")}
    assert shared <= set(dir(gl.amd.cdna4)) and "mfma" in shared


def test_a_missing_package_is_reported():
    with pytest.raises(AttributeError, match="It has: AMDMFMALayout"):
        gl.amd.nothing  # noqa: B018


def test_calls_outside_kernels():
    with pytest.raises(NotInKernelError, match="gl.amd.cdna3.buffer_load"):
        gl.amd.cdna3.buffer_load(None, None)
    with pytest.raises(NotInKernelError, match="warp_pipeline_stage"):
        gl.amd.warp_pipeline_stage()


def test_every_builtin_is_documented():
    units = (gl.amd.cdna3, gl.amd.rdna3, gl.amd.rdna4, gl.amd.gfx1250, gl.nvidia.ampere)
    units += (gl.nvidia.ampere.async_copy, gl.nvidia.ampere.mbarrier)
    new = gl.amd.gfx1250
    units += (new.async_copy, new.mbarrier, new.tdm)
    units += (new.cluster,) if hasattr(new, "cluster") else ()
    for unit, name in itertools.chain.from_iterable(
        [(unit, name) for name in dir(unit) if not name.startswith("_")] for unit in units
    ):
        assert getattr(unit, name).__doc__, f"{unit.__name__}.{name}"
