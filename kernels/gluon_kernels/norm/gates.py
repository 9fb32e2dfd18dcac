"""SwiGLU, forward and backward, on any device."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.norm.rows import load_pieces, store_piece


@gluon.jit
def swiglu(
    gate, up, dst, rows, columns, gate_stride, up_stride, dst_stride, ALIGN: gl.constexpr,
    ROWS: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """`dst = silu(gate) * up`; blocks of columns are programs of their own."""
    row = gl.program_id(0) * ROWS
    start = gl.program_id(1) * WIDTH
    (x,) = load_pieces(
        gate, row, rows, columns, start, gate_stride, 0, ALIGN, ROWS, 1, WIDTH, layout
    )
    (y,) = load_pieces(up, row, rows, columns, start, up_stride, 0, ALIGN, ROWS, 1, WIDTH, layout)
    x = x.to(gl.float32)
    value = x / (1 + gl.exp(-x)) * y.to(gl.float32)
    store_piece(dst, value, row, rows, columns, start, dst_stride, ALIGN)


@gluon.jit
def swiglu_backward(
    grad, gate, up, to_gate, to_up, rows, columns, grad_stride, gate_stride, up_stride, to_gate_stride,
    to_up_stride, ALIGN: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Store the gradients of `gate` and `up`."""
    row = gl.program_id(0) * ROWS
    start = gl.program_id(1) * WIDTH
    (g,) = load_pieces(
        grad, row, rows, columns, start, grad_stride, 0, ALIGN, ROWS, 1, WIDTH, layout
    )
    (x,) = load_pieces(
        gate, row, rows, columns, start, gate_stride, 0, ALIGN, ROWS, 1, WIDTH, layout
    )
    (y,) = load_pieces(up, row, rows, columns, start, up_stride, 0, ALIGN, ROWS, 1, WIDTH, layout)
    g = g.to(gl.float32)
    x = x.to(gl.float32)
    sigmoid = 1 / (1 + gl.exp(-x))
    value = g * y.to(gl.float32) * sigmoid * (1 + x * (1 - sigmoid))
    store_piece(to_gate, value, row, rows, columns, start, to_gate_stride, ALIGN)
    store_piece(to_up, g * x * sigmoid, row, rows, columns, start, to_up_stride, ALIGN)
