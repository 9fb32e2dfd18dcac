"""The gradients of norms of few rows by one launch.

Sums over rows need the statistics of the forward pass alone, not what the gradient of a row has. So some programs have rows, others have columns,
which they read a second time, most of it from caches. Programs that keep sums over their rows would store as much as they read where each has a row or two.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.norm import odd_gradients
from gluon_kernels.norm.gradients import rows_backward, store_columns, sums_of


@gluon.jit
def norm_backward(
    grad, src, weight, statistics, dst, to_weight, to_bias, rows, columns, grad_stride, src_stride, dst_stride,
    blocks, CENTRED: gl.constexpr, ODD: gl.constexpr, SHIFT: gl.constexpr, ALIGN: gl.constexpr, ROWS: gl.constexpr,
    PIECES: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr, NEAR: gl.constexpr, DEEP: gl.constexpr,
    NARROW: gl.constexpr, columns_layout: gl.constexpr,
):  # fmt: skip
    """Store the gradients of `src`, weight and bias, the latter unless there is no pointer.

    Args:
        blocks: programs that have NARROW columns each, DEEP rows at a time, in accesses of NEAR elements; they come first as their way is longer.
        ODD: rows begin anywhere, see `odd_gradients`; the number of other programs is a multiple of ALIGN.
    """
    program = gl.program_id(0)
    if program < blocks:
        start = program * NARROW
        weights, biases = sums_of(
            grad, src, statistics, 0, rows, start, rows, columns, grad_stride, src_stride,
            to_weight is not None, CENTRED, NEAR, DEEP, NARROW, columns_layout,
        )  # fmt: skip
        if to_weight is not None:
            store_columns(to_weight, weights, start, columns)
        if to_bias is not None:
            store_columns(to_bias, biases, start, columns)
    else:
        program -= blocks
        programs = gl.num_programs(0) - blocks
        if ODD:
            odd_gradients.rows_backward(
                program, programs, grad, src, weight, statistics, dst, None, None, rows, columns,
                grad_stride, src_stride, dst_stride, CENTRED, ALIGN, ROWS, PIECES, WIDTH, SHIFT, layout,
            )  # fmt: skip
        else:
            rows_backward(
                program, programs, grad, src, weight, statistics, dst, rows, columns, grad_stride, src_stride,
                dst_stride, CENTRED, ALIGN, ROWS, PIECES, WIDTH, layout,
            )  # fmt: skip
