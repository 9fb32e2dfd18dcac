"""Tensor memory and tcgen05: the same modules as upstream, and errors instead of aborts."""

from __future__ import annotations

import pytest

import gluon_core
from gluon_core import language as gl
from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DtypeError,
    GluonError,
    LayoutError,
    LimitError,
    ShapeError,
)
from tests.frontend.vendor_oracle import VERSION, agree, before, parse, refuse, since

SETUP = """
from GLUON.language.nvidia.ampere import mbarrier
from GLUON.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma,
    tcgen05_mma_scaled,
    tensor_memory_descriptor,
)
V = gl.constexpr(tuple(int(n) for n in triton.__version__.split(".")[:2]))
TARGET = GPUTarget("cuda", 100, 32)
A = gl.constexpr(TensorMemoryLayout([128, 128], 1))
S = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
S8 = gl.constexpr(gl.NVMMASharedLayout(128, 8, 2))
REG = gl.constexpr(gl.BlockedLayout([1, 128], [32, 1], [4, 1], [0, 1]))
HALF = gl.constexpr(gl.BlockedLayout([1, 64], [32, 1], [4, 1], [0, 1]))
NARROW = gl.constexpr(gl.BlockedLayout([1, 8], [32, 1], [4, 1], [0, 1]))
ROWS = gl.constexpr(gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0]))
BAR = gl.constexpr(mbarrier.MBarrierLayout())
"""
BODY = (
    SETUP
    + """
@gluon.jit
def kernel(n):
    acc = allocate_tensor_memory({acc_type}, {acc_shape}, {acc})
    a = gl.allocate_shared_memory({a_type}, {a_shape}, {a})
    b = gl.allocate_shared_memory({b_type}, {b_shape}, {b})
    bar = gl.allocate_shared_memory(gl.int64, [1], BAR)
    {call}  # HERE
ARGS = (5,)
KWARGS = {kwargs}
"""
)


def body(call="tcgen05_mma(a, b, acc)", dtype="gl.float16", **changes):
    shared = f"gl.NVMMASharedLayout(128, {dtype}.primitive_bitwidth, 2)"
    values = {
        "acc_type": "gl.float32",
        "acc_shape": [128, 128],
        "acc": "A",
        "a_type": dtype,
        "b_type": dtype,
        "a_shape": [128, 128],
        "b_shape": [128, 128],
        "a": shared,
        "b": shared,
        "call": call,
        "kwargs": {},
    }
    return BODY.format(**{**values, **changes})


def gpu(number):
    return gluon_core._triton.GPUTarget("cuda", number, 32)


# -- the same modules ---------------------------------------------------------------------------

MEMORY = (
    SETUP
    + """
@gluon.jit
def through(view: tensor_memory_descriptor, x):
    view.store(x)
    return view

@gluon.jit
def kernel(n):
    copies = allocate_tensor_memory(gl.float32, [2, 128, 128], A)
    x = gl.full([128, 128], 0, gl.float32, REG)
    acc = allocate_tensor_memory(gl.float32, shape=[128, 128], layout=A, value=x)
    y = acc.load(REG)
    acc.store(y, n > 1)
    acc.store(y, pred=False)
    copies.index(n).store(x)
    copies.index(1).store(x)
    half = acc.slice(64, 64)
    gl.static_assert(half.shape[1] == 64)
    gl.static_assert(half.dtype == gl.float32)
    half.store(gl.full([128, 64], 1, gl.float32, HALF))
    narrow = acc.slice(0, 16).slice(8, 8)
    narrow.store(gl.full([128, 8], 1, gl.float32, NARROW))
    for i in range(n):
        acc = through(acc, x)
    if n > 3:
        acc.store(acc.load(REG))
"""
    + "    {more}\nARGS = (5,)\n"
)


def test_memory():
    text = agree(MEMORY.format(more="pass"))
    assert "tmem_subslice" in text and text.count("tmem_store") >= 7


REINTERPRET = "acc.{name}(gl.float16, [128, 256], TensorMemoryLayout([128, 128], 1)).slice(0, 128).store(x.to(gl.float16))"


@since(3, 9)
def test_reinterpret():
    agree(MEMORY.format(more=REINTERPRET.format(name="reinterpret")))
    agree(MEMORY.format(more="acc.reinterpret(gl.int32).store(x.to(gl.int32))"))


@before(3, 9)
def test_reinterpret_of_older_versions():
    agree(MEMORY.format(more=REINTERPRET.format(name="_reinterpret")))


@since(3, 9)
def test_slices_of_rows():
    source = MEMORY.replace("{more}", "tall.slice(128, 128, dim=0).store(x)")
    source = source.replace(
        "    half =", "    tall = allocate_tensor_memory(gl.float32, [256, 128], A)\n    half ="
    )
    agree(source)


@since(3, 8)
@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize(
    "dtype, shape, layout",
    [
        ("gl.float32", [128, 128], "A"),
        ("gl.float32", [64, 64], "TensorMemoryLayout([64, 64], 1)"),
        ("gl.float32", [128, 64], "TensorMemoryLayout([64, 64], 1)"),
        ("gl.float16", [128, 64], "TensorMemoryLayout([128, 64], 1)"),
        ("gl.float16", [128, 64], "TensorMemoryLayout([128, 64], 2)"),
        ("gl.int8", [128, 64], "TensorMemoryLayout([128, 64], 4)"),
    ],
)
def test_default_layouts(dtype, shape, layout, warps):
    agree(
        SETUP
        + f"""
@gluon.jit
def kernel(n):
    acc = allocate_tensor_memory({dtype}, {shape}, {layout})
    x = acc.load()
    acc.store(x)
    R: gl.constexpr = acc.get_reg_layout()
    acc.store(acc.load(R) + 1)
    acc.load(acc.get_reg_layout(instr_variant="16x64b"))
ARGS = (5,)
KWARGS = {{"num_warps": {warps}}}
"""
    )


@before(3, 8)
@pytest.mark.parametrize("variant", ["32x32b", "16x64b", "16x128b", "16x256b"])
def test_layouts_of_older_versions(variant):
    agree(
        SETUP
        + f"""
from GLUON.language.nvidia.blackwell import get_tmem_reg_layout
@gluon.jit
def kernel(n):
    acc = allocate_tensor_memory(gl.float32, [128, 64], TensorMemoryLayout([128, 64], 1))
    R: gl.constexpr = get_tmem_reg_layout(gl.float32, (128, 64), acc.layout, gl.num_warps(), "{variant}")
    acc.store(acc.load(R) + 1)
ARGS = (5,)
"""
    )


def test_both_ways_to_the_layout():
    source = (
        SETUP
        + """
from GLUON.language.nvidia.blackwell import get_tmem_reg_layout
@gluon.jit
def kernel(n):
    acc = allocate_tensor_memory(gl.float32, [128, 64], TensorMemoryLayout([128, 64], 1))
    R: gl.constexpr = get_tmem_reg_layout(gl.float32, (128, 64), acc.layout, 4)
    gl.static_assert(R == acc.get_reg_layout())
    gl.static_assert(R == acc.type.get_reg_layout())
    gl.static_assert(R == acc.get_reg_layout(4, "32x32b"))
    gl.static_assert(acc.load().type.layout == R)
ARGS = (5,)
"""
    )
    parse(source)


CALLS = [
    "tcgen05_mma(a, b, acc)",
    "tcgen05_mma(a, b, acc, use_acc=False)",
    "tcgen05_mma(a, b, acc, use_acc=n > 1, pred=n > 2)",
    "tcgen05_mma(a, b, acc, mbarriers=[bar])",
    "tcgen05_mma(a, b, acc, use_acc=n > 0, mbarriers=[bar, bar], mbarrier_preds=[n > 1, True])",
    "tcgen05_mma(a, b.permute([1, 0]), acc)",
    "tcgen05_mma(a.permute([1, 0]), b, acc)",
    "tcgen05_commit(bar)",
]
NEWER_CALLS = [
    "tcgen05_mma(a, b, acc, multicast=True)",
    "tcgen05_commit(bar, pred=n > 1)",
    "tcgen05_commit(bar, descs=[a, b])",
    "tcgen05_commit(bar, n > 1, (a,))",
]


@pytest.mark.parametrize("call", CALLS)
def test_mma(call):
    agree(body(call))


@since(3, 7)
@pytest.mark.parametrize("call", NEWER_CALLS)
def test_mma_of_newer_versions(call):
    agree(body(call))


@pytest.mark.parametrize(
    "dtype, acc, stride",
    [
        ("gl.float16", "gl.float32", 1),
        ("gl.float16", "gl.float16", 2),
        ("gl.bfloat16", "gl.float32", 1),
        ("gl.float32", "gl.float32", 1),
        ("gl.float8e5", "gl.float32", 1),
        ("gl.float8e4nv", "gl.float16", 2),
        pytest.param("gl.int8", "gl.int32", 1, marks=since(3, 8)),
    ],
)
def test_mma_dtypes(dtype, acc, stride):
    agree(body(dtype=dtype, acc_type=acc, acc=f"TensorMemoryLayout([128, 128], {stride})"))


@pytest.mark.parametrize("m, n", [(64, 8), (64, 128), (128, 16), (128, 256), (64, 256)])
def test_mma_shapes(m, n):
    agree(
        body(
            acc_shape=[m, n],
            a_shape=[m, 64],
            b_shape=[64, n],
            acc=f"TensorMemoryLayout([{m}, {n}], 1)",
            b=f"gl.NVMMASharedLayout.get_default_for([64, {n}], gl.float16)",
        )
    )


def test_an_operand_in_tensor_memory():
    call = (
        "p = allocate_tensor_memory(gl.float16, [128, 128], TensorMemoryLayout([128, 128], 1), "
        "gl.full([128, 128], 0, gl.float16, REG)); tcgen05_mma(p, b, acc)"
    )
    agree(body(call))


SCALED = (
    SETUP
    + """
@gluon.jit
def kernel(n):
    acc = allocate_tensor_memory(gl.float32, [128, 128], A)
    a = gl.allocate_shared_memory({a_type}, {a_shape}, {a})
    b = gl.allocate_shared_memory({b_type}, {b_shape}, {b})
    x = allocate_tensor_memory({scale}, {x_shape}, {x})
    y = allocate_tensor_memory({scale}, {y_shape}, TensorMemoryScalesLayout())
    bar = gl.allocate_shared_memory(gl.int64, [1], BAR)
    tcgen05_mma_scaled(a, b, acc, x, y, "{a_kind}", "{b_kind}"{rest})  # HERE
ARGS = (5,)
"""
)


def scaled(a_kind="e4m3", b_kind="e4m3", rest="", k=128, **changes):
    dtypes = {"e2m1": "gl.uint8", "e4m3": "gl.float8e4nv", "e5m2": "gl.float8e5"}
    mixed = (a_kind == "e2m1") != (b_kind == "e2m1")
    swizzle = 64 if a_kind == b_kind == "e2m1" else 128
    pad = {
        kind: f"gl.NVMMASharedLayout({swizzle}, 8, 2, fp4_padded={mixed and kind == 'e2m1'})"
        for kind in dtypes
    }
    runs = k // (16 if "float8" in changes.get("scale", "") else 32)
    values = {
        "a_type": dtypes[a_kind],
        "b_type": dtypes[b_kind],
        "a_shape": [128, k // 2 if a_kind == "e2m1" else k],
        "b_shape": [k // 2 if b_kind == "e2m1" else k, 128],
        "a": pad[a_kind],
        "b": pad[b_kind].replace("2, fp4", "2, transposed=True, fp4"),
        "scale": "gl.int8",
        "x": "TensorMemoryScalesLayout()",
        "x_shape": [128, runs],
        "y_shape": [128, runs],
        "a_kind": a_kind,
        "b_kind": b_kind,
        "rest": rest,
    }
    return SCALED.format(**{**values, **changes})


@pytest.mark.parametrize(
    "a, b, scale",
    [
        ("e4m3", "e4m3", "gl.int8"),
        ("e5m2", "e4m3", "gl.uint8"),
        ("e2m1", "e2m1", "gl.int8"),
        ("e2m1", "e2m1", "gl.float8e4nv"),
        ("e4m3", "e2m1", "gl.int8"),
        ("e2m1", "e5m2", "gl.int8"),
    ],
)
def test_scaled(a, b, scale):
    agree(scaled(a, b, scale=scale))


@pytest.mark.parametrize(
    "rest",
    [", use_acc=False", ", use_acc=n > 1, pred=n > 2", ", mbarriers=[bar], mbarrier_preds=[n > 1]"],
)
def test_scaled_control(rest):
    agree(scaled(rest=rest))


@since(3, 8)
def test_scaled_multicast():
    agree(scaled(rest=", multicast=True"))
