"""Copy of every other row on CDNA's buffer addressing: a base, 32-bit offsets, and bounds that the
hardware checks, so that the mask costs no branch."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import cdna3
from gluon_report.example import Example


@gluon.jit
def strided_copy(
    src, dst, rows, columns, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STRIDE: gl.constexpr
):
    gl.target.require("amd.buffer_ops", "amd.mfma")
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, BLOCK_N], src.dtype.element_ty)
    row = gl.program_id(0) * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, layout))
    column = gl.program_id(1) * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, layout))
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    # Each row is read once: it need not stay in the cache.
    x = cdna3.buffer_load(
        src, (row * (STRIDE * columns))[:, None] + column[None, :], mask=mask, cache=".cs"
    )
    cdna3.buffer_store(x, dst, (row * columns)[:, None] + column[None, :], mask=mask)


def arguments(new, large):
    rows, columns = (8192, 8192) if large else (70, 176)
    return {
        "src": new.random((2 * rows, columns)),
        "dst": new.empty((rows, columns)),
        "rows": rows,
        "columns": columns,
    }


EXAMPLES = [
    Example(
        name="strided copy, CDNA",
        kernel=strided_copy,
        arguments=arguments,
        grid=lambda args, config: (
            -(-args["rows"] // config["BLOCK_M"]),
            -(-args["columns"] // config["BLOCK_N"]),
        ),
        config=lambda warp_size: {"BLOCK_M": 16, "BLOCK_N": 256, "STRIDE": 2, "num_warps": 4},
        reference=lambda args: args["src"][::2],
        output="dst",
        bytes_moved=lambda args: 8 * args["rows"] * args["columns"],
        requires=("amd.buffer_ops", "amd.mfma"),
    )
]
