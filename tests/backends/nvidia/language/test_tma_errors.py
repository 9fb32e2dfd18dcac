"""gl.nvidia.*.tma: errors under the kernel's line instead of aborts."""

from __future__ import annotations

import re

import pytest

import gluon_core
from gluon_core.errors import CapabilityError, DtypeError, LayoutError, ShapeError
from gluon_core.testing import TRITON_VERSION
from tests.backends.nvidia.language.tma_sources import (
    IM2COL,
    PLAIN,
    ROW,
    making,
    using,
)
from tests.frontend.vendor_oracle import parse, refuse, since
from tests.tables import mistakes

BUFFER = r"s = gl.allocate_shared_memory(\1); load(desc, [0, 0], bar, s)  # HERE"


@pytest.mark.once
@pytest.mark.sampled(2)
@mistakes("""
error | match | body
DtypeError | not a descriptor | load(p, [0, 0], bar, smem)  # HERE
ShapeError | needs one for each dimension | load(desc, [0], bar, smem)  # HERE
ShapeError | needs one for each dimension | load(desc, n, bar, smem)  # HERE
DtypeError | must be int32 .PTX 9.7 | load(desc, [0, n.to(gl.int64)], bar, smem)  # HERE
DtypeError | must be int32 | load(desc, [0, n.to(gl.int16)], bar, smem)  # HERE
DtypeError | must be int32 | load(desc, [0, 1.5], bar, smem)  # HERE
ArgumentError | out of range | load(desc, [0, 2**31], bar, smem)  # HERE
ArgumentError | coord: .*multiple of 8 x fp16.*got 4 | load(desc, [0, 4], bar, smem)  # HERE
ArgumentError | coord: .*16 bytes, got -1 | store(desc, [0, -1], smem)  # HERE
ShapeError | must be scalars | load(desc, [0, x], bar, smem)  # HERE
DtypeError | a barrier is a 64-bit integer | load(desc, [0, 0], smem, smem)  # HERE
DtypeError | must be boolean | load(desc, [0, 0], bar, smem, n)  # HERE
DtypeError | not shared memory | load(desc, [0, 0], bar, p)  # HERE
ArgumentError | compile-time boolean | load(desc, [0, 0], bar, smem, multicast=n)  # HERE
LayoutError | not the desc | buffer(gl.float16, [64, 64], gl.NVMMASharedLayout(64, 16, 2))  # HERE
LayoutError | not the | buffer(gl.float16, [64, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))  # HERE
ShapeError | not that of the descriptor's box | buffer(gl.float16, [32, 64], F16)  # HERE
ShapeError | not that of the descriptor's box | buffer(gl.float16, [2, 64, 64], F16)  # HERE
DtypeError | the elements are not the desc | buffer(gl.float32, [64, 64], F16)  # HERE
LayoutError | not the descriptor's | load(desc, [0, 0], bar, smem.permute([1, 0]))  # HERE
DtypeError | the elements are not the descriptor's | store(desc, [0, 0], bar)  # HERE
ArgumentError | compile-time integer | tma.store_wait(n)  # HERE
ArgumentError | at least 0|out of range | tma.store_wait(-1)  # HERE
DtypeError | not a descriptor | tma.async_atomic_add(p, [0, 0], smem)  # HERE
""")
def test_operands_that_do_not_fit(body, error, match):
    body = re.sub(r"buffer\((.*)\)  # HERE", BUFFER, body)
    refuse(using(body), error, match)


@pytest.mark.once
@mistakes("""
error | match | body
ShapeError | a scalar has no layout | btma.async_gather(desc, n, 0, bar, rows)
DtypeError | 32-bit integers | btma.async_gather(desc, x.to(gl.int64), 0, bar, rows)
ShapeError | at least 8 rows | btma.async_gather(desc, gl.arange(0, 4, ROWS), 0, bar, rows)
LayoutError | a thread must hold 4 consecutive rows | btma.async_gather(desc, gl.arange(0, 32, gl.BlockedLayout([1], [32], [4], [0])), 0, bar, rows)
LayoutError | threads of a warp must hold the same rows | btma.async_gather(desc, gl.arange(0, 512, gl.BlockedLayout([4], [32], [4], [0])), 0, bar, rows)
DtypeError | must be int32 | btma.async_gather(desc, x, n.to(gl.int64), bar, rows)
ShapeError | not .rows, columns. | btma.async_gather(desc, x, 0, bar, smem)
ShapeError | not .rows, columns. | btma.async_scatter(desc, x, 0, smem)
""")
def test_rows_that_do_not_fit(body, error, match):
    refuse(using(body + "  # HERE", ROW, 100), error, match)


@pytest.mark.once
def test_rows_of_a_box_of_several():
    refuse(
        using("btma.async_gather(desc, x, 0, bar, rows)  # HERE", PLAIN, 100), ShapeError, "one row"
    )
    few = "describe(gl.float16, [64, 64], [1, 8], gl.constexpr(gl.NVMMASharedLayout(0, 16, 2)))"
    refuse(
        using("btma.async_gather(desc, x, 0, bar, rows)  # HERE", few, 100),
        ShapeError,
        "too few columns",
    )


@pytest.mark.once
@mistakes("""
error | match | arguments
DtypeError | not a scalar pointer | n, [m, n], [n, 1], [64, 64], F16
ShapeError | contiguous | p, [m, n], [n, n], [64, 64], F16
ShapeError | contiguous | p, [m, n], [n, 2], [64, 64], F16
ShapeError | needs one for each dimension | p, [m, n], [1], [64, 64], F16
ShapeError | needs one for each dimension | p, [m, n], [n, 1], [64], F16
ShapeError | not a sequence | p, m, [n, 1], [64, 64], F16
ShapeError | 1 to 5 dimensions | p, [m] * 6, [n] * 5 + [1], [1] * 5 + [64], F16
ShapeError | power-of-two | p, [m, n], [n, 1], [48, 64], F16
ShapeError | multiple of 16 bytes | p, [m, n], [n, 1], [64, 4], gl.NVMMASharedLayout(0, 16, 2)
LayoutError | a different size | p, [m, n], [n, 1], [64, 64], gl.NVMMASharedLayout(128, 32, 2)
LayoutError | rank | p, [m, n], [n, 1], [64, 64], FLAT
LayoutError | its own layouts | p, [m, n], [n, 1], [64, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
ShapeError | an illegal extent | p, [0, n], [n, 1], [64, 64], F16
ShapeError | an illegal extent | p, [2**31, n], [n, 1], [64, 64], F16
ShapeError | an illegal stride.* | p, [m, n], [12, 1], [64, 64], F16
DtypeError | must be integers | p, [m, n], [1.5, 1], [64, 64], F16
ArgumentError | unsupported padding | p, [m, n], [n, 1], [64, 64], F16, 'one'
ShapeError | compile-time | p, [m, n], [n, 1], [64, n], F16
ArgumentError | only floats | p.to(gl.pointer_type(gl.int16)), [m, n], [n, 1], [64, 64], F16, 'nan'
DtypeError | does not copy such elements | p.to(gl.pointer_type(gl.int1)), [m, n], [n, 1], [64, 64], F16
LayoutError | blocks are not those of the cluster | p, [m, n], [n, 1], [64, 64], gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[1, 0]])
""")
def test_descriptors_that_cannot_be(arguments, error, match):
    refuse(making(f"tma.make_tensor_descriptor({arguments})"), error, match)


def test_transposed_boxes():
    desc = "describe(gl.float16, [64, 64], [64, 64], gl.constexpr(gl.NVMMASharedLayout(128, 16, 2, True)))"
    try:
        refuse(
            using("load(desc, [0, 0], bar, smem)  # HERE", desc),
            LayoutError,
            "rows in the tensor's order",
        )
    except LayoutError:
        pass  # the host refuses it already


@pytest.mark.once
@pytest.mark.parametrize("call", ["async_store", "async_atomic_add"])
def test_stores_of_padded_fp4(call):
    layout = "gl.constexpr(gl.NVMMASharedLayout(128, 8, 2, fp4_padded=True))"
    desc = f"describe(gl.uint8, [256, 256], [128, 64], {layout})"
    assert "fp4Padded = true" in parse(using("load(desc, [n, 0], bar, smem)", desc, 100))
    error = LayoutError if call == "async_store" else (LayoutError, DtypeError)
    refuse(
        using(f"tma.{call}(desc, [n, 0], smem)  # HERE", desc, 100), error, "padded fp4|cannot add"
    )


@since(3, 8)
@mistakes("""
error | match | body
DtypeError | not a descriptor of this mode | load(desc, [0, 0, 0, 0], bar, smem)
ShapeError | 4 integers|each dim | tma.async_load_im2col(desc, [0, 0], [0, 0], bar, smem)
ShapeError | each dimension | tma.async_load_im2col(desc, [0] * 4, [0], bar, smem)
ArgumentError | out of range | tma.async_load_im2col(desc, [0] * 4, [0, 2**15], bar, smem)
DtypeError | must be int16 | tma.async_load_im2col(desc, [0] * 4, [0, n], bar, smem)
""")
def test_im2col_that_does_not_fit(body, error, match):
    source = IM2COL.format(shape=[2, 8, 8, 64], corners=[0, 0], body=body)
    refuse(source, error, match)


@since(3, 8)
def test_im2col_of_too_many_pixels():
    source = IM2COL.format(
        shape=[2, 8, 8, 64],
        corners="[0, 0], (2048, 8)",
        body="tma.async_load_im2col(desc, [0] * 4, [0, 0], bar, smem)",
    ).replace("F16.value", "gl.NVMMASharedLayout(0, 16, 2)")
    with pytest.raises(ShapeError, match="too many pixels|1024"):  # here, or on the host before
        parse(source)


def test_hardware_without_tma():
    refuse(
        using("load(desc, [0, 0], bar, smem)  # HERE", arch=80), CapabilityError, "needs nvidia.tma"
    )
    refuse(
        using("btma.async_gather(desc, x, 0, bar, rows)  # HERE", ROW),
        CapabilityError,
        "needs nvidia.tma_gather_scatter",
    )


@pytest.mark.once
def test_errors_of_signatures():
    from gluon_core.compiler import compile
    from gluon_core.compiler.source import GluonASTSource

    @gluon_core.jit
    def nothing(desc):
        pass

    for text, error, match in [
        ("tensordesc<fp16[64, 64],Nowhere(1)>", LayoutError, "not a layout"),
        ("tensordesc<fp16[64, 64],NVMMASharedLayout(128, 16, open)>", LayoutError, "not a layout"),
        ("tensordesc<fp16[64, 64]>", DtypeError, "not a descriptor"),
        (
            "tensordesc_other<fp16[64, 64],NVMMASharedLayout(128, 16, 2)>",
            DtypeError,
            "tensordesc_other",
        ),
        ("tensordesc<half[64, 64],NVMMASharedLayout(128, 16, 2)>", DtypeError, "unknown type"),
    ]:
        with pytest.raises(error, match=match):
            compile(GluonASTSource(nothing, {"desc": text}), target="hopper")
    assert TRITON_VERSION >= (3, 6)
