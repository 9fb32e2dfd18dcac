"""Tiles of a tensor: described once, copied to shared memory through a pipeline, stored.

a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK], layouts.a_shared)
b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, BN], layouts.b_shared)
tiles = gl.portable.pipeline([a_tiles, b_tiles], STAGES)
for step in gl.static_range(STAGES - 1):
    tiles.fetch(step, [[row, step * BK], [step * BK, column]])
acc = gl.portable.accumulator(layouts)
for step in range(steps):
    a_tile, b_tile = tiles.wait(step)
    acc = gl.portable.mma(a_tile, b_tile, acc, is_async=True)
    acc = gl.portable.mma_wait(acc, pending=1)  # the buffers of the step before are free
    ahead = step + STAGES - 1
    tiles.fetch(ahead, [[row, ahead * BK], [ahead * BK, column]], pred=ahead < steps)
gl.portable.store(c_tiles, [row, column], gl.portable.read(acc))
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Optional, Sequence, Union

from gluon_core._triton import tensor, tl, tl_tuple, unwrap
from gluon_core.errors import ArgumentError, DtypeError, GluonError, LayoutError, ShapeError
from gluon_core.layouts.base import SharedLayout
from gluon_core.plugin.language import Lowering
from gluon_core.plugin.ops import builtin, semantic_layer
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import BufferLayout, Const, Operand, Scalar, Shape, Values
from gluon_core.portable.common import around, check_base, choose, lower
from gluon_core.portable.masked_tiles import load
from gluon_core.portable.records import PipelineFacts, Record, TileFacts
from gluon_core.portable.requests import TileRequest, TileStoreRequest
from gluon_core.portable.selection import available, code, named
from gluon_core.semantic import layer
from gluon_core.semantic.base import shape_of
from gluon_core.semantic.operands import compile_time_int, predicate, scalar_int32
from gluon_core.values import check_block_shape, unwrap_shape
from gluon_core.values.descriptors import tensor_descriptor
from gluon_core.values.tensors import describe

__all__ = [
    "Fetch",
    "descriptor",
    "load_tile",
    "pipeline",
    "store_tile",
    "tile_descriptor",
    "tile_pipeline",
    "tile_place",
]


_MOST_RANK = 5  # of a tensor


class Fetch(NamedTuple):
    """The copies of one step that one lowering makes.

    Attributes:
        tiles: a `tile_descriptor` each.
        buffers: shared memory for one tile each.
        coordinates: of the first element of each tile, int32 scalars.
        state: the result of `begin`.
        slot: of the ring of buffers, int32 scalar.
        pred: int1 scalar; where false nothing is copied. None is true.
    """

    tiles: Sequence[Any]
    buffers: Sequence[Any]
    coordinates: Sequence[Sequence[Any]]
    state: Any
    slot: Any
    pred: Any


class tile_descriptor(Record):
    """A tensor in global memory of which `pipeline` and `store` move tiles. Its parts are the base,
    the shape (int32), the strides (int64), and the additional values of the hardware."""

    @property
    def dtype(self) -> Any:
        """dtype of the elements."""
        return self.facts.dtype

    @property
    def block_shape(self) -> list[int]:
        """Shape of a tile."""
        return list(self.facts.block_shape)

    @property
    def layout(self) -> Any:
        """Layout of a tile in shared memory."""
        return self.facts.layout

    @property
    def base(self) -> tensor:
        """Scalar pointer to the tensor's first element."""
        return self.parts.values[0]

    @property
    def extents(self) -> Sequence[Any]:
        """Return the tensor's shape, int32 scalars."""
        return self.parts.values[1].values

    @property
    def strides(self) -> Sequence[Any]:
        """In elements, int64 scalars; of all dimensions but the last, whose stride is 1."""
        return self.parts.values[2].values

    @property
    def native(self) -> Sequence[Any]:
        """Return the state of the lowering."""
        return self.parts.values[3].values


@builtin(name="gl.portable.descriptor")
def descriptor(
    base: tensor,
    shape: Sequence[Scalar[int]],
    strides: Sequence[Scalar[int]],
    block_shape: Shape,
    shared_layout: Optional[BufferLayout] = None,
    host: Optional[tensor_descriptor] = None,
) -> tile_descriptor:
    """Describe a tensor in global memory that is moved in tiles: by TMA or TDM where the target has
    it, the layout is one that it writes, and the base and the strides are known to be aligned as it
    needs them; by masked copies otherwise. TMA needs multiples of 16 bytes: launches find out, a
    signature says so by `:16`, and `gl.multiple_of` promises it of a value that was computed.

    Elements of a tile that lie behind the end of the tensor are zero when copied, and left out when
    stored. No tile begins before it, at a coordinate below 0: the simulator reports that.
    Make it once, before any loop.

    A tile of fewer dimensions than the tensor is at one index of each of the first ones: tiles of rows and columns
    of a batch of matrices end where a matrix does.

    Args:
        base: scalar pointer to the first element.
        shape: of the tensor, 1 to 5 integers.
        strides: in elements; the last is the constant 1.
        block_shape: of a tile, compile-time powers of two; a tile spans less than 2 GiB. Where it
            has fewer dimensions than the tensor, of the last ones.
        shared_layout: of a tile in shared memory, such as `mma_layouts(...).a_shared`; the best for
            the target by default.
        host: an argument of the kernel that describes the same tensor and tile, such as a `TensorDescriptor` of
            the host, or None. The target's unit takes it in place of a descriptor that the kernel makes, where
            dtype, tile and layout are the same.

    Returns:
        A `tile_descriptor`.

    Raises:
        ArgumentError: `host` is no descriptor.
        DtypeError: `base` is no scalar pointer, or a size is no integer.
        ShapeError: ranks that differ, or strides whose last is not 1.
        LayoutError: `shared_layout` is no layout for shared memory.
    """
    semantic = semantic_layer()
    check_base(semantic, base, "base")
    dtype = base.dtype.element_ty
    block = tuple(unwrap_shape(block_shape, "block_shape"))
    check_block_shape(block, "a tile")
    sizes, steps = _listed(shape, "shape"), _listed(strides, "strides")
    for argument, values in (("shape", sizes), ("strides", steps)):
        if len(values) != len(sizes) or not 1 <= len(block) <= len(values) <= _MOST_RANK:
            raise ShapeError(
                "needs one for each dimension of the tensor, and the tile no more dimensions",
                argument=argument,
                expected=f"{len(block)} to {_MOST_RANK}, as many sizes as strides",
                got=len(values),
            )
    last = unwrap(steps[-1])
    if isinstance(last, tl.tensor) or last != 1:
        raise ShapeError(
            "the elements of the last dimension must be contiguous",
            argument="strides",
            expected="the constant 1 at the end",
            got=describe(last),
            remedy="Describe the transposed tensor.",
        )
    layout = unwrap(shared_layout)
    if layout is not None and not isinstance(layout, SharedLayout):
        raise LayoutError(
            "not a layout for shared memory", argument="shared_layout", got=repr(layout)
        )
    described: Any = unwrap(host)
    if described is not None and not isinstance(described, tensor_descriptor):
        raise ArgumentError(
            "not a descriptor of a launch",
            argument="host",
            expected="an argument such as TensorDescriptor.from_tensor(tensor, block_shape), or None",
            got=describe(described),
        )
    sizes = [_scalar(semantic, size, tl.int32, "shape") for size in sizes]
    plain = [unwrap(step) for step in steps[:-1]]
    scalars = [_scalar(semantic, step, tl.int64, "strides") for step in plain]
    known = [g if isinstance(g, int) else s for g, s in zip(plain, scalars)]
    single = len(sizes) - len(block)
    request = TileRequest(
        *around(semantic),
        base,
        sizes,
        [*known, 1],
        dtype,
        (*[1] * single, *block),
        layout,
        tuple(layer().known_multiple(step) for step in plain),
        layer().known_multiple(base),
        described,
        single,
    )
    chosen = choose("tile_copy", request).chosen
    layout = layout or _own_layout(replace(request, block_shape=block, single=0), chosen)
    rows = min((1 << 30, *request.multiples)) if len(sizes) > 1 else request.alignment
    together = min(rows, request.alignment * 8 // dtype.primitive_bitwidth)
    facts = TileFacts(dtype, block, layout, chosen.name, max(1, together))
    native = code(chosen)(request, _semantic=semantic)
    return tile_descriptor(
        [base, tl_tuple(sizes), tl_tuple(scalars), tl_tuple(list(native))], facts
    )


def _own_layout(request: TileRequest, chosen: Lowering) -> Any:
    """Return the layout that the target's own unit for tiles wants: readers of the tiles expect it, also
    where `chosen` has to copy because the strides are not aligned."""
    for lowering in available("tile_copy", request.target, request.triton):
        if lowering.priority <= chosen.priority:
            break
        try:
            return code(lowering, "layout")(request)
        except GluonError:
            continue  # it has none for such tiles
    return code(chosen, "layout")(request)


class tile_pipeline(Record):
    """A ring of buffers in shared memory that tiles are copied to ahead of their use. Its parts are
    the descriptors, the buffers `[stages, *tile]`, and the state of each lowering in use."""

    @builtin(name="tile_pipeline.fetch")
    def fetch(
        self,
        step: Scalar[int],
        coordinates: Sequence[Union[Values, Scalar[int]]],
        pred: Scalar[bool] = True,
    ) -> None:
        """Start copying the tiles of a step, in the background where possible.

        The buffers are those of the step `stages` before, which nobody may use any more: loads from
        them are over, and multiplications were waited for.

        Args:
            step: integer scalar or constant, 0 for the first and one more for each other.
            coordinates: for each descriptor, where its tile begins: a scalar per dimension, from 0 on.
            pred: int1 scalar; where false nothing is copied, and the step must not be used.

        Raises:
            ShapeError: not one for each descriptor and dimension.
        """
        semantic = semantic_layer()
        tiles, buffers, states = _parts_of(self)
        places = _listed(coordinates, "coordinates")
        if len(places) != len(tiles):
            raise ShapeError(
                "needs one for each descriptor",
                argument="coordinates",
                expected=len(tiles),
                got=len(places),
            )
        spots = [tile_place(semantic, tile, place) for tile, place in zip(tiles, places)]
        slot, _ = _place(semantic, step, self.facts.stages)
        plain = unwrap(pred)
        when = None if plain is True else predicate(semantic, plain)
        _record(semantic, "tiles_fetched", buffers[0], step, when)
        for place in spots:
            semantic.record("tile_placed", list(place), when)
        views = [semantic.memdesc_index(buffer, slot) for buffer in buffers]
        for name, state in zip(_lowerings(self.facts), states):
            mine = [i for i, tile in enumerate(tiles) if tile.facts.lowering == name]
            code(named("tile_copy", name), "fetch")(
                Fetch(
                    [tiles[i] for i in mine],
                    [views[i] for i in mine],
                    [spots[i] for i in mine],
                    state,
                    slot,
                    when,
                ),
                _semantic=semantic,
            )

    @builtin(name="tile_pipeline.wait")
    def wait(self, step: Scalar[int], pending: Optional[Const[int]] = None) -> tl_tuple:
        """Wait until the tiles of a step are there.

        Args:
            step: as given to `fetch`.
            pending: compile-time integer: how many later steps have been fetched, of all pipelines;
                `stages - 2` by default, which is right where each step of a loop first waits and
                then fetches `stages - 1` ahead.

        Returns:
            The buffers, a shared memory descriptor for each tile.
        """
        semantic = semantic_layer()
        _, buffers, states = _parts_of(self)
        stages = self.facts.stages
        least = max(stages - 2, 0)
        count = least if unwrap(pending) is None else compile_time_int(pending, "pending", 0)
        _record(semantic, "tiles_awaited", buffers[0], step, count)
        slot, phase = _place(semantic, step, stages)
        for name, state in zip(_lowerings(self.facts), states):
            arrived = code(named("tile_copy", name), "arrived")
            arrived(state, slot, phase, count, _semantic=semantic)
        return tl_tuple([semantic.memdesc_index(buffer, slot) for buffer in buffers])

    @builtin(name="tile_pipeline.close")
    def close(self) -> None:
        """End the pipeline: nothing of it is under way any more. Every step whose tiles were copied
        must have been waited for."""
        _, _, states = _parts_of(self)
        for name, state in zip(_lowerings(self.facts), states):
            end = code(named("tile_copy", name), "end")
            end(state, self.facts.stages, _semantic=semantic_layer())


@builtin(name="gl.portable.pipeline")
def pipeline(
    descriptors: Union[tile_descriptor, Sequence[tile_descriptor], tl_tuple], stages: Const[int]
) -> tile_pipeline:
    """Allocate a ring of `stages` buffers for the tiles of each of `descriptors`, to be copied in
    steps: `fetch` starts the copies of a step, `wait` waits for them, `close` ends it all.

    Args:
        descriptors: sequence of results of `descriptor`.
        stages: compile-time integer.

    Returns:
        A `tile_pipeline`.

    Raises:
        ArgumentError: no descriptors, or an illegal number.
    """
    semantic = semantic_layer()
    count = compile_time_int(stages, "stages", 1)
    listed = unwrap(descriptors)
    tiles = [listed] if isinstance(listed, tile_descriptor) else _listed(listed, "descriptors")
    for tile in tiles:
        _check_descriptor(tile, "descriptors")
    if not tiles:
        raise ArgumentError("none", argument="descriptors", expected="at least one")
    facts = PipelineFacts(count, tuple(tile.facts for tile in tiles))
    buffers = [
        semantic.allocate_shared(tile.dtype, [count, *tile.block_shape], tile.layout)
        for tile in tiles
    ]
    semantic.record("tiles_begun", buffers[0])
    states = []
    for name in _lowerings(facts):
        begin = code(named("tile_copy", name), "begin")
        copied = sum(tile.lowering == name for tile in facts.tiles)
        states.append(tl_tuple(list(begin(count, copied, _semantic=semantic))))
    return tile_pipeline([tl_tuple(tiles), tl_tuple(buffers), tl_tuple(states)], facts)


def load_tile(tile: tile_descriptor, coordinates: Any) -> tensor:
    """`gl.portable.load` of a tile."""
    semantic = semantic_layer()
    place = tile_place(semantic, tile, coordinates)
    semantic.record("tile_placed", list(place), None)
    return load(tile, place, semantic)


def store_tile(tile: tile_descriptor, coordinates: Any, value: Operand) -> None:
    """`gl.portable.store` of a tile."""
    semantic = semantic_layer()
    held = semantic.require_distributed(value, "value")
    shape, block = shape_of(held), tile.block_shape
    if shape[:-1] != block[:-1] or len(shape) != len(block) or shape[-1] % block[-1]:
        raise ShapeError(
            "not the shape of a tile, nor of several side by side",
            argument="value",
            expected=block,
            got=shape,
        )
    place = tile_place(semantic, tile, coordinates)
    semantic.record("tile_placed", list(place), None)
    request = TileStoreRequest(
        *around(semantic),
        tile,
        place,
        semantic.cast(held, tile.dtype),
        held.type.layout,
    )
    lower("tile_store", request)


# -- shared --------------------------------------------------------------------------------------


def _lowerings(facts: PipelineFacts) -> list[str]:
    """Return the lowerings that a pipeline's tiles take, each once."""
    return list(dict.fromkeys(tile.lowering for tile in facts.tiles))


def _parts_of(value: tile_pipeline) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    tiles, buffers, states = value.parts.values
    return tiles.values, buffers.values, states.values


def _check_descriptor(value: Any, argument: str) -> None:
    if not isinstance(value, tile_descriptor):
        raise ArgumentError(
            "not a descriptor",
            argument=argument,
            expected="what gl.portable.descriptor(...) returns",
            got=describe(value),
        )


def _listed(values: Any, argument: str) -> list[Any]:
    values = unwrap(values)
    if not isinstance(values, (list, tuple, tl_tuple)):
        raise ShapeError("not a sequence", argument=argument, got=describe(values))
    return [unwrap(value) for value in values]


def tile_place(semantic: SemanticLayer, tile: tile_descriptor, place: Any) -> list[Any]:
    """Return the first element of a tile, int32 scalars."""
    listed = _listed(place, "coordinates")
    if len(listed) != len(tile.extents):
        raise ShapeError(
            "needs one for each dimension of the tensor",
            argument="coordinates",
            expected=len(tile.extents),
            got=len(listed),
        )
    for value in listed:
        if isinstance(value, int) and value < 0:
            semantic.warn(
                f"a tile that begins at {value}, before its tensor: some targets leave out the elements "
                "not inside, others take other elements or end in an illegal instruction. Begin at "
                "0 or later."
            )
    return [scalar_int32(semantic, value, "coordinates") for value in listed]


def _scalar(semantic: SemanticLayer, value: Any, dtype: Any, argument: str) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return semantic.scalar_constant(value, dtype)
    if isinstance(value, tl.tensor) and not value.type.is_block() and value.dtype.is_int():
        return semantic.cast(value, dtype)
    raise DtypeError("must be integers", argument=argument, expected=dtype, got=describe(value))


def _record(semantic: SemanticLayer, event: str, ring: Any, step: Any, more: Any) -> None:
    """Record that a step of the pipeline `ring` is fetched or awaited; only then `step` becomes a value."""
    if hasattr(semantic.builder, event):
        semantic.record(event, ring, semantic.scalar_int32(step, "step"), more)


def _place(semantic: SemanticLayer, step: Any, stages: int) -> tuple[Any, Any]:
    """Slot of a step in the ring, and the parity of the rounds before it."""
    plain = unwrap(step)
    if isinstance(plain, int) and not isinstance(plain, bool):
        values = plain % stages, plain // stages & 1
        slot, round_ = (semantic.scalar_constant(value, tl.int32) for value in values)
        return slot, round_
    step = scalar_int32(semantic, plain, "step")
    if stages & (stages - 1):
        count = semantic.scalar_constant(stages, tl.int32)
        slot, round_ = semantic.mod(step, count), semantic.floordiv(step, count)
    else:
        mask = semantic.scalar_constant(stages - 1, tl.int32)
        shift = semantic.scalar_constant(stages.bit_length() - 1, tl.int32)
        slot, round_ = semantic.and_(step, mask), semantic.lshr(step, shift)
    return slot, semantic.and_(round_, semantic.scalar_constant(1, tl.int32))
