"""Programs that are wrong in one line: the file around it, and the text of its error."""

from __future__ import annotations

import importlib.util
import re
import textwrap

import numpy as np
import pytest

import gluon_core as gluon

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
def by_name(a, *, extra=2):
    return a + extra


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


def load(folder, body, before=""):
    path = folder / "wrong.py"
    path.write_text(HEAD + before + KERNEL + textwrap.indent(textwrap.dedent(body), "    ") + "\n")
    spec = importlib.util.spec_from_file_location("wrong", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launch(module):
    x, y = np.zeros(512, np.float32), np.zeros(512, np.int32)
    module.kernel[(1,)](x, y, 100, 2.5, 4, target="sim:hopper")


def says(error_class, caret, words, code, folder):
    """Assert that `code` ends in this error on the simulator and in the compiler.

    Its first line holds the words, the caret is under `caret`, and `# <--` marks the line of code.
    """
    module = load(folder, code)
    with pytest.raises(error_class) as caught:
        launch(module)
    error = caught.value
    shown = str(error)
    for word in words:
        assert word in shown.split("\n")[0], shown
    span = error.span
    under = span.text[span.column : span.end_column].strip()
    assert under and caret in (None, under), shown
    assert ("# <--" in code) <= ("# <--" in span.text), shown
    assert not re.search(r"0x[0-9a-f]{6}|AST|triton\.language|constexpr\[|Error\)", shown), shown

    with pytest.raises(error_class) as compiled:
        gluon.compile(module.kernel, target="sm_90", signature=SIGNATURE, constexprs={"B": 4})
    assert (
        compiled.value.span == span and str(compiled.value).split("\n")[0] == shown.split("\n")[0]
    )
