"""Kernels in Gluon's portable language, one or a few per name of the interface.

`CASES` maps a name to (source, first Triton that has it). Sources run under the imports of Triton's
own Gluon and under ours; `oracle` says what is there beside `gl` and `gluon`.
"""

from __future__ import annotations

import textwrap

CASES: dict[str, tuple[str, tuple[int, int]]] = {}

# What bodies find: pointers to each dtype family, a size, layouts, and 1-d and 2-d operands.
_HEAD = """
L1: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
L2: gl.constexpr = gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])
ROW: gl.constexpr = gl.SliceLayout(1, L2)
COL: gl.constexpr = gl.SliceLayout(0, L2)
SH1: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
SH2: gl.constexpr = gl.SwizzledSharedLayout(4, 2, 4, [1, 0])
"""
_PRELUDE = {
    "o": "o = gl.arange(0, 128, layout=L1)",
    "m": "m = o < n",
    "x": "x = gl.load(fp + o)",
    "y": "y = gl.load(fp + 128 + o)",
    "h": "h = gl.load(hp + o)",
    "bf": "bf = gl.load(bp + o)",
    "i": "i = gl.load(ip + o)",
    "j": "j = gl.load(ip + 128 + o)",
    "u": "u = gl.load(up + o)",
    "l": "l = gl.load(lp + o)",
    "c": "c = gl.load(cp + o)",
    "d": "d = gl.load(dp + o)",
    "rows": "rows = gl.arange(0, 32, layout=ROW)",
    "cols": "cols = gl.arange(0, 16, layout=COL)",
    "oo": "oo = rows[:, None] * 16 + cols[None, :]",
    "xx": "xx = gl.load(fp + oo)",
    "ii": "ii = gl.load(ip + oo)",
}
_NEEDS = {
    **{name: ("o",) for name in ("m", "x", "y", "h", "bf", "i", "j", "u", "l", "c", "d")},
    "oo": ("rows", "cols"),
    "xx": ("oo",),
    "ii": ("oo",),
}
_ARGS = (
    "ARGS = (ptr(gl.float32), ptr(gl.float16), ptr(gl.bfloat16), ptr(gl.int32), ptr(gl.uint32), "
    "ptr(gl.int64), ptr(gl.int8), ptr(gl.float64), 100, 2.5)\n"
)


def _operands(uses: str) -> list[str]:
    ordered: list[str] = []

    def need(name: str) -> None:
        for other in _NEEDS.get(name, ()):
            need(other)
        if name not in ordered:
            ordered.append(name)

    for name in uses.split():
        need(name)
    return [_PRELUDE[name] for name in ordered]


def source_of(uses: str, body: str, before: str = "") -> str:
    """A module whose `kernel` runs `body` after loading the operands named in `uses`."""
    lines = _operands(uses) + textwrap.dedent(body).strip().split("\n")
    kernel = "@gluon.jit\ndef kernel(fp, hp, bp, ip, up, lp, cp, dp, n, f):\n"
    text = kernel + textwrap.indent("\n".join(lines), "    ") + "\n"
    head = "\n".join(
        line.replace(": gl.constexpr = ", " = gl.constexpr(") + ")"
        for line in _HEAD.strip().split("\n")
    )
    return f"{head}\n{textwrap.dedent(before)}\n{text}{_ARGS}"


def case(
    name: str, uses: str, body: str, before: str = "", since: tuple[int, int] = (3, 6)
) -> None:
    """Add the kernel `body`."""
    assert name not in CASES, name
    CASES[name] = (source_of(uses, body, before), since)


def each(
    name: str, uses: str, *bodies: str, since: tuple[int, int] = (3, 6), before: str = ""
) -> None:
    """One kernel for each of `bodies`."""
    for number, body in enumerate(bodies):
        case(f"{name}-{number}" if len(bodies) > 1 else name, uses, body, before, since)


# -- creation ---------------------------------------------------------------------------------------

each(
    "arange",
    "",
    "gl.arange(0, 128, layout=L1)",
    "gl.arange(0, 128)",
    "gl.arange(16, 48, ROW)",
    "gl.arange(0, 128, gl.CoalescedLayout())",
    "gl.arange(0, 1, L1)",
    "gl.arange(-4, 4, layout=gl.AutoLayout())",
)
each(
    "full",
    "",
    "gl.full([128], 0, gl.int32, L1)",
    "gl.full((32, 16), 1.5, gl.bfloat16, layout=L2)",
    "gl.full([128], True, gl.int1, L1)",
    "gl.full([128], f, gl.float32, L1)",
    "gl.full([128], n, gl.int64, L1)",
    "gl.full([128], -1, gl.uint8, L1)",
    "gl.full([128], 2, gl.float64, L1)",
    "gl.full([128], 3, gl.float8e5, L1)",
    "gl.full([128], 3, gl.float16)",
    "gl.full([], 3, gl.float16)",
)
each(
    "zeros",
    "x",
    "gl.zeros([128], gl.int32, L1)",
    "gl.zeros((32, 16), dtype=gl.float16, layout=L2)",
    "gl.zeros([128], gl.float32)",
    "gl.zeros_like(x)",
    "gl.zeros_like(x, dtype=gl.int8)",
    "gl.zeros_like(x, shape=[64], layout=L1)",
    "gl.full_like(x, 3)",
    "gl.full_like(x, f, dtype=gl.float16)",
    "gl.full_like(x, 3, [32, 16], gl.int64, L2)",
)
each(
    "to_tensor",
    "",
    "gl.to_tensor(3)",
    "gl.to_tensor(2.5) + f",
    "gl.to_tensor(True)",
    "gl.to_tensor(2**40)",
)

# -- arithmetic -------------------------------------------------------------------------------------

for _name, _op in {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "mod": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}.items():
    _bitwise = _name in ("and", "or", "xor", "shl", "shr")
    _bodies = [
        f"i {_op} j",
        f"i {_op} 3",
        f"3 {_op} i",
        f"i {_op} n",
        f"n {_op} 3",
        f"u {_op} u",
        f"l {_op} i",
        f"c {_op} i",
        f"u {_op} 7",
        f"l {_op} n",
    ]
    if _name not in ("div", "floordiv", "mod"):
        _bodies += [f"u {_op} i"]
    if not _bitwise and _name != "floordiv":
        _bodies += [
            f"x {_op} y",
            f"x {_op} 2.5",
            f"2 {_op} x",
            f"x {_op} f",
            f"f {_op} 3",
            f"h {_op} 2.0",
            f"h {_op} x",
            f"bf {_op} h",
            f"d {_op} x",
            f"x {_op} i",
            f"bf {_op} 1",
            f"d {_op} 0.1",
        ]
    each(f"operator-{_name}", "i j u l c x y h bf d", *_bodies)
each("unary", "x i m", "-x", "-i", "~i", "not m", "+x", "-n", "-f", "~n", "not (n > 3)")
each(
    "logical",
    "x y m",
    "m & (x < y)",
    "(n > 3) and (n < 5)",
    "(n > 3) or (f < 5)",
    "(n > 3) & m",
    "m | (x > 0)",
    "m ^ (x > 0)",
    "m.logical_and(x > y)",
    "m.logical_or(x > y)",
    "m and (x > 0)",
)
each(
    "add-function",
    "x y i",
    "gl.add(x, y)",
    "gl.sub(x, y)",
    "gl.mul(i, 3)",
    "gl.add(i, i, sanitize_overflow=False)",
    "gl.add(1, n)",
    "gl.mul(x, f)",
    "gl.sub(3, i)",
)
each(
    "augmented",
    "x y i",
    "x += y",
    "i //= 4",
    "i <<= 2\ni |= 1\ni ^= 5\ni &= 63\ni >>= 1\ni %= 5",
    "x *= 2\nx /= 3\nx -= 1",
)
each(
    "minmax",
    "x y i j u h",
    "gl.minimum(x, y)",
    "gl.maximum(x, y)",
    "gl.minimum(i, j)",
    "gl.maximum(u, 3)",
    "gl.maximum(h, 0)",
    "gl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)",
    "gl.minimum(f, 3)",
    "gl.maximum(n, 3)",
    "min(n, 3)",
    "max(x, y)",
)
each(
    "clamp",
    "x h",
    "gl.clamp(x, 0.0, 1.0)",
    "gl.clamp(x, x, h)",
    "gl.clamp(f, 0.0, 1.0)",
    "gl.clamp(h, 0, 6, tl.PropagateNan.ALL)",
    since=(3, 8),
)
each(
    "where",
    "x y i m",
    "gl.where(m, x, y)",
    "gl.where(m, x, 0)",
    "gl.where(m, 1, 2)",
    "gl.where(n > 3, x, y)",
    "gl.where(m, i, x)",
    "gl.where(n > 3, 1, 2)",
    "gl.where(m, n, f)",
    "gl.where(i, x, y)",
    "gl.where(True, x, y)",
)
for _name in (
    "abs",
    "ceil",
    "cos",
    "erf",
    "exp",
    "exp2",
    "floor",
    "log",
    "log2",
    "rsqrt",
    "sin",
    "sqrt",
):
    each(
        _name,
        "x d",
        f"gl.{_name}(x)",
        f"gl.{_name}(d)",
        f"gl.{_name}(f)",
        f"x.{_name}()",
        f"gl.{_name}(2.0)",
    )
each("abs-int", "i u h", "gl.abs(i)", "gl.abs(u)", "gl.abs(h)", "gl.abs(n)", "i.abs()")
each("sqrt_rn", "x y", "gl.sqrt_rn(x)", "x.sqrt_rn()", "gl.div_rn(x, y)", "gl.div_rn(f, y)")
each(
    "fdiv",
    "x y h i",
    "gl.fdiv(x, y)",
    "gl.fdiv(x, y, ieee_rounding=True)",
    "gl.fdiv(h, 2.0)",
    "gl.fdiv(f, 3.0)",
)
each("fdiv-approx", "x y", "gl.fdiv(x, y, approx=True)", since=(3, 9))
each(
    "fma", "x y h d", "gl.fma(x, y, x)", "gl.fma(x, 2.0, f)", "gl.fma(h, h, h)", "gl.fma(d, d, 1.0)"
)
each("umulhi", "i u l", "gl.umulhi(u, u)", "gl.umulhi(i, 7)", "gl.umulhi(l, l)", "gl.umulhi(n, 7)")
each("cdiv", "i", "gl.cdiv(i, 3)", "gl.cdiv(n, 128)", "gl.cdiv(7, 2)", "i.cdiv(4)", "tl.cdiv(n, 4)")
each("methods", "x xx", "x.sigmoid()", "x.softmax()", "xx.softmax(0)")
each(
    "cast",
    "x h i u l c d bf",
    *[
        f"x.to(gl.{t})"
        for t in (
            "float16",
            "bfloat16",
            "float64",
            "int32",
            "uint32",
            "int8",
            "int1",
            "int64",
            "uint8",
        )
    ],
    *[
        f"i.to(gl.{t})"
        for t in (
            "float16",
            "bfloat16",
            "float32",
            "float64",
            "uint32",
            "int8",
            "int1",
            "int64",
            "uint64",
            "int16",
        )
    ],
    "u.to(gl.float32)",
    "u.to(gl.int64)",
    "c.to(gl.int32)",
    "l.to(gl.int32)",
    "d.to(gl.float32)",
    "h.to(gl.bfloat16)",
    "bf.to(gl.float16)",
    "h.to(gl.float8e5)",
    "x.to(gl.float8e4nv)",
    "h.to(gl.float8e5).to(gl.float32)",
    "bf.to(gl.float8e4nv)",
    "d.to(gl.float16)",
    "x.to(gl.float16, fp_downcast_rounding='rtz')",
    "gl.cast(x, gl.float16, 'rtne')",
    "gl.cast(i, gl.float32, bitcast=True)",
    "x.to(gl.int32, bitcast=True)",
    "h.to(gl.int16, bitcast=True)",
    "gl.cast(n, gl.int64)",
    "gl.cast(3, gl.int8)",
    "n.to(gl.float16)",
    "f.to(gl.int32, bitcast=True)",
    "x.cast(gl.float16)",
    "(n > 3).to(gl.int32)",
    "i.to(gl.uint32, bitcast=True)",
    "x.to(gl.float8e4nv, fp_downcast_rounding='rtne')",
    "h.to(tl.float8e4b15)",
)

# -- shapes -----------------------------------------------------------------------------------------

each(
    "broadcast",
    "rows cols xx oo x",
    "rows[:, None] + cols[None, :]",
    "gl.broadcast(rows[:, None], cols[None, :])",
    "rows[:, None] * 3",
    "xx + rows[:, None]",
    "cols[None, :] < xx",
    "rows[:, None].broadcast_to([32, 16])",
    "gl.broadcast(xx, 3)",
    "xx * n",
)
each(
    "expand_dims",
    "rows cols x xx",
    "gl.expand_dims(rows, 1)",
    "rows.expand_dims(1)",
    "cols[None, :]",
    "rows.expand_dims(-1)",
    "cols.expand_dims([0])",
    "gl.expand_dims(n, 0)",
)
case(
    "expand_dims-nested",
    "",
    """
    P: gl.constexpr = gl.BlockedLayout([1, 1, 2], [2, 4, 4], [2, 2, 1], [2, 1, 0])
    a = gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(1, P)))
    b = a[None, :]
    c = b[:, None, :]
    d = a.expand_dims([0, 1])
    e = a[None, None, :]
""",
)
each(
    "permute",
    "xx",
    "xx.permute(1, 0)",
    "gl.permute(xx, (1, 0))",
    "gl.permute(xx, [0, 1])",
    "xx.T",
    "xx.trans()",
    "xx.trans(1, 0)",
    "gl.permute(xx, 1, 0) + 1.0",
)
each(
    "reshape",
    "xx x",
    "xx.reshape(512)",
    "xx.reshape([512])",
    "gl.reshape(xx, 16, 32)",
    "gl.reshape(xx, [4, 8, 16])",
    "x.reshape(1, 128)",
    "x.reshape(8, 16)",
    "gl.ravel(xx)",
    "xx.ravel()",
    "gl.reshape(xx, [512], can_reorder=True)",
    "gl.reshape(x, (2, 64))",
    "x.reshape(128)",
    "xx.view(512)",
    "x.reshape([4, 2, 16]).reshape([128])",
)
each(
    "join",
    "x y i xx",
    "gl.join(x, y)",
    "gl.join(i, i)",
    "gl.join(xx, xx)",
    "gl.join(x, y).split()",
    "a, b = gl.split(gl.join(x, y))\na + b",
    "gl.join(x, 1.0)",
    "a, b = gl.join(xx, xx).split()\na + xx",
)
each("split", "xx", "xx.reshape(32, 8, 2).split()", "a, b = gl.split(xx.reshape(32, 8, 2))\na + b")
each(
    "convert_layout",
    "x xx rows cols",
    "gl.convert_layout(x, gl.BlockedLayout([2], [32], [4], [0]))",
    "gl.convert_layout(x, layout=L1)",
    "gl.convert_layout(xx, gl.BlockedLayout([2, 1], [8, 4], [1, 4], [0, 1]))",
    "gl.convert_layout(rows, COL)",
    "gl.convert_layout(rows, L1)",
    "gl.convert_layout(x, gl.BlockedLayout([1], [32], [4], [0]), assert_trivial=True)",
    "gl.convert_layout(x, gl.DistributedLinearLayout([], [[1], [2], [4], [8], [16]], [[32], [64]], [], [128]), assert_trivial=True)",
    "gl.convert_layout(xx, gl.DotOperandLayout(0, L2, 0))",
    "gl.convert_layout(xx, gl.DistributedLinearLayout([[0, 1], [16, 0]], [[0, 2], [0, 4], [0, 8], [1, 0], [2, 0]], [[4, 0], [8, 0]], [], [32, 16]))",
)
each(
    "auto_layout",
    "x",
    "gl.set_auto_layout(gl.arange(0, 128), L1)",
    "x + gl.arange(0, 128)",
    "gl.arange(0, 128) * x",
    "gl.arange(0, 128)[:, None] + gl.arange(0, 4)[None, :]",
    "gl.sum(gl.full([128], 1.0, gl.float32), 0)",
    "a = gl.load(fp + gl.arange(0, 128, gl.AutoLayout()))\ngl.store(fp + gl.arange(0, 128), a)",
    "gl.set_auto_layout(gl.zeros([128], gl.float32), gl.CoalescedLayout())",
    "a = gl.load(fp + gl.arange(0, 128, gl.CoalescedLayout()))\na + 1",
    "gl.where(gl.arange(0, 128) < n, x, 0.0)",
    "gl.arange(0, 128).reshape(8, 16)",
    "gl.join(gl.arange(0, 128), gl.arange(0, 128)).split()",
    "gl.permute(gl.zeros([32, 16], gl.float32), 1, 0)",
    "gl.maximum(gl.arange(0, 128), 3)",
    "gl.store(fp + gl.arange(0, 128), x)",
)
each(
    "hints",
    "i o",
    "gl.multiple_of(o, 16)",
    "gl.max_contiguous(o, [128])",
    "gl.max_constancy(i, 4)",
    "gl.multiple_of(n, 8)",
    "gl.load(ip + gl.multiple_of(n, 16))",
    "gl.assume(n > 3)",
)
each(
    "fp4_to_fp",
    "",
    """
    P: gl.constexpr = gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])
    a = gl.full([32, 16], 3, gl.uint8, P)
    gl.fp4_to_fp(a, gl.float16, 1)
""",
    """
    P: gl.constexpr = gl.BlockedLayout([2, 1], [4, 8], [4, 1], [1, 0])
    a = gl.full([32, 16], 3, gl.uint8, P)
    gl.fp4_to_fp(a, gl.bfloat16, axis=0)
""",
    """
    P: gl.constexpr = gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])
    a = gl.full([32, 16], 3, gl.int8, P)
    gl.fp4_to_fp(a, gl.bfloat16, -1)
""",
)
# -- global memory ----------------------------------------------------------------------------------

each(
    "load",
    "o m x oo xx",
    "gl.load(fp)",
    "gl.load(fp + n)",
    "gl.load(fp + o)",
    "gl.load(fp + o, mask=m)",
    "gl.load(fp + o, m, 0.0)",
    "gl.load(fp + o, m, other=f)",
    "gl.load(fp + o, mask=m, other=x)",
    "gl.load(fp + o, m, 3)",
    "gl.load(hp + o, m, 0)",
    "gl.load(ip + o, n > 3, 0)",
    "gl.load(fp, mask=n > 3, other=0.0)",
    "gl.load(fp + o, cache_modifier='.ca')",
    "gl.load(fp + o, cache_modifier='.cg', eviction_policy='evict_last')",
    "gl.load(fp + o, volatile=True)",
    "gl.load(fp + o, eviction_policy='evict_first')",
    "gl.load(fp + oo, mask=oo < n)",
    "gl.load(fp + oo, mask=(gl.arange(0, 32, ROW) < n)[:, None])",
    "gl.load(cp + o).to(gl.int1)",
    "gl.load(fp + o.to(gl.int64))",
    "gl.load(n.to(gl.int64).to(gl.pointer_type(gl.float32)))",
    "gl.load(fp + o, mask=True)",
    "gl.load(fp + o, cache_modifier='.cv')",
    "gl.load(fp + o - 3)",
    "gl.load(3 + fp)",
    "a = gl.load((fp + o).to(gl.pointer_type(gl.int32), bitcast=True))",
    "gl.load(fp + o, mask=None, other=None)",
)
each(
    "cache_policy",
    "o x",
    "gl.load(fp + o, cache_policy=gl.CachePolicy())",
    "gl.load(fp + o, cache_policy=gl.CachePolicy('ca', 'evict_first'))",
    "gl.store(fp + o, x, cache_policy=gl.CachePolicy('.cg'))",
    "gl.store(fp + o, x, cache_policy=gl.CachePolicy(eviction_policy='evict_last'))",
    since=(3, 9),
)
each(
    "store",
    "o m x i",
    "gl.store(fp, 3.0)",
    "gl.store(fp + o, x)",
    "gl.store(fp + o, x, mask=m)",
    "gl.store(fp + o, 0)",
    "gl.store(hp + o, x)",
    "gl.store(fp + o, i, m)",
    "gl.store(fp + o, f, m)",
    "gl.store(ip + o, x)",
    "gl.store(fp + n, n)",
    "gl.store(fp + o, x, cache_modifier='.wb')",
    "gl.store(fp + o, x, cache_modifier='.wt', eviction_policy='evict_first')",
    "gl.store(fp, f, mask=n > 3)",
    "gl.store(fp + o, x, mask=n > 3)",
    "(fp + o).store(x)",
    "gl.store(cp + o, m)",
    "gl.store(bp + o, 1.5)",
    "gl.store(lp + o, n)",
    "gl.store(fp + o, x, mask=True)",
    "gl.store(dp + o, x)",
    "gl.store(up + o, i)",
)
for _op in ("add", "max", "min", "and", "or", "xor", "xchg"):
    _bodies = [
        f"gl.atomic_{_op}(ip + o, i)",
        f"gl.atomic_{_op}(ip, 3)",
        f"gl.atomic_{_op}(ip + o, i, mask=m)",
        f"gl.atomic_{_op}(ip + o, 1, m, 'relaxed', 'cta')",
        f"gl.atomic_{_op}(ip, n, sem='release', scope='sys')",
        f"(ip + o).atomic_{_op}(i)",
        f"gl.atomic_{_op}(ip + o, 1, n > 3)",
        f"gl.atomic_{_op}(ip + o, n)",
    ]
    if _op in ("add", "max", "min", "xchg"):
        _bodies += [
            f"gl.atomic_{_op}(fp + o, x)",
            f"gl.atomic_{_op}(fp, 1.5)",
            f"gl.atomic_{_op}(up + o, u, m)",
            f"gl.atomic_{_op}(fp + o, x, m, sem='acquire')",
        ]
    if _op in ("add", "xchg"):
        _bodies += [
            f"gl.atomic_{_op}(hp + o, h)",
            f"gl.atomic_{_op}(lp + o, l)",
            f"gl.atomic_{_op}(dp + o, d)",
        ]
    each(f"atomic_{_op}", "o m x i u h l d", *_bodies)
each(
    "atomic_cas",
    "o i x l",
    "gl.atomic_cas(ip, 0, 1)",
    "gl.atomic_cas(ip + o, i, 3)",
    "gl.atomic_cas(ip + o, i, i, sem='acq_rel', scope='cta')",
    "gl.atomic_cas(lp + o, l, l)",
    "gl.atomic_cas(ip, n, n, 'relaxed')",
    "(ip + o).atomic_cas(i, i)",
)
each(
    "atomic_load_store",
    "o i m x",
    "gl.atomic_load(ip)",
    "gl.atomic_load(ip + o, m)",
    "gl.atomic_load(ip, sem='relaxed', scope='cta')",
    "gl.atomic_store(ip, 3)",
    "gl.atomic_store(ip + o, i, m)",
    "gl.atomic_store(ip + o, i, sem='release', scope='sys')",
    "gl.atomic_poll(ip, 1)",
    "gl.atomic_poll(ip, n, sem='acquire', scope='gpu', timeout_ns=1000)",
    "gl.atomic_load(fp + o)",
    "gl.atomic_store(fp, 2)",
    since=(3, 9),
)

# -- shared memory ----------------------------------------------------------------------------------

each(
    "allocate_shared_memory",
    "x xx",
    "gl.allocate_shared_memory(gl.float32, [128], SH1)",
    "gl.allocate_shared_memory(gl.float32, [128], SH1, x)",
    "gl.allocate_shared_memory(gl.float16, (32, 16), SH2)",
    "gl.allocate_shared_memory(gl.float32, [32, 16], SH2, value=xx)",
    "gl.allocate_shared_memory(gl.int8, [4, 32, 16], SH2)",
    "gl.allocate_shared_memory(gl.float32, [32, 16], gl.PaddedSharedLayout.with_identity_for([[16, 4]], [32, 16], [1, 0]))",
    "gl.allocate_shared_memory(gl.float16, [3, 32, 16], SH2)",
    "gl.allocate_shared_memory(gl.int64, [1], SH1)",
    "gl.allocate_shared_memory(gl.float32, [4, 2], gl.SharedLinearLayout([[0, 1], [1, 0], [2, 0]]))",
    "gl.allocate_shared_memory(gl.bfloat16, [64, 64], gl.NVMMASharedLayout(128, 16, 2))",
    "gl.allocate_shared_memory(gl.bfloat16, [64, 64], gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16))",
)
each(
    "memdesc",
    "x xx",
    "s = gl.allocate_shared_memory(gl.float32, [128], SH1, x)\ns.load(L1)",
    "s = gl.allocate_shared_memory(gl.float32, [32, 16], SH2, xx)\ns.load(layout=L2)",
    "s = gl.allocate_shared_memory(gl.float32, [128], SH1)\ns.store(x)",
    "s = gl.allocate_shared_memory(gl.float32, [2, 128], SH1)\ns.index(0).store(x)\ns.index(n).load(L1)",
    "s = gl.allocate_shared_memory(gl.float32, [2, 128], SH1)\ns.index(n % 2).load(L1)\ns.index(1).store(x)",
    "s = gl.allocate_shared_memory(gl.float32, [2, 32, 16], SH2)\na = s.index(n)\na.store(xx)\na.permute([1, 0]).load(gl.BlockedLayout([1, 1], [2, 16], [4, 1], [1, 0]))",
    "s = gl.allocate_shared_memory(gl.float32, [32, 16], SH2)\na = s.slice(0, 16)\nb = s.slice(8, 8, dim=1)\nb.load(gl.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 0]))",
    "s = gl.allocate_shared_memory(gl.float32, [32, 16], SH2)\na = s.slice(16, 16, 0).slice(0, 4, 1)\na.load(gl.BlockedLayout([1, 1], [8, 4], [4, 1], [1, 0]))",
    "s = gl.allocate_shared_memory(gl.float32, [32, 16], SH2)\na = s.permute((1, 0))\na.store(xx.permute(1, 0))",
    "s = gl.allocate_shared_memory(gl.float32, [32, 16], SH2)\na = s.reshape([8, 4, 16])\nb = s.reshape((512,))",
    "s = gl.allocate_shared_memory(gl.float32, [128], SH1)\na = s._reinterpret(gl.int32, [128], SH1)\na.load(L1)",
    "s = gl.allocate_shared_memory(gl.int8, [1024], SH1)\na = s._reinterpret(gl.float32, [16, 16], SH2)",
    "s = gl.allocate_shared_memory(gl.float32, [128], SH1)\ns._keep_alive()",
    "s = gl.allocate_shared_memory(gl.float32, [2, 128], SH1)\nt: gl.constexpr = s.type.shape[0]\nb: gl.constexpr = s.layout\nr: gl.constexpr = s.rank\ngl.full([t], r, gl.int32)\ngl.static_assert(s.dtype == gl.float32)\ngl.static_assert(s.shape[1] == 128)\ngl.static_assert(s.numel == 256)\ngl.static_assert(s.layout == SH1)",
    "s = gl.allocate_shared_memory(gl.float32, [2, 128], SH1)\ns = s.index(0)\nfor k in range(n):\n    s.store(x)\n    x += s.load(L1)",
    "s = gl.allocate_shared_memory(gl.float32, [4, 2, 128], SH1) if False else gl.allocate_shared_memory(gl.float32, [2, 128], SH1)\nfor k in gl.static_range(2):\n    s.index(k).store(x)",
)
each(
    "memdesc-loop",
    "x",
    """
    s = gl.allocate_shared_memory(gl.float32, [2, 128], SH1)
    a = s.index(0)
    for k in range(n):
        b = s.index(k % 2)
        b.store(x + a.load(L1))
        a = b
""",
    """
    s = gl.allocate_shared_memory(gl.float32, [2, 128], SH1)
    a = s.index(0)
    if n > 3:
        a = s.index(1)
    a.store(x)
""",
)
each(
    "memdesc-reinterpret",
    "x",
    "s = gl.allocate_shared_memory(gl.float32, [128], SH1)\na = s.reinterpret(gl.int32, [128], SH1)",
    "s = gl.allocate_shared_memory(gl.float32, [128], SH1)\na = s.reinterpret(gl.int32)",
    "s = gl.allocate_shared_memory(gl.float32, [128], SH1)\na = s.reinterpret(shape=[32, 4], layout=SH2)",
    since=(3, 9),
)
each(
    "memdesc-gather",
    "x i ii xx",
    "s = gl.allocate_shared_memory(gl.float32, [128], SH1, x)\ns.gather(i, 0)",
    "s = gl.allocate_shared_memory(gl.float32, [128], SH1)\ns.scatter(x, i, axis=0)",
    "s = gl.allocate_shared_memory(gl.float32, [32, 16], SH2)\ns.scatter(xx, ii, 1)\ns.gather(ii, axis=0)",
    since=(3, 7),
)
each(
    "memdesc-atomics",
    "x i j u m",
    *[
        f"s = gl.allocate_shared_memory(gl.int32, [128], SH1, i)\ns.atomic_scatter_{_op}(j, i, 0)\ns.atomic_scatter_{_op}(j, i, axis=0, mask=m)"
        for _op in ("add", "and", "max", "min", "or", "xchg", "xor")
    ],
    "s = gl.allocate_shared_memory(gl.float32, [128], SH1, x)\ns.atomic_scatter_add(x, i, 0)",
    "s = gl.allocate_shared_memory(gl.float32, [128], SH1, x)\ns.atomic_scatter_xchg(x, i, 0)",
    "s = gl.allocate_shared_memory(gl.uint32, [128], SH1, u)\ns.atomic_scatter_max(u, i, 0)",
    "s = gl.allocate_shared_memory(gl.uint32, [128], SH1, u)\ns.atomic_scatter_min(u, i, 0)",
    since=(3, 8),
)
each(
    "bank_conflicts",
    "x xx",
    "s = gl.allocate_shared_memory(gl.float32, [32, 16], SH2)\nk: gl.constexpr = gl.bank_conflicts(xx.type, s.type)\ngl.full([128], k, gl.int32, L1)",
    "s = gl.allocate_shared_memory(gl.float32, [128], SH1)\ngl.full([128], gl.bank_conflicts(x.type, s.type), gl.int32, L1)",
    "k: gl.constexpr = gl.bank_conflicts(gl.distributed_type(gl.float16, [64, 64], gl.BlockedLayout([8, 1], [4, 8], [4, 1], [0, 1])), gl.shared_memory_descriptor_type(gl.float16, [64, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]), [64, 64]))\ngl.full([128], k, gl.int32, L1)",
)
each(
    "to_linear_layout",
    "x",
    "K: gl.constexpr = gl.to_linear_layout(L2, [32, 16])\ngl.zeros([32, 16], gl.float32, K)",
    "K: gl.constexpr = gl.to_linear_layout(ROW, [32])\ngl.arange(0, 32, K)",
    "K: gl.constexpr = gl.to_linear_layout(gl.DotOperandLayout(0, L2, 0), [32, 16])\ngl.zeros([32, 16], gl.float32, K)",
    "K: gl.constexpr = gl.to_linear_layout(L1, [128])\ngl.convert_layout(x, K, assert_trivial=True)",
    "K: gl.constexpr = gl.to_linear_layout(SH2, [32, 16])\ngl.allocate_shared_memory(gl.float32, [32, 16], K)",
)

# -- axes -------------------------------------------------------------------------------------------

_COMBINE = """
@gluon.jit
def plus(a, b):
    return a + b
@gluon.jit
def both(a, i, b, j):
    return a + b, i * j
@gluon.jit
def pick(a, i, b, j):
    gt = a > b
    return gl.where(gt, a, b), gl.where(gt, i, j)
"""
each(
    "reduce",
    "x y i xx ii h",
    "gl.reduce(x, 0, plus)",
    "gl.reduce(xx, 1, plus)",
    "gl.reduce(xx, 0, plus, keep_dims=True)",
    "gl.reduce(xx, None, plus)",
    "a, b = gl.reduce((x, i), 0, both)\na + b",
    "a, b = gl.reduce((xx, ii), axis=1, combine_fn=pick)\nb + 1",
    "gl.reduce(xx, -1, plus)",
    "x.reduce(0, plus)",
    "xx.reduce(1, plus, keep_dims=True)",
    "a, b = gl.reduce((xx, ii), 0, both, keep_dims=True)\na",
    "gl.reduce(gl.reduce(xx, 1, plus), 0, plus)",
    "a = gl.reduce(xx, 1, plus)\na[:, None] + xx",
    before=_COMBINE,
)
each(
    "reductions",
    "x xx i ii h u bf m",
    *[
        f"gl.{_r}({_v}, {_a})"
        for _r in ("sum", "max", "min")
        for _v, _a in (
            ("x", "0"),
            ("xx", "1"),
            ("xx", "axis=0, keep_dims=True"),
            ("ii", "0"),
            ("h", "0"),
            ("xx", ""),
            ("i", "0"),
        )
    ],
    "gl.sum(x, 0, dtype=gl.float64)",
    "gl.sum(u, 0)",
    "gl.sum(bf, axis=0)",
    "gl.sum(m.to(gl.int32), 0)",
    "gl.sum(m, 0)",
    "gl.xor_sum(i, 0)",
    "gl.xor_sum(ii, 1, keep_dims=True)",
    "gl.reduce_or(i, 0)",
    "gl.reduce_or(ii, 1, keep_dims=True)",
    "x.sum()",
    "xx.max(1)",
    "xx.min(axis=0)",
    "i.xor_sum()",
    "gl.max(xx, -1)",
    "gl.sum(xx, None, True)",
    "gl.max(h, 0)",
    "gl.max(u, 0)",
    "m.reduce_or(0)",
)
each(
    "argmax",
    "x xx bf ii",
    "x.argmax(0)",
    "xx.argmin(1, keep_dims=True)",
    "a, b = gl.max(xx, 1, return_indices=True)\na + 1",
    "gl.min(x, 0, return_indices=True, return_indices_tie_break_left=False)",
    "xx.argmax(0, tie_break_left=False)",
    "tl.argmin(x, 0)",
    "gl.max(bf, 0, return_indices=True)",
    "a, b = gl.min(ii, 1, True)\na + b",
)
each(
    "library",
    "x xx i",
    "x.sort()",
    "xx.sort(1)",
    "tl.interleave(x, x)",
    "tl.swizzle2d(n, n, 4, 8, 2)",
    "tl.rand(3, i)",
    "gl.sum(x, 0).item()",
    "xx.T",
    "tl.debug_barrier()",
    "tl.extra.libdevice.tanh(x)",
    "tl.gather(x, i, 0)",
    "tl.ravel(xx)",
    "tl.exp(x)",
    "tl.where(i > 0, x, 0.0)",
    "tl.flip(x)",
    "tl.cat(x, x)",
)
each(
    "associative_scan",
    "x i xx ii",
    "gl.associative_scan(x, 0, plus)",
    "gl.associative_scan(xx, 1, plus)",
    "gl.associative_scan(xx, 0, plus, reverse=True)",
    "a, b = gl.associative_scan((xx, ii), 1, both)\na",
    "x.associative_scan(0, plus)",
    "xx.cumsum(1)",
    "x.cumsum()",
    "x.cumprod(0, reverse=True)",
    "gl.associative_scan(xx, -1, plus)",
    "i.cumsum(0, True)",
    "tl.cumsum(x, 0)",
    before=_COMBINE,
)
each(
    "cumsum",
    "x xx i",
    "gl.cumsum(x, 0)",
    "gl.cumprod(xx, 1, reverse=True)",
    "gl.cumsum(i, dtype=gl.int64)",
    since=(3, 9),
)
each(
    "gather",
    "x i xx ii",
    "gl.gather(x, i, 0)",
    "gl.gather(xx, ii, axis=1)",
    "gl.gather(xx, ii, 0)",
    "x.gather(i, 0)",
    "gl.gather(i, i, 0)",
)
each(
    "histogram",
    "i u m",
    "gl.histogram(i, 16)",
    "gl.histogram(i, 32, layout=gl.SliceLayout(0, L2))",
    "gl.histogram(i, 32, mask=m, layout=L1)",
    "i.histogram(16)",
    "gl.histogram(u, 128, m, L1)",
)
each(
    "dot_fma",
    "",
    "a = gl.full([32, 16], 1.0, gl.float32, gl.DotOperandLayout(0, L2, 0))\nb = gl.full([16, 32], 1.0, gl.float32, gl.DotOperandLayout(1, L2, 0))\nc = gl.zeros([32, 32], gl.float32, L2)\ngl.dot_fma(a, b, c)",
    "a = gl.full([32, 16], 1.0, gl.float64, gl.DotOperandLayout(parent=L2, operand_index=0, k_width=0))\nb = gl.full([16, 32], 1.0, gl.float64, gl.DotOperandLayout(parent=L2, operand_index=1, k_width=0))\nc = gl.zeros([32, 32], gl.float64, L2)\ngl.dot_fma(a, b, c)",
    "a = gl.full([32, 16], 1.0, gl.float16, gl.DotOperandLayout(0, L2, 0))\nb = gl.full([16, 32], 1.0, gl.float16, gl.DotOperandLayout(1, L2, 0))\nc = gl.zeros([32, 32], gl.float16, L2)\ngl.dot_fma(a, b, c)",
)

# -- control ----------------------------------------------------------------------------------------

each(
    "programs",
    "",
    "gl.program_id(0)",
    "gl.program_id(axis=2)",
    "gl.num_programs(1)",
    "gl.full([128], gl.num_warps(), gl.int32, L1)",
    "k: gl.constexpr = gl.num_ctas()\ngl.full([128], k, gl.int32, L1)",
    "gl.program_id(0) * 128 + gl.arange(0, 128, L1)",
)
each(
    "barrier",
    "",
    "gl.barrier()",
    "gl.barrier(cluster=True)",
    "gl.barrier(cluster=False)",
    since=(3, 7),
)
each(
    "static",
    "x",
    "gl.static_assert(x.shape[0] == 128)",
    "gl.static_assert(True, 'message')",
    "for k in gl.static_range(3):\n    x += k",
    "for k in gl.static_range(1, 8, 3):\n    x *= k",
    "for k in gl.static_range(4, 0, -1):\n    x *= k",
    "k: gl.constexpr = x.shape[0] // 2\ngl.arange(0, k, L1)",
    "k: gl.constexpr = x.dtype\nx.to(k)",
    "if x.dtype == gl.float32:\n    x += 1\nelse:\n    x -= 1",
    "if x.type.layout == L1:\n    x += 1",
    "for k in gl.static_range(0):\n    x += k",
    "k = gl.constexpr(3)\nx + k",
    "k: gl.constexpr = len(x.shape)\ngl.full([k], 1, gl.int32)",
    "assert x.shape[0] == 128",
    "gl.static_print('a', x.shape[0], sep='')",
    "k: gl.constexpr = (1, 2)\nx + k[1]",
    "x + (3 if x.shape[0] > 5 else 4)",
)
each(
    "device",
    "x i m",
    "gl.device_print('x', x)",
    "gl.device_print('values: ', i, n, hex=True)",
    "gl.device_assert(m, 'message')",
    "gl.device_assert(i > 0, 'message', mask=m)",
    "gl.device_assert(n > 0)",
    "print('x', n)",
    "gl.device_print('nothing')",
)
each(
    "range",
    "x",
    "for k in range(n):\n    x += 1.0",
    "for k in range(0, n, 2):\n    x += k",
    "for k in range(n, 0, -1):\n    x += k",
    "for k in range(4):\n    x += k",
    "for k in tl.range(0, n, 3):\n    x += 1",
    "for k in range(10, n):\n    for q in range(k):\n        x += q",
    "for k in range(n):\n    if k > 3:\n        x += 1\n    else:\n        x *= 2",
    "a = x\nb = x * 2\nfor k in range(n):\n    a, b = b, a + b",
    "for k in tl.range(0, n, num_stages=3, loop_unroll_factor=2):\n    x += 1",
    "s = 0\nfor k in range(n):\n    s += k\nx + s",
    "s = 0.0\nfor k in range(n):\n    s += gl.sum(x, 0)",
    "for k in range(gl.cdiv(n, 128)):\n    x = gl.load(fp + k * 128 + gl.arange(0, 128, L1))",
    "for k in range(n.to(gl.int64)):\n    x += 1",
    "for k in tl.range(n, disallow_acc_multi_buffer=True):\n    x += 1",
)
each(
    "while",
    "x",
    "k = n\nwhile k > 0:\n    x += k\n    k -= 1",
    "while n > 0:\n    n = n // 2",
    "k = 0\nwhile (k < n) & (k < 10):\n    k += 1\n    x += 1\nx + k",
    "k = 0\nwhile k < n:\n    if k == 3:\n        x += 1\n    k += 1",
)
each(
    "if",
    "x y m",
    "if n > 3:\n    x += 1",
    "if n > 3:\n    x += 1\nelse:\n    x = y",
    "if n > 3:\n    z = x\nelif n > 1:\n    z = y\nelse:\n    z = x + y\nz + 1",
    "if n:\n    gl.store(fp, 1.0)",
    "z = x if n > 3 else y\nz + 1",
    "if n > 3 and f > 1.0:\n    x += 1",
    "if n > 3:\n    a, b = x, y\nelse:\n    a, b = y, x\na + b",
    "if n > 3:\n    return\ngl.store(fp, 1.0)",
    "if n > 3:\n    k = 1\nelse:\n    k = 2\nx + k",
    "if not n > 3:\n    x += 1",
    "if gl.sum(x, 0) > 0:\n    x += 1",
    "z = 1 if n > 3 else 2\nx + z",
    "if n > 3:\n    pass\nelse:\n    x += 1",
    "if n is None:\n    x += 1",
)
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

_PARTITIONS = """
@gluon.jit
def default(x, n):
    return x + n, x * 2
@gluon.jit
def silent(x):
    gl.barrier() if False else None
@gluon.jit
def produce(s, x, k: gl.constexpr):
    s.index(k).store(gl.full([128], 1.0, gl.float32, gl.BlockedLayout([1], [32], [gl.num_warps()], [0])))
@gluon.jit
def consume(p, n):
    o = gl.arange(0, 128, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    for k in range(n):
        gl.store(p + o, helper(o))
@gluon.jit
def helper(o):
    return o + gl.full(o.shape, gl.num_warps(), gl.int32, o.type.layout)
@gluon.jit
def empty():
    pass
@gluon.jit
def scalar(n):
    return n + 1
@gluon.jit
def nested(t):
    gl.store(t[0], t[1][0])
"""
each(
    "warp_specialize",
    "x",
    """
    s = gl.allocate_shared_memory(gl.float32, [2, 128], SH1)
    a, b = gl.warp_specialize([(default, (x, n)), (produce, (s, x, 1)), (consume, (ip, n))], [4, 1], [24, 40])
    a + b
""",
    "gl.warp_specialize([(empty, ()), (consume, (ip, n))], [2], [32])",
    "a = gl.warp_specialize([(scalar, (n,)), (empty, ()), (empty, ())], [1, 1], [24, 24])\nx + a",
    "gl.warp_specialize([(empty, ()), (consume, (ip, n)), (consume, (ip + 128, 3))], [4, 8], [24, 24])",
    "gl.warp_specialize([(empty, ()), (nested, ((fp, (f, n)),))], [1], [24])",
    "for k in range(n):\n    gl.warp_specialize([(empty, ()), (consume, (ip, k))], [4], [24])",
    before=_PARTITIONS,
)
each(
    "warp_specialize-registers",
    "x",
    "gl.warp_specialize([(empty, ()), (consume, (ip, n))], [2])",
    before=_PARTITIONS,
    since=(3, 7),
)
case("thread_barrier", "", "gl.thread_barrier()")

# The last Triton that has it.
UNTIL = {"thread_barrier": (3, 6)}
# Triton's own Gluon ends the process.
ABORTS = {"auto_layout-10", "fp4_to_fp-2", "to_linear_layout-4"}
# Triton's own Gluon refuses, at least in one version; ours must take it.
WIDER = {
    "argmax",
    "atomic_cas-1",
    "expand_dims-5",
    "fdiv-2",
    "histogram-0",
    "histogram-3",
    "memdesc-10",
    "memdesc-11",
    "methods-1",
    "reductions-35",
    "reshape-8",
    "reshape-11",
    "warp_specialize-2",
    *(f"argmax-{k}" for k in range(8)),
    *(
        f"atomic_{op}-{k}"
        for op in ("add", "max", "min", "and", "or", "xor", "xchg")
        for k in (3, 6, 7)
    ),
}
# Function names hold the text of a layout made inside a kernel; Triton 3.6 prints its lists as tuples.
NORMAL_FORM_ONLY = {(3, 6): {"calls-9"}}
# Names that older compilers can lower although their own Gluon lacks them.
BROUGHT = {"aggregate_replace", "barrier", "clamp", "cumsum", "expect_zero", "memdesc-reinterpret"}
