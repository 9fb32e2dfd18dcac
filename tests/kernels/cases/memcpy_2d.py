"""Copy every other row of a matrix, stored by rows and stored by columns.

The kernel takes strides, so one source serves both; what changes is the layout. Consecutive threads
must touch consecutive addresses, and so must consecutive programs: the dimension that is fastest in
memory is also the first axis of the grid.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example


@gluon.jit
def memcpy_2d(
    src,
    dst,
    rows,
    columns,
    src_row_stride,
    src_column_stride,
    dst_row_stride,
    dst_column_stride,
    BLOCK_ROWS: gl.constexpr,
    BLOCK_COLUMNS: gl.constexpr,
    layout: gl.constexpr,
):
    fastest: gl.constexpr = layout.order[0]
    row = gl.program_id(fastest) * BLOCK_ROWS
    column = gl.program_id(1 - fastest) * BLOCK_COLUMNS
    row += gl.arange(0, BLOCK_ROWS, layout=gl.SliceLayout(1, layout))
    column += gl.arange(0, BLOCK_COLUMNS, layout=gl.SliceLayout(0, layout))
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    src_offsets = (row * src_row_stride)[:, None] + (column * src_column_stride)[None, :]
    dst_offsets = (row * dst_row_stride)[:, None] + (column * dst_column_stride)[None, :]
    gl.store(dst + dst_offsets, gl.load(src + src_offsets, mask=mask), mask=mask)


def by_rows(new, large):
    rows, columns = (2**13, 2**15) if large else (37, 192)
    return {
        "src": new.random((2 * rows, columns)),
        "dst": new.empty((rows, columns)),
        "rows": rows,
        "columns": columns,
        "src_row_stride": 2 * columns,
        "src_column_stride": 1,
        "dst_row_stride": columns,
        "dst_column_stride": 1,
    }


def by_columns(new, large):
    """The same copy of the transposed matrix: every other column, each contiguous."""
    columns, rows = (2**13, 2**15) if large else (37, 192)
    return {
        "src": new.random((2 * columns, rows)),
        "dst": new.empty((columns, rows)),
        "rows": rows,
        "columns": columns,
        "src_row_stride": 1,
        "src_column_stride": 2 * rows,
        "dst_row_stride": 1,
        "dst_column_stride": rows,
    }


def row_major(warp_size, block=(1, 2048), vector=4, num_warps=4):
    layout = gl.BlockedLayout([1, vector], [1, warp_size], [1, num_warps], [1, 0])
    rows, columns = block
    return {
        "BLOCK_ROWS": rows,
        "BLOCK_COLUMNS": columns,
        "layout": layout,
        "num_warps": num_warps,
    }


def column_major(warp_size, block=(2048, 1), vector=4, num_warps=4):
    layout = gl.BlockedLayout([vector, 1], [warp_size, 1], [num_warps, 1], [0, 1])
    rows, columns = block
    return {
        "BLOCK_ROWS": rows,
        "BLOCK_COLUMNS": columns,
        "layout": layout,
        "num_warps": num_warps,
    }


def grid(args, config):
    tiles = (
        -(-args["rows"] // config["BLOCK_ROWS"]),
        -(-args["columns"] // config["BLOCK_COLUMNS"]),
    )
    return tiles if config["layout"].order[0] == 0 else tiles[::-1]


def example(name, arguments, config):
    return Example(
        name=name,
        kernel=memcpy_2d,
        arguments=arguments,
        grid=grid,
        config=config,
        reference=lambda args: args["src"][::2],
        output="dst",
        bytes_moved=lambda args: 2 * 4 * args["rows"] * args["columns"],
    )


EXAMPLES = [
    example("memcpy 2-D, by rows", by_rows, row_major),
    example("memcpy 2-D, by columns", by_columns, column_major),
]
