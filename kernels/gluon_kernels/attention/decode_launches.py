"""The launch of attention of few queries: parts of the keys, and the programs that put them together."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor

from gluon_kernels.attention import portable, warp_decode
from gluon_kernels.attention.masks import LOG2E, Mask
from gluon_kernels.dependent import overlapping_tensors
from gluon_kernels.plans import (
    Counters,
    Launch,
    Scratch,
    allocator,
    current_target,
    multiprocessors,
)

__all__ = [
    "ROWS",
    "WIDTHS",
    "Tiles",
    "folded",
    "forward_plan",
    "plan",
    "takes",
    "tiles_of",
    "tiles_of_warps",
    "warps_take",
]

ROWS = 16  # of a matrix unit: the queries that share a head of keys
WIDTHS = (16, 32, 64, 128, 256)
STAGES = (3, 2)  # steps under way: the more of these, the fewer programs share a processor
GRID = 65535  # programs along the second axis
SPLITS = (
    1,
    2,
    3,
    *(n << i for i in range(5) for n in (4, 5, 6, 7)),
    128,
)  # few, since each is compiled
PROGRAMS = 2  # for each processor, at least, whose shared memory holds the steps under way of both
MOST_PROGRAMS = 4  # those of heads of 64 with eight queries have 104 registers a thread
ALONE = 2 / 3  # of the time that a program takes next to others
JOINING = 1.02  # of the time, with several parts
FILL = 1.0  # tiles that the programs of a processor together take until their first loads are there
STEPS = 2  # of a part, at least
MOST_PARTS = 128
# Times of `warp_decode.py` in that of a step of all programs of a processor: a program alone, its first loads, and parts that are joined.
WARPS_ALONE, WARPS_FILL, WARPS_JOIN = 0.4, 1.0, 1.2
WARPS_PROGRAMS = 2  # of a processor, whose threads have 168 registers for 128 columns
MOST_OF_WARP = 128  # columns, of whose sums a warp has registers
JOINED = 1 << 15  # numbers of parts that one program puts together; of more, a launch of its own


def takes(dtype: torch.dtype) -> bool:
    """Return True if the kernel has products of this dtype, those of float32 by a matrix unit of bfloat16."""
    return dtype != torch.float32 or current_target().has("nvidia.bf16")


def warps_take(q: Tensor, caches: tuple[Tensor, ...]) -> bool:
    """Return True if `warp_decode.py` has such operands: its copies of 16 bytes begin at multiples of these."""
    if (
        q.element_size() != 2
        or q.shape[3] > MOST_OF_WARP
        or not current_target().has("nvidia.mma_v2")
    ):
        return False
    steps = (step for x in caches for step in x.stride()[:3])
    return all(x.data_ptr() % 16 == 0 for x in caches) and all(step % 16 == 0 for step in steps)


class Tiles(NamedTuple):
    """The keys of a step, steps under way, parts of a sequence, and warps of a program."""

    block: int
    stages: int
    splits: int
    warps: int


def tiles_of(programs: int, longest: int, width: int, processors: int) -> Tiles:
    """Return the tiles for so many heads of keys in all sequences; `width` counts numbers of 16 bits."""
    block, most = 64, STAGES[0]
    memory = current_target().limits.shared_memory
    while block > 32 and PROGRAMS * _bytes(block, most, width) > memory:
        block //= 2
    if _bytes(block, most, width) > memory:
        block //= 2
    tiles = max(1, longest // block)
    choices = [
        (_time(programs, parts, tiles, _resident(block, stages, width), processors), parts, stages)
        for stages in STAGES
        for parts in SPLITS
        if parts == 1 or STEPS * parts <= tiles
    ]
    _, splits, stages = min(choices, key=lambda choice: choice[0])
    return Tiles(block, stages, splits, 4)


def tiles_of_warps(programs: int, longest: int, width: int, processors: int) -> Tiles:
    """Return the tiles of `warp_decode.py` for so many heads of keys in all sequences: a program alone on a processor reads nearly as much as several."""
    block, stages = 64 if width >= 64 else 128, STAGES[0]
    memory = current_target().limits.shared_memory
    while stages > 2 and _bytes(block, stages, width) > memory:
        stages -= 1
    resident = WARPS_PROGRAMS if width > 64 else MOST_PROGRAMS
    resident = max(1, min(resident, memory // _bytes(block, stages, width)))
    alone = max(WARPS_ALONE, 1 / resident)
    steps = max(1, -(-longest // block))

    def spent(parts: int) -> float:
        rounds = programs * parts / (resident * processors)
        whole = int(rounds)
        last = rounds - whole
        share = -(-steps // parts) + WARPS_FILL
        even = whole + (max(alone, last) if last > 1e-9 else 0.0)
        return even * share + (WARPS_JOIN if parts > 1 else 0.0)

    parts = min(range(1, min(MOST_PARTS, max(1, steps // STEPS)) + 1), key=spent)
    return Tiles(block, stages, parts, 4)


def _resident(block: int, stages: int, width: int) -> int:
    """Return how many programs share a processor, by their shared memory and their registers."""
    of_memory = current_target().limits.shared_memory // _bytes(block, stages, width)
    of_registers = 512 // min(36 + width, 255)  # 65536 of a processor, of 128 threads
    return max(1, min(MOST_PROGRAMS, of_memory, of_registers))


def _time(programs: int, parts: int, tiles: int, resident: int, processors: int) -> float:
    """Return the time for so many heads in so many parts, in that of an even share on all processors.

    A program alone on a processor ends earlier than several that share one, but not as much as they are more.
    """
    rounds = programs * parts / (resident * processors)
    whole = int(rounds)
    last = rounds - whole
    spent = whole + (ALONE + 2 * (1 - ALONE) * max(last - 0.5, 0) if last > 1e-9 else 0.0)
    share = tiles / parts
    joining = JOINING if parts > 1 else 1.0
    return joining * spent / rounds * (math.ceil(share) + FILL / resident) / share


def _bytes(block: int, stages: int, width: int) -> int:
    """Return the shared memory of the steps under way, and of sums."""
    return 4 * stages * block * width + 4096


def folded(x: Optional[Tensor], shared: int) -> Optional[Tensor]:
    """Return [batch, heads, length, width] with the rows of the heads that share keys as rows of one head; None if that is no view."""
    if x is None:
        return None
    length, step = x.shape[2], x.stride(2)
    if length > 1 and x.stride(1) != length * step:
        return None
    if length == 1:
        step = x.stride(1)
    shape = (x.shape[0], x.shape[1] // shared, shared * length, x.shape[3])
    return x.as_strided(shape, (x.stride(0), shared * length * step, step, x.stride(3)))


def plan(
    q: Tensor, caches: tuple[Tensor, Tensor], table: Optional[Tensor], lengths: Optional[Tensor], out: Tensor,
    totals: Optional[Tensor], sinks: Optional[Tensor], tokens: int, mask: Mask, scale: float,
) -> Callable[..., None]:  # fmt: skip
    """Return `run(q, k, v, table, lengths, out, totals, sinks)`.

    Args:
        q, out: [sequences, heads of keys, rows, width], with contiguous columns.
        caches: contiguous [pages, tokens of a page, heads of keys, width] with a table, else [sequences, length, heads of keys, width].
        table, lengths: of pages; None for sequences of one length.
        totals: contiguous float32 [sequences, heads of keys, rows], or None.
        sinks: contiguous [heads of queries], or None.
        tokens: rows of a head of queries.
        mask: its bound on the left is that of the last key.
    """
    if q.shape[0] > GRID:
        return _plan_of_slices(q, caches, table, lengths, out, totals, sinks, tokens, mask, scale)
    (sequences, heads, rows, width), device = q.shape, q.device
    page = 0 if table is None else caches[0].shape[1]
    longest = caches[0].shape[1] if table is None else table.shape[1] * page
    window = None if mask.left is None else mask.left + 1
    seen = longest if window is None else min(longest, window)
    halves = width * q.element_size() // 2
    groups, processors = sequences * heads, multiprocessors(q)
    by_warps = warps_take(q, caches)
    choose = tiles_of_warps if by_warps else tiles_of
    tiles = choose(groups, seen, halves, processors)
    shared, numbers = tiles.splits > 1, rows * tiles.splits * width
    joined = shared and numbers <= JOINED
    counters = Counters(groups)
    new_parts = Scratch(groups * rows * tiles.splits * (width + 1), device)

    def workspace() -> tuple[Optional[Tensor], Optional[Tensor]]:
        return new_parts() if shared else None, counters(device) if joined else None

    # The axes of contiguous pages that have one element may have any stride.
    of_caches = ((0, heads * width, width),) * 2 if page else tuple(x.stride()[:3] for x in caches)
    strides = (q.stride()[:3], out.stride()[:3], *of_caches)
    work = workspace()
    join = None
    if shared and not joined:
        join = _join_launch(work[0], out, totals, sinks, tokens, tiles.splits)
    ends = (totals, sinks) if join is None else (None, None)
    options: dict[str, Any] = {}
    if current_target().has("nvidia.tma"):
        # Programs that begin early take places next to those that run; where keys are many, some processors have more of them than others.
        options = overlapping_tensors(q, *caches, out)
    tensors = (q, *caches, table, lengths, out, *work, *ends)
    sizes = (heads, longest, 0 if table is None else table.stride(0), strides, scale * LOG2E, window, mask.cap or 1.0)  # fmt: skip
    constants = (rows, tokens, width, page, tiles.block, tiles.stages)
    if by_warps:
        kernel: Any = warp_decode.attention_of_warps
        alike = of_caches[0][1] == of_caches[1][1]
        most = 1 << (tiles.splits - 1).bit_length()
        sizes = (*sizes, tiles.splits)
        constants = (*constants, most, bool(mask.cap), joined, alike, tiles.warps)
    else:
        kernel = portable.paged_attention
        constants = (*constants, tiles.splits, bool(mask.cap), joined)
    launch = Launch(
        kernel,
        (heads, sequences, tiles.splits),
        (*tensors, *sizes, *constants),
        tensors,
        num_warps=tiles.warps,
        **options,
    )

    def run(
        q: Tensor, k: Tensor, v: Tensor, table: Optional[Tensor], lengths: Optional[Tensor], out: Tensor,
        totals: Optional[Tensor], sinks: Optional[Tensor],
    ) -> None:  # fmt: skip
        parts, arrived = workspace()
        if join is None:
            launch(q, k, v, table, lengths, out, parts, arrived, totals, sinks)
        else:
            launch(q, k, v, table, lengths, out, parts, arrived, None, None)
            join(parts, out, totals, sinks)

    return run


def _plan_of_slices(
    q: Tensor, caches: tuple[Tensor, Tensor], table: Optional[Tensor], lengths: Optional[Tensor], out: Tensor,
    totals: Optional[Tensor], sinks: Optional[Tensor], tokens: int, mask: Mask, scale: float,
) -> Callable[..., None]:  # fmt: skip
    """Return the plan of more sequences than the second axis of a grid has programs: launches of as many as it has, from multiples of 16 bytes on."""
    size = GRID // 16 * 16
    places = [slice(first, first + size) for first in range(0, q.shape[0], size)]

    def sliced(place: slice, *tensors: Optional[Tensor]) -> list[Any]:
        return [None if x is None else x[place] for x in tensors]

    def of_caches(place: slice, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return (k[place], v[place]) if table is None else (k, v)

    plans = []
    for place in places:
        queries, pages, known, results, sums = sliced(place, q, table, lengths, out, totals)
        others = of_caches(place, *caches)
        plans.append(plan(queries, others, pages, known, results, sums, sinks, tokens, mask, scale))

    def run(
        q: Tensor, k: Tensor, v: Tensor, table: Optional[Tensor], lengths: Optional[Tensor], out: Tensor,
        totals: Optional[Tensor], sinks: Optional[Tensor],
    ) -> None:  # fmt: skip
        for place, launch in zip(places, plans):
            queries, pages, known, results, sums = sliced(place, q, table, lengths, out, totals)
            launch(queries, *of_caches(place, k, v), pages, known, results, sums, sinks)

    return run


def _join_launch(
    parts: Optional[Tensor], out: Tensor, totals: Optional[Tensor], sinks: Optional[Tensor], tokens: int, splits: int
) -> Launch:  # fmt: skip
    """Return `launch(parts, out, totals, sinks)`, which puts the parts of each row together."""
    sequences, heads, rows, width = out.shape
    numbers = splits * width
    return Launch(
        portable.join,
        (sequences * heads, rows),
        (parts, None, out, totals, sinks, out.stride()[:3], heads, tokens, width, width, splits, 1 << (splits - 1).bit_length()),
        (parts, out, totals, sinks),
        num_warps=1 if numbers <= 2048 else 4 if numbers <= 8192 else 8,
    )  # fmt: skip


def forward_plan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Optional[Tensor],
    scale: float,
    keep: bool,
    out: Optional[Tensor],
) -> Optional[Callable[..., Any]]:
    """Return `run(q, k, v, sinks, out) -> (result, logarithms of sums)` for [batch, heads, length, width] without a mask; None for more queries than
    a matrix unit has rows, or operands that are not read in place."""
    batch, heads, length, width = q.shape
    shared = heads // k.shape[1]
    if shared * length > ROWS or width not in WIDTHS or v.shape[3] != width:
        return None
    if any(x.stride(3) != 1 for x in (q, k, v)) or not all(_by_vectors(x) for x in (k, v)):
        return None
    empty = allocator((batch, heads, length, width), q.dtype, q.device)
    empty_totals = allocator((batch, heads, length), torch.float32, q.device)
    usable = out is not None and out.stride(3) == 1 and folded(out, shared) is not None
    rows = [folded(x, shared) for x in (q, out if usable else empty())]
    if rows[0] is None or rows[1] is None:
        return None
    caches = k.transpose(1, 2), v.transpose(1, 2)
    totals = empty_totals() if keep else None
    launch = plan(
        rows[0], caches, None, None, rows[1], totals, sinks, length, Mask(None, None, 0.0), scale
    )

    def run(q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], out: Optional[Tensor]) -> Any:
        result = out if usable and out is not None else empty()
        totals = empty_totals() if keep else None
        launch(q, k, v, None, None, result, totals, sinks)
        if out is not None and result is not out:
            result = out.copy_(result)
        return result, totals

    return run


def _by_vectors(x: Tensor) -> bool:
    """Return True if all rows begin at multiples of 16 bytes."""
    return x.data_ptr() % 16 == 0 and all(s * x.element_size() % 16 == 0 for s in x.stride()[:-1])
