"""Tensor memory and tcgen05: the same modules as upstream, and errors instead of aborts."""

from __future__ import annotations

import itertools

import pytest

import gluon_core
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
    acc.slice(SKEWED, 64).store(gl.full([128, 64], 1, gl.float32, HALF))
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


def test_linear_forms():
    parse(
        SETUP
        + """
from GLUON.language.nvidia.blackwell import _TensorMemoryLinearLayout
ROW = [[1, 0], [2, 0], [4, 0], [8, 0], [64, 0], [16, 0], [32, 0]]
COLUMN = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32]]
LINEAR = gl.constexpr(_TensorMemoryLinearLayout(ROW, COLUMN, [128, 64]))
@gluon.jit
def kernel(n):
    L: gl.constexpr = gl.to_linear_layout(TensorMemoryLayout([64, 32], 1), [128, 64])
    gl.static_assert(L == LINEAR)
    gl.static_assert(gl.to_linear_layout(L, [128, 64]) == LINEAR)
ARGS = (5,)
"""
    )


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
    shared = f"gl.NVMMASharedLayout(128, {dtype}.primitive_bitwidth, 2, transposed=True)"
    layout = f"TensorMemoryLayout([128, 128], {stride})"
    agree(body(dtype=dtype, acc_type=acc, acc=layout, b=shared))


@pytest.mark.parametrize(
    "m, n", [pytest.param(64, 8, marks=since(3, 8)), (64, 128), (128, 16), (128, 256), (64, 256)]
)
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


COPIES = [
    ("gl.NVMMASharedLayout(0, 8, 2)", "gl.int8", [128, 16], "TensorMemoryScalesLayout()"),
    (
        "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])",
        "gl.int8",
        [128, 16],
        "TensorMemoryScalesLayout()",
    ),
    (
        "gl.SharedLinearLayout([[0, 1], [0, 2], [32, 0], [64, 0], [1, 0], [2, 0], [4, 0], [8, 0], "
        "[16, 0], [0, 4], [0, 8]])",
        "gl.int8",
        [128, 16],
        "TensorMemoryScalesLayout()",
    ),
    ("gl.NVMMASharedLayout(128, 32, 2)", "gl.float32", [128, 128], "A"),
]
COPY = (
    "s = gl.allocate_shared_memory({dtype}, {shape}, {src}); "
    "d = allocate_tensor_memory({dtype}, {shape}, {dst}); tcgen05_copy(s, d)"
)


@pytest.mark.parametrize("src, dtype, shape, dst", COPIES)
def test_copy(src, dtype, shape, dst):
    agree(body(COPY.format(src=src, dtype=dtype, shape=shape, dst=dst)))


REDUCE = """v, r = acc.{call}
    gl.static_assert(r.shape[0] == 128)
    acc.store(v + gl.expand_dims(r, 1))"""


@since(3, 8)
@pytest.mark.parametrize("call", ["load_min()", "load_max()", "load_max(abs=True)"])
def test_loads_with_a_reduction(call):
    agree(body(REDUCE.format(call=call)), gpu(103))


@since(3, 7)
def test_loads_with_a_reduction_and_nan():
    call = "load_min(REG, abs=True, propagate_nan=tl.PropagateNan.ALL)"
    agree(body(REDUCE.format(call=call)), gpu(103))


# -- clusters -----------------------------------------------------------------------------------

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


def pairs(two=True, m=128, rest="", commit="", bar=1, bars=2 if VERSION >= (3, 7) else 1, b=None):
    b = int(two) if b is None else b
    return PAIRS.format(two=two, m=m, rest=rest, commit=commit, bar=bar, bars=bars, b=b)


@pytest.mark.parametrize("m", [64, 128])
@pytest.mark.parametrize("two", [False, True])
def test_clusters(two, m):
    text = agree(pairs(two, m))
    assert ("two_ctas" in text) == two


@since(3, 7)
def test_multicast_in_a_cluster():
    agree(pairs(False, rest=", multicast=True", commit=", descs=[a, b]"))


@since(3, 8)
@pytest.mark.parametrize("m", [64, 128])
def test_loads_in_a_cluster(m):
    source = pairs(True, m).replace("\nARGS =", "\n    acc.store(acc.load() + 1)\nARGS =")
    text = agree(source)
    assert "tmem_load" in text


@before(3, 8)
def test_loads_in_a_cluster_of_older_versions():
    more = (
        "\n    R: gl.constexpr = get_tmem_reg_layout(gl.float32, (256, 128), ACC, 4, "
        "cga_layout=[[1, 0]])\n    acc.store(acc.load(R) + 1)\nARGS ="
    )
    source = pairs(True).replace("\nARGS =", more)
    agree(
        source.replace(
            "TARGET =",
            "from GLUON.language.nvidia.blackwell import get_tmem_reg_layout\nTARGET =",
            1,
        )
    )


def test_how_many_tell_a_barrier():
    from gluon_core.language.nvidia.blackwell import tcgen05_mma_barrier_count as count

    class Buffer:
        def __init__(self, *cga):
            self.layout = gluon_core.language.NVMMASharedLayout(128, 16, 2, cga_layout=list(cga))

    split, same = [1, 0], [0, 0]
    assert count([Buffer(), Buffer()], True, False) == 1
    assert count([Buffer(split), Buffer(same)], False, False) == 1
    assert count([Buffer(split), Buffer(same)], True, False) == 2
    assert count([Buffer(split), Buffer(same)], True, True) == 1
    assert count([Buffer(split, same), Buffer(same, [0, 1])], True, False) == 3
    assert count([Buffer(split, same), Buffer(same, [0, 1])], True, True) == 2
    assert count([Buffer(same, same), Buffer([0, 1], [0, 2])], True, False) == 4


@since(3, 7)
def test_the_count_is_upstreams():
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.language.nvidia import blackwell as theirs

    from gluon_core.language.nvidia import blackwell as ours

    class Buffer:
        def __init__(self, layout):
            self.layout = layout
            self.type = self

    of_a = [[[1, 0]], [[0, 0]], [[1, 0], [0, 0]], [[0, 0], [1, 0]], [[1, 0], [2, 0]]]
    of_b = [[[0, 1]], [[0, 0]], [[0, 0], [0, 1]], [[0, 1], [0, 0]], [[0, 1], [0, 2]]]
    versions = ((), (False,), (True,)) if VERSION >= (3, 8) else ((),)
    checked = 0
    for a, b in itertools.product(of_a, of_b):
        both = any(not any(x) and not any(y) for x, y in zip(a, b))
        if len(a) != len(b) or (both and VERSION < (3, 8)):
            continue  # the older one does not know blocks that share both
        for two in versions[-2:]:
            layouts = [NVMMASharedLayout(128, 16, 2, cga_layout=cga) for cga in (a, b)]
            wanted = theirs.tcgen05_mma_barrier_count([Buffer(x) for x in layouts], True, *two)
            layouts = [
                gluon_core.language.NVMMASharedLayout(128, 16, 2, cga_layout=cga) for cga in (a, b)
            ]
            got = ours.tcgen05_mma_barrier_count([Buffer(x) for x in layouts], True, *two)
            assert got == wanted, (a, b, two)
            checked += 1
    assert checked > 8


# -- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [[128, 64], [2, 128, 64]])
def test_types_are_named_as_upstream_names_them(shape):
    from triton.experimental.gluon.language.nvidia import blackwell as theirs

    from gluon_core.language.nvidia import blackwell as ours

    names = [
        module.tensor_memory_descriptor_type(
            gluon_core.language.float32,
            shape,
            module.TensorMemoryLayout([128, 64], 1),
            [2, 128, 64],
        ).mangle()
        for module in (theirs, ours)
    ]
    assert names[0] == names[1]


def test_rubin_has_the_same_with_its_own_scales():
    from gluon_core.language.nvidia import blackwell, rubin

    for name in dir(rubin):
        if name.startswith(("tcgen05", "tensor_memory", "allocate")):
            assert getattr(rubin, name) is getattr(blackwell, name)
    assert rubin.TensorMemoryScalesLayout(block_rep_order="kThenMn").block_rep_order == "kThenMn"
    assert not hasattr(blackwell.TensorMemoryScalesLayout(), "block_rep_order")


RUBIN = "from GLUON.language.nvidia.rubin import TensorMemoryScalesLayout\nTARGET ="


@since(3, 9)
@pytest.mark.parametrize("order", ["mnThenK", "kThenMn"])
def test_scales_of_rubin(order):
    layout = f"TensorMemoryScalesLayout(block_rep_order='{order}')"
    source = scaled("e2m1", "e2m1", scale="gl.float8e4nv", x=layout)
    text = agree(source.replace("TARGET =", RUBIN, 1), gpu(107))
    assert ("kThenMn" in text) == (order == "kThenMn")


@since(3, 8)
@pytest.mark.parametrize("changes", [{"x": "O"}, {"y": "O", "kind": "e2m1"}])
def test_scales_in_an_order_that_they_do_not_have(changes):
    order = "TensorMemoryScalesLayout(block_rep_order='kThenMn')"
    kind = changes.pop("kind", "e4m3")
    scale = "gl.float8e4nv" if kind == "e2m1" else "gl.int8"
    source = scaled(kind, kind, scale=scale, **{name: order for name in changes})
    refuse(source.replace("TARGET =", RUBIN, 1), LayoutError, "not the order")


@since(3, 8)
def test_a_barrier_for_each_pair_is_not_enough():
    source = pairs(True, bar=0, bars=1)
    source = source.replace("[bar])", "[bar])  # HERE")
    refuse(source, LayoutError, "one barrier for each block")


# -- errors, under the kernel's line ------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, error, match",
    [
        ({"a_shape": [128, 64]}, ShapeError, "do not multiply"),
        ({"acc_shape": [256, 128]}, ShapeError, "do not multiply"),
        ({"a_shape": [128, 16], "b_shape": [16, 128], "dtype": "gl.int8", "a":
          "gl.NVMMASharedLayout(0, 8, 2)", "acc_type": "gl.int32", "b": "S8"}, GluonError, ""),
        ({"b_type": "gl.bfloat16"}, DtypeError, "does not multiply"),
        ({"dtype": "gl.int16"}, DtypeError, "does not multiply"),
        ({"dtype": "gl.bfloat16", "acc_type": "gl.float16",
          "acc": "TensorMemoryLayout([128, 128], 2)"}, DtypeError, "acc"),
        ({"acc_type": "gl.int32"}, DtypeError, "acc"),
        ({"acc_type": "gl.float16"}, LayoutError, "col_stride=2"),
        ({"b": "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])"}, LayoutError, "does not read"),
        ({"a": "gl.NVMMASharedLayout(128, 8, 2)"}, LayoutError, "another width"),
        ({"a": "gl.NVMMASharedLayout(0, 16, 2)"}, LayoutError, "not swizzled"),
        ({"dtype": "gl.float32"}, LayoutError, "K contiguous"),
        ({"acc_shape": [128, 8], "b_shape": [128, 8], "b": "gl.NVMMASharedLayout(0, 16, 2)",
          "acc": "TensorMemoryLayout([128, 8], 1)"}, GluonError, ""),
        ({"call": "tcgen05_mma(acc, b, acc)"}, DtypeError, "does not multiply"),
        ({"call": "tcgen05_mma(n, b, acc)"}, DtypeError, "a: not shared memory"),
        ({"call": "tcgen05_mma(a, acc, acc)"}, DtypeError, "b: not shared memory"),
        ({"call": "tcgen05_mma(a, b, b)"}, DtypeError, "acc: not tensor memory"),
        ({"call": "tcgen05_mma(a, b, acc, use_acc=n)"}, DtypeError, "use_acc"),
        ({"call": "tcgen05_mma(a, b, acc, pred=1)"}, DtypeError, "pred"),
        ({"call": "tcgen05_mma(a, b, acc, mbarriers=[a])"}, DtypeError, "mbarriers"),
        ({"call": "tcgen05_mma(a, b, acc, mbarriers=[bar], mbarrier_preds=[True, True])"},
         ArgumentError, "mbarrier_preds"),
        ({"call": "tcgen05_mma(a, b, acc, mbarriers=[bar], mbarrier_preds=[n])"}, DtypeError,
         "mbarrier_preds"),
        ({"call": "tcgen05_mma(a, b, acc, multicast=n)"}, GluonError, "multicast"),
        ({"call": "tcgen05_commit(a)"}, DtypeError, "barrier"),
        ({"call": "tcgen05_commit(bar, descs=[acc])"}, DtypeError, "descs"),
        ({"call": "tcgen05_copy(a, acc)"}, DtypeError, "src"),
        ({"call": "tcgen05_copy(acc, acc)"}, DtypeError, "src"),
        ({"call": "tcgen05_copy(a, b)"}, DtypeError, "dst"),
        ({"call": "tcgen05_copy(gl.allocate_shared_memory(gl.float32, [128, 64], "
                  "gl.NVMMASharedLayout(128, 32, 2)), acc)"}, ShapeError, "src"),
        ({"call": "tcgen05_copy(gl.allocate_shared_memory(gl.float32, [128, 128], "
                  "gl.NVMMASharedLayout(128, 32, 2, transposed=True)), acc)"}, LayoutError, "src"),
        ({"call": "tcgen05_copy(a, allocate_tensor_memory(gl.float16, [128, 128], A))"},
         LayoutError, "dst"),
    ],
)  # fmt: skip
def test_mma_errors(changes, error, match):
    refuse(body(**changes), error, match)


@pytest.mark.parametrize(
    "call, error, match",
    [
        ("allocate_tensor_memory(gl.float32, [128, 1024], A)", LimitError, "1024 columns"),
        ("allocate_tensor_memory(gl.float32, [8, 128, 128], A)", LimitError, "1024 columns"),
        ("allocate_tensor_memory(gl.float64, [128, 128], A)", DtypeError, "element_ty"),
        ("allocate_tensor_memory(gl.int1, [128, 128], A)", DtypeError, "element_ty"),
        ("allocate_tensor_memory(n, [128, 128], A)", DtypeError, "element_ty"),
        ("allocate_tensor_memory(gl.float32, [128], A)", ShapeError, "shape"),
        ("allocate_tensor_memory(gl.float32, [1, 2, 128, 128], A)", ShapeError, "shape"),
        ("allocate_tensor_memory(gl.float32, [128, 96], A)", ShapeError, "shape"),
        ("allocate_tensor_memory(gl.float32, [128, n], A)", ShapeError, "shape"),
        ("allocate_tensor_memory(gl.float32, [64, 128], A)", LayoutError, "smaller than a block"),
        ("allocate_tensor_memory(gl.float32, [128, 128], S)", LayoutError, "tensor memory"),
        ("allocate_tensor_memory(gl.float32, [128, 128], REG)", LayoutError, "tensor memory"),
        ("allocate_tensor_memory(gl.float32, [128, 128], TensorMemoryLayout([128, 128], 2))",
         LayoutError, "col_stride"),
        ("allocate_tensor_memory(gl.float32, [128, 8], TensorMemoryScalesLayout())", DtypeError,
         "scales"),
        ("allocate_tensor_memory(gl.int8, [2, 128, 8], TensorMemoryScalesLayout())", ShapeError,
         "no copies"),
        ("allocate_tensor_memory(gl.float32, [256, 128], TensorMemoryLayout([128, 128], 1, "
         "[[1, 0]]))", LayoutError, "num_ctas"),
        ("allocate_tensor_memory(gl.float32, [128, 128], TensorMemoryLayout([128, 96], 1))",
         LayoutError, "block"),
        ("allocate_tensor_memory(gl.float32, [128, 128], A, x.to(gl.float16))", DtypeError, "value"),
        ("allocate_tensor_memory(gl.float32, [128, 64], TensorMemoryLayout([128, 64], 1), x)",
         ShapeError, "value"),
        ("allocate_tensor_memory(gl.float32, [128, 128], A, n)", ShapeError, "value"),
        ("allocate_tensor_memory(gl.float32, [128, 128], A, gl.convert_layout(x, ROWS))",
         LayoutError, "no instruction"),
        ("acc.store(gl.convert_layout(x, ROWS))", LayoutError, "no instruction"),
        ("acc.store(x, pred=1)", DtypeError, "pred"),
        ("acc.store(1.0)", ShapeError, "value"),
        ("acc.load(ROWS)", LayoutError, "no instruction"),
        ("acc.load(S)", LayoutError, "layout"),
        ("acc.load(gl.AutoLayout())", LayoutError, "must be known"),
        ("acc.load(gl.BlockedLayout([1, 64], [32, 1], [2, 2], [0, 1]))", LayoutError, "no instruction"),
        ("copies.load(REG)", ShapeError, "copies"),
        ("copies.store(x)", ShapeError, "copies"),
        ("copies.index(2)", ShapeError, "index"),
        ("copies.index(0.5)", DtypeError, "index"),
        ("acc.index(0)", ShapeError, "no copies"),
        ("acc.slice(0, 48)", ShapeError, "length"),
        ("acc.slice(0, 256)", ShapeError, "length"),
        ("acc.slice(96, 64)", ShapeError, "start"),
        ("blocks.slice(32, 64)", ShapeError, "a multiple of 64"),
        ("packed.slice(1, 64)", ShapeError, "a multiple of (2|64)"),
        ("acc.slice(128, 64)", ShapeError, "start"),
        ("acc.slice(n, 64)", ArgumentError, "start"),
        ("acc.slice(0, 64, dim=2)", ShapeError, "dim"),
        ("scales.slice(0, 4)", LayoutError, "scales"),
        ("scales.load()", LayoutError, "scales"),
        ("acc.reinterpret(gl.float32, [128, 256])", ShapeError, "larger"),
        ("acc.reinterpret(gl.float64)", DtypeError, "element_ty"),
        ("acc.reinterpret(layout=S)", LayoutError, "tensor memory"),
        ("acc.get_reg_layout(instr_variant='32x32')", LayoutError, "instr_variant"),
        ("acc.get_reg_layout(2)", LayoutError, "num_warps"),
        ("acc.load_min()", CapabilityError, "tcgen05_ld_red|Triton >= 3.7"),
        ("gl.allocate_shared_memory(gl.float32, [128, 128], A)", LayoutError, "shared memory"),
    ],
)  # fmt: skip
def test_memory_errors(call, error, match):
    refuse(
        SETUP
        + f"""
@gluon.jit
def kernel(n):
    acc = allocate_tensor_memory(gl.float32, [128, 128], A)
    copies = allocate_tensor_memory(gl.float32, [2, 128, 128], A)
    scales = allocate_tensor_memory(gl.int8, [128, 8], TensorMemoryScalesLayout())
    blocks = allocate_tensor_memory(gl.float32, [128, 128], TensorMemoryLayout([128, 32], 1))
    packed = allocate_tensor_memory(gl.float16, [128, 128], A)
    x = gl.full([128, 128], 0, gl.float32, REG)
    {call}  # HERE
ARGS = (5,)
""",
        error,
        match,
    )


@pytest.mark.parametrize(
    "changes, error, match",
    [
        ({"a_kind": "e3m2"}, ArgumentError, "a_type"),
        ({"b_type": "gl.float16", "b": "gl.NVMMASharedLayout(128, 16, 2)"}, DtypeError, "b: not"),
        ({"x_shape": [128, 8]}, ShapeError, "a_scale"),
        ({"y_shape": [64, 4]}, ShapeError, "b_scale"),
        ({"scale": "gl.float8e4nv"}, DtypeError, "for fp4"),
        ({"scale": "gl.float8e5"}, DtypeError, "a_scale: not the dtype"),
        ({"x": "TensorMemoryLayout([128, 4], 1)"}, LayoutError, "a_scale"),
        ({"a": "gl.NVMMASharedLayout(128, 8, 2, fp4_padded=True)"}, LayoutError, "padded"),
        ({"b_shape": [256, 128]}, ShapeError, "do not multiply"),
        ({"rest": ", use_acc=1"}, DtypeError, "use_acc"),
    ],
)  # fmt: skip
def test_scaled_errors(changes, error, match):
    named = {"k": 128, "scale": "gl.int8"}
    if changes.get("scale") == "gl.float8e4nv":
        named = {"k": 128}
    kinds = {key: changes.pop(key) for key in ("a_kind",) if key in changes}
    source = scaled(**{**named, **changes})
    if kinds:
        source = source.replace('"e4m3", "e4m3"', '"e3m2", "e4m3"')
    refuse(source, error, match)


@pytest.mark.parametrize("warps", [1, 2])
def test_fewer_warps_than_a_group(warps):
    one = f"gl.BlockedLayout([1, 128], [32, 1], [{warps}, 1], [0, 1])"
    source = body(f"acc.load({one})", kwargs={"num_warps": warps})
    refuse(source, LayoutError, "groups of four warps")


def test_pairs_split_the_rows():
    source = pairs(True).replace("cga_layout=[[1, 0]], two", "cga_layout=[[0, 1]], two")
    source = source.replace("cta_split_num=[2, 1]", "cta_split_num=[1, 2]")
    source = source.replace("acc = allocate", "acc = allocate").replace("ACC)\n", "ACC)  # HERE\n")
    refuse(source, LayoutError, "pair of blocks")


@pytest.mark.parametrize("number", [90, 120])
def test_other_generations_have_none_of_it(number):
    source = body().replace("A)\n    a =", "A)  # HERE\n    a =")
    refuse(source, CapabilityError, "nvidia.tcgen05.*sm_100.*Instead", gpu(number))


@since(3, 8)
def test_integers_are_not_for_every_blackwell():
    source = body(dtype="gl.int8", acc_type="gl.int32")
    refuse(source, CapabilityError, "nvidia.tcgen05_i8", gpu(103))


@before(3, 7)
def test_what_needs_a_newer_triton_says_so():
    for call in NEWER_CALLS:
        refuse(body(call), CapabilityError, "Triton >= 3.7, found")


@before(3, 9)
def test_slices_of_rows_need_a_newer_triton():
    refuse(body("acc.slice(0, 64, dim=0)"), CapabilityError, "Triton >= 3.9, found")
