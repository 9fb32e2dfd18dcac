"""The plans of attention over whole sequences: descriptors, tiles and prepared launches for each key."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_kernels.attention import hopper, hopper_backward, hopper_repeatable, sums
from gluon_kernels.attention.decode_launches import folded
from gluon_kernels.attention.order import KEYS, heads_of, keys_of, rows_of
from gluon_kernels.attention.part_launches import parts_for
from gluon_kernels.dependent import overlapping_tensors
from gluon_kernels.plans import Launch, allocator, multiprocessors

__all__ = [
    "COLUMNS",
    "COMPUTED",
    "STAGES",
    "backward_plan",
    "columns_of",
    "descriptor_of",
    "forward_plan",
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
    few = wide == 64 and parts is None and not ORDERED
    keys = keys_of(length, depth, rows, causal) if few else KEYS
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


def backward_plan(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, causal: bool, scale: float,
    repeatable: bool,
) -> Plan:  # fmt: skip
    """Return `run(grad, q, k, v, out, logsums) -> (gradients of q, k and v)`."""
    if repeatable:
        return _repeatable_plan(q, k, causal, scale)
    batch, heads, length, width = q.shape
    of_keys, depth = k.shape[1:3]
    shared = heads // of_keys
    seen = min(depth, length) if causal else depth  # later keys are seen by no query
    wide, columns = width_of(width), columns_of(width)
    exact = columns == width
    dtype, device = q.dtype, q.device
    many, size = _heads_of_program(
        length, seen, wide, batch * of_keys, shared, causal, multiprocessors(q)
    )
    alike = many == shared and seen == depth and exact
    new_q = allocator((batch, heads, length, columns), dtype, device)
    groups = batch * heads // many
    new_k = allocator((batch, groups // batch, seen, columns), dtype, device)
    joined = allocator((batch, of_keys, depth, width), dtype, device)
    kept = sums.kept((batch * heads, length, wide))
    new_statistics = allocator(kept["statistics"], torch.float32, device)
    new_sums = allocator(kept["sums"], torch.float32, device)
    new_counter = allocator((1,), torch.int32, device)
    known = [readable(x) for x in (q, k, v, grad, out)]
    keys, values = (new_k().view(groups, seen, columns) for _ in "kv")
    launches = _atomic_launches(
        known,
        logsums,
        (new_q(), keys, values),
        (new_statistics(), new_sums(), new_counter()),
        causal,
        scale,
        size,
    )
    prepare, main, finish = launches
    join = None if alike else _join_heads_launch(keys, values, joined(), joined())
    plain = all(is_readable(x) for x in (q, k, v, grad, out))

    def run(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor) -> Any:
        if not plain:
            q, k, v = readable(q), readable(k), readable(v)
            grad, out = readable(grad), readable(out)
        to_q, to_k, to_v = new_q(), new_k(), new_k()
        statistics, added, counter = new_statistics(), new_sums(), new_counter()
        prepare(out, grad, logsums, statistics, added, counter)
        main(q, k, v, grad, statistics, counter, to_k, to_v, added)
        finish(added, to_q)
        if not exact:
            to_q = to_q[..., :width].contiguous()
        if join is None:
            return to_q, to_k, to_v
        results = joined(), joined()
        join(to_k, to_v, *results)
        return to_q, *results

    return run


def _heads_of_program(
    length: int, seen: int, wide: int, groups: int, shared: int, causal: bool, processors: int
) -> tuple[int, int]:
    """Return how many heads of queries a program of the gradients walks over, and how many such groups are walked together."""
    step = 128 * 64 // wide
    steps = -(-length // step)
    tiles = (steps - i * 128 // step if causal else steps for i in range(-(-seen // 128)))
    of_head = 8 * length * wide  # queries, gradients of results, and float32 sums
    # Heads of 64 have a loop for masked steps and one for others; ptxas spills where both go from head to head.
    slowed = 1.2 if causal and wide == 64 else 1.0
    return heads_of(tuple(tiles), groups, shared, processors, of_head, slowed)


def _join_heads_launch(keys: Tensor, values: Tensor, to_keys: Tensor, to_values: Tensor) -> Launch:
    """Return `launch(keys, values, to_keys, to_values)`, which adds up the gradients of heads that share keys."""
    (count, seen, columns), (batch, heads, length, width) = keys.shape, to_keys.shape
    parts = count // (batch * heads)
    strides = (parts * seen * columns, seen * columns, columns)
    sizes = (strides, (length * width, width), seen, length, width)
    return join_launch((keys, values, to_keys, to_values), (sizes, sizes), batch * heads, parts)


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
    scale: float, size: int,
) -> tuple[Launch, Launch, Launch]:  # fmt: skip
    """Return the launches before, of and after the kernel that adds to the gradient of queries."""
    q, k, v, grad, out = known
    to_q, to_k, to_v = gradients
    statistics, added, counter = kept
    batch, heads, length, columns = to_q.shape
    (groups, seen, _), width = to_k.shape, width_of(columns)
    rows = sums.padded(length)
    options = overlapping_tensors(q, k, v, grad, out, *gradients, added)
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
        (min(gluon.cdiv(seen, 128) * groups, multiprocessors(q)),),
        (*descriptors, length, seen, rows, heads, groups, size, *constants),
        (q, k, v, grad, statistics, counter, to_k, to_v, added),
        num_warps=4,
        **options,
    )
    flat = gl.BlockedLayout([4], [32], [4], [0])
    tile = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    finish = Launch(
        sums.finish,
        (rows // 64 * (width // 64), batch * heads),
        (added, to_q, length, rows, columns, scale, width, min(parts[-1], 64), flat, tile),
        (added, to_q),
        num_warps=4,
        **options,
    )
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
