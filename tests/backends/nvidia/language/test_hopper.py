"""gl.nvidia.hopper: the same modules as upstream, and errors instead of aborts."""

from __future__ import annotations

import pytest

from gluon_core import _triton
from gluon_core import language as gl
from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DtypeError,
    LayoutError,
    ShapeError,
)
from gluon_core.testing import TRITON_VERSION
from tests.backends.nvidia.language.hopper_programs import GEMM
from tests.frontend import oracle
from tests.frontend.vendor_oracle import agree, before, parse, refuse, since
from tests.tables import mistakes

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

SETUP = """
from GLUON.language.nvidia import hopper
from GLUON.language.nvidia.hopper import (
    fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait)
TARGET = GPUTarget("cuda", 90, 32)
"""
MMA = (
    SETUP
    + """
ACC = gl.constexpr({acc})
DTYPE = gl.constexpr({dtype})
@gluon.jit
def kernel(n):
    a = gl.allocate_shared_memory({a_dtype}, {a_shape}, {a_layout})
    b = gl.allocate_shared_memory({b_dtype}, {b_shape}, {b_layout})
    c = gl.zeros({shape}, {acc_dtype}, layout=ACC)
    {call}
ARGS = (10,)
KWARGS = {{"num_warps": {num_warps}, "num_ctas": {num_ctas}}}
"""
)
SYNC = "d = warpgroup_mma(a, b, c)  # HERE"


def gpu(name):
    return _triton.GPUTarget("cuda", int(name[3:]), 32)


def same(source, target=None):
    """Assert that both trace the same module, before any pass; returns its text."""
    overrides = {} if target is None else {"target": target}
    theirs = oracle.upstream(source.replace("GLUON", "triton.experimental.gluon"), **overrides)
    mine = oracle.ours(source.replace("GLUON", "gluon_core"), **overrides)
    oracle.assert_same(theirs, mine)
    return mine.str_nodebug()


def multiplying(call=SYNC, dtype="gl.float16", acc_dtype="gl.float32", bits=16, **changes):
    swizzled = f"gl.NVMMASharedLayout(128, {bits}, 2)"
    transposed_layout = f"gl.NVMMASharedLayout(128, {bits}, 2, transposed=True)"
    values = {
        "call": call.replace("\n", "\n    "),
        "acc": f"gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, {256 // bits}])",
        "dtype": dtype,
        "acc_dtype": acc_dtype,
        "a_shape": [64, 128],
        "b_shape": [128, 128],
        "shape": [64, 128],
        "a_layout": swizzled,
        "b_layout": swizzled if bits == 16 else transposed_layout,
        "num_warps": 4,
        "num_ctas": 1,
        **changes,
    }
    values.setdefault("a_dtype", values["dtype"])
    values.setdefault("b_dtype", values["dtype"])
    return MMA.format(**values)


# -- wgmma: the same modules ---------------------------------------------------------------------

CHAINS = {
    "sync": SYNC,
    "chain": "d = warpgroup_mma(a, b, c, is_async=True)\n"
    "d = warpgroup_mma(a, b, d, use_acc=n > 1, is_async=True)\n"
    "d = warpgroup_mma_wait(num_outstanding=1, deps=[d])\n"
    "d = warpgroup_mma(a, b, d, is_async=True)\n"
    "e = warpgroup_mma_wait(0, (d,))\n"
    "gl.static_assert(e.type == c.type)",
    "loop": "z = warpgroup_mma_init(c)\n"
    "for i in range(n):\n"
    "    z = warpgroup_mma(a, b, z, use_acc=i != 0, is_async=True)\n"
    "z = warpgroup_mma_wait(deps=[z])\n"
    "gl.static_assert(z.type == c.type)",
    "pipeline": "d = c\n"
    "for i in range(n):\n"
    "    d = warpgroup_mma(a, b, d, is_async=True)\n"
    "    d = warpgroup_mma_wait(num_outstanding=1, deps=(d,))\n"
    "d = warpgroup_mma_wait(0, deps=(d,))",
    "deps": "e = warpgroup_mma(a, b, c, is_async=True)\n"
    "e, x, y = warpgroup_mma_wait(0, deps=(e, a, b))\n"
    "e = warpgroup_mma(x, y, e)",
    "two": "d = warpgroup_mma(a, b, c, is_async=True)\n"
    "e = warpgroup_mma(a, b, c, use_acc=False, is_async=True)\n"
    "both = warpgroup_mma_wait(0, [d, e])\n"
    "f = both[0] + both[1]",
    "registers": "x = a.load(gl.DotOperandLayout(0, ACC, 2))\n"
    "d = warpgroup_mma(x, b, c, is_async=True)\n"
    "d, x = warpgroup_mma_wait(0, (d, x))",
    "transposed": "t = b.permute((1, 0))\n"
    "d = warpgroup_mma(t.slice(0, 64).permute((1, 0)).permute((1, 0)), b.permute((1, 0)), c)",
    "imprecise": "d = warpgroup_mma(a, b, c, max_num_imprecise_acc=32)",
    "passed on": "d = through(warpgroup_mma(a, b, c, is_async=True), n)\n"
    "d = warpgroup_mma_wait(0, (d,))",
    "branch": "d = warpgroup_mma(a, b, c, is_async=True)\n"
    "if n > 3:\n"
    "    d = warpgroup_mma(a, b, d, is_async=True)\n"
    "d = warpgroup_mma_wait(0, (d,))",
}
THROUGH = """
@gluon.jit
def through(acc, n):
    return acc
"""


@pytest.mark.parametrize("name", CHAINS)
def test_mma(name):
    source = multiplying(CHAINS[name]).replace("ACC =", THROUGH + "ACC =", 1)
    assert "warp_group_dot" in same(source)


@pytest.mark.parametrize(
    "dtype, acc_dtype, bits",
    [
        ("gl.float16", "gl.float16", 16),
        ("gl.bfloat16", "gl.float32", 16),
        ("gl.float32", "gl.float32", 32),
        ("gl.int8", "gl.int32", 8),
        ("gl.float8e5", "gl.float32", 8),
        ("gl.float8e4nv", "gl.float16", 8),
    ],
)
def test_mma_dtypes(dtype, acc_dtype, bits):
    same(multiplying(SYNC, dtype, acc_dtype, bits))
    registers = f"x = a.load(gl.DotOperandLayout(0, ACC, {32 // bits}))\n"
    same(multiplying(registers + "d = warpgroup_mma(x, b, c)", dtype, acc_dtype, bits))


def test_mma_of_both_fp8():
    same(multiplying(a_dtype="gl.float8e5", dtype="gl.float8e4nv", bits=8))


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_mma_swizzles(swizzle):
    layout = f"gl.NVMMASharedLayout({swizzle}, 16, 2)"
    same(multiplying(a_layout=layout, b_layout=layout))


@pytest.mark.parametrize("warps", ["[8, 1]", "[4, 2]"])
@pytest.mark.parametrize("n", [8, 32, 64])
def test_mma_warps(warps, n):
    acc = f"gl.NVMMADistributedLayout([3, 0], {warps}, [16, {n}, 16])"
    same(multiplying(acc=acc, num_warps=8, shape=[128, 128], a_shape=[128, 128]))


def test_mma_in_a_cluster():
    same(
        multiplying(
            acc="gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16], cga_layout=[[1, 0]])",
            a_layout="gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[1, 0]])",
            b_layout="gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 0]])",
            a_shape=[128, 128],
            shape=[128, 128],
            num_ctas=2,
        )
    )


@since(3, 8)
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_mma_precision(precision):
    same(multiplying(f'd = warpgroup_mma(a, b, c, precision="{precision}")'))


@before(3, 8)
def test_mma_precision_works_before_upstream_did():
    call = 'd = warpgroup_mma(a, b, c, precision="ieee")'
    assert "inputPrecision" not in parse(multiplying(call))


def test_accumulator_types_are_named_as_upstream_names_them():
    from triton.experimental.gluon import language as theirs
    from triton.experimental.gluon.language._core import distributed_type as upstream_type
    from triton.experimental.gluon.language.nvidia import hopper as upstream

    from gluon_core.language.nvidia import hopper
    from gluon_core.values import distributed_type

    fields = ([3, 0], [4, 1], [16, 64, 16])
    mine = distributed_type(gl.float32, [64, 64], gl.NVMMADistributedLayout(*fields))
    other = upstream_type(theirs.float32, [64, 64], theirs.NVMMADistributedLayout(*fields))
    layout = hopper.warpgroup_mma_accumulator_type(mine)
    assert layout.mangle() == upstream.warpgroup_mma_accumulator_type(other).mangle()
    assert layout == hopper.warpgroup_mma_accumulator_type(mine) and hash(layout) == hash(layout)
    assert layout != mine and mine != layout


# -- barriers, fences, clusters: the same modules --------------------------------------------------

BARRIER = (
    SETUP
    + """
{imports}
@gluon.jit
def kernel(p, n):
    bar = gl.allocate_shared_memory(gl.int64, [{count}], mbarrier.MBarrierLayout({cga}))
    buffer = gl.allocate_shared_memory(gl.int64, [64], gl.SwizzledSharedLayout(1, 1, 1, [0], {rest}))
    {call}
ARGS = (ptr(gl.float32), 10)
KWARGS = {{"num_ctas": {blocks}}}
"""
)


def with_barrier(call, blocks=1, imports=""):
    cga = {1: "[]", 2: "[[1]]", 4: "[[1], [2]]"}[blocks]
    rest = {1: "", 2: "cga_layout=[[1]]", 4: "cga_layout=[[1], [2]]"}[blocks]
    call = call.replace("\n", "\n    ")
    count = blocks if TRITON_VERSION > (3, 6) else 1
    return BARRIER.format(
        call=call, count=count, blocks=blocks, cga=cga, rest=rest, imports=imports
    )


ROUND = """\
mbarrier.init(bar, count=2)
mbarrier.expect(bar, 128)
mbarrier.expect(bar, 256, pred=n > 1)
mbarrier.expect(bar, 0, n > 2)
mbarrier.arrive(bar)
mbarrier.arrive(bar, count=2)
mbarrier.arrive(bar, count=n.dtype.primitive_bitwidth, pred=n > 1)
mbarrier.wait(bar, 0)
mbarrier.wait(bar, n & 1, pred=n > 1, deps=[buffer])
fence_async_shared()
fence_async_shared(cluster=True)
mbarrier.invalidate(bar)"""
GENERATIONS = [("hopper", "sm_90"), ("blackwell", "sm_100"), ("blackwell", "sm_120")]


@pytest.mark.parametrize("generation, target", GENERATIONS)
@pytest.mark.parametrize("blocks", [1, 4])
def test_barriers(generation, target, blocks):
    source = with_barrier(ROUND, blocks).replace("hopper import (", f"{generation} import (")
    source = source.replace(", warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait", "")
    assert "barrier_expect" in same(source, gpu(target))


@since(3, 8)
def test_barriers_of_rubin():
    imports = "from GLUON.language.nvidia.rubin import fence_async_shared, mbarrier"
    same(with_barrier(ROUND, 2, imports))


@before(3, 7)
def test_expect_by_its_first_name():
    same(with_barrier("mbarrier.expect(bar, bytes=128)"))


@since(3, 7)
def test_expect_by_its_second_name():
    same(with_barrier("mbarrier.expect(bar, bytes_per_cta=128)"))
    assert parse(with_barrier("mbarrier.expect(bar, bytes=128)")) == parse(
        with_barrier("mbarrier.expect(bar, bytes_per_cta=128)")
    )


@since(3, 9)
@pytest.mark.parametrize(
    "call, attribute",
    [
        ("mbarrier.expect(bar, 128, from_cta=1)", "fromCTA = 1"),
        ("mbarrier.arrive(bar, count=2, from_cta=3)", "fromCTA = 3"),
        ("rubin.arrive(bar, count=2, multicast_cta=3)", "multicastCTA = 3"),
        ("rubin.arrive(bar, multicast_cta=2, pred=n > 1)", "multicastCTA = 2"),
    ],
)
def test_barriers_of_chosen_blocks(call, attribute):
    imports = "from GLUON.language.nvidia.rubin import mbarrier as rubin"
    assert attribute in same(with_barrier(call, 4, imports), gpu("sm_107"))


@since(3, 8)
@before(3, 9)
def test_multicast_by_its_first_name():
    imports = "from GLUON.language.nvidia.rubin import mbarrier as rubin"
    source = with_barrier("rubin.arrive(bar, count=2, cta_mask=1)", 4, imports)
    text = same(source, gpu("sm_107"))
    assert "ctaMask = 1" in text


CLUSTER = "from GLUON.language.nvidia.hopper import cluster"


@since(3, 7)
@before(3, 9)
def test_cluster_halves():
    agree(
        with_barrier(
            "mbarrier.sync_cluster_init()\nmbarrier.fence_init_release_cluster()\n"
            "cluster.arrive()\ncluster.wait()\ncluster.arrive(relaxed=True)\ncluster.wait()"
            if TRITON_VERSION == (3, 7)
            else "mbarrier.fence_init_release_cluster()\n"
            "cluster.arrive()\ncluster.wait()\ncluster.arrive(relaxed=True)\ncluster.wait()",
            2,
            CLUSTER,
        )
    )


@since(3, 8)
def test_cluster_barrier():
    text = same(with_barrier("cluster.barrier()\ncluster.barrier(relaxed=True)", 2, CLUSTER))
    assert text.count("cluster_barrier") == 2


@since(3, 7)
@before(3, 8)
def test_cluster_barrier_works_before_upstream_had_it():
    halves = with_barrier("cluster.arrive(True)\ncluster.wait()", 2, CLUSTER)
    assert parse(with_barrier("cluster.barrier(True)", 2, CLUSTER)) == parse(halves)


@since(3, 8)
@pytest.mark.parametrize("generation", ["hopper", "blackwell", "rubin"])
def test_async_store(generation):
    call = (
        "layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], "
        "cga_layout=[[1, 0]])\n"
        "tile = gl.allocate_shared_memory(gl.float16, [64, 64], gl.NVMMASharedLayout("
        "64, 16, 2, cga_layout=[[0, 1]]))\n"
        "async_store(tile, gl.zeros([64, 64], gl.float16, layout), bar)\n"
        "async_store(mbarrier=bar, dst=tile, value=gl.zeros([64, 64], gl.float16, layout))"
    )
    imports = f"from GLUON.language.nvidia.{generation} import async_store"
    assert "async_shared_store" in same(with_barrier(call, 2, imports))


# -- errors, under the kernel's line ---------------------------------------------------------------

S16 = "gl.NVMMASharedLayout(128, 16, 2)"
TURNED8 = "gl.NVMMASharedLayout(64, 8, 2, transposed=True)"
CGA = {
    "acc": "gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16], cga_layout=[[1, 0]])",
    "a_layout": "gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[1, 0]])",
    "b_layout": "gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 0]])",
    "a_shape": [128, 128],
    "shape": [128, 128],
    "num_ctas": 2,
}


@pytest.mark.parametrize(
    "changes, error, match",
    [
        ({"b_shape": [64, 128]}, ShapeError, "do not multiply"),
        ({"shape": [64, 64]}, ShapeError, "do not multiply"),
        ({"a_shape": [32, 128], "shape": [32, 128]}, ShapeError, "M of one block.*M >= 64"),
        ({"acc": "gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])"}, ShapeError,
         "N of one block.*N >= 256"),
        ({"a_shape": [64, 8], "b_shape": [8, 128], "a_layout": "gl.NVMMASharedLayout(0, 16, 2)"},
         ShapeError, "K of one block.*K >= 16"),
        ({"acc": "gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32])"}, LayoutError,
         "K of one instruction.*16"),
        ({"acc": "gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64])"}, LayoutError, "K of one"),
        ({"acc": "gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])"}, LayoutError,
         r"not the accumulator of wgmma.*warps_per_cta=\[4, 1\], instr_shape=\[16, \d+, K of 32 bytes"),
        ({"acc": "gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])"}, LayoutError, "accumulator"),
        ({"acc_dtype": "gl.int32"}, DtypeError, "does not accumulate fp16"),
        ({"dtype": "gl.bfloat16", "acc_dtype": "gl.float16"}, DtypeError, "accumulate bf16"),
        ({"b_dtype": "gl.bfloat16"}, DtypeError, "one dtype.*Convert one, such as b"),
        ({"dtype": "gl.int16"}, DtypeError, "does not take this dtype.*9.7.15.2"),
        ({"dtype": "gl.uint8", "acc_dtype": "gl.int32", "bits": 8}, DtypeError, "unsigned bytes"),
        ({"dtype": "gl.int8", "acc_dtype": "gl.int32", "bits": 8, "a_layout": TURNED8},
         LayoutError, "a: wgmma transposes 16-bit operands only.*9.7.15.5.1"),
        ({"dtype": "gl.float8e5", "bits": 8, "b_layout": "gl.NVMMASharedLayout(128, 8, 2)"},
         LayoutError, "b: wgmma transposes 16-bit"),
        ({"dtype": "gl.float32", "bits": 32, "b_layout": "gl.NVMMASharedLayout(128, 32, 2)"},
         LayoutError, "b: wgmma transposes 16-bit"),
        ({"a_layout": "gl.SwizzledSharedLayout(8, 1, 8, [1, 0])"}, LayoutError, "a: not a matrix"),
        ({"b_layout": "gl.NVMMASharedLayout(128, 8, 2)"}, LayoutError, "b: the layout is for"),
        ({"a_layout": "gl.NVMMASharedLayout(0, 16, 2)"}, LayoutError, "a: without swizzle"),
        ({**CGA, "b_layout": "gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[1, 0]])"}, LayoutError,
         "b: a block of the cluster lacks"),
        ({**CGA, "a_layout": "gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 0]])"}, LayoutError,
         "a: a block of the cluster lacks"),
        ({"call": "warpgroup_mma(c, b, c)  # HERE"}, DtypeError, "one dtype|not take"),
        ({"call": "warpgroup_mma(a.load(ACC), b, c)  # HERE"}, LayoutError, "register operand"),
        ({"call": "warpgroup_mma(a.load(gl.DotOperandLayout(0, ACC, 4)), b, c)  # HERE"},
         LayoutError, "register operand"),
        ({"call": "warpgroup_mma(a, b.load(ACC), c)  # HERE"}, DtypeError, "b: not shared memory"),
        ({"call": "warpgroup_mma(a, b, None)  # HERE"}, DtypeError, "acc: not a tensor"),
        ({"call": "warpgroup_mma(a, b, n)  # HERE"}, ShapeError, "acc: a scalar"),
        ({"call": "warpgroup_mma(a, b, c, use_acc=n)  # HERE"}, DtypeError, "use_acc: must be bool"),
        ({"call": "warpgroup_mma(a, b, c, use_acc=c > 0)  # HERE"}, ShapeError, "use_acc: must be a"),
        ({"call": "warpgroup_mma(a, b, c, precision='fp32')  # HERE"}, ArgumentError, "precision"),
        ({"call": "warpgroup_mma(a, b, c, is_async=n > 1)  # HERE"}, ArgumentError, "is_async"),
        ({"call": "warpgroup_mma(a, b, c, columns=n)  # HERE"}, ArgumentError, "columns"),
        ({"call": "warpgroup_mma(a, b, c, columns=12)  # HERE"}, ArgumentError, "columns"),
        ({"call": "warpgroup_mma(a, b, c, columns=264)  # HERE"}, ArgumentError, "columns"),
        ({"call": "warpgroup_mma(a, b, c, max_num_imprecise_acc=n)  # HERE"}, ArgumentError,
         "max_num_imprecise_acc"),
        ({"dtype": "gl.float8e5", "bits": 8,
          "call": "warpgroup_mma(a, b, c, max_num_imprecise_acc=16)  # HERE"}, ArgumentError,
         "32 to 128"),
        ({"dtype": "gl.float8e5", "bits": 8,
          "call": "warpgroup_mma(a, b, c, max_num_imprecise_acc=256)  # HERE"}, ArgumentError,
         "32 to 128"),
        ({"dtype": "gl.float32", "bits": 32,
          "call": "warpgroup_mma(a, b, c, precision='ieee')  # HERE"}, ArgumentError, "tf32"),
        ({"call": "warpgroup_mma_init(a)  # HERE"}, DtypeError, "value: not a tensor"),
        ({"call": "warpgroup_mma_init(a.load(gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])))"
                  "  # HERE"}, LayoutError, "value: not the accumulator"),
        ({"call": "warpgroup_mma_wait(0)  # HERE"}, ArgumentError, "deps: nothing to wait for"),
        ({"call": "warpgroup_mma_wait(0, [])  # HERE"}, ArgumentError, "deps: nothing"),
        ({"call": "warpgroup_mma_wait(0, [n])  # HERE"}, DtypeError, "deps: not an accumulator"),
        ({"call": "warpgroup_mma_wait(0, [3])  # HERE"}, DtypeError, "deps: not an accumulator"),
        ({"call": "warpgroup_mma_wait(n, [c])  # HERE"}, ArgumentError, "num_outstanding"),
        ({"call": "warpgroup_mma_wait(-1, [c])  # HERE"}, ArgumentError, "num_outstanding"),
        ({"call": "warpgroup_mma(a, b, c, is_async=True) + c  # HERE"}, Exception, ""),
    ],
)  # fmt: skip
def test_mma_errors(changes, error, match):
    refuse(multiplying(**changes), error, match)


def test_one_accumulator_needs_no_sequence():
    call = "d = warpgroup_mma_wait(0, {})\ngl.static_assert(d.type == c.type)"
    assert parse(multiplying(call.format("warpgroup_mma(a, b, c, is_async=True)"))) == parse(
        multiplying(call.format("[warpgroup_mma(a, b, c, is_async=True)]"))
    )


@pytest.mark.parametrize("target", ["sm_80", "sm_100", "sm_120"])
def test_mma_is_for_hopper_alone(target):
    refuse(multiplying(), CapabilityError, "warpgroup_mma needs nvidia.wgmma", gpu(target))


RUBIN = (
    "from GLUON.language.nvidia.rubin import mbarrier as rubin, cluster\n"
    "if triton.__version__ >= '3.8':\n"
    "    from GLUON.language.nvidia.rubin import async_store"
)


@mistakes("""
error | match | call
ArgumentError | count: out of range | mbarrier.arrive(bar, count=0)
ArgumentError | count: must be a compile-time | mbarrier.arrive(bar, count=n)
ShapeError | mbarrier: not one barrier | mbarrier.arrive(buffer)
DtypeError | pred: must be boolean | mbarrier.arrive(bar, pred=n)
ArgumentError | bytes_per_cta: must be a compile-time | mbarrier.expect(bar)
ArgumentError | bytes_per_cta: out of range | mbarrier.expect(bar, -1)
ArgumentError | bytes_per_cta | mbarrier.expect(bar, n)
ArgumentError | bytes_per_cta | mbarrier.expect(bar, 1 << 20)
DtypeError | mbarrier: not shared memory | mbarrier.expect(p, 16)
ArgumentError | cluster: must be a compile-time | fence_async_shared(n > 1)
ArgumentError | cluster: must be | fence_async_shared(cluster=2)
ArgumentError | multicast_cta: out of range | rubin.arrive(bar, multicast_cta=2)
""")
def test_barrier_errors(call, error, match):
    refuse(with_barrier(f"{call}  # HERE", 2, RUBIN), error, match)


@since(3, 9)
def test_errors_of_chosen_blocks():
    for call, error, match in (
        ("mbarrier.arrive(bar, from_cta=2)", ArgumentError, "from_cta: out of range"),
        ("mbarrier.expect(bar, 16, from_cta=-1)", ArgumentError, "from_cta: out of range"),
        ("rubin.arrive(bar, from_cta=0, multicast_cta=1)", ArgumentError, "one block alone"),
    ):
        refuse(with_barrier(f"{call}  # HERE", 2, RUBIN), error, match, gpu("sm_107"))
    call = "rubin.arrive(bar, multicast_cta=1)  # HERE"
    refuse(with_barrier(call, 2, RUBIN), CapabilityError, "mbarrier_multicast", gpu("sm_100"))


@before(3, 9)
def test_missing_features_of_the_installed_triton():
    call = "mbarrier.expect(bar, 16, from_cta=1)  # HERE"
    refuse(with_barrier(call, 2), CapabilityError, "needs Triton >= 3.9")


@since(3, 9)
@pytest.mark.parametrize(
    "call", ["cluster.arrive()", "cluster.wait()", "rubin.sync_cluster_init()"]
)
def test_removed_features_of_the_installed_triton(call):
    refuse(
        with_barrier(f"{call}  # HERE", 2, RUBIN),
        CapabilityError,
        "needs Triton 3.7 to 3.8, found 3",
    )


@pytest.mark.parametrize(
    "call, target, match",
    [
        ("mbarrier.expect(bar, 16)", "sm_80", "nvidia.mbarrier_tx"),
        ("fence_async_shared()", "sm_89", "nvidia.fence_async"),
        ("cluster.barrier()", "sm_80", "nvidia.clusters|needs Triton"),
    ],
)
def test_missing_features_of_older_hardware(call, target, match):
    refuse(with_barrier(f"{call}  # HERE", 1, RUBIN), CapabilityError, match, gpu(target))


@since(3, 8)
@mistakes("""
error | match | call
ShapeError | buffer's shape | async_store(tile, gl.zeros([64, 32], gl.float16, L), bar)
DtypeError | buffer's dtype | async_store(tile, gl.zeros([64, 64], gl.float32, L), bar)
ShapeError | value: a scalar | async_store(tile, n, bar)
DtypeError | dst: not shared | async_store(n, gl.zeros([64, 64], gl.float16, L), bar)
DtypeError | mbarrier | async_store(tile, gl.zeros([64, 64], gl.float16, L), tile)
""")
def test_async_store_errors(call, error, match):
    setup = (
        "L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[1, 0]])\n"
        "tile = gl.allocate_shared_memory(gl.float16, [64, 64], "
        "gl.NVMMASharedLayout(64, 16, 2, cga_layout=[[0, 1]]))\n"
    )
    refuse(with_barrier(f"{setup}{call}  # HERE", 2, RUBIN), error, match)


def test_a_whole_program():
    text = agree(GEMM)
    assert "ttg.warp_specialize" in text and text.count("warp_group_dot_wait") == 2


@pytest.mark.parametrize(
    "use, error",
    [
        ("s.store(acc)", ShapeError),
        ("acc + 1", DtypeError),
        ("acc > 1", DtypeError),
        ("-acc", DtypeError),
        ("acc.to(gl.float16)", DtypeError),
        ("acc[:, None]", DtypeError),
        ("gl.exp(acc)", DtypeError),
        ("gl.sum(acc, 0)", DtypeError),
        ("gl.maximum(acc, 0)", DtypeError),
    ],
)
def test_an_accumulator_nobody_waited_for_is_no_tensor(use, error):
    source = """
from GLUON.language.nvidia.hopper import warpgroup_mma_init
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
@gluon.jit
def kernel(n):
    s = gl.allocate_shared_memory(gl.float32, [64, 64], gl.NVMMASharedLayout(128, 32, 2))
    acc = warpgroup_mma_init(gl.zeros([64, 64], gl.float32, ACC))
    x = USE  # HERE
ARGS = (5,)
"""
    wanted = r"got warpgroup_mma_accumulator.*Wait for it: x = warpgroup_mma_wait"
    refuse(source.replace("USE", use), error, wanted)
