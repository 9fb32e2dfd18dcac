"""Tensors without a layout: dead ones are gone before compilers look for layouts, live ones are errors.

Each body says the line of the error by `# <--`, or none; the simulator and the compiler have to agree.
"""

from __future__ import annotations

import importlib.util
import textwrap

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core.compiler.driver import compile_source
from gluon_core.errors import LayoutError
from gluon_core.registry.load import registry
from gluon_core.testing import triton_at_least

pytestmark = pytest.mark.sampled(4)

HEAD = """
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def ignores(x, v):
    gl.store(x, 5)
    return x

@gluon.jit
def wastes(x, v):
    w = gl.sum(v, 0)
    return x, w

@gluon.jit
def uses(x, v):
    gl.store(x, gl.sum(v, 0))

@gluon.jit
def ranges(n, SIZE: gl.constexpr):
    return gl.arange(0, SIZE), n  # in a callee

@gluon.jit
def above(x, m, SIZE: gl.constexpr):
    if m > 3:
        gl.store(x + gl.arange(0, SIZE), 1)  # in a callee
    return 1

@gluon.jit
def early(n, v):
    if n > 2:
        return n
    w = v + 1
    return n + 1

@gluon.jit
def role(x, SIZE: gl.constexpr):
    w = gl.arange(0, SIZE) + 1

@gluon.jit
def kernel(x, n, SIZE: gl.constexpr, LAYOUT: gl.constexpr):
"""

FINE = {
    "alone": "v = gl.arange(0, SIZE)",
    "chain": "v = gl.exp(gl.full([SIZE], 1.0, gl.float32))\nw = gl.sum(v * 2, 0)",
    "loads": "v = gl.load(x + gl.arange(0, SIZE))",
    "branch": "if n > 3:\n    v = gl.arange(0, SIZE)\n    gl.store(x, 1)",
    "branch-result": "if n > 3:\n    v = gl.arange(0, SIZE)\nelse:\n    v = gl.arange(0, SIZE) + 1",
    "loop": "for i in range(n):\n    v = gl.arange(0, SIZE) + i\n    gl.store(x + i, i)",
    "loop-result": "v = gl.arange(0, SIZE)\nfor i in range(n):\n    v += 1\nw = v * 2",
    "bound": "for i in range(gl.max(gl.arange(0, SIZE), 0)):\n    z = i + 1",
    "condition": "if gl.max(gl.arange(0, SIZE), 0) > 3:\n    z = n + 1",
    "argument": "y = ignores(x, gl.arange(0, SIZE))\ngl.store(y, 2)",
    "wasted": "y, w = wastes(x, gl.arange(0, SIZE))\ngl.store(y, 2)",
    "result": "v, m = ranges(n, SIZE)\ngl.store(x, m)",
    "early-return": "gl.store(x, early(n, gl.arange(0, SIZE)))",
    "roles": "gl.warp_specialize([(role, (x, SIZE)), (role, (x, SIZE))], [4], [24])",
    "determined": (
        "v = gl.arange(0, SIZE)\nfor i in range(n):\n    v += 1\n"
        "gl.store(x + v, gl.arange(0, SIZE, layout=LAYOUT))"
    ),
}
FINE |= {
    "times-zero": "gl.store(x, gl.sum(gl.arange(0, SIZE), 0) * 0)",
    "minus-itself": "v = gl.sum(gl.arange(0, SIZE), 0)\ngl.store(x, v - v)",
    "selected": "m = gl.to_tensor(0)\ngl.store(x, gl.where(m > 3, gl.sum(gl.arange(0, SIZE), 0), n))",
}
# A loop or a branch hands them on, or never runs. Compilers before Triton 3.8 keep both.
KEPT = {
    "carried": "v = gl.arange(0, SIZE)  # <--\nfor i in range(n):\n    v += 1\n    gl.store(x + i, i)",
    "carried-twice": (
        "v = gl.arange(0, SIZE)  # <--\nfor i in range(n):\n    for j in range(n):\n        v += j\n"
        "    gl.store(x + i, i)"
    ),
    "carried-with-another": (
        "v = gl.arange(0, SIZE)  # <--\nw = gl.arange(0, SIZE, layout=LAYOUT)\nfor i in range(n):\n"
        "    w += 1\n    v += 1\ngl.store(x + w, 1)"
    ),
    "while": "v = gl.arange(0, SIZE)  # <--\nwhile n > 0:\n    v += 1\n    n -= 1\n    gl.store(x, n)",
    "branch-result": (
        "if n > 3:\n    v = gl.arange(0, SIZE)  # <--\n    gl.store(x, 1)\n"
        "else:\n    v = gl.arange(0, SIZE)"
    ),
}
KEPT |= {
    "constant-branch": "m = gl.to_tensor(2)\nif m * 2 + 1 < 3:\n    gl.store(x + gl.arange(0, SIZE), 1)  # <--",
    "constant-callee": "gl.store(x, above(x, gl.to_tensor(0), SIZE))",
    "constant-return": (
        "m = gl.to_tensor(0)\nif m > 3:\n    gl.store(x + gl.arange(0, SIZE), 1)  # <--\n    return"
    ),
    "no-rounds": "for i in range(n, n):\n    gl.store(x + gl.arange(0, SIZE), 1)  # <--",
    "no-rounds-while": "m = n * 0\nwhile m > 3:\n    gl.store(x + gl.arange(0, SIZE), 1)  # <--",
}
WRONG = {
    "unknown-branch": "if gl.program_id(0) < 0:\n    gl.store(x + gl.arange(0, SIZE), 1)  # <--",
    "unknown-rounds": "for i in range(0, n):\n    gl.store(x + gl.arange(0, SIZE), 1)  # <--",
    "stored": "v = gl.arange(0, SIZE)  # <--\ngl.store(x + v, 1)",
    "reduced": "v = gl.arange(0, SIZE)  # <--\ngl.store(x, gl.sum(v, 0))",
    "volatile": "v = gl.arange(0, SIZE)  # <--\nw = gl.load(x + v, volatile=True)",
    "atomic": "v = gl.arange(0, SIZE)  # <--\nw = gl.atomic_add(x + v, 1)",
    "condition": "v = gl.arange(0, SIZE)  # <--\nif gl.max(v, 0) > 3:\n    gl.store(x, 1)",
    "carried": "v = gl.arange(0, SIZE)  # <--\nfor i in range(n):\n    v += 1\ngl.store(x, gl.sum(v, 0))",
    "swapped": (
        "v = gl.arange(0, SIZE)  # <--\nw = gl.arange(0, SIZE)\nfor i in range(n):\n"
        "    t = v\n    v = w\n    w = t\ngl.store(x, gl.sum(v, 0))"
    ),
    "nested": (
        "for i in range(n):\n    if i > 1:\n        v = gl.arange(0, SIZE)  # <--\n"
        "        for j in range(i):\n            v += 1\n        gl.store(x, gl.sum(v, 0))"
    ),
    "argument": "v = gl.arange(0, SIZE)  # <--\nuses(x, v)",
    "in-a-callee": "v, m = ranges(n, SIZE)\ngl.store(x, gl.sum(v, 0))",
    "converted": "v = gl.arange(0, SIZE)  # <--\ngl.store(x + gl.convert_layout(v, LAYOUT), 1)",
}
CASES = [
    *(pytest.param(body, False, id=f"fine-{name}") for name, body in FINE.items()),
    *(pytest.param(body, not triton_at_least(3, 8), id=f"kept-{n}") for n, body in KEPT.items()),
    *(pytest.param(body, True, id=f"wrong-{name}") for name, body in WRONG.items()),
]


def load(path, body):
    path.write_text(HEAD + textwrap.indent(body, "    ") + "\n    gl.store(x, n)\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def simulate(kernel, target, lanes):
    layout = gluon.language.BlockedLayout([1], [lanes], [4], [0])
    kernel[(1,)](np.zeros(256, np.int32), 4, 64, layout, target=f"sim:{target}")


def compiled(kernel, target, lanes):
    layout = gluon.language.BlockedLayout([1], [lanes], [4], [0])
    constants = {"SIZE": 64, "LAYOUT": layout}
    source = gluon.GluonASTSource(kernel, {"x": "*i32", "n": "i32"}, constants)
    chosen = registry().target(target)
    backend = registry().backend(chosen.backend)
    compile_source(source, chosen, backend, backend.compiler.options(chosen, {}), until="ttgir")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("target, lanes", [("sm_90", 32), ("gfx942", 64)])
@pytest.mark.parametrize("body, refused", CASES)
def test_dead_code_needs_no_layout_and_live_code_does(tmp_path, body, refused, target, lanes):
    if "warp_specialize" in body and target == "gfx942":
        pytest.skip("no such op there")
    kernel = load(tmp_path / "dead.py", body)
    for run in (simulate, compiled):
        if not refused:
            run(kernel, target, lanes)
            continue
        with pytest.raises(LayoutError, match="nothing determines the layout") as caught:
            run(kernel, target, lanes)
        mark = "# <--" if "# <--" in body else "# in a callee"
        assert mark in caught.value.span.text, run
