"""gl.nvidia.*.tma: the same modules as upstream, and errors instead of aborts."""

from __future__ import annotations

import inspect

import pytest

import gluon_core
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, CapabilityError, DtypeError, LayoutError, ShapeError
from gluon_core.language.nvidia import blackwell, hopper, rubin
from tests.frontend.vendor_oracle import VERSION, agree, before, parse, refuse, since

SETUP = """
from GLUON.language.nvidia.hopper import tma, mbarrier
from GLUON.language.nvidia.blackwell import tma as btma
from GLUON.nvidia.hopper import TensorDescriptor
new = gl.constexpr(triton.__version__ >= "3.8" or gluon.__name__ == "gluon_core")
load = tma.async_load if new else tma.async_copy_global_to_shared
store = tma.async_store if new else tma.async_copy_shared_to_global
F16 = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
F32 = gl.constexpr(gl.NVMMASharedLayout(128, 32, 2))
FLAT = gl.constexpr(gl.NVMMASharedLayout(0, 16, 1))
CUBE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 3))
ROWS = gl.constexpr(gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, 4], [1, 0])))

def describe(dtype, shape, block, layout, **more):
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorDescriptor(ptr(dtype), shape, strides, block, layout.value, **more)
"""
KERNEL = (
    SETUP
    + """
@gluon.jit
def kernel(desc, p, n):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    smem = gl.allocate_shared_memory(desc.dtype, {smem}, desc.layout)
    x = gl.arange(0, 32, ROWS)
    rows = gl.allocate_shared_memory(gl.float16, [32, 64], F16)
    {body}
ARGS = ({desc}, ptr(gl.float16), 7)
TARGET = GPUTarget("cuda", {arch}, 32)
"""
)
PLAIN = "describe(gl.float16, [1024, 512], [64, 64], F16)"
ROW = "describe(gl.float16, [1024, 512], [1, 64], F16)"


def using(body, desc=PLAIN, arch=90):
    smem = "[64, 64]" if desc == ROW else "desc.block_shape"
    return KERNEL.format(body=body, desc=desc, arch=arch, smem=smem)


def reducing(kind, dtype, bits):
    layout = f"gl.constexpr(gl.NVMMASharedLayout(128, {bits}, 2))"
    desc = f"describe(gl.{dtype}, [1024, 512], [64, {1024 // bits}], {layout})"
    return using(f"tma.async_atomic_{kind}(desc, [n, 0], smem)  # HERE", desc)


# -- the same modules -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "load(desc, [0, 0], bar, smem)",
        "load(desc, [n, desc.shape[1]], bar, smem, pred=n > 3)",
        "load(desc, (n, 64), bar, smem, True)",
        "load(tensor_desc=desc, coord=[n, n], barrier=bar, result=smem, pred=False)",
        "store(desc, [n, 0], smem)",
        "store(tensor_desc=desc, coord=[0, n], src=smem)",
        "tma.store_wait(0)",
        "tma.store_wait(pendings=3)",
        "gl.store(p.to(gl.pointer_type(gl.int64)), desc.strides[0] + desc.shape[1])",
        "gl.static_assert(desc.block_shape[1] == 64 and desc.dtype == gl.float16)",
        "gl.static_assert(desc.block_type.element_ty == gl.float16 and desc.layout == F16)",
    ],
)
def test_copies(body):
    agree(using(body))


@since(3, 7)
def test_the_bytes_of_a_box():
    body = "mbarrier.expect(bar, desc.nbytes_per_cta)\n    gl.static_assert(desc.type.nbytes_per_cta == 8192)"
    agree(using(body))


@pytest.mark.parametrize(
    "desc",
    [
        "describe(gl.float16, [4096], [64], FLAT)",
        "describe(gl.float32, [64, 64], [32, 32], F32)",
        "describe(gl.float16, [4, 64, 64], [1, 64, 64], CUBE)",
        "describe(gl.float16, [64, 512], [512, 64], F16)",
        "describe(gl.float16, [64, 512], [64, 256], F16)",
        "describe(gl.int32, [64, 64], [32, 32], F32)",
        "describe(gl.uint32, [64, 64], [32, 32], F32)",
        "describe(gl.bfloat16, [64, 64, 64, 64, 64], [1, 1, 1, 64, 64], "
        "gl.constexpr(gl.NVMMASharedLayout(128, 16, 5)))",
        "describe(gl.float8e5, [64, 64], [64, 64], gl.constexpr(gl.NVMMASharedLayout(64, 8, 2)))",
    ],
)
def test_kinds_of_descriptors(desc):
    agree(
        using(
            "load(desc, [n] * len(desc.shape), bar, smem); store(desc, [0] * len(desc.shape), smem)",
            desc,
        )
    )


def test_a_box_of_another_rank():
    body = """flat = gl.allocate_shared_memory(gl.float16, [64, 64], F16)
    load(desc, [n, 0, 0], bar, flat)
    store(desc, [0, 0, n], flat)"""
    agree(using(body, "describe(gl.float16, [4, 64, 64], [1, 64, 64], CUBE)"))


PASSED = (
    SETUP
    + """
aggregate = getattr(gluon, "aggregate", None) or triton.language.core._aggregate
@aggregate
class Args:
    desc: tma.tensor_descriptor
    bar: gl.shared_memory_descriptor
    @gluon.constexpr_function
    def __init__(self, desc, bar):
        self.desc = desc
        self.bar = bar

@gluon.jit
def choose(a, b, first: gl.constexpr):
    return a if first else b

@gluon.jit
def consumer(args, smem):
    mbarrier.wait(args.bar, 0)
    store(args.desc, [args.desc.shape[0] - 64, 0], smem)

@gluon.jit
def producer(args, smem):
    load(args.desc, [0, args.desc.shape[1]], args.bar, smem)

@gluon.jit
def kernel(pair, other, n):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    args = Args(choose(pair[0], other, True), bar)
    smem = gl.allocate_shared_memory(args.desc.dtype, args.desc.block_shape, args.desc.layout)
    desc = args.desc
    for i in range(n):
        load(desc, [i, 0], bar, smem)
        if i > 3:
            desc = pair[0]
        else:
            desc = other
    store(desc, [pair[1], 0], smem)
    if {old}:
        gl.warp_specialize((args, smem), consumer, (args, smem), [producer], [4], [24])
    else:
        gl.warp_specialize([(consumer, (args, smem)), (producer, (args, smem))], [4], [24])
D = describe(gl.float16, [1024, 512], [64, 64], F16)
ARGS = ((D, 5), D, 7)
"""
)


def test_descriptors_go_where_values_go():
    agree(PASSED.format(old=False))


MADE = (
    SETUP
    + """
@gluon.jit
def kernel(p, m, n, stride, big):
    {body}  # HERE
ARGS = (ptr({dtype}), 1000, 512, 520, 2**40)
"""
)


def making(body, dtype="gl.float16"):
    return MADE.format(body=body, dtype=dtype)


@pytest.mark.parametrize(
    "body",
    [
        "d = tma.make_tensor_descriptor(p, [m, n], [stride, 1], [64, 64], F16)",
        "d = tma.make_tensor_descriptor(p, [m, n], [big, 1], [64, 64], F16, 'nan')",
        "d = tma.make_tensor_descriptor(p, shape=[m, n], strides=[n, 1], block_shape=[64, 64], "
        "layout=F16, padding_option='zero')",
        "d = tma.make_tensor_descriptor(p, [m.to(gl.int64), n.to(gl.int8)], [n.to(gl.int16), 1], "
        "[64, 64], F16)",
        "d = tma.make_tensor_descriptor(p, [1000, 512], [1024, 1], [64, 64], F16)",
        "d = tma.make_tensor_descriptor(p + n, [m.to(gl.uint32), n], [m.to(gl.uint32), 1], [64, 64], F16)",
        "d = tma.make_tensor_descriptor(p, [n], [1], [64], FLAT)",
        "d = tma.make_tensor_descriptor(p, (m, m, n), (big, stride, 1), (1, 64, 64), CUBE)",
    ],
)
def test_descriptors_made_in_the_kernel(body):
    use = """
    s = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    store(d, [m] * len(d.shape), s)
    gl.store(p.to(gl.pointer_type(gl.int64)), d.shape[0] + d.strides[0])"""
    agree(making(body + use))


@pytest.mark.parametrize("dtype, bits", [("int32", 32), ("uint32", 32), ("int64", 64), ("int8", 8)])
def test_descriptors_of_integers(dtype, bits):
    layout = f"gl.NVMMASharedLayout(128, {bits}, 2)"
    call = f"d = tma.make_tensor_descriptor(p, [m, n], [stride, 1], [64, {1024 // bits}], {layout})"
    use = """
    s = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    store(d, [m, n], s)"""
    agree(making(call + use, f"gl.{dtype}"))


@pytest.mark.parametrize(
    "body",
    [
        "btma.async_gather(desc, x, 0, bar, rows)",
        "btma.async_gather(desc, x + n, n, bar, rows, pred=n > 5)",
        "btma.async_gather(tensor_desc=desc, x_offsets=x, y_offset=desc.shape[0], barrier=bar, result=rows)",
        "btma.async_scatter(desc, x, 8, rows)",
        "btma.async_scatter(desc, x_offsets=x, y_offset=n, src=rows)",
    ],
)
def test_chosen_rows(body):
    agree(using(body, ROW, 100))


@pytest.mark.parametrize("kind", ["add", "min", "max", "and", "or", "xor"])
@pytest.mark.parametrize(
    "dtype, bits",
    [("int32", 32), ("uint32", 32), ("float16", 16), ("bfloat16", 16), ("float32", 32)],
)
@since(3, 8)
def test_reductions(kind, dtype, bits):
    source = reducing(kind, dtype, bits)
    floats = not dtype.endswith("int32")
    if floats and (kind in ("and", "or", "xor") or (dtype == "float32" and kind != "add")):
        refuse(source, DtypeError, f"TMA cannot {kind} such elements.*PTX")
    else:
        agree(source)


@before(3, 8)
def test_reductions_with_an_older_triton():
    assert "async_tma_reduce add" in parse(reducing("add", "int32", 32))


def wide(kind, dtype):
    layout = "gl.NVMMASharedLayout(128, 64, 2)"
    return making(
        f"d = tma.make_tensor_descriptor(p, [m, n], [stride, 1], [64, 16], {layout})\n"
        "    s = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)\n"
        f"    tma.async_atomic_{kind}(d, [m, n], s)",
        f"gl.{dtype}",
    )


@pytest.mark.parametrize("kind", ["add", "min", "max", "and", "or", "xor"])
@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
@since(3, 8)
def test_reductions_of_wide_elements(kind, dtype):
    legal = dtype != "float64" and (kind, dtype) != ("add", "int64")
    if legal:
        agree(wide(kind, dtype))
    else:
        refuse(wide(kind, dtype), DtypeError, f"TMA cannot {kind} such elements")


@since(3, 8)
def test_waiting_for_writes():
    text = agree(using("tma.store_wait(1, read_only=False); tma.store_wait(2, True)"))
    assert "{pendings = 1 : i32}" in text and "{pendings = 2 : i32, read_only}" in text


@before(3, 8)
def test_waiting_for_writes_with_an_older_triton():
    source = using("tma.store_wait(0, read_only=False)  # HERE")
    refuse(source, CapabilityError, "read_only=False.*needs Triton >= 3.8")


IM2COL = (
    SETUP
    + """
from GLUON.nvidia.hopper import TensorDescriptorIm2Col
def image(shape, corners, block=(64, 64)):
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorDescriptorIm2Col(
        ptr(gl.float16), shape, strides, list(block), F16.value,
        pixel_box_lower_corner=corners, pixel_box_upper_corner=corners,
    )
@gluon.jit
def kernel(desc, n, short):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    smem = gl.allocate_shared_memory(desc.dtype, desc.block_shape, desc.layout)
    {body}  # HERE
ARGS = (image({shape}, {corners}), 7, 3)
"""
)


@since(3, 8)
@pytest.mark.parametrize(
    "shape, corners, body",
    [
        ([2, 16, 64], [-1], "tma.async_load_im2col(desc, [0, -1, 0], [2], bar, smem)"),
        ([2, 8, 8, 64], [-1, -1], "tma.async_load_im2col(desc, [0, -1, n, 0], [1, 2], bar, smem)"),
        (
            [2, 8, 8, 64],
            [0, 0],
            "tma.async_load_im2col(desc, [0, 0, n, 0], [short.to(gl.int16), 2], bar, smem, n > 3)",
        ),
        ([2, 4, 4, 4, 64], [0, 0, 0], "tma.async_load_im2col(desc, [0] * 5, [0, 1, 2], bar, smem)"),
        (
            [2, 8, 8, 64],
            [0, 0],
            "gl.static_assert(isinstance(desc, tma.tensor_descriptor_im2col))",
        ),
    ],
)
def test_im2col(shape, corners, body):
    agree(IM2COL.format(shape=shape, corners=corners, body=body))


@before(3, 8)
def test_im2col_with_an_older_triton():
    with pytest.raises(CapabilityError, match="3.8"):
        parse(IM2COL.format(shape=[2, 8, 8, 64], corners=[0, 0], body="pass"))
    source = using("tma.async_load_im2col(desc, [0, 0], [], bar, smem)  # HERE")
    refuse(source, CapabilityError, "async_load_im2col needs Triton >= 3.8")


CLUSTER = (
    SETUP
    + """
@gluon.jit
def kernel(desc):
    bar = gl.allocate_shared_memory(gl.int64, [{barriers}], mbarrier.MBarrierLayout({bar}))
    smem = gl.allocate_shared_memory(desc.dtype, desc.block_shape, desc.layout)
    load(desc, [0, 0], bar, smem, multicast={multicast})  # HERE
    gl.static_assert(desc.nbytes_per_cta == {nbytes})
SHARED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2, cga_layout={cga}))
ARGS = (describe(gl.float16, [1024, 512], {block}, SHARED),)
KWARGS = dict(num_ctas={ctas})
"""
)


def clustered(cga, multicast=True, bar=None, barriers=None, nbytes=8192, block=(64, 64)):
    ctas = 2 ** len(cga)
    own = [[1 << i] for i in range(len(cga))]
    return CLUSTER.format(
        cga=cga, multicast=multicast, bar=bar or own, barriers=barriers or ctas, nbytes=nbytes,
        ctas=ctas, block=list(block),
    )  # fmt: skip


@since(3, 7)
@pytest.mark.parametrize(
    "source",
    [
        clustered([[0, 0]]),
        clustered([[1, 0]], nbytes=4096),
        clustered([[1, 0]], False, nbytes=4096),
        clustered([[0, 1], [0, 0]], block=(64, 128)),
        clustered([[0, 0]], bar=[[0]], barriers=1),
        clustered([]),
    ],
)
def test_multicast(source):
    agree(source)


@since(3, 8)
@pytest.mark.parametrize("cga, nbytes", [([[0, 0]], 8192), ([[1, 0]], 4096)])
def test_the_bytes_of_a_block(cga, nbytes):
    source = clustered(cga, nbytes=nbytes).replace("desc.nbytes_per_cta", "smem.nbytes_per_cta")
    agree(source)


@before(3, 7)
def test_multicast_with_an_older_triton():
    source = clustered([[0, 0]], bar=[[0]], barriers=1)
    refuse(source, CapabilityError, "multicast=True.*needs Triton >= 3.7")


POLICY = "from GLUON.language.nvidia.hopper import CachePolicy, FractionalEvictionPolicy as L2\n"


@since(3, 9)
@pytest.mark.parametrize(
    "policy",
    [
        "CachePolicy(l2=L2('evict_first', 1.0))",
        "CachePolicy(l2=L2('evict_last', 0.5, 'evict_first'))",
        "gl.CachePolicy(eviction_policy='evict_last')",
        "None",
    ],
)
def test_cache_policies(policy):
    agree(
        POLICY
        + using(
            f"load(desc, [0, 0], bar, smem, cache_policy={policy}); "
            f"store(desc, [0, 0], smem, cache_policy={policy})"
        )
    )
    agree(
        POLICY
        + using(
            f"btma.async_gather(desc, x, 0, bar, rows, cache_policy={policy}); "
            f"btma.async_scatter(desc, x, 0, rows, cache_policy={policy})",
            ROW,
            100,
        )
    )


@since(3, 9)
@pytest.mark.parametrize(
    "policy, match",
    [
        ("CachePolicy(l1='evict_first')", "go through L2 alone.*"),
        ("CachePolicy(cache_modifier='ca')", "go through L2 alone"),
        ("CachePolicy(l2_prefetch_size=64)", "go through L2 alone"),
        ("gl.CachePolicy(cache_modifier='ca')", "go through L2 alone"),
        ("'evict_first'", "not a cache policy"),
    ],
)
def test_cache_policies_that_tma_lacks(policy, match):
    refuse(
        POLICY + using(f"load(desc, [0, 0], bar, smem, cache_policy={policy})  # HERE"),
        ArgumentError,
        match,
    )


@before(3, 9)
def test_cache_policies_with_an_older_triton():
    source = using("load(desc, [0, 0], bar, smem, cache_policy=gl.CachePolicy())  # HERE")
    refuse(source, CapabilityError, "cache_policy=.*needs Triton >= 3.9")


def test_older_names_stay():
    new = parse(
        using("tma.async_load(desc, [0, n], bar, smem); tma.async_store(desc, [0, n], smem)")
    )
    old = parse(
        using(
            "tma.async_copy_global_to_shared(desc, [0, n], bar, smem); "
            "tma.async_copy_shared_to_global(desc, [0, n], smem)"
        )
    )
    assert new == old


# -- errors -------------------------------------------------------------------------------------------

SMEM = "s = gl.allocate_shared_memory({}, {}, {}); load(desc, [0, 0], bar, s)  # HERE"
WRONG = [
    ("load(p, [0, 0], bar, smem)  # HERE", DtypeError, "not a descriptor"),
    ("load(desc, [0], bar, smem)  # HERE", ShapeError, "not one for each dimension"),
    ("load(desc, n, bar, smem)  # HERE", ShapeError, "not one for each dimension"),
    ("load(desc, [0, n.to(gl.int64)], bar, smem)  # HERE", DtypeError, "must be int32 .PTX 9.7"),
    ("load(desc, [0, n.to(gl.int16)], bar, smem)  # HERE", DtypeError, "must be int32"),
    ("load(desc, [0, 1.5], bar, smem)  # HERE", DtypeError, "must be int32"),
    ("load(desc, [0, 2**31], bar, smem)  # HERE", ArgumentError, "out of range"),
    ("load(desc, [0, 4], bar, smem)  # HERE", ArgumentError, "coord: .*multiple of 8 x fp16.*got 4"),
    ("store(desc, [0, -1], smem)  # HERE", ArgumentError, "coord: .*16 bytes, got -1"),
    ("load(desc, [0, x], bar, smem)  # HERE", ShapeError, "must be scalars"),
    ("load(desc, [0, 0], smem, smem)  # HERE", DtypeError, "a barrier is a 64-bit integer"),
    ("load(desc, [0, 0], bar, smem, n)  # HERE", DtypeError, "must be boolean"),
    ("load(desc, [0, 0], bar, p)  # HERE", DtypeError, "not shared memory"),
    ("load(desc, [0, 0], bar, smem, multicast=n)  # HERE", ArgumentError, "compile-time boolean"),
    (
        SMEM.format("gl.float16", "[64, 64]", "gl.NVMMASharedLayout(64, 16, 2)"),
        LayoutError,
        "not the desc",
    ),
    (
        SMEM.format("gl.float16", "[64, 64]", "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])"),
        LayoutError,
        "not the",
    ),
    (SMEM.format("gl.float16", "[32, 64]", "F16"), ShapeError, "not that of the descriptor's box"),
    (
        SMEM.format("gl.float16", "[2, 64, 64]", "F16"),
        ShapeError,
        "not that of the descriptor's box",
    ),
    (SMEM.format("gl.bfloat16", "[64, 64]", "F16"), DtypeError, "the elements are not the desc"),
    ("load(desc, [0, 0], bar, smem.permute([1, 0]))  # HERE", LayoutError, "not the descriptor's"),
    ("store(desc, [0, 0], bar)  # HERE", DtypeError, "the elements are not the descriptor's"),
    ("tma.store_wait(n)  # HERE", ArgumentError, "compile-time integer"),
    ("tma.store_wait(-1)  # HERE", ArgumentError, "at least 0|out of range"),
    ("tma.async_atomic_add(p, [0, 0], smem)  # HERE", DtypeError, "not a descriptor"),
]


@pytest.mark.parametrize("body, error, match", WRONG)
def test_operands_that_do_not_fit(body, error, match):
    refuse(using(body), error, match)


@pytest.mark.parametrize(
    "body, error, match",
    [
        ("btma.async_gather(desc, n, 0, bar, rows)", ShapeError, "a scalar has no layout"),
        ("btma.async_gather(desc, x.to(gl.int64), 0, bar, rows)", DtypeError, "32-bit integers"),
        (
            "btma.async_gather(desc, gl.arange(0, 4, ROWS), 0, bar, rows)",
            ShapeError,
            "at least 8 rows",
        ),
        (
            "btma.async_gather(desc, gl.arange(0, 32, gl.BlockedLayout([1], [32], [4], [0])), 0, bar, rows)",
            LayoutError,
            "a thread must hold 4 consecutive rows",
        ),
        (
            "btma.async_gather(desc, gl.arange(0, 512, gl.BlockedLayout([4], [32], [4], [0])), 0, bar, rows)",
            LayoutError,
            "threads of a warp must hold the same rows",
        ),
        ("btma.async_gather(desc, x, n.to(gl.int64), bar, rows)", DtypeError, "must be int32"),
        ("btma.async_gather(desc, x, 0, bar, smem)", ShapeError, "not .rows, columns."),
        ("btma.async_scatter(desc, x, 0, smem)", ShapeError, "not .rows, columns."),
    ],
)
def test_rows_that_do_not_fit(body, error, match):
    refuse(using(body + "  # HERE", ROW, 100), error, match)


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


@pytest.mark.parametrize(
    "arguments, error, match",
    [
        ("n, [m, n], [n, 1], [64, 64], F16", DtypeError, "not a scalar pointer"),
        ("p, [m, n], [n, n], [64, 64], F16", ShapeError, "contiguous"),
        ("p, [m, n], [n, 2], [64, 64], F16", ShapeError, "contiguous"),
        ("p, [m, n], [1], [64, 64], F16", ShapeError, "not one for each dimension"),
        ("p, [m, n], [n, 1], [64], F16", ShapeError, "not one for each dimension"),
        ("p, m, [n, 1], [64, 64], F16", ShapeError, "not a sequence"),
        ("p, [m] * 6, [n] * 5 + [1], [1] * 5 + [64], F16", ShapeError, "1 to 5 dimensions"),
        ("p, [m, n], [n, 1], [48, 64], F16", ShapeError, "power-of-two"),
        (
            "p, [m, n], [n, 1], [64, 4], gl.NVMMASharedLayout(0, 16, 2)",
            ShapeError,
            "multiple of 16 bytes",
        ),
        (
            "p, [m, n], [n, 1], [64, 64], gl.NVMMASharedLayout(128, 32, 2)",
            LayoutError,
            "another size",
        ),
        ("p, [m, n], [n, 1], [64, 64], FLAT", LayoutError, "rank"),
        (
            "p, [m, n], [n, 1], [64, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])",
            LayoutError,
            "its own layouts",
        ),
        ("p, [0, n], [n, 1], [64, 64], F16", ShapeError, "an illegal extent"),
        ("p, [2**31, n], [n, 1], [64, 64], F16", ShapeError, "an illegal extent"),
        ("p, [m, n], [12, 1], [64, 64], F16", ShapeError, "an illegal stride.*"),
        ("p, [m, n], [1.5, 1], [64, 64], F16", DtypeError, "must be integers"),
        ("p, [m, n], [n, 1], [64, 64], F16, 'one'", ArgumentError, "no such padding"),
        ("p, [m, n], [n, 1], [64, n], F16", ShapeError, "compile-time"),
        (
            "p.to(gl.pointer_type(gl.int16)), [m, n], [n, 1], [64, 64], F16, 'nan'",
            ArgumentError,
            "only floats",
        ),
        (
            "p.to(gl.pointer_type(gl.int1)), [m, n], [n, 1], [64, 64], F16",
            DtypeError,
            "does not copy such elements",
        ),
        (
            "p, [m, n], [n, 1], [64, 64], gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[1, 0]])",
            LayoutError,
            "blocks are not those of the cluster",
        ),
    ],
)
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
@pytest.mark.parametrize(
    "body, error, match",
    [
        ("load(desc, [0, 0, 0, 0], bar, smem)", DtypeError, "not a descriptor of this mode"),
        (
            "tma.async_load_im2col(desc, [0, 0], [0, 0], bar, smem)",
            ShapeError,
            "4 integers|each dim",
        ),
        ("tma.async_load_im2col(desc, [0] * 4, [0], bar, smem)", ShapeError, "each dimension"),
        (
            "tma.async_load_im2col(desc, [0] * 4, [0, 2**15], bar, smem)",
            ArgumentError,
            "out of range",
        ),
        ("tma.async_load_im2col(desc, [0] * 4, [0, n], bar, smem)", DtypeError, "must be int16"),
    ],
)
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


def test_names_and_documentation():
    for generation in (hopper, blackwell, rubin):
        for name in generation.tma.__all__:
            assert getattr(generation.tma, name).__doc__, name
    assert "async_gather" not in hopper.tma.__all__
    assert "async_gather" in blackwell.tma.__all__ and "async_scatter" in rubin.tma.__all__
    assert gl.nvidia.hopper.tma is hopper.tma


@pytest.mark.parametrize("generation", ["hopper", "blackwell", "rubin"])
def test_every_name_of_upstream_with_its_parameters(generation):
    path = f"triton.experimental.gluon.language.nvidia.{generation}"
    theirs = pytest.importorskip(path).tma if generation != "rubin" or VERSION >= (3, 8) else None
    mine = getattr(gl.nvidia, generation).tma
    hidden = {"self", "args", "kwargs"}
    for name, value in vars(theirs).items() if theirs is not None else ():
        local = getattr(value, "__module__", "").endswith("tma")
        if name.startswith("_") or not local:
            continue
        want, have = (inspect.signature(v).parameters for v in (value, getattr(mine, name)))
        public = {parameter for parameter in want if parameter[0] != "_"} - hidden
        assert public <= set(have), name
        for parameter in public:
            assert want[parameter].default == have[parameter].default, (name, parameter)


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
    assert VERSION >= (3, 6)
