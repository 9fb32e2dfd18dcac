"""The plans of gradients of attention over packed sequences on Hopper: descriptors, tiles and prepared launches for each key."""

from __future__ import annotations

from itertools import repeat
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gluon_core import language as gl
from gluon_kernels.attention import (
    hopper_varlen_backward,
    hopper_varlen_repeatable,
    hopper_wide_backward,
)
from gluon_kernels.attention import varlen_sums as sums
from gluon_kernels.attention.launches import (
    COLUMNS,
    OVERLAPPED,
    columns_of,
    descriptor_of,
    join_launch,
    parts_of,
    readable,
    rows_of_sums,
)
from gluon_kernels.attention.masks import Mask
from gluon_kernels.attention.order import GRADIENT_CACHE, GROUP, JOIN, MANY
from gluon_kernels.attention.varlen_launches import blocks_of, bound_of, lists_of, most_in_launch
from gluon_kernels.dependent import overlapping_tensors
from gluon_kernels.plans import Launch, allocator, multiprocessors, sequence

__all__ = ["Batches", "backward_plan", "differentiates"]

Plan = Callable[..., Any]
SLOWED = 1.2  # the time of a step of heads of 64 without a mask in a loop over several heads, over that in one over a single head
BEGIN = 1.0  # of a program of gradients, in steps
LEFT = 0.25  # of an average program, for which processors wait at the end
ADDED = 24e3  # rows of keys whose gradients all programs store and load again in the time of a step
WIDE_ADDED = 12e3  # the same of heads of more than 128
SURE = 1.1  # the time of heads in one part over that in several, from which on these pay
QUERY = 1.5  # of a step of 64 keys for 128 queries, in those of 64 queries for 64 keys


def differentiates(depth: int, width: int) -> bool:
    """Return True if the kernels for Hopper have gradients of heads of these widths."""
    return max(depth, width) <= 256


def step_of(wide: int) -> int:
    """Return the queries of a step of the gradients."""
    return max(128 * 64 // wide, 64)


def _parts_of_heads(
    tokens: tuple[int, int], count: int, heads: tuple[int, int], wide: int, mask: Mask, processors: int
) -> int:  # fmt: skip
    """Return how many programs share the heads of queries of a head of keys, for gradients: more than one where that fills processors, or where a loop of a
    single head saves more than sums of more gradients take.

    Args:
        tokens: queries and keys of all sequences.
        count: of sequences, whose lengths are taken to be spread evenly up to twice the mean.
        heads: of queries and of keys.
    """
    step, shared = step_of(wide), heads[0] // heads[1]
    length, spread = tokens[0] / max(count, 1), count > 1
    tiles = tokens[1] / 128 + count / 2
    seen, most = length * (4 / 3 if spread else 1), length * (2 if spread else 1)
    loop = SLOWED if wide == 64 else 1.0
    if mask.left is not None or mask.right is not None:
        seen, loop = seen / 2, 1.0
        if mask.left is not None and mask.right is not None:
            bound = max(mask.left + mask.right, 0) + 128
            seen, most = min(seen, bound), min(most, bound)
    times = {}
    for parts in (n for n in range(1, shared + 1) if shared % n == 0):
        each, programs = shared // parts, tiles * heads[1] * parts
        slowed = each * (loop if each > 1 else 1.0) / step
        spent = (seen * slowed + BEGIN) * (programs / processors + LEFT)
        spent = max(spent, most * slowed + BEGIN)
        if parts > 1:
            spent += JOIN + 128 * programs / ADDED
        times[parts] = spent
    return min(times, key=lambda parts: times[parts])


def _parts_of_wide_heads(
    tokens: tuple[int, int], count: int, heads: tuple[int, int], even: bool, mask: Mask, processors: int
) -> int:  # fmt: skip
    """Return what `_parts_of_heads` does, for heads of more than 128, whose gradients of queries are computed next to those of keys.

    Args:
        even: True if the lengths of all sequences are equal.
    """
    shared = heads[0] // heads[1]
    half = 0.0 if even else count / 2
    tiles, others = (tokens[1] / 64 + half) * heads[1], (tokens[0] / 128 + half) * heads[0]
    steps = [n / max(count, 1) / 64 * (1.0 if even else 4 / 3) for n in tokens]
    most = steps[0] * (1.0 if even else 1.5)
    if mask.left is not None or mask.right is not None:
        steps = [n / 2 for n in steps]
        if mask.left is not None and mask.right is not None:
            bound = max(mask.left + mask.right, 0) / 64 + 1
            steps, most = [min(n, bound) for n in steps], min(most, bound)
    times = {}
    for parts in (n for n in range(1, shared + 1) if shared % n == 0):
        each = shared // parts
        program = each * steps[0] + BEGIN
        work = tiles * parts * program + others * (steps[1] * QUERY + BEGIN)
        spent = max(work / processors + LEFT * program, each * most + BEGIN)
        if parts > 1:
            spent += JOIN + 64 * tiles * parts / WIDE_ADDED
        times[parts] = spent
    # Sums of parts take a launch: only where that is far from the time saved.
    return min(times, key=lambda parts: times[parts] / (1.0 if parts > 1 else SURE))


class Tensors(NamedTuple):
    """The tensors of a call of the gradients; `sums` is None where no kernel adds to the gradient of queries, `counter` where programs take no tiles in turn."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    out: Tensor
    logsums: Tensor
    to_q: Tensor
    to_k: Tensor
    to_v: Tensor
    statistics: Tensor
    sums: Optional[Tensor]
    counter: Optional[Tensor]
    of_queries: Tensor
    of_keys: Tensor


class Settings(NamedTuple):
    """The rest of a call of the gradients.

    Args:
        rows: of the statistics of a head.
        wide: columns of the blocks of queries.
        parts: how many programs share the heads of queries that have a head of keys.
        lengths: of queries and of keys in batches, whose results, logarithms and gradients are [batch, heads, length, ...]; 0 for packed ones.
        apart: True if operands are [length, heads of all sequences, width], each head in a row.
    """

    mask: Mask
    scale: float
    rows: int
    wide: int
    parts: int
    lengths: tuple[int, int]
    apart: bool


class Batches(NamedTuple):
    """Batches whose gradients are those of packed sequences.

    Args:
        view: `view(grad, q, k, v, out, logsums)` returns the operands.
        in_place: True if those have the addresses of the tensors.
        shapes: of the gradients of `q`, `k` and `v`.
    """

    view: Callable[..., Sequence[Tensor]]
    in_place: bool
    shapes: Sequence[torch.Size]


class Step(NamedTuple):
    """A prepared launch, and which of a call's tensors it takes, as places in `Tensors`."""

    launch: Plan
    places: tuple[int, ...]

    def __call__(self, tensors: Tensors) -> None:
        self.launch(*[tensors[place] for place in self.places])


def _sizes(x: Tensor, count: int, apart: bool) -> tuple[int, int]:
    """Return the tokens and the heads of an operand."""
    return (x.shape[0] * count, x.shape[1] // count) if apart else (x.shape[0], x.shape[1])


def backward_plan(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, of_queries: Tensor,
    of_keys: Tensor, mask: Mask, scale: float, repeatable: bool, lengths: tuple[int, int] = (0, 0),
    apart: bool = False, batches: Optional[Batches] = None,
) -> Plan:  # fmt: skip
    """Return `run(grad, q, k, v, out, logsums, of_queries, of_keys) -> (gradients of q, k and v)`.

    With `lengths` of queries and keys, heads of more than 128 are those of a batch: `out`, `logsums` and the gradients are [batch, heads, length, ...];
    and `apart`, operands are [length, heads of all sequences, width], each head in a row.

    With `batches`, the operands are views of a batch, and `run(grad, q, k, v, out, logsums)` takes those tensors, for the lists given here.
    """
    depth, width = q.shape[2], v.shape[2]
    wide = 256 if max(depth, width) > 128 else blocks_of(depth, width)[0]
    exact = columns_of(depth) == depth and columns_of(width) == width
    device, count = q.device, of_queries.shape[0] - 1
    tokens, heads = _sizes(q, count, apart)
    # The kernels of wider heads have equal bits in any case.
    repeatable = repeatable and wide <= 128
    adds = not repeatable and wide <= 128
    shapes = [x.shape[:2] for x in (q, k, v)]
    if lengths[0]:
        shapes = [
            torch.Size((count, _sizes(x, count, apart)[1], n))
            for x, n in zip((q, k, v), (*lengths, lengths[1]))
        ]
    (keys, shared_heads), processors = _sizes(k, count, apart), multiprocessors(q)
    sizes_of = (tokens, keys), count, (heads, shared_heads)
    if adds:
        parts = _parts_of_heads(*sizes_of, wide, mask, processors)
    elif wide > 128:
        parts = _parts_of_wide_heads(*sizes_of, lengths[0] > 0, mask, processors)
    else:
        parts = 1
    of_parts = [torch.Size((*size[:1], size[1] * parts, *size[2:])) for size in shapes[1:]]
    columns = [columns_of(n) for n in (depth, depth, width)]
    new = [
        allocator((*size, n), q.dtype, device) for size, n in zip((shapes[0], *of_parts), columns)
    ]
    rows = sums.rows_of(tokens, most_in_launch(count), 64 if repeatable else step_of(wide))
    new_statistics = allocator((2 * heads * rows,), torch.float32, device)
    new_sums = allocator((heads * rows * wide // 256, 256), torch.float32, device)
    new_counter = allocator((1,), torch.int32, device)
    make = _repeatable_steps if repeatable else _atomic_steps if adds else _wide_steps

    def dense(x: Tensor) -> Tensor:
        more = -x.shape[2] % COLUMNS
        return readable((F.pad(x, (0, more)) if more else x).contiguous())

    def calls(
        grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, of_queries: Tensor, of_keys: Tensor,
    ) -> list[Tensors]:  # fmt: skip
        """Return the tensors of the launches, those of later sequences first.

        The sums of a slice cover the tokens before it, too: those of earlier slices are stored later.
        """
        result = out if lengths[0] else dense(out)
        of_results = readable(grad) if apart else dense(grad)
        operands = readable(q), readable(k), readable(v), of_results, result, logsums
        workspace = (
            new_statistics(), new_sums() if adds else None, None if repeatable else new_counter(),
        )  # fmt: skip
        shared = (*operands, *(f() for f in new), *workspace)
        return [
            Tensors(*shared, *lists) for lists in reversed(lists_of((of_queries, of_keys), count))
        ]

    settings = Settings(mask, scale, rows, wide, parts, lengths, apart)
    lists = of_queries, of_keys
    first, *others = calls(grad, q, k, v, out, logsums, *lists)
    slices = [make(call, settings) for call in (first, *others)]
    joined = [allocator((*size, n), q.dtype, device) for size, n in zip(shapes[1:], columns[1:])]
    join = None
    if parts > 1:
        sums_of = first.to_k, first.to_v, *(f() for f in joined)
        join = _join_launch(sums_of, shared_heads, parts, lengths[1] > 0)
    in_place = all(x is one for x, one in zip(first, (q, k, v, grad, out, logsums)))
    if exact and in_place and not others and (batches is None or batches.in_place):
        workspace = new_statistics, new_sums if adds else None, None if repeatable else new_counter
        if batches is not None:
            results = [allocator(shape, q.dtype, device) for shape in batches.shapes]
            new, joined = ([results[0], *new[1:]], results[1:]) if parts > 1 else (results, joined)
        makers_of = dict(zip(Tensors._fields[6:], (*new, *workspace)))
        return _sequence(slices[0], makers_of, join, joined, None if batches is None else lists)

    def run(*tensors: Tensor) -> Any:
        called = calls(*(tensors if batches is None else (*batches.view(*tensors), *lists)))
        for steps, call in zip(slices, called):
            for step in steps:
                step(call)
        gradients = called[0].to_q, called[0].to_k, called[0].to_v
        if join is not None:
            to_k, to_v = (f() for f in joined)
            join(*gradients[1:], to_k, to_v)
            gradients = gradients[0], to_k, to_v
        if not exact:
            ends = (depth, depth, width)
            gradients = tuple(x[..., :end].contiguous() for x, end in zip(gradients, ends))
        if batches is None:
            return gradients
        return tuple(x.view(shape) for x, shape in zip(gradients, batches.shapes))

    return run


def _join_launch(tensors: tuple[Tensor, ...], heads: int, parts: int, apart: bool) -> Plan:
    """Return `join(to_k, to_v, *joined)`, which adds up the gradients of parts of so many `heads` of keys; tensors are [tokens, heads, width], or [sequences, heads, length, width] where
    these are `apart`."""
    sizes, count = [], heads
    for x in tensors[:2]:
        rows, width = x.shape[-2 if apart else 0], x.shape[-1]
        if apart:
            count = x.shape[0] * heads
            strides = (parts * rows * width, rows * width, width), (rows * width, width)
        else:
            strides = (parts * width, width, heads * parts * width), (width, heads * width)
        sizes.append((*strides, None, rows, rows, width))
    join: Plan = join_launch(tensors, sizes, count, parts)
    return join


def _sequence(
    steps: Sequence[Step], makers_of: dict[str, Optional[Plan]], join: Optional[Plan], joined: Sequence[Plan], lists: Optional[tuple[Tensor, Tensor]]
) -> Plan:  # fmt: skip
    """Return `run(grad, q, k, v, out, logsums, of_queries, of_keys) -> gradients` without Python between its launches; with `lists`, without the last two arguments.

    Args:
        makers_of: makers of the tensors of a call that are no arguments, by their names.
        join: `join(to_k, to_v, *joined)`, or None.
        joined: makers of the results of `join`.
    """
    names = ["grad", "q", "k", "v", "out", "logsums"]
    names += () if lists is not None else ("of_queries", "of_keys")
    count = len(names)
    names += (name for name, make in makers_of.items() if make is not None)
    makers = [make for make in makers_of.values() if make is not None]
    results = [names.index(name) for name in ("to_q", "to_k", "to_v")]
    last: list[tuple[Plan, Sequence[Optional[int]]]] = []
    if join is not None:
        places = [len(names), len(names) + 1]
        last = [(join, (*results[1:], *places))]
        results[1:] = places
        names += ("joined", "joined")
        makers += joined
    names += ("of_queries", "of_keys") if lists is not None else ()

    def places_of(step: Step) -> list[Optional[int]]:
        fields = [Tensors._fields[place] for place in step.places]
        return [names.index(name) if name in names else None for name in fields]

    launches = [(step.launch, places_of(step)) for step in steps]
    memory = None if lists is None else repeat(lists).__next__
    return sequence(count, makers, [*launches, *last], results, memory)


def _step(
    tensors: Tensors, kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], names: str, **options: Any
) -> Step:  # fmt: skip
    """Return a prepared launch that takes the named ones of a call's tensors."""
    places = tuple(Tensors._fields.index(name) for name in names.split())
    chosen = [tensors[place] for place in places]
    return Step(Launch(kernel, grid, arguments, chosen, num_warps=4, **options), places)


def _overlap(tensors: Tensors) -> dict[str, Any]:
    if tensors.sums is None:
        return overlapping_tensors(*tensors[:6])
    return overlapping_tensors(*tensors[:6], tensors.sums, most=OVERLAPPED)


def _beyond(x: Tensor, length: int) -> tuple[int, int, int]:
    """Return the strides of rows that `varlen_sums.placed` takes, of [batch, heads, length, ...] where the length is not 0."""
    strides = x.stride()
    if not length:
        return 0, strides[0], strides[1]
    return strides[0] - length * strides[2], strides[2], strides[1]


def _tiles(tiles: int, heads: int, bytes_of_head: int, processors: int) -> tuple[int, int, int]:
    """Return the tiles of a head, the heads, and how many of these are walked together: as many as the cache holds where programs have few tiles."""
    together = GROUP
    if tiles * heads <= MANY * processors:
        together = max(GROUP, GRADIENT_CACHE // max(bytes_of_head, 1))
    # Equal numbers: a few last heads would begin with their long tiles when the others end.
    return tiles, heads, -(-heads // -(-heads // together))


def _prepare(tensors: Tensors, settings: Settings, step: int) -> Step:
    grad, wide = tensors.grad, settings.wide
    width, count = min(grad.shape[2], tensors.out.shape[-1]), tensors.of_queries.shape[0] - 1
    heads = _sizes(grad, count, settings.apart)[1]
    of_grad = _beyond(grad, 0)
    if settings.apart:
        of_grad = (heads * of_grad[2] - grad.shape[0] * of_grad[1], *of_grad[1:])
    length, last = settings.lengths[0], parts_of(max(tensors.q.shape[2], tensors.v.shape[2]))[-1]
    strides = _beyond(tensors.out, length), of_grad, _beyond(tensors.logsums, length)
    layout = gl.BlockedLayout([1, 8], [256 // wide, wide // 8], [4, 1], [1, 0])
    return _step(
        tensors,
        sums.prepare,
        (settings.rows // step, heads),
        (
            tensors.out, grad, tensors.logsums, tensors.statistics, tensors.sums, tensors.counter, strides,
            tensors.of_queries, count, width, wide, min(last, 64), bound_of(count), step, layout,
        ),
        "out grad logsums statistics sums counter of_queries",
        **_overlap(tensors),
    )  # fmt: skip


def _atomic_steps(tensors: Tensors, settings: Settings) -> list[Step]:
    """Return the launches of one kernel, which adds to the gradient of queries, and of those around it."""
    q, k, v, grad, _, _, to_q, to_k, to_v, statistics, added, counter, of_queries, of_keys = tensors
    mask, scale, rows, wide, programs = settings[:5]
    assert added is not None
    heads, count = grad.shape[1], of_queries.shape[0] - 1
    step = step_of(wide)
    factors = (scale, *mask.scales(scale))
    parts = parts_of(max(q.shape[2], v.shape[2]))
    window = (mask.left, mask.right)
    each = heads // (k.shape[1] * programs)
    constants = (each, 2, window, bool(mask.cap), bound_of(count), parts, programs)
    processors, of_head = multiprocessors(q), 8 * wide * q.shape[0]
    tiles = _tiles(k.shape[0] // 128 + count, k.shape[1] * programs, of_head, processors)
    main = _step(
        tensors,
        hopper_varlen_backward.varlen_gradients_atomic,
        (min(tiles[0] * tiles[1], processors),),
        (
            descriptor_of(q, step, 1, wide), descriptor_of(k, 128, 1, wide), descriptor_of(v, 128, 1, wide),
            descriptor_of(grad, step, 1, wide), descriptor_of(to_k, 64, 1, parts[-1]), descriptor_of(to_v, 64, 1, parts[-1]),
            to_k, to_v, descriptor_of(statistics, 2 * step), counter, *(descriptor_of(added, n, 256) for n in rows_of_sums(parts)),
            *tiles, rows, of_queries, of_keys, count, *factors, *constants,
        ),
        "q k v grad to_k to_v statistics counter sums of_queries of_keys",
        **_overlap(tensors),
    )  # fmt: skip
    flat = gl.BlockedLayout([4], [32], [4], [0])
    tile = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    finish = _step(
        tensors,
        sums.finish,
        (rows // 64 * (wide // 64), heads),
        (added, to_q, of_queries, count, heads, to_q.shape[2], scale, wide, min(parts[-1], 64), bound_of(count), step, flat, tile),
        "sums to_q of_queries",
        **_overlap(tensors),
    )  # fmt: skip
    return [_prepare(tensors, settings, step), main, finish]


def _halves(x: Tensor) -> tuple[int, int]:
    """Return the columns of both parts of heads of values."""
    return (64, 64) if x.shape[2] <= 128 else _parts_of(x)


def _parts_of(x: Tensor) -> tuple[int, int]:
    """Return the columns of both parts of heads of more than 128."""
    return 128, 64 if x.shape[2] <= 192 else 128


def _wide_steps(tensors: Tensors, settings: Settings) -> list[Step]:
    """Return the launches for heads of more than 128 elements."""
    q, k, v, grad, _, _, to_q, to_k, to_v, statistics, _, counter, of_queries, of_keys = tensors
    mask, scale, rows, wide, parts, lengths, apart = settings
    count = of_queries.shape[0] - 1
    (tokens, heads), (keys, shared_heads) = (_sizes(x, count, apart) for x in (q, k))
    step = step_of(wide)
    factors = (scale, *mask.scales(scale))
    constants = ((mask.left, mask.right), bool(mask.cap), bound_of(count), apart)
    shared = heads // shared_heads
    numbers = (rows, of_queries, of_keys, count, *factors)
    processors = multiprocessors(q)
    tiles = _tiles(keys // 64 + count, shared_heads * parts, 4 * wide * tokens, processors)

    def described(queries: int, keys: int) -> tuple[Any, ...]:
        sizes = (
            (q, queries, _parts_of(q)), (k, keys, _parts_of(k)), (v, keys, _halves(v)),
            (grad, queries, _halves(v)),
        )  # fmt: skip
        return tuple(
            tuple(descriptor_of(x, many, 1, part) for part in parts) for x, many, parts in sizes
        )

    programs = tokens // 128 + count, heads
    # The last round of the queries' programs, if not full, leaves processors to those of keys, which take tiles in turn.
    queries_first = programs[0] * programs[1] > processors
    options = _overlap(tensors), {"launch_pdl": True}  # of the first kernel and the second one
    key_gradients = _step(
        tensors,
        hopper_wide_backward.wide_key_gradients,
        (min(tiles[0] * tiles[1], processors),),
        (
            *described(64, 64), to_k, to_v, descriptor_of(statistics, 2 * step), counter, *tiles, *numbers,
            lengths[1], to_k.shape[-1], to_v.shape[-1], shared // parts, *constants, queries_first, parts,
        ),
        "q k v grad to_k to_v statistics counter of_queries of_keys",
        **options[queries_first],
    )  # fmt: skip
    query_gradients = _step(
        tensors,
        hopper_wide_backward.wide_query_gradients,
        programs,
        (
            *described(128, 64),
            to_q,
            statistics,
            *numbers,
            lengths[0],
            to_q.shape[-1],
            shared,
            *constants,
            not queries_first,
        ),
        "q k v grad to_q statistics of_queries of_keys",
        **options[not queries_first],
    )
    both = (query_gradients, key_gradients) if queries_first else (key_gradients, query_gradients)
    return [_prepare(tensors, settings, step), *both]


def _repeatable_steps(tensors: Tensors, settings: Settings) -> list[Step]:
    """Return the launches of two kernels whose results have equal bits each time."""
    q, k, v, grad, _, _, to_q, to_k, to_v, statistics, _, _, of_queries, of_keys = tensors
    mask, scale, rows, wide, *_ = settings
    heads, count = grad.shape[1], of_queries.shape[0] - 1
    factors = (scale, *mask.scales(scale))
    constants = (heads // k.shape[1], 2, (mask.left, mask.right), bool(mask.cap), bound_of(count))

    def prepared(
        kernel: Any, own: Tensor, outs: tuple[Tensor, ...], known: Any, names: str
    ) -> Step:
        mine, theirs = (64, 128) if own is k else (128, 64)
        descriptors = (
            descriptor_of(q, mine, 1, wide), descriptor_of(k, theirs, 1, wide), descriptor_of(v, theirs, 1, wide),
            descriptor_of(grad, mine, 1, wide), *(descriptor_of(x, 64, 1, wide) for x in outs),
        )  # fmt: skip
        return _step(
            tensors,
            kernel,
            (own.shape[0] // 128 + count, own.shape[1]),
            (*descriptors, *outs, known, rows, of_queries, of_keys, count, *factors, *constants),
            f"q k v grad {names} statistics of_queries of_keys",
        )

    key_gradients = prepared(
        hopper_varlen_repeatable.varlen_key_gradients,
        k,
        (to_k, to_v),
        descriptor_of(statistics, 128),
        "to_k to_v",
    )
    query_gradients = prepared(
        hopper_varlen_repeatable.varlen_query_gradients, q, (to_q,), statistics, "to_q"
    )
    return [_prepare(tensors, settings, 64), key_gradients, query_gradients]
