"""Cross entropy of rows of logits with labels, of any width, forward and backward."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.kernels.cases.row_softmax import LOG2E, maximum_and_sum
from tests.kernels.cases.rows import block_grid, example, row_start, rows_at, sizes_of


@gluon.jit
def cross_entropy(
    src, labels, loss, logsum, rows, columns, stride, ignored,
    ROWS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """The loss of each row, and the logarithm of its sum for the way back; a row of the label
    `ignored` has the loss 0."""
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], src.dtype.element_ty)
    first = gl.program_id(0) * ROWS
    at, inside = rows_at(rows - first, columns, stride, layout, ROWS, BLOCK)
    src = row_start(src, first, stride)
    x = gl.portable.load(src, at, inside, -float("inf")).to(gl.float32)
    _, highest, total = gl.portable.cluster_softmax(x)
    normal = highest + gl.log(total)
    near = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    row = first + near
    label = gl.load(labels + row, mask=row < rows, other=0)
    counts = (row < rows) & (label != ignored)
    hit = gl.load(src + near * stride + label, mask=counts, other=0.0)
    gl.store(loss + row, gl.where(counts, normal - hit, 0.0), mask=row < rows)
    gl.store(logsum + row, normal, mask=row < rows)


@gluon.jit
def cross_entropy_wide(
    src, labels, loss, logsum, rows, columns, stride, ignored,
    DEPTH: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    row = gl.program_id(0)
    src = row_start(src, row, stride)
    highest, total = maximum_and_sum(src, None, columns, layout, DEPTH, WIDTH)
    normal = highest + gl.log(total)
    label = gl.load(labels + row)
    counts = label != ignored
    gl.store(loss + row, gl.where(counts, normal - gl.load(src + label, mask=counts, other=0), 0.0))
    gl.store(logsum + row, normal)


@gluon.jit
def cross_entropy_backward(
    grad, src, labels, logsum, dst, rows, columns, stride, ignored,
    ROWS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """The gradient of the logits, which may lie over them; `grad` has one element for each row."""
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], src.dtype.element_ty)
    first = gl.program_id(0) * ROWS
    start = gl.program_id(1) * BLOCK
    at, inside = rows_at(rows - first, columns - start, stride, layout, ROWS, BLOCK)
    row = first + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = start + gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
    label = gl.load(labels + row, mask=row < rows, other=0)
    factor = gl.load(grad + row, mask=row < rows, other=0.0)
    factor = gl.where(label == ignored, 0.0, factor)
    normal = gl.load(logsum + row, mask=row < rows, other=0.0)
    x = gl.portable.load(row_start(src, first, stride) + start, at, inside).to(gl.float32)
    hit = gl.where(column[None, :] == label[:, None], 1.0, 0.0)
    result = (gl.exp2((x - normal[:, None]) * LOG2E) - hit) * factor[:, None]
    gl.portable.store(row_start(dst, first, stride) + start, at, result, inside)


def loss_arguments(new, large, shape=None):
    rows, columns = sizes_of(large, shape)
    return {
        "src": new.random((rows, columns), "bfloat16"),
        "labels": new.integers((rows,), 0, columns, "int64"),
        "loss": new.empty((rows,)),
        "logsum": new.empty((rows,)),
        "rows": rows,
        "columns": columns,
        "stride": columns,
        "ignored": 5,
    }


def wide_loss_arguments(new, large, shape=None):
    return loss_arguments(new, large, shape or ((1024, 131072) if large else (3, 5000)))


def loss_backward_arguments(new, large, shape=None):
    args = loss_arguments(new, large, shape)
    rows, columns = args["rows"], args["columns"]
    return {
        "grad": new.random((rows,)),
        "src": args["src"],
        "labels": args["labels"],
        "logsum": new.random((rows,)),  # as good as any other: it is an argument
        "dst": new.empty((rows, columns), "bfloat16"),
        **{name: args[name] for name in ("rows", "columns", "stride", "ignored")},
    }


def loss_reference(args):
    src, labels = args["src"].astype(np.float64), args["labels"]
    highest = src.max(axis=1)
    normal = highest + np.log(np.exp(src - highest[:, None]).sum(axis=1))
    return np.where(labels == args["ignored"], 0, normal - src[np.arange(len(src)), labels])


def loss_backward_reference(args):
    src, labels = args["src"].astype(np.float64), args["labels"]
    result = np.exp(src - args["logsum"][:, None])
    result[np.arange(len(src)), labels] -= 1
    return result * np.where(labels == args["ignored"], 0, args["grad"])[:, None]


EXAMPLES = [
    example(
        "cross entropy", cross_entropy, loss_arguments, loss_reference, "loss", 1, tolerance=1e-5
    ),
]
# Not in the demo.
MORE = [
    example(
        "cross entropy of wide rows",
        cross_entropy_wide,
        wide_loss_arguments,
        loss_reference,
        "loss",
        1,
        tolerance=1e-5,
    ),
    example(
        "cross entropy, backward",
        cross_entropy_backward,
        loss_backward_arguments,
        loss_backward_reference,
        "dst",
        2,
        block_grid,
    ),
]
