"""Mistakes in kernels: an error of our own class under the kernel's line, never an abort."""

from __future__ import annotations

import linecache
import pickle

import pytest
import triton

from gluon_core import errors
from gluon_core.testing import triton_at_least
from tests.frontend import oracle, snippets

pytestmark = pytest.mark.once

E = errors

# (operands, body, class, text in the message); `# <--` marks the line that is to blame.
CASES = {
    # layouts
    "layout-unknown-argument": (
        "",
        "gl.BlockedLayout([1], [32], [4], [0], nonsense=3)  # <--",
        E.ArgumentError,
        "nonsense",
    ),
    "layout-missing-argument": (
        "",
        "gl.BlockedLayout([1], [32])  # <--",
        E.ArgumentError,
        "warps_per_cta",
    ),
    "layout-not-a-power-of-two": (
        "",
        "gl.arange(0, 128, gl.BlockedLayout([3], [32], [4], [0]))  # <--",
        E.LayoutError,
        "power of two",
    ),
    "layout-bad-order": (
        "",
        "gl.zeros([32, 16], gl.float32, gl.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 1]))  # <--",
        E.LayoutError,
        "order",
    ),
    "layout-warps": (
        "",
        "gl.arange(0, 128, gl.BlockedLayout([1], [32], [8], [0]))  # <--",
        E.LayoutError,
        "num_warps=8",
    ),
    "layout-lanes": (
        "",
        "gl.arange(0, 128, gl.BlockedLayout([1], [64], [4], [0]))  # <--",
        E.LayoutError,
        "threads per warp",
    ),
    "layout-rank": ("", "gl.arange(0, 128, L2)  # <--", E.LayoutError, "rank"),
    "layout-shared-for-registers": (
        "",
        "gl.arange(0, 128, SH1)  # <--",
        E.LayoutError,
        "not a layout for tensors in registers",
    ),
    "layout-a-string": ("", "gl.arange(0, 128, 'blocked')  # <--", E.LayoutError, "'blocked'"),
    "layout-clusters": (
        "",
        "gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0], [[1]]))  # <--",
        E.LayoutError,
        "num_ctas",
    ),
    "layout-registers-for-shared": (
        "",
        "gl.allocate_shared_memory(gl.float32, [128], L1)  # <--",
        E.LayoutError,
        "shared memory",
    ),
    "layout-slice-dim": (
        "",
        "gl.arange(0, 32, gl.SliceLayout(2, L2))  # <--",
        E.LayoutError,
        "dim",
    ),
    "layouts-differ": (
        "x",
        "x + gl.zeros([128], gl.float32, gl.BlockedLayout([2], [32], [4], [0]))  # <--",
        E.LayoutError,
        "convert_layout",
    ),
    "layout-store": (
        "o",
        "gl.store(fp + o, gl.zeros([128], gl.float32, gl.BlockedLayout([2], [32], [4], [0])))  # <--",
        E.LayoutError,
        "different layouts",
    ),
    "convert-not-trivial": (
        "x",
        "gl.convert_layout(x, gl.BlockedLayout([2], [32], [4], [0]), assert_trivial=True)  # <--",
        E.LayoutError,
        "assert_trivial",
    ),
    "convert-to-auto-trivially": (
        "x",
        "gl.convert_layout(x, gl.AutoLayout(), assert_trivial=True)  # <--",
        E.LayoutError,
        "assert_trivial",
    ),
    "set-auto-twice": ("x", "gl.set_auto_layout(x, L1)  # <--", E.LayoutError, "already"),
    "expand-without-slice": ("x", "x[:, None]  # <--", E.LayoutError, "SliceLayout"),
    "expand-wrong-axis": ("rows", "rows[None, :]  # <--", E.LayoutError, "axis"),
    "split-across-threads": (
        "",
        "gl.zeros([32, 2], gl.float32, gl.BlockedLayout([1, 1], [16, 2], [4, 1], [1, 0])).split()  # <--",
        E.LayoutError,
        "one thread",
    ),
    "swizzle-vec": (
        "",
        "gl.allocate_shared_memory(gl.int8, [64], gl.SwizzledSharedLayout(0, 1, 1, [0]))  # <--",
        E.LayoutError,
        "vec",
    ),
    "dot-operand-layout": (
        "xx",
        "gl.dot_fma(xx, xx.permute(1, 0), gl.zeros([32, 32], gl.float32, L2))  # <--",
        E.LayoutError,
        "DotOperandLayout",
    ),
    # shapes
    "arange-not-power-of-two": (
        "",
        "gl.arange(0, 100, layout=L1)  # <--",
        E.ShapeError,
        "power-of-two",
    ),
    "arange-empty": ("", "gl.arange(0, 0, layout=L1)  # <--", E.ShapeError, "positive"),
    "arange-backwards": ("", "gl.arange(128, 0, L1)  # <--", E.ShapeError, "positive"),
    "zeros-not-power-of-two": (
        "",
        "gl.zeros([100], gl.float32, L1)  # <--",
        E.ShapeError,
        "power-of-two",
    ),
    "zeros-negative": ("", "gl.full([-4], 1, gl.float32, L1)  # <--", E.ShapeError, "power-of-two"),
    "zeros-runtime-shape": (
        "",
        "gl.zeros([n], gl.float32, L1)  # <--",
        E.ShapeError,
        "compile-time",
    ),
    "zeros-too-many": (
        "",
        "gl.full([1 << 21], 0.0, gl.float32, L1)  # <--",
        E.ShapeError,
        "too many elements",
    ),
    "broadcast": ("x", "x + gl.zeros([64], gl.float32, L1)  # <--", E.ShapeError, "128"),
    "broadcast-rank": ("x xx", "x + xx  # <--", E.ShapeError, "rank"),
    "broadcast-to": ("xx", "xx.broadcast_to([64, 16])  # <--", E.ShapeError, "32"),
    "reshape": ("x", "x.reshape(64)  # <--", E.ShapeError, "number of elements"),
    "reshape-not-power-of-two": (
        "",
        "gl.zeros([32, 16], gl.float32, L2).reshape(3, 170)  # <--",
        E.ShapeError,
        "power of 2",
    ),
    "permute": ("xx", "xx.permute(0, 0)  # <--", E.ShapeError, "permutation"),
    "permute-rank": ("x", "x.permute(1, 0)  # <--", E.ShapeError, "permutation"),
    "split-last": ("xx", "xx.split()  # <--", E.ShapeError, "2"),
    "join": ("x", "gl.join(x, gl.zeros([64], gl.float32, L1))  # <--", E.ShapeError, "64"),
    "reduce-axis": ("x", "gl.sum(x, 3)  # <--", E.GluonError, "axis"),
    "expand-axis": ("x", "gl.expand_dims(x, 5)  # <--", E.ShapeError, "axis"),
    "gather-shape": ("xx i", "gl.gather(xx, i, 0)  # <--", E.ShapeError, "rank"),
    "dot-shapes": (
        "",
        "gl.dot_fma(gl.zeros([32, 16], gl.float32, gl.DotOperandLayout(0, L2, 0)), gl.zeros([32, 32], gl.float32, gl.DotOperandLayout(1, L2, 0)), gl.zeros([32, 32], gl.float32, L2))  # <--",
        E.ShapeError,
        "multiply",
    ),
    "store-larger": ("x", "gl.store(fp, x)  # <--", E.ShapeError, "scalar"),
    "mask-shape": (
        "o",
        "gl.load(fp + o, mask=gl.arange(0, 64, L1) < n)  # <--",
        E.ShapeError,
        "64",
    ),
    "memdesc-store-shape": (
        "x",
        "gl.allocate_shared_memory(gl.float32, [64], SH1).store(x)  # <--",
        E.ShapeError,
        "64",
    ),
    "memdesc-slice-outside": (
        "",
        "gl.allocate_shared_memory(gl.float32, [64], SH1).slice(64, 32)  # <--",
        E.ShapeError,
        "leaves",
    ),
    "memdesc-slice-length": (
        "",
        "gl.allocate_shared_memory(gl.float32, [64], SH1).slice(0, 24)  # <--",
        E.ShapeError,
        "power of two",
    ),
    "memdesc-index-outside": (
        "",
        "gl.allocate_shared_memory(gl.float32, [2, 64], SH1).index(2)  # <--",
        E.ShapeError,
        "leading",
    ),
    "memdesc-index-flat": (
        "",
        "gl.allocate_shared_memory(gl.float32, [64], SH1).index(0)  # <--",
        E.ShapeError,
        "index",
    ),
    "memdesc-permute": (
        "",
        "gl.allocate_shared_memory(gl.float32, [32, 16], SH2).permute([0, 2])  # <--",
        E.ShapeError,
        "permutation",
    ),
    "memdesc-reshape": (
        "",
        "gl.allocate_shared_memory(gl.float32, [32, 16], SH2).reshape([8, 8])  # <--",
        E.ShapeError,
        "elements",
    ),
    "memdesc-reinterpret": (
        "",
        "gl.allocate_shared_memory(gl.float32, [64], SH1)._reinterpret(gl.float64, [64], SH1)  # <--",
        E.ShapeError,
        "larger",
    ),
    "allocate-shape": (
        "",
        "gl.allocate_shared_memory(gl.float32, [2, 100], SH1)  # <--",
        E.ShapeError,
        "power-of-two",
    ),
    "allocate-too-much": (
        "",
        "gl.allocate_shared_memory(gl.float32, [1 << 17], SH1)  # <--",
        E.LimitError,
        "bytes",
    ),
    # dtypes
    "add-pointers": ("o", "(fp + o) + (fp + o)  # <--", E.DtypeError, "pointers"),
    "load-not-a-pointer": ("x", "gl.load(x)  # <--", E.DtypeError, "not a pointer"),
    "load-a-number": ("", "gl.load(3)  # <--", E.DtypeError, "tensor"),
    "mask-dtype": ("o i", "gl.load(fp + o, mask=i)  # <--", E.DtypeError, "boolean"),
    "bitwise-float": ("x y", "x & y  # <--", E.DtypeError, "works on integers"),
    "shift-float": ("x", "x << 2  # <--", E.DtypeError, "works on integers"),
    "exp-int": ("i", "gl.exp(i)  # <--", E.DtypeError, "int32"),
    "sqrt_rn-half": ("h", "gl.sqrt_rn(h)  # <--", E.DtypeError, "fp16"),
    "memdesc-store-dtype": (
        "x",
        "gl.allocate_shared_memory(gl.float16, [128], SH1).store(x)  # <--",
        E.DtypeError,
        "fp16",
    ),
    "join-dtype": ("x i", "gl.join(x, i)  # <--", E.DtypeError, "dtype"),
    "gather-dtype": ("x", "gl.gather(x, x, 0)  # <--", E.DtypeError, "integers"),
    "histogram-dtype": ("x", "gl.histogram(x, 16, layout=L1)  # <--", E.DtypeError, "integers"),
    "assembly-space": (
        "x",
        "gl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r, ~{memory}', [x], gl.int32, False, 1)  # <--",
        E.ArgumentError,
        "right behind the comma",
    ),
    "fp4-open": (
        "x",
        "gl.fp4_to_fp(gl.full([32, 8], 0, gl.uint8, gl.AutoLayout()), gl.float16, 1)  # <--",
        E.LayoutError,
        "set_auto_layout",
    ),
    "fp4-dtype": ("x", "gl.fp4_to_fp(x, gl.float16, 0)  # <--", E.DtypeError, "uint8"),
    "dot-dtype": (
        "",
        "gl.dot_fma(gl.zeros([32, 16], gl.float16, gl.DotOperandLayout(0, L2, 0)), gl.zeros([16, 32], gl.float16, gl.DotOperandLayout(1, L2, 0)), gl.zeros([32, 32], gl.float32, L2))  # <--",
        E.DtypeError,
        "one dtype",
    ),
    "constant-too-large": ("", "gl.full([128], 300, gl.uint8, L1)  # <--", E.DtypeError, "255"),
    "constant-a-string": ("", "gl.full([128], 'a', gl.uint8, L1)  # <--", E.DtypeError, "'a'"),
    "dtype-a-string": ("", "gl.full([128], 1, 'float32', L1)  # <--", E.DtypeError, "dtype"),
    "atomic-dtype": ("o x", "gl.atomic_and(fp + o, x)  # <--", E.ArgumentError, "fp32"),
    "bitcast-width": ("x", "x.to(gl.int16, bitcast=True)  # <--", E.ArgumentError, "bitcast"),
    # choices
    "cache-modifier": (
        "o",
        "gl.load(fp + o, cache_modifier='.cx')  # <--",
        E.ArgumentError,
        "'.ca'",
    ),
    "eviction": (
        "o",
        "gl.load(fp + o, eviction_policy='evict_frist')  # <--",
        E.ArgumentError,
        "evict_first",
    ),
    "memory-order": ("", "gl.atomic_add(ip, 1, sem='acquired')  # <--", E.ArgumentError, "acquire"),
    "scope": ("", "gl.atomic_add(ip, 1, scope='grid')  # <--", E.ArgumentError, "gpu"),
    "boundary-check": ("o", "gl.load(fp + o, boundary_check=(0,))  # <--", E.ArgumentError, "mask"),
    "other-without-mask": ("o", "gl.load(fp + o, other=1.0)  # <--", E.ArgumentError, "mask"),
    "program-axis": ("", "gl.program_id(3)  # <--", E.GluonError, "axis"),
    "unknown-keyword": ("x", "gl.exp(x, fast=True)  # <--", E.ArgumentError, "fast"),
    "no-such-method": ("x", "x.sinh()  # <--", E.GluonError, "sinh"),
    "no-such-name": ("x", "gl.aragne(0, 128)  # <--", E.GluonError, "aragne"),
    # names, calls, syntax
    "undefined": ("x", "x + yy  # <--", E.GluonError, "yy"),
    "global": ("x", "x + GLOBAL  # <--", E.GlobalVariableError, "gl.constexpr(42)"),
    "too-few-arguments": ("x", "one(x)  # <--", E.GluonError, "b"),
    "too-many-arguments": ("x", "one(x, x, x, x)  # <--", E.GluonError, "one"),
    "unknown-argument": ("x", "one(x, c=x)  # <--", E.ArgumentError, "'c'"),
    "in-callees": ("x", "z = misnames(x)", E.TraceError, "sqare"),
    "in-a-callee": ("x", "broken(x)", E.ShapeError, "64"),
    "static-assert": (
        "x",
        "gl.static_assert(x.shape[0] == 64, 'want 64')  # <--",
        E.StaticAssertionError,
        "want 64",
    ),
    "try": (
        "x",
        "try:  # <--\n    x + 1\nexcept ValueError:\n    pass",
        E.KernelSyntaxError,
        "`try`",
    ),
    "lambda": ("x", "f2 = lambda a: a  # <--", E.KernelSyntaxError, "`lambda`"),
    "with": ("x", "with x:  # <--\n    pass", E.GluonError, ""),
    "break": ("x", "for k in range(n):\n    break  # <--", E.KernelSyntaxError, "`break`"),
    "class": ("x", "class A:  # <--\n    pass", E.KernelSyntaxError, "`class`"),
    "dict": ("x", "d2 = {1: x}  # <--", E.KernelSyntaxError, "dictionary"),
    "for-in-list": ("x", "for k in [1, 2]:  # <--\n    x += k", E.GluonError, ""),
    "constexpr-reassigned": (
        "x",
        "k: gl.constexpr = 3\nk: gl.constexpr = 4  # <--",
        E.GluonError,
        "constexpr",
    ),
    "type-changes-in-loop": ("x i", "for k in range(n):  # <--\n    x = i", E.GluonError, "x"),
    "type-differs-in-if": (
        "x i",
        "if n > 3:  # <--\n    z = x\nelse:\n    z = i",
        E.GluonError,
        "z",
    ),
    "tensor-as-condition": ("x", "if x > 0:  # <--\n    x += 1", E.GluonError, ""),
    "plain-function": ("x", "plain(x)  # <--", E.GlobalVariableError, "@gluon.jit"),
    "recursion": ("", "endless(n)", E.KernelSyntaxError, "cannot call themselves"),
    "while-constant": (
        "x",
        "while True:  # <--\n    x += 1",
        E.KernelSyntaxError,
        "compile-time constant",
    ),
    "program-axis-run-time": ("", "gl.program_id(n)  # <--", E.ShapeError, "0, 1 or 2"),
    "range-of-tensor": ("i", "for k in range(i):  # <--\n    n += 1", E.DtypeError, "scalars"),
    # reductions
    "combine-returns-too-few": ("x i", "gl.reduce((x, i), 0, first)  # <--", E.GluonError, ""),
    "combine-changes-type": ("x", "gl.reduce(x, 0, narrowed)  # <--", E.GluonError, ""),
    "reduce-shapes": (
        "x",
        "gl.reduce((x, gl.zeros([64], gl.float32, L1)), 0, pairs)  # <--",
        E.ShapeError,
        "64",
    ),
    "reduce-scalar": ("", "gl.sum(n, 0)", E.GluonError, ""),
    # partitions
    "partitions-none": (
        "",
        "gl.warp_specialize([(empty, ())], [], [])  # <--",
        E.ArgumentError,
        "worker",
    ),
    "partitions-counts": (
        "",
        "gl.warp_specialize([(empty, ()), (empty, ())], [1, 2], [24, 24])  # <--",
        E.ArgumentError,
        "worker_num_warps",
    ),
    "partitions-warps": (
        "",
        "gl.warp_specialize([(empty, ()), (empty, ())], [3], [24])  # <--",
        E.ShapeError,
        "powers of two",
    ),
    "partitions-too-many": (
        "",
        "gl.warp_specialize([(empty, ()), (empty, ())], [64], [24])  # <--",
        E.LimitError,
        "warps",
    ),
    "partitions-not-a-function": (
        "",
        "gl.warp_specialize([(empty, ()), (3, ())], [1], [24])  # <--",
        E.ArgumentError,
        "functions_and_args[1]",
    ),
    "partition-layout": (
        "",
        "gl.warp_specialize([(empty, ()), (four_warps, (ip,))], [1], [24])",
        E.LayoutError,
        "1 warps",
    ),
    # targets
    "needs-vendor": (
        "",
        "gl.zeros([64, 64], gl.float32, gl.amd.AMDMFMALayout(3, [32, 32, 8], True, [4, 1]))  # <--",
        E.GluonError,
        "",
    ),
}

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


@pytest.mark.parametrize("name", CASES)
def test_error_under_the_line(name, capfd):
    if name == "memdesc-reinterpret" and not triton_at_least(3, 8):
        pytest.skip("older Tritons make larger views")
    uses, body, cls, text = CASES[name]
    with pytest.raises(cls) as caught:
        oracle.ours(snippets.source_of(uses, body, BEFORE))
    error = caught.value
    assert isinstance(error, triton.CompilationError)
    assert text in error.message + str(error.got) + str(error.remedy) + str(error.expected) + str(
        error.argument
    )
    assert error.span is not None and error.span.text
    places = [error.span, *error.calls]
    if "# <--" in body or name in ("in-a-callee", "in-callees", "partition-layout"):
        assert "# <--" in error.span.text, str(error)
    for place in places:
        assert linecache.getline(place.file, place.line).rstrip("\n") == place.text
    shown = str(error)
    assert f"{error.span.file}:{error.span.line}" in shown and "^" in shown and len(shown) < 3000
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == shown and again.span == error.span
    assert isinstance(again, triton.CompilationError)
    said = capfd.readouterr()
    assert not said.out and "error:" not in said.err


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


def test_what_the_target_lacks():
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
    """Of slices they always did."""
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
