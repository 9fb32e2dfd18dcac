"""The plans of gradients of norms: rows, then the sums of columns for weights and biases."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from gluon_kernels.norm import (
    composite,
    few_gradients,
    gradients,
    odd_gradients,
)
from gluon_kernels.norm.launches import (
    Places,
    Plan,
    Workspace,
    prepared,
    reading,
)
from gluon_kernels.norm.rows import (
    Tiling,
    column_tiling,
    stacked,
    tiling,
    walking_tiling,
)
from gluon_kernels.norm.tilings import (
    of_bodies,
    shifts,
    tiling_of,
    whole_accesses,
)
from gluon_kernels.norm.views import Rows, common_align
from gluon_kernels.plans import (
    Launch,
    allocator,
    current_target,
    multiprocessors,
    registers,
    sequence,
)

__all__ = ["norm_gradient_plan"]


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
        wanted = (to_weight is not None) + (to_bias is not None)
        once = wanted > 0 and columns <= MOST_ADDED
        # No fewer programs of a group than groups, and the same number for all that a device runs.
        group = math.isqrt(max(programs, 2 * multiprocessors(x)) - 1) + 1
        summed = programs + -(-programs // group)
        space = Workspace(once * wanted * summed * columns, once * (1 + summed - programs))
        totals = _Totals(0 if once else programs, columns, device, to_weight, to_bias)
        arguments = (gs.tensor, src.tensor, weight, statistics, new, *totals.parts(), *space(device))  # fmt: skip
        launch = prepared(
            kernel,
            (programs,),
            (*arguments, rows, columns, *strides),
            arguments,
            options=registers(128),  # else 8 warps on a multiprocessor
            CENTRED=centred,
            SHIFT=weight is not None and shifts(x, weight),
            GROUP=group,
            NEAR=math.gcd(columns, 4),
            **tiles.constants(),
        )

        def steps(parts: Places, memory: int) -> Any:
            return [(launch, (*range(5), *parts, *space.places(memory)))]

        return reading(totals.after(empty, steps, space.of(x)), gs, src)
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


MOST_ADDED = 1024  # columns up to which the last programs of a launch add up sums in no more time than a second launch


class _Totals:
    """The sums over rows of the gradients of weight and bias: a part for each program, and the launch that adds them up.

    With 0 programs the launch before stores the sums themselves.
    """

    def __init__(
        self, programs: int, columns: int, device: torch.device, to_weight: Optional[torch.dtype],
        to_bias: Optional[torch.dtype],
    ):  # fmt: skip
        kinds = (to_weight, to_bias)
        self.wanted = to_weight is not None or to_bias is not None
        self._new = [None if kind is None else allocator((columns,), kind, device) for kind in kinds]  # fmt: skip
        self._parts, self._launch = self._new, None
        if self.wanted and programs:
            part = allocator((programs * columns,), torch.float32, device)
            self._parts = [None if kind is None else part for kind in kinds]
            width, rows = 32, min(128, max(32, 1 << (programs - 1).bit_length()))
            tensors = (*self.parts(), *_made(self._new))
            self._launch = Launch(
                gradients.add_parts,
                (-(-columns // width),),
                (*tensors, programs, columns, rows, width),
                tensors,
                num_warps=8 if rows > 32 else 4,  # 16 elements of a thread arrive at once
            )

    def parts(self) -> list[Optional[Tensor]]:
        """Return tensors for the parts of both sums, or for the sums themselves."""
        return _made(self._parts)

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

        def placed(news: list[Any]) -> list[Optional[int]]:
            first = 4 + len(makers)
            makers.extend(new for new in news if new is not None)
            places = iter(range(first, 6 + first))
            return [None if new is None else next(places) for new in news]

        results = placed(self._new)
        parts = results if self._launch is None else placed(self._parts)
        steps = [*launches(parts, 4 + len(makers))]
        if self._launch is not None:
            steps.append((self._launch, (*parts, *results)))
        return sequence(4, makers, steps, (4, *results), memory)


def _made(news: list[Any]) -> list[Optional[Tensor]]:
    return [None if new is None else new() for new in news]
