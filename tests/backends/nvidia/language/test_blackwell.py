"""Tensor memory and tcgen05: the same modules as upstream."""

from __future__ import annotations

import itertools

import pytest

import gluon_core
from gluon_core.errors import (
    LayoutError,
    ShapeError,
)
from gluon_core.testing import TRITON_VERSION
from tests.backends.nvidia.language.blackwell_programs import (
    SETUP,
    body,
    gpu,
    pairs,
    scaled,
)
from tests.frontend.vendor_oracle import agree, before, parse, refuse, since

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

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


@pytest.mark.parametrize("layout", ["A", "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])"])
def test_another_view_of_a_slice(layout):
    buffer = (
        "acc" if layout == "A" else f"gl.allocate_shared_memory(gl.float32, [128, 128], {layout})"
    )
    view = f"_reinterpret(gl.float16, [128, 128], {layout})  # HERE"
    source = MEMORY.format(more=f"{buffer}.slice(0, 64, DIM).{view}")
    source = source.replace(", DIM", "" if layout == "A" else ", 0")
    if TRITON_VERSION == (3, 8):  # only views of whole buffers
        refuse(source, ShapeError, r"no other view of a slice.*\[128, 128\].*slice the view")
        refuse(source.replace("0, 64", "0, 32"), ShapeError, "no other view of a slice")
    else:
        agree(source.replace("_reinterpret", "reinterpret") if TRITON_VERSION >= (3, 9) else source)


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
    versions = ((), (False,), (True,)) if TRITON_VERSION >= (3, 8) else ((),)
    checked = 0
    for a, b in itertools.product(of_a, of_b):
        both = any(not any(x) and not any(y) for x, y in zip(a, b))
        if len(a) != len(b) or (both and TRITON_VERSION < (3, 8)):
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
