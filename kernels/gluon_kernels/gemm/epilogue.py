"""Epilogues of products: a bias of the columns and an activation, in float32, before a tile is stored."""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def relu(x):
    return gl.maximum(x, 0.0)


@gluon.jit
def silu(x):
    return x / (1 + gl.exp(-x))


@gluon.jit
def gelu(x):
    """By the error function, as torch's default."""
    return 0.5 * x * (1 + gl.erf(x * 0.7071067811865476))


@gluon.jit
def gelu_tanh(x):
    """By tanh, which is a sigmoid of twice as much."""
    return x / (1 + gl.exp(-1.5957691216057308 * x * (1 + 0.044715 * x * x)))


@gluon.constexpr_function
def activation(name):
    return {"relu": relu, "silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh}[name]


@gluon.jit
def of_columns(M, N, bias, ACTIVATION: gl.constexpr):
    """Return the epilogue of a product; without a bias and an activation, one that does nothing."""
    if ACTIVATION is None:
        return gl.portable.epilogue([M, N], bias=bias)
    else:
        return gl.portable.epilogue([M, N], bias=bias, activation=activation(ACTIVATION))
