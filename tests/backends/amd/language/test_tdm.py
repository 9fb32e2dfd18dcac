"""The tensor data mover of gfx1250: the same modules as upstream, and errors instead of aborts."""

from __future__ import annotations

import pytest

from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DtypeError,
    LayoutError,
)
from gluon_core.testing import TRITON_VERSION
from tests.backends.amd.language.test_gfx1250 import SETUP, lines
from tests.frontend.vendor_oracle import agree, before, parse, refuse, since
from tests.tables import mistakes

pytestmark = pytest.mark.once

TDM = (
    SETUP
    + """
S = gl.constexpr({layout})
INDEX = gl.constexpr(gl.SliceLayout(1, gl.BlockedLayout([32, 1], [1, 32], [1, 4], [1, 0])))
@gluon.jit
def kernel(p, q, n, wide):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    d = tdm.make_tensor_descriptor(p, [n, 128], [128, 1], [32, 64], S)
    smem = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    rows = gl.arange(0, 32, layout=INDEX)
{body}
ARGS = (ptr({dtype}), ptr(gl.int32), 10, 1 << 40)
"""
)


def tdm(*statements, layout="PADDED", dtype="gl.float16"):
    return TDM.format(body=lines(*statements), layout=layout, dtype=dtype)


@pytest.mark.parametrize("dtype", ["gl.float16", "gl.uint8", "gl.int32", "gl.float64"])
@pytest.mark.parametrize("layout", ["PLAIN", "PADDED"])
def test_load(layout, dtype):
    agree(
        tdm(
            "tdm.async_load(d, [n, 0], smem)",
            "tdm.async_load(d, [0, n], smem, mbarrier=bar)",
            "tdm.async_load(src=d, offsets=[n, n * 2], dest=smem)",
            "tdm.async_wait(1)",
            "tdm.async_wait()",
            layout=layout,
            dtype=dtype,
        )
    )


PREDICATES = {(3, 6): ["True", "n > 3"], (3, 7): ["1", "n"], (3, 8): ["True", "n > 3", "1", "n"]}


@pytest.mark.parametrize("pred", PREDICATES[min(TRITON_VERSION, (3, 8))])
def test_predicate(pred):
    agree(tdm(f"tdm.async_load(d, [n, 0], smem, pred={pred})"))
    agree(tdm(f"tdm.async_load(d, [n, 0], smem, {pred}, bar)"))


@pytest.mark.parametrize("pred", ["True", "n > 3", "1", "n", "None"])
def test_every_predicate_is_taken_by_every_version(pred):
    parse(tdm(f"tdm.async_load(d, [n, 0], smem, pred={pred})"))


@since(3, 8)
def test_load_at_the_descriptor():
    agree(
        tdm(
            "tdm.async_load(d, dest=smem)",
            "tdm.async_load(d, dest=smem, pred=n > 3)",
            "tdm.async_load(d, dest=smem, warp_used_hint=0b0011, cache_modifier='.cg')",
            "tdm.async_load(d, [n, 0], smem, 1, bar, None, '.cs')",
            "tdm.async_store(d, src=smem, cache_modifier='.cs')",
        )
    )


@before(3, 8)
def test_load_at_the_descriptor_means_at_its_start():
    one, other = "tdm.async_load(d, dest=smem)", "tdm.async_load(d, [0, 0], smem)"
    assert parse(tdm(one)) == parse(tdm(other))


@pytest.mark.parametrize(
    "call",
    ["tdm.async_store(d, [0, n], smem)", "tdm.async_store(dest=d, offsets=[n, 0], src=smem)"],
)
def test_store(call):
    agree(tdm(call, layout="PLAIN"))


@since(3, 7)
def test_store_of_padded_rows_and_with_a_barrier():
    agree(tdm("tdm.async_store(d, [0, n], smem)", "tdm.async_store(d, [0, n], smem, bar)"))


@since(3, 7)
def test_prefetch():
    agree(
        tdm(
            "tdm.prefetch(d, [n, 0])",
            "tdm.prefetch(d, [n, 0], n > 3, True)",
            "tdm.prefetch(d, offsets=[n, 0], pred=True, speculative=False)",
        )
    )


ROWS = ["rows", "rows.to(gl.int16)", "rows.to(gl.uint32)"]


@since(3, 7)
@pytest.mark.parametrize("rows", ROWS)
def test_gather_and_scatter(rows):
    column, layout = ("n, ", "PLAIN") if TRITON_VERSION < (3, 8) else ("", "PADDED")
    agree(
        tdm(
            f"tdm.async_gather(d, {rows}, {column}smem)",
            f"tdm.async_gather(d, {rows}, {column}smem, bar)",
            f"tdm.async_gather(desc=d, src_row_indices={rows}, {'src_col_offset=0, ' if column else ''}"
            "dst=smem, mbarrier=bar)",
            f"tdm.async_scatter(d, {rows}, {column}smem)",
            f"tdm.async_scatter(d, {rows}, {column}smem, mbarrier=bar)",
            layout=layout,
        )
    )


@since(3, 8)
def test_the_column_of_3_7_moves_the_descriptor():
    old = "tdm.async_gather(d, rows, n, smem, bar)"
    new = ["e = tdm.update_tensor_descriptor(d, [0, n], clamp_bounds=True)"]
    assert parse(tdm(old)) == parse(tdm(*new, "tdm.async_gather(e, rows, smem, bar)"))
    assert parse(tdm("tdm.async_scatter(d, rows, 0, smem)")) == parse(
        tdm("tdm.async_scatter(d, rows, smem)")
    )


@since(3, 8)
def test_update():
    agree(
        tdm(
            "d = tdm.update_tensor_descriptor(d, add_offsets=[n, 0])",
            "d = tdm.update_tensor_descriptor(d, [n, 0], [n, 64])",
            "d = tdm.update_tensor_descriptor(d, set_bounds=[n, 64], pred=n > 3)",
            "d = tdm.update_tensor_descriptor(d, add_offsets=[n, 0], pred=1, clamp_bounds=True)",
            "d = tdm.update_tensor_descriptor(d, pred=n)",
            "tdm.async_load(d, dest=smem)",
            "gl.store(q, d.shape[0])",
        )
    )


@since(3, 8)
def test_a_descriptor_in_a_loop():
    agree(
        tdm(
            "for i in range(n):",
            "    tdm.async_load(d, dest=smem)",
            "    d = tdm.update_tensor_descriptor(d, add_offsets=[0, 64])",
            "    gl.store(q, d.shape[0])",
        )
    )


@since(3, 9)
def test_fused_loads():
    agree(
        tdm(
            "other = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)",
            "tdm.async_load_fused([(d, smem, 0b0011), (d, other, 0b1100)])",
            "tdm.async_load_fused(((d, smem, 1), (d, other, 2), (d, smem, 4)), '.cg')",
        )
    )


def test_names_of_functions_that_take_descriptors():
    source = tdm("load(d, smem, bar)").replace(
        "@gluon.jit\ndef kernel",
        "@gluon.jit(noinline=True)\ndef load(desc, smem, bar):\n"
        "    tdm.async_load(desc, [desc.shape[0], 0], smem)\n"
        "@gluon.jit\ndef kernel",
    )
    assert "load__TDfp16S32_64S_Ti32_" in agree(source)
    agree(source.replace("[n, 128], [128, 1]", "[128, n], [n, 1]"))


RANKS = """
@gluon.jit
def kernel(p, n):
    S: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, {order})
    d = tdm.make_tensor_descriptor(p, {shape}, {strides}, {block}, S)
    smem = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    tdm.async_load(d, {offsets}, smem)
    gl.static_assert(len(d.shape) == {rank})
ARGS = (ptr(gl.float16), 10)
"""


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_ranks(rank):
    source = RANKS.format(
        order=list(range(rank))[::-1],
        shape=f"[{', '.join(['n'] * rank)}]",
        strides=f"[{', '.join(['n'] * (rank - 1) + ['1'])}]",
        block=[4] * (rank - 1) + [64],
        offsets=f"[{', '.join(['n'] * rank)}]",
        rank=rank,
    )
    agree(SETUP + source)


@pytest.mark.sampled(2)
@mistakes("""
error | match | call
DtypeError | scalar pointer | tdm.make_tensor_descriptor(p + rows, [n], [1], [64], S)
DtypeError | pointer | tdm.make_tensor_descriptor(n, [n], [1], [64], S)
ShapeError | rank | tdm.make_tensor_descriptor(p, [n], [1], [32, 64], S)
ShapeError | strides | tdm.make_tensor_descriptor(p, [n, n], [1], [32, 64], S)
ArgumentError | last | tdm.make_tensor_descriptor(p, [n, n], [1, 128], [32, 64], S)
DtypeError | 32 bits | tdm.make_tensor_descriptor(p, [wide, n], [n, 1], [32, 64], S)
DtypeError | integer | tdm.make_tensor_descriptor(p, [n, 1.5], [n, 1], [32, 64], S)
ShapeError | power | tdm.make_tensor_descriptor(p, [n, n], [n, 1], [32, 48], PLAIN)
LayoutError | shape | tdm.make_tensor_descriptor(p, [n, n], [n, 1], [32, 128], S)
LayoutError | shared | tdm.make_tensor_descriptor(p, [n, n], [n, 1], [32, 64], L)
ShapeError | 1 to 5 | tdm.make_tensor_descriptor(p, [n] * 6, [1] * 6, [2] * 6, S)
DtypeError | TDM descriptor | tdm.async_load(smem, [n, 0], smem)
ShapeError | each dimension | tdm.async_load(d, [n], smem)
ArgumentError | sequence | tdm.async_load(d, n, smem)
DtypeError | 32 bits | tdm.async_load(d, [n, wide], smem)
ArgumentError | missing | tdm.async_load(d, [n, 0])
DtypeError | shared memory | tdm.async_load(d, [n, 0], rows)
DtypeError | descriptor's | tdm.async_load(d, [n, 0], bar)
ShapeError | box | tdm.async_load(d, [n, 0], smem.slice(0, 16))
DtypeError | scalar | tdm.async_load(d, [n, 0], smem, pred=1.5)
DtypeError | 64-bit | tdm.async_load(d, [n, 0], smem, mbarrier=smem)
ArgumentError | 1 to 15 | tdm.async_load(d, [n, 0], smem, warp_used_hint=16)
ArgumentError | unknown choice | tdm.async_load(d, [n, 0], smem, cache_modifier='.wt')
ArgumentError | missing | tdm.async_store(d, [n, 0])
ArgumentError | compile-time | tdm.async_wait(n)
""")
def test_bad_tdm(call, error, match):
    refuse(tdm(call + "  # HERE"), error, match)


@pytest.mark.parametrize(
    "layout, match",
    [
        ("gl.SwizzledSharedLayout(8, 1, 4, [1, 0])", "does not swizzle"),
        ("gl.SwizzledSharedLayout(1, 1, 1, [0, 1])", "last dimension first"),
        ("gl.PaddedSharedLayout.with_identity_for([[32, 8]], [32, 64], [0, 1])", "last dimension"),
        (
            "gl.SharedLinearLayout([[1 << i, 0] for i in range(5)] + [[0, 1 << i] for i in range(6)])",
            "last dimension",
        ),
        ("gl.PaddedSharedLayout.with_identity_for([[2, 8]], [32, 64], [1, 0])", "interval"),
        ("gl.PaddedSharedLayout.with_identity_for([[1024, 8]], [32, 64], [1, 0])", "interval"),
        ("gl.PaddedSharedLayout.with_identity_for([[64, 1]], [32, 64], [1, 0])", "padding"),
        ("gl.PaddedSharedLayout.with_identity_for([[64, 512]], [32, 64], [1, 0])", "padding"),
        ("gl.PaddedSharedLayout.with_identity_for([[64, 8], [256, 8]], [32, 64], [1, 0])", "one"),
    ],
)
def test_bad_layouts(layout, match):
    refuse(tdm(layout=layout).replace("S)\n", "S)  # HERE\n", 1), LayoutError, match)


def test_another_layout_than_the_descriptors():
    call = "tdm.async_load(d, [n, 0], gl.allocate_shared_memory(d.dtype, [32, 64], PLAIN))  # HERE"
    refuse(tdm(call), LayoutError, "differently")


@pytest.mark.parametrize("op", ["store", "scatter"])
def test_gaps_between_rows_only(op):
    middle = "gl.PaddedSharedLayout.with_identity_for([[32, 8]], [32, 64], [1, 0])"
    call = {"store": "tdm.async_store(d, [n, 0], smem)  # HERE",
            "scatter": "tdm.async_scatter(d, rows, smem)  # HERE"}[op]  # fmt: skip
    if TRITON_VERSION < (3, 7) and op == "scatter":
        refuse(tdm(call, layout=middle), CapabilityError, "3.7")
    else:
        refuse(tdm(call, layout=middle), LayoutError, "gaps")


@since(3, 7)
@mistakes("""
error | match | call
DtypeError | 16 or 32 | tdm.async_gather(d, rows.to(gl.int64), smem)
ShapeError | each row | tdm.async_gather(d, gl.arange(0, 64, layout=INDEX), smem)
LayoutError | lanes | tdm.async_gather(d, gl.arange(0, 32, gl.SliceLayout(1, L)), smem)
DtypeError | tensor | tdm.async_gather(d, 5, smem)
ArgumentError | missing | tdm.async_gather(d, rows, 0)
DtypeError | 32 bits | tdm.async_scatter(d, rows, wide, smem)
DtypeError | boolean | tdm.prefetch(d, [n, 0], pred=n)
ArgumentError | compile-time | tdm.prefetch(d, [n, 0], speculative=n > 3)
""")
def test_bad_rows_and_prefetches(call, error, match):
    refuse(tdm(call + "  # HERE", layout="PLAIN"), error, match)


@since(3, 8)
@mistakes("""
error | match | call
ArgumentError | nothing | tdm.update_tensor_descriptor(d)
ArgumentError | clamp | tdm.update_tensor_descriptor(d, pred=1, clamp_bounds=True)
ArgumentError | cl | tdm.update_tensor_descriptor(d, [n, 0], [n, n], clamp_bounds=True)
ShapeError | each dimension | tdm.update_tensor_descriptor(d, add_offsets=[n])
DtypeError | TDM descriptor | tdm.update_tensor_descriptor(smem, pred=1)
""")
def test_bad_updates(call, error, match):
    refuse(tdm(call + "  # HERE"), error, match)


@since(3, 9)
@pytest.mark.parametrize(
    "members, error, match",
    [
        ("[(d, smem, 1)]", ArgumentError, "2 to 4"),
        ("[(d, smem), (d, smem)]", ArgumentError, "not a member"),
        ("[(d, smem, 3), (d, smem, 2)]", ArgumentError, "no other member"),
        ("[(d, smem, 1), (d, rows, 2)]", DtypeError, "shared memory"),
        ("d", ArgumentError, "sequence"),
    ],
)
def test_bad_fused_loads(members, error, match):
    refuse(tdm(f"tdm.async_load_fused({members})  # HERE"), error, match)


OLD = [
    ("tdm.async_load(d, [n, 0], smem, warp_used_hint=1)", (3, 8)),
    ("tdm.async_load(d, [n, 0], smem, cache_modifier='.cg')", (3, 8)),
    ("tdm.async_store(d, [n, 0], smem, cache_modifier='.cg')", (3, 8)),
    ("tdm.async_store(d, [n, 0], smem, mbarrier=bar)", (3, 7)),
    ("tdm.async_gather(d, rows, smem)", (3, 7)),
    ("tdm.async_scatter(d, rows, smem)", (3, 7)),
    ("tdm.prefetch(d, [n, 0])", (3, 7)),
    ("tdm.update_tensor_descriptor(d, pred=1)", (3, 8)),
    ("tdm.async_load_fused([(d, smem, 1), (d, smem, 2)])", (3, 9)),
]


@pytest.mark.parametrize("call, version", OLD)
def test_features_of_a_newer_triton_are_refused(call, version):
    source = tdm(call + "  # HERE", layout="PLAIN")
    if TRITON_VERSION < version:
        refuse(source, CapabilityError, f"needs Triton >= {version[0]}.{version[1]}")
    else:
        parse(source)


CLUSTERED = (
    SETUP
    + """
B = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0], cga_layout=[[1, 0]]))
S = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0], [[1, 0]]))
@gluon.jit
def kernel(p, q):
    bar = gl.allocate_shared_memory(gl.int64, [2], mbarrier.MBarrierLayout([[1]]))
    mbarrier.init(bar, 4)
    d = tdm.make_tensor_descriptor(p, [64, 64], [64, 1], [64, 64], S)
    smem = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    tdm.async_load(d, [0, 0], smem, mbarrier=bar)
    mbarrier.wait(bar, 0)
    tdm.async_store(d, [0, 0], smem)
    tdm.async_wait(0)
ARGS = (ptr(gl.float16), ptr(gl.float16))
KWARGS = {"num_ctas": 2}
"""
)


@since(3, 7)
def test_boxes_of_a_cluster():
    agree(CLUSTERED)


@pytest.mark.parametrize("hint", [0b0110, 0b1001, 0b0111, 0b11111])
def test_warps_of_a_hint_agree_in_bits(hint):
    call = f"tdm.async_load(d, [n, 0], smem, warp_used_hint={hint})  # HERE"
    refuse(tdm(call), ArgumentError, "warp_used_hint")


@since(3, 8)
@pytest.mark.parametrize("hint", [0b0001, 0b1000, 0b0101, 0b1010, 0b0011, 0b1111])
def test_hints(hint):
    agree(tdm(f"tdm.async_load(d, dest=smem, warp_used_hint={hint})"))


@since(3, 7)
def test_clusters_do_not_scatter():
    call = "tdm.async_scatter(d, rows, smem)  # HERE"
    source = tdm(call, layout="gl.SwizzledSharedLayout(1, 1, 1, [1, 0], [[1, 0]])")
    source = source.replace(
        "bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())", "pass"
    )
    source = source.replace("[1, 4], [1, 0]))", "[1, 4], [1, 0], [[1, 0]]))")
    refuse(source + 'KWARGS = {"num_ctas": 2}\n', ArgumentError, "single workgroup")
