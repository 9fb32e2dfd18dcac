"""Mistakes in kernels: an error of our own class under the kernel's line, never an abort."""

from __future__ import annotations

import linecache
import pickle

import pytest
import triton

from gluon_core import errors
from gluon_core.testing import triton_at_least
from tests.frontend import oracle, snippets
from tests.tables import mistakes

pytestmark = pytest.mark.once

E = errors


BEFORE = """
GLOBAL = 42
@gluon.jit
def one(a, b):
    return a + b
@gluon.jit
def broken(a):
    c = a * 2
    return c + gl.zeros([64], gl.float32, L1)  # <--
@gluon.jit
def first(a, i, b, j):
    return a
@gluon.jit
def narrowed(a, b):
    return (a + b).to(gl.float16)
@gluon.jit
def pairs(a, i, b, j):
    return a + b, i + j
def plain(a):
    return a
@gluon.jit
def endless(n):
    return endless(n) + 1
@gluon.jit
def empty():
    pass
@gluon.jit
def misnamed(x):
    return gl.sqare(x)  # <--
@gluon.jit
def misnames(x):
    return misnamed(x) + 1
@gluon.jit
def four_warps(p):
    gl.store(p + gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0])), 1)  # <--
"""


@mistakes("""
name | error | uses | text | code
layout-unknown-argument | ArgumentError |  | nonsense | gl.BlockedLayout([1], [32], [4], [0], nonsense=3)  # <--
layout-missing-argument | ArgumentError |  | warps_per_cta | gl.BlockedLayout([1], [32])  # <--
layout-not-a-power-of-two | LayoutError |  | power of two | gl.arange(0, 128, gl.BlockedLayout([3], [32], [4], [0]))  # <--
layout-bad-order | LayoutError |  | order | gl.zeros([32, 16], gl.float32, gl.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 1]))  # <--
layout-warps | LayoutError |  | num_warps=8 | gl.arange(0, 128, gl.BlockedLayout([1], [32], [8], [0]))  # <--
layout-lanes | LayoutError |  | threads per warp | gl.arange(0, 128, gl.BlockedLayout([1], [64], [4], [0]))  # <--
layout-rank | LayoutError |  | rank | gl.arange(0, 128, L2)  # <--
layout-shared-for-registers | LayoutError |  | not a layout for tensors in registers | gl.arange(0, 128, SH1)  # <--
layout-a-string | LayoutError |  | 'blocked' | gl.arange(0, 128, 'blocked')  # <--
layout-clusters | LayoutError |  | num_ctas | gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0], [[1]]))  # <--
layout-registers-for-shared | LayoutError |  | shared memory | gl.allocate_shared_memory(gl.float32, [128], L1)  # <--
layout-slice-dim | LayoutError |  | dim | gl.arange(0, 32, gl.SliceLayout(2, L2))  # <--
layouts-differ | LayoutError | x | convert_layout | x + gl.zeros([128], gl.float32, gl.BlockedLayout([2], [32], [4], [0]))  # <--
layout-store | LayoutError | o | layout differs | gl.store(fp + o, gl.zeros([128], gl.float32, gl.BlockedLayout([2], [32], [4], [0])))  # <--
convert-not-trivial | LayoutError | x | assert_trivial | gl.convert_layout(x, gl.BlockedLayout([2], [32], [4], [0]), assert_trivial=True)  # <--
convert-to-auto-trivially | LayoutError | x | assert_trivial | gl.convert_layout(x, gl.AutoLayout(), assert_trivial=True)  # <--
set-auto-twice | LayoutError | x | already | gl.set_auto_layout(x, L1)  # <--
expand-without-slice | LayoutError | x | SliceLayout | x[:, None]  # <--
expand-wrong-axis | LayoutError | rows | axis | rows[None, :]  # <--
split-across-threads | LayoutError |  | one thread | gl.zeros([32, 2], gl.float32, gl.BlockedLayout([1, 1], [16, 2], [4, 1], [1, 0])).split()  # <--
swizzle-vec | LayoutError |  | vec | gl.allocate_shared_memory(gl.int8, [64], gl.SwizzledSharedLayout(0, 1, 1, [0]))  # <--
dot-operand-layout | LayoutError | xx | DotOperandLayout | gl.dot_fma(xx, xx.permute(1, 0), gl.zeros([32, 32], gl.float32, L2))  # <--
arange-not-power-of-two | ShapeError |  | power-of-two | gl.arange(0, 100, layout=L1)  # <--
arange-empty | ShapeError |  | positive | gl.arange(0, 0, layout=L1)  # <--
arange-backwards | ShapeError |  | positive | gl.arange(128, 0, L1)  # <--
zeros-not-power-of-two | ShapeError |  | power-of-two | gl.zeros([100], gl.float32, L1)  # <--
zeros-negative | ShapeError |  | power-of-two | gl.full([-4], 1, gl.float32, L1)  # <--
zeros-runtime-shape | ShapeError |  | compile-time | gl.zeros([n], gl.float32, L1)  # <--
zeros-too-many | ShapeError |  | too many elements | gl.full([1 << 21], 0.0, gl.float32, L1)  # <--
broadcast | ShapeError | x | 128 | x + gl.zeros([64], gl.float32, L1)  # <--
broadcast-rank | ShapeError | x xx | rank | x + xx  # <--
broadcast-to | ShapeError | xx | 32 | xx.broadcast_to([64, 16])  # <--
reshape | ShapeError | x | number of elements | x.reshape(64)  # <--
reshape-not-power-of-two | ShapeError |  | power of 2 | gl.zeros([32, 16], gl.float32, L2).reshape(3, 170)  # <--
permute | ShapeError | xx | permutation | xx.permute(0, 0)  # <--
permute-rank | ShapeError | x | permutation | x.permute(1, 0)  # <--
split-last | ShapeError | xx | 2 | xx.split()  # <--
join | ShapeError | x | 64 | gl.join(x, gl.zeros([64], gl.float32, L1))  # <--
reduce-axis | GluonError | x | axis | gl.sum(x, 3)  # <--
expand-axis | ShapeError | x | axis | gl.expand_dims(x, 5)  # <--
gather-shape | ShapeError | xx i | rank | gl.gather(xx, i, 0)  # <--
dot-shapes | ShapeError |  | multiply | gl.dot_fma(gl.zeros([32, 16], gl.float32, gl.DotOperandLayout(0, L2, 0)), gl.zeros([32, 32], gl.float32, gl.DotOperandLayout(1, L2, 0)), gl.zeros([32, 32], gl.float32, L2))  # <--
store-larger | ShapeError | x | scalar | gl.store(fp, x)  # <--
mask-shape | ShapeError | o | 64 | gl.load(fp + o, mask=gl.arange(0, 64, L1) < n)  # <--
memdesc-store-shape | ShapeError | x | 64 | gl.allocate_shared_memory(gl.float32, [64], SH1).store(x)  # <--
memdesc-slice-outside | ShapeError |  | leaves | gl.allocate_shared_memory(gl.float32, [64], SH1).slice(64, 32)  # <--
memdesc-slice-length | ShapeError |  | power of two | gl.allocate_shared_memory(gl.float32, [64], SH1).slice(0, 24)  # <--
memdesc-index-outside | ShapeError |  | leading | gl.allocate_shared_memory(gl.float32, [2, 64], SH1).index(2)  # <--
memdesc-index-flat | ShapeError |  | index | gl.allocate_shared_memory(gl.float32, [64], SH1).index(0)  # <--
memdesc-permute | ShapeError |  | permutation | gl.allocate_shared_memory(gl.float32, [32, 16], SH2).permute([0, 2])  # <--
memdesc-reshape | ShapeError |  | elements | gl.allocate_shared_memory(gl.float32, [32, 16], SH2).reshape([8, 8])  # <--
memdesc-reinterpret | ShapeError 3.8+ |  | larger | gl.allocate_shared_memory(gl.float32, [64], SH1)._reinterpret(gl.float64, [64], SH1)  # <--
allocate-shape | ShapeError |  | power-of-two | gl.allocate_shared_memory(gl.float32, [2, 100], SH1)  # <--
allocate-too-much | LimitError |  | bytes | gl.allocate_shared_memory(gl.float32, [1 << 17], SH1)  # <--
add-pointers | DtypeError | o | pointers | (fp + o) + (fp + o)  # <--
load-not-a-pointer | DtypeError | x | not a pointer | gl.load(x)  # <--
load-a-number | DtypeError |  | tensor | gl.load(3)  # <--
mask-dtype | DtypeError | o i | boolean | gl.load(fp + o, mask=i)  # <--
bitwise-float | DtypeError | x y | works on integers | x & y  # <--
shift-float | DtypeError | x | works on integers | x << 2  # <--
exp-int | DtypeError | i | int32 | gl.exp(i)  # <--
sqrt_rn-half | DtypeError | h | fp16 | gl.sqrt_rn(h)  # <--
memdesc-store-dtype | DtypeError | x | fp16 | gl.allocate_shared_memory(gl.float16, [128], SH1).store(x)  # <--
join-dtype | DtypeError | x i | dtype | gl.join(x, i)  # <--
gather-dtype | DtypeError | x | integers | gl.gather(x, x, 0)  # <--
histogram-dtype | DtypeError | x | integers | gl.histogram(x, 16, layout=L1)  # <--
assembly-space | ArgumentError | x | right behind the comma | gl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r, ~{memory}', [x], gl.int32, False, 1)  # <--
fp4-open | LayoutError | x | set_auto_layout | gl.fp4_to_fp(gl.full([32, 8], 0, gl.uint8, gl.AutoLayout()), gl.float16, 1)  # <--
fp4-dtype | DtypeError | x | uint8 | gl.fp4_to_fp(x, gl.float16, 0)  # <--
dot-dtype | DtypeError |  | one dtype | gl.dot_fma(gl.zeros([32, 16], gl.float16, gl.DotOperandLayout(0, L2, 0)), gl.zeros([16, 32], gl.float16, gl.DotOperandLayout(1, L2, 0)), gl.zeros([32, 32], gl.float32, L2))  # <--
constant-too-large | DtypeError |  | 255 | gl.full([128], 300, gl.uint8, L1)  # <--
constant-a-string | DtypeError |  | 'a' | gl.full([128], 'a', gl.uint8, L1)  # <--
dtype-a-string | DtypeError |  | dtype | gl.full([128], 1, 'float32', L1)  # <--
atomic-dtype | ArgumentError | o x | fp32 | gl.atomic_and(fp + o, x)  # <--
bitcast-width | ArgumentError | x | bitcast | x.to(gl.int16, bitcast=True)  # <--
cache-modifier | ArgumentError | o | '.ca' | gl.load(fp + o, cache_modifier='.cx')  # <--
eviction | ArgumentError | o | evict_first | gl.load(fp + o, eviction_policy='evict_frist')  # <--
memory-order | ArgumentError |  | acquire | gl.atomic_add(ip, 1, sem='acquired')  # <--
scope | ArgumentError |  | gpu | gl.atomic_add(ip, 1, scope='grid')  # <--
boundary-check | ArgumentError | o | mask | gl.load(fp + o, boundary_check=(0,))  # <--
other-without-mask | ArgumentError | o | mask | gl.load(fp + o, other=1.0)  # <--
program-axis | GluonError |  | axis | gl.program_id(3)  # <--
unknown-keyword | ArgumentError | x | fast | gl.exp(x, fast=True)  # <--
no-such-method | GluonError | x | sinh | x.sinh()  # <--
no-such-name | GluonError | x | aragne | gl.aragne(0, 128)  # <--
undefined | GluonError | x | yy | x + yy  # <--
global | GlobalVariableError | x | gl.constexpr(42) | x + GLOBAL  # <--
too-few-arguments | GluonError | x | b | one(x)  # <--
too-many-arguments | GluonError | x | one | one(x, x, x, x)  # <--
unknown-argument | ArgumentError | x | 'c' | one(x, c=x)  # <--
in-callees | TraceError | x | sqare | z = misnames(x)
in-a-callee | ShapeError | x | 64 | broken(x)
static-assert | StaticAssertionError | x | want 64 | gl.static_assert(x.shape[0] == 64, 'want 64')  # <--
try | KernelSyntaxError | x | `try` | try:  # <-- ;;     x + 1 ;; except ValueError: ;;     pass
lambda | KernelSyntaxError | x | `lambda` | f2 = lambda a: a  # <--
with | GluonError | x |  | with x:  # <-- ;;     pass
break | KernelSyntaxError | x | `break` | for k in range(n): ;;     break  # <--
class | KernelSyntaxError | x | `class` | class A:  # <-- ;;     pass
dict | KernelSyntaxError | x | dictionary | d2 = {1: x}  # <--
for-in-list | GluonError | x |  | for k in [1, 2]:  # <-- ;;     x += k
constexpr-reassigned | GluonError | x | constexpr | k: gl.constexpr = 3 ;; k: gl.constexpr = 4  # <--
type-changes-in-loop | GluonError | x i | x | for k in range(n): ;;     x = i  # <--
type-differs-in-if | GluonError | x i | z | if n > 3:  # <-- ;;     z = x ;; else: ;;     z = i
tensor-as-condition | GluonError | x |  | if x > 0:  # <-- ;;     x += 1
plain-function | GlobalVariableError | x | @gluon.jit | plain(x)  # <--
recursion | KernelSyntaxError |  | cannot call themselves | endless(n)
while-constant | KernelSyntaxError | x | compile-time constant | while True:  # <-- ;;     x += 1
program-axis-run-time | ShapeError |  | 0, 1 or 2 | gl.program_id(n)  # <--
range-of-tensor | DtypeError | i | scalars | for k in range(i):  # <-- ;;     n += 1
combine-returns-too-few | GluonError | x i |  | gl.reduce((x, i), 0, first)  # <--
combine-changes-type | GluonError | x |  | gl.reduce(x, 0, narrowed)  # <--
reduce-shapes | ShapeError | x | 64 | gl.reduce((x, gl.zeros([64], gl.float32, L1)), 0, pairs)  # <--
reduce-scalar | GluonError |  |  | gl.sum(n, 0)
partitions-none | ArgumentError |  | worker | gl.warp_specialize([(empty, ())], [], [])  # <--
partitions-counts | ArgumentError |  | worker_num_warps | gl.warp_specialize([(empty, ()), (empty, ())], [1, 2], [24, 24])  # <--
partitions-warps | ShapeError |  | powers of two | gl.warp_specialize([(empty, ()), (empty, ())], [3], [24])  # <--
partitions-too-many | LimitError |  | warps | gl.warp_specialize([(empty, ()), (empty, ())], [64], [24])  # <--
partitions-not-a-function | ArgumentError |  | functions_and_args[1] | gl.warp_specialize([(empty, ()), (3, ())], [1], [24])  # <--
partition-layout | LayoutError |  | 1 warps | gl.warp_specialize([(empty, ()), (four_warps, (ip,))], [1], [24])
needs-vendor | GluonError |  |  | gl.zeros([64, 64], gl.float32, gl.amd.AMDMFMALayout(3, [32, 32, 8], True, [4, 1]))  # <--
""")
def test_error_under_the_line(name, error, uses, text, code, capfd):
    with pytest.raises(error) as caught:
        oracle.ours(snippets.source_of(uses, code, BEFORE))
    error = caught.value
    assert isinstance(error, triton.CompilationError)
    assert text in error.message + str(error.got) + str(error.remedy) + str(error.expected) + str(
        error.argument
    )
    assert error.span is not None and error.span.text
    places = [error.span, *error.calls]
    if "# <--" in code or name in ("in-a-callee", "in-callees", "partition-layout"):
        assert "# <--" in error.span.text, str(error)
    for place in places:
        assert linecache.getline(place.file, place.line).rstrip("\n") == place.text
    shown = str(error)
    assert f"{error.span.file}:{error.span.line}" in shown and "^" in shown and len(shown) < 3000
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == shown and again.span == error.span
    assert isinstance(again, triton.CompilationError)
    printed = capfd.readouterr()
    assert not printed.out and "error:" not in printed.err


def test_the_caret_is_under_the_expression():
    source = snippets.source_of("x", "z = x + gl.exp2(x) * gl.zeros([64], gl.float32, L1)", BEFORE)
    with pytest.raises(errors.ShapeError) as caught:
        oracle.ours(source)
    span = caught.value.span
    assert span.text[span.column : span.end_column] == "gl.exp2(x) * gl.zeros([64], gl.float32, L1)"


def test_calls_that_led_there():
    source = snippets.source_of("x", "z = broken(x)", BEFORE)
    with pytest.raises(errors.ShapeError) as caught:
        oracle.ours(source)
    assert [call.text.strip() for call in caught.value.calls] == ["z = broken(x)"]
    assert "called from" in str(caught.value)


def test_calls_that_led_to_a_missing_name():
    with pytest.raises(errors.GluonError) as caught:
        oracle.ours(snippets.source_of("x", "z = misnames(x)", BEFORE))
    assert [call.text.strip() for call in caught.value.calls] == [
        "return misnamed(x) + 1",
        "z = misnames(x)",
    ]


def test_a_number_is_no_tensor():
    source = snippets.source_of("x", "N: gl.constexpr = 4\nz = x * N.to(gl.float32)", BEFORE)
    with pytest.raises(
        errors.TraceError, match="N is a compile-time int, and has no 'to'"
    ) as caught:
        oracle.ours(source)
    assert "gl.to_tensor(N).to" in caught.value.remedy


def test_outside_a_kernel():
    from gluon_core import language as gl

    with pytest.raises(errors.NotInKernelError, match="gl.arange was called outside a kernel"):
        gl.arange(0, 128)
    with pytest.raises(errors.NotInKernelError, match="gl.exp"):
        gl.exp(3)
    for wrong in (
        lambda: gl.static_range(4),
        lambda: gl.static_range(0, gl.constexpr(4), step=1),
        lambda: list(gl.static_range(gl.constexpr(4))),
    ):
        with pytest.raises(errors.NotInKernelError, match="gl.static_range is for .* `range`"):
            wrong()


def test_missing_features_of_the_target():
    source = snippets.source_of("", "gl.nvidia.ampere.async_copy.wait_group(0)  # <--")
    with pytest.raises(errors.CapabilityError, match="gfx942") as caught:
        oracle.ours(source, target="gfx942")
    assert "# <--" in caught.value.span.text
    oracle.ours(source, target="sm_80")


def test_unknown_option_and_target():
    source = snippets.source_of("", "pass") + "KWARGS = {'num_wraps': 4}\n"
    with pytest.raises(errors.OptionError, match="num_warps"):
        oracle.ours(source)
    with pytest.raises(errors.TargetError, match="sm_90"):
        oracle.ours(snippets.source_of("", "pass"), target="sm_99")


def test_wrong_arguments_of_the_kernel():
    module = oracle.load(snippets.source_of("", "pass"), oracle.OURS)
    from gluon_core import testing

    with pytest.raises(errors.ArgumentError, match="kernel"):
        testing.run_parser(module.kernel, (1, 2))


@pytest.mark.skipif(triton_at_least(3, 8), reason="from Triton 3.8 on they work")
@pytest.mark.parametrize("operands", ["x, x", "y, y"])
def test_joins_of_blocks_of_a_cluster(operands):
    """Slices always did so."""
    source = snippets.source_of(
        "",
        "x = gl.full([64], n, gl.int32, gl.BlockedLayout([2], [32], [4], [0], cga_layout=[[1]]))\n"
        "L: gl.constexpr = gl.BlockedLayout([2, 1], [32, 1], [4, 1], [1, 0], cga_layout=[[1, 0]])\n"
        f"y = gl.full([64], n, gl.int32, gl.SliceLayout(1, L))\ngl.join({operands})",
    )
    source += "\nKWARGS = {'num_ctas': 2}\n"
    if operands == "y, y":
        oracle.ours(source)
    else:
        with pytest.raises(errors.CapabilityError, match="needs Triton >= 3.8"):
            oracle.ours(source)


@pytest.mark.skipif(not triton_at_least(3, 7), reason="3.6 names such functions differently")
def test_a_malformed_module_says_why(capfd):
    source = snippets.source_of(
        "x", "gl.inline_asm_elementwise('nop', '=r', [x], gl.float32, True, 3)"
    )
    try:
        oracle.ours(source)
    except errors.GluonError as error:
        assert "error:" in str(error) or error.span is not None
    assert "error:" not in capfd.readouterr().err
