"""Multi-head latent attention of one new token of each sequence against pages, as an operator of PyTorch."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ShapeError
from gluon_kernels.attention import portable_mla
from gluon_kernels.attention.decode_launches import GRID
from gluon_kernels.attention.launches import descriptor_of, is_readable
from gluon_kernels.attention.masks import LOG2E
from gluon_kernels.checks import (
    HALVES,
    check_contiguous,
    check_devices,
    check_entries,
    check_integers,
    check_numbers,
    check_one_dtype,
    check_pages,
    check_tensors,
)
from gluon_kernels.eager import is_compiling, is_plain
from gluon_kernels.plans import (
    Launch,
    Plans,
    allocator,
    current_target,
    key,
    least_depth,
    multiprocessors,
)

__all__ = ["mla_decode"]

LATENT = (64, 128, 256, 512)
ROTATED = (16, 32, 64, 128)
BEGINNING = 0.15  # of a program, in the time of a part


def _check(q: Tensor, cache: Tensor, table: Tensor, lengths: Tensor, latent: int) -> None:
    check_tensors("mla_decode", q=q, cache=cache, page_table=table, lengths=lengths)
    check_one_dtype("mla_decode", HALVES, q=q, cache=cache)
    if q.ndim != 3:
        raise ShapeError(
            "decoding takes one query token for each sequence",
            argument="q",
            expected="[sequences, heads, latent + rotated elements]",
            got=list(q.shape),
        )
    if latent not in LATENT or q.shape[2] - latent not in ROTATED:
        raise ShapeError(
            "the widths of the latent and rotary parts are not supported",
            argument="latent",
            expected=f"one of {LATENT}, and one of {ROTATED} more elements in a query",
            got=f"{latent} of {q.shape[2]}",
        )
    if (
        cache.ndim != 3
        or cache.shape[2] != q.shape[2]
        or not (cache.shape[1] and (cache.shape[0] or not q.shape[0]))
    ):
        raise ShapeError(
            "the cache holds pages of tokens that all heads share",
            argument="cache",
            expected=f"[pages, tokens of a page, {q.shape[2]}]",
            got=list(cache.shape),
        )
    check_entries(q.shape[0], page_table=(table, 2), lengths=(lengths, 1))
    check_devices(q, cache=cache, page_table=table, lengths=lengths)
    check_contiguous(cache=cache)


def _chunk(capacity: int, heads: int) -> int:
    """Return the tokens of a part; the batch must not matter, so that bits do not depend on it.

    With many heads, float32 results of parts of 512 tokens would be half as many bytes as the tokens.
    """
    if capacity > 32768:
        return 2048
    return 1024 if heads > 64 else 512


def _blocks(latent: int) -> dict[str, int]:
    target = current_target()
    if latent >= 256 and target.has("nvidia.wgmma"):
        return {"BLOCK_M": 64, "BLOCK": 64, "STAGES": 2, "num_warps": 8}
    if latent >= 256 and not target.has("nvidia.cp_async"):
        warps = 256 // int(target.warp_size)
        return {"BLOCK_M": 16, "BLOCK": least_depth(), "STAGES": 2, "num_warps": warps}
    return {"BLOCK_M": 16, "BLOCK": 32, "STAGES": 2 if latent >= 256 else 3, "num_warps": 4}


def _on_hopper(q: Tensor, cache: Tensor, latent: int) -> bool:
    """Return True for the kernel of Hopper: TMA copies tiles of 64 tokens of a page."""
    target = current_target()
    if not (target.has("nvidia.wgmma") and target.has("nvidia.tma")):
        return False
    return latent >= 256 and cache.shape[1] % 64 == 0 and all(is_readable(x) for x in (q, cache))


def _shares(groups: int, parts: int, programs: int) -> int:
    """Return how many programs share the parts of each of so many groups of heads of a sequence, if so many `programs` run at once.

    The time is that of all rounds of programs, each as long as the most parts that a program has, and its beginning.
    """

    def spent(shares: int) -> float:
        return -(-groups * shares // programs) * (-(-parts // shares) + BEGINNING)

    return min(range(1, parts + 1), key=spent)


def _grid(tensors: tuple[Tensor, ...], rows: int, programs: int) -> tuple[int, int, int]:
    """Return the grid: tiles of so many heads, sequences, and programs that share a sequence, if so many run at once."""
    sequences, heads, most = tensors[4].shape[:3]
    tiles = gluon.cdiv(heads, rows)
    return tiles, sequences, _shares(tiles * sequences, most, programs)


def _hopper_launch(tensors: tuple[Tensor, ...], latent: int, chunk: int, scale: float) -> Launch:
    """Return `launch(q, cache, table, lengths, parts, logsums)`."""
    from gluon_kernels.attention import hopper_mla

    src, cache, *others = tensors
    pages, _, parts, _ = others
    heads, most = parts.shape[1:3]
    rows, lines = src.flatten(0, 1), cache.flatten(0, 1)
    widths = latent, src.shape[2] - latent
    descriptors = [descriptor_of(x, 64, width) for x in (rows, lines) for width in widths]
    return Launch(
        hopper_mla.mla_decode_hopper,
        _grid(tensors, 64, multiprocessors(src)),  # one fills a processor
        (
            *descriptors, *others, heads, most, pages.stride(0), scale * LOG2E, cache.shape[1], chunk, 2,
        ),
        (rows, lines, *others),
        num_warps=4,
    )  # fmt: skip


def _portable_launch(tensors: tuple[Tensor, ...], latent: int, chunk: int, scale: float) -> Launch:
    """Return `launch(q, cache, table, lengths, parts, logsums)`."""
    src, cache, pages, _, parts, _ = tensors
    heads, most = parts.shape[1:3]
    blocks = _blocks(latent)
    rows = blocks["BLOCK_M"]
    rotated = src.shape[2] - latent
    constants = (latent, rotated, cache.shape[1], chunk, rows, blocks["BLOCK"], blocks["STAGES"])
    return Launch(
        portable_mla.mla_decode,
        _grid(tensors, rows, 2 * multiprocessors(src)),
        (*tensors, heads, most, pages.stride(0), scale * LOG2E, *constants),
        tensors,
        num_warps=blocks["num_warps"],
    )


def _build_slices(
    q: Tensor, cache: Tensor, table: Tensor, lengths: Tensor, latent: int, scale: float
) -> Any:
    """Return the plan of more sequences than the second axis of a grid has programs."""
    size = GRID // 16 * 16
    places = [slice(first, first + size) for first in range(0, q.shape[0], size)]
    plans = [_build(q[i], cache, table[i], lengths[i], latent, scale) for i in places]

    def run(q: Tensor, cache: Tensor, table: Tensor, lengths: Tensor, *settings: Any) -> Tensor:
        sliced = ((plan, q[i], cache, table[i], lengths[i]) for plan, i in zip(plans, places))
        return torch.cat([plan(*tensors, *settings) for plan, *tensors in sliced])

    return run


def _build(
    q: Tensor, cache: Tensor, table: Tensor, lengths: Tensor, latent: int, scale: float
) -> Any:
    _check(q, cache, table, lengths, latent)
    if q.shape[0] > GRID:
        return _build_slices(q, cache, table, lengths, latent, scale)
    (sequences, heads, _), page = q.shape, cache.shape[1]
    empty = allocator((sequences, heads, latent), q.dtype, q.device)
    if not q.numel() or not table.shape[1]:
        return lambda *unused: empty().zero_()
    dense = table.stride(1) == 1
    src, pages, out = q.contiguous(), table if dense else table.contiguous(), empty()
    capacity = pages.shape[1] * page
    chunk = _chunk(capacity, heads)
    most = gluon.cdiv(capacity, chunk)
    new_parts = allocator((sequences, heads, most, latent), torch.float32, q.device)
    new_logsums = allocator((sequences, heads, most), torch.float32, q.device)
    parts, logsums = new_parts(), new_logsums()
    tensors = (src, cache, pages, lengths, parts, logsums)
    on_hopper = _on_hopper(src, cache, latent)
    attend = (_hopper_launch if on_hopper else _portable_launch)(tensors, latent, chunk, scale)
    combine = Launch(
        portable_mla.combine,
        (heads, sequences),
        (parts, logsums, lengths, out, heads, most, chunk, latent),
        (parts, logsums, lengths, out),
        num_warps=4,
    )

    def run(
        q: Tensor, cache: Tensor, table: Tensor, lengths: Tensor, latent: Any, scale: Any
    ) -> Tensor:
        parts, logsums, out = new_parts(), new_logsums(), empty()
        table = table if dense else table.contiguous()
        attend(q.contiguous(), cache, table, lengths, parts, logsums)
        combine(parts, logsums, lengths, out)
        return out

    return run


_plans = Plans(_build, vectors=(3,))


@gluon.torch.op(
    "gluon_kernels::mla_decode",
    shape=lambda q, cache, page_table, lengths, latent, scale: (*q.shape[:2], latent),
)
def _mla_decode(
    q: Tensor, cache: Tensor, page_table: Tensor, lengths: Tensor, latent: int, scale: float
) -> Tensor:
    check_pages(page_table, lengths, cache.shape[1], cache.shape[0])
    tensors = (q, cache, page_table, lengths)
    result: Tensor = _plans((key(*tensors), latent, scale), *tensors, latent, scale)
    return result


def mla_decode(
    q: Tensor,
    cache: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    *,
    latent: int = 512,
    scale: Optional[float] = None,
) -> Tensor:
    """Return the latent attention (MLA) of one new token of each sequence against its tokens in pages.

    A token's first `latent` elements are key and value of all heads, its other elements, which carry the rotary embedding, key only.
    Queries are those that the up-projection of keys has been absorbed into (DeepSeek-V2, arXiv:2405.04434). A sequence's result has
    the same bits for every batch. There are no gradients.

    Args:
        q: [sequences, heads, latent + rotated elements], float16 or bfloat16; 16, 32, 64 or 128 rotated elements.
        cache: contiguous [pages, tokens of a page, latent + rotated elements] of the same dtype.
        page_table: int32 [sequences, pages of the longest]: the pages of each sequence, in order.
        lengths: int32 [sequences]: the tokens of each; a sequence without tokens has a result of zeros.
        latent: elements of a value: 64, 128, 256 or 512.
        scale: of the scores; 1 / sqrt(width of q) by default. DeepSeek-V2 and V3 take 1 / sqrt(192), of their heads before absorption.

    Returns:
        [sequences, heads, latent].

    Raises:
        DtypeError, ShapeError: tensors of other dtypes or shapes.
        ArgumentError: tensors on different devices, a cache that is not contiguous, or lengths and pages on a CPU that do not fit it.
    """
    tensors = (q, cache, page_table, lengths)
    if type(latent) is not int:
        check_integers(latent=latent)
    if type(q) is not Tensor or q.is_nested or not q.ndim:
        _check(*tensors, latent)
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1))
    elif type(scale) is not float:
        check_numbers(scale=scale)
    result: Tensor
    if not is_compiling() and is_plain(*tensors):
        result = _plans((key(*tensors), latent, scale), *tensors, latent, scale)
        return result
    _check(*tensors, latent)
    result = _mla_decode(*tensors, latent, scale)
    return result
