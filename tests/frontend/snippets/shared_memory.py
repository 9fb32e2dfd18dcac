"""Shared memory."""

from __future__ import annotations

from tests.frontend.snippets.programs import each

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
    "gl.allocate_shared_memory(gl.int32, [96], SH1)._keep_alive()",
    "gl.allocate_shared_memory(gl.int8, [48, 16], SH2)",
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
