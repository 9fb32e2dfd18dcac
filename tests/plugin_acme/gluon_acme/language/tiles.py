"""Tile maps, the descriptors of the Anvil."""

from gluon_core.plugin import errors
from gluon_core.plugin.ops import builtin, semantic_layer
from gluon_core.plugin.semantic import Memory
from gluon_core.plugin.typing import Scalar
from gluon_core.values import descriptors


class tile_map_type(descriptors.tensor_descriptor_type):
    """Type of a tile map."""

    _name = "tile_map"
    _prefix = "AT"

    def make(self, handle, shape, strides):
        return tile_map(handle, shape, strides, self.block_type, self.layout)


class tile_map(descriptors.tensor_descriptor):
    """A tile map inside a kernel."""

    type_class = tile_map_type


@builtin(requires=("acme.clamp",), name="gl.acme.anvil.start_tile")
def start_tile(buffer: Memory, tiles: tile_map, row: Scalar[int], column: Scalar[int]) -> None:
    """Start to copy the tile at (row, column) of a matrix into a shared buffer; zero outside it."""
    semantic = semantic_layer()
    if not isinstance(tiles, tile_map):
        raise errors.DtypeError("not a tile map", argument="tiles", got=str(tiles.type))
    shape, wanted = list(buffer.shape), list(tiles.block_shape)
    if shape != wanted:
        raise errors.ShapeError(
            "not of the shape of a tile", argument="buffer", expected=wanted, got=shape
        )
    origin = [semantic.to_tensor(value).handle for value in (row, column)]
    semantic.builder.create_acme_start_tile(buffer.handle, tiles.handle, *origin)
