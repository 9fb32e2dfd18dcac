"""What kernels over the rows of a matrix share, and the simplest of them: SwiGLU.

Such kernels are bound by memory, and what counts is how a row lies over threads. A program takes a
tile of several short rows, or one row that its registers hold; `rows_at` says where its elements
are. A row longer than that is walked in parts, `part_at`. A part is a tile whose columns are spread
over all threads and whose rows are each thread's own, so that reducing it along axis 0 moves
nothing between threads; that is left for the end of the row. What a second walk needs again stays
in shared memory as far as that goes, and is read again from the cache beyond.
"""

import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example


@gluon.jit
def rows_at(left, columns, stride, layout, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    """Offsets of a tile of rows from its first element, and which there are; `left` rows are left."""
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
    offsets = row[:, None] * stride + column[None, :]
    inside = (column < columns)[None, :]
    if ROWS > 1:
        inside = inside & (row < left)[:, None]
    return offsets, inside


@gluon.jit
def part_at(start, columns, layout, DEPTH: gl.constexpr, WIDTH: gl.constexpr):
    """Offsets of a part of one row from the row's start, and which there are."""
    deep = gl.arange(0, DEPTH, gl.SliceLayout(1, layout)) * WIDTH
    wide = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    column = start + deep[:, None] + wide[None, :]
    return column, column < columns


@gluon.jit
def memory_for(parts: gl.constexpr, dtype: gl.constexpr, DEPTH: gl.constexpr, WIDTH: gl.constexpr):
    """Shared memory for the first parts of a row."""
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    return gl.allocate_shared_memory(dtype, [parts, DEPTH, WIDTH], flat)


@gluon.jit
def keep(kept, start, part):
    """Keep a part of a row, if it is one of the first."""
    size: gl.constexpr = kept.shape[1] * kept.shape[2]
    if start < kept.shape[0] * size:
        kept.index(start // size).store(part)


@gluon.jit
def again(kept, src, start, at, inside, layout: gl.constexpr):
    """A part of a row that was seen before."""
    size: gl.constexpr = kept.shape[1] * kept.shape[2]
    if start < kept.shape[0] * size:
        part = kept.index(start // size).load(layout)
    else:
        part = gl.portable.load(src, at, inside)
    return part


@gluon.jit
def row_start(pointer, row, stride):
    """A pointer to a row, however large the matrix is."""
    return pointer + row.to(gl.int64) * stride


@gluon.jit
def swiglu(gate, up, dst, rows, columns, stride, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    """`dst = silu(gate) * up`; blocks of columns are programs of their own."""
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], gate.dtype.element_ty)
    first = gl.program_id(0) * ROWS
    start = gl.program_id(1) * BLOCK
    at, inside = rows_at(rows - first, columns - start, stride, layout, ROWS, BLOCK)
    x = gl.portable.load(row_start(gate, first, stride) + start, at, inside).to(gl.float32)
    y = gl.portable.load(row_start(up, first, stride) + start, at, inside).to(gl.float32)
    result = x / (1 + gl.exp(-x)) * y
    gl.portable.store(row_start(dst, first, stride) + start, at, result, inside)


@gluon.jit
def swiglu_backward(
    grad, gate, up, d_gate, d_up, rows, columns, stride, ROWS: gl.constexpr, BLOCK: gl.constexpr
):
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], gate.dtype.element_ty)
    first = gl.program_id(0) * ROWS
    start = gl.program_id(1) * BLOCK
    at, inside = rows_at(rows - first, columns - start, stride, layout, ROWS, BLOCK)
    g = gl.portable.load(row_start(grad, first, stride) + start, at, inside).to(gl.float32)
    x = gl.portable.load(row_start(gate, first, stride) + start, at, inside).to(gl.float32)
    y = gl.portable.load(row_start(up, first, stride) + start, at, inside).to(gl.float32)
    sigmoid = 1 / (1 + gl.exp(-x))
    to_gate = g * y * sigmoid * (1 + x * (1 - sigmoid))
    gl.portable.store(row_start(d_gate, first, stride) + start, at, to_gate, inside)
    gl.portable.store(row_start(d_up, first, stride) + start, at, g * x * sigmoid, inside)


OPTIONS = ("num_warps", "num_ctas")


def whole(columns, warp_size, rows=None, num_warps=None, most=2**17, num_ctas=1):
    """A configuration in which a program holds rows, or blocks of `most` elements: about 32 elements
    in each thread; with `num_ctas` a cluster of so many blocks is a program, where there are clusters and
    Triton reduces across them, from 3.8 on."""
    block = min(most, max(64, 2 ** math.ceil(math.log2(columns))))
    rows = rows or max(1, 4096 // block)
    warps = num_warps or min(max(rows * block // (32 * warp_size), 1), 1024 // warp_size)
    options = {"ROWS": rows, "BLOCK": block, "num_warps": warps}
    return options if num_ctas == 1 else {**options, "num_ctas": num_ctas}


def parts(warp_size, num_warps=16, depth=4, kept=1, vector=8):
    """A configuration in which a program walks over a row: `vector` elements side by side in each
    thread, `depth` times; `kept` parts stay in shared memory."""
    width = vector * warp_size * num_warps
    layout = gl.BlockedLayout([1, vector], [1, warp_size], [1, num_warps], [1, 0])
    options = {"DEPTH": depth, "WIDTH": width, "layout": layout, "num_warps": num_warps}
    return {"KEPT": kept, **options}


def blocks(columns, warp_size, block=2048, num_warps=4):
    """A configuration for what looks at no neighbours: 2048 elements of a row, or of several."""
    block = min(block, max(64, 2 ** math.ceil(math.log2(columns))))
    return {"ROWS": max(1, 2048 // block), "BLOCK": block, "num_warps": num_warps}


def block_grid(args, config):
    rows, columns = args["rows"], args["columns"]
    return (-(-rows // config["ROWS"]), -(-columns // config["BLOCK"]))


def row_grid(args, config):
    return (-(-args["rows"] // config.get("ROWS", 1)),)


def sizes_of(large, shape, small=(19, 1000)):
    return shape or ((8192, 8192) if large else small)


def arguments(new, large, shape=None):
    rows, columns = sizes_of(large, shape)
    return {
        "gate": new.random((rows, columns), "bfloat16"),
        "up": new.random((rows, columns), "bfloat16"),
        "dst": new.empty((rows, columns), "bfloat16"),
        "rows": rows,
        "columns": columns,
        "stride": columns,
    }


def backward_arguments(new, large, shape=None):
    forward = arguments(new, large, shape)
    size = (forward["rows"], forward["columns"])
    return {
        "grad": new.random(size, "bfloat16"),
        "gate": forward["gate"],
        "up": forward["up"],
        "d_gate": new.empty(size, "bfloat16"),
        "d_up": new.empty(size, "bfloat16"),
        **{name: forward[name] for name in ("rows", "columns", "stride")},
    }


def reference(args):
    gate, up = args["gate"].astype(np.float64), args["up"].astype(np.float64)
    return gate / (1 + np.exp(-gate)) * up


def backward_reference(args):
    """The gradient of the gate."""
    grad, gate, up = (args[name].astype(np.float64) for name in ("grad", "gate", "up"))
    sigmoid = 1 / (1 + np.exp(-gate))
    return grad * up * sigmoid * (1 + gate * (1 - sigmoid))


def example(
    name, kernel, arguments, reference, output, moved, grid=row_grid, tolerance=4e-3, **settings
):
    """An `Example` configured as the kernel's parameters want it.

    Args:
        moved: how many matrices of 16-bit elements are read and written.
        settings: other parameters of the kernel, and of the large case, `large` choices, `choices` by
            target and the `large_tolerance`.
    """
    names, walks = kernel.arg_names, "DEPTH" in kernel.arg_names
    large = settings.pop("large", {})
    large_tolerance = settings.pop("large_tolerance", None)
    choices_of = settings.pop("choices", None)

    def config(warp_size, columns=1000, **choices):
        if walks:
            options = {**parts(warp_size, **{"num_warps": 4, **choices}), **settings}
            return {
                name: value for name, value in options.items() if name in OPTIONS or name in names
            }
        form = blocks if grid is block_grid else whole
        return {**form(columns, warp_size, **choices), **settings}

    def large_config(warp_size, columns=8192, **choices):
        many = {"num_warps": 512 // warp_size, "depth": 2} if walks else {}
        merged = {**many, **large, **choices}
        return config(warp_size, columns, **merged)

    return Example(
        name=name,
        kernel=kernel,
        arguments=arguments,
        grid=grid,
        config=config,
        large_config=large_config,
        choices=choices_of,
        reference=reference,
        output=output,
        bytes_moved=lambda args: int(moved * 2 * args["rows"] * args["columns"]),
        tolerance=tolerance,
        large_tolerance=large_tolerance,
    )


EXAMPLES = [
    example("SwiGLU", swiglu, arguments, reference, "dst", 3, block_grid),
]
# Not in the demo.
MORE = [
    example(
        "SwiGLU, backward",
        swiglu_backward,
        backward_arguments,
        backward_reference,
        "d_gate",
        5,
        block_grid,
    ),
]
