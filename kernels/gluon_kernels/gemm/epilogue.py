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
def erf(x):
    """Return the error function, to 1.5e-7 on AMD (Abramowitz and Stegun, 7.1.26).

    AMD's library branches for each element, and LLVM of Triton 3.6 copies registers in such branches for
    the lanes of one side alone: docs/known-compiler-bugs.md.
    """
    if gl.target.has("amd.buffer_ops"):
        t = 1 / (1 + 0.3275911 * gl.abs(x))
        sum = 1.421413741 + t * (-1.453152027 + t * 1.061405429)
        sum = t * (0.254829592 + t * (-0.284496736 + t * sum))
        size = 1 - sum * gl.exp(-x * x)
        result = gl.where(x < 0, -size, size)
    else:
        result = gl.erf(x)
    return result


@gluon.jit
def gelu(x):
    """By the error function, as torch's default."""
    return 0.5 * x * (1 + erf(x * 0.7071067811865476))


@gluon.jit
def gelu_tanh(x):
    """By tanh, which is a sigmoid of twice as much."""
    return x / (1 + gl.exp(-1.5957691216057308 * x * (1 + 0.044715 * x * x)))


@gluon.constexpr_function
def activation(name):
    return {"relu": relu, "silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh}[name]


@gluon.jit
def of_columns(M, N, bias, ACTIVATION: gl.constexpr, scale=None, row_scale=None, column_scale=None):
    """Return the epilogue of a product: scales, a bias of the columns and an activation; without them, one that does nothing."""
    if ACTIVATION is None:
        return gl.portable.epilogue(
            [M, N], scale=scale, row_scale=row_scale, column_scale=column_scale, bias=bias
        )
    else:
        return gl.portable.epilogue(
            [M, N], scale=scale, row_scale=row_scale, column_scale=column_scale, bias=bias,
            activation=activation(ACTIVATION),
        )  # fmt: skip


@gluon.jit
def of_scaled(M, N, bias, ACTIVATION: gl.constexpr, scales):
    """Return the epilogue with the scales of rows, those of columns, and a tuple of pointers to numbers that all sums are multiplied with."""
    scale = None
    if len(scales[2]) > 0:
        scale = gl.load(scales[2][0])
        for i in gl.static_range(1, len(scales[2])):
            scale *= gl.load(scales[2][i])
    return of_columns(M, N, bias, ACTIVATION, scale, scales[0], scales[1])


@gluon.constexpr_function
def stored_rows(columns, vector, lanes, warps, split=None):
    """Return the layout of a part of a tile whose rows are stored, or loaded, `vector` elements at a time.

    Args:
        split: `cga_layout`, by which the blocks of a cluster have parts of the rows or columns; None outside of clusters.
    """
    split = split or []
    for _, column in split:
        columns >>= column > 0
    across = min(columns // vector, 8 if vector == 8 else lanes)
    return gl.BlockedLayout([1, vector], [lanes // across, across], [warps, 1], [1, 0], split)


@gluon.constexpr_function
def exchanged(split):
    """Return `cga_layout` of a transposed tile."""
    return [[column, row] for row, column in split or []]


@gluon.jit
def store_part(
    c, value, row, column, sizes, stride, end, COLUMNS: gl.constexpr, VECTOR: gl.constexpr,
    SPLIT: gl.constexpr = None,
):  # fmt: skip
    """Store a part of a tile of sums, VECTOR elements at a time.

    Args:
        c: scalar pointer to the matrix.
        value: [rows, columns] of sums, which begin at `row` and `column` of a matrix of `sizes`.
        stride: elements from a row to the next; with COLUMNS from a column to the next, and columns are contiguous.
        end: the epilogue, of the matrix whose rows are contiguous; None where `value` is what is stored.
        VECTOR: `stride` and the contiguous side are multiples of it; 1 to 8.
        SPLIT: `cga_layout` of `value`, in clusters.
    """
    across = sizes[1]
    down = sizes[0]
    top = row
    left = column
    if COLUMNS:
        value = gl.permute(value, (1, 0))
        across, down = down, across
        top, left = left, top
    WARP: gl.constexpr = gl.target.warp_size()
    OWN: gl.constexpr = exchanged(SPLIT) if COLUMNS else SPLIT
    wide: gl.constexpr = stored_rows(value.shape[1], VECTOR, WARP, gl.num_warps(), OWN)
    value = gl.convert_layout(value, wide)
    if end is not None:
        value = end.apply(value, [top, left])
    across = across // VECTOR * VECTOR  # the compiler sees the multiples
    stride = stride // VECTOR * VECTOR
    rows = top + gl.arange(0, value.shape[0], gl.SliceLayout(1, wide))
    columns = left + gl.arange(0, value.shape[1], gl.SliceLayout(0, wide))
    inside = (rows < down)[:, None] & (columns < across)[None, :]
    to = c + rows.to(gl.int64)[:, None] * stride + columns[None, :]
    gl.store(to, value.to(c.dtype.element_ty), mask=inside)
