"""Cross entropy of a linear layer's logits, forward and backward, without the logits: a vocabulary of 128k and
16k tokens make 4 GiB of them.

Forward, a tile of logits is made by the matrix unit, and of each row the logarithm of its sum of
exponentials is all that is kept; a second kernel puts tiles together. Backward, tiles are made again, and
their gradients written for some rows at a time, as they are and transposed, which two products take:
those of `matmul.py`, for the gradients of the rows and of the weights.
"""

import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example
from tests.kernels.cases.matmul import config as product_config
from tests.kernels.cases.matmul import grid as product_grid
from tests.kernels.cases.matmul import matmul
from tests.kernels.cases.row_softmax import LOG2E


@gluon.jit
def keep_sums(logits, row, column, labels, outputs, tile, sizes):
    """Store the logarithm of the sum of exponentials of each row of a tile, and the label's logit."""
    M, N, tiles = sizes
    sums, hits = outputs
    layout: gl.constexpr = logits.type.layout
    rows = row + gl.arange(0, logits.shape[0], gl.SliceLayout(1, layout))
    columns = column + gl.arange(0, logits.shape[1], gl.SliceLayout(0, layout))
    label = gl.load(labels + rows, mask=rows < M, other=-1)
    seen = gl.where((columns < N)[None, :], logits, -float("inf"))
    highest = gl.max(seen, 1)
    total = gl.sum(gl.exp2((seen - highest[:, None]) * LOG2E), 1)
    at = rows.to(gl.int64) * tiles + tile
    gl.store(sums + at, highest + gl.log2(total) / LOG2E, mask=rows < M)
    hit = columns[None, :] == label[:, None]
    labelled = gl.sum(gl.where(hit, logits, 0.0), 1)
    here = (label >= column) & (label < column + logits.shape[1])
    gl.store(hits + rows, labelled, mask=(rows < M) & here)


@gluon.jit
def keep_gradients(logits, row, column, labels, factors, outputs, M):
    """The gradient of a tile: probabilities, less one at the label, times the row's factor."""
    layout: gl.constexpr = logits.type.layout
    rows = row + gl.arange(0, logits.shape[0], gl.SliceLayout(1, layout))
    columns = column + gl.arange(0, logits.shape[1], gl.SliceLayout(0, layout))
    label = gl.load(labels + rows, mask=rows < M, other=-1)
    logsum = gl.load(factors[0] + rows, mask=rows < M, other=0.0)
    factor = gl.load(factors[1] + rows, mask=rows < M, other=0.0)
    hit = gl.where(columns[None, :] == label[:, None], 1.0, 0.0)
    gradient = (gl.exp2((logits - logsum[:, None]) * LOG2E) - hit) * factor[:, None]
    gl.portable.store(outputs[0], [row, column], gradient)
    gl.portable.store(outputs[1], [column, row], gl.permute(gradient, (1, 0)))


@gluon.jit
def fused_linear_cross_entropy(
    x, w, labels, factors, outputs, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Logits are `x @ w.T`, `x` being [M, K] and `w` [N, K]. Forward, `factors` is None and `outputs` are
    `sums` [M, tiles of N] and `hits` [M]. Backward, `factors` are the rows' `logsum` and the factor of the
    gradient, and `outputs` take the logits' gradient, [M, N], and the same transposed."""
    dtype: gl.constexpr = x.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared", b_transposed=True
    )
    x_tiles = gl.portable.descriptor(x, [M, K], [K, 1], [BLOCK_M, BLOCK_K], layouts.a_shared)
    w_tiles = gl.portable.descriptor(w, [N, K], [K, 1], [BLOCK_N, BLOCK_K], layouts.b_shared)
    if factors is not None:
        outputs = (
            gl.portable.descriptor(outputs[0], [M, N], [N, 1], [BLOCK_M, BLOCK_N // 4]),
            gl.portable.descriptor(outputs[1], [N, M], [M, 1], [BLOCK_N, BLOCK_M // 4]),
        )
    ring = gl.portable.pipeline([x_tiles, w_tiles], STAGES)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N])
    count = tiles.count()
    programs = gl.num_programs(0)
    coming = gl.program_id(0)
    row, column = tiles.at(coming)
    k = 0
    for i in gl.static_range(STAGES - 1):
        ring.fetch(i, [[row, k], [column, k]], pred=coming < count)
        k += BLOCK_K
        if k >= K:
            k = 0
            coming += programs
            row, column = tiles.at(coming)
    step = 0
    for tile in range(gl.program_id(0), count, programs):
        acc = gl.portable.accumulator(layouts)
        for _ in range(0, K, BLOCK_K):
            x_tile, w_tile = ring.wait(step)
            acc = gl.portable.mma(x_tile, w_tile.permute((1, 0)), acc, is_async=True)
            acc = gl.portable.mma_wait(acc, pending=1)
            ring.fetch(step + STAGES - 1, [[row, k], [column, k]], pred=coming < count)
            k += BLOCK_K
            if k >= K:
                k = 0
                coming += programs
                row, column = tiles.at(coming)
            step += 1
        logits = gl.portable.read(acc)
        here, there = tiles.at(tile)
        if factors is None:
            sizes = (M, N, gl.cdiv(N, BLOCK_N))
            keep_sums(logits, here, there, labels, outputs, there // BLOCK_N, sizes)
        else:
            keep_gradients(logits, here, there, labels, factors, outputs, M)
    ring.close()


@gluon.jit
def put_together(sums, hits, labels, loss, logsum, tiles, ignored, BLOCK: gl.constexpr):
    """The loss of a row, 0 where its label is `ignored`, and the logarithm of its whole sum."""
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], gl.float32)
    row = gl.program_id(0)
    at = gl.arange(0, BLOCK, layout)
    part = gl.load(sums + row.to(gl.int64) * tiles + at, mask=at < tiles, other=-float("inf"))
    highest = gl.max(part, 0)
    whole = highest + gl.log2(gl.sum(gl.exp2((part - highest) * LOG2E), 0)) / LOG2E
    counts = gl.load(labels + row) != ignored
    gl.store(logsum + row, whole)
    gl.store(loss + row, gl.where(counts, whole - gl.load(hits + row, mask=counts, other=0.0), 0.0))


def arguments(new, large, sizes=None, block_n=None):
    m, n, k = sizes or ((8192, 32000, 4096) if large else (70, 208, 112))
    tiles = gluon.cdiv(n, block_n or (256 if large else 64))
    return {
        "x": new.random((m, k), "bfloat16"),
        "w": new.random((n, k), "bfloat16"),
        "labels": new.integers((m,), 0, n, "int64"),
        "factors": None,
        "sums": new.empty((m, tiles)),
        "hits": new.empty((m,)),
        "M": m,
        "N": n,
        "K": k,
    }


def operands(args, config):
    first = [args[name] for name in ("x", "w", "labels", "factors")]
    return (*first, (args["sums"], args["hits"]), args["M"], args["N"], args["K"])


def config(warp_size, block=(64, 64, 32), stages=3, num_warps=4):
    options = product_config(warp_size, block, stages, num_warps)
    return {name: value for name, value in options.items() if name != "GROUP"}


def large_config(warp_size, block=(128, 128, 32), stages=None, num_warps=8):
    return config(warp_size, block, stages or (3 if block[2] == 64 else 2), num_warps)


def choices(target):
    """Units that read shared memory on their own want large tiles; a row's sums want registers."""
    if target.has("nvidia.wgmma"):
        return {"block": (128, 256, 64)}
    return {"block": (128, 128, 64)} if target.has("nvidia.tcgen05") else {}


def grid(args, config):
    return product_grid({"a": args["x"], "M": args["M"], "N": args["N"]}, config)


def forward(args, config, new, ignored=-100, **options):
    """The loss of each row, and the logarithm of its sum for the way back."""
    fused_linear_cross_entropy[grid(args, config)](*operands(args, config), **config, **options)
    rows, tiles = args["sums"].shape
    loss, logsum = new.empty((rows,)), new.empty((rows,))
    kept = args["sums"], args["hits"], args["labels"], loss, logsum
    block = max(32, 2 ** math.ceil(math.log2(tiles)))
    put_together[(rows,)](*kept, tiles, ignored, block, **options, num_warps=1)
    return loss, logsum


def backward(args, config, new, logsum, factor, at_once=4096, **options):
    """The gradients of `x` and, in float32, of `w`, from the gradient `factor` of each row's loss."""
    rows, columns, depth = args["M"], args["N"], args["K"]
    to_x, to_w = new.empty((rows, depth), "bfloat16"), None
    products = {**config, "GROUP": 8}
    for first in range(0, rows, at_once):
        last = min(first + at_once, rows)
        piece = {"x": args["x"][first:last], "M": last - first, "N": columns}
        gradients = [
            new.empty(size, "bfloat16")
            for size in ((last - first, columns), (columns, last - first))
        ]
        values = (piece["x"], args["w"], args["labels"][first:last])
        factors = (logsum[first:last], factor[first:last])
        sizes = (last - first, columns, depth)
        fused_linear_cross_entropy[grid(piece, config)](
            *values, factors, tuple(gradients), *sizes, **config, **options
        )
        part = new.empty((columns, depth), "float32")
        for a, b, c in (
            (gradients[0], args["w"], to_x[first:last]),
            (gradients[1], piece["x"], part),
        ):
            sizes = {"a": a, "M": c.shape[0], "N": depth}
            matmul[product_grid(sizes, products)](
                a, b, c, c.shape[0], depth, a.shape[1], **products, **options
            )
        to_w = part if to_w is None else to_w + part
    return to_x, new.integers((columns, depth), 0, 1, "float32") if to_w is None else to_w


def reference(args, block_n=64):
    """The logarithms of each tile's sums."""
    logits = args["x"].astype(np.float64) @ args["w"].astype(np.float64).T
    logsums = []
    for first in range(0, logits.shape[1], block_n):
        part = logits[:, first : first + block_n]
        highest = part.max(axis=1)
        logsums.append(highest + np.log(np.exp(part - highest[:, None]).sum(axis=1)))
    return np.stack(logsums, axis=1)


EXAMPLES = [
    Example(
        name="cross entropy of a linear layer",
        kernel=fused_linear_cross_entropy,
        arguments=arguments,
        operands=operands,
        grid=grid,
        config=config,
        large_config=large_config,
        choices=choices,
        reference=reference,
        output="sums",
        flops=lambda args: 2 * args["M"] * args["N"] * args["K"],
        tolerance=1e-4,
    )
]
