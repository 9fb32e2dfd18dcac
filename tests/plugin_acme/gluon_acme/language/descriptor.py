"""Tile maps: what the Anvil's tile copies are handed."""

from gluon_core.values import descriptors as core

__all__ = ["tile_map", "tile_map_type"]


class tile_map_type(core.tensor_descriptor_type):
    """Type of a tile map."""

    _name = "tile_map"
    _prefix = "AT"

    def make(self, handle, shape, strides):
        return tile_map(handle, shape, strides, self.block_type, self.layout)


class tile_map(core.tensor_descriptor):
    """A tile map inside a kernel."""

    type_class = tile_map_type
