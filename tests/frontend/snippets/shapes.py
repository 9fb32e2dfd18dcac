"""Shapes and layouts of tensors."""

from __future__ import annotations

from tests.frontend.snippets.programs import case, each

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
    "gl.reshape(x, (2, 64))",
    "x.reshape(128)",
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
