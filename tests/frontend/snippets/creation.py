"""Tensors made of nothing."""

from __future__ import annotations

from tests.frontend.snippets.programs import each

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
