"""The plans of attention over whole sequences: descriptors, tiles and prepared launches for each key."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_kernels.attention import hopper, hopper_backward, hopper_repeatable, sums
from gluon_kernels.attention.decode_launches import GRID, folded
from gluon_kernels.attention.order import KEYS, heads_of, keys_of, rows_of, steps_of_part
from gluon_kernels.attention.part_launches import parts_for
from gluon_kernels.dependent import overlapping_tensors
from gluon_kernels.plans import Launch, allocator, multiprocessors, sequence

__all__ = [
    "COLUMNS",
    "COMPUTED",
    "OVERLAPPED",
    "STAGES",
    "backward_plan",
    "columns_of",
    "descriptor_of",
    "forward_plan",
    "forward_sequence",
    "is_readable",
    "join_launch",
    "parts_of",
    "readable",
    "rows_of_sums",
    "width_of",
]

Plan = Callable[..., Any]

LOG2E = math.log2(math.e)
DTYPES = {
    torch.float16: gl.float16,
    torch.bfloat16: gl.bfloat16,
    torch.float32: gl.float32,
    torch.float8_e4m3fn: gl.float8e4nv,
}
STAGES = 2
ORDERED = False  # a ping-pong schedule took as long or 3 % longer on an H200
# By the width of heads: how many of 8 exponentials arithmetic computes. In narrow heads they take as long as products.
COMPUTED = {64: 0, 96: 0, 128: 0}
COLUMNS = 8  # of 16 bits in 16 bytes
OVERLAPPED = 1e8  # bytes of the gradients' launches, up to which they overlap: products, not memory, are their bound


def width_of(width: int) -> int:
    """Return the width that a kernel has for heads of this one."""
    return 64 if width <= 64 else 128


def descriptor_of(x: Tensor, *block: int) -> TensorDescriptor:
    dtype = DTYPES[x.dtype]
    if dtype == gl.float32:
        layout = gl.NVMMASharedLayout(0, 32, rank=len(block))
    else:
        layout = gl.NVMMASharedLayout.get_default_for(list(block), dtype)
    return TensorDescriptor.from_tensor(x, list(block), layout)


def is_readable(x: Tensor) -> bool:
    """Return True if TMA copies the tensor: contiguous columns, strides of 16 bytes. Columns past its last are read as zeros."""
    if x.stride(-1) != 1 or x.data_ptr() % 16:
        return False
    return all(step * x.element_size() % 16 == 0 and step > 0 for step in x.stride()[:-1])


def readable(x: Tensor) -> Tensor:
    """Return a tensor that TMA copies, with columns of zeros where rows are no multiples of 16 bytes."""
    if is_readable(x):
        return x
    more = -x.shape[-1] % COLUMNS
    return F.pad(x, (0, more)) if more else x.clone(memory_format=torch.contiguous_format)


def parts_of(width: int) -> tuple[int, ...]:
    """Return the columns that gradients have in tiles of `width_of(width)`: two parts where one would be padded much."""
    return (64, 32) if 64 < width <= 96 else (width_of(width),)


def rows_of_sums(parts: tuple[int, ...]) -> tuple[int, int]:
    """Return the rows that the products of both groups of warps have in sums: those of 64 columns, or of one part each."""
    first, last = parts if len(parts) == 2 else (64, 64)
    return first // 4, last // 4


def columns_of(width: int) -> int:
    """Return the columns of a result that TMA stores."""
    return -(-width // COLUMNS) * COLUMNS


def _fold(q: Tensor, written: Tensor, shared: int, causal: bool) -> Optional[tuple[Tensor, Tensor]]:
    """Return queries and result with the heads of shared keys as one, where that saves tiles; rows without a mask have no places."""
    length = q.shape[2]
    if causal or shared == 1 or -(-shared * length // 128) >= shared * -(-length // 128):
        return None
    one, other = folded(q, shared), folded(written, shared)
    return None if one is None or other is None else (one, other)


def forward_plan(
    q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], causal: bool, scale: float, keep: bool, out: Optional[Tensor]
) -> Plan:  # fmt: skip
    """Return `run(q, k, v, sinks, out) -> (result, logarithms of sums)`, the last None if `keep` is not set."""
    batch, heads, length, width = q.shape
    of_keys, depth = k.shape[1:3]
    wide, columns = width_of(width), columns_of(width)
    plain = all(is_readable(x) for x in (q, k, v))
    target = None if out is None or not is_readable(out) else out
    exact = columns == width
    dtype, device = q.dtype, q.device
    empty = allocator((batch, heads, length, columns), dtype, device)
    empty_logsums = allocator((batch, heads, length), torch.float32, device)
    processors = multiprocessors(q)
    tensors = [readable(x) for x in (q, k, v)]
    written = empty() if target is None else target
    logsums = empty_logsums() if keep else None
    queries, shared = tensors[0], heads // of_keys
    merged = None if sinks is not None else _fold(queries, written, shared, causal)
    if merged is not None:
        queries, written = merged
        heads, length, shared = of_keys, length * shared, 1
    of_head = 4 * wide * depth // shared  # bytes of keys and values
    rows, order = rows_of(length, depth, batch * heads, wide, causal, processors, of_head)
    count = -(-length // rows) * batch * heads
    parts = None if causal else parts_for(count, depth, rows, wide, processors)
    few = parts is None and not ORDERED
    rounds = count / processors
    keys = keys_of(length, depth, rows, wide, causal, rounds) if few else KEYS
    described = descriptor_of(written, 1, 1, 64, wide)
    new_parts = None if parts is None else parts.memory(device)
    stored = None if new_parts is None else new_parts()
    join = None
    if parts is not None and stored is not None:
        order, join = parts.order, parts.joining(stored, written, logsums, sinks)
    operands = (queries, *tensors[1:])
    descriptors = [descriptor_of(x, 1, 1, n, wide) for x, n in zip(operands, (64, keys, keys))]
    splits = 1 if parts is None else parts.splits
    sizes = (batch * heads, length, depth, heads, order, splits, scale * LOG2E)
    ordered = ORDERED and rows == 128
    constants = (shared, rows, keys, STAGES, causal, ordered, COMPUTED[wide])
    launch = Launch(
        hopper.attention_hopper,
        (min(count if parts is None else parts.programs, processors),),
        (*descriptors, described, logsums, stored, sinks, *sizes, *constants),
        (*operands, written, logsums, stored, sinks),
        num_warps=4,
        **overlapping_tensors(*operands, written),
    )

    if plain and exact and out is None:
        return forward_sequence(launch, join, empty, empty_logsums if keep else None, new_parts)

    def run(q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], out: Optional[Tensor]) -> Any:
        result = empty() if target is None or out is None else out
        logsums = empty_logsums() if keep else None
        if not plain:
            q, k, v = readable(q), readable(k), readable(v)
        stored = None if new_parts is None else new_parts()
        launch(q, k, v, result, logsums, stored, sinks)
        if join is not None:
            join(stored, result, logsums, sinks)
        if out is not None and result is not out:
            result = out.copy_(result[..., :width])
        elif not exact and out is None:
            result = result[..., :width].contiguous()
        return result, logsums

    return run


def forward_sequence(
    launch: Plan, join: Optional[Plan], empty: Plan, empty_logsums: Optional[Plan], new_parts: Optional[Plan]
) -> Plan:  # fmt: skip
    """Return `run(q, k, v, sinks, ...) -> (result, logarithms of sums)` of operands that kernels read in place, without Python between its launches.

    Args:
        launch: `launch(q, k, v, result, logarithms of sums, parts, sinks)`.
        join: `join(parts, result, logarithms of sums, sinks)`, or None.
        empty, empty_logsums, new_parts: make the result, the logarithms, and memory for parts of the keys; the last two may be None.
    """
    makers, places = [empty], []
    for make in (empty_logsums, new_parts):
        places.append(None if make is None else 4 + len(makers))
        makers += [] if make is None else [make]
    logsums, parts = places
    steps: list[tuple[Plan, Sequence[Optional[int]]]] = [(launch, (0, 1, 2, 4, logsums, parts, 3))]
    if join is not None:
        steps.append((join, (parts, 4, logsums, 3)))
    return sequence(4, makers, steps, (4, logsums))


def backward_plan(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, causal: bool, scale: float,
    repeatable: bool,
) -> Plan:  # fmt: skip
    """Return `run(grad, q, k, v, out, logsums) -> (gradients of q, k and v)`."""
    if q.shape[0] > 1 and q.shape[0] * q.shape[1] > GRID:
        return _plan_of_slices((grad, q, k, v, out, logsums), (causal, scale, repeatable))
    if repeatable:
        return _repeatable_plan(q, k, causal, scale)
    batch, heads, length, width = q.shape
    of_keys, depth = k.shape[1:3]
    shared = heads // of_keys
    seen = min(depth, length) if causal else depth  # later keys are seen by no query
    wide, columns = width_of(width), columns_of(width)
    exact = columns == width
    dtype, device = q.dtype, q.device
    tiles = _steps_of_tiles(length, seen, wide, causal)
    many, size, most = _heads_of_program(
        tiles, length, wide, batch * of_keys, shared, causal, multiprocessors(q)
    )
    pieces = None if most == 0 else Pieces.of(tiles, most)
    parts = 1 if pieces is None else pieces.parts
    alike = many == shared and seen == depth and exact and parts == 1
    new_q = allocator((batch, heads, length, columns), dtype, device)
    groups = batch * heads // many
    new_k = allocator((batch, groups // batch * parts, seen, columns), dtype, device)
    joined = allocator((batch, of_keys, depth, width), dtype, device)
    kept = sums.kept((batch * heads, length, wide))
    new_statistics = allocator(kept["statistics"], torch.float32, device)
    new_sums = allocator(kept["sums"], torch.float32, device)
    new_counter = allocator((1,), torch.int32, device)
    known = [readable(x) for x in (q, k, v, grad, out)]
    keys, values = (new_k().view(groups * parts, seen, columns) for _ in "kv")
    launches = _atomic_launches(
        known,
        logsums,
        (new_q(), keys, values),
        (new_statistics(), new_sums(), new_counter()),
        causal,
        scale,
        size,
        pieces,
        None if alike else (joined(), joined()),
    )
    prepare, main, finish = launches
    plain = all(is_readable(x) for x in (q, k, v, grad, out))
    if plain and exact:
        makers = (new_q, new_k, new_k, new_statistics, new_sums, new_counter)
        steps: list[tuple[Plan, Sequence[Optional[int]]]]
        steps = [(prepare, (4, 0, 5, 9, 10, 11)), (main, (1, 2, 3, 0, 9, 11, 7, 8, 10))]
        if alike:
            return sequence(6, makers, [*steps, (finish, (10, 6))], (6, 7, 8))
        steps.append((finish, (10, 6, 7, 8, 12, 13)))
        return sequence(6, (*makers, joined, joined), steps, (6, 12, 13))

    def run(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor) -> Any:
        if not plain:
            q, k, v = readable(q), readable(k), readable(v)
            grad, out = readable(grad), readable(out)
        to_q, to_k, to_v = new_q(), new_k(), new_k()
        statistics, added, counter = new_statistics(), new_sums(), new_counter()
        prepare(out, grad, logsums, statistics, added, counter)
        main(q, k, v, grad, statistics, counter, to_k, to_v, added)
        if alike:
            finish(added, to_q)
            return to_q, to_k, to_v
        results = joined(), joined()
        finish(added, to_q, to_k, to_v, *results)
        if not exact:
            to_q = to_q[..., :width].contiguous()
        return to_q, *results

    return run


def _plan_of_slices(tensors: Sequence[Tensor], settings: tuple[bool, float, bool]) -> Plan:
    """Return the plan of gradients of more heads in all batches than the second axis of a grid has programs: launches of some batches each."""
    batch, heads = tensors[1].shape[:2]
    size = max(GRID // heads, 1)
    places = [slice(first, first + size) for first in range(0, batch, size)]

    def sliced(tensors: Sequence[Tensor], place: slice) -> tuple[Tensor, ...]:
        return tuple(x[place] for x in tensors)

    plans: list[Plan] = []
    for place in places:
        grad, q, k, v, out, logsums = sliced(tensors, place)
        plans.append(backward_plan(grad, q, k, v, out, logsums, *settings))

    def run(*tensors: Tensor) -> Any:
        gradients = (plan(*sliced(tensors, place)) for plan, place in zip(plans, places))
        return tuple(torch.cat(parts) for parts in zip(*gradients))

    return run


class Pieces(NamedTuple):
    """The parts of the steps of tiles of keys: all tiles' together, those of a tile at most, the steps of the first tile, how many less each one behind has,
    and those of a part at most."""

    count: int
    parts: int
    first: int
    fewer: int
    most: int

    @classmethod
    def of(cls, tiles: tuple[int, ...], most: int) -> Pieces:
        count = sum(-(-steps // most) for steps in tiles)
        fewer = tiles[0] - tiles[1] if len(tiles) > 1 else 0
        return cls(count, -(-tiles[0] // most), tiles[0], fewer, most)


def _steps_of_tiles(length: int, seen: int, wide: int, causal: bool) -> tuple[int, ...]:
    """Return the steps of each tile of keys, for a head of queries."""
    step = 128 * 64 // wide
    steps = -(-length // step)
    return tuple(steps - i * 128 // step if causal else steps for i in range(-(-seen // 128)))


def _heads_of_program(
    tiles: tuple[int, ...], length: int, wide: int, groups: int, shared: int, causal: bool, processors: int
) -> tuple[int, int, int]:  # fmt: skip
    """Return how many heads of queries a program of the gradients walks over, how many such groups are walked together, and how many of a tile's steps a program
    takes at most, 0 for all."""
    of_head = 8 * length * wide  # queries, gradients of results, and float32 sums
    # Heads of 64 have a loop for masked steps and one for others; ptxas spills where both go from head to head.
    slowed = 1.2 if causal and wide == 64 else 1.0
    many, size = heads_of(tiles, groups, shared, processors, of_head, slowed)
    if many > 1:
        return many, size, 0
    return many, size, steps_of_part(tiles, groups * shared, wide, processors, shared > 1)


def _finish_launch(
    known: tuple[Tensor, Tensor], sizes: tuple[Any, ...], gradients: Sequence[Tensor], joined: Sequence[Tensor], pieces: Optional[Pieces],
    options: dict[str, Any],
) -> Launch:  # fmt: skip
    """Return the last launch: `launch(sums, to_q)`, or `launch(sums, to_q, to_k, to_v, *joined)`, which also adds up the gradients of heads that share keys, and of parts of
    their steps. `known` are the sums and the gradients of queries, `sizes` their rows with and without padding, columns, the scale, and columns of tiles."""
    length, rows, columns, scale, width, last = sizes
    layouts = (
        gl.BlockedLayout([4], [32], [4], [0]),
        gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]),
    )
    tiles, heads = rows // 64 * (width // 64), known[1].shape[0] * known[1].shape[1]
    tensors = (*known, *gradients, *joined)
    if not joined:
        arguments = (*known, length, rows, columns, scale, width, last, *layouts)
        return Launch(sums.finish, (tiles, heads), arguments, known, num_warps=4, **options)
    (count, seen, _), (batch, of_keys, depth, own) = gradients[0].shape, joined[0].shape
    parts = count // (batch * of_keys)
    strides = (parts * seen * columns, seen * columns, columns)
    divided = None if pieces is None else tuple(pieces[1:])
    of_rows = (strides, (depth * own, own), divided, seen, depth, own)
    blocks = gluon.cdiv(depth * own, 1024)
    counts = (tiles, tiles * heads, blocks, batch * of_keys)
    of_queries = (length, rows, columns, scale)
    constants = ((width, last), *layouts, parts, 1024)
    return Launch(
        sums.finish_and_join,
        (tiles * heads + 2 * blocks * batch * of_keys,),
        (*tensors, counts, of_queries, of_rows, of_rows, *constants),
        tensors,
        num_warps=4,
        **options,
    )


def join_launch(tensors: Sequence[Tensor], sizes: Sequence[Any], heads: int, parts: int) -> Launch:
    """Return `launch(keys, values, to_keys, to_values)` of `sums.join_heads`, for so many heads of keys and parts of each."""
    most = max(rows * columns for *_, rows, columns in sizes)
    return Launch(
        sums.join_heads,
        (gluon.cdiv(most, 1024), heads, 2),
        (*tensors, *sizes, parts, 1024),
        tensors,
        num_warps=4,
        **overlapping_tensors(*tensors),
    )


def _atomic_launches(
    known: Sequence[Tensor], logsums: Tensor, gradients: Sequence[Tensor], kept: Sequence[Tensor], causal: bool,
    scale: float, size: int, pieces: Optional[Pieces], joined: Optional[tuple[Tensor, Tensor]],
) -> tuple[Launch, Launch, Launch]:  # fmt: skip
    """Return the launches before, of and after the kernel that adds to the gradient of queries."""
    q, k, v, grad, out = known
    to_q, to_k, to_v = gradients
    statistics, added, counter = kept
    batch, heads, length, columns = to_q.shape
    (groups, seen, _), width = to_k.shape, width_of(columns)
    divided: tuple[Optional[int], ...] = (None, None, None)
    tiles = gluon.cdiv(seen, 128)
    if pieces is not None:
        groups //= pieces.parts
        divided, tiles = (pieces.count, pieces.parts, pieces.most), pieces.count
    rows = sums.padded(length)
    options = overlapping_tensors(q, k, v, grad, out, *gradients, added, most=OVERLAPPED)
    strides = tuple(x.stride()[:3] for x in (out, grad))
    by_row = gl.BlockedLayout([1, 8], [256 // width, width // 8], [4, 1], [1, 0])
    valid, parts = min(out.shape[3], grad.shape[3]), parts_of(columns)
    last = min(parts[-1], 64)
    prepare = Launch(
        sums.prepare,
        (rows // 64, batch * heads),
        (
            out,
            grad,
            logsums,
            statistics,
            added,
            counter,
            strides,
            heads,
            length,
            rows,
            valid,
            width,
            last,
            by_row,
        ),
        (out, grad, logsums, statistics, added, counter),
        num_warps=4,
        **options,
    )
    step = 128 * 64 // width
    whole = seen % 128 == 0 or (causal and seen >= length)
    descriptors = (
        descriptor_of(q, 1, 1, step, width), descriptor_of(k, 1, 1, 128, width), descriptor_of(v, 1, 1, 128, width),
        descriptor_of(grad, 1, 1, step, width), descriptor_of(statistics, step), counter, descriptor_of(to_k, 1, 64, parts[-1]),
        descriptor_of(to_v, 1, 64, parts[-1]), *(descriptor_of(added, n, 256) for n in rows_of_sums(parts)),
    )  # fmt: skip
    constants = (scale, causal, whole, batch * heads // groups, heads // k.shape[1], parts)
    main = Launch(
        hopper_backward.gradients_atomic,
        (min(tiles * groups, multiprocessors(q)),),
        (*descriptors, length, seen, rows, heads, groups, size, *divided, *constants),
        (q, k, v, grad, statistics, counter, to_k, to_v, added),
        num_warps=4,
        **options,
    )
    sizes = (length, rows, columns, scale, width, min(parts[-1], 64))
    parts_of_keys = () if joined is None else (to_k, to_v)
    finish = _finish_launch((added, to_q), sizes, parts_of_keys, joined or (), pieces, options)
    return prepare, main, finish


Shape3 = tuple[int, int, int]


def _repeatable_plan(q: Tensor, k: Tensor, causal: bool, scale: float) -> Plan:
    """Return `run(grad, q, k, v, out, logsums) -> (gradients of q, k and v)`, with equal bits each time."""
    batch, heads, length, width = q.shape
    of_keys, depth = k.shape[1:3]
    seen = min(depth, length) if causal else depth
    wide = width_of(width)
    own, other = (batch * heads, length, wide), (batch * of_keys, seen, wide)
    dtype, device = q.dtype, q.device
    launch = _repeatable_launches(own, other, dtype, device, causal, scale)

    def flat(x: Tensor) -> Tensor:
        if x.shape[-1] != wide:
            x = F.pad(x, (0, wide - x.shape[-1]))
        return x.contiguous().view(own)

    def flat_keys(x: Tensor) -> Tensor:
        x = x[:, :, :seen]
        if x.shape[-1] != wide:
            x = F.pad(x, (0, wide - x.shape[-1]))
        return x.contiguous().view(other)

    def results(to_q: Tensor, to_k: Tensor, to_v: Tensor) -> Any:
        of_queries = to_q.view(batch, heads, length, wide)[..., :width]
        of_both = []
        for part in (to_k, to_v):
            part = part.view(batch, of_keys, seen, wide)[..., :width]
            if seen < depth:
                part = F.pad(part, (0, 0, 0, depth - seen))
            of_both.append(part.contiguous())
        return of_queries.contiguous(), *of_both

    def run(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor) -> Any:
        gradients = [
            torch.empty(shape, dtype=dtype, device=device) for shape in (own, other, other)
        ]
        inputs = (flat(q), flat_keys(k), flat_keys(v), flat(grad))
        launch(inputs, flat(out), logsums, gradients)
        return results(*gradients)

    return run


def _repeatable_launches(
    own: Shape3, other: Shape3, dtype: torch.dtype, device: torch.device, causal: bool, scale: float
) -> Plan:
    """Return `launch(inputs, out, logsums, gradients)`: two kernels whose results have equal bits each time."""
    heads, length, width = own
    depth = other[1]

    def like(shape: Shape3) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    q, grad, to_q = (like(own) for _ in range(3))
    k, v, to_k, to_v = (like(other) for _ in range(4))
    logsums, deltas = (torch.empty(own[:2], dtype=torch.float32, device=device) for _ in "ld")

    def prepared(
        kernel: Any, tiles: int, keys: bool, outs: tuple[Tensor, ...], *sizes: int
    ) -> Launch:
        mine, theirs = (64, 128) if keys else (128, 64)
        described = (
            descriptor_of(q, 1, mine, width), descriptor_of(k, 1, theirs, width), descriptor_of(v, 1, theirs, width),
            descriptor_of(grad, 1, mine, width), *(descriptor_of(x, 1, 64, width) for x in outs),
        )  # fmt: skip
        return Launch(
            kernel,
            (gluon.cdiv(tiles, 128), other[0] if keys else heads),
            (
                *described,
                logsums,
                deltas,
                *sizes,
                scale,
                scale * LOG2E,
                2,
                causal,
                heads // other[0],
            ),
            (q, k, v, grad, *outs, logsums, deltas),
            num_warps=4,
        )

    of_keys = prepared(hopper_repeatable.key_gradients, depth, True, (to_k, to_v), length)
    of_queries = prepared(hopper_repeatable.query_gradients, length, False, (to_q,), length, depth)

    def launch(inputs: Any, out: Tensor, logsums: Tensor, gradients: Any) -> None:
        to_q, to_k, to_v = gradients
        deltas = (out.float() * inputs[3].float()).sum(-1)
        of_keys(*inputs, to_k, to_v, logsums, deltas)
        of_queries(*inputs, to_q, logsums, deltas)

    return launch
