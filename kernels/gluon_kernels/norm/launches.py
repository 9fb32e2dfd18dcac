"""The plans of kernels over rows: workspaces and prepared launches for each key."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Mapping, Optional, Sequence

import torch
from torch import Tensor

from gluon_kernels.norm import (
    composite,
    few_gradients,
    gradients,
    hopper,
    odd,
    odd_gradients,
    portable,
)
from gluon_kernels.norm.rows import (
    OWN,
    ClusterTiling,
    Tiling,
    column_tiling,
    stacked,
    tiling,
    walking_tiling,
)
from gluon_kernels.norm.tilings import (
    ahead,
    early,
    is_packed,
    keeps_exponentials,
    of_bodies,
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
    current_target,
    multiprocessors,
    registers,
    sequence,
    stream_of_launch,
)

__all__ = [
    "Workspace",
    "norm_alone_plan",
    "norm_gradient_plan",
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
    tiles, options = tiling_or_cluster(*read, least=form[0], fewest=form[1], raises=True, anew=anew)
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
        tiles, options = tiling_or_cluster(
            *read_rows, least=least, fewest=fewest, anew=anew, own=own
        )
        tiles = tiles if whole is None else of_bodies(tiles)
    else:  # a second matrix is not kept: one is loaded, added and dropped
        tiles, options = tiling_of(*all_rows), {}
    tiles = tiles if whole is not None else packed(tiles, src)
    kernel = portable.norm if whole is None else odd.norm
    if isinstance(tiles, ClusterTiling):
        kernel = hopper.cluster_norm
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
        AHEAD=whole is None and ahead(tiles, weight, bias, anew),
        EARLY=whole is None and early(tiles, src),
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


def norm_gradient_plan(
    grad: Tensor, x: Tensor, weight: Optional[Tensor], statistics: Tensor, centred: bool,
    to_weight: Optional[torch.dtype], to_bias: Optional[torch.dtype],
) -> Plan:  # fmt: skip
    """Return `run(...) -> (gradient of x, of weight, of bias)`, those of vectors in a dtype, or None without one."""
    if not x.numel():

        def nothing(grad: Tensor, x: Tensor, *rest: Any) -> Any:
            zeros = [None if kind is None else x.new_zeros(x.shape[-1], dtype=kind) for kind in (to_weight, to_bias)]  # fmt: skip
            return torch.empty_like(x), *zeros

        return nothing
    if x.shape[-1] > composite.LONGEST:
        return composite.norm_gradient
    gs, src = Rows.of(grad), Rows.of(x)
    empty = allocator(x.shape, x.dtype, x.device)
    new = empty()
    dst = Rows.of(new)
    vectors = [] if weight is None else [Rows.of(weight)]
    every = (gs, src, dst, *vectors)
    device = x.device
    rows, columns = src.count, src.columns
    strides = (gs.stride, src.stride, dst.stride)
    bits = max(8 * row.tensor.element_size() for row in every)
    narrow = common_align(*every) * bits < 64  # each element has an address
    kept = columns <= MOST_SUMMED * current_target().warp_size  # sums of columns by each program
    few = rows <= (FEW_NARROW if narrow else FEW) and 2 * x.numel() * bits <= NEARBY
    few = few and (to_weight or to_bias) is not None
    least = multiprocessors(x) if few else 0  # then other programs have columns
    tiles = tiling_of(*every, held=4 if narrow else 2, least=least)
    whole = whole_accesses(gs, src, dst)
    alone = tiles
    if whole is not None:
        alone = of_bodies(tiling_of(*whole, held=3, least=least))
        most = 24 if centred or bits > 16 else 32  # elements of a thread that do not spill
        if alone.parts > 1 or alone.pieces * alone.layout.size_per_thread[1] > most:
            alone, whole = tiles, None
    known = (gs, src, dst, weight, statistics, centred, to_weight, to_bias)
    if alone.parts == 1 and kept:
        tiles = stacked(alone)
        programs = min(tiles.grid(rows), 2 * multiprocessors(x))
        if few:
            return _few_gradient_plan(tiles, programs, *known, odd=whole is not None)
        kernel = gradients.norm_backward
        if whole is not None:  # a program has rows that are `align` apart
            programs = max(1, programs // tiles.align) * tiles.align
            kernel = odd_gradients.norm_backward
        totals = _Totals(programs, columns, device, to_weight, to_bias)
        sums = totals.parts()
        arguments = (gs.tensor, src.tensor, weight, statistics, new, *sums)
        launch = prepared(
            kernel,
            (programs,),
            (*arguments, rows, columns, *strides),
            arguments,
            options=registers(128),  # else 8 warps on a multiprocessor
            CENTRED=centred,
            SHIFT=weight is not None and shifts(x, weight),
            **tiles.constants(),
        )

        return reading(
            totals.after(empty, lambda parts, _: [(launch, (*range(5), *parts))]), gs, src
        )
    if few and not narrow:
        return _few_gradient_plan(tiles, tiles.grid(rows), *known)
    if few:  # of elements that each have an address, programs that share rows take longer than those with columns
        tiles = tiling_of(*every, held=4)
    walking = walking_tiling(
        columns, bits, common_align(*every), current_target().warp_size, multiprocessors(x)
    )
    # Layer norm has twice the sums in registers: two kernels took 7 % less.
    if walking is not None and not centred and to_weight is not None:
        return _walking_gradient_plan(walking, *known)
    space = Workspace.of_rows(tiles, rows)
    arguments = (gs.tensor, src.tensor, weight, statistics, new, *space(device))
    sharing = prepared(
        gradients.norm_backward_long,
        (tiles.grid(rows),),
        (*arguments, rows, columns, *strides),
        arguments,
        CENTRED=centred,
        **tiles.constants(),
    )
    block = tiling(256, 16, common_align(gs, src), current_target().warp_size)
    share = (
        -(-rows // (8 * block.rows)) * block.rows
    )  # whole tiles: none has rows of the next share
    shares = -(-rows // share)
    totals = _Totals(shares, columns, device, to_weight, to_bias)
    sums = totals.parts()
    summed = (gs.tensor, src.tensor, statistics, *sums)
    summing = prepared(
        gradients.column_sums,
        (-(-columns // block.width), shares),
        (*summed, rows, columns, *strides[:2]),
        summed,
        SHARE=share,
        CENTRED=centred,
        **block.constants(),
    )

    def launches(parts: Places, memory: int) -> Any:
        steps = [(sharing, (*range(5), *space.places(memory))), (summing, (0, 1, 3, *parts))]
        return steps if totals.wanted else steps[:1]

    return reading(totals.after(empty, launches, space.of(x)), gs, src)


FEW = 2048  # rows up to which columns are read again: with more, programs of columns take longer than a second launch
FEW_NARROW = 512  # where each element has an address
NEARBY = 8 * 24_000_000  # bits of both matrices up to which the L2 cache has them then


def _few_gradient_plan(
    tiles: Tiling, programs: int, gs: Rows, src: Rows, dst: Rows, weight: Optional[Tensor], statistics: Tensor,
    centred: bool, to_weight: Optional[torch.dtype], to_bias: Optional[torch.dtype], odd: bool = False,
) -> Plan:  # fmt: skip
    """Return the plan of `norm_gradient_plan` by one launch, see `few_gradients`."""
    x, rows, columns = src.tensor, src.count, src.columns
    align = common_align(gs, src)
    bits = max(8 * row.tensor.element_size() for row in (gs, src))
    near = column_tiling(
        columns, bits, align, rows, tiles.num_warps, current_target().warp_size, multiprocessors(x)
    )
    blocks = -(-columns // near.width)
    if odd:  # a program has rows that are `align` apart
        programs = -(-programs // tiles.align) * tiles.align
    kinds = (to_weight, to_bias)
    empty = allocator(dst.tensor.shape, dst.tensor.dtype, x.device)
    vectors = [None if kind is None else allocator((columns,), kind, x.device) for kind in kinds]
    new = [None if vector is None else vector() for vector in vectors]
    space = Workspace.of_rows(tiles, rows)
    tensors = (gs.tensor, x, weight, statistics, dst.tensor, *new, *space(x.device))
    launch = prepared(
        few_gradients.norm_backward,
        (blocks + programs,),
        (*tensors, rows, columns, gs.stride, src.stride, dst.stride, blocks),
        tensors,
        options=registers(128),
        CENTRED=centred,
        ODD=odd,
        SHIFT=odd and weight is not None and shifts(x, weight),
        NEAR=near.align,
        DEEP=near.rows,
        NARROW=near.width,
        columns_layout=near.layout,
        **tiles.constants(),
    )
    makers = [empty, *(vector for vector in vectors if vector is not None)]
    places = iter(range(5, 7))
    results = [None if vector is None else next(places) for vector in vectors]
    steps = [(launch, (*range(5), *results, *space.places(4 + len(makers))))]
    return reading(sequence(4, makers, steps, (4, *results), space.of(x)), gs, src)


def _walking_gradient_plan(
    tiles: Tiling, gs: Rows, src: Rows, dst: Rows, weight: Optional[Tensor], statistics: Tensor, centred: bool,
    to_weight: Optional[torch.dtype], to_bias: Optional[torch.dtype],
) -> Plan:  # fmt: skip
    """Return the plan of `norm_gradient_plan` for rows of several programs that walk over them and keep sums of their columns."""
    x, rows, columns = src.tensor, src.count, src.columns
    empty, device = allocator(dst.tensor.shape, dst.tensor.dtype, x.device), x.device
    steps = -(-rows // tiles.rows)
    groups = max(1, min(steps, 2 * multiprocessors(x) // tiles.parts))
    totals = _Totals(groups, columns, device, to_weight, to_bias)
    space = Workspace(2 * tiles.parts * tiles.rows * steps, 1 + steps)
    tensors = (gs.tensor, x, weight, statistics, dst.tensor, *totals.parts(), *space(device))
    launch = prepared(
        gradients.norm_backward_walk,
        (groups * tiles.parts,),
        (*tensors, rows, columns, gs.stride, src.stride, dst.stride),
        tensors,
        options=registers(128),  # two programs for a multiprocessor
        CENTRED=centred,
        **tiles.constants(),
    )

    def launches(parts: Places, memory: int) -> Any:
        return [(launch, (*range(5), *parts, memory, memory + 1))]

    return reading(totals.after(empty, launches, space.of(x)), gs, src)


MOST_SUMMED = (
    16 * 26
)  # columns for each lane whose sums a program keeps: more than 26 of a thread spill


class _Totals:
    """The sums over rows of the gradients of weight and bias: a part for each program, and the launch that adds them up."""

    def __init__(
        self, programs: int, columns: int, device: torch.device, to_weight: Optional[torch.dtype],
        to_bias: Optional[torch.dtype],
    ):  # fmt: skip
        kinds = (to_weight, to_bias)
        self.wanted = to_weight is not None or to_bias is not None
        part = allocator((programs * columns,), torch.float32, device)
        self._parts = [None if kind is None else part for kind in kinds]
        self._new = [None if kind is None else allocator((columns,), kind, device) for kind in kinds]  # fmt: skip
        if self.wanted:
            width, rows = 32, min(128, max(32, 1 << (programs - 1).bit_length()))
            tensors = (*self.parts(), *self._results())
            self._launch = Launch(
                gradients.add_parts,
                (-(-columns // width),),
                (*tensors, programs, columns, rows, width),
                tensors,
                num_warps=8 if rows > 32 else 4,  # 16 elements of a thread arrive at once
            )

    def parts(self) -> tuple[Optional[Tensor], Optional[Tensor]]:
        first, second = self._parts
        return None if first is None else first(), None if second is None else second()

    def _results(self) -> tuple[Optional[Tensor], Optional[Tensor]]:
        first, second = self._new
        return None if first is None else first(), None if second is None else second()

    def after(
        self, empty: Callable[[], Tensor], launches: Callable[[Places, int], Any],
        memory: Optional[Callable[[], Any]] = None,
    ) -> Plan:  # fmt: skip
        """Return `run(grad, x, weight, statistics, ...) -> (gradient of x, of weight, of bias)`.

        Args:
            empty: makes the gradient of `x`, which has place 4 of a `sequence`.
            launches: `launches(places of the parts, place of the first tensor of memory)`, those that store them.
        """
        makers = [empty]
        placed: list[Optional[int]] = []
        for new in (*self._new, *self._parts):
            placed.append(None if new is None else 4 + len(makers))
            if new is not None:
                makers.append(new)
        results, parts = placed[:2], placed[2:]
        steps = [*launches(parts, 4 + len(makers))]
        if self.wanted:
            steps.append((self._launch, (*parts, *results)))
        return sequence(4, makers, steps, (4, *results), memory)
