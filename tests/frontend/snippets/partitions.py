"""Partitions that run side by side."""

from __future__ import annotations

from tests.frontend.snippets.programs import case, each

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
