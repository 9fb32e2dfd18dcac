"""Tiles of `gl.portable` by TMA (sm_90): a barrier for each buffer of a pipeline, stores by parts."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Sequence, Union

from gluon_core import errors
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.portable import requests
from gluon_nvidia.language import mbarrier, tma
from gluon_nvidia.language.descriptor import check_box, tensor_descriptor
from gluon_nvidia.language.fence import fence_async_shared
from gluon_nvidia.language.writer import finishing, tile_writer, tma_writer
from gluon_nvidia.layouts import NVMMASharedLayout

__all__ = [
    "accepts",
    "arrived",
    "begin",
    "close",
    "end",
    "fetch",
    "layout",
    "make",
    "opened",
    "put",
    "store",
    "store_accepts",
]

_ALIGNMENT = 16  # of the base and of strides, in bytes
_REMEDY = "declare it divisible by 16 (`:16` in a signature), or promise it with gl.multiple_of"


def accepts(request: requests.TileRequest) -> Union[bool, str]:
    wanted = request.layout
    if wanted is not None and not isinstance(wanted, NVMMASharedLayout):
        return f"TMA writes NVMMASharedLayout only, not {type(wanted).__name__}"
    if wanted is not None and wanted.transposed:
        return "TMA writes the last dimension as the fastest, and the layout has the first"
    try:
        check_box(request.dtype, list(request.block_shape), _of_box(request))
    except errors.GluonError as error:
        return str(error)
    return _made_by_launch(request) or _aligned(request)


def _made_by_launch(request: requests.TileRequest) -> bool:
    """Return True if a launch made the descriptor, which it does of aligned tensors alone."""
    box = _of_box(request)
    return replace(request, layout=box).made_by_launch(tensor_descriptor, box)


def _aligned(request: requests.TileRequest) -> Union[bool, str]:
    """Return True where base and strides are known to be multiples of 16 bytes, else the reason."""
    if request.alignment % _ALIGNMENT:
        return f"TMA needs an address divisible by {_ALIGNMENT}, and base is not known to be: {_REMEDY}"
    nbytes = request.dtype.primitive_bitwidth // 8
    for dim, multiple in enumerate(request.multiples):
        if multiple * nbytes % _ALIGNMENT:
            step = request.strides[dim]
            reason = (
                f"not {step * nbytes}"
                if isinstance(step, int)
                else f"and strides[{dim}] is not known to be one: {_REMEDY}"
            )
            return f"TMA takes strides of multiples of {_ALIGNMENT} bytes, {reason}"
    return True


def layout(request: requests.TileRequest) -> NVMMASharedLayout:
    return NVMMASharedLayout.get_default_for(list(request.block_shape), request.dtype)


def _of_box(request: requests.TileRequest) -> NVMMASharedLayout:
    """Return the layout of a descriptor's box, which has all dimensions of the tensor."""
    return replace(request.layout or layout(request), rank=len(request.block_shape))


def make(request: requests.TileRequest, _semantic: SemanticLayer) -> Sequence[Any]:
    if _made_by_launch(request):
        return (request.host,)
    box = replace(request, layout=_of_box(request))
    return (tma.make_tensor_descriptor(*box.descriptor_operands(box.layout)),)


def begin(stages: int, tiles: int, _semantic: SemanticLayer) -> Sequence[Any]:
    barriers = mbarrier.allocate_mbarrier(batch=stages)
    for slot in range(stages):
        mbarrier.init(_semantic.memdesc_index(barriers, slot), 1)
    return (barriers,)


def fetch(fetch: Any, _semantic: SemanticLayer) -> None:
    barrier = _semantic.memdesc_index(fetch.state.values[0], fetch.slot)
    pred = True if fetch.pred is None else fetch.pred
    nbytes = sum(buffer.nbytes_per_cta for buffer in fetch.buffers)
    mbarrier.expect(barrier, nbytes, pred)
    for tile, buffer, place in zip(fetch.tiles, fetch.buffers, fetch.coordinates):
        tma.async_copy_global_to_shared(tile.native[0], list(place), barrier, buffer, pred)


def arrived(state: Any, slot: Any, phase: Any, pending: int, _semantic: SemanticLayer) -> None:
    barrier = _semantic.memdesc_index(state.values[0], slot)
    mbarrier.wait(barrier, phase)


def end(state: Any, stages: int, _semantic: SemanticLayer) -> None:
    for slot in range(stages):
        mbarrier.invalidate(_semantic.memdesc_index(state.values[0], slot))


def store_accepts(request: requests.TileStoreRequest) -> Union[bool, str]:
    facts = request.tile.facts
    if facts.lowering != "tma":
        return f"the descriptor is one of {facts.lowering}"
    return request.value is None or request.splits()


def store(request: requests.TileStoreRequest, _semantic: SemanticLayer) -> None:
    tile, width = request.tile, request.tile.block_shape[-1]
    parts = _semantic.split_columns(request.value, width)
    # Several buffers, where there is room: some are read by the copies before while the next is written.
    nbytes = prod(tile.block_shape) * tile.dtype.primitive_bitwidth // 8
    room = request.target.limits.shared_memory // 7
    count = min(max(room // nbytes, 1), len(parts))
    buffers = _semantic.allocate_shared(tile.dtype, [count, *tile.block_shape], tile.layout)
    for i, part in enumerate(parts):
        buffer = _semantic.memdesc_index(buffers, i % count)
        if i >= count:
            tma.store_wait(count - 1)
        _semantic.shared_store(buffer, part)
        fence_async_shared()
        place = _semantic.moved_right(request.coordinates, i * width)
        tma.async_copy_shared_to_global(tile.native[0], place, buffer)
    # The buffers serve for something else after this.
    tma.store_wait(0)
    buffers._keep_alive()


def opened(tile: Any, parts: int, _semantic: SemanticLayer) -> Sequence[Any]:
    return (tma_writer(tile.native[0], parts),)


def put(
    request: requests.TileStoreRequest,
    state: Sequence[tile_writer],
    end: Any,
    _semantic: SemanticLayer,
) -> None:
    finishing(state[0], end).store(request.coordinates, request.value)


def close(state: Sequence[tile_writer], _semantic: SemanticLayer) -> None:
    state[0].close()
