"""Copy a matrix stored by rows into one stored by columns.

One layout cannot suit both sides: loads want threads along a row, stores want them along a column.
Load in one layout, `convert_layout` through shared memory, store in the other.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example


@gluon.jit
def transpose_copy(
    src,
    dst,
    rows,
    columns,
    BLOCK_ROWS: gl.constexpr,
    BLOCK_COLUMNS: gl.constexpr,
    layout_in: gl.constexpr,
    layout_out: gl.constexpr,
):
    first_row = gl.program_id(0) * BLOCK_ROWS
    first_column = gl.program_id(1) * BLOCK_COLUMNS

    row = first_row + gl.arange(0, BLOCK_ROWS, layout=gl.SliceLayout(1, layout_in))
    column = first_column + gl.arange(0, BLOCK_COLUMNS, layout=gl.SliceLayout(0, layout_in))
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    value = gl.load(src + (row * columns)[:, None] + column[None, :], mask=mask)

    value = gl.convert_layout(value, layout_out)

    row = first_row + gl.arange(0, BLOCK_ROWS, layout=gl.SliceLayout(1, layout_out))
    column = first_column + gl.arange(0, BLOCK_COLUMNS, layout=gl.SliceLayout(0, layout_out))
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    gl.store(dst + row[:, None] + (column * rows)[None, :], value, mask=mask)


def arguments(new, large, shape=None):
    rows, columns = shape or ((2**14, 2**14) if large else (112, 208))
    return {
        "src": new.random((rows, columns)),
        "dst": new.empty((columns, rows)),
        "rows": rows,
        "columns": columns,
    }


def config(warp_size, block=(64, 64), vector=4, num_warps=4):
    rows, columns = block
    along = min(warp_size, columns // vector)
    layout_in = gl.BlockedLayout([1, vector], [warp_size // along, along], [num_warps, 1], [1, 0])
    along = min(warp_size, rows // vector)
    layout_out = gl.BlockedLayout([vector, 1], [along, warp_size // along], [1, num_warps], [0, 1])
    return {
        "BLOCK_ROWS": rows,
        "BLOCK_COLUMNS": columns,
        "layout_in": layout_in,
        "layout_out": layout_out,
        "num_warps": num_warps,
    }


EXAMPLES = [
    Example(
        name="transpose copy",
        kernel=transpose_copy,
        arguments=arguments,
        grid=lambda args, config: (
            -(-args["rows"] // config["BLOCK_ROWS"]),
            -(-args["columns"] // config["BLOCK_COLUMNS"]),
        ),
        config=config,
        reference=lambda args: args["src"].T,
        output="dst",
        bytes_moved=lambda args: 2 * 4 * args["rows"] * args["columns"],
    )
]
