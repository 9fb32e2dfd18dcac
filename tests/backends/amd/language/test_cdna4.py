"""gl.amd.cdna4: copies past the registers, scaled MFMA and its layouts; the same as upstream's."""

from __future__ import annotations

import itertools
import warnings

import pytest

import gluon_core
from gluon_amd.arch import lanes_read_together
from gluon_core import language as gl
from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DtypeError,
    LayoutError,
    ShapeError,
)
from gluon_core.layouts import cost
from gluon_core.registry.load import registry
from gluon_core.testing import TRITON_VERSION, triton_at_least
from tests.frontend.vendor_oracle import agree, before, refuse, since
from tests.tables import mistakes

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]

SETUP = """
from GLUON.language.amd import cdna3, cdna4
from GLUON.language.amd.cdna4 import async_copy
TARGET = GPUTarget("hip", "gfx950", 64)
"""
COPY = (
    SETUP
    + """
L = gl.constexpr({layout})
S = gl.constexpr({shared})
@gluon.jit
def kernel(p, n, q):
    rows = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    offsets = rows[:, None] * 64 + columns[None, :]
    mask = rows[:, None] < n
    x = gl.full([32, 64], 1, p.dtype.element_ty, layout=L)
    smem = gl.allocate_shared_memory(p.dtype.element_ty, [2, 32, 64], S)
    dest = smem.index(1)
    {call}  # HERE
    async_copy.commit_group()
    async_copy.wait_group()
    async_copy.wait_group(num_outstanding=2)
    y = async_copy.load_shared_relaxed(dest, L)
    gl.store(p + offsets, y)
ARGS = (ptr({pointee}), 10, ptr(gl.float64))
"""
)
PLAIN = "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])"
BLOCKED = "gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0])"


def gpu(name):
    return gluon_core._triton.GPUTarget("hip", name, 64)


def copy(call, pointee="gl.float16", layout=BLOCKED, shared=PLAIN):
    return COPY.format(call=call, pointee=pointee, layout=layout, shared=shared)


# -- copies past the registers -------------------------------------------------------------------

COPIES = [
    "async_copy.buffer_load_to_shared(dest, p, offsets)",
    "async_copy.buffer_load_to_shared(dest, p, offsets, mask=mask)",
    "async_copy.buffer_load_to_shared(dest, p, offsets, mask, 0)",
    "async_copy.buffer_load_to_shared(dest, p, offsets, mask=mask, other=x, cache_modifier='.cg')",
    "async_copy.buffer_load_to_shared(dest, p, offsets, n > 3, 1.5, '.cv')",
    "async_copy.buffer_load_to_shared(dest, p, offsets, cache_modifier='.ca')",
    "async_copy.global_load_to_shared(dest, p + offsets)",
    "async_copy.global_load_to_shared(dest, p + offsets, mask=mask)",
    "async_copy.global_load_to_shared(dest, p + offsets, mask, 0)",
    "async_copy.global_load_to_shared(dest, p + offsets, mask=mask, other=x, cache_modifier='.cg')",
    "async_copy.global_load_to_shared(dest, p + offsets, n > 3, 1.5, '.cv')",
    "async_copy.global_load_to_shared(dest, ptr=p + offsets, cache_modifier='.ca')",
]


@pytest.mark.parametrize("call", COPIES)
def test_copies(call):
    text = agree(copy(call))
    assert "syncedViaAsyncWait" in text


def test_code_for_old_releases_warns():
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        agree(copy("async_copy.buffer_load_to_shared(dest, p, offsets, mask, other=3)"))
    warnings_about_other = [
        str(w.message) for w in warned if "does not write `other`" in str(w.message)
    ]
    assert bool(warnings_about_other) == (not triton_at_least(3, 8))


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("pointee, size", [("gl.float32", 1), ("gl.int8", 4), ("gl.bfloat16", 2)])
def test_copies_of_four_bytes_per_lane(pointee, size, target):
    layout = f"gl.BlockedLayout([1, {size}], [{size}, {64 // size}], [4, 1], [1, 0])"
    agree(copy(COPIES[1], pointee, layout), gpu(target))


PADDED = "gl.PaddedSharedLayout.with_identity_for([[{}, 16]], [32, 64], [1, 0])"


@pytest.mark.parametrize("shared", ["gl.SwizzledSharedLayout(8, 1, 8, [1, 0])", PADDED.format(512)])
def test_copies_into_buffers_without_conflicts(shared):
    agree(copy(COPIES[0], shared=shared))


NARROW = "gl.BlockedLayout([1, 4], [4, 16], [4, 1], [1, 0])"
SINGLE = "gl.BlockedLayout([1, 1], [1, 64], [4, 1], [1, 0])"
TALL = "gl.BlockedLayout([1, 8], [32, 2], [1, 4], [1, 0])"
SHORT = "gl.BlockedLayout([1, 8], [4, 16], [4, 1], [1, 0])"


@pytest.mark.parametrize(
    "target, pointee, layout, shared",
    [
        ("gfx942", "gl.float16", BLOCKED, PLAIN),  # 16 bytes per lane are for gfx950
        ("gfx950", "gl.float16", NARROW, PLAIN),  # 8 bytes
        ("gfx950", "gl.float16", SINGLE, PLAIN),  # 2 bytes
        ("gfx950", "gl.float32", BLOCKED, PLAIN),  # 32 bytes: the lanes leave gaps
        ("gfx950", "gl.float16", TALL, PLAIN),
        ("gfx950", "gl.float16", SHORT, PLAIN),  # some lanes hold what others hold
        ("gfx950", "gl.float16", BLOCKED, PLAIN.replace("[1, 0]", "[0, 1]")),
        ("gfx950", "gl.float16", BLOCKED, PADDED.format(256)),
        ("gfx950", "gl.float16", BLOCKED, "gl.SwizzledSharedLayout(4, 1, 8, [1, 0])"),
    ],
)
@pytest.mark.parametrize("call", [COPIES[0], COPIES[6]])
def test_lanes_must_write_side_by_side(call, target, pointee, layout, shared):
    source = copy(call, pointee, layout, shared)
    refuse(source, LayoutError, "the lanes of a warp write to LDS side by side", gpu(target))


@mistakes("""
error | match | call
DtypeError | ptr: must be | async_copy.buffer_load_to_shared(dest, p + offsets, offsets)
DtypeError | 32 bits | async_copy.buffer_load_to_shared(dest, p, offsets.to(gl.int64))
DtypeError | dest: the element type | async_copy.buffer_load_to_shared(dest, q, offsets)
DtypeError | dest: not shared memory | async_copy.buffer_load_to_shared(x, p, offsets)
ShapeError | dest: the shape | async_copy.buffer_load_to_shared(smem, p, offsets)
DtypeError | mask: must be | async_copy.buffer_load_to_shared(dest, p, offsets, offsets)
ShapeError | mask: does not | async_copy.buffer_load_to_shared(dest, p, offsets, rows < n)
ArgumentError 3.8+ | needs a mask | async_copy.buffer_load_to_shared(dest, p, offsets, other=0)
ArgumentError | cache_modifier | async_copy.buffer_load_to_shared(dest, p, offsets, cache_modifier='.wb')
DtypeError | ptr: not a pointer | async_copy.global_load_to_shared(dest, offsets)
ShapeError | ptr: a scalar | async_copy.global_load_to_shared(dest, p)
DtypeError | dest: the element type | async_copy.global_load_to_shared(dest, q + offsets)
DtypeError | mask: must be | async_copy.global_load_to_shared(dest, p + offsets, n)
ArgumentError | num_outstanding | async_copy.wait_group(-1)
ArgumentError | num_outstanding | async_copy.wait_group(n)
DtypeError | smem: not shared memory | async_copy.load_shared_relaxed(x, L)
""")
def test_copy_errors(call, error, match):
    refuse(copy(call), error, match)


def test_no_copies_past_the_registers_elsewhere():
    layout = "gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])"
    for call in (COPIES[0], COPIES[6]):
        source = copy(call, layout=layout)
        refuse(source, CapabilityError, "load_to_lds.*gfx1100", "gfx1100")
        refuse(source, CapabilityError, "load_to_lds.*sm_90", "nvidia:sm_90")


# -- scaled MFMA ----------------------------------------------------------------------------------

SCALED = (
    SETUP
    + """
ACC = gl.constexpr(gl.amd.AMDMFMALayout(4, {instr}, True, [2, 2]))
A = gl.constexpr(gl.DotOperandLayout(0, ACC, {width}))
B = gl.constexpr(gl.DotOperandLayout(1, ACC, {width}))
@gluon.jit
def kernel(x):
    AS: gl.constexpr = cdna4.get_mfma_scale_layout(A, [64, {blocks}])
    BS: gl.constexpr = cdna4.get_mfma_scale_layout(B, [32, {blocks}])
    a = gl.full([64, {a_k}], 0, gl.uint8, layout=A){a_cast}
    b = gl.full([{b_k}, 32], 0, gl.uint8, layout=B){b_cast}
    s = gl.full([64, {blocks}], 127, gl.{scale}, layout=AS)
    t = gl.full([32, {blocks}], 120, gl.{scale}, layout=BS)
    c = gl.full([64, 32], 0.0, gl.{acc}, layout=ACC)
    d = cdna4.mfma_scaled({args})  # HERE
    gl.static_assert(d.type == c.type)
ARGS = (3,)
"""
)


def scaled(args="a, s, 'e2m1', b, t, 'e2m1', c", **changes):
    values = {"instr": [16, 16, 128], "width": 16, "blocks": 4, "scale": "uint8", "acc": "float32"}
    values |= {"a_cast": "", "b_cast": "", "args": args}
    for name, position in (("a", 2), ("b", 5)):
        packed = "'e2m1'" in args.split(", ")[position]
        values[f"{name}_k"] = 64 if packed else 128
    return SCALED.format(**{**values, **changes})


@pytest.mark.sampled(8)
@pytest.mark.parametrize("instr", [[16, 16, 128], [32, 32, 64]])
@pytest.mark.parametrize(
    "args",
    [
        "a, s, 'e2m1', b, t, 'e2m1', c",
        "a, s, 'e4m3', b, t, 'e5m2', c",
        "a, s, 'e2m1', b, t, 'e4m3', c",
        "a, None, 'e2m1', b, None, 'e2m1', c",
        "a, 120, 'e5m2', b, t, 'e2m1', c",
        "a=a, a_scale=s, a_format='e2m1', b=b, b_scale=None, b_format='e2m1', acc=c",
    ],
)
def test_mfma_scaled(args, instr):
    agree(scaled(args, instr=instr), gpu("gfx950"))


def test_mfma_scaled_of_typed_operands():
    casts = {
        "a_cast": ".to(gl.float8e4nv, bitcast=True)",
        "b_cast": ".to(gl.float8e5, bitcast=True)",
    }
    agree(scaled("a, s, 'e4m3', b, t, 'e5m2', c", **casts))
    agree(scaled(scale="int8"))


@since(3, 9)
def test_register_class_of_scaled_mfma():
    agree(scaled("a, s, 'e2m1', b, t, 'e2m1', c, cd_regclass='a'"))


@before(3, 9)
def test_register_class_of_scaled_mfma_names_the_triton_it_needs():
    source = scaled("a, s, 'e2m1', b, t, 'e2m1', c, 'a'")
    refuse(source, CapabilityError, "mfma_scaled.cd_regclass=....*Triton >= 3.9")


@pytest.mark.parametrize(
    "args, changes, error, match",
    [
        ("a, s, 'e3m2', b, t, 'e2m1', c", {"a_k": 64}, ArgumentError, "a_format.*'e3m2'"),
        ("a, s, 'e2m1', b, t, 'e4m4', c", {"b_k": 64}, ArgumentError, "Did you mean 'e4m3'"),
        ("a, s, 'e2m1', b, t, 3, c", {"b_k": 64}, ArgumentError, "b_format"),
        ("a, s, 'e2m1', b, t, 'e2m1', c", {"b_k": 128}, ShapeError, "do not multiply"),
        ("a, t, 'e2m1', b, t, 'e2m1', c", {}, ShapeError, "a_scale"),
        ("a, s, 'e2m1', b, s, 'e2m1', c", {}, ShapeError, "b_scale"),
        ("a, c, 'e2m1', b, t, 'e2m1', c", {}, DtypeError, "a_scale"),
        ("a, 256, 'e2m1', b, t, 'e2m1', c", {}, ArgumentError, "a_scale.*E8M0"),
        ("a, 1.0, 'e2m1', b, t, 'e2m1', c", {}, DtypeError, "a_scale"),
        ("a, s, 'e2m1', b, t, 'e2m1', c", {"acc": "float16"}, DtypeError, "acc"),
        ("a, s, 'e2m1', b, t, 'e2m1', c", {"width": 8}, LayoutError, "k_width=16"),
        ("a, s, 'e2m1', b, t, 'e2m1', s", {}, LayoutError, "accumulator of scaled MFMA"),
        ("a, s, 'e2m1', s, t, 'e2m1', c", {"b_k": 64}, ShapeError, "do not multiply"),
        ("a, s, 'e4m3', b, t, 'e2m1', c", {"a_cast": ".to(gl.float8e5, bitcast=True)"}, DtypeError,
         "a: does not hold e4m3"),
    ],
)  # fmt: skip
def test_mfma_scaled_errors(args, changes, error, match):
    refuse(scaled(args, **changes), error, match)


def test_no_scales_on_cdna3():
    refuse(scaled(), CapabilityError, "amd.mfma_scaled.*gfx942", gpu("gfx942"))
    old = scaled().replace("AMDMFMALayout(4", "AMDMFMALayout(3")
    refuse(old, CapabilityError, "version 3 has no block scales")


# -- layouts that are computed --------------------------------------------------------------------


def fields(layout):
    layout = getattr(layout, "value", layout)
    if layout is None:
        return None
    names = sorted(layout.__dataclass_fields__)
    plain = {name: getattr(layout, name) for name in names}
    pairs = plain.get("interval_padding_pairs")
    if pairs is not None:
        plain["interval_padding_pairs"] = [list(pair) for pair in pairs]
    return plain


def both(name, index, instr, transposed, warps, tiles, width, *rest):
    """The function of that name, upstream's and ours, for the same operand."""
    from triton.experimental.gluon import language as theirs

    import gluon_core.language as ours

    results = []
    for lang in (theirs, ours):
        parent = lang.amd.AMDMFMALayout(4, instr, transposed, warps, tiles_per_warp=tiles)
        operand = lang.DotOperandLayout(index, parent, width)
        arguments = [getattr(lang, x) if isinstance(x, str) else x for x in rest]
        results.append(fields(getattr(lang.amd.cdna4, name)(operand, *arguments)))
    return results


@pytest.mark.sampled(12)
@pytest.mark.parametrize("instr", [[16, 16, 128], [32, 32, 64]])
@pytest.mark.parametrize("warps", [[2, 2], [4, 1], [1, 4], [1, 1], [2, 4]])
@pytest.mark.parametrize("tiles", [[1, 1], [2, 1], [2, 4]])
def test_layout_of_mfma_scales(instr, warps, tiles):
    cases = itertools.product((0, 1), (True, False), (16, 32, 128, 256), (1, 2, 4, 16))
    for index, transposed, rows, blocks in cases:
        shape = [rows, blocks]
        theirs, mine = both(
            "get_mfma_scale_layout", index, instr, transposed, warps, tiles, 16, shape
        )
        assert mine == theirs, (index, transposed, shape)


@since(3, 8)
@pytest.mark.parametrize("instr, dtype, width", [
    ([16, 16, 32], "bfloat16", 8), ([32, 32, 16], "float16", 8), ([16, 16, 32], "float8e5", 8),
    ([16, 16, 128], "uint8", 16), ([16, 16, 32], "float16", 4), ([16, 16, 4], "float32", 1),
])  # fmt: skip
def test_padded_layouts(instr, dtype, width):
    shapes = ([128, 64], [64, 128], [256, 32], [32, 256], [16, 128])
    for index, contiguous, shape in itertools.product((0, 1), (True, False), shapes):
        theirs, mine = both(
            "compute_efficient_padded_shared_layout",
            *(index, instr, True, [2, 2], [1, 1], width, shape, dtype, contiguous),
        )
        assert mine == theirs, (index, contiguous, shape)


@since(3, 8)
@pytest.mark.parametrize("instr", [[16, 16, 32], [32, 32, 16]])
@pytest.mark.parametrize("shape", [[128, 64], [64, 128], [256, 64]])
def test_padded_layouts_have_no_conflicts(instr, shape):
    """By our own count of the banks, reading and writing."""
    parent = gl.amd.AMDMFMALayout(4, instr, True, [2, 2])
    operand = gl.DotOperandLayout(0, parent, 8)
    shared = gl.amd.cdna4.compute_efficient_padded_shared_layout(operand, shape, gl.bfloat16)
    assert cost.vector_elements(operand, shared, shape, 16) == 8
    gfx950 = registry().target("gfx950").architecture
    together = lanes_read_together(gfx950, 128)
    assert cost.bank_conflicts(operand, shared, shape, 16, gfx950.banks, together=together) == 0
    plain = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    assert cost.bank_conflicts(operand, plain, shape, 16, gfx950.banks, together=together) > 0


@before(3, 8)
def test_padded_layouts_name_the_triton_they_need():
    operand = gl.DotOperandLayout(0, gl.amd.AMDMFMALayout(4, [16, 16, 32], True, [2, 2]), 8)
    with pytest.raises(CapabilityError, match="padded_shared_layout needs Triton >= 3.8"):
        gl.amd.cdna4.compute_efficient_padded_shared_layout(operand, [128, 64], gl.bfloat16)


def test_errors_of_layout_functions():
    parent = gl.amd.AMDMFMALayout(4, [16, 16, 128], True, [2, 2])
    operand = gl.DotOperandLayout(0, parent, 16)
    for bad in (parent, gl.BlockedLayout([1, 1], [1, 64], [4, 1], [1, 0])):
        with pytest.raises(LayoutError, match="not an operand of MFMA"):
            gl.amd.cdna4.get_mfma_scale_layout(bad, [64, 4])
    with pytest.raises(ShapeError, match="matrix"):
        gl.amd.cdna4.get_mfma_scale_layout(operand, [2, 64, 4])
    with pytest.raises(ArgumentError, match="blocks of 32"):
        gl.amd.cdna4.get_mfma_scale_layout(operand, [64, 4], 16)
    if TRITON_VERSION >= (3, 8):
        with pytest.raises(DtypeError, match="dtype"):
            gl.amd.cdna4.compute_efficient_padded_shared_layout(operand, [128, 64], 16)


# -- narrow floats --------------------------------------------------------------------------------

DOWNCAST = (
    SETUP
    + """
L = gl.constexpr({layout})
S = gl.constexpr({scales})
@gluon.jit
def kernel():
    x = gl.full([32, 64], 1.0, gl.{dtype}, layout=L)
    s = gl.full({shape}, 127, gl.{scale}, layout=S)
    y = cdna4.scaled_downcast({args})  # HERE
"""
)
EIGHT = "gl.DistributedLinearLayout([[0, 1], [0, 2], [0, 4]], [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0], [4, 0]], [[8, 0], [16, 0]], [], [32, 64])"
OF_32 = "gl.DistributedLinearLayout([], [[0, 0], [0, 0], [0, 1], [1, 0], [2, 0], [4, 0]], [[8, 0], [16, 0]], [], [32, 2])"
OF_16 = "gl.DistributedLinearLayout([], [[0, 0], [0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[8, 0], [16, 0]], [], [32, 4])"


def downcast(args, **changes):
    values = {"layout": BLOCKED, "scales": OF_32, "shape": [32, 2], "dtype": "bfloat16"}
    return DOWNCAST.format(**{**values, "scale": "uint8", "args": args, **changes})


@since(3, 9)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    "args",
    ["x, s, 'e4m3'", "x, s, 'e5m2', -1", "x, s, 'e2m1', axis=1", "input=x, scale=s, format='e2m1'"],
)
def test_scaled_downcast(args, dtype):
    for target in ("gfx950",):
        agree(downcast(args, dtype=dtype), gpu(target))
        agree(downcast(args, dtype=dtype, layout=EIGHT), gpu(target))
        agree(downcast(args, dtype=dtype, scales=OF_16, shape=[32, 4], scale="int8"), gpu(target))


@since(3, 9)
@pytest.mark.parametrize(
    "args, changes, error, match",
    [
        ("x, s, 'e3m2'", {}, ArgumentError, "format"),
        ("x, s, 'e4m4'", {}, ArgumentError, "Did you mean 'e4m3'"),
        ("x.to(gl.float8e5), s, 'e4m3'", {}, DtypeError, "input"),
        ("x, x, 'e4m3'", {}, DtypeError, "scale"),
        ("x, s, 'e4m3', 2", {}, ShapeError, "axis"),
        ("x, s, 'e4m3', 0", {}, ShapeError, "scale"),
        ("x, s, 'e4m3'", {"scales": BLOCKED, "shape": [32, 64]}, ShapeError, "one scale for each block"),
        ("x, s, 'e4m3'", {"scales": BLOCKED}, LayoutError, "scale: the scales are not in"),
        ("x, s, 'e2m1'", {"layout": "gl.BlockedLayout([1, 4], [4, 16], [4, 1], [1, 0])"}, LayoutError,
         "input: 8 consecutive"),
    ],
)  # fmt: skip
def test_scaled_downcast_errors(args, changes, error, match):
    refuse(downcast(args, **changes), error, match)


@before(3, 9)
def test_scaled_downcast_names_the_triton_it_needs():
    refuse(downcast("x, s, 'e4m3'"), CapabilityError, "scaled_downcast needs Triton >= 3.9")


REPACKED = (
    SETUP
    + """
ACC = gl.constexpr(gl.amd.AMDMFMALayout(4, [16, 16, 128], True, [2, 2]))
A = gl.constexpr(gl.DotOperandLayout(0, ACC, 16))
B = gl.constexpr(gl.DotOperandLayout(1, ACC, 16))
@gluon.jit
def kernel():
    m = gl.allocate_shared_memory(gl.{dtype}, {shape}, gl.SwizzledSharedLayout(1, 1, 1, {order}))
    x = cdna4.load_shared_fp4_repacked({args})  # HERE
"""
)


def repacked(args, shape, order, dtype="uint8"):
    return REPACKED.format(args=args, shape=shape, order=order, dtype=dtype)


@since(3, 9)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_fp4_repacked(dtype):
    agree(repacked("m, B", [64, 128], [1, 0], dtype))
    agree(repacked("mem_desc=m, layout=B", [128, 64], [1, 0], dtype))
    agree(repacked("m, A", [128, 64], [0, 1], dtype))


@since(3, 9)
@pytest.mark.parametrize(
    "args, order, dtype, error, match",
    [
        ("m, A", [1, 0], "uint8", LayoutError, "mem_desc: the packed dimension"),
        ("m, B", [0, 1], "uint8", LayoutError, "mem_desc: the packed dimension"),
        ("m, ACC", [1, 0], "uint8", LayoutError, "layout: not the layout of an operand"),
        ("m, B", [1, 0], "float16", DtypeError, "mem_desc: packed fp4"),
        ("3, B", [1, 0], "uint8", DtypeError, "mem_desc: not shared"),
    ],
)
def test_fp4_repacked_errors(args, order, dtype, error, match):
    refuse(repacked(args, [64, 64], order, dtype), error, match)


@before(3, 9)
def test_fp4_repacked_names_the_triton_it_needs():
    source = repacked("m, B", [64, 128], [1, 0])
    refuse(source, CapabilityError, "load_shared_fp4_repacked needs Triton >= 3.9")
