"""A product of matrices without layouts, its operands, and the code of such kernels."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def product(a, b, c, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    rows, columns = gl.arange(0, BM)[:, None], gl.arange(0, BN)[None, :]
    along = gl.arange(0, BK)
    left, right = a + rows * K + along[None, :], b + along[:, None] * N + columns
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        x = gl.load(left, mask=along[None, :] < K - k, other=0.0)
        y = gl.load(right + k * N, mask=along[:, None] < K - k, other=0.0)
        acc = gl.portable.mma(x, y, acc)
        left += BK
    gl.store(c + rows * N + columns, acc)


def operands(m, n, k):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    return a, b, np.zeros((m, n), np.float32), a.astype(np.float32) @ b.astype(np.float32)


def code(kernel, target, kind="ptx", words={}, **constants):
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "N": "i32:16", "K": "i32:16"}
    asked = gluon.compile(kernel, target=target, signature=signature, constexprs=constants, **words)
    return asked.asm[kind]
