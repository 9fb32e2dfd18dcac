"""Programs that a beginner writes: the class, the caret, and words that say what to do.

Each runs on the simulator and compiles for a GPU, and ends in the same error under the same line.
"""

from __future__ import annotations

import importlib.util
import re
import textwrap
import warnings

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import _triton
from gluon_core import errors as E

pytestmark = pytest.mark.once

HEAD = """
import math
import numpy as np
import triton
import triton.language as tl
import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import mbarrier, tma

MB = gl.constexpr(mbarrier.MBarrierLayout())
L = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
L2 = gl.constexpr(gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0]))
SH = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
TABLE = [1, 2, 3]

class Thing:
    def method(self, a):
        return a

THING = Thing()

def plain(a):
    return a

@gluon.jit
def one(a, b):
    return a + b

@gluon.jit
def around(a):
    return plain(a)

@triton.jit
def elsewhere(a):
    return plain(a)

@gluon.jit
def spin(a):
    return spin(a) + 1

@gluon.jit
def ping(a):
    return pong(a)

@gluon.jit
def pong(a):
    return ping(a)

@gluon.jit
def sometimes(a):
    if a > 3:
        return a

@gluon.jit
def two_types(a, b):
    if a > 3:
        return a
    return b

@gluon.jit
def nothing():
    pass

@gluon.jit
def answers():
    return 3
"""
KERNEL = """
@gluon.jit
def kernel(x, y, n, f, B: gl.constexpr):
    o = gl.arange(0, 128, layout=L)
    v = gl.load(x + o)
"""
SIGNATURE = {"x": "*fp32", "y": "*i32", "n": "i32", "f": "fp32"}
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
    "abs": ("abs(v)", K, "abs", "Use gl.abs"),
    "sum": ("sum(v)", K, "sum", "Use gl.sum"),
    "enumerate": ("for a in enumerate((1, 2)):\n    v += a", K, "enumerate", "gl.static_range"),
    "open": ("open('x')", K, "open", "host code"),
    # compile-time values
    "layout-unmarked": (
        "layout = gl.BlockedLayout([1], [32], [4], [0])",
        E.DtypeError,
        "layout = gl.BlockedLayout([1], [32], [4], [0])",
        "layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])",
    ),
    "portable-layout-unmarked": (
        "layout = gl.portable.blocked_layout([128], gl.float32)",
        E.DtypeError,
        "layout = gl.portable.blocked_layout([128], gl.float32)",
        "Annotate it: layout: gl.constexpr = ",
    ),
    "text-unmarked": (
        "mode = 'relu'",
        E.DtypeError,
        "mode = 'relu'",
        "mode: gl.constexpr = 'relu'",
    ),
    "size-unmarked": (
        "size = 128\ngl.zeros([size], gl.float32, L)  # <--",
        E.ShapeError,
        "gl.zeros([size], gl.float32, L)",
        "'size' where it is set: size: gl.constexpr",
    ),
    "parameter-as-shape": (
        "gl.zeros([n], gl.float32, L)",
        E.ShapeError,
        "gl.zeros([n], gl.float32, L)",
        "a run-time value",
        "the parameter: n: gl.constexpr",
    ),
    "parameter-as-end": (
        "gl.arange(0, n, layout=L)",
        E.ArgumentError,
        "gl.arange(0, n, layout=L)",
        "end",
        "the parameter: n: gl.constexpr",
    ),
    "parameter-as-layout": (
        "gl.zeros([128], gl.float32, n)",
        E.LayoutError,
        "gl.zeros([128], gl.float32, n)",
        "the parameter: n: gl.constexpr",
    ),
    "parameter-in-a-layout": (
        "z: gl.constexpr = gl.BlockedLayout([n], [32], [4], [0])",
        E.LayoutError,
        "gl.BlockedLayout([n], [32], [4], [0])",
        "the parameter: n: gl.constexpr",
    ),
    "parameter-as-axis": (
        "gl.sum(v, n)",
        E.DtypeError,
        "gl.sum(v, n)",
        "compile-time",
        "the parameter: n: gl.constexpr",
    ),
    "parameter-in-reshape": (
        "v.reshape([n, 2])",
        E.DtypeError,
        "v.reshape([n, 2])",
        "the parameter: n: gl.constexpr",
    ),
    "parameter-in-static-range": (
        "for i in gl.static_range(n):\n    v += i",
        E.DtypeError,
        "for i in gl.static_range(n):",
        "the parameter: n: gl.constexpr",
        "`range`",
    ),
    "parameter-in-static-assert": (
        "gl.static_assert(n > 3)",
        K,
        "gl.static_assert(n > 3)",
        "the parameter: n: gl.constexpr",
        "gl.device_assert",
    ),
    # indices
    "pointer-index": ("z = x[o]", K, "x[o]", "gl.load(x + o)"),
    "pointer-constant-index": ("z = x[0]", K, "x[0]", "gl.load(x + 0)"),
    "pointer-slice": ("z = x[0:4]", K, "x[0:4]", "gl.load(x + gl.arange("),
    "pointer-assignment": ("x[0] = 1.0", K, "x[0] = 1.0", "gl.store(x + 0, 1.0)"),
    "tensor-index": ("z = v[n]", K, "v[n]", "gl.gather"),
    "tensor-assignment": ("v[0] = 1.0", K, "v[0] = 1.0", "gl.where"),
    "float-offset": (
        "gl.load(x + f)",
        E.DtypeError,
        "x + f",
        "integer",
        "float32",
        "f.to(gl.int32)",
    ),
    "pointer-times": ("gl.load(x * 2)", E.DtypeError, "x * 2", "gl.load"),
    "two-pointers": ("gl.load(x + y)", E.DtypeError, "x + y", "two pointers"),
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
    # loops and tuples
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
    # shapes, layouts, dtypes, buffers
    "shape-a-text": (
        "gl.zeros('ab', gl.int32, L)",
        E.ShapeError,
        "gl.zeros('ab', gl.int32, L)",
        "'ab'",
    ),
    "shape-none": (
        "gl.zeros(None, gl.int32, L)",
        E.ShapeError,
        "gl.zeros(None, gl.int32, L)",
        "None",
    ),
    "reshape-none": ("v.reshape(None)", E.ShapeError, "v.reshape(None)", "not a shape"),
    "layout-a-text": (
        "gl.zeros([128], gl.int32, 'a')",
        E.LayoutError,
        None,
        "BlockedLayout",
        "'a'",
    ),
    "dtype-a-text": ("v.to('float16')", E.DtypeError, "v.to('float16')", "gl.float16"),
    "bins-17": (
        "gl.histogram(v.to(gl.int32), 17, layout=L)",
        E.ShapeError,
        None,
        "num_bins",
        "Round up to 32",
    ),
    "bins-run-time": ("gl.histogram(v.to(gl.int32), n)", E.ArgumentError, None, "n: gl.constexpr"),
    "buffer-index": (
        "s = gl.allocate_shared_memory(gl.float32, [4, 128], SH)\ns[0]  # <--",
        K,
        "s[0]",
        "s.index(i)",
    ),
    "buffer-sum": (
        "s = gl.allocate_shared_memory(gl.float32, [128], SH)\ns + 1  # <--",
        E.DtypeError,
        "s + 1",
        "buffer.load(layout)",
    ),
    "buffer-index-float": (
        "s = gl.allocate_shared_memory(gl.float32, [4, 128], SH)\ns.index(f)  # <--",
        E.DtypeError,
        "s.index(f)",
        "index",
        "scalar integer",
    ),
    "barriers-of-rank-2": (
        "b = gl.allocate_shared_memory(gl.int64, [2, 1], MB)\nmbarrier.init(b, 1)  # <--",
        E.ShapeError,
        "mbarrier.init(b, 1)",
        "not one barrier",
        ".index(i)",
    ),
    "barrier-of-a-tensor": ("mbarrier.init(v, 1)", E.DtypeError, None, "not shared memory"),
    "barrier-of-int32": (
        "b = gl.allocate_shared_memory(gl.int32, [1], MB)\nmbarrier.init(b, 1)  # <--",
        E.DtypeError,
        None,
        "int64",
        "allocate_mbarrier()",
    ),
    "rows-under-16-bytes": (
        "tma.make_tensor_descriptor(x, [16, 16], [16, 1], [16, 2], gl.NVMMASharedLayout(32, 32, 2))",
        E.ShapeError,
        None,
        "block_shape",
        "at least 4 x fp32",
    ),
    "strides-under-16-bytes": (
        "tma.make_tensor_descriptor(x, [16, 3], [3, 1], [16, 8], gl.NVMMASharedLayout(32, 32, 2))",
        E.ShapeError,
        None,
        "strides",
        "multiple of 16 bytes",
    ),
    "constraints": (
        "gl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r,r', [v], gl.int32, True, 1)",
        E.ArgumentError,
        None,
        "constraints",
        "expected 1, got 2",
    ),
    "reshape-to-another-size": ("v.reshape([16, 4])", E.ShapeError, None, "128 elements"),
    "floats-shifted": ("v << 1", E.DtypeError, "v << 1", "works on integers", "v.to(gl.int32)"),
    "prefix-missing": ("gl.device_print(v)", E.ArgumentError, None, "prefix", "('x', x)"),
    "print-without-text": ("print(v)", E.ArgumentError, "print(v)", "prefix", "('x', x)"),
    "combine-of-none": (
        "gl.reduce(v, 0, nothing)",
        E.ArgumentError,
        None,
        "combine_fn",
        "2 parameters",
        "nothing()",
    ),
    "combine-of-a-pair": (
        "gl.associative_scan((v, v), 0, one)",
        E.ArgumentError,
        None,
        "4 parameters",
        "one(a, b)",
    ),
    "store-nothing": ("gl.store(x + o, None)", E.DtypeError, None, "value", "None"),
    "text-added": ("v + 'a'", E.DtypeError, "v + 'a'", "cannot be combined"),
    "integer-too-wide": ("v + (1 << 80)", E.ArgumentError, None, "64 bits"),
    "worker-arguments": (
        "gl.warp_specialize([(nothing, ()), (one, (v,))], [4], [24])",
        E.ArgumentError,
        None,
        "functions_and_args[1]",
        "one(a, b)",
    ),
    "no-such-op": ("gl.dot(v, v)", E.TraceError, "gl.dot", "gl.portable.mma"),
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
    "texts-in-a-shape": ("gl.zeros(['a'], gl.float32, L)", E.ShapeError, None, "integer", "'a'"),
    "no-layout": ("gl.convert_layout(v, None)", E.LayoutError, None, "layout", "BlockedLayout"),
    "constant-of-a-run-time-value": (
        "c: gl.constexpr = n\ngl.arange(0, c, layout=L)  # <--",
        E.ArgumentError,
        None,
        "compile-time integer",
        "Set 'c', a gl.constexpr,",
    ),
    "no-such-method": ("v.sums(0)", E.TraceError, "v.sums", "'sum'"),
}


def load(folder, body):
    path = folder / "wrong.py"
    path.write_text(HEAD + KERNEL + textwrap.indent(textwrap.dedent(body), "    ") + "\n")
    spec = importlib.util.spec_from_file_location("wrong", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launch(module):
    x, y = np.zeros(512, np.float32), np.zeros(512, np.int32)
    module.kernel[(1,)](x, y, 100, 2.5, 4, target="sim:hopper")


# What Triton takes for right in older releases: the first that does not.
ACCEPTED_ONCE = {"unpack-too-many": (3, 9)}
# ... and what it takes for right in newer ones: the first that does.
ACCEPTED_SINCE = {"kernel-that-returns": (3, 7), "walrus": (3, 8)}


@pytest.mark.parametrize("name", CASES)
def test_the_error_says_what_to_do(name, tmp_path):
    if name in ACCEPTED_ONCE and not _triton.at_least(*ACCEPTED_ONCE[name]):
        pytest.skip("accepted by this Triton")
    if name in ACCEPTED_SINCE and _triton.at_least(*ACCEPTED_SINCE[name]):
        pytest.skip("accepted by this Triton")
    body, cls, caret, *words = CASES[name]
    module = load(tmp_path, body)
    with pytest.raises(cls) as caught:
        launch(module)
    error = caught.value
    shown = str(error)
    for word in words:
        assert word in shown.split("\n")[0], shown
    span = error.span
    under = span.text[span.column : span.end_column].strip()
    assert under and caret in (None, under), shown
    assert ("# <--" in body) <= ("# <--" in span.text), shown
    assert not re.search(r"0x[0-9a-f]{6}|AST|triton\.language|constexpr\[|Error\)", shown), shown

    with pytest.raises(cls) as compiled:
        gluon.compile(module.kernel, target="sm_90", signature=SIGNATURE, constexprs={"B": 4})
    assert (
        compiled.value.span == span and str(compiled.value).split("\n")[0] == shown.split("\n")[0]
    )


# name: (body, words in the warning ...); `# <--` marks the line.
SUSPICIOUS = {
    "atomic": ("gl.atomic_add(y, 1.5)  # <--", "gl.atomic_add", "cut to int32"),
    "compare-and-swap-of-wider": (
        "gl.atomic_cas(y + o, o.to(gl.int64), o)  # <--",
        "gl.atomic_cas, cmp",
        "int64",
        "value.to(gl.int32)",
    ),
    "compare-and-swap-with-a-large-constant": (
        "gl.atomic_cas(y, 1 << 40, n)  # <--",
        "gl.atomic_cas, cmp",
        "keeps 32 bits",
    ),
    "compare-and-swap": ("gl.atomic_cas(y + o, o, v)  # <--", "gl.atomic_cas, val", "cut to int32"),
    "store": ("gl.store(y + o, v)  # <--", "gl.store", "value.to(gl.int32)"),
    "some-paths": ("gl.store(y, sometimes(n))", "sometimes", "some paths alone"),
    "worker-returns": (
        "gl.warp_specialize([(nothing, ()), (answers, ())], [4], [24])  # <--",
        "answers",
        "Store it to memory",
    ),
}


if not _triton.at_least(3, 9):
    SUSPICIOUS["unpack-too-many"] = ("k, j = (1, 2, 3)  # <--", "of 3 values the first 2", "(k, j)")
if _triton.at_least(3, 7):
    SUSPICIOUS["kernel-that-returns"] = ("return n  # <--", "kernel is a kernel", "nobody gets")


@pytest.mark.parametrize("name", SUSPICIOUS)
def test_the_suspicious_warns_at_its_line(name, tmp_path):
    body, *words = SUSPICIOUS[name]
    module = load(tmp_path, body)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        launch(module)
    mine = [warning for warning in caught if warning.category is E.KernelWarning]
    assert len(mine) == 1
    for word in words:
        assert word in str(mine[0].message)
    text = (tmp_path / "wrong.py").read_text().split("\n")[mine[0].lineno - 1]
    assert mine[0].filename == str(tmp_path / "wrong.py")
    assert "# <--" in text or name == "some-paths" and "if a > 3" in text


def test_the_suspicious_is_accepted_in_silence(tmp_path):
    module = load(tmp_path, "gl.atomic_add(y, 1.5)\ngl.store(y + o, v.to(gl.int32))\nnothing()")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=E.KernelWarning)
        warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
        launch(module)
    clean = load(tmp_path, "gl.atomic_add(y, 1)\ngl.store(y + o, v.to(gl.int32))\ngl.store(x, 1)")
    with warnings.catch_warnings():
        warnings.simplefilter("error", category=E.KernelWarning)
        launch(clean)


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
