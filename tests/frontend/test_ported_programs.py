"""Names and habits that whole programs for Triton's own Gluon rely on, once their import lines are ours."""

from __future__ import annotations

import pickle
import re
import traceback
from collections import namedtuple

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import _triton, testing
from gluon_core import language as gl
from gluon_core.errors import CapabilityError, GluonError, KernelSyntaxError, StaticAssertionError
from gluon_core.language.extra import libdevice
from gluon_core.testing import triton_at_least
from tests.frontend import oracle, vendor_oracle

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

LAYOUT = gl.BlockedLayout([1], [32], [4], [0])
Bounds = namedtuple("Bounds", ["low", "high"])


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")


def test_libdevice_is_one_module_however_it_is_imported():
    import gluon_core.language.extra as extra

    assert gl.extra is extra and extra.libdevice is libdevice


@gluon.jit
def clamp(x, bounds):
    return gl.minimum(gl.maximum(x, bounds.low), bounds.high)


@gluon.jit
def clamp_kernel(pointers, bounds, layout: gl.constexpr):
    i = gl.arange(0, 128, layout)
    gl.store(pointers[1] + i, clamp(gl.load(pointers[0] + i), bounds))


def test_a_named_tuple_argument_keeps_its_fields():
    x = np.linspace(-2, 2, 128, dtype=np.float32)
    out = np.zeros_like(x)
    clamp_kernel[(1,)]((x, out), Bounds(-0.5, 1.25), LAYOUT)
    np.testing.assert_array_equal(out, x.clip(-0.5, 1.25))


NAMED = """
@gluon.jit
def kernel(p, n, L: gl.constexpr):
    a = gl.zeros([128], gl.int32, L)
    state = (a, a + 1)
    for i in range(n):
        state = (state[1], state[0] + state[1])
    gl.store(p + gl.arange(0, 128, L), state[0])
ARGS = (ptr(gl.int32), 10, gl.BlockedLayout([1], [32], [4], [0]))
"""


def test_values_in_a_tuple_are_named_as_upstream_names_them():
    names = [
        set(re.findall(r"%(state[\w.]*)", str(module)))
        for module in (oracle.ours(NAMED), oracle.upstream(NAMED))
    ]
    assert names[0] == names[1] and names[0]


@gluon.jit
def coalesced_kernel(x, out, n, BLOCK: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=gl.CoalescedLayout())
    gl.store(out + i, gl.load(x + i, mask=i < n) * 3, mask=i < n)


@pytest.mark.parametrize("target", ["sm_80", "gfx942", "gfx1100"])
def test_every_vendor_resolves_coalesced_layouts(target):
    compiled = gluon.compile(
        coalesced_kernel,
        target=target,
        signature={"x": "*fp32:16", "out": "*fp32:16", "n": "i32"},
        constexprs={"BLOCK": 1024},
    )
    assert "sizePerThread = [4]" in compiled.asm["ttgir"]
    assert "coalesced_encoding" not in compiled.asm["ttgir"]


FP8 = """
from GLUON.language.nvidia.ampere import mma_v2
ACC = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8]))
@gluon.jit
def kernel(p, q):
    A: gl.constexpr = gl.DotOperandLayout(0, ACC, 4)
    B: gl.constexpr = gl.DotOperandLayout(1, ACC, 4)
    i = gl.arange(0, 64, gl.SliceLayout(1, A))[:, None] * 64
    j = gl.arange(0, 64, gl.SliceLayout(0, B))[None, :]
    a = gl.load(p + i + gl.arange(0, 64, gl.SliceLayout(0, A))[None, :])
    b = gl.load(p + gl.arange(0, 64, gl.SliceLayout(1, B))[:, None] * 64 + j)
    c = mma_v2(a, b, gl.zeros([64, 64], gl.float32, ACC))
    rows = gl.arange(0, 64, gl.SliceLayout(1, ACC))[:, None] * 64
    gl.store(q + rows + gl.arange(0, 64, gl.SliceLayout(0, ACC))[None, :], c)
ARGS = (ptr(gl.float8e5), ptr(gl.float32))
KWARGS = OPTIONS
"""


@pytest.mark.parametrize("most", [0, 2**30])
def test_fp8_products_carry_the_option_for_imprecise_sums(most):
    source = FP8.replace("OPTIONS", repr({"max_num_imprecise_acc_default": most}))
    vendor_oracle.agree(source, _triton.GPUTarget("cuda", 90, 32))
    text = oracle.ours(
        source.replace("GLUON", "gluon_core"), target=_triton.GPUTarget("cuda", 90, 32)
    ).str_nodebug()
    assert (f"maxNumImpreciseAcc = {most}" in text) == bool(most)


@gluon.jit
def only_three(N: gl.constexpr):
    gl.static_assert(N == 3, "N must be three")


@gluon.jit
def uses_try():
    try:
        pass
    except ValueError:
        pass


@pytest.mark.parametrize(
    "kernel, args, theirs, mine",
    [
        (only_three, (4,), _triton.CompileTimeAssertionFailure, StaticAssertionError),
        (uses_try, (), _triton.UnsupportedLanguageConstruct, KernelSyntaxError),
    ],
)
def test_errors_are_of_tritons_class_too(kernel, args, theirs, mine):
    with pytest.raises(theirs) as caught:
        testing.run_parser(kernel, args, target="sm_90")
    assert isinstance(caught.value, mine)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy, theirs) and isinstance(copy, mine) and str(copy) == str(caught.value)


def test_tritons_compile_takes_a_source():
    import triton

    signature = {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = gluon.GluonASTSource(coalesced_kernel, signature, {"BLOCK": 1024})
    compiled = triton.compile(source, target=_triton.GPUTarget("cuda", 90, 32))
    assert compiled.asm["cubin"][:4] == b"\x7fELF"
    assert ".entry coalesced_kernel(" in compiled.asm["ptx"]


@gluon.jit
def hinted_kernel(x, out, layout: gl.constexpr):
    i = gl.max_contiguous(gl.multiple_of(gl.arange(0, 128, layout), 16), 16)
    i = gl.max_constancy(i, 1)
    gl.store(gl.multiple_of(out, 16) + i, gl.load(x + i) + 1)


def test_hints_change_nothing_on_the_simulator():
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    hinted_kernel[(1,)](x, out, LAYOUT)
    np.testing.assert_array_equal(out, x + 1)


def test_a_traceback_of_a_syntax_error_shows_the_mistake():
    with pytest.raises(SyntaxError) as caught:
        testing.run_parser(uses_try, (), target="sm_90")
    shown = "".join(traceback.format_exception(caught.type, caught.value, None))
    assert "`try` is not supported" in shown and "    try:" in shown


@gluon.jit
def pairs(n):
    return n, (n + 1, n + 2)


@gluon.jit
def unpacking_kernel(out, n):
    a, (b, c) = pairs(n)  # HERE
    gl.store(out, a + b + c)


def test_nested_unpacking_works_or_is_an_error_each_time_at_its_line():
    out = np.zeros(1, np.int32)
    for _ in range(2):
        try:
            unpacking_kernel[(1,)](out, 3)
        except KernelSyntaxError as error:
            assert "# HERE" in str(error) and not triton_at_least(3, 9)
        else:
            assert out == 3 + 4 + 5


def test_a_missing_argument_is_reported_with_the_kernels_name():
    for _ in range(2):  # before and after the kernel is compiled
        with pytest.raises(TypeError, match=r"^hinted_kernel\(\) missing .*'layout'"):
            hinted_kernel[(1,)](np.zeros(128, np.float32), np.zeros(128, np.float32))
        hinted_kernel[(1,)](np.zeros(128, np.float32), np.zeros(128, np.float32), LAYOUT)


@gluon.jit
def store_one(out):
    gl.store(out, 1)


@gluon.jit
def partitions_kernel(out):
    gl.warp_specialize([(store_one, (out,)), (store_one, (out,))], [1], [24])


def test_registers_move_only_where_the_hardware_moves_them():
    signature = {"out": "*i32"}
    assert gluon.compile(partitions_kernel, target="sm_90", signature=signature).asm["cubin"]
    for target in ("sm_80", "sim:sm_80"):
        with pytest.raises(CapabilityError, match="worker_num_regs.*registers"):
            gluon.compile(partitions_kernel, target=target, signature=signature)


LIBRARY = """
from GLUON._runtime import GluonASTSource, GluonJITFunction, jit
from GLUON.language._core import _unwrap_if_constexpr, builtin, distributed_type
from GLUON.language._layouts import DistributedLayout
from GLUON.language._semantic import GluonSemantic

@builtin
def filled(x, value, _semantic=None):
    assert isinstance(_semantic, GluonSemantic) and isinstance(x.type, distributed_type)
    assert isinstance(x.type.layout, DistributedLayout)
    return _semantic.full(x.shape, _unwrap_if_constexpr(value), x.dtype, x.type.layout)

@jit
def times(x, n: gl.constexpr):
    return x * n

assert isinstance(times, GluonJITFunction) and GluonASTSource

class Times:
    __triton_builtin__ = True

    def __init__(self, n):
        self.n = n

    @property
    def cache_key(self):
        return f"Times({self.n})"

    def __call__(self, x, _semantic=None, _generator=None):
        return _generator.call_JitFunction(times, [x, gl.constexpr(self.n)], {})

@gluon.jit
def kernel(p, by: gl.constexpr, L: gl.constexpr):
    i = gl.arange(0, 128, L)
    gl.store(p + i, by(filled(i, 5) + i))

ARGS = (ptr(gl.int32), Times(3), gl.BlockedLayout([1], [32], [4], [0]))
"""


def test_a_library_with_ops_and_callables_of_its_own():
    # Such libraries import from upstream's private modules; only their import lines change.
    assert "arith.muli" in vendor_oracle.agree(LIBRARY)
    module = oracle.load(LIBRARY.replace("GLUON", "gluon_core"), oracle.OURS)
    out = np.zeros(128, np.int32)
    for n in (3, 4):
        module.kernel[(1,)](out, module.Times(n), LAYOUT)
        np.testing.assert_array_equal(out, n * (5 + np.arange(128)))


def test_the_private_paths_have_the_names_of_the_language():
    from gluon_core.language import _core, _layouts, _semantic
    from gluon_core.language.amd import _layouts as amd_layouts

    assert amd_layouts.AMDMFMALayout is gl.amd.AMDMFMALayout
    assert (gl._core, gl._layouts, gl._semantic) == (_core, _layouts, _semantic)
    assert _core.allocate_shared_memory is gl.allocate_shared_memory
    assert _layouts.BlockedLayout is gl.BlockedLayout is _core.BlockedLayout
    assert _semantic.GluonSemantic.__name__ == "Semantic"
    with pytest.raises(AttributeError):
        _core.no_such_name


INTERPRETED = """
import numpy as np, torch, triton, triton.language as tl

@triton.jit
def double(x):
    return x + tl.sum(x, 0)

@triton.jit
def twice(x):
    return x * 2

@triton.jit
def plain(out):
    tl.store(out + tl.arange(0, 4), tl.sum(tl.arange(0, 4), 0))

def interpret():
    four = torch.zeros(4)
    plain[(1,)](four)  # leaves the core of the language exchanged
    assert (four == 6).all()
    assert twice(2) == 4  # and all the rest

interpret()
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def add(x, y):
    return x + y

@gluon.jit
def kernel(out, SCANS: gl.constexpr, L: gl.constexpr):
    gl.static_assert(SCANS < 2)
    i = gl.arange(0, 128, L)
    x = i
    for _ in gl.static_range(SCANS):
        x = gl.associative_scan(x, 0, add)
    gl.store(out + i, double(x) + gl.max(x, 0) + x.min(0) + tl.cdiv(7, 2))

for x in (np.arange(128), np.cumsum(np.arange(128))):
    interpret()
    out = np.zeros(128, np.int32)
    kernel[(1,)](out, int(x[2] == 3), gl.BlockedLayout([1], [32], [4], [0]))
    assert (out == x + x.sum() + x.max() + 4).all()
interpret()
"""


@pytest.mark.once
def test_kernels_are_traced_while_tritons_interpreter_runs_those_of_triton(tmp_path):
    import os
    import subprocess
    import sys

    file = tmp_path / "both.py"
    file.write_text(INTERPRETED)
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ASSEMBLY = """
@gluon.jit
def kernel(p, q, L: gl.constexpr):
    i = gl.arange(0, 512, L)
    a, b = gl.load(p + i), gl.load(q + i)
    text: gl.constexpr = "{ mov.b32 $0, $3; mov.b32 $1, $2; }"
    x, y = gl.inline_asm_elementwise(text, "=r,=r,r,r", [a, b], dtype=KINDS, is_pure=True, pack=1)
    gl.store(p + i, x + y)

ARGS = (ptr(gl.int32), ptr(gl.int32), gl.BlockedLayout([4], [32], [4], [0]))
"""


@pytest.mark.parametrize(
    "kinds", ["(gl.int32, gl.int32)", "[gl.int32, gl.uint32]", "(a.dtype, b.dtype)"]
)
def test_assembly_gives_several_results(kinds):
    vendor_oracle.agree(ASSEMBLY.replace("KINDS", kinds))


CHECKED = """
from triton._filecheck import filecheck_test, run_parser

@gluon.jit
def kernel(p, n):
    gl.store(p + gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0])), n)

@filecheck_test
@gluon.jit
def says_what_it_is():
    # CHECK: tt.make_range
    gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))

says_what_it_is()
PARSED = run_parser(kernel, (ptr(gl.int32), 3), {"num_warps": 4}, TARGET)
ARGS = (ptr(gl.int32), 3)
"""


def test_tritons_helpers_for_tests_of_frontends_take_kernels():
    # Its suites import them from Triton itself: those lines do not change.
    theirs = oracle.load(CHECKED, oracle.UPSTREAM).PARSED
    mine = oracle.load(CHECKED, oracle.OURS).PARSED
    oracle.assert_same(theirs, mine, raw=False)
    assert "tt.store" in mine.str_nodebug()


@gluon.jit
def through_addresses(x, y):
    narrow = x.to(gl.int64).to(gl.pointer_type(gl.float8e5))
    gl.store(y, gl.load(narrow).to(gl.float32))


def test_addresses_of_floats_of_8_bits():
    x, y = np.array([0x3C, 0], np.uint8), np.zeros(1, np.float32)
    through_addresses[(1,)](x, y, target="sim:sm_90")
    assert y[0] == 1.0


Part = namedtuple("Part", ["data", "size"])
Size = namedtuple("Size", ["first"])


@gluon.jit
def branching_on_fields(out, part):
    if hasattr(part, "size") and not hasattr(part, "stride"):
        gl.store(out, part.size.first)
    if hasattr(part.size, "first"):
        gl.store(out + 1, part.data)


@gluon.jit
def second_of(part):
    return getattr(part, "size")


@gluon.jit
def reading_fields(out, part, NAME: gl.constexpr):
    gl.store(out, getattr(second_of(part), "first"))
    gl.store(out + 1, getattr(part, NAME) + getattr(part, "stride", 3))
    gl.store(out + 2, gl.load(out).to(getattr(out.dtype, "element_ty")))


def test_getattr_reads_named_tuples():
    out = np.zeros(3, np.int32)
    reading_fields[(1,)](out, Part(5, Size(7)), "data")
    assert out.tolist() == [7, 8, 7]
    with pytest.raises(GluonError, match=r"getattr\(part, NAME\)"):
        reading_fields[(1,)](out, Part(5, Size(7)), "wide")


def test_hasattr_asks_named_tuples():
    out = np.zeros(2, np.int32)
    branching_on_fields[(1,)](out, Part(5, Size(7)))
    assert out.tolist() == [7, 5]


@gluon.jit
def place_of(head, heads):
    return [head, 7], heads * 2


@gluon.jit
def two_places(head, heads):
    return place_of(head, heads) + place_of(head + 1, heads)


@gluon.jit
def joining_kernel(out, heads):
    places = two_places(gl.program_id(0), heads)
    for i in gl.static_range(2):
        gl.store(out + 3 * i, places[2 * i][0])
        gl.store(out + 3 * i + 1, places[2 * i][1])
        gl.store(out + 3 * i + 2, places[2 * i + 1])


def test_sums_of_tuples_hold_constants():
    """One head is a constant of the kernel."""
    out = np.zeros(6, np.int32)
    joining_kernel[(1,)](out, 1)
    assert out.tolist() == [0, 7, 2, 1, 7, 2]
