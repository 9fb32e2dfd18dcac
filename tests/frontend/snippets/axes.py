"""Reductions, scans and what else runs along an axis."""

from __future__ import annotations

from tests.frontend.snippets.programs import each

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
    "gl.histogram(i, 16, layout=L1)",
    "gl.histogram(i, 32, layout=gl.SliceLayout(0, L2))",
    "gl.histogram(i, 32, mask=m, layout=L1)",
    "gl.histogram(u, 128, m, L1)",
)
each(
    "dot_fma",
    "",
    "a = gl.full([32, 16], 1.0, gl.float32, gl.DotOperandLayout(0, L2, 0))\nb = gl.full([16, 32], 1.0, gl.float32, gl.DotOperandLayout(1, L2, 0))\nc = gl.zeros([32, 32], gl.float32, L2)\ngl.dot_fma(a, b, c)",
    "a = gl.full([32, 16], 1.0, gl.float64, gl.DotOperandLayout(parent=L2, operand_index=0, k_width=0))\nb = gl.full([16, 32], 1.0, gl.float64, gl.DotOperandLayout(parent=L2, operand_index=1, k_width=0))\nc = gl.zeros([32, 32], gl.float64, L2)\ngl.dot_fma(a, b, c)",
    "a = gl.full([32, 16], 1.0, gl.float16, gl.DotOperandLayout(0, L2, 0))\nb = gl.full([16, 32], 1.0, gl.float16, gl.DotOperandLayout(1, L2, 0))\nc = gl.zeros([32, 32], gl.float16, L2)\ngl.dot_fma(a, b, c)",
)
