"""Branches, loops and constants."""

from __future__ import annotations

from tests.frontend.snippets.programs import each

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
