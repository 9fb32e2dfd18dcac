"""Operators and functions of elements."""

from __future__ import annotations

from tests.frontend.snippets.programs import each

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
