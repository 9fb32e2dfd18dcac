"""Tiles of `gl.portable` by the tensor data mover, TDM (gfx1250): a barrier for each buffer of a pipeline."""

from __future__ import annotations

from typing import Any, Sequence, Union

from gluon_amd.language import mbarrier, tdm
from gluon_amd.language.descriptor import tensor_descriptor
from gluon_amd.tdm_rules import check_box
from gluon_core.errors import ArgumentError
from gluon_core.layouts import PaddedSharedLayout
from gluon_core.plugin.ops import tl
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.portable.requests import TileRequest
from gluon_core.values import MBarrierLayout

__all__ = ["accepts", "arrived", "begin", "end", "fetch", "layout", "make", "padded_rows"]

_GAP_BYTES = 16  # after each row, so that rows begin in other banks and vectors stay aligned
_INTERVAL_BYTES = (8, 1024)  # the range of distances between two gaps that TDM takes


def padded_rows(shape: Sequence[int], bits: int) -> Any:
    """Return a layout of shared memory that TDM writes: rows of contiguous elements, without a conflict
    between the same columns of several rows."""
    interval, rank = shape[-1], len(shape)
    low, high = (nbytes * 8 // bits for nbytes in _INTERVAL_BYTES)
    interval = max(min(interval, high), low, 1)
    gap = max(1, _GAP_BYTES * 8 // bits)
    return PaddedSharedLayout.with_identity_for(
        [[interval, gap]], list(shape), list(reversed(range(rank)))
    )


def accepts(request: TileRequest) -> Union[bool, str]:
    wanted = request.layout or layout(request)
    if request.single:
        return "TDM writes tiles of as many dimensions as their tensor"
    try:
        check_box(list(request.block_shape), request.dtype.primitive_bitwidth, wanted)
    except ArgumentError as error:
        return str(error)
    nbytes = request.dtype.primitive_bitwidth // 8
    if request.alignment % nbytes:
        return f"TDM needs an address divisible by {nbytes}, and base is not known to be"
    return True


def layout(request: TileRequest) -> Any:
    return padded_rows(request.block_shape, request.dtype.primitive_bitwidth)


def make(request: TileRequest, _semantic: SemanticLayer) -> Sequence[Any]:
    if request.made_by_launch(tensor_descriptor, layout(request)):
        return (request.host,)
    return (tdm.make_tensor_descriptor(*request.descriptor_operands(layout(request))),)


def begin(stages: int, tiles: int, _semantic: SemanticLayer) -> Sequence[Any]:
    barriers = _semantic.allocate_shared(tl.int64, [stages, 1], MBarrierLayout())
    for slot in range(stages):
        # Each warp copies its part of each tile, and arrives once for each.
        mbarrier.init(_semantic.memdesc_index(barriers, slot), tiles * _semantic.num_warps)
    return (barriers,)


def fetch(fetch: Any, _semantic: SemanticLayer) -> None:
    barrier = _semantic.memdesc_index(fetch.state.values[0], fetch.slot)
    for tile, buffer, place in zip(fetch.tiles, fetch.buffers, fetch.coordinates):
        tdm.async_load(tile.native[0], list(place), buffer, fetch.pred, barrier)


def arrived(state: Any, slot: Any, phase: Any, pending: int, _semantic: SemanticLayer) -> None:
    mbarrier.wait(_semantic.memdesc_index(state.values[0], slot), phase)
    _semantic.record("deferred_fence")  # data that arrived needs none, whatever the target


def end(state: Any, stages: int, _semantic: SemanticLayer) -> None:
    """Do nothing: every copy was waited for, and nothing holds the barriers."""
