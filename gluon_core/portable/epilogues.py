"""Change accumulators on their way to memory: epilogues, and writers of tiles that use them.

end = gl.portable.epilogue([M, N], bias=bias, activation=gelu)   # before the loop over tiles
out = gl.portable.writer(c_tiles, parts=4, epilogue=end)
...
out.store([row, column], gl.portable.read(acc))                  # for each tile
...
out.close()
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional, Sequence, Union

from gluon_core._triton import JITFunction, tensor, tl, tl_tuple, unwrap
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_core.layouts import SliceLayout
from gluon_core.plugin.ops import builtin, is_builtin, semantic_layer
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Dtype, KernelFunction, Operand, Scalar, Values
from gluon_core.portable.common import around, choose, lower
from gluon_core.portable.records import Record
from gluon_core.portable.requests import LoadRequest, TileStoreRequest
from gluon_core.portable.selection import code, named
from gluon_core.portable.tile_ops import tile_descriptor, tile_place
from gluon_core.semantic.base import shape_of
from gluon_core.semantic.operands import compile_time_int, scalar_int32
from gluon_core.values.tensors import describe

__all__ = [
    "epilogue",
    "tile_epilogue",
    "tile_output",
    "writer",
]


@dataclass(frozen=True)
class EpilogueFacts:
    """Which of the operands there are, in the order of the record's parts, and the activation: a text
    that tells it from others, and the function."""

    has: tuple[str, ...]
    text: str = ""
    activation: Any = field(default=None, compare=False, repr=False)


class tile_epilogue(Record):
    """Apply an epilogue to a tile of the accumulator before its store."""

    @staticmethod
    def check(value: object) -> None:
        """Raise ArgumentError unless `value` is an epilogue or None."""
        if value is not None and not isinstance(value, tile_epilogue):
            raise ArgumentError(
                "not an epilogue",
                argument="epilogue",
                expected="what gl.portable.epilogue(...) returns",
                got=describe(value),
            )

    @builtin(name="tile_epilogue.apply")
    def apply(
        self,
        value: tensor,
        coordinates: Union[Values, Sequence[Scalar[int]]],
        dtype: Optional[Dtype] = None,
    ) -> tensor:
        """Return the tile as it is stored.

        Args:
            value: tensor of two dimensions: a tile of sums, or a part of one.
            coordinates: where it begins: row and column, integer scalars; of more, the last two.
            dtype: of the result, float32 by default. Values beyond the finite numbers of an 8-bit type
                become the nearest.

        Returns:
            A tensor of the same shape and layout.

        Raises:
            LayoutError: the layout of `value` is not known yet.
            ShapeError: not two dimensions.
        """
        semantic = semantic_layer()
        held = semantic.require_distributed(value, "value")
        place = _listed(coordinates)
        if len(held.shape) != 2 or len(place) < 2:
            raise ShapeError(
                "not a tile of a matrix",
                argument="value",
                expected="two dimensions, and a row and a column",
                got=f"{shape_of(held)} at {len(place)} coordinates",
            )
        here = [scalar_int32(semantic, item, "coordinates") for item in place[-2:]]
        return self._finished(_Tile(semantic, held, here, self.parts.values[:2]), unwrap(dtype))

    def _finished(self, tile: _Tile, dtype: Any) -> tensor:
        semantic = tile.semantic
        result = semantic.cast(tile.value, tl.float32)
        operands = dict(zip(self.facts.has, self.parts.values[2:]))
        if "scale" in operands:
            result = semantic.mul(result, operands["scale"], True)
        if "row_scale" in operands:
            result = semantic.mul(result, tile.along(operands["row_scale"], 0), True)
        if "column_scale" in operands:
            result = semantic.mul(result, tile.along(operands["column_scale"], 1), True)
        if "bias" in operands:
            result = semantic.add(result, tile.along(operands["bias"], 1), True)
        if self.facts.activation is not None:
            result = _activated(self.facts.activation, result)
        if "residual" in operands:
            result = semantic.add(
                result, tile.whole(operands["residual"], operands["stride"]), True
            )
        if "result_scale" in operands:
            result = semantic.mul(result, operands["result_scale"], True)
        return _as(semantic, result, dtype) if dtype is not None else result


@dataclass
class _Tile:
    """A tile of sums, and where in the matrix it is."""

    semantic: SemanticLayer
    value: Any
    place: Sequence[Any]
    sizes: Sequence[Any]

    def _ids(self, dim: int) -> Any:
        return self.semantic.arange(
            0, int(self.value.shape[dim]), SliceLayout(1 - dim, self.value.type.layout)
        )

    def along(self, pointer: Any, dim: int) -> Any:
        """float32 numbers of the tile's rows (`dim` 0) or columns (1), from a vector in memory."""
        s = self.semantic
        offsets = s.add(self._ids(dim), self.place[dim], True)
        inside = s.less_than(offsets, self.sizes[dim])
        values = lower("load", LoadRequest(*around(s), pointer, offsets, inside, 0.0))
        return s.expand_dims(s.cast(values, tl.float32), 1 - dim)

    def whole(self, pointer: Any, stride: Any) -> Any:
        """Return the same tile of another matrix, float32."""
        s = self.semantic
        wide = [s.cast(scalar, tl.int64) for scalar in (*self.place, stride)]
        base = s.add(pointer, s.add(s.mul(wide[0], wide[2], True), wide[1], True), True)
        ids = [self._ids(dim) for dim in (0, 1)]
        inside = [
            s.expand_dims(s.less_than(s.add(ids[d], self.place[d], True), self.sizes[d]), 1 - d)
            for d in (0, 1)
        ]
        rows = s.mul(s.expand_dims(ids[0], 1), s.cast(stride, tl.int32), True)
        offsets = s.add(rows, s.expand_dims(ids[1], 0), True)
        mask = s.and_(inside[0], inside[1])
        values = lower("load", LoadRequest(*around(s), base, offsets, mask, 0.0))
        return s.cast(values, tl.float32)


@builtin(name="gl.portable.epilogue")
def epilogue(
    shape: Union[Sequence[Scalar[int]], Values],
    scale: Optional[Operand] = None,
    row_scale: Optional[tensor] = None,
    column_scale: Optional[tensor] = None,
    bias: Optional[tensor] = None,
    activation: Optional[KernelFunction] = None,
    residual: Optional[tensor] = None,
    stride: Optional[Scalar[int]] = None,
    result_scale: Optional[Operand] = None,
) -> tile_epilogue:
    """Describe a change of accumulator tiles before their store, in float32:

        activation(sums * scale * row_scale[:, None] * column_scale[None, :] + bias[None, :])
        + residual, all times result_scale

    Operands that are None are left out.

    Args:
        shape: rows and columns of the result, integer scalars; nothing beyond is read.
        scale: scalar.
        row_scale: scalar pointer to a number for each row.
        column_scale: scalar pointer to a number for each column.
        bias: scalar pointer to a number for each column.
        activation: a `@gluon.jit` function, or an op such as `gl.exp`, of one float32 tensor, with
            a float32 tensor of the same shape and layout as its result.
        residual: scalar pointer to a matrix of that shape, whose rows are contiguous.
        stride: elements from a row of `residual` to the next, the number of columns by default.
        result_scale: scalar; for results of 8 bits, one over the scale that they have.

    Returns:
        A `tile_epilogue`.

    Raises:
        ArgumentError: an `activation` that is no function, or a `stride` of nothing.
        DtypeError: not a scalar, or no scalar pointer to numbers.
        ShapeError: not two sizes.
    """
    semantic = semantic_layer()
    sizes = _listed(shape, "shape")
    if len(sizes) != 2:
        raise ShapeError("not the shape of a matrix", argument="shape", expected=2, got=len(sizes))
    extents = [scalar_int32(semantic, size, "shape") for size in sizes]
    numbers = {"scale": scale, "result_scale": result_scale}
    vectors = {"row_scale": row_scale, "column_scale": column_scale, "bias": bias}
    operands: dict[str, Any] = {}
    for name, value in {**numbers, **vectors, "residual": residual}.items():
        plain = unwrap(value)
        if plain is not None:
            convert = _number if name in numbers else _pointer
            operands[name] = convert(semantic, plain, name)
    step = unwrap(stride)
    if "residual" in operands:
        operands["stride"] = extents[1] if step is None else scalar_int32(semantic, step, "stride")
    elif step is not None:
        raise ArgumentError(
            "needs a residual", argument="stride", remedy="Pass residual=, or drop it."
        )
    function = unwrap(activation)
    if function is not None and not isinstance(function, JITFunction) and not is_builtin(function):
        raise ArgumentError(
            "not a function of kernels",
            argument="activation",
            expected="a @gluon.jit function of one tensor",
            got=describe(function),
        )
    facts = EpilogueFacts(tuple(operands), _text(function), function)
    return tile_epilogue([*extents, *operands.values()], facts)


# -- writers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutputFacts:
    """Return the lowering of `tile_store` that keeps buffers, "" for none, and the number of adjacent
    tiles of a store."""

    lowering: str
    parts: int


class tile_output(Record):
    """Store a tensor in tiles, with an epilogue."""

    @builtin(name="tile_output.store")
    def store(self, coordinates: Union[Values, Sequence[Scalar[int]]], value: Operand) -> None:
        """Start storing `value`; asynchronous stores go on while the next tile is worked on.

        Args:
            coordinates: where it begins: an integer scalar per dimension, from 0 on.
            value: a tensor of as many tiles side by side as the writer has parts.

        Raises:
            ShapeError: `value` has another shape, or not one coordinate for each dimension.
        """
        semantic = semantic_layer()
        tile, state, end = self.parts.values
        held = semantic.require_distributed(value, "value")
        block = list(tile.block_shape)
        wanted = [*block[:-1], block[-1] * self.facts.parts]
        if shape_of(held) != wanted:
            raise ShapeError(
                "not that of the writer",
                argument="value",
                expected=f"{self.facts.parts} of {block} side by side",
                got=shape_of(held),
            )
        place = tile_place(semantic, tile, coordinates)
        semantic.record("tile_placed", list(place), None)
        finish = end.values[0] if end.values else None
        request = TileStoreRequest(*around(semantic), tile, place, held, held.type.layout)
        chosen = choose("tile_store", request).chosen
        if chosen.name == self.facts.lowering:
            code(chosen, "put")(request, list(state.values), finish, _semantic=semantic)
            return
        # Part by part, so that the operands of an epilogue take few registers.
        width = shape_of(held)[-1] if finish is None else request.narrowest
        for i, part in enumerate(semantic.split_columns(held, width)):
            here = semantic.moved_right(place, i * width)
            if finish is not None:
                part = finish.apply(part, here, tile.dtype)
            part = semantic.cast(part, tile.dtype)
            asked = TileStoreRequest(*around(semantic), tile, here, part, part.type.layout)
            code(chosen)(asked, _semantic=semantic)

    @builtin(name="tile_output.close")
    def close(self) -> None:
        """Wait until all that was stored is out of the buffers. To be called at the end."""
        if self.facts.lowering:
            semantic, state = semantic_layer(), list(self.parts.values[1].values)
            code(named("tile_store", self.facts.lowering), "close")(state, _semantic=semantic)


@builtin(name="gl.portable.writer")
def writer(
    tiles: tile_descriptor, parts: Const[int] = 1, epilogue: Optional[tile_epilogue] = None
) -> tile_output:
    """Store tiles of a tensor one after the other: through buffers from which hardware stores while the
    next tile is worked on where there is such (TMA), else at once.

    Args:
        tiles: result of `gl.portable.descriptor`.
        parts: compile-time integer: number of adjacent tiles that are stored at once.
        epilogue: change of the tiles before.

    Returns:
        A `tile_output`.

    Raises:
        ArgumentError: no descriptor or no epilogue, or an illegal number.
    """
    semantic, tile, end = semantic_layer(), unwrap(tiles), unwrap(epilogue)
    if not isinstance(tile, tile_descriptor):
        raise ArgumentError(
            "not a descriptor",
            argument="tiles",
            expected="what gl.portable.descriptor(...) returns",
            got=describe(tile),
        )
    tile_epilogue.check(end)
    count = compile_time_int(parts, "parts", 1)
    # As nothing is stored yet, the layout of the values may be any.
    request = TileStoreRequest(*around(semantic), tile, (), None, None)
    chosen = choose("tile_store", request).chosen
    keeps = "open" in chosen.extras
    state = code(chosen, "open")(tile, count, _semantic=semantic) if keeps else []
    held = tl_tuple([] if end is None else [end])
    facts = OutputFacts(chosen.name if keeps else "", count)
    return tile_output([tile, tl_tuple(list(state)), held], facts)


# -- shared --------------------------------------------------------------------------------------


def _activated(function: Any, value: Any) -> Any:
    if is_builtin(function):
        result = function(value)
    else:
        result = semantic_layer().call(function, value)
    if getattr(result, "type", None) != value.type:
        raise ArgumentError(
            "does not return the type of its argument",
            argument="activation",
            expected=str(value.type),
            got=describe(result),
            remedy="It takes one tensor and returns one of the same shape, layout and dtype.",
        )
    return result


def _as(semantic: SemanticLayer, value: Any, dtype: Any) -> Any:
    """`value` as `dtype`; of 8 bits, the nearest there is."""
    bounds = _BOUNDS.get(dtype.name)
    if bounds is not None:
        low, high = (semantic.scalar_constant(bound, tl.float32) for bound in bounds)
        value = semantic.clamp(value, low, high, tl.PropagateNan.ALL)
        if not dtype.is_floating():
            value = _rounded(semantic, value)
    return semantic.cast(value, dtype)


def _rounded(semantic: SemanticLayer, value: Any) -> Any:
    """To the nearest integer, halves away from zero: a conversion to integers cuts off."""
    zero, half = (semantic.scalar_constant(number, tl.float32) for number in (0.0, 0.5))
    signed = semantic.where(semantic.less_than(value, zero), semantic.minus(half), half)
    return semantic.add(value, signed, True)


# Finite bounds of 8-bit types, by name.
_BOUNDS = {
    "fp8e4nv": (-448.0, 448.0),
    "fp8e4b8": (-240.0, 240.0),
    "fp8e5": (-57344.0, 57344.0),
    "fp8e5b16": (-57344.0, 57344.0),
    "int8": (-128.0, 127.0),
    "uint8": (0.0, 255.0),
}


def _text(function: Any) -> str:
    """Return the identity of an activation."""
    if function is None:
        return ""
    module, name = function.__module__, function.__qualname__
    return f"{module}.{name} {getattr(function, 'cache_key', '')}"


def _number(semantic: SemanticLayer, value: Any, argument: str) -> Any:
    tensor = semantic.to_tensor(value)
    if tensor.type.is_block() or tensor.dtype.is_ptr():
        raise DtypeError("must be a scalar", argument=argument, got=describe(value))
    return semantic.cast(tensor, tl.float32)


def _pointer(semantic: SemanticLayer, value: Any, argument: str) -> Any:
    element = getattr(getattr(value, "dtype", None), "element_ty", None)
    if element is None or value.type.is_block() or element.is_ptr():
        raise DtypeError(
            "must be a scalar pointer to numbers", argument=argument, got=describe(value)
        )
    return value


def _listed(values: Any, argument: str = "coordinates") -> list[Any]:
    values = unwrap(values)
    if not isinstance(values, (list, tuple, tl_tuple)):
        raise ShapeError("not a sequence", argument=argument, got=describe(values))
    return [unwrap(value) for value in values]
