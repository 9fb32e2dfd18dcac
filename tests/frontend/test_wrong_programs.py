"""Programs that a beginner writes: the class, the caret, and words that say what to do.

Each runs on the simulator and compiles for a GPU, and ends in the same error under the same line.
"""

from __future__ import annotations

import importlib.util
import re
import textwrap

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import errors as E

HEAD = """
import math
import numpy as np
import triton
import triton.language as tl
import gluon_core as gluon
from gluon_core import language as gl

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
    "global-object": ("THING.method(v)", E.GlobalVariableError, "THING", "a Thing"),
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
    "float-offset": ("gl.load(x + f)", E.DtypeError, "x + f", "integer", "float32", "gl.int32"),
    "pointer-times": ("gl.load(x * 2)", E.DtypeError, "x * 2", "gl.load"),
    "two-pointers": ("gl.load(x + y)", E.DtypeError, "x + y", "two pointers"),
    # Python that kernels do not have
    "break": ("for i in range(n):\n    break  # <--", K, "break", "`break`", "`while`"),
    "continue": ("for i in range(n):\n    continue  # <--", K, "continue", "`continue`", "`if`"),
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
    "no-such-op": ("gl.dot(v, v)", E.TraceError, "gl.dot", "gl.portable.mma"),
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


@pytest.mark.parametrize("name", CASES)
def test_the_error_says_what_to_do(name, tmp_path):
    body, cls, caret, *words = CASES[name]
    module = load(tmp_path, body)
    with pytest.raises(cls) as caught:
        launch(module)
    error = caught.value
    shown = str(error)
    for word in words:
        assert word in shown.split("\n")[0], shown
    span = error.span
    assert span.text[span.column : span.end_column].strip() == caret, shown
    assert ("# <--" in body) <= ("# <--" in span.text), shown
    assert not re.search(r"0x[0-9a-f]{6}|AST|triton\.language|constexpr\[|Error\)", shown), shown

    with pytest.raises(cls) as compiled:
        gluon.compile(module.kernel, target="sm_90", signature=SIGNATURE, constexprs={"B": 4})
    assert (
        compiled.value.span == span and str(compiled.value).split("\n")[0] == shown.split("\n")[0]
    )
