"""gl.warp_specialize: the same modules as upstream, and the limits of blocks and register files."""

from __future__ import annotations

import warnings

import pytest

from gluon_core import _triton
from gluon_core.errors import ArgumentError, CapabilityError, LayoutError, LimitError
from gluon_core.testing import TRITON_VERSION
from tests.frontend import oracle
from tests.frontend.vendor_oracle import before, parse, refuse, since
from tests.tables import mistakes

SETUP = """
from collections import namedtuple
L4 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
S = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
Pair = namedtuple("Pair", ["x", "y"])
@aggregate
class Box:
    p: gl.tensor
    s: gl.shared_memory_descriptor
    n: gl.constexpr
    def __init__(self, p, s, n):
        self.p = p
        self.s = s
        self.n = gl.constexpr(n)
    @gluon.jit
    def fill(self, v):
        gl.store(self.p, v)
@gluon.jit
def noargs():
    pass
@gluon.jit
def work(p):
    gl.store(p, gl.num_warps())
@gluon.jit
def one(p):
    return gl.load(p)
@gluon.jit
def two(p):
    return gl.load(p), gl.arange(0, 128, layout=L4)
@gluon.jit
def const(p, N: gl.constexpr):
    return gl.load(p) + N
@gluon.jit
def typed(p, T: gl.constexpr):
    gl.store(p, gl.load(p).to(T).to(gl.int32))
@gluon.jit
def boxed(box, k):
    for i in range(k):
        box.fill(i)
    x = box.s.load(gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    gl.store(box.p, gl.sum(x, 0))
    helper(box.p, box.n)
@gluon.jit
def helper(p, n: gl.constexpr):
    deeper(p, n * gl.num_warps())
@gluon.jit
def deeper(p, n):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    gl.store(p + gl.arange(0, 256, layout=layout), n)
@gluon.jit
def ret_box(box):
    return box
@gluon.jit
def pair(t, p):
    gl.store(t[0], t[1])
@gluon.jit
def named(t, p):
    gl.store(t.x, t.y)
@gluon.jit
def tensor(x):
    pass
"""
KERNEL = (
    SETUP
    + """
@gluon.jit
def kernel(p, n, q):
    s = gl.allocate_shared_memory(gl.int32, [128], S)
    box = Box(p, s, 3)
    layout = gl.arange(0, 128, layout=L4)
    {call}
ARGS = (ptr(gl.int32), 10, ptr(gl.int32))
KWARGS = {{"num_warps": {num_warps}}}
"""
)


def kernel(call, num_warps=4):
    return KERNEL.format(call=call.replace("\n", "\n    "), num_warps=num_warps)


def same(source):
    """Assert that both trace the same module, before any pass; returns its text."""
    theirs = oracle.upstream(source.replace("GLUON", "triton.experimental.gluon"))
    mine = oracle.ours(source.replace("GLUON", "gluon_core"))
    oracle.assert_same(theirs, mine)
    return mine.str_nodebug()


CALLS = [
    "gl.warp_specialize([(work, (p,)), (work, (p,))], [4], [24])",
    "gl.warp_specialize([(work, [p]), (work, [p])], [4], [24])",
    "gl.warp_specialize(((work, (p,)), (work, (p,))), (4,), (24,))",
    "gl.warp_specialize([(noargs, ()), (noargs, ())], worker_num_warps=[4], worker_num_regs=[24])",
    "x, y = gl.warp_specialize([(two, (p,)), (work, (q,)), (work, (p,))], [1, 2], [24, 24])\n"
    "gl.store(p, x)\ngl.store(p + y, y)",
    "gl.warp_specialize([(pair, ((p, n), q)), (pair, ((p, n), q))], [2], [48])",
    "gl.warp_specialize([(pair, ((p, 5), q)), (pair, ((p, 5), q))], [2], [48])",
    "gl.warp_specialize([(boxed, (box, n)), (boxed, (box, n)), (boxed, (box, 3))], [2, 8], [48, 64])",
    "for i in range(n):\n    gl.warp_specialize([(work, (p,)), (const, (p, 4))], [4], [24])",
    "if n > 3:\n    gl.warp_specialize([(work, (p,)), (work, (p,))], [4], [24])",
    "gl.warp_specialize([(work, (p,)), (one, (p,))], [4], [24])",
    "gl.warp_specialize([(noargs, ()), (tensor, (layout,))], [4], [24])",
]
# Values that upstream's Gluon of 3.6 cannot return.
RETURNS = [
    "x = gl.warp_specialize([(one, (p,)), (work, (p,))], [4], [24])\ngl.store(p, x)",
    "x = gl.warp_specialize([(const, (p, 7)), (boxed, (box, n))], [4], [48])\ngl.store(p, x)",
    "b = gl.warp_specialize([(ret_box, (box,)), (boxed, (box, n))], [2], [48])\ngl.store(b.p, b.n)",
]


@pytest.mark.once
@pytest.mark.sampled(2)
@pytest.mark.parametrize("call", CALLS)
def test_partitions(call):
    assert "ttg.warp_specialize" in same(kernel(call))


@pytest.mark.once
@pytest.mark.parametrize("call", RETURNS)
def test_results_of_the_default_partition(call):
    source = kernel(call)
    if TRITON_VERSION == (3, 6):
        assert "ttg.warp_yield %" in parse(source)
    else:
        assert "ttg.warp_yield %" in same(source)


@since(3, 7)
def test_named_tuples():
    same(
        kernel(
            "gl.warp_specialize([(named, (Pair(p, n), q)), (named, (Pair(p, n), q))], [2], [48])"
        )
    )


@pytest.mark.once
def test_a_dtype_for_a_worker():
    """Upstream takes only what is a value of the kernel."""
    text = parse(kernel("gl.warp_specialize([(work, (p,)), (typed, (p, gl.float32))], [2], [48])"))
    assert "sitofp" in text


def test_a_string_for_a_worker():
    call = "gl.warp_specialize([(work, (p,)), (moody, (p, 'fill'))], [2], [48])"
    source = kernel(call).replace("@gluon.jit\ndef tensor", MOODY + "@gluon.jit\ndef tensor")
    assert "tt.store" in parse(source)


MOODY = """\
@gluon.jit
def moody(p, HOW: gl.constexpr):
    if HOW == "fill":
        gl.store(p, 3)
"""


@since(3, 7)
def test_registers_may_be_left_out():
    text = same(kernel("gl.warp_specialize([(work, (p,)), (work, (p,))], [4])"))
    assert "requestedRegisters" not in text
    assert (
        text
        == oracle.ours(
            kernel("gl.warp_specialize([(work, (p,)), (work, (p,))], [4], None)")
        ).str_nodebug()
    )


@before(3, 7)
def test_registers_may_not_be_left_out_before():
    call = "gl.warp_specialize([(work, (p,)), (work, (p,))], [4])  # HERE"
    refuse(kernel(call), CapabilityError, "needs Triton >= 3.7")


@pytest.mark.once
@mistakes(r"""
error | match | call
ShapeError | powers of two | gl.warp_specialize([(work, (p,)), (work, (p,))], [3], [24])
LimitError | 36 warps.*at most 28 | gl.warp_specialize([(work, (p,)), (work, (p,))], [32], [24])
LimitError | need 36 warps | gl.warp_specialize([(work, (p,))] + [(work, (p,))] * 2, [16, 16], [24, 24])
ArgumentError | worker_num_warps.*1 entries | gl.warp_specialize([(work, (p,)), (work, (p,))], [4, 4], [24, 24])
ArgumentError | worker_num_regs.*1 entries | gl.warp_specialize([(work, (p,)), (work, (p,))], [4], [24, 24])
ArgumentError | worker_num | gl.warp_specialize([(work, (p,)), (work, (p,))], [n], [24])
ArgumentError | one integer for each | gl.warp_specialize([(work, (p,)), (work, (p,))], [4], [2.5])
LayoutError | functions_and_args\[1\].*2 warps | gl.warp_specialize([(work, (p,)), (tensor, (layout,))], [2], [24])
LayoutError | 2 warps | gl.warp_specialize([(work, (p,)), (pair, ((layout, n), p))], [2], [24])
LayoutError | 2 warps | gl.warp_specialize([(work, (p,)), (tensor, (Box(layout, s, 1),))], [2], [24])
ArgumentError | not a pair | gl.warp_specialize([(work, (p,)), (n, (p,))], [2], [24])
ArgumentError | not a pair | gl.warp_specialize([(work, (p,)), work], [2], [24])
""")
def test_errors(call, error, match):
    refuse(kernel(f"{call}  # HERE"), error, match)


@pytest.mark.parametrize("num_warps", [1, 2])
def test_the_default_partition_has_whole_groups(num_warps):
    call = "gl.warp_specialize([(noargs, ()), (noargs, ())], [4], [24])  # HERE"
    source = SETUP + f"@gluon.jit\ndef kernel():\n    {call}\nKWARGS = {{'num_warps': {num_warps}}}"
    refuse(source, LimitError, "multiple of 4")


since_39 = pytest.mark.skipif(TRITON_VERSION < (3, 9), reason="needs Triton 3.9")


@pytest.mark.skipif(TRITON_VERSION >= (3, 9), reason="Triton 3.9 gives the least")
def test_too_few_registers():
    call = "gl.warp_specialize([(work, (p,)), (work, (p,))], [4], [16])"
    refuse(kernel(f"{call}  # HERE"), LimitError, "24 to 256 for each thread, in steps of 8")


@pytest.mark.once
@pytest.mark.parametrize(
    "warps, registers, match",
    [
        ([4], [24], None),
        ([4, 4], [240, 240], None),
        ([4, 4], [248, 248], "ask for 63488 registers, and nvidia:sm_90 has 64512"),
        ([4, 4, 4], [240, 240, 240], "compiler ignores such a request"),
        ([1, 1, 1, 1], [24, 256, 24, 24], None),
        ([1, 2, 4], [240, 240, 240], None),
        ([1, 2, 4], [24, 248, 248], "ask for 63488"),
        ([1, 2, 4], [24, 24, 248], None),
        ([4], [100], "rounded up"),
        pytest.param([4], [16], "24 to 256", marks=since_39),
        pytest.param([4, 1], [40, 0], "24 to 256", marks=since_39),
        ([4], [264], "24 to 256"),
        ([16], [120], "ask for 61440 registers"),
    ],
)
def test_registers_that_the_compiler_does_not_grant(warps, registers, match):
    workers = ", ".join(["(noargs, ())"] * (len(warps) + 1))
    source = kernel(f"gl.warp_specialize([{workers}], {warps}, {registers})")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parse(source)
    messages = [str(w.message) for w in caught if "worker_num_regs" in str(w.message)]
    if match is None:
        assert not messages
    else:
        assert len(messages) == 1 and match in messages[0]


@pytest.mark.once
def test_warnings_match_the_compiler():
    """It sets the registers of each group exactly where there is no warning."""
    from gluon_core.compiler import compile
    from gluon_core.testing import bind

    for warps, registers, granted in (
        ([4, 4], [240, 240], {"240", "24"}),
        ([4, 4], [248, 248], None),
        ([4], [100], {"104"}),
        ([4], [264], {"256"}),
        *([([4], [16], {"24"})] if TRITON_VERSION >= (3, 9) else []),
    ):
        workers = ", ".join(["(work, (p,))"] * (len(warps) + 1))
        module = oracle.load(
            "@gluon.jit\ndef work(p):\n    gl.store(p, gl.num_warps())\n"
            "@gluon.jit\ndef kernel(p):\n"
            f"    gl.warp_specialize([{workers}], {warps}, {registers})\n"
            "ARGS = (ptr(gl.int32),)",
            oracle.OURS,
        )
        source, _ = bind(module.kernel, module.ARGS, {})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ptx = compile(source, target="nvidia:sm_90").asm["ptx"]
        result = {line.split()[-1].rstrip(";") for line in ptx.splitlines() if "setmaxnreg" in line}
        assert granted is None and not result or granted is not None and granted <= result


@pytest.mark.once
@pytest.mark.parametrize("where", ["(again, (p,)), (work, (p,))", "(work, (p,)), (again, (p,))"])
def test_partitions_inside_a_partition(where):
    again = """
@gluon.jit
def again(p):
    helper_of_again(p)
@gluon.jit
def helper_of_again(p):
    gl.warp_specialize([(work, (p,)), (work, (p,))], [4], [24])  # HERE
"""
    source = kernel(f"gl.warp_specialize([{where}], [4], [24])")
    source = source.replace("@gluon.jit\ndef kernel", again + "@gluon.jit\ndef kernel")
    refuse(source, ArgumentError, "cannot be cut into partitions")


@pytest.mark.once
def test_partitions_after_partitions():
    same(kernel("\n".join(["gl.warp_specialize([(work, (p,)), (work, (p,))], [4], [24])"] * 2)))


def test_older_hardware_cannot_move_registers():
    call = "gl.warp_specialize([(work, (p,)), (work, (p,))], [4], [24])  # HERE"
    target = _triton.GPUTarget("cuda", 80, 32)
    refuse(kernel(call), CapabilityError, "cannot give registers", target)


MMA = """
from GLUON.language.nvidia.hopper import warpgroup_mma
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
T = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
@gluon.jit
def multiply(x):
    warpgroup_mma(x, x, gl.zeros([64, 64], gl.float32, ACC))  # HERE
@gluon.jit
def idle():
    pass
@gluon.jit
def kernel():
    x = gl.allocate_shared_memory(gl.float16, [64, 64], T)
    gl.warp_specialize([(idle, ()), (multiply, (x,))], [WARPS], [64])
"""


@pytest.mark.once
def test_wgmma_needs_a_group_of_warps():
    same(MMA.replace("WARPS", "4"))
    # The first mistake is the accumulator's layout: it is made for four warps.
    for warps in (1, 2):
        refuse(MMA.replace("WARPS", str(warps)), LayoutError, f"expected {warps} warps")
    passed = MMA.replace("gl.zeros([64, 64], gl.float32, ACC)", "acc").replace(
        "def multiply(x)", "def multiply(x, acc)"
    )
    passed = passed.replace("(x,)", "(x, gl.zeros([64, 64], gl.float32, ACC))")
    same(passed.replace("WARPS", "4"))
