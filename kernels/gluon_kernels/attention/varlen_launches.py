"""The plans of attention over packed sequences on Hopper: descriptors, tiles and prepared launches for each key."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from gluon_core import language as gl
from gluon_kernels.attention import (
    hopper_varlen,
    hopper_varlen_backward,
    hopper_varlen_repeatable,
    hopper_varlen_wide,
    hopper_wide_backward,
)
from gluon_kernels.attention import varlen_sums as sums
from gluon_kernels.attention.launches import (
    COLUMNS,
    STAGES,
    columns_of,
    descriptor_of,
    is_readable,
    readable,
)
from gluon_kernels.attention.masks import Mask
from gluon_kernels.attention.order import PACKED
from gluon_kernels.dependent import overlapping_tensors
from gluon_kernels.plans import Launch, allocator, multiprocessors

__all__ = ["backward_plan", "differentiates", "forward_plan"]

Plan = Callable[..., Any]
SEQUENCES = 256  # of one launch: each thread of a producer holds 8 of them


def blocks_of(depth: int, width: int) -> tuple[int, int]:
    """Return the widths of queries and values that a kernel has for these."""
    if depth <= 64 and width <= 64:
        return 64, 64
    if depth <= 128 and width <= 128:
        return 128, 128
    return (192, 128) if depth <= 192 and width <= 128 else (256, 256)


def differentiates(depth: int, width: int) -> bool:
    """Return True if the kernels for Hopper have gradients of heads of these widths."""
    return max(depth, width) <= 256


def step_of(wide: int) -> int:
    """Return the queries of a step of the gradients."""
    return max(128 * 64 // wide, 64)


def _bound(count: int) -> int:
    """Return the power of two that bounds the sequences of a launch."""
    return max(32, 1 << (count - 1).bit_length())


def _slices(count: int) -> list[tuple[int, int]]:
    """Return the first sequence and the number of sequences of each launch."""
    return [(first, min(SEQUENCES, count - first)) for first in range(0, count, SEQUENCES)]


def _parts(lists: tuple[Tensor, ...], count: int) -> list[tuple[Tensor, ...]]:
    """Return the lists of each launch."""
    if count <= SEQUENCES:
        return [lists]
    return [tuple(x[first : first + many + 1] for x in lists) for first, many in _slices(count)]


def forward_plan(
    q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], of_queries: Tensor, of_keys: Tensor, mask: Mask,
    scale: float, keep: bool, out: Optional[Tensor],
) -> Plan:  # fmt: skip
    """Return `run(q, k, v, sinks, of_queries, of_keys, out) -> (result, logarithms of sums)`, the last None if `keep` is not set."""
    (tokens, heads, depth), width = q.shape, v.shape[2]
    wide, narrow = blocks_of(depth, width)
    columns = columns_of(width)
    plain = is_readable(q) and is_readable(k) and is_readable(v)
    exact = width == columns
    target = out if out is not None and exact and out.is_contiguous() else None
    if target is not None and target.data_ptr() % 16:
        target = None
    empty = allocator((tokens, heads, columns), q.dtype, q.device)
    empty_logsums = allocator((tokens, heads), torch.float32, q.device)
    count = of_queries.shape[0] - 1

    def new(out: Optional[Tensor]) -> Tensor:
        return empty() if target is None or out is None else out

    tensors = (readable(q), readable(k), readable(v))
    written, logsums = new(out), empty_logsums() if keep else None
    rows, keys = 128, 128 if narrow <= 128 else 64

    def parts(x: Tensor, size: int, width: int, block: int) -> Any:
        """Return the descriptor of heads of `width`, two if their blocks of 128 and more columns are parts."""
        widths = (block,) if block <= 128 else (128, 64 if width <= 192 else 128)
        described = tuple(descriptor_of(x, size, 1, part) for part in widths)
        return described if len(described) > 1 else described[0]

    descriptors = (
        parts(tensors[0], rows // 2, depth, wide),
        parts(tensors[1], keys, depth, wide),
        parts(tensors[2], keys, width, narrow),
        descriptor_of(written, rows // 2, 1, 64 if wide > 128 else narrow),
    )
    if narrow > 128:
        kernel, ends = hopper_varlen_wide.attention_varlen_wide, (PACKED,)
    else:
        kernel, ends = hopper_varlen.attention_varlen, (128 if wide > 128 else 0, PACKED)
    programs = min(multiprocessors(q), (tokens // rows + min(count, SEQUENCES)) * heads)
    factors = mask.scales(scale)

    def prepared(lists: tuple[Tensor, ...]) -> Launch:
        many = lists[0].shape[0] - 1
        sizes = (many, heads, columns, *factors)
        window = (mask.left, mask.right)
        constants = (
            heads // k.shape[1],
            rows,
            keys,
            STAGES,
            window,
            bool(mask.cap),
            _bound(many),
        )
        return Launch(
            kernel,
            (programs,),
            (*descriptors, written, logsums, sinks, *lists, *sizes, *constants, *ends),
            (*tensors, written, logsums, sinks, *lists),
            num_warps=4,
            **overlapping_tensors(*tensors, written),
        )  # fmt: skip

    launches = [prepared(lists) for lists in _parts((of_queries, of_keys), count)]
    (launch, *others) = launches

    def run(
        q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], of_queries: Tensor, of_keys: Tensor, out: Optional[Tensor],
    ) -> Any:  # fmt: skip
        result = new(out)
        logsums = empty_logsums() if keep else None
        if not plain:
            q, k, v = readable(q), readable(k), readable(v)
        if not others:
            launch(q, k, v, result, logsums, sinks, of_queries, of_keys)
        else:
            for each, lists in zip(launches, _parts((of_queries, of_keys), count)):
                each(q, k, v, result, logsums, sinks, *lists)
        if out is not None and result is not out:
            result = out.copy_(result[..., :width])
        elif not exact and out is None:
            result = result[..., :width].contiguous()
        return result, logsums

    return run


def backward_plan(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, of_queries: Tensor,
    of_keys: Tensor, mask: Mask, scale: float, repeatable: bool,
) -> Plan:  # fmt: skip
    """Return `run(grad, q, k, v, out, logsums, of_queries, of_keys) -> (gradients of q, k and v)`."""
    (tokens, heads, depth), width = q.shape, v.shape[2]
    wide = 256 if max(depth, width) > 128 else blocks_of(depth, width)[0]
    exact = columns_of(depth) == depth and columns_of(width) == width
    device, count = q.device, of_queries.shape[0] - 1
    new = [allocator((*x.shape[:2], columns_of(x.shape[2])), q.dtype, device) for x in (q, k, v)]
    step = 64 if repeatable else step_of(wide)
    rows = sums.rows_of(tokens, min(count, SEQUENCES), step)
    new_statistics = allocator((2 * heads * rows,), torch.float32, device)
    new_sums = allocator(
        (1 if repeatable or wide > 128 else heads * rows * wide // 256, 256), torch.float32, device
    )
    make = (
        _repeatable_launches if repeatable else _wide_launches if wide > 128 else _atomic_launches
    )

    def dense(x: Tensor) -> Tensor:
        more = -x.shape[2] % COLUMNS
        return readable((F.pad(x, (0, more)) if more else x).contiguous())

    def known(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, out: Tensor, logsums: Tensor) -> Any:
        return readable(q), readable(k), readable(v), dense(grad), dense(out), logsums

    operands = known(q, k, v, grad, out, logsums)
    gradients = [f() for f in new]
    workspace = (new_statistics(), new_sums())
    # The sums of a slice cover the tokens before it, too: those of earlier slices are stored later.
    slices = [
        make(operands, lists, gradients, workspace, mask, scale, rows, wide)
        for lists in reversed(_parts((of_queries, of_keys), count))
    ]

    def run(
        grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, of_queries: Tensor, of_keys: Tensor,
    ) -> Any:  # fmt: skip
        operands = known(q, k, v, grad, out, logsums)
        gradients = [f() for f in new]
        workspace = (new_statistics(), new_sums())
        parts = reversed(_parts((of_queries, of_keys), count))
        for launch, lists in zip(slices, parts):
            launch(operands, lists, gradients, workspace)
        if exact:
            return tuple(gradients)
        ends = (depth, depth, width)
        return tuple(x[..., :end].contiguous() for x, end in zip(gradients, ends))

    return run


def _prepare(
    operands: Any,
    lists: Any,
    statistics: Tensor,
    added: Optional[Tensor],
    rows: int,
    step: int,
    wide: int,
) -> Launch:
    _, _, _, grad, out, logsums = operands
    heads, width, count = grad.shape[1], grad.shape[2], lists[0].shape[0] - 1
    layout = gl.BlockedLayout([1, 8], [256 // wide, wide // 8], [4, 1], [1, 0])
    return Launch(
        sums.prepare,
        (rows // step, heads),
        (out, grad, logsums, statistics, added, lists[0], count, heads, width, wide, _bound(count), step, layout),
        (out, grad, logsums, statistics, added, lists[0]),
        num_warps=4,
        **overlapping_tensors(*operands, added),
    )  # fmt: skip


def _atomic_launches(
    operands: Any,
    lists: Any,
    gradients: Any,
    workspace: Any,
    mask: Mask,
    scale: float,
    rows: int,
    wide: int,
) -> Plan:
    """Return `launch(operands, lists, gradients, workspace)`: one kernel, which adds to the gradient of queries."""
    q, k, v, grad, _, _ = operands
    to_q, to_k, to_v = gradients
    statistics, added = workspace
    heads, count = grad.shape[1], lists[0].shape[0] - 1
    step = step_of(wide)
    prepare = _prepare(operands, lists, statistics, added, rows, step, wide)
    factors = (scale, *mask.scales(scale))
    constants = (heads // k.shape[1], 2, (mask.left, mask.right), bool(mask.cap), _bound(count))
    main = Launch(
        hopper_varlen_backward.varlen_gradients_atomic,
        (k.shape[0] // 128 + count, k.shape[1]),
        (
            descriptor_of(q, step, 1, wide), descriptor_of(k, 128, 1, wide), descriptor_of(v, 128, 1, wide),
            descriptor_of(grad, step, 1, wide), descriptor_of(to_k, 64, 1, wide), descriptor_of(to_v, 64, 1, wide),
            to_k, to_v, descriptor_of(statistics, 2 * step), descriptor_of(added, 16, 256), rows, *lists, count,
            *factors, *constants,
        ),
        (q, k, v, grad, to_k, to_v, statistics, added, *lists),
        num_warps=4,
        **overlapping_tensors(*operands, added),
    )  # fmt: skip
    flat = gl.BlockedLayout([4], [32], [4], [0])
    tile = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    finish = Launch(
        sums.finish,
        (rows // 64 * (wide // 64), heads),
        (added, to_q, lists[0], count, heads, to_q.shape[2], scale, wide, _bound(count), step, flat, tile),
        (added, to_q, lists[0]),
        num_warps=4,
        **overlapping_tensors(added, to_q),
    )  # fmt: skip

    def launch(operands: Any, lists: Any, gradients: Any, workspace: Any) -> None:
        q, k, v, grad, out, logsums = operands
        to_q, to_k, to_v = gradients
        statistics, added = workspace
        prepare(out, grad, logsums, statistics, added, lists[0])
        main(q, k, v, grad, to_k, to_v, statistics, added, *lists)
        finish(added, to_q, lists[0])

    return launch


def _multiplied(width: int) -> int:
    """Return how many columns of values of this width the gradients of wide heads multiply."""
    return 128 if width <= 128 else 192 if width <= 192 else 256


def _wide_launches(
    operands: Any,
    lists: Any,
    gradients: Any,
    workspace: Any,
    mask: Mask,
    scale: float,
    rows: int,
    wide: int,
) -> Plan:
    """Return `launch(operands, lists, gradients, workspace)` for heads of more than 128 elements."""
    q, k, v, grad, _, _ = operands
    to_q, to_k, to_v = gradients
    statistics, _ = workspace
    heads, count = grad.shape[1], lists[0].shape[0] - 1
    step = step_of(wide)
    values = 128 if v.shape[2] <= 128 else 256
    prepare = _prepare(operands, lists, statistics, None, rows, step, wide)
    factors = (scale, *mask.scales(scale))
    multiplied = (192 if q.shape[2] <= 192 else 256, _multiplied(v.shape[2]))
    constants = (
        heads // k.shape[1], (mask.left, mask.right), bool(mask.cap), _bound(count), multiplied,
    )  # fmt: skip
    numbers = (rows, *lists, count, *factors)
    options = overlapping_tensors(*operands)

    def described(queries: int, keys: int) -> tuple[Any, ...]:
        sizes = ((q, queries, wide), (k, keys, wide), (v, keys, values), (grad, queries, values))
        return tuple(descriptor_of(x, many, 1, columns) for x, many, columns in sizes)

    of_keys = Launch(
        hopper_wide_backward.wide_key_gradients,
        (k.shape[0] // 64 + count, k.shape[1]),
        (
            *described(64, 64), to_k, to_v, descriptor_of(statistics, 2 * step), *numbers, to_k.shape[2],
            to_v.shape[2], *constants,
        ),
        (q, k, v, grad, to_k, to_v, statistics, *lists),
        num_warps=4,
        **options,
    )  # fmt: skip
    of_queries = Launch(
        hopper_wide_backward.wide_query_gradients,
        (q.shape[0] // 128 + count, heads),
        (*described(128, 64), to_q, statistics, *numbers, to_q.shape[2], *constants),
        (q, k, v, grad, to_q, statistics, *lists),
        num_warps=4,
        **options,
    )

    def launch(operands: Any, lists: Any, gradients: Any, workspace: Any) -> None:
        q, k, v, grad, out, logsums = operands
        to_q, to_k, to_v = gradients
        statistics, _ = workspace
        prepare(out, grad, logsums, statistics, None, lists[0])
        of_keys(q, k, v, grad, to_k, to_v, statistics, *lists)
        of_queries(q, k, v, grad, to_q, statistics, *lists)

    return launch


def _repeatable_launches(
    operands: Any,
    lists: Any,
    gradients: Any,
    workspace: Any,
    mask: Mask,
    scale: float,
    rows: int,
    wide: int,
) -> Plan:
    """Return `launch(operands, lists, gradients, workspace)`: two kernels whose results have equal bits each time."""
    q, k, v, grad, _, _ = operands
    to_q, to_k, to_v = gradients
    statistics, _ = workspace
    heads, count = grad.shape[1], lists[0].shape[0] - 1
    prepare = _prepare(operands, lists, statistics, None, rows, 64, wide)
    factors = (scale, *mask.scales(scale))
    constants = (heads // k.shape[1], 2, (mask.left, mask.right), bool(mask.cap), _bound(count))

    def prepared(kernel: Any, own: Tensor, outs: tuple[Tensor, ...], known: Any) -> Launch:
        mine, theirs = (64, 128) if own is k else (128, 64)
        descriptors = (
            descriptor_of(q, mine, 1, wide), descriptor_of(k, theirs, 1, wide), descriptor_of(v, theirs, 1, wide),
            descriptor_of(grad, mine, 1, wide), *(descriptor_of(x, 64, 1, wide) for x in outs),
        )  # fmt: skip
        return Launch(
            kernel,
            (own.shape[0] // 128 + count, own.shape[1]),
            (*descriptors, *outs, known, rows, *lists, count, *factors, *constants),
            (q, k, v, grad, *outs, statistics, *lists),
            num_warps=4,
        )

    of_keys = prepared(
        hopper_varlen_repeatable.varlen_key_gradients,
        k,
        (to_k, to_v),
        descriptor_of(statistics, 128),
    )
    of_queries = prepared(hopper_varlen_repeatable.varlen_query_gradients, q, (to_q,), statistics)

    def launch(operands: Any, lists: Any, gradients: Any, workspace: Any) -> None:
        q, k, v, grad, out, logsums = operands
        to_q, to_k, to_v = gradients
        statistics, _ = workspace
        prepare(out, grad, logsums, statistics, None, lists[0])
        of_keys(q, k, v, grad, to_k, to_v, statistics, *lists)
        of_queries(q, k, v, grad, to_q, statistics, *lists)

    return launch
