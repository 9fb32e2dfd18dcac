"""Scaled WMMA of gfx1250 and its layouts: as upstream has them."""

from __future__ import annotations

import itertools

import pytest

from gluon_core import language as gl
from gluon_core.errors import ArgumentError, CapabilityError, DtypeError, LayoutError, ShapeError
from gluon_core.language.amd import gfx1250
from gluon_core.testing import TRITON_VERSION
from tests.frontend.vendor_oracle import agree, before, parse, refuse, since

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]

theirs = pytest.importorskip("triton.experimental.gluon").language


def _pair(build):
    """(upstream's, ours) of what `build` makes with either language."""
    from triton.experimental.gluon.language.amd import gfx1250 as upstream

    return build(theirs, upstream), build(gl, gfx1250)


def fields(value):
    """A layout as plain data; upstream's classes have other reprs in 3.6."""
    value = getattr(value, "value", value)
    if isinstance(value, (tuple, list)):
        return [fields(item) for item in value]
    if not hasattr(value, "__dataclass_fields__"):
        return value
    names = ("num_partitions", "num_groups", "partition_dim", "partition_layout", "version",
             "transposed", "interval_padding_pairs", "offset_bases", "reg_bases", "lane_bases",
             "warp_bases", "block_bases", "shape", "instr_shape", "cga_layout")  # fmt: skip
    return {
        name: fields(getattr(value, name)) for name in names if name in value.__dataclass_fields__
    }


def wmma(language, warps, tiles, instr=(16, 16, 128), transposed=True, cga=()):
    """The layout of so many warps and tiles per dimension, in the spelling of either."""
    if TRITON_VERSION < (3, 7):
        return language.amd.AMDWMMALayout(3, transposed, list(warps), list(instr), list(tiles))

    def bases(counts, units):
        rows = []
        for d in (1, 0):
            for bit in range(counts[d].bit_length() - 1):
                rows.append([units[d] << bit if d == 0 else 0, units[d] << bit if d else 0])
        return rows

    return language.amd.AMDWMMALayout(
        3,
        transposed,
        bases(warps, tiles),
        bases(tiles, (1, 1)),
        list(instr),
        [list(b) for b in cga],
    )


# -- layouts of scales ------------------------------------------------------------------------------

WARPS = [(2, 2), (4, 1), (1, 4), (1, 1), (4, 2)]
TILES = [(1, 1), (2, 2), (1, 2), (2, 1)] + ([(4, 1), (4, 4)] if TRITON_VERSION >= (3, 7) else [])
SHAPES = [(32, 4), (64, 4), (128, 4), (128, 8), (256, 16), (64, 2), (128, 1)]


def fits(warps, tiles, index, shape, unit=16):
    """The compiler aborts on some layouts that are larger than the tensor."""
    return shape[0] >= unit * warps[index] * tiles[index]


@pytest.mark.parametrize("warps, tiles", list(itertools.product(WARPS, TILES)))
def test_scale_layouts(warps, tiles):
    for index, shape in itertools.product((0, 1), SHAPES):
        if not fits(warps, tiles, index, shape):
            continue
        want, have = _pair(
            lambda language, unit: unit.get_wmma_scale_layout(
                language.DotOperandLayout(index, wmma(language, warps, tiles), 16), list(shape)
            )
        )
        assert fields(have) == fields(want), (index, shape)


@pytest.mark.sampled(6)
@since(3, 8)
@pytest.mark.parametrize("instr", [(16, 16, 128), (32, 16, 128)])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("factor", [16, 32])
def test_scale_layouts_of_other_instructions(instr, transposed, factor):
    tried = 0
    for warps, tiles, index, shape in itertools.product(WARPS, TILES, (0, 1), SHAPES):
        if not fits(warps, tiles, index, shape, 32):
            continue
        tried += 1
        want, have = _pair(
            lambda language, unit: unit.get_wmma_scale_layout(
                language.DotOperandLayout(
                    index, wmma(language, warps, tiles, instr, transposed), 16
                ),
                list(shape),
                factor,
            )
        )
        assert fields(have) == fields(want), (warps, tiles, index, shape)
    assert tried > 100


@since(3, 7)
@pytest.mark.parametrize("cga", [[[1, 0]], [[0, 1]], [[1, 0], [0, 1]], [[0, 0]]])
def test_scale_layouts_of_clusters(cga):
    for index, shape in itertools.product((0, 1), [(128, 8), (64, 4), (256, 16)]):
        want, have = _pair(
            lambda language, unit: unit.get_wmma_scale_layout(
                language.DotOperandLayout(index, wmma(language, (2, 2), (1, 1), cga=cga), 16),
                list(shape),
            )
        )
        assert fields(have) == fields(want), (index, shape)


def test_bad_scale_layouts():
    operand = gl.DotOperandLayout(0, wmma(gl, (2, 2), (1, 1)), 16)
    with pytest.raises(LayoutError, match="operand of scaled WMMA"):
        gfx1250.get_wmma_scale_layout(operand.parent, [64, 4])
    with pytest.raises(ShapeError, match="shape of scales"):
        gfx1250.get_wmma_scale_layout(operand, [64, 3])
    with pytest.raises(ArgumentError, match="16 or 32"):
        gfx1250.get_wmma_scale_layout(operand, [64, 4], 64)
    if TRITON_VERSION < (3, 8):
        with pytest.raises(CapabilityError, match="3.8"):
            gfx1250.get_wmma_scale_layout(operand, [64, 4], 16)


# -- partitioned LDS --------------------------------------------------------------------------------

BLOCKS = [(64, 32), (64, 64), (128, 128), (256, 128), (128, 256), (256, 256)]
PARTITIONED = [
    (block, warps, instr, a, b)
    for block in BLOCKS
    for warps in (4, 8)
    for instr in ([16, 16, 32], [16, 16, 128])
    for a in (False, True)
    for b in (False, True)
]


def partitioned(block, warps, instr, a, b, **more):
    m, n = block

    def build(language, unit):
        def padded(shape):
            return language.PaddedSharedLayout.with_identity_for([[64, 8]], shape, [1, 0])

        return unit.make_partitioned_dot_layouts(
            m, n, padded([64, m] if a else [m, 64]), padded([n, 64] if b else [64, n]), warps, instr,
            a, b, **more,
        )  # fmt: skip

    return _pair(build)


@since(3, 8)
def test_partitioned_layouts():
    for case in PARTITIONED:
        want, have = partitioned(*case)
        assert fields(have) == fields(want), case


@since(3, 8)
def test_partitioned_layouts_of_tall_instructions():
    for warps in (4, 8):
        want, have = partitioned((256, 256), warps, [32, 16, 128], False, False)
        assert fields(have) == fields(want)


@since(3, 9)
@pytest.mark.parametrize("slices", [(64, 64), (64, 32), (128, 64), (64, None), (None, 32)])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("instr", [[16, 16, 32], [32, 16, 128]])
def test_partitioned_layouts_of_slices(slices, transposed, instr):
    more = {"slice_m": slices[0], "slice_n": slices[1], "transposed": transposed}
    try:
        want, have = partitioned((128, 256), 4, instr, False, True, **more)
    except AssertionError as error:
        assert "must be at least" in str(error)
        padded = gl.PaddedSharedLayout.with_identity_for
        a, b = padded([[64, 8]], [128, 64], [1, 0]), padded([[64, 8]], [256, 64], [1, 0])
        with pytest.raises(ShapeError, match="slice"):
            gfx1250.make_partitioned_dot_layouts(128, 256, a, b, 4, instr, False, True, **more)
        return
    assert fields(have) == fields(want)


def _make(m=128, n=128, warps=4, a=None, **more):
    padded = gl.PaddedSharedLayout.with_identity_for
    a = a or padded([[64, 8]], [128, 64], [1, 0])
    b = padded([[64, 8]], [64, 128], [1, 0])
    return gfx1250.make_partitioned_dot_layouts(m, n, a, b, warps, [16, 16, 32], **more)


@since(3, 8)
def test_bad_partitions():
    with pytest.raises(ArgumentError, match="4 or 8"):
        _make(warps=2)
    with pytest.raises(LayoutError, match="block's shape"):
        _make(m=64)
    with pytest.raises(LayoutError, match="PaddedSharedLayout"):
        _make(a=gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    with pytest.raises(ShapeError, match="slice_m"):
        _make(slice_m=32)
    with pytest.raises(ShapeError, match="slice_n"):
        _make(slice_n=48)


@before(3, 8)
def test_partitions_need_3_8():
    with pytest.raises(CapabilityError, match="Triton >= 3.8"):
        _make()


PRODUCT = """
from GLUON.language.amd import gfx1250
from GLUON.language.amd.gfx1250 import tdm
TARGET = GPUTarget("hip", "gfx1250", 32)
PA = gl.PaddedSharedLayout.with_identity_for([[64, 8]], [128, 64], [1, 0])
PB = gl.PaddedSharedLayout.with_identity_for([[128, 8]], [64, 128], [1, 0])
LAYOUTS = gfx1250.make_partitioned_dot_layouts(128, 128, PA, PB, 4, [16, 16, 32])
LAYOUTS = getattr(LAYOUTS, "value", LAYOUTS)
A, B, ACC = gl.constexpr(LAYOUTS[0]), gl.constexpr(LAYOUTS[1]), gl.constexpr(LAYOUTS[2])
@gluon.jit
def kernel(a, b, c):
    ad = tdm.make_tensor_descriptor(a, [128, 64], [64, 1], [128, 64], A)
    bd = tdm.make_tensor_descriptor(b, [64, 128], [128, 1], [64, 128], B)
    asm = gl.allocate_shared_memory(ad.dtype, ad.block_shape, ad.layout)
    bsm = gl.allocate_shared_memory(bd.dtype, bd.block_shape, bd.layout)
    tdm.async_load(ad, [0, 0], asm)
    tdm.async_load(bd, [0, 0], bsm)
    tdm.async_wait(0)
    x = asm.load(gl.DotOperandLayout(0, ACC, 8))
    y = bsm.load(gl.DotOperandLayout(1, ACC, 8))
    acc = gfx1250.wmma(x, y, gl.full([128, 128], 0, gl.float32, layout=ACC))
    m = gl.arange(0, 128, layout=gl.SliceLayout(1, ACC))
    n = gl.arange(0, 128, layout=gl.SliceLayout(0, ACC))
    gfx1250.buffer_store(acc, c, m[:, None] * 128 + n[None, :])
ARGS = (ptr(gl.float16), ptr(gl.float16), ptr(gl.float32))
"""


@since(3, 8)
def test_a_product_in_partitioned_lds():
    text = agree(PRODUCT)
    assert text.count("#ttg.partitioned_shared") == 2 and "tt.dot" in text


# -- scaled WMMA ------------------------------------------------------------------------------------

SOURCE = """
from GLUON.language.amd import gfx1250
TARGET = GPUTarget("hip", "gfx1250", 32)
{layouts}
@gluon.jit
def kernel(p):
    LA: gl.constexpr = gl.DotOperandLayout(0, {pa}, {width})
    LB: gl.constexpr = gl.DotOperandLayout(1, {pb}, {width})
    SA: gl.constexpr = gfx1250.get_wmma_scale_layout(LA, {shape}{factor})
    SB: gl.constexpr = gfx1250.get_wmma_scale_layout(LB, {shape}{factor})
    x = gl.full([64, {ka}], 1, {ta}, layout=LA)
    y = gl.full([{kb}, 64], 1, {tb}, layout=LB)
    s = gl.full({shape}, 1, {ts}, layout=SA)
    t = gl.full({shape}, 1, {ts}, layout=SB)
    acc = gl.full([64, 64], 0, {tc}, layout={acc})
    d = gfx1250.wmma_scaled(x, {s}, "{fa}", y, {t}, "{fb}", acc)  # HERE
    gl.static_assert(d.type == acc.type)
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, {acc}))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, {acc}))
    gl.store(p + rows[:, None] * 64 + columns[None, :], d)
ARGS = (ptr(gl.float32),)
"""


def _layout(name, m, k):
    warps = "[[0, 1], [1, 0]], []" if TRITON_VERSION >= (3, 7) else "[2, 2]"
    return f"{name} = gl.constexpr(gl.amd.AMDWMMALayout(3, True, {warps}, [{m}, 16, {k}]))"


def scaled(fa="e4m3", fb="e4m3", **changes):
    layouts = [_layout("ACC", 16, 128), _layout("PACK", 16, 64)]
    if TRITON_VERSION >= (3, 8):
        layouts += [_layout("ACC32", 32, 128), _layout("PACK32", 32, 64)]
    values = {
        "layouts": "\n".join(layouts), "fa": fa, "fb": fb, "width": 16, "shape": [64, 4],
        "factor": "", "ts": "gl.uint8", "tc": "gl.float32", "s": "s", "t": "t", "acc": "ACC",
        "ta": "gl.uint8", "tb": "gl.uint8",
        "pa": "PACK" if fa == "e2m1" else "ACC", "pb": "PACK" if fb == "e2m1" else "ACC",
        "ka": 64 if fa == "e2m1" else 128, "kb": 64 if fb == "e2m1" else 128,
    }  # fmt: skip
    return SOURCE.format(**{**values, **changes})


FORMATS = ["e2m1", "e4m3", "e5m2"]


@pytest.mark.parametrize("fa, fb", list(itertools.product(FORMATS, FORMATS)))
def test_formats(fa, fb):
    assert f"lhs = {fa} rhs = {fb}" in agree(scaled(fa, fb))


@pytest.mark.parametrize("s, t", [("None", "t"), ("s", "0x7F"), ("0x7F", "0x7E"), ("None", "None")])
def test_scales_that_are_not_tensors(s, t):
    agree(scaled(s=s, t=t))


@since(3, 7)
def test_dtypes_of_operands():
    agree(scaled(ta="gl.float8e4nv", tb="gl.float8e4nv").replace(", 1, gl.fl", ", 1.0, gl.fl"))


@since(3, 8)
@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [64, 8], "factor": ", 16"},
        {"fa": "e2m1", "fb": "e2m1", "shape": [64, 8], "factor": ", 16"},
        {"fa": "e2m1", "fb": "e2m1", "acc": "ACC32", "pa": "PACK32", "pb": "PACK32"},
        {"width": 8},
    ],
)
def test_other_forms(changes):
    agree(scaled(**changes))


@since(3, 8)
def test_scales_of_fp8():
    source = scaled("e2m1", "e2m1", ts="gl.float8e4nv", shape=[64, 8], factor=", 16")
    agree(source.replace(", 1, gl.fl", ", 1.0, gl.fl"))


@before(3, 8)
def test_blocks_of_16_need_3_8():
    source = scaled(shape=[64, 8]).replace("  # HERE", "").replace("SA: gl", "SA: gl", 1)
    with pytest.raises(CapabilityError, match="blocks of 16 needs Triton >= 3.8"):
        parse(source)


@pytest.mark.parametrize(
    "changes, error, match",
    [
        ({"fa": "e3m2"}, ArgumentError, "e2m1.*e4m3.*e5m2"),
        ({"tc": "gl.float16"}, DtypeError, "float32"),
        ({"ta": "gl.int16"}, DtypeError, "hold e4m3"),
        ({"acc": "PACK"}, LayoutError, "K = 128"),
        ({"pa": "PACK"}, LayoutError, "layout of an operand"),
        ({"fa": "e2m1", "pa": "ACC"}, LayoutError, "layout of an operand"),
        ({"fa": "e2m1", "ka": 128}, ShapeError, "multiply"),
        ({"s": "acc"}, DtypeError, "E8M0"),
        ({"s": "1.5"}, DtypeError, "E8M0"),
        ({"s": "256"}, ArgumentError, "0 to 255"),
        ({"shape": [64, 2]}, ShapeError, "scales"),
        ({"acc": "gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])"}, LayoutError, "scaled WMMA"),
    ],
)
def test_bad_operands(changes, error, match):
    refuse(scaled(**changes), error, match)


@since(3, 8)
def test_tall_instructions_are_for_fp4():
    refuse(scaled(acc="ACC32", pa="ACC32", pb="ACC32"), LayoutError, "e2m1 only")
