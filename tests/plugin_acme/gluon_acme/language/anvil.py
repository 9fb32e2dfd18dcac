"""`gl.acme.anvil`: the ops of the Anvil."""

from gluon_acme.language.descriptor import tile_map
from gluon_core.errors import DtypeError, ShapeError
from gluon_core.plugin.ops import builtin, semantic_layer, tensor
from gluon_core.plugin.typing import Int, Operand
from gluon_core.values import shared_memory_descriptor

__all__ = ["add_clamped", "finish_copies", "start_copy", "start_tile", "tile_map"]


@builtin(requires=("acme.clamp",), name="gl.acme.anvil.add_clamped", instead="gl.clamp(a + b, ...)")
def add_clamped(a: Operand, b: Operand, low: Operand, high: Operand) -> tensor:
    """`min(max(a + b, low), high)` in one instruction.

    Args:
        a, b: float32 tensors of one shape and layout.
        low, high: scalars or tensors.

    Raises:
        DtypeError: an operand is not float32.
    """
    semantic = semantic_layer()
    operands = [semantic.to_tensor(value) for value in (a, b, low, high)]
    shaped = next(value for value in operands if value.type.is_block())
    cast = []
    for name, value in zip(("a", "b", "low", "high"), operands):
        if not value.dtype.is_fp32():
            raise DtypeError("must be float32", argument=name, got=str(value.dtype))
        cast.append(semantic.broadcast_impl_value(value, shaped)[0])
    handle = semantic.builder.create_acme_add_clamped(*(value.handle for value in cast))
    return semantic.make_tensor(handle, cast[0].type)


@builtin(requires=("acme.clamp",), name="gl.acme.anvil.start_copy")
def start_copy(buffer: shared_memory_descriptor, pointer: tensor) -> None:
    """Start to copy the elements behind a tensor of pointers into a shared buffer of its shape."""
    semantic_layer().builder.create_acme_start_copy(buffer.handle, pointer.handle)


@builtin(requires=("acme.clamp",), name="gl.acme.anvil.start_tile")
def start_tile(buffer: shared_memory_descriptor, tiles: tile_map, row: Int, column: Int) -> None:
    """Start to copy the tile at (row, column) of a matrix into a shared buffer; zero outside it.

    Raises:
        DtypeError: `tiles` is no tile map.
        ShapeError: the buffer is not of the tile's shape.
    """
    semantic = semantic_layer()
    if not isinstance(tiles, tile_map):
        raise DtypeError("not a tile map", argument="tiles", got=str(tiles.type))
    if list(buffer.shape) != list(tiles.block_shape):
        raise ShapeError(
            "not of the shape of a tile",
            argument="buffer",
            expected=list(tiles.block_shape),
            got=list(buffer.shape),
        )
    origin = [semantic.to_tensor(value).handle for value in (row, column)]
    semantic.builder.create_acme_start_tile(buffer.handle, tiles.handle, *origin)


@builtin(requires=("acme.clamp",), name="gl.acme.anvil.finish_copies")
def finish_copies() -> None:
    """Wait for all copies that were started."""
    semantic_layer().builder.create_acme_finish_copies()
