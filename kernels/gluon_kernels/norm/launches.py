"""The plans of kernels over rows: workspaces and prepared launches for each key."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Mapping, Optional, Sequence

import torch
from torch import Tensor

from gluon_kernels.norm import (
    composite,
    hopper,
    odd,
    portable,
)
from gluon_kernels.norm.rows import (
    OWN,
    ClusterTiling,
    Tiling,
)
from gluon_kernels.norm.tilings import (
    ahead,
    begin_at_once,
    early,
    is_packed,
    keeps_exponentials,
    of_bodies,
    of_halves,
    of_short_rows,
    packed,
    shifts,
    tiling_of,
    tiling_or_cluster,
    whole_accesses,
)
from gluon_kernels.norm.views import Rows, as_it_is, common_align
from gluon_kernels.plans import (
    Counters,
    Launch,
    Scratch,
    allocator,
    sequence,
    stream_of_launch,
)

__all__ = [
    "Workspace",
    "norm_alone_plan",
    "norm_plan",
    "prepared",
    "reading",
    "softmax_gradient_plan",
    "softmax_plan",
]

Plan = Callable[..., Any]
Places = Sequence[Optional[int]]  # of tensors in a `sequence`


def prepared(
    kernel: Any,
    grid: Any,
    arguments: Any,
    tensors: Any,
    num_warps: int,
    options: Mapping[str, Any] = {},
    **constants: Any,
) -> Launch:
    """Prepare a launch whose last parameters are constants, given by name; more may be given than it has."""
    names = kernel.arg_names[len(arguments) :]
    values = [constants[name] for name in names]
    return Launch(kernel, grid, (*arguments, *values), tensors, num_warps=num_warps, **options)


class Workspace:
    """The memory by which the programs of a launch exchange float32 numbers, and the counters by which they wait for each other.

    Launches of one stream use the same memory, launches in CUDA graphs their own.

    Args:
        numbers: of float32.
        counters: of int32; 0 where no program needs another, and there is no memory.
    """

    def __init__(self, numbers: int, counters: int):
        self._numbers = numbers
        self._counters = Counters(counters) if counters else None
        self._scratch: Optional[Scratch] = None
        self._last: tuple[Any, tuple[Any, Any]] = None, (None, None)  # a stream, and its memory

    @classmethod
    def of_rows(cls, tiles: Tiling, rows: int) -> Workspace:
        """Return the workspace for programs that share rows: two numbers for each; nothing where a row is one program's."""
        return cls(2 * rows * tiles.parts, 1 + rows if tiles.parts > 1 else 0)

    def places(self, first: int) -> tuple[Optional[int], Optional[int]]:
        """Return the places of its tensors in a `sequence`."""
        return (None, None) if self._counters is None else (first, first + 1)

    def of(self, x: Tensor) -> Optional[Callable[[], Any]]:
        """Return `f() -> memory` for the device of a tensor; None where there is none."""
        return None if self._counters is None else partial(self, x.device)

    def __call__(self, device: torch.device) -> tuple[Optional[Tensor], Optional[Tensor]]:
        counters = self._counters
        if counters is None:
            return None, None
        last, memory = self._last
        stream = stream_of_launch(device)
        if stream is not None and stream == last and not counters.reserve.low:
            return memory
        if self._scratch is None:
            self._scratch = Scratch(self._numbers, device)
        memory = self._scratch(), counters(device)
        self._last = stream, memory
        return memory


class Destination:
    """The memory of a result: a new tensor, yours, or a copy that goes to yours."""

    def __init__(self, like: Tensor, dtype: torch.dtype, out: Optional[Tensor]):
        self.empty = allocator(like.shape, dtype, like.device)
        self.plain = out is None
        self.mine = out is None or Rows.of(out).copied

    def new(self, x: Tensor, out: Optional[Tensor]) -> Tensor:
        """Return the tensor that the kernel writes."""
        return out if out is not None and not self.mine else self.empty()


def finished(written: Tensor, out: Optional[Tensor]) -> Tensor:
    """Return the result that the caller wants."""
    if out is None or out is written:
        return written
    return out.copy_(written)


CLUSTERED = 16 * 14_000  # bits of a row whose softmax is shared by a cluster
CLUSTERED_NORM = 16 * 24_576  # bits of a row whose RMS norm is, by four blocks
WIDE_NORM = 16 * 49_152  # and by eight
ALONE = 8192  # columns up to which a program has a row of a softmax however few rows there are
ALONE_NORM = 16384  # and of a norm
SHORT = 16  # elements of a thread that has a part of a short row of a softmax
OWN_OF_NORM = 24  # elements of a thread that has a part of a row of a norm


def softmax_plan(x: Tensor, dtype: torch.dtype, out: Optional[Tensor]) -> Plan:
    """Return `run(x, dtype, out)`."""
    target = Destination(x, dtype, out)
    if not x.numel():
        return lambda x, dtype, out: finished(target.new(x, out), out)
    if x.shape[-1] > composite.LONGEST:
        return composite.softmax
    src = Rows.of(x)
    written = target.new(x, out)
    dst = Rows.of(written)
    wide = src.tensor.element_size() > 2 or dst.tensor.element_size() > 2
    form = (1 << 20, 8) if wide else (CLUSTERED, 2)  # as measured
    whole = whole_accesses(src, dst)
    read = whole or (src, dst)
    anew = is_packed(read[0])
    tiles, options = tiling_or_cluster(
        *read, least=form[0], fewest=form[1], raises=True, anew=anew, alone=ALONE
    )
    if whole is not None:
        tiles = of_bodies(tiles)
    else:
        # Threads with four rows took up to 1.1 times as long as with two.
        tiles = _short(src, dst) or packed(tiles, src, 2 if anew else None)
    kernel = portable.softmax if whole is None else odd.softmax
    keep = keeps_exponentials(tiles)
    if isinstance(tiles, ClusterTiling):
        kernel = hopper.cluster_softmax
    space = Workspace.of_rows(tiles, src.count)
    sums, arrived = space(x.device)
    launch = prepared(
        kernel,
        (tiles.grid(src.count),),
        (src.tensor, written, sums, arrived, src.count, src.columns, src.stride, dst.stride),
        (src.tensor, written, sums, arrived),
        options=options,
        ODD=whole is not None,
        KEEP=keep,
        ANEW=not keep and anew,
        **tiles.constants(),
    )
    copied = src.copied
    if target.plain and not copied:
        return sequence(1, (target.empty,), [(launch, (0, 1, *space.places(2)))], 1, space.of(x))

    def run(x: Tensor, dtype: Any, out: Optional[Tensor]) -> Tensor:
        result = target.new(x, out)
        launch(x.contiguous() if copied else x, result, *space(x.device))
        return finished(result, out)

    return run


def _short(*rows: Rows) -> Optional[Tiling]:
    """Return the tiling of short rows of a softmax or its gradient by few lanes; None where these would store less than a sector at a time."""
    return of_short_rows(SHORT, *rows) if common_align(*rows) > 1 else None


def softmax_gradient_plan(grad: Tensor, result: Tensor, dtype: torch.dtype) -> Plan:
    """Return `run(grad, result, dtype)`."""
    if not result.numel():
        return lambda grad, result, dtype: torch.empty_like(result, dtype=dtype)
    if result.shape[-1] > composite.LONGEST:
        return composite.softmax_gradient
    gs, ys = Rows.of(grad), Rows.of(result)
    empty = allocator(result.shape, dtype, result.device)
    new = empty()
    dst = Rows.of(new)
    tiles, options = tiling_or_cluster(gs, ys, dst, held=2, least=40_000 * 16)
    tiles = _short(gs, ys, dst) or packed(tiles, ys)
    space = Workspace.of_rows(tiles, ys.count)
    sums, arrived = space(result.device)
    sizes = (ys.count, ys.columns, gs.stride, ys.stride, dst.stride)
    shared = isinstance(tiles, ClusterTiling)
    launch = prepared(
        hopper.cluster_softmax_backward if shared else portable.softmax_backward,
        (tiles.grid(ys.count),),
        (gs.tensor, ys.tensor, new, sums, arrived, *sizes),
        (gs.tensor, ys.tensor, new, sums, arrived),
        options=options,
        **tiles.constants(),
    )

    return reading(
        sequence(2, (empty,), [(launch, (0, 1, 2, *space.places(3)))], 2, space.of(result)), gs, ys
    )


def norm_plan(
    x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], residual: Optional[Tensor], epsilon: float,
    centred: bool, dtype: torch.dtype, keep: bool, out: Optional[Tensor], alone: bool = False,
) -> Plan:  # fmt: skip
    """Return `run(x, weight, bias, residual, ..., out) -> (result, sum, statistics)`, None where nobody asked; see `norm_alone_plan`."""
    if x.shape[-1] > composite.LONGEST:
        of_long = composite.norm(centred, epsilon, keep)
        if alone:
            return lambda x, weight, bias, *rest: of_long(x, weight, bias, None, dtype, False, None)[0]  # fmt: skip
        return of_long
    target = Destination(x, dtype, out)
    src = Rows.of(x)
    more = None if residual is None else Rows.of(residual)
    written = target.new(x, out)
    dst = Rows.of(written)
    vectors = [v for v in (weight, bias) if v is not None]
    vector_rows = [Rows.of(v) for v in vectors]
    all_rows = [src, dst, *vector_rows, *([] if more is None else [more])]
    summed = None if more is None else torch.empty_like(written, dtype=x.dtype)
    if summed is not None and Rows.of(summed).stride != dst.stride:
        target.mine = True  # both results have the same strides
        target.plain = False
        written = target.new(x, out)
        dst, summed = Rows.of(written), torch.empty_like(written, dtype=x.dtype)
    size = (2 if centred else 1) * src.count
    new_statistics = allocator((size,), torch.float32, x.device) if keep else _none
    if not x.numel():

        def nothing(x: Tensor, *rest: Any) -> Any:
            out = rest[-1]
            sums = None if residual is None else torch.empty_like(x)
            return finished(target.new(x, out), out), sums, new_statistics()

        return (lambda x, *rest: torch.empty_like(x)) if alone else nothing
    whole = whole_accesses(src, dst) if residual is None else None
    anew = not centred and is_packed((whole or all_rows)[0])
    if residual is None:
        least = CLUSTERED_NORM if anew else None
        fewest = 4 if anew and 16 * src.columns <= WIDE_NORM else 8
        read_rows = whole or all_rows
        own = OWN_OF_NORM if whole is None else OWN
        if len(vectors) > 1:  # threads have more where only then all programs begin at once
            few, many = tiling_of(*read_rows, own=own), tiling_of(*read_rows)
            own = OWN if begin_at_once(many, src) and not begin_at_once(few, src) else own
        tiles, options = tiling_or_cluster(
            *read_rows, least=least, fewest=fewest, anew=anew, own=own, alone=ALONE_NORM
        )
        tiles = tiles if whole is None else of_bodies(tiles)
    else:  # a second matrix is not kept: one is loaded, added and dropped
        tiles, options = tiling_of(*all_rows), {}
    if whole is None:
        tiles = (None if residual is not None else of_halves(*all_rows)) or packed(tiles, src)
    kernel = portable.norm if whole is None else odd.norm
    if isinstance(tiles, ClusterTiling):
        kernel = hopper.cluster_norm
    soon = whole is None and early(tiles, src, len(vectors))
    if isinstance(tiles, ClusterTiling):
        soon = soon and weight is not None
        options = {"num_ctas": tiles.blocks} if soon else options  # with all registers
    space = Workspace.of_rows(tiles, src.count)
    sums, arrived = space(x.device)
    arguments = (
        src.tensor, weight if weight is None else weight.contiguous(), bias if bias is None else bias.contiguous(),
        written, None if more is None else more.tensor, summed, new_statistics(), sums, arrived, src.count, src.columns,
        src.stride, dst.stride, src.stride if more is None else more.stride, epsilon,
    )  # fmt: skip
    launch = prepared(
        kernel,
        (tiles.grid(src.count),),
        arguments,
        arguments[:9],
        options=options,
        CENTRED=centred,
        ODD=whole is not None,
        SHIFT=shifts(x, weight, bias),
        AHEAD=whole is None and not soon and ahead(tiles, weight, bias, anew),
        EARLY=soon,
        ANEW=anew,
        **tiles.constants(),
    )
    apart = any(not v.is_contiguous() for v in vectors)
    copied = src.copied or apart or (more is not None and more.copied)
    read, read_residual = src.read, as_it_is if more is None else more.read
    if target.plain and residual is None and not copied:
        makers = (target.empty, new_statistics) if keep else (target.empty,)
        kept = 4 if keep else None
        places = (0, 1, 2, 3, None, None, kept, *space.places(3 + len(makers)))
        results = 3 if alone else (3, None, kept)
        return sequence(3, makers, [(launch, places)], results, space.of(x))

    def run(x: Tensor, weight: Any, bias: Any, residual: Any, *rest: Any) -> Any:
        out = rest[-1]
        result = target.new(x, out)
        summed = None if residual is None else torch.empty_like(result, dtype=x.dtype)
        if copied:
            x = read(x)
            weight = weight if weight is None else weight.contiguous()
            bias = bias if bias is None else bias.contiguous()
            residual = read_residual(residual)
        statistics = new_statistics()
        launch(x, weight, bias, result, residual, summed, statistics, *space(x.device))
        return finished(result, out), summed, statistics

    if alone:
        return lambda x, weight, bias, *rest: run(x, weight, bias, None, None)[0]
    return run


def norm_alone_plan(
    x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], epsilon: float, centred: bool
) -> Plan:
    """Return `run(x, weight, bias, ...) -> result`, of the dtype of `x`."""
    return norm_plan(x, weight, bias, None, epsilon, centred, x.dtype, False, None, alone=True)


def reading(plan: Plan, *views: Rows) -> Plan:
    """Return a plan whose first tensors are read as kernels may read them."""
    if not any(view.copied for view in views):
        return plan
    reads = [view.read for view in views]

    def run(*tensors: Any) -> Any:
        first = [read(x) for read, x in zip(reads, tensors)]
        return plan(*first, *tensors[len(first) :])

    return run


def _none() -> None:
    """Return nothing, where statistics are not kept."""
