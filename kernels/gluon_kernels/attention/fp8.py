"""Attention of 8-bit floats with a scale for each head, as an operator of PyTorch, on Hopper."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ArgumentError, CapabilityError, DtypeError, ShapeError
from gluon_kernels.attention import fp8_values
from gluon_kernels.attention.launches import descriptor_of
from gluon_kernels.attention.masks import LOG2E
from gluon_kernels.attention.order import UNMASKED, order_of
from gluon_kernels.attention.part_launches import parts_for
from gluon_kernels.checks import (
    check_devices,
    check_dtypes,
    check_flags,
    check_numbers,
    check_query_heads,
    check_tensors,
)
from gluon_kernels.dependent import overlapping_tensors
from gluon_kernels.eager import is_compiling, is_plain
from gluon_kernels.plans import (
    Launch,
    Plans,
    allocator,
    current_target,
    key,
    multiprocessors,
    sequence,
)

__all__ = ["attention_fp8"]

WIDTHS = (64, 128)
DTYPE = torch.float8_e4m3fn
TILE = 128
FORMS = {64: (192, 128, 2), 128: (128, 128, 2)}  # rows, keys and slots, by the width of heads
TRANSPOSING = 128, 2  # keys and slots of the kernel that transposes values itself
# Operations up to which it does, by the width of heads, full and causal: a launch less, and steps that take 6 and 20 % longer. Causal ones of 64 columns wait for
# exponentials, not for products.
SHORT = {64: {False: 3e10, True: math.inf}, 128: {False: 2.4e10, True: 3.5e10}}
WIDE_TILE = 0.93  # the time of 192 rows over that of as many in tiles of 128, of that kernel
RATE = 1.25  # of products of tiles, in that of 16 bits


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    out_dtype: torch.dtype,
) -> None:
    scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    check_tensors("attention_fp8", q=q, k=k, v=v, **scales)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype != DTYPE:
            raise DtypeError(
                "attention_fp8 takes 8-bit floats",
                argument=name,
                expected="float8_e4m3fn",
                got=str(x.dtype),
                remedy="Scale and convert them, such as by gluon_kernels.quantize.",
            )
        if x.ndim != 4 or x.shape[3] not in WIDTHS:
            raise ShapeError(
                "attention takes tensors of four dimensions",
                argument=name,
                expected=f"[batch, heads, length, width], {' or '.join(map(str, WIDTHS))} wide",
                got=list(x.shape),
            )
    if k.shape != v.shape:
        raise ShapeError(
            "keys and values have different shapes",
            argument="v",
            expected=list(k.shape),
            got=list(v.shape),
        )
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ShapeError(
            "queries and keys must have the same batch and head width",
            argument="k",
            expected=f"[{q.shape[0]}, heads, length, {q.shape[3]}]",
            got=list(k.shape),
        )
    check_query_heads(q.shape[1], k.shape[1])
    if not k.shape[2] and q.numel():
        raise ShapeError("there are no keys to attend to", argument="k", got=list(k.shape))
    for name, scale, x in (
        ("q_scale", q_scale, q),
        ("k_scale", k_scale, k),
        ("v_scale", v_scale, v),
    ):
        if scale.dtype != torch.float32 or scale.shape != x.shape[:2]:
            raise ShapeError(
                "expected one scale for each head",
                argument=name,
                expected=f"float32 {list(x.shape[:2])}",
                got=f"{scale.dtype} {list(scale.shape)}",
            )
    check_devices(q, k=k, v=v, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)
    if out_dtype not in (torch.float16, torch.bfloat16):
        raise DtypeError(
            "the result is a 16-bit float",
            argument="out_dtype",
            expected="float16 or bfloat16",
            got=str(out_dtype),
        )


def _transpose_launch(v: Tensor) -> tuple[Launch, Any]:
    """Return `launch(v, result)`, and an allocator of the result, [batch, heads, width, keys]."""
    batch, heads, length, width = v.shape
    padded = -(-length // 16) * 16
    empty = allocator((batch, heads, width, padded), DTYPE, v.device)
    tensors = (v, empty())
    launch = Launch(
        fp8_values.transpose,
        (gluon.cdiv(padded, TILE) * batch * heads,),
        (*tensors, v.stride()[:3], heads, length, padded, TILE, width),
        tensors,
        num_warps=4,
        **overlapping_tensors(*tensors),
    )
    return launch, empty


def _readable(x: Tensor) -> Tensor:
    steps = all(step % 16 == 0 and step > 0 for step in x.stride()[:-1])
    if x.stride(-1) == 1 and steps and x.data_ptr() % 16 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _rows(v: Tensor) -> Tensor:
    return v if v.stride(3) == 1 else v.contiguous()


def _positive(scale: float) -> bool:
    if type(scale) is not float:
        check_numbers(scale=scale)
    return scale > 0


def _rows_of(
    choices: tuple[int, ...], length: int, keys: int, heads: int, processors: int, of_head: int
) -> tuple[int, int]:
    """Return the rows of a causal tile, one of the choices, and the order of tiles."""
    orders = {n: order_of(length, keys, heads, n, processors, of_head) for n in choices}
    times = {n: orders[n][1] * n * (WIDE_TILE if n == 192 else 1.0) for n in choices}
    rows = min(choices, key=lambda n: times[n])
    return rows, orders[rows][0]


def _build(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, causal: bool, scale: float,
    out_dtype: torch.dtype,
) -> Any:  # fmt: skip
    _check(q, k, v, q_scale, k_scale, v_scale, out_dtype)
    target = current_target()
    if not (target.has("nvidia.wgmma") and target.has("nvidia.tma")):
        raise CapabilityError(
            "attention of 8-bit floats is written for Hopper",
            argument="target",
            expected="a device with wgmma and TMA, such as sm_90",
            got=str(target),
        )
    from gluon_kernels.attention import hopper_fp8

    batch, heads, length, width = q.shape
    empty = allocator((batch, heads, length, width), out_dtype, q.device)
    if not q.numel():
        return lambda *unused: empty()
    operations = 4 * batch * heads * length * k.shape[2] * width / (2 if causal else 1)
    transposes = operations <= SHORT[width][causal]
    in_place = _readable(q) is q and _readable(k) is k
    if transposes:
        in_place, values = in_place and _readable(v) is v, _readable(v)
    else:
        in_place = in_place and v.stride(3) == 1
        transpose, empty_values = _transpose_launch(_rows(v))
        values = empty_values()
    tensors = (_readable(q), _readable(k), values)
    scales, written = (q_scale, k_scale, v_scale), empty()
    processors = multiprocessors(q)
    shared, depth = heads // k.shape[1], k.shape[2]
    of_head = 2 * width * depth // shared
    rows, keys, stages = (128, *TRANSPOSING) if transposes else FORMS[width]
    order = UNMASKED
    if causal:
        choices = (128, 192) if transposes and width == 64 else (rows,)
        sizes_of = length, depth, batch * heads
        rows, order = _rows_of(choices, *sizes_of, processors, of_head)
    count = gluon.cdiv(length, rows) * batch * heads
    parts = None if causal else parts_for(count, depth, rows, width, processors, RATE)
    new_parts = None if parts is None else parts.memory(q.device)
    stored = None if new_parts is None else new_parts()
    join = None
    if parts is not None and stored is not None:
        order, join = parts.order, parts.joining(stored, written, None, None)
    splits = 1 if parts is None else parts.splits
    sizes = (batch * heads, length, depth, heads, order, splits, scale * LOG2E)
    block = (keys, width) if transposes else (width, keys)
    launch = Launch(
        hopper_fp8.attention_fp8,
        (min(count if parts is None else parts.programs, processors),),
        (
            descriptor_of(tensors[0], 1, 1, 64, width), descriptor_of(tensors[1], 1, 1, keys, width),
            descriptor_of(tensors[2], 1, 1, *block), descriptor_of(written, 1, 1, 64, width), scales, stored, *sizes,
            shared, rows, stages, causal, transposes,
        ),
        (*tensors, written, *scales, stored),
        num_warps=4,
        **overlapping_tensors(*tensors, written),
    )  # fmt: skip
    if in_place:
        makers = (empty,) if transposes else (empty, empty_values)
        place = None if new_parts is None else 6 + len(makers)
        launches: list[Any] = [(launch, (0, 1, 2 if transposes else 7, 6, 3, 4, 5, place))]
        if not transposes:
            launches.insert(0, (transpose, (2, 7)))
        if join is not None:
            launches.append((join, (place, 6, None, None)))
        memory = None if new_parts is None else lambda: (new_parts(),)
        return sequence(6, makers, launches, 6, memory)

    def run(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_scale: Tensor,
        k_scale: Tensor,
        v_scale: Tensor,
        *settings: Any,
    ) -> Tensor:
        result = empty()
        if transposes:
            values = _readable(v)
        else:
            values = empty_values()
            transpose(_rows(v), values)
        stored = None if new_parts is None else new_parts()
        launch(_readable(q), _readable(k), values, result, q_scale, k_scale, v_scale, stored)
        if join is not None:
            join(stored, result, None, None)
        return result

    return run


_plans = Plans(_build, vectors=(3, 4, 5))


@gluon.torch.op(
    "gluon_kernels::attention_fp8",
    shape=lambda q, k, v, q_scale, k_scale, v_scale, causal, scale, out_dtype: (q.shape, out_dtype),
)
def _attention_fp8(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    causal: bool,
    scale: float,
    out_dtype: torch.dtype,
) -> Tensor:
    tensors = (q, k, v, q_scale, k_scale, v_scale)
    settings = (causal, scale, out_dtype)
    result: Tensor = _plans((key(*tensors), *settings), *tensors, *settings)
    return result


def attention_fp8(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    *,
    causal: bool = False,
    scale: Optional[float] = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Return the attention of 8-bit floats, each head of which has a scale, on Hopper.

    A head's queries are `q * q_scale`, likewise keys and values. Scores and sums are float32, weights are rounded to e4m3. Values are
    transposed by a kernel of its own, in short calls and in causal ones of 64 columns by the same one. There are no gradients.

    Args:
        q: [batch, heads, length, width], float8_e4m3fn, 64 or 128 wide.
        k, v: [batch, heads of keys, length of keys, width] of the same dtype; the heads of queries are a multiple of those of keys.
        q_scale, k_scale, v_scale: float32 [batch, heads], of keys and values [batch, heads of keys].
        causal: a query sees the keys up to its own place.
        scale: of the scores, positive; 1 / sqrt(width) by default.
        out_dtype: float16 or bfloat16.

    Returns:
        [batch, heads, length, width].

    Raises:
        DtypeError, ShapeError: tensors of other dtypes or shapes.
        ArgumentError: tensors on different devices, or a scale that is not positive.
        CapabilityError: another device than Hopper.
    """
    if type(causal) is not bool or type(out_dtype) is not torch.dtype:
        check_flags(causal=causal)
        check_dtypes(out_dtype=out_dtype)
    if type(q) is not Tensor or q.is_nested:
        check_tensors("attention_fp8", q=q)
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1)) if q.ndim else 1.0
    elif not _positive(scale):  # a row's largest product is its largest score
        raise ArgumentError(
            "the scale of the scores must be positive",
            argument="scale",
            expected="a positive number, or None for 1 / sqrt(width)",
            got=scale,
            remedy="Negate q and the scale.",
        )
    tensors = (q, k, v, q_scale, k_scale, v_scale)
    settings = (causal, scale, out_dtype)
    result: Tensor
    if not is_compiling() and is_plain(*tensors):
        result = _plans((key(*tensors), *settings), *tensors, *settings)
        return result
    _check(*tensors, out_dtype)
    result = _attention_fp8(*tensors, *settings)
    return result
