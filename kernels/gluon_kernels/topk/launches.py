"""The plans of top-k: how rows are divided, lists and prepared launches for each key."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
from torch import Tensor

from gluon_core import language as gl
from gluon_kernels.norm.views import Rows
from gluon_kernels.plans import (
    Counters,
    Launch,
    allocator,
    current_target,
    multiprocessors,
    registers,
)
from gluon_kernels.topk import portable, whole

__all__ = ["divided", "held", "topk_plan", "whole_plan"]


GROUP = 8  # elements that are looked at by their largest one
LISTED = 256  # elements that the lists of a row order
SORTED = 1024  # elements that a program sorts
MOST_GROUPS = 64  # of a thread
SHORT = 1200  # columns of which lists are not worth it
HELD = 1 << 16  # bytes of a row that a program holds


def _power(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


@functools.lru_cache(maxsize=4096)
def divided(
    rows: int, columns: int, bits: int, align: int, count: int, processors: int, warp_size: int = 32
) -> dict[str, Any]:
    """Return the constants of `portable.topk`, and `num_warps`."""
    vector = min(align, 128 // bits, GROUP)
    pair = GROUP // vector
    # The program of a row that comes last looks at up to 32 elements for each wanted.
    warps = 8 if count > 128 else 4
    lanes = warps * warp_size
    of_group = lanes * GROUP  # columns that one group of each thread covers
    groups = min(8, -(-columns // of_group))
    parts = _power(-(-columns // (groups * of_group)))
    # Few rows: shorter parts, so that all processors have some.
    while parts * rows < 4 * processors and groups > 1:
        groups = -(-groups // 2)
        parts = _power(-(-columns // (groups * of_group)))
    whole = max(16, _power(columns))
    cap = min(max(32, _power(4 * count)), whole)
    while parts * cap > 16384 and parts > 1:  # the lists of a row are one tile
        parts //= 2
        groups = -(-columns // (parts * of_group))
    ranked = min(max(16, _power(2 * count)), whole)
    return {
        "BITS": bits,
        "ALIGN": align,
        "PARTS": parts,
        "GROUPS": groups,
        "PAIR": pair,
        "LANES": lanes,
        "VECTOR": vector,
        "CAP": cap,
        "MOST": ranked,
        "CHUNK": min(ranked, _power(max(1, 32 * lanes // ranked))),
        "layout": gl.BlockedLayout([1, vector], [warp_size, 1], [warps, 1], [1, 0]),
        "flat": gl.BlockedLayout([1], [warp_size], [warps], [0]),
        "num_warps": warps,
    }


def is_whole(columns: int, bits: int, count: int) -> bool:
    """Return True if a program holds a row, of up to 64 KB, and sorts the elements wanted.

    Lists of groups, which several programs of a row have, pay where few of many are wanted.
    """
    fits = columns * bits <= 8 * HELD and count <= SORTED
    return fits and (columns <= SHORT or columns <= 128 * count)


def held(columns: int, bits: int, align: int, count: int, warp_size: int = 32) -> dict[str, Any]:
    """Return the constants of `whole.topk_whole`, and `num_warps`: of rows that a program holds, of up to 32768 columns."""
    wide = bits > 16
    vector = min(align, 128 // bits)
    warps = 1
    while warps < 16 and columns > warps * warp_size * (26 if wide else 52):
        warps *= 2
    group = _group(columns, count)
    # Fewer than two elements for each wanted reach the bound of groups, unless rows are sorted.
    most = max(16, _power(count) * (2 if group > 1 else 1))
    return {
        "BITS": bits,
        "ALIGN": align,
        "WIDE": wide,
        "PIECES": -(-columns // (warps * warp_size * vector)),
        "LANES": warps * warp_size,
        "VECTOR": vector,
        "GROUP": group,
        "MOST": most,
        "LOG": most.bit_length() - 1,
        "layout": gl.BlockedLayout([1, vector], [warp_size, 1], [warps, 1], [1, 0]),
        "flat": gl.BlockedLayout([1], [warp_size], [warps], [0]),
        "ranked": gl.BlockedLayout(
            [max(1, most // (warps * warp_size))], [warp_size], [warps], [0]
        ),
        "num_warps": warps,
    }


def _group(columns: int, count: int) -> int:
    """Return how many elements a program looks at by their largest one first: there are at least four such groups for each wanted."""
    return next((size for size in (GROUP, GROUP // 2) if columns >= 4 * size * count), 1)


def whole_plan(src: Rows, count: int, largest: bool) -> Callable[..., Any]:
    """Return `run(x, count, largest) -> (values, columns)` of rows that a program holds."""
    x, device = src.tensor, src.tensor.device
    shape = (*x.shape[:-1], count)
    constants = held(
        src.columns, 8 * x.element_size(), src.align, count, current_target().warp_size
    )
    warps = constants.pop("num_warps")
    programs = min(src.count, multiprocessors(x) * max(1, 32 // warps))
    kind = torch.int64 if constants["WIDE"] else torch.int32
    lists = allocator((programs * constants["MOST"],), kind, device)
    new_values, new_places = (
        allocator(shape, x.dtype, device),
        allocator(shape, torch.int64, device),
    )
    tensors = (x, new_values(), new_places(), lists())
    sizes = (src.count, src.columns, src.stride, count)
    constants["LARGEST"] = largest
    names = whole.topk_whole.arg_names[len(tensors) + len(sizes) :]
    launch = Launch(
        whole.topk_whole,
        (programs,),
        (*tensors, *sizes, *(constants[name] for name in names)),
        tensors,
        num_warps=warps,
        **registers(96 if warps < 16 else 128),  # more programs hide the waits of each
    )

    read = src.read

    def run(x: Tensor, count: int, largest: bool) -> Any:
        values, places = new_values(), new_places()
        launch(read(x), values, places, lists())
        return values, places

    return run


def by_torch(x: Tensor, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Return `(values, columns)` where neither registers nor lists hold enough."""
    values, places = torch.topk(x, count, -1, largest)
    return values, places


def topk_plan(x: Tensor, count: int, largest: bool) -> Callable[..., Any]:
    """Return `run(x, count, largest) -> (values, columns)` of rows [rows, columns]."""
    shape, device = (*x.shape[:-1], count), x.device
    if not x.numel() or not count:

        def nothing(x: Tensor, count: int, largest: bool) -> Any:
            return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)

        return nothing
    src = Rows.of(x)
    if is_whole(src.columns, 8 * x.element_size(), count):
        return whole_plan(src, count, largest)
    if count > LISTED:
        return by_torch
    constants = divided(
        src.count, src.columns, 8 * x.element_size(), src.align, count, multiprocessors(x),
        current_target().warp_size,
    )  # fmt: skip
    if constants["GROUPS"] > MOST_GROUPS:
        return by_torch
    options = {"num_warps": constants["num_warps"]}
    constants = {**constants, "LARGEST": largest}
    parts, cap = constants["PARTS"], constants["CAP"]
    numbers = src.count * (parts + 2) * cap
    counters = Counters(src.count) if parts > 1 else None

    lists = allocator((2 * numbers + src.count * parts,), torch.int32, device)
    new_values = allocator(shape, x.dtype, device)
    new_places = allocator(shape, torch.int64, device)

    def workspace() -> list[Any]:
        """Return memory for lists, and for the number of programs that have come."""
        return [lists(), None if counters is None else counters(device)]

    tensors = [src.tensor, new_values(), new_places(), *workspace()]
    sizes = (src.columns, src.stride, count, numbers)
    names = portable.topk.arg_names[len(tensors) + len(sizes) :]
    launch = Launch(
        portable.topk,
        (src.count * parts,),
        (*tensors, *sizes, *(constants[name] for name in names)),
        tensors,
        **options,
    )

    read = src.read

    def run(x: Tensor, count: int, largest: bool) -> Any:
        values, places = new_values(), new_places()
        launch(read(x), values, places, *workspace())
        return values, places

    return run
