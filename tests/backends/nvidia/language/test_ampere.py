"""gl.nvidia.ampere: the same modules as upstream, and errors instead of aborts."""

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
    ShapeError,
)
from gluon_core.language.nvidia.ampere import async_copy, mbarrier
from gluon_core.testing import TRITON_VERSION
from tests.frontend import oracle
from tests.frontend.vendor_oracle import agree, before, parse, refuse, since
from tests.tables import mistakes

pytestmark = pytest.mark.once

if TRITON_VERSION >= (3, 9):
    from gluon_core.language.nvidia.ampere import CachePolicy, FractionalEvictionPolicy

SETUP = """
from GLUON.language.nvidia.ampere import async_copy, mbarrier, mma_v2
if triton.__version__ < "3.8" or gluon.__name__ == "gluon_core":
    copy = async_copy.async_copy_global_to_shared
else:
    copy = async_copy.async_load
L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
S = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
N = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
TARGET = GPUTarget("cuda", 80, 32)
"""
TILE = """
@gluon.jit
def tile(p, L: gl.constexpr):
    rows = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    return p + rows[:, None] * 64 + columns[None, :]
"""
COPY = (
    SETUP
    + TILE
    + """
@gluon.jit
def kernel(p, n):
    ptrs = tile(p, L)
    smem = gl.allocate_shared_memory({dtype}, {shape}, {shared})
    {call}  # HERE
ARGS = (ptr({pointee}), 10)
"""
)
BARRIER = (
    SETUP
    + """
@gluon.jit
def kernel(p, n):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    buffer = gl.allocate_shared_memory(gl.int64, [64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    floats = gl.allocate_shared_memory(gl.float32, [1], mbarrier.MBarrierLayout())
    matrix = gl.allocate_shared_memory(gl.int64, [1, 1], S)
    {call}  # HERE
ARGS = (ptr(gl.float32), 10)
"""
)
MMA = (
    SETUP
    + """
ACC = gl.constexpr({acc})
@gluon.jit
def kernel():
    a = gl.full({a_shape}, 1, {a_type}, layout={a})
    b = gl.full({b_shape}, 1, {b_type}, layout={b})
    c = gl.full({c_shape}, 0, {c_type}, layout=ACC)
    d = mma_v2(a, b, c{rest})  # HERE
    gl.static_assert(d.type == c.type)
"""
)
TARGETS = ["sm_80", "sm_90"]


def gpu(name):
    return gluon_core._triton.GPUTarget("cuda", int(name[3:]), 32)


def copying(call, dtype="gl.float16", pointee="gl.float16", shape="[32, 64]", shared="S"):
    return COPY.format(call=call, dtype=dtype, pointee=pointee, shape=shape, shared=shared)


def multiplying(dtype="gl.float16", acc_type="gl.float32", width=2, rest="", **changes):
    values = {
        "acc": "gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])",
        "a": f"gl.DotOperandLayout(0, ACC, {width})",
        "b": f"gl.DotOperandLayout(1, ACC, {width})",
        "a_shape": [64, 32],
        "b_shape": [32, 64],
        "c_shape": [64, 64],
        "a_type": dtype,
        "b_type": dtype,
        "c_type": acc_type,
        "rest": rest,
    }
    return MMA.format(**{**values, **changes})


# -- the same modules ---------------------------------------------------------------------------

PIPELINE = (
    SETUP
    + TILE
    + """
@gluon.jit
def kernel(p, n, out):
    ptrs = tile(p, L)
    smem = gl.allocate_shared_memory(gl.float16, [2, 32, 64], N)
    for i in range(n):
        copy(smem.index(i % 2), ptrs, mask=gl.full([32, 64], 1, gl.int1, L) & (n > i))
        async_copy.commit_group()
        async_copy.wait_group(1)
        x = smem.index((i + 1) % 2).load(L)
        gl.store(ptrs, x)
        ptrs += 2048
    async_copy.wait_group()
ARGS = (ptr(gl.float16), 10, ptr(gl.float16))
"""
)
HINTS = [
    "copy(smem, ptrs)",
    "copy(smem, ptrs, mask=gl.load(ptrs) > 0)",
    "copy(smem, ptrs, mask=(gl.arange(0, 32, layout=gl.SliceLayout(1, L)) < n)[:, None])",
    "copy(smem, ptrs, cache_modifier='.ca')",
    "copy(smem, ptrs, cache_modifier='.cv')",
    "copy(smem, ptrs, None, '.cg', 'evict_first', True)",
    "copy(smem, ptrs, eviction_policy='evict_last')",
]
BARRIERS = (
    SETUP
    + TILE
    + """
@gluon.jit
def kernel(p, n):
    smem = gl.allocate_shared_memory(gl.float16, [32, 64], S)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=128)
    copy(smem, tile(p, L))
    async_copy.mbarrier_arrive(bar)
    async_copy.mbarrier_arrive(bar, increment_count=False)
    mbarrier.wait(bar, 0)
    mbarrier.wait(bar, n & 1, pred=n > 1, deps=[smem])
    mbarrier.arrive(bar)
    mbarrier.arrive(bar, pred=n > 1)
    mbarrier.invalidate(bar)
    bars = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(3):
        mbarrier.init(bars.index(i), i + 1)
    phase = 0
    for i in range(n):
        mbarrier.arrive(bars.index(i % 3))
        mbarrier.wait(bars.index(i % 3), phase)
        phase ^= i % 3 == 2
ARGS = (ptr(gl.float16), 10)
"""
)


@pytest.mark.parametrize("target", TARGETS)
def test_copy_pipeline(target):
    text = agree(PIPELINE, gpu(target))
    assert text.count("async_copy_global_to_local") == 1


@pytest.mark.parametrize("call", HINTS)
def test_copy_hints(call):
    agree(copying(call))


@pytest.mark.parametrize("dtype", ["gl.float32", "gl.int8", "gl.bfloat16", "gl.float8e5"])
def test_copy_dtypes(dtype):
    agree(copying("copy(smem, ptrs)", dtype, dtype))


@pytest.mark.parametrize("target", TARGETS)
def test_barriers(target):
    text = agree(BARRIERS.replace("i % 3 == 2", "1"), gpu(target))
    assert "noIncrement" in text


@since(3, 7)
def test_allocate_mbarrier():
    agree(
        SETUP
        + """
@gluon.jit
def kernel():
    mbarrier.init(mbarrier.allocate_mbarrier(), 1)
    mbarrier.init(mbarrier.allocate_mbarrier(batch=4).index(1), 2)
"""
    )


@since(3, 7)
@pytest.mark.parametrize("pairs", [False, True])
def test_allocate_mbarrier_in_a_cluster(pairs):
    source = (
        SETUP
        + f"""
@gluon.jit
def kernel():
    mbarrier.init(mbarrier.allocate_mbarrier(two_ctas={pairs}), 1)
    mbarrier.init(mbarrier.allocate_mbarrier(2, {pairs}).index(1), 2)
KWARGS = {{"num_ctas": 4}}
"""
    )
    agree(source, gpu("sm_90"))


@since(3, 9)
def test_arrive_from_one_block():
    source = (
        SETUP
        + """
@gluon.jit
def kernel():
    bar = mbarrier.allocate_mbarrier(two_ctas=PAIRS)
    mbarrier.arrive(bar, from_cta=1)  # HERE
KWARGS = {"num_ctas": 2}
"""
    )
    own = source.replace("PAIRS", "False")
    agree(own, gpu("sm_90"))
    # Triton's canonicalizer drops the attribute, so look before any pass has run.
    traced = oracle.ours(own.replace("GLUON", "gluon_core"), target=gpu("sm_90"))
    assert "fromCTA = 1" in traced.str_nodebug()
    refuse(source.replace("PAIRS", "True"), LayoutError, "one barrier for each", gpu("sm_90"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "dtype, acc, width",
    [
        ("gl.float16", "gl.float32", 2),
        ("gl.float16", "gl.float16", 2),
        ("gl.float16", "gl.float32", 8),
        ("gl.bfloat16", "gl.float32", 2),
        ("gl.float32", "gl.float32", 1),
        ("gl.int8", "gl.int32", 4),
    ],
)
def test_mma(target, dtype, acc, width):
    # Both defaults of input_precision agree only where it is written down.
    agree(multiplying(dtype, acc, width, ', "tf32"'), gpu(target))
    agree(multiplying(dtype, acc, width), gpu(target))


def test_mma_of_tiles_smaller_than_the_instruction():
    agree(multiplying(a_shape=[8, 32], b_shape=[32, 4], c_shape=[8, 4]))


def test_mma_precision_does_not_matter_for_narrow_operands():
    agree(multiplying(rest=', input_precision="ieee"'))


def test_mma_of_fp8_is_for_ada_and_newer():
    source = multiplying("gl.float8e5", width=4)
    source = source.replace("1, gl.float8e5, layout=", "1.0, gl.float32, layout=").replace(
        "    c = gl", "    a = a.to(gl.float8e5)\n    b = b.to(gl.float8e5)\n    c = gl"
    )
    agree(source, gpu("sm_90"))
    refuse(source, CapabilityError, "nvidia.fp8", gpu("sm_80"))


POLICIES = [
    'CachePolicy("ca")',
    'CachePolicy(".cg")',
    'CachePolicy(l1="evict_first")',
    'CachePolicy(l2=FractionalEvictionPolicy("evict_first", 0.5))',
    'CachePolicy(l1="evict_last", l2=FractionalEvictionPolicy("evict_last", 0.25, "evict_first"), '
    "l2_prefetch_size=64)",
    "gl.CachePolicy('cg', 'evict_last')",
]


@since(3, 9)
@pytest.mark.parametrize("policy", POLICIES)
def test_cache_policies(policy):
    agree(
        copying(
            "copy(smem, ptrs, cache_policy=P)\n    gl.store(ptrs, gl.load(ptrs, cache_policy=P))"
        ).replace(
            "TARGET =",
            "from GLUON.language.nvidia.ampere import CachePolicy, FractionalEvictionPolicy\n"
            f"P = gl.constexpr({policy})\nTARGET =",
            1,
        )
    )


@since(3, 9)
def test_cache_policies_are_named_as_upstream_names_them():
    from triton.experimental.gluon.language.nvidia import ampere as upstream

    from gluon_core.language.nvidia import ampere as ours

    for policy in POLICIES[:-1]:
        theirs, mine = (eval(policy, vars(module)) for module in (upstream, ours))
        assert mine.mangle() == theirs.mangle()


# -- names --------------------------------------------------------------------------------------


def test_namespaces():
    import gluon_core.language.nvidia.ampere.async_copy as by_path

    assert by_path is async_copy is gl.nvidia.ampere.async_copy
    assert gl.nvidia.ampere.mbarrier.MBarrierLayout is mbarrier.MBarrierLayout


def test_a_missing_generation_says_so():
    with pytest.raises(AttributeError, match="no 'volta'.*It has: ampere, blackwell, hopper"):
        gl.nvidia.volta  # noqa: B018
    with pytest.raises(ImportError, match="volta"):
        __import__("gluon_core.language.nvidia.volta")


def test_the_new_name_works_with_every_triton():
    source = copying("async_copy.async_load(smem, ptrs)")
    assert parse(source) == parse(copying("async_copy.async_copy_global_to_shared(smem, ptrs)"))


@before(3, 7)
def test_allocate_mbarrier_works_before_upstream_had_it():
    assert "init_barrier" in parse(
        SETUP
        + """
@gluon.jit
def kernel():
    mbarrier.init(mbarrier.allocate_mbarrier(batch=2).index(0), 1)
"""
    )


def test_barrier_layouts():
    layout = mbarrier.MBarrierLayout
    assert layout() == layout([]) == layout.multicta(1)
    assert layout.multicta(4).cga_layout == [[1], [2]]
    assert layout.multicta(4, two_cta=True).cga_layout == [[0], [1]]
    assert (layout().vec, layout().per_phase, layout().max_phase, layout().order) == (1, 1, 1, [0])
    assert layout().to_linear([1]).out_dims == {"dim0": 1}
    for count, pairs in ((3, False), (1, True), (0, False)):
        with pytest.raises(LayoutError, match="no such cluster"):
            layout.multicta(count, pairs)


@since(3, 9)
@pytest.mark.parametrize(
    "make",
    [
        lambda: CachePolicy(),
        lambda: CachePolicy("lu"),
        lambda: CachePolicy(l1="evict"),
        lambda: CachePolicy(l2="evict_last"),
        lambda: CachePolicy(l2_prefetch_size=32),
        lambda: CachePolicy(l2_prefetch_size=True),
        lambda: FractionalEvictionPolicy("evict_last", 0.0),
        lambda: FractionalEvictionPolicy("evict_last", 1.5),
        lambda: FractionalEvictionPolicy("evict_last", True),
        lambda: FractionalEvictionPolicy("evict_last", 0.5, "evict_last"),
        lambda: FractionalEvictionPolicy("no_allocate", 0.5),
    ],
)
def test_illegal_cache_policies(make):
    with pytest.raises(ArgumentError):
        make()


# -- errors, under the kernel's line ------------------------------------------------------------

ONE = "gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])"
COLUMNS = "gl.BlockedLayout([8, 1], [4, 8], [1, 4], [0, 1])"


@pytest.mark.parametrize(
    "changes, error, match",
    [
        ({"dtype": "gl.float32"}, DtypeError, "smem: the element type"),
        ({"shape": "[32, 32]"}, ShapeError, "smem: the shape"),
        ({"shape": "[64, 32]"}, ShapeError, "smem: the shape"),
        ({"call": "copy(ptrs, ptrs)"}, DtypeError, "smem: not shared memory"),
        ({"call": "copy(smem, p)"}, ShapeError, "pointer: a scalar"),
        ({"call": "copy(smem, n)"}, DtypeError, "pointer: not a pointer"),
        ({"call": "copy(smem, gl.load(ptrs))"}, DtypeError, "pointer: not a pointer"),
        ({"call": "copy(smem, ptrs, mask=n)"}, DtypeError, "mask: must be boolean"),
        ({"call": "copy(smem, ptrs, mask=gl.full([32, 32], 1, gl.int1, L))"}, ShapeError, "does not match"),
        ({"call": "copy(smem, ptrs, mask=gl.full([64], 1, gl.int1, "
                  "gl.SliceLayout(0, L)))"}, ShapeError, "does not match"),
        ({"call": "copy(smem, ptrs, cache_modifier='.wb')"}, ArgumentError, "cache_modifier"),
        ({"call": "copy(smem, ptrs, cache_modifier=3)"}, ArgumentError, "cache_modifier"),
        ({"call": "copy(smem, ptrs, eviction_policy='never')"}, ArgumentError, "eviction"),
        ({"call": f"copy(smem, tile(p, {ONE}))"}, LayoutError, "at least 2 consecutive"),
        ({"call": f"copy(smem, tile(p, {COLUMNS}))"}, LayoutError, "at least 2 consecutive"),
        ({"dtype": "gl.int8", "pointee": "gl.int8", "call": "copy(smem, tile(p, "
          "gl.BlockedLayout([1, 2], [1, 32], [4, 1], [1, 0])))"}, LayoutError, "at least 4"),
        ({"call": "async_copy.wait_group(n)"}, ArgumentError, "num_outstanding"),
        ({"call": "async_copy.wait_group(-1)"}, ArgumentError, "num_outstanding"),
        ({"call": "async_copy.mbarrier_arrive(smem)"}, DtypeError, "mbarrier"),
    ],
)  # fmt: skip
def test_copy_errors(changes, error, match):
    refuse(copying(**{"call": "copy(smem, ptrs)", **changes}), error, match)


def test_padded_buffers():
    padded = "gl.PaddedSharedLayout.with_identity_for([[64, 8]], [32, 64], [1, 0])"
    refuse(copying("copy(smem, ptrs)", shared=padded), LayoutError, "padded")


def test_vectors_that_swizzling_cuts():
    """The layout is as wide as cp.async needs, but the buffer is not."""
    shared = "gl.SwizzledSharedLayout(1, 1, 64, [1, 0])"
    refuse(copying("copy(smem, ptrs)", shared=shared), LayoutError, "consecutive")
    agree(copying("copy(smem, ptrs)", shared="gl.SwizzledSharedLayout(2, 1, 16, [1, 0])"))
    wide = "gl.SwizzledSharedLayout(1, 1, 64, [1, 0])"
    agree(copying("copy(smem, ptrs)", "gl.float32", "gl.float32", shared=wide))


@before(3, 9)
def test_cache_policy_names_the_triton_it_needs():
    call = "copy(smem, ptrs, cache_policy=gl.CachePolicy('cg'))"
    refuse(copying(call), CapabilityError, r"CachePolicy needs Triton >= 3.9, found 3")


@since(3, 9)
def test_cache_policy_or_strings():
    call = "copy(smem, ptrs, cache_modifier='.cg', cache_policy=gl.CachePolicy('cg'))"
    refuse(copying(call), ArgumentError, "cache_policy")
    refuse(copying("copy(smem, ptrs, cache_policy='cg')"), ArgumentError, "cache_policy")


@mistakes("""
error | match | call
ArgumentError | count | mbarrier.init(bar, 0)
ArgumentError | count: must be a compile-time | mbarrier.init(bar, n)
ArgumentError | count | mbarrier.init(bar, 1 << 20)
ShapeError | not one barrier | mbarrier.init(buffer, 1)
DtypeError | 64-bit integer | mbarrier.init(floats, 1)
LayoutError | layout of a barrier | mbarrier.init(matrix, 1)
DtypeError | not shared memory | mbarrier.init(p, 1)
DtypeError | 64-bit integer | mbarrier.invalidate(floats)
DtypeError | 64-bit integer | mbarrier.wait(floats, 0)
DtypeError | phase | mbarrier.wait(bar, 0.5)
ShapeError | phase | mbarrier.wait(bar, gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0])))
DtypeError | pred | mbarrier.wait(bar, 0, pred=n)
DtypeError | deps | mbarrier.wait(bar, 0, deps=[n])
DtypeError | pred | mbarrier.arrive(bar, pred=1)
LayoutError | layout of a barrier | mbarrier.arrive(matrix)
ShapeError | not one barrier | async_copy.mbarrier_arrive(buffer)
ArgumentError | two_ctas | mbarrier.allocate_mbarrier(two_ctas=True)
ArgumentError | batch | mbarrier.allocate_mbarrier(batch=n)
""")
def test_barrier_errors(call, error, match):
    refuse(BARRIER.format(call=call), error, match)


@before(3, 9)
def test_arrive_from_cta_names_the_triton_it_needs():
    call = "mbarrier.arrive(bar, from_cta=0)"
    refuse(BARRIER.format(call=call), CapabilityError, "from_cta.*Triton >= 3.9")


@since(3, 9)
def test_arrive_from_a_block_outside_the_cluster():
    refuse(BARRIER.format(call="mbarrier.arrive(bar, from_cta=1)"), ArgumentError, "from_cta")


@pytest.mark.parametrize(
    "changes, error, match",
    [
        ({"b_shape": [64, 32]}, ShapeError, "do not multiply"),
        ({"c_shape": [64, 32]}, ShapeError, "do not multiply"),
        ({"a_shape": [64, 8], "b_shape": [8, 64]}, ShapeError, "K is smaller"),
        ({"b_type": "gl.bfloat16"}, DtypeError, "b: both operands"),
        ({"dtype": "gl.bfloat16", "acc_type": "gl.float16"}, DtypeError, "acc"),
        ({"dtype": "gl.int8", "acc_type": "gl.float32", "width": 4}, DtypeError, "acc"),
        ({"dtype": "gl.uint8", "acc_type": "gl.int32", "width": 4}, DtypeError, "a: mma.sync"),
        ({"dtype": "gl.int16", "acc_type": "gl.int32"}, DtypeError, "a: mma.sync"),
        ({"a": "gl.DotOperandLayout(1, ACC, 2)"}, LayoutError, "a: not the operand layout"),
        ({"b": "ACC"}, LayoutError, "b: not the operand layout"),
        ({"b": "gl.DotOperandLayout(1, ACC, 4)"}, LayoutError, "k_width"),
        ({"width": 1}, LayoutError, "k_width"),
        ({"acc": "L", "a": "gl.DotOperandLayout(0, ACC, 0)", "b": "gl.DotOperandLayout(1, ACC, 0)"},
         LayoutError, "accumulator of mma.sync"),
        ({"rest": ", input_precision='fast'"}, ArgumentError, "input_precision"),
        ({"dtype": "gl.float32", "width": 1, "rest": ", 'ieee'"}, ArgumentError, "input_precision"),
        ({"acc": "gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 16])"}, LayoutError, "tile"),
    ],
)  # fmt: skip
def test_mma_errors(changes, error, match):
    refuse(multiplying(**changes), error, match)


def test_operands_that_are_no_tensors():
    refuse(multiplying().replace("mma_v2(a, b, c)", "mma_v2(a, 1, c)"), DtypeError, "b")


@pytest.mark.parametrize("source", [copying("copy(smem, ptrs)"), multiplying()])
def test_turing_has_none_of_it(source):
    message = r"nvidia.(cp_async|mma_v2).*sm_80.*target is nvidia:sm_75"
    refuse(source, CapabilityError, message, "nvidia:sm_75")


def test_calls_outside_kernels():
    for call in (async_copy.commit_group, lambda: mbarrier.init(None, 1)):
        with pytest.raises(GluonError, match="outside a kernel"):
            call()


def test_versions():
    assert (3, 6) <= TRITON_VERSION < (3, 10)


def test_fp4_becomes_float16_by_an_instruction_of_ada():
    source = """
import gluon_core as gluon
from gluon_core import language as gl
@gluon.jit
def kernel(p):
    x = gl.full([32, 16], 0, gl.uint8, gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]))
    y = gl.fp4_to_fp(x, gl.float16, 1)  # HERE
    gl.store(p + gl.full(y.shape, 0, gl.int32, y.type.layout), y.to(gl.float32))
ARGS = (ptr(gl.float32),)
"""
    refuse(source, CapabilityError, "no gl.fp4_to_fp of fp16.*bfloat16", "nvidia:sm_86")
    parse(source, "nvidia:sm_89")
    parse(source.replace("gl.float16", "gl.bfloat16"), "nvidia:sm_86")
