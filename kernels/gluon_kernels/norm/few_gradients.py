"""The gradients of norms of few rows by one launch.

Sums over rows need the statistics of the forward pass alone, not what the gradient of a row has. So some programs have rows, others have columns,
which they read a second time, most of it from caches. Programs that keep sums over their rows would store as much as they read where each has a row or two.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.norm import odd_gradients
from gluon_kernels.norm.gradients import part_backward, rows_backward, store_columns, sums_of


@gluon.jit
def norm_backward(
    grad, src, weight, statistics, dst, to_weight, to_bias, sums, arrived, rows, columns, grad_stride, src_stride,
    dst_stride, blocks, CENTRED: gl.constexpr, ODD: gl.constexpr, SHIFT: gl.constexpr, ALIGN: gl.constexpr,
    PARTS: gl.constexpr, ROWS: gl.constexpr, PIECES: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
    NEAR: gl.constexpr, DEEP: gl.constexpr, NARROW: gl.constexpr, columns_layout: gl.constexpr,
):  # fmt: skip
    """Store the gradients of `src`, weight and bias, the latter unless there is no pointer.

    Those programs come first whose way is longer: the ones with columns, or the ones that share rows and wait for each other.

    Args:
        sums, arrived: see `rows.exchange`; None where PARTS is 1.
        blocks: programs that have NARROW columns each, DEEP rows at a time, in accesses of NEAR elements.
        ODD: rows begin anywhere, see `odd_gradients`; the number of other programs is a multiple of ALIGN.
    """
    others = gl.num_programs(0) - blocks
    block = gl.program_id(0)
    program = block - blocks
    if PARTS > 1:
        block -= others
        program = block
    if (block >= 0) & (block < blocks):
        start = block * NARROW
        weights, biases = sums_of(
            grad, src, statistics, 0, rows, start, rows, columns, grad_stride, src_stride,
            to_weight is not None, CENTRED, NEAR, DEEP, NARROW, columns_layout,
        )  # fmt: skip
        if to_weight is not None:
            store_columns(to_weight, weights, start, columns)
        if to_bias is not None:
            store_columns(to_bias, biases, start, columns)
    else:
        if PARTS > 1:
            part_backward(
                others, grad, src, weight, statistics, dst, sums, arrived, rows, columns, grad_stride, src_stride,
                dst_stride, CENTRED, ALIGN, PARTS, ROWS, PIECES, WIDTH, layout,
            )  # fmt: skip
        elif ODD:
            odd_gradients.rows_backward(
                program, others, grad, src, weight, statistics, dst, None, None, rows, columns,
                grad_stride, src_stride, dst_stride, CENTRED, ALIGN, ROWS, PIECES, WIDTH, SHIFT, layout,
            )  # fmt: skip
        else:
            rows_backward(
                program, others, grad, src, weight, statistics, dst, rows, columns, grad_stride, src_stride,
                dst_stride, CENTRED, ALIGN, ROWS, PIECES, WIDTH, layout,
            )  # fmt: skip
