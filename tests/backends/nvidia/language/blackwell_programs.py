"""Programs on tensor memory and tcgen05, with holes for the parts that a test varies."""

from __future__ import annotations

import gluon_core
from gluon_core.testing import TRITON_VERSION

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
SKEWED = gl.constexpr(0 if V.value == (3, 8) else 16)
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


SCALED = (
    SETUP
    + """
@gluon.jit
def kernel(n):
    acc = allocate_tensor_memory(gl.float32, [128, 128], A)
    a = gl.allocate_shared_memory({a_type}, {a_shape}, {a})
    b = gl.allocate_shared_memory({b_type}, {b_shape}, {b})
    x = allocate_tensor_memory({scale}, {x_shape}, {x})
    y = allocate_tensor_memory({scale}, {y_shape}, {y})
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
        "y": "TensorMemoryScalesLayout()",
        "x_shape": [128, runs],
        "y_shape": [128, runs],
        "a_kind": a_kind,
        "b_kind": b_kind,
        "rest": rest,
    }
    return SCALED.format(**{**values, **changes})


PAIRS = (
    SETUP
    + """
if V < (3, 8):
    ACC = gl.constexpr(TensorMemoryLayout([{m}, 128], 1, cta_split_num=[2, 1], two_ctas={two}))
else:
    ACC = gl.constexpr(TensorMemoryLayout([{m}, 128], 1, cga_layout=[[1, 0]], two_ctas={two}))
SA = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[1, 0]]))
SB = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[0, {b}]]))
PAIR = gl.constexpr(mbarrier.MBarrierLayout([[{bar}]]))
@gluon.jit
def kernel(n):
    acc = allocate_tensor_memory(gl.float32, [2 * {m}, 128], ACC)
    a = gl.allocate_shared_memory(gl.float16, [2 * {m}, 64], SA)
    b = gl.allocate_shared_memory(gl.float16, [64, 128], SB)
    bar = gl.allocate_shared_memory(gl.int64, [{bars}], PAIR)
    tcgen05_mma(a, b, acc, mbarriers=[bar]{rest})
    tcgen05_mma(a, b, acc, use_acc=n > 1{rest})
    tcgen05_commit(bar{commit})
ARGS = (5,)
KWARGS = {{"num_ctas": 2}}
"""
)


def pairs(
    two=True, m=128, rest="", commit="", bar=1, bars=2 if TRITON_VERSION >= (3, 7) else 1, b=None
):
    b = int(two) if b is None else b
    return PAIRS.format(two=two, m=m, rest=rest, commit=commit, bar=bar, bars=bars, b=b)
