"""Random operands of ops, as kernels whose result is stored: what a table of ops and kinds gives.

An op is a template whose holes name kinds of values; a kind is a list of ways to write one.
"""

from __future__ import annotations

import re
from typing import Callable

from gluon_core._triton import VERSION
from tests.compat.layouts import CUDA, HIP, Draw, kernel

__all__ = ["FAMILIES", "Draw"]

RELEASE = VERSION[:2]
VIEW = "reinterpret" if RELEASE >= (3, 9) else "_reinterpret"

# Tensors of shape [32, 32] in the layout L, smaller ones that broadcast to it, and scalars.
KINDS: dict[str, list[str]] = {
    "int": ["i", "i", "i + n", "col", "row", "one", "n", "3", "-1", "0", "True", "i.to(gl.int8)",
            "i.to(gl.int64)", "i.to(gl.uint32)", "n.to(gl.int64)", "i.to(gl.int16)", "i > 2"],
    "mask": ["i > 2", "i > 2", "col > 2", "row > 2", "n > 2", "True", "1", "i", "n", "None",
             "i.to(gl.int8)", "x", "one > 0", "0"],
    "float": ["x", "x", "x + f", "i", "f", "2.5", "1", "x.to(gl.float16)", "x.to(gl.bfloat16)",
              "x.to(gl.float64)", "col.to(gl.float32)", "n", "x.to(gl.float8e5)", "i > 3", "None"],
    "dtype": [f"gl.{t}" for t in ("float32", "float16", "bfloat16", "float64", "int32", "int8",
              "uint8", "int64", "int1", "float8e5", "float8e4nv", "uint32", "int16")],
    "axis": ["0", "1", "-1", "-2", "2", "None", "True"],
    "flag": ["True", "False", "False"],
    "sem": ["None", "'relaxed'", "'acquire'", "'acq_rel'", "'release'", "'now'"],
    "scope": ["None", "'gpu'", "'cta'", "'sys'"],
}  # fmt: skip
UNARY = "abs ceil cos erf exp exp2 floor log log2 rsqrt sin sqrt sqrt_rn".split()
GENERAL = [
    *(f"gl.{name}(<float>)" for name in UNARY),
    *(f"<float> {op} <float>" for op in "+ - * / // % < <= == != >".split()),
    *(f"<int> {op} <int>" for op in "+ - * / // % & | ^ << >> < == >=".split()),
    *(f"gl.{name}(<float>, <float>)" for name in "maximum minimum fdiv div_rn".split()),
    *(f"gl.{name}(<int>, <int>)" for name in "cdiv umulhi maximum".split()),
    "gl.where(<mask>, <float>, <float>)",
    "gl.fma(<float>, <float>, <float>)",
    "gl.clamp(<float>, <float>, <float>)",
    "x.to(<dtype>).to(gl.float32)",
    "i.to(<dtype>)",
    "x.to(<dtype>, bitcast=<flag>)",
    "gl.cast(<float>, <dtype>)",
    "gl.sum(<float>, <axis>)",
    "gl.sum(<int>, <axis>)",
    "gl.max(<float>, <axis>, return_indices=<flag>, keep_dims=<flag>)",
    "gl.min(<int>, <axis>)",
    "gl.xor_sum(<int>, <axis>)",
    "gl.load(p + <int>, <mask>)",
    "gl.load(p + <int>, <mask>, <float>)",
    "gl.store(p + <int>, <float>, <mask>)",
    *(
        f"gl.atomic_{name}(q + <int>, <int>, <mask>, sem=<sem>, scope=<scope>)"
        for name in "add max min and or xor xchg".split()
    ),
    "gl.atomic_add(p + <int>, <float>, <mask>)",
    "gl.atomic_max(p + <int>, <float>)",
    "gl.atomic_cas(q + <int>, <int>, <int>)",
    "gl.histogram(gl.ravel(i), 32, gl.ravel(<mask>))",
    "gl.expand_dims(<int>, <axis>)",
    "gl.join(<float>, <float>)",
    "gl.gather(x, <int>, <axis>)",
    "gl.full([32, 32], <int>, <dtype>, L)",
    "gl.full_like(x, <float>)",
    "gl.broadcast(<int>, <int>)",
    "x.reshape([4, 8, 32])",
    "gl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r', [<int>], gl.int32, True, 1)",
    "gl.assume(<mask>)",
    "gl.device_assert(<mask>, 'm')",
]
SHARED = [
    "s.store(<int>)",
    "s.gather(<int>, <axis>)",
    "s.scatter(<int>, <int>, <axis>)",
    *(f"s.atomic_scatter_{op}(<int>, <int>, <axis>, <mask>)" for op in ("add", "max", "xchg")),
    "s.slice(<start>, <length>, <axis>).load(L)",
    "b.index(<int>).load(L)",
    "gl.allocate_shared_memory(gl.int32, [32, 32], S, <int>).load(L)",
    f"s.{VIEW}(<dtype>, [32, 32], S).load(L)",
    "s.permute([1, 0]).load(L)",
    "s.reshape([1024]).load(F)",
]
KINDS["start"] = ["0", "8", "16", "4", "24", "1", "n"]
KINDS["length"] = ["8", "16", "4", "32", "1", "3"]
BUFFER = [
    "gl.amd.cdna3.buffer_load(p, <int>, <mask>, <float>)",
    "gl.amd.cdna3.buffer_load(p, <int>, <mask>)",
    "gl.amd.cdna3.buffer_store(<float>, p, <int>, <mask>)",
    *(
        f"gl.amd.cdna3.buffer_atomic_{op}(w, <int>, <unsigned>, <mask>)"
        for op in ("add", "max", "and", "xor")
    ),
    "gl.amd.cdna3.buffer_atomic_add(p, <int>, <float>, <mask>)",
]
KINDS["unsigned"] = ["i.to(gl.uint32)", "i.to(gl.uint32)", "1", "n", "i", "col.to(gl.uint32)"]


def _fill(d: Draw, template: str) -> str:
    return re.sub(r"<(\w+)>", lambda hole: d.pick(KINDS[hole.group(1)]), template)


def _kernel(d: Draw, ops: list[str], lanes: int, before: list[str], end: str) -> str:
    op = _fill(d, d.pick(ops))
    rows = lanes // 8
    body = [
        f"L: gl.constexpr = gl.BlockedLayout([1, 2], [{rows}, 8], [4, 1], [1, 0])",
        f"F: gl.constexpr = gl.BlockedLayout([1], [{lanes}], [4], [0])",
        "i = gl.full([32, 32], 0, gl.int32, L) + n",
        "col = gl.full([32, 1], 0, gl.int32, L) + n",
        "row = gl.full([1, 32], 0, gl.int32, L) + n",
        "one = gl.full([1, 1], 0, gl.int32, L) + n",
        "x = gl.load(p + i)",
        *before,
    ]
    if re.match(r"gl\.(store|assume|device_assert)|s\.(store|scatter)|.*buffer_store", op):
        body.append(op)
    else:
        body += [f"y = {op}", "sink(p, y)"]
    if before:
        body.append(
            "gl.store(q + i, s.load(L))" if "s.store(i)" in before else "gl.store(p + i, x)"
        )
    source = kernel(body, end, _SINK)
    source = source.replace("def kernel(p, q, h, n):", "def kernel(p, q, h, n, f, w):")
    return source.replace("gl.float16), 5)", "gl.float16), 5, 2.5, ptr(gl.uint32))")


# Whatever an op gives is stored.
_SINK = """@gluon.jit
def sink(p, y):
    if isinstance(y, gl.tuple):
        for k in gl.static_range(len(y)):
            sink(p, y[k])
    elif y.dtype.is_ptr():
        gl.store(y, gl.load(y))
    elif y.type.is_block():
        gl.store(p + gl.zeros(y.shape, gl.int32, y.type.layout), y.to(gl.float32))
    else:
        gl.store(p, y.to(gl.float32))
"""


def general(d: Draw) -> str:
    if d.chance(0.7):
        return _kernel(d, GENERAL, 32, [], f"TARGET = {CUDA.format(arch=d.pick([80, 90, 100]))}\n")
    return _kernel(d, GENERAL, 64, [], f"TARGET = {HIP.format(arch='gfx942', lanes=64)}\n")


def shared(d: Draw) -> str:
    layout = d.pick(
        ["gl.SwizzledSharedLayout(1, 1, 1, [1, 0])", "gl.SwizzledSharedLayout(4, 2, 4, [1, 0])",
         "gl.NVMMASharedLayout(128, 32, 2)",
         "gl.PaddedSharedLayout.with_identity_for([[32, 4]], [32, 32], [1, 0])"]
    )  # fmt: skip
    before = [
        f"S: gl.constexpr = {layout}",
        "s = gl.allocate_shared_memory(gl.int32, [32, 32], S)",
        "b = gl.allocate_shared_memory(gl.int32, [2, 32, 32], S)",
        "s.store(i)",
    ]
    return _kernel(d, SHARED, 32, before, f"TARGET = {CUDA.format(arch=90)}\n")


def buffer(d: Draw) -> str:
    arch = d.pick(["gfx942", "gfx950"])
    return _kernel(d, BUFFER, 64, [], f"TARGET = {HIP.format(arch=arch, lanes=64)}\n")


FAMILIES: dict[str, Callable[[Draw], str]] = {
    "ops": general,
    "ops on shared memory": shared,
    "buffer ops": buffer,
}
