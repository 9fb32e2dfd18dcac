"""The plans of cross entropy: prepared launches for each key, of losses, their mean, and the gradient of logits."""

from __future__ import annotations

from typing import Any, Mapping, Optional

import torch
from torch import Tensor

from gluon_core import language as gl
from gluon_kernels.norm import hopper, portable
from gluon_kernels.norm.launches import Workspace, prepared, reading
from gluon_kernels.norm.rows import ClusterTiling, Tiling, cluster_tiling
from gluon_kernels.norm.tilings import (
    blocks_of,
    is_packed,
    of_short_rows,
    own_elements,
    packed,
    tiling_of,
    tiling_or_cluster,
)
from gluon_kernels.norm.views import Rows
from gluon_kernels.plans import (
    Launch,
    Plan,
    allocator,
    current_target,
    multiprocessors,
    registers,
    sequence,
)

__all__ = ["cross_entropy_plan", "loss_gradient_plan", "mean_loss_plan"]


def cross_entropy_plan(x: Tensor, labels: Tensor, ignored: int, keep: bool) -> Plan:
    """Return `run(x, labels, ignored, keep) -> (loss, logarithm of the sum)` of each row; the latter is None unless `keep`."""
    src = Rows.of(x)
    tiles = _tiles(src)
    empty = allocator((src.count,), torch.float32, x.device)
    makers, places = ((empty, empty), (2, 3)) if keep else ((empty,), (2, None))
    new = (empty(), empty() if keep else None)

    def alone(launch: Launch) -> Plan:
        return reading(sequence(2, makers, [(launch, (0, 1, *places))], places), src)

    if tiles.parts > 1 and src.count >= WALKED and is_packed(src):
        return alone(_walking_launch(src, labels, ignored, new))
    shared, options = _shared(src, tiles)
    if isinstance(shared, ClusterTiling):
        return alone(_sharing_launch(src, labels, shared, ignored, new, options))
    space = Workspace.of_rows(tiles, src.count)
    results = (*new, *space(x.device), None, None)
    # With fewer registers three programs of 16 warps have room on a processor in place of two.
    bound = tiles.num_warps == 16 and is_packed(src) and not converts_again(src, tiles)
    options = registers(40) if bound else {}
    launch = _loss_launch(src, labels, tiles, ignored, results, options)
    every = (0, 1, *places, *space.places(2 + len(makers)), None, None)
    return reading(sequence(2, makers, [(launch, every)], places, space.of(x)), src)


WALKED = 768  # rows from which on one program has a long row: fewer leave processors without loads under way


def _is_few(src: Rows) -> bool:
    """Return True for rows so few that programs that have one each leave a quarter of the processors or more without any."""
    return 4 * src.count <= 3 * multiprocessors(src.tensor)


# Columns of rows that four blocks of four warps share, and up to how many rows for each processor.
SHARED, SEVERAL = (14_000, 49_152), 2.75


def _shared(src: Rows, tiles: Tiling) -> tuple[Tiling, dict[str, Any]]:
    """Return the tiling of clusters that share rows, where these are long and few, and the options of the launch; else the tiling.

    More rows keep processors busy by shares that nobody waits for.
    """
    if tiles.parts > 1 and _is_few(src):
        return tiling_or_cluster(src, waits=False)
    processors, target = multiprocessors(src.tensor), current_target()
    several = not _is_few(src) and src.count < SEVERAL * processors
    long = SHARED[0] <= src.columns <= SHARED[1] and is_packed(src)
    if several and long and target.has("nvidia.wgmma") and target.backend != "sim":
        most = 16 * MOST_HELD[4]
        four = cluster_tiling(
            src.columns, 16, src.align, src.count, processors, 1, 4, most, warps_of_block=(4,)
        )
        if four is not None:
            return four, {"num_ctas": 4}
    return tiles, {}


MOST_HELD = {1: 64, 2: 80, 4: 120, 8: 80, 16: 64}  # elements of a thread, by the warps of a row
# Elements of a thread that has a part of a short row, where rows are many and where they are not; and how many warps for each processor many are.
SHORT, SHORT_OF_FEW, MANY = 32, 24, 40


def _tiles(src: Rows) -> Tiling:
    """Return the tiling of losses: a row is one program's as long as that is possible, of few warps with many elements where rows are many.

    Threads that have loaded more wait for each other less often, and a block of fewer takes the place of one that ends sooner.
    """
    processors = multiprocessors(src.tensor)
    short = of_short_rows(SHORT, src)
    if short is None or short.grid(src.count) * short.num_warps < MANY * processors:
        short = of_short_rows(SHORT_OF_FEW, src)
    if short is not None:
        return short
    alone = tiling_of(src, waits=False, least=processors)
    tiles = alone if alone.parts == 1 else tiling_of(src, waits=False)
    own, lanes = tiles.layout, tiles.layout.threads_per_warp[1]
    vector = own.size_per_thread[1]
    if is_packed(src) and tiles.parts * tiles.num_warps > 1:
        for warps, most in MOST_HELD.items():
            width = warps * lanes * vector
            pieces = -(-src.columns // width)
            many = src.count * warps >= 16 * processors
            if warps == 16:  # more rows are walked over, fewer are shared by clusters
                many = src.count < WALKED and not _is_few(src)
            fewer = tiles.parts > 1 or warps < tiles.num_warps
            if fewer and many and pieces * vector <= most:
                layout = gl.BlockedLayout(own.size_per_thread, own.threads_per_warp, [1, warps], own.order)  # fmt: skip
                return packed(Tiling(tiles.align, 1, 1, pieces, width, warps, layout), src)
    return packed(tiles, src)


def _walking_launch(
    src: Rows, labels: Tensor, ignored: int, results: tuple[Tensor, Optional[Tensor]]
) -> Launch:
    """Prepare `portable.cross_entropy_walk`, by fewer warps where a step of more goes far beyond the row."""
    lanes = current_target().warp_size
    vector = min(src.align, 16 // src.tensor.element_size())
    near, far = (-(-src.columns // step) * step for step in (4 * lanes * 32, 8 * lanes * 32))
    warps = 4 if 10 * near < 9 * far else 8
    tensors = (src.tensor, labels, *results)
    sizes = (src.count, src.columns, src.stride, labels.stride(0), ignored)
    return prepared(
        portable.cross_entropy_walk,
        (src.count,),
        (*tensors, *sizes),
        tensors,
        warps,
        ALIGN=src.align,
        DEPTH=32 // vector,
        WIDTH=warps * lanes * vector,
        layout=gl.BlockedLayout([1, vector], [1, lanes], [1, warps], [1, 0]),
    )


def _sharing_launch(
    src: Rows, labels: Tensor, tiles: ClusterTiling, ignored: int, results: tuple[Tensor, Optional[Tensor]],
    options: Mapping[str, Any],
) -> Launch:  # fmt: skip
    """Prepare `hopper.cluster_cross_entropy`."""
    tensors = (src.tensor, labels, *results)
    sizes = (src.count, src.columns, src.stride, labels.stride(0), ignored)
    return prepared(
        hopper.cluster_cross_entropy,
        (tiles.grid(src.count),),
        (*tensors, *sizes),
        tensors,
        options=options,
        **tiles.constants(),
    )


def _loss_launch(
    src: Rows, labels: Tensor, tiles: Tiling, ignored: int, results: tuple[Optional[Tensor], ...],
    options: Mapping[str, Any] = {},
) -> Launch:  # fmt: skip
    """Prepare `portable.cross_entropy`; `results` are loss to inverse."""
    tensors = (src.tensor, labels, *results)
    sizes = (src.count, src.columns, src.stride, labels.stride(0), ignored)
    grid = (tiles.grid(src.count),)
    return prepared(
        portable.cross_entropy,
        grid,
        (*tensors, *sizes),
        tensors,
        options=options,
        ANEW=converts_again(src, tiles),
        **tiles.constants(),
    )


# Elements of a thread; fewer leave room for enough programs if they stay converted. With 16 warps three programs have 40 registers each.
ANEW_FROM = 56
ANEW_OF_SIXTEEN = 32


def converts_again(src: Rows, tiles: Tiling) -> bool:
    """Return True if threads convert their elements anew for the second pass, in place of keeping them in 32 bits."""
    most = ANEW_OF_SIXTEEN if tiles.num_warps == 16 else ANEW_FROM
    return is_packed(src) and own_elements(tiles) >= most


MOST_TO_COUNT = 2048  # programs that may add to one counter: more would wait for each other


def mean_loss_plan(x: Tensor, labels: Tensor, ignored: int, keep: bool) -> Plan:
    """Return `run(x, labels, ignored, keep) -> (mean, 1 / number of labels that count, logarithm of the sum of each row)`;
    the latter two are None unless `keep`."""
    src = Rows.of(x)
    tiles = _tiles(src)
    if tiles.parts > 1 or tiles.grid(src.count) > MOST_TO_COUNT:
        return _mean_loss_of_many(x, labels, ignored, keep)
    device, copied = x.device, src.copied
    of_rows, of_all = (allocator(size, torch.float32, device) for size in ((src.count,), ()))
    space = Workspace(src.count, 1)
    kept = (of_rows(), of_all()) if keep else (None, None)
    loss, arrived = space(device)
    results = (loss, kept[0], None, arrived, of_all(), kept[1])
    launch = _loss_launch(src, labels, tiles, ignored, results)

    def run(x: Tensor, labels: Tensor, ignored: int, keep: bool) -> Any:
        mean = of_all()
        inverse, logsum = (of_all(), of_rows()) if keep else (None, None)
        loss, arrived = space(device)
        launch(x.contiguous() if copied else x, labels, loss, logsum, None, arrived, mean, inverse)
        return mean, inverse, logsum

    return run


def _mean_loss_of_many(x: Tensor, labels: Tensor, ignored: int, keep: bool) -> Plan:
    """Return the plan of a mean in a launch of its own."""
    of_rows = cross_entropy_plan(x, labels, ignored, keep)
    rows, warps, size = x.shape[0], 16, current_target().warp_size
    wide = max(warps * size, min(2048, 1 << (rows - 1).bit_length()))
    layout = gl.BlockedLayout([wide // (warps * size)], [size], [warps], [0])
    empty = allocator((), torch.float32, x.device)
    loss = torch.empty(rows, dtype=torch.float32, device=x.device)
    tensors = (loss, labels, empty(), empty() if keep else None)
    launch = prepared(
        portable.mean_of,
        (1,),
        (*tensors, rows, labels.stride(0), ignored),
        tensors,
        WIDTH=wide,
        layout=layout,
        num_warps=warps,
    )

    def run(x: Tensor, labels: Tensor, ignored: int, keep: bool) -> Any:
        loss, logsum = of_rows(x, labels, ignored, keep)
        mean, inverse = empty(), empty() if keep else None
        launch(loss, labels, mean, inverse)
        return mean, inverse, logsum

    return run


def loss_gradient_plan(
    grad: Optional[Tensor], x: Tensor, labels: Tensor, logsum: Tensor, inverse: Optional[Tensor], ignored: int,
    dtype: torch.dtype,
) -> Plan:  # fmt: skip
    """Return `run(...)`, the gradient of logits in a dtype; `grad` has one element for each row, or one for all, which `inverse` multiplies; None stands for ones."""
    src = Rows.of(x)
    empty = allocator(x.shape, dtype, x.device)
    new = empty()
    dst = Rows.of(new)
    tiles, grid = blocks_of(src, dst)
    arguments = (grad, src.tensor, labels, logsum, inverse, new)
    step = 0 if grad is None or grad.ndim == 0 else grad.stride(0)
    sizes = (src.count, src.columns, step, src.stride, labels.stride(0), dst.stride, ignored)
    launch = prepared(
        portable.cross_entropy_backward,
        grid,
        (*arguments, *sizes),
        arguments,
        **tiles.constants(),
    )

    read = src.read

    def run(grad: Any, x: Tensor, labels: Tensor, logsum: Tensor, inverse: Any, *known: Any) -> Tensor:  # fmt: skip
        new = empty()
        launch(grad, read(x), labels, logsum, inverse, new)
        return new

    return run
