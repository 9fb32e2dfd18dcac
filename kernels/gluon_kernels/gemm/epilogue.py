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
def shared_columns(form, vector):
    """Return how many columns adjacent tiles share, by the form of their stores: those by which the begin of a sector may differ from row to row."""
    return vector if form == "sectors" else 0


@gluon.constexpr_function
def whole_rows(columns, vector, lanes, warps):
    """Return the layout of a part of a tile of which a warp stores as much of a row at a time as it can, `vector` elements with each thread."""
    across = min(columns // vector, lanes)
    return gl.BlockedLayout([1, vector], [lanes // across, across], [warps, 1], [1, 0])


@gluon.jit
def store_streamed(
    c, value, row, column, sizes, stride, ends, own, VECTOR: gl.constexpr, SHARED: gl.constexpr
):  # fmt: skip
    """Store a part of a tile as rows that the L2 cache gives up first; with SHARED columns, from where a sector of 32 bytes begins to where one ends.

    A sector of which two programs store parts is read from memory. Rows may begin at any multiple of 16 bytes: of the columns that
    a tile shares with the next one, each row has those up to the begin of a sector.

    Args:
        c, value, row, column, sizes, stride: those of `store_part`; VECTOR elements are 16 bytes.
        ends: a tuple of the epilogue, or an empty one.
        own: column at which the tile begins, and the one at which the next one does.
    """
    wide: gl.constexpr = whole_rows(value.shape[1], VECTOR, gl.target.warp_size(), gl.num_warps())
    if len(ends) == 0:
        value = gl.convert_layout(value.to(c.dtype.element_ty), wide)
    else:
        value = ends[0].apply(gl.convert_layout(value, wide), [row, column])
    rows = row + gl.arange(0, value.shape[0], gl.SliceLayout(1, wide))
    columns = column + gl.arange(0, value.shape[1], gl.SliceLayout(0, wide))
    to = c + rows.to(gl.int64) * (stride // VECTOR * VECTOR)
    inside = (rows < sizes[0])[:, None] & (columns < sizes[1] // VECTOR * VECTOR)[None, :]
    if SHARED > 0:
        first, last = own
        place = (to.to(gl.int64) >> 4).to(gl.int32)  # of a row, in halves of a sector
        start = first + (place + first // VECTOR & 1) * VECTOR
        stop = last + (place + last // VECTOR & 1) * VECTOR
        start = gl.where(first == 0, 0, start)
        stop = gl.where(last + SHARED >= sizes[1], sizes[1] // VECTOR * VECTOR, stop)
        inside &= (columns[None, :] >= start[:, None]) & (columns[None, :] < stop[:, None])
    value = value.to(c.dtype.element_ty)
    gl.store(to[:, None] + columns[None, :], value, mask=inside, eviction_policy="evict_first")


@gluon.constexpr_function
def exchanged(split):
    """Return `cga_layout` of a transposed tile."""
    return [[column, row] for row, column in split or []]


@gluon.jit
def store_part(
    c, value, row, column, sizes, stride, end, COLUMNS: gl.constexpr, VECTOR: gl.constexpr,
    SPLIT: gl.constexpr = None, held=None,
):  # fmt: skip
    """Store a part of a tile of sums, VECTOR elements at a time.

    Args:
        c: scalar pointer to the matrix.
        value: [rows, columns] of sums, which begin at `row` and `column` of a matrix of `sizes`.
        stride: elements from a row to the next; with COLUMNS from a column to the next, and columns are contiguous.
        end: the epilogue, of the matrix whose rows are contiguous; None where `value` is what is stored.
        VECTOR: `stride` and the contiguous side are multiples of it; 1 to 8.
        SPLIT: `cga_layout` of `value`, in clusters.
        held: scales of rows and of columns, in the layout of `stored_rows`; or None.
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
    if held is not None:
        value = value * held[0][:, None] * held[1][None, :]
    if end is not None:
        value = end.apply(value, [top, left])
    across = across // VECTOR * VECTOR  # the compiler sees the multiples
    stride = stride // VECTOR * VECTOR
    rows = top + gl.arange(0, value.shape[0], gl.SliceLayout(1, wide))
    columns = left + gl.arange(0, value.shape[1], gl.SliceLayout(0, wide))
    inside = (rows < down)[:, None] & (columns < across)[None, :]
    to = c + rows.to(gl.int64)[:, None] * stride + columns[None, :]
    gl.store(to, value.to(c.dtype.element_ty), mask=inside)
