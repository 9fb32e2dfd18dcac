"""Functions, tuples and aggregates."""

from __future__ import annotations

from tests.frontend.snippets.programs import each

_CALLS = """
@gluon.jit
def double(a):
    return a + a
@gluon.jit
def pair(a, b: gl.constexpr = 3, c=None):
    if c is None:
        return a + b, a
    return a + b, c
@gluon.jit
def early(a, n):
    if n > 3:
        return a
    return a * 2
@gluon.jit
def nothing(p):
    gl.store(p, 1.0)
@gluon.jit
def many(*args):
    s = args[0]
    for k in gl.static_range(1, len(args)):
        s += args[k]
    return s
@gluon.jit
def outer(a, n):
    b, c = pair(double(a), 7)
    return early(b, n) + c
@gluon.jit
def layout_arg(a, L: gl.constexpr):
    return gl.convert_layout(a, L)
@gluon.jit
def apply(f: gl.constexpr, a):
    return f(a)
@gluon.jit(noinline=True)
def no_inline(a):
    return a + 1
@gluon.constexpr_function
def half(k):
    return k // 2
@gluon.constexpr_function
def make_layout(k, warps=4):
    return gl.BlockedLayout([k], [32], [warps], [0])
@gluon.jit
def shared(s, a):
    s.store(a)
    return s.load(a.type.layout)
@gluon.jit
def recursive_tuple(t):
    return t[0] + t[1][0], (t[1][1], t[0])
@gluon.jit
def defaulted(a, k: gl.constexpr = 5, L: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])):
    return a + gl.full([128], k, gl.float32, L)
@gluon.jit
def returns_constant(k: gl.constexpr):
    return k * 2
CONSTANT = gl.constexpr(11)
LAYOUTS: gl.constexpr = (gl.BlockedLayout([1], [32], [4], [0]), 3)
"""
each(
    "calls",
    "x y i m",
    "double(x)",
    "a, b = pair(x)\na + b",
    "a, b = pair(x, 5, y)\na + b",
    "a, b = pair(c=y, a=x)\nb",
    "early(x, n)",
    "nothing(fp)",
    "many(x, y, x)",
    "many(x)",
    "outer(x, n)",
    "layout_arg(x, gl.BlockedLayout([4], [32], [4], [0]))",
    "apply(double, x)",
    "no_inline(x)",
    "gl.arange(0, half(128), L1)",
    "gl.arange(0, 128, make_layout(2))",
    "gl.arange(0, 128, make_layout(k=1, warps=gl.num_warps()))",
    "x + CONSTANT",
    "s = gl.allocate_shared_memory(gl.float32, [128], SH1)\nshared(s, x)",
    "a, b = recursive_tuple((x, (y, n)))\na + b[0]",
    "defaulted(x)",
    "defaulted(x, 3)",
    "double(n)",
    "double(3)",
    "double(2.5)",
    "double(x) + double(y) + double(i)",
    "gl.arange(0, returns_constant(64), L1)",
    "t = (x, y, n)\nmany(*t)",
    "a = double(x)\nfor k in range(n):\n    a = double(a)",
    "if n > 3:\n    x = double(x)\nelse:\n    x = early(x, n)",
    "pair(x, b=m.shape[0])",
    "double(fp)",
    "x + gl.full([128], LAYOUTS[1], gl.float32, LAYOUTS[0])",
    before=_CALLS,
)
_AGGREGATES = """
@aggregate
class Pair:
    a: gl.tensor
    b: gl.tensor
    k: gl.constexpr
    @gluon.constexpr_function
    def __init__(self, a, b, k):
        self.a = a
        self.b = b
        self.k = gl.constexpr(k)
    @gluon.jit
    def total(self):
        return self.a + self.b * self.k
    @gluon.jit
    def swapped(self):
        return Pair(self.b, self.a, self.k)
    @gluon.jit
    def make(x):
        return Pair(x, x, 3)
@aggregate
class Buffers:
    ring: gl.shared_memory_descriptor
    pair: Pair
    @gluon.constexpr_function
    def __init__(self, ring, pair):
        self.ring = ring
        self.pair = pair
    @gluon.jit
    def put(self, i):
        self.ring.index(i).store(self.pair.a)
from typing import NamedTuple
class Point(NamedTuple):
    u: gl.tensor
    v: gl.tensor
@gluon.jit
def norm(p):
    return p.u * p.u + p.v * p.v
@gluon.jit
def origin(x):
    return Point(x, x + 1)
@gluon.jit
def take(p):
    return p.total()
"""
each(
    "aggregate",
    "x y i",
    "p = Pair(x, y, 2)\np.total()",
    "p = Pair(x, y, 2).swapped()\np.a + p.k",
    "s = gl.allocate_shared_memory(gl.float32, [2, 128], SH1)\nb = Buffers(s, Pair(x, y, 2))\nb.put(n)",
    "p = Pair(x, y, 2)\nfor k in range(n):\n    p = p.swapped()\np.total()",
    "p = Pair(x, y, 2)\nif n > 3:\n    p = p.swapped()\np.a",
    "take(Pair(x, y, 4))",
    "p = Pair.make(x)\np.b + 1",
    before=_AGGREGATES,
)
each(
    "namedtuple",
    "x y",
    "norm(Point(x, y))",
    "p = origin(x)\nnorm(p)",
    "p = Point(u=x, v=y)\np.u + p[1]",
    "a, b = Point(x, y)\na",
    before=_AGGREGATES,
)
each(
    "tuple",
    "x y i",
    "t = (x, y)\nt[0] + t[1]",
    "a, (b, c) = x, (y, i)\na + c",
    "t = (x, 3, gl.float16)\nt[0] + t[1]",
    "t = (x, y) + (i,)\nt[2]",
    "for k in gl.static_range(2):\n    t = (x, y)\n    x += t[k]",
    "t = (x, y)\nfor k in range(n):\n    t = (t[1], t[0])\nt[0]",
    "t = (x, y)\nlen(t) + n",
    "t = (n, 1)\nif n > 3:\n    t = (3, n)\nt[0] + x",
)
each(
    "map_elementwise",
    "x y i",
    "gl.map_elementwise(one, x)",
    "gl.map_elementwise(choose, x, y)",
    "a, b = gl.map_elementwise(two, x, i)\na + b",
    "gl.map_elementwise(packed, x, pack=2)",
    "gl.map_elementwise(one, n)",
    before="""
@gluon.jit
def one(a):
    return a * 2 + 1
@gluon.jit
def choose(a, b):
    if a < b:
        return a
    else:
        return b
@gluon.jit
def two(a, i):
    return a + 1, i + 1
@gluon.jit
def packed(a, b):
    return a + b, a - b
""",
)
each(
    "inline_asm_elementwise",
    "x y i h",
    "gl.inline_asm_elementwise('add.f32 $0, $1, $2;', '=f,f,f', [x, y], gl.float32, True, 1)",
    "gl.inline_asm_elementwise(asm='mov.b32 $0, $1;', constraints='=r,r', args=[i], dtype=gl.int32, is_pure=False, pack=1)",
    "a, b = gl.inline_asm_elementwise('{ mov.b32 $0, $2; mov.b32 $1, $2; }', '=r,=r,r', [i], (gl.int32, gl.int32), True, 1)\na + b",
    "gl.inline_asm_elementwise('cvt $0, $1;', '=r,r', [h], gl.int16, is_pure=True, pack=2)",
    "gl.inline_asm_elementwise('mov.u32 $0, %laneid;', '=r', [], gl.int32, True, 1)",
    "gl.inline_asm_elementwise('add.f32 $0, $1, $2;', '=f,f,f', [x, 1.0], gl.float32, True, 1)",
    "gl.inline_asm_elementwise('add.f32 $0, $1, $2;', '=f,f,f', (f, 2.0), dtype=gl.float32, is_pure=True, pack=1)",
)
each(
    "inline_asm",
    "",
    "gl.inline_asm('nop;')",
    "gl.inline_asm('mov.u32 $0, %laneid;', '=r', [], [gl.int32], is_pure=True)",
    "a, b = gl.inline_asm('{ mov.b32 $0, $2; mov.b32 $1, $2; }', '=r,=r,r', [n], (gl.int32, gl.int32))\na + b",
    since=(3, 9),
)
each("expect_zero", "x m", "gl.expect_zero(x, m)", since=(3, 8))
each(
    "fpsan",
    "x h",
    "gl.fpsan.embed(x)",
    "gl.fpsan.unembed(gl.fpsan.embed(h), gl.float16)",
    since=(3, 9),
)
each(
    "aggregate_replace",
    "x y",
    "p = gl.aggregate_replace(Pair(x, y, 2), a=y)\np.total()",
    before=_AGGREGATES,
    since=(3, 8),
)
