"""Python that kernels do not have, and what beginners make of what they have: the class, the caret, the remedy.

Each runs on the simulator and compiles for a GPU, and ends in the same error under the same line.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from gluon_core import errors as E
from gluon_core.testing import triton_at_least
from tests.frontend.wrong import HEAD, KERNEL, launch, load, says

pytestmark = pytest.mark.once

K = E.KernelSyntaxError

# name: (body, class, what the caret is under, words in the message ...)
CASES = {
    # functions of host code
    "plain": ("plain(v)", E.HostFunctionError, "plain", "wrong.py:", "@gluon.jit"),
    "plain-in-a-function": ("around(v)", E.HostFunctionError, "plain", "'plain'", "@gluon.jit"),
    "plain-in-triton": ("elsewhere(v)", E.HostFunctionError, "plain", "'plain'", "@gluon.jit"),
    "numpy-ufunc": ("np.log(v)", E.HostFunctionError, "np.log", "numpy", "Use gl.log"),
    "numpy-function": ("np.sum(v)", E.HostFunctionError, "np.sum", "numpy", "Use gl.sum"),
    "numpy-array": ("z = np.zeros(4)", E.HostFunctionError, "np.zeros", "numpy", "Use gl.zeros"),
    "math": ("math.sqrt(v)", E.HostFunctionError, "math.sqrt", "Use gl.sqrt"),
    "host-compile": ("gluon.compile(one)", E.HostFunctionError, "gluon.compile", "for host code"),
    "global-object": ("THING.method(v)", E.GlobalVariableError, "THING", "<Thing object>"),
    "global-list": ("v * TABLE[0]", E.GlobalVariableError, "TABLE", "gl.constexpr([1, 2, 3])"),
    "no-such-axis": (
        "gl.sum(v + n, axis=1)",
        E.ShapeError,
        None,
        "axis",
        "expected -1 to 0, got 1",
    ),
    "floor-of-floats": ("v // 2", E.DtypeError, "v // 2", "fp32", "Use gl.floor(v / 2)"),
    "of-cuda": ("gl.syncthreads()", E.TraceError, "gl.syncthreads", "Use gl.barrier()"),
    "an-array-as-descriptor": (
        "x.block_type.shape",
        E.TraceError,
        "x.block_type",
        "x was given an array",
    ),
    "set-to-nothing": (
        "bar = mbarrier.allocate_mbarrier()\nfor i in range(n):  # <--\n    bar = mbarrier.init(bar, 1)",
        E.DtypeError,
        None,
        "'mbarrier.init' returns nothing",
    ),
    "one-of-several-buffers": (
        "s = gl.allocate_shared_memory(gl.float32, [2, 128], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))\n"
        "s.index(0)  # <--",
        E.ShapeError,
        "s.index(0)",
        "For 2 buffers of [128] the layout is one of 1 dimension",
    ),
    "abs": ("abs(v)", K, "abs", "Use gl.abs"),
    "sum": ("sum(v)", K, "sum", "Use gl.sum"),
    "enumerate": ("for a in enumerate((1, 2)):\n    v += a", K, "enumerate", "gl.static_range"),
    "open": ("open('x')", K, "open", "host code"),
    # Python that kernels do not have
    "break": ("for i in range(n):\n    break  # <--", K, "break", "`break`", "`while`"),
    "continue": ("for i in range(n):\n    continue  # <--", K, "continue", "`continue`", "`if`"),
    "function-and-number": (
        "z = 1 if gl.num_ctas == 2 else 2",
        K,
        "gl.num_ctas == 2",
        "function",
        "gl.num_ctas()",
    ),
    "lambda": ("z = lambda a: a", K, "lambda a: a", "`lambda`", "@gluon.jit"),
    "try": ("try:\n    v += 1\nexcept ValueError:\n    pass", K, "try:", "`try`", "`if`"),
    "raise": ("raise ValueError('x')", K, "raise ValueError('x')", "`raise`", "gl.device_assert"),
    "with": ("with v:\n    pass", K, "with v:", "`with`"),
    "yield": ("yield v", K, "yield v", "`yield`", "Return"),
    "list-comprehension": ("[v + i for i in range(3)]", K, "[v + i for i in range(3)]", "tuple"),
    "set-comprehension": ("{i for i in range(3)}", K, "{i for i in range(3)}", "set comprehension"),
    "generator": ("max(i for i in (1, 2))", K, "(i for i in (1, 2))", "generator expression"),
    "dictionary": ("z = {1: v}", K, "{1: v}", "dictionary", "@gl.aggregate"),
    "set": ("z = {1, 2}", K, "{1, 2}", "a set", "tuple"),
    "class": ("class A:\n    pass", K, "class A:", "`class`", "@gl.aggregate"),
    "def": ("def inner(a):\n    return a", K, "def inner(a):", "`def`", "@gluon.jit"),
    "global": ("global TABLE\nTABLE = 3", K, "global TABLE", "`global`"),
    "import": ("import math", K, "import math", "`import`", "top of the file"),
    "del": ("del v", K, "del v", "`del`"),
    "match": ("match n:\n    case 1:\n        pass", K, "match n:", "`match`", "`elif`"),
    "starred-target": ("a, *b = (1, 2, 3)", K, "a, *b = (1, 2, 3)", "starred"),
    "starred-call": ("one(*v)", E.DtypeError, "one(*v)", "tuple"),
    "two-targets": ("a = b = v", K, "a = b = v", "each of a, b"),
    "attribute-assignment": ("v.foo = 3", K, "v.foo = 3", "v.foo", "gl.aggregate_replace"),
    "for-else": (
        "for i in range(n):\n    v += 1\nelse:\n    v += 2",
        K,
        "for i in range(n):",
        "else",
    ),
    "for-list": ("for i in [1, 2]:\n    v += i", K, "for i in [1, 2]:", "gl.static_range"),
    "for-tensor": ("for i in v:\n    v += i", K, "for i in v:", "gl.static_range"),
    "in": ("z = n in (1, 2)", K, "n in (1, 2)", "`in`", "=="),
    "matmul": ("z = v @ v", K, "v @ v", "gl.portable.mma"),
    "f-string": ("z = f'{n}'", K, "f'{n}'", "gl.device_print"),
    "walrus": (
        "if (k := n) > 1:\n    pass",
        E.KernelSyntaxError,
        "k := n",
        "`:=`",
        "line of its own",
    ),
    "kernel-that-returns": (
        "if n > 3:\n    return 5  # <--",
        E.KernelSyntaxError,
        "return 5",
        "a kernel cannot return a value",
        "Store it to memory",
    ),
    "no-such-op": ("gl.dot(v, v)", E.TraceError, "gl.dot", "gl.portable.mma"),
    "no-such-method": ("v.sums(0)", E.TraceError, "v.sums", "'sum'"),
    "print-without-text": ("print(v)", E.ArgumentError, "print(v)", "prefix", "('x', x)"),
    # names and types
    "one-branch": (
        "if n > 3:\n    z = v + 1\ngl.store(x + o, z)  # <--",
        K,
        "z",
        "one branch of an `if`",
        "before the `if`",
    ),
    "loop-alone": (
        "for i in range(n):\n    z = v + 1\ngl.store(x + o, z)  # <--",
        K,
        "z",
        "body of a loop",
        "before the loop",
    ),
    "set-later": ("gl.store(x + o, z)  # <--\nz = v", K, "z", "before line", "is used"),
    "misspelt": ("layuot = v\ngl.store(x + o, layout)  # <--", K, "layout", "'layuot'"),
    "choice-of-types": ("z = v if n > 3 else 1", E.DtypeError, "v if n > 3 else 1", "gl.where"),
    "branch-types": (
        "if n > 3:  # <--\n    z = v\nelse:\n    z = o",
        E.DtypeError,
        "if n > 3:  # <--",
        "'z'",
        "branches",
    ),
    "branch-changes": (
        "if n > 3:  # <--\n    v = o",
        E.DtypeError,
        "if n > 3:  # <--",
        "'v'",
        "as before the `if`",
    ),
    "loop-changes": (
        "for i in range(n):  # <--\n    v = o",
        E.DtypeError,
        "for i in range(n):  # <--",
        "'v'",
        "as before the loop",
    ),
    "tensor-condition": (
        "if v > 0:  # <--\n    v += 1",
        E.DtypeError,
        "if v > 0:  # <--",
        "gl.where",
    ),
    # calls
    "too-many": ("one(v, v, v)", E.ArgumentError, "one(v, v, v)", "at most 2", "one(a, b)"),
    "too-few": ("one(v)", E.ArgumentError, "one(v)", "'b'", "one(a, b)"),
    "unknown-word": ("one(v, c=v)", E.ArgumentError, "one(v, c=v)", "'c'", "one(a, b)"),
    "op-too-many": ("gl.exp(v, v)", E.ArgumentError, "gl.exp(v, v)", "at most 1", "gl.exp(x)"),
    "op-too-few": ("gl.where(v > 0)", E.ArgumentError, "gl.where(v > 0)", "'x', 'y'"),
    "op-unknown-word": ("gl.exp(x=v, y=v)", E.ArgumentError, "gl.exp(x=v, y=v)", "'y'"),
    "op-twice": ("gl.exp(v, x=v)", E.ArgumentError, "gl.exp(v, x=v)", "by place and by name"),
    "library-too-many": (
        "gl.sum(v, 0, 0, 0, 0)",
        E.ArgumentError,
        "gl.sum(v, 0, 0, 0, 0)",
        "most 4",
    ),
    "call-of-a-number": ("n(3)", E.DtypeError, "n(3)", "'n' cannot be called", "int32"),
    "call-of-a-tensor": ("v(3)", E.DtypeError, "v(3)", "'v' cannot be called"),
    "call-of-a-module": ("gl(3)", E.DtypeError, "gl(3)", "a module"),
    "nothing-added": (
        "nothing() + 1",
        E.DtypeError,
        "nothing() + 1",
        "'nothing()' returns nothing",
    ),
    "recursion": ("spin(v)", K, "spin(a)", "cannot call themselves", "loop"),
    "recursion-of-two": ("ping(v)", K, None, "cannot call themselves"),
    "two-types": ("two_types(n, f)", E.DtypeError, "return b", "different types", "int32", "fp32"),
    "return-in-a-loop": ("for i in range(n):\n    return  # <--", K, "return", "after the loop"),
    "int-of-a-tensor": ("int(n)", E.DtypeError, "int(n)", "x.to(gl.int32)"),
    "len-of-a-tensor": ("len(v)", E.DtypeError, "len(v)", "x.shape[0]"),
    "kernel-that-returns-a-tensor": ("return v", K, "return v", "a kernel cannot return a value"),
    "too-many-by-place": (
        "gl.barrier(3)",
        E.ArgumentError,
        None,
        "at most 0",
        "gl.barrier(*, cluster=False)",
    ),
    "call-of-a-literal": ("(1, 2)()", E.DtypeError, None, "(1, 2) cannot be called"),
    "call-of-a-dtype": ("gl.float32(3)", E.DtypeError, None, "got fp32 (dtype)"),
    "text-among-tensors": (
        "gl.where(v > 0, v, 'a')",
        E.DtypeError,
        None,
        "gl.where cannot work with one of these arguments",
        "gl.where(condition, x, y)",
        "v = fp32[128], 'a'",
    ),
    "none-among-tensors": ("gl.maximum(v, None)", E.DtypeError, None, "gl.maximum(x, y", "None"),
    "list-for-a-text": (
        "gl.inline_asm_elementwise('mov.b32 $0, $1;', ['=r,r'], [v], gl.int32, True, 1)",
        E.ArgumentError,
        None,
        "constraints",
        "=r,r'",
    ),
    "combine-called": (
        "gl.reduce(v, 0, one(v, v))",
        E.ArgumentError,
        None,
        "combine_fn",
        "not a call of it",
    ),
    "combine-of-python": ("gl.associative_scan(v, 0, max)", E.ArgumentError, None, "@gluon.jit"),
    "attribute-of-a-number": ("B.foo", E.TraceError, "B.foo", "'B' has no 'foo'", "4 (int)"),
    "attribute-of-a-layout": (
        "z = v.type.layout.orders",
        E.TraceError,
        "v.type.layout.orders",
        "has no 'orders'",
        "'order'",
    ),
    "attribute-of-a-function": ("gl.arange.foo", E.TraceError, None, "'gl.arange' has no 'foo'"),
    "item-of-a-number": ("B[0]", E.DtypeError, "B[0]", "'B' has no items", "4 (int)"),
    "compared-with-none": ("n == None", E.DtypeError, "n == None", "None is no number", "is None"),
    "division-by-zero": ("3 // 0", E.ArgumentError, "3 // 0", "a division by zero"),
    "none-in-a-branch": (
        "if n > 0:  # <--\n    z = None\nelse:\n    z = v",
        E.DtypeError,
        "if n > 0:  # <--",
        "'z' is None in one branch",
    ),
    "condition-of-a-choice": (
        "z = n if v > 0 else 1",
        E.DtypeError,
        "n if v > 0 else 1",
        "one boolean",
        "gl.where",
    ),
    # loops and tuples
    "tuple-literal-index": (
        "(1, 2)[n]",
        E.DtypeError,
        "(1, 2)[n]",
        "compile-time integer",
        "n: gl.constexpr",
    ),
    "endless-unrolling": (
        "for i in gl.static_range(1000000000):\n    v += 1",
        E.LimitError,
        "for i in gl.static_range(1000000000):",
        "unrolled",
        "`range`",
    ),
    "static-step-0": (
        "for i in gl.static_range(0, 9, 0):\n    v += 1",
        E.ArgumentError,
        None,
        "step",
    ),
    "step-0": ("for i in range(0, n, 0):\n    v += 1", E.ArgumentError, None, "never ends"),
    "float-bound": ("for i in range(f):\n    v += 1", E.DtypeError, None, "integer", "gl.int32"),
    "no-bound": ("for i in range():\n    v += 1", E.ArgumentError, None, "(start, end, step)"),
    "static-float": (
        "for i in gl.static_range(2.5):\n    v += 1",
        E.ArgumentError,
        None,
        "integers",
    ),
    "unpack-too-many": (
        "a, b = (1, 2, 3)",
        E.ShapeError,
        "a, b = (1, 2, 3)",
        "2 values for (a, b)",
    ),
    "unpack-too-few": ("a, b, c = (1, 2)", E.ShapeError, "a, b, c = (1, 2)", "3 values"),
    "unpack-a-tensor": ("a, b = v", E.DtypeError, "a, b = v", "only a tuple"),
    "tuple-index": (
        "t = (v, v)\nt[n]  # <--",
        E.DtypeError,
        "t[n]",
        "compile-time",
        "n: gl.constexpr",
    ),
    "tuple-end": ("t = (v, v)\nt[9]  # <--", E.ShapeError, "t[9]", "-2 to 1"),
}

# What Triton takes for right in older releases: the first that does not.
ACCEPTED_ONCE = {"unpack-too-many": (3, 9)}
# ... and what it takes for right in newer ones: the first that does.
ACCEPTED_SINCE = {"kernel-that-returns": (3, 7), "walrus": (3, 8)}


@pytest.mark.filterwarnings("ignore:.*is not callable:SyntaxWarning")
@pytest.mark.parametrize("name", CASES)
def test_the_error_says_what_to_do(name, tmp_path):
    if name in ACCEPTED_ONCE and not triton_at_least(*ACCEPTED_ONCE[name]):
        pytest.skip("accepted by this Triton")
    if name in ACCEPTED_SINCE and triton_at_least(*ACCEPTED_SINCE[name]):
        pytest.skip("accepted by this Triton")
    says(CASES[name], tmp_path)


def test_unrolling_counts_all_loops_of_a_kernel(tmp_path):
    body = "for i in gl.static_range(600):\n    for j in gl.static_range(600):  # <--\n        pass"
    with pytest.raises(E.LimitError, match="one kernel") as caught:
        launch(load(tmp_path, body))
    assert "# <--" in caught.value.span.text
    launch(load(tmp_path, "for i in gl.static_range(0, 1000, 2):\n    pass"))


def test_a_function_that_calls_itself_is_named_once(tmp_path):
    text = """
@gluon.jit
def down(a, depth: gl.constexpr):
    if depth == 0:
        return a
    return down(a, depth - 1)
"""
    module = load(tmp_path, "pass")
    path = tmp_path / "deep.py"
    path.write_text(HEAD + text + KERNEL + "    down(v, 5)\n")
    spec = importlib.util.spec_from_file_location("deep", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(E.KernelSyntaxError, match="call themselves") as caught:
        launch(module)
    assert "times)" in str(caught.value) and str(caught.value).count("called from") < 4
    assert "down(a, depth - 1)" in caught.value.span.text


def test_what_is_nested_too_deep_is_told_from_a_function_that_calls_itself(tmp_path):
    chain = "".join(f"elif n == {i}:\n    v = v + {i}\n" for i in range(1500))
    with pytest.raises(E.KernelSyntaxError, match="nested too deep.*functions of their own") as got:
        launch(load(tmp_path, f"if n == -1:  # <--\n    v = v + 1\n{chain}"))
    assert "# <--" in got.value.span.text


def test_a_constant_of_a_mebibyte(tmp_path):
    module = load(tmp_path, "gl.static_assert(len(B) > 1000000)\ngl.store(x + o, v)")
    x, y = np.zeros(512, np.float32), np.zeros(512, np.int32)
    module.kernel[(1,)](x, y, 100, 2.5, "a" * (1 << 20), target="sim:hopper")


def test_a_chain_of_calls_that_no_stack_holds(tmp_path):
    chain = "@gluon.jit\ndef f0(a):\n    return a\n"
    chain += "".join(f"@gluon.jit\ndef f{i}(a):\n    return f{i - 1}(a)\n" for i in range(1, 400))
    module = load(tmp_path, "f399(v)", chain)
    with pytest.raises(
        E.KernelSyntaxError, match="calls below kernel are nested too deep.*setrecursionlimit"
    ):
        launch(module)
