"""Random operands of ops, as kernels whose result is stored: from a table of ops and kinds.

An op is a template whose holes name kinds of values; a kind is a list of ways to write one.
"""

from __future__ import annotations

import random
import re
from typing import Callable

from gluon_core import language as ours
from gluon_core.testing import TRITON_VERSION
from tests.fuzz.draw import Draw
from tests.fuzz.layouts import CUDA, HIP, kernel

__all__ = ["FAMILIES", "SINK", "ops"]

RELEASE = TRITON_VERSION[:2]
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
    "gl.histogram(gl.ravel(i), 32, gl.ravel(<mask>), F)",
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
# Ops without a line in the first table: the rest of the language, and the methods of tensors.
REST = [
    *(f"<tensor>.{name}()" for name in [*UNARY, "sigmoid", "ravel", "flip", "sort", "softmax", "item", "sum"]),
    *(f"<tensor>.{name}(<axis>)" for name in "sum max min xor_sum argmax argmin expand_dims cumsum cumprod "
      "reduce_or flip sort".split()),
    *(f"gl.{name}(<tensor>, <axis>)" for name in "reduce_or cumsum cumprod sum max min xor_sum".split()),
    *(f"gl.{name}(<tensor>, <axis>, reverse=<flag>)" for name in ("cumsum", "cumprod")),
    "gl.cumsum(<tensor>, <axis>, dtype=<dtype>)",
    "gl.sum(<tensor>, <axis>, dtype=<dtype>)",
    "gl.sum(<tensor>, keep_dims=<flag>)",
    "<tensor>.max(<axis>, return_indices=<flag>, return_indices_tie_break_left=<flag>)",
    "<tensor>.reduce(<axis>, <combine>)",
    "gl.reduce(<tensor>, <axis>, <combine>, keep_dims=<flag>)",
    "gl.reduce((<tensor>, <tensor>), <axis>, pairs)",
    "<tensor>.associative_scan(<axis>, <combine>)",
    "gl.associative_scan(<tensor>, <axis>, <combine>, reverse=<flag>)",
    "gl.associative_scan((<tensor>, <tensor>), <axis>, pairs)",
    "gl.map_elementwise(<function>, <tensor>)",
    "gl.map_elementwise(<function>, <tensor>, <tensor>)",
    "gl.map_elementwise(joined, <tensor>, <tensor>, pack=<pack>)",
    *(f"gl.{name}(<int>, <int>, <flag>)" for name in ("add", "sub", "mul")),
    *(f"gl.{name}(<float>, <float>)" for name in ("add", "sub", "mul")),
    *(f"gl.{name}(<tensor>, <hint>)" for name in ("max_constancy", "max_contiguous", "multiple_of")),
    *(f"gl.{name}(<axis>)" for name in ("program_id", "num_programs")),
    *(f"gl.{name}()" for name in ("num_warps", "num_ctas", "thread_barrier", "barrier")),
    "gl.to_tensor(<float>)",
    "gl.to_tensor(<int>)",
    "gl.zeros_like(<tensor>)",
    "gl.zeros_like(<tensor>, <shape>, <dtype>, L)",
    "gl.zeros(<shape>, <dtype>, L)",
    "gl.full_like(<tensor>, <float>, dtype=<dtype>)",
    "gl.reshape(<tensor>, <shape>)",
    "gl.reshape(<tensor>, 32, 4, 8)",
    "<tensor>.view(<shape>)",
    "<tensor>.broadcast_to(<shape>)",
    "<tensor>.trans(<order>)",
    "<tensor>.trans()",
    "gl.permute(<tensor>, <order>)",
    "<tensor>.permute(1, 0)",
    "<tensor>.T",
    "gl.join(<tensor>, <tensor>).split()",
    "<tensor>.split()",
    "<tensor>.cdiv(<int>)",
    "<tensor>.cast(<dtype>)",
    "<tensor>.cast(<dtype>, bitcast=<flag>)",
    "gl.cast(<tensor>, <dtype>, <rounding>)",
    "<tensor>.logical_and(<mask>)",
    "<tensor>.logical_or(<mask>)",
    "<tensor>.gather(<int>, <axis>)",
    "gl.ravel(<tensor>).histogram(32)",
    "gl.histogram(gl.ravel(<tensor>), <bins>, layout=F)",
    "<tensor>.advance([1, 1])",
    "(p + <int>).store(<float>)",
    *(f"(q + <int>).atomic_{name}(<int>)" for name in "add max min and or xor xchg".split()),
    "(q + i).atomic_cas(<int>, <int>)",
    *(f"{of}atomic_load({place}<mask>, sem=<sem>, scope=<scope>)"
      for of, place in (("gl.", "q + <int>, "), ("(q + <int>).", ""))),
    *(f"{of}atomic_store({place}<int>, <mask>, sem=<sem>, scope=<scope>)"
      for of, place in (("gl.", "q + <int>, "), ("(q + <int>).", ""))),
    "gl.atomic_poll(<place>, <int>, sem=<sem>, scope=<scope>)",
    "(q + n).atomic_poll(<int>, timeout_ns=<timeout>)",
    "gl.dot_fma(<left>, <right>, <float>)",
    "gl.fp4_to_fp(<tensor>.to(gl.uint8), <dtype>, <axis>)",
    "gl.fp4_to_fp(<tensor>, <dtype>, <axis>)",
    "gl.expect_zero(<float>, <mask>)",
    "gl.static_assert(<mask>, 'said')",
    "gl.static_assert(<flag> or True)",
    "gl.static_print(<tensor>, <flag>)",
    "gl.device_print('found', <tensor>, hex=<flag>)",
    "gl.device_print('found')",
    "gl.full([gl.bank_conflicts(gl.distributed_type(<dtype>, [32, 32], L), "
    "gl.shared_memory_descriptor_type(<dtype>, [32, 32], <shared>, [32, 32]))], 1, gl.int32, F)",
    "gl.convert_layout(<tensor>, gl.to_linear_layout(L, <shape>))",
    "gl.convert_layout(<tensor>, gl.CoalescedLayout())",
    "gl.set_auto_layout(gl.full([32, 32], 0, <dtype>, gl.AutoLayout()), L)",
    "gl.set_auto_layout(gl.convert_layout(<tensor>, gl.AutoLayout()), <layout>)",
    "gl.inline_asm('mov.b32 $0, $1;', '=r,r', [<int>], [<dtype>], is_pure=<flag>)",
    "gl.inline_asm('nop;')",
    "gl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r', [<tensor>], <dtype>, <flag>, <pack>)",
    "gl.fpsan.embed(<tensor>)",
    "gl.fpsan.unembed(<tensor>, <dtype>)",
    *(f"gl.extra.libdevice.{name}(<float>)" for name in ("acos", "tanh", "exp10", "isnan", "rint")),
    *(f"gl.extra.libdevice.{name}(<float>, <float>)" for name in ("pow", "atan2", "fmod")),
    *(f"gl.load(p + i, cache_policy={policy})" for policy in ("<policy>", "gl.CachePolicy('ca', 'evict_last')")),
    "gl.store(p + i, x, cache_policy=<policy>)",
    "gl.store(p + i, x, cache_policy=gl.nvidia.hopper.CachePolicy(l2=gl.nvidia.hopper.FractionalEvictionPolicy(<share>)))",
    "gl.load(p + i, cache_modifier=<cache>, eviction_policy=<evict>, volatile=<flag>)",
    "gl.store(p + i, x, cache_modifier=<cache>, eviction_policy=<evict>)",
]  # fmt: skip
KINDS.update({
    "tensor": ["x", "x", "i", "i", "col", "row", "one", "x.to(gl.float16)", "(i > 2)", "i.to(gl.uint32)",
               "i.to(gl.int64)", "i.to(gl.int8)", "x.to(gl.float64)", "x.to(gl.bfloat16)", "(q + i)"],
    "combine": ["larger", "larger", "larger", "summed", "gl.maximum", "one_only", "None"],
    "function": ["larger", "doubled", "doubled", "joined", "None"],
    "pack": ["1", "1", "2", "4", "3", "0"],
    "hint": ["[1, 4]", "[1, 1]", "4", "[4]", "[1, 4, 1]", "[0, 1]", "[-1, 1]", "n", "(1, 8)", "None"],
    "shape": ["[32, 32]", "[32, 32]", "[1024]", "(16, 64)", "[4, 8, 32]", "[32, 1]", "[64, 32]", "1024", "[3, 2]", "[]"],
    "order": ["[1, 0]", "(1, 0)", "[0, 1]", "[0, 0]", "[1]", "[2, 1, 0]", "1, 0"],
    "rounding": ["None", "'rtne'", "'rtz'", "'rnd'"],
    "bins": ["32", "64", "1", "3", "n", "128"],
    "place": ["q", "q + n", "q + i", "p"],
    "timeout": ["None", "1000", "n", "0", "-1"],
    "left": [f"gl.full([32, 32], 1.0, gl.{t}, gl.DotOperandLayout({k}, L, 0))"
             for t, k in (("float32", 0), ("float32", 0), ("float32", 0), ("float16", 0), ("float32", 1), ("int32", 0))] + ["x"],
    "right": [f"gl.full([32, 32], 1.0, gl.{t}, gl.DotOperandLayout({k}, L, 0))"
              for t, k in (("float32", 1), ("float32", 1), ("float32", 1), ("float16", 1), ("float32", 0))] + ["x"],
    "shared": ["gl.SwizzledSharedLayout(1, 1, 1, [1, 0])", "gl.NVMMASharedLayout(128, 32, 2)", "L"],
    "policy": ["gl.nvidia.ampere.CachePolicy('ca')", "gl.nvidia.ampere.CachePolicy(l1='evict_first')",
               "gl.nvidia.ampere.CachePolicy(l2=gl.nvidia.ampere.FractionalEvictionPolicy('evict_first', 0.5))",
               "gl.nvidia.ampere.CachePolicy('.cg', l2_prefetch_size=64)", "gl.CachePolicy()", "None", "3"],
    "cache": ["None", "''", "'.ca'", "'.cg'", "'.cv'", "'.wb'", "'.wt'", "'.cs'", "'x'"],
    "layout": ["L", "L", "gl.BlockedLayout([2, 1], [8, 4], [1, 4], [0, 1])", "F", "gl.AutoLayout()"],
    "share": ["'evict_first', 0.5", "'evict_last', 1.0", "'evict_last', 0.25, 'evict_first'", "'evict_normal', 0.5",
              "'evict_last', 0.0", "'evict_last', 0.5, 'evict_last'", "'evict_unchanged', 0.5", "'no_allocate', 1.0"],
    "evict": ["None", "''", "'evict_last'", "'evict_first'", "'evict_normal'", "'x'"],
})  # fmt: skip
# An op that the installed release has not is withheld, and says nothing.
REST = [op for op in REST if all(hasattr(ours, name) for name in re.findall(r"gl\.(\w+)[.(]", op))]
FUNCTIONS = """@gluon.jit
def larger(a, b):
    return gl.maximum(a, b)
@gluon.jit
def summed(a, b):
    return a + b * 2
@gluon.jit
def one_only(a):
    return a
@gluon.jit
def doubled(a):
    return a + a
@gluon.jit
def joined(a, b):
    return a, b
@gluon.jit
def pairs(a, b, c, d):
    return gl.maximum(a, c), b + d
"""
SHARED = [
    "s.store(<int>)",
    "s.gather(<int>, <axis>)",
    "s.scatter(<int>, <int>, <axis>)",
    *(
        f"s.atomic_scatter_{op}(<int>, <int>, <axis>, <mask>)"
        for op in "add max min and or xor xchg".split()
    ),
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
        for op in "add max min and or xor xchg".split()
    ),
    "gl.amd.cdna3.buffer_atomic_add(p, <int>, <float>, <mask>)",
]
KINDS["unsigned"] = ["i.to(gl.uint32)", "i.to(gl.uint32)", "1", "n", "i", "col.to(gl.uint32)"]


def ops() -> list[str]:
    """Every op of the tables, with operands."""
    d = Draw(random.Random(0))
    return [d.fill(template, KINDS) for template in (*GENERAL, *REST, *SHARED, *BUFFER)]


def _kernel(
    d: Draw, ops: list[str], lanes: int, before: list[str], end: str, functions: str = ""
) -> str:
    op = d.fill(d.pick(ops), KINDS)
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
    if _EFFECT.match(op):
        body.append(op)
    else:
        body += [f"y = {op}", "sink(p, y)"]
    if before:
        body.append(
            "gl.store(q + i, s.load(L))" if "s.store(i)" in before else "gl.store(p + i, x)"
        )
    source = kernel(body, end, SINK + functions)
    source = source.replace("def kernel(p, q, h, n):", "def kernel(p, q, h, n, f, w):")
    return source.replace("gl.float16), 5)", "gl.float16), 5, 2.5, ptr(gl.uint32))")


# Ops without a result.
_EFFECT = re.compile(
    r"gl\.(store|assume|\w*assert|\w*print|\w*barrier|atomic_store|inline_asm\('nop)|s\.(store|scatter)"
    r"|.*buffer_store|\(.*\)\.(atomic_)?store"
)
# Whatever an op gives is stored.
SINK = """@gluon.jit
def sink(p, y):
    if isinstance(y, gl.tuple):
        for k in gl.static_range(len(y)):
            sink(p, y[k])
    elif y.dtype.is_ptr():
        gl.store(y, gl.load(y))
    elif y.type.is_block():
        gl.store(p + gl.full(y.shape, 0, gl.int32, y.type.layout), y.to(gl.float32))
    else:
        gl.store(p, y.to(gl.float32))
"""


def general(d: Draw) -> str:
    if d.chance(0.7):
        return _kernel(d, GENERAL, 32, [], f"TARGET = {CUDA.format(arch=d.pick([80, 90, 100]))}\n")
    return _kernel(d, GENERAL, 64, [], f"TARGET = {HIP.format(arch='gfx942', lanes=64)}\n")


def rest(d: Draw) -> str:
    if d.chance(0.7):
        end = f"TARGET = {CUDA.format(arch=d.pick([80, 90, 100]))}\n"
        return _kernel(d, REST, 32, [], end, FUNCTIONS)
    return _kernel(d, REST, 64, [], f"TARGET = {HIP.format(arch='gfx942', lanes=64)}\n", FUNCTIONS)


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
    "other ops": rest,
    "ops on shared memory": shared,
    "buffer ops": buffer,
}
