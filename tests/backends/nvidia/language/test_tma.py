"""gl.nvidia.*.tma: the same modules as upstream."""

from __future__ import annotations

import inspect

import pytest

from gluon_core import language as gl
from gluon_core.errors import ArgumentError, CapabilityError, DtypeError
from gluon_core.language.nvidia import blackwell, hopper, rubin
from gluon_core.testing import TRITON_VERSION
from tests.backends.nvidia.language.tma_sources import (
    IM2COL,
    ROW,
    SETUP,
    making,
    reducing,
    using,
)
from tests.frontend.vendor_oracle import agree, before, parse, refuse, since

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]

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
    text = parse(using("tma.store_wait(3, read_only=False)"))
    assert "cp.async.bulk.wait_group 3;" in text


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
    refuse(source, CapabilityError, "CachePolicy needs Triton >= 3.9")


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


def test_names_and_documentation():
    for generation in (hopper, blackwell, rubin):
        for name in dir(generation.tma):
            assert getattr(generation.tma, name).__doc__, name
    assert not hasattr(hopper.tma, "async_gather")
    assert hasattr(blackwell.tma, "async_gather") and hasattr(rubin.tma, "async_scatter")
    assert gl.nvidia.hopper.tma is hopper.tma


@pytest.mark.parametrize("generation", ["hopper", "blackwell", "rubin"])
def test_every_name_of_upstream_with_its_parameters(generation):
    path = f"triton.experimental.gluon.language.nvidia.{generation}"
    theirs = (
        pytest.importorskip(path).tma if generation != "rubin" or TRITON_VERSION >= (3, 8) else None
    )
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
