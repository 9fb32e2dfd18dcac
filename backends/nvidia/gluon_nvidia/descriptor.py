"""Encode tensor maps: the form that a host-side descriptor takes when a kernel is launched with it.

A kernel takes a descriptor as a 128-byte `CUtensorMap` by value, then the shape as int32 and the
strides as int64. How the map is encoded (box, swizzle, element type) is in the compiled kernel's
metadata. Encoding is pure arithmetic on the host, but slow next to a launch, so maps are kept.
"""

from __future__ import annotations

import ctypes
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Mapping, NoReturn, Sequence

from gluon_core import errors
from gluon_core.values import descriptors
from gluon_nvidia.driver import Driver
from gluon_runtime import native

if TYPE_CHECKING:
    from gluon_nvidia.host.descriptor import TensorDescriptor

__all__ = ["MapKind", "TensorMaps", "map_kinds"]

_MOST_MAPS = 4096


@dataclass(frozen=True)
class MapKind:
    """Describe the maps that a compiled kernel expects for one of its descriptors.

    Args:
        tiled: False for im2col.
        rank: of the tensor.
        swizzle: CUtensorMapSwizzle.
        element_type: as PTX numbers it.
        element_bytes: bytes of the unit of strides.
        fp4_padded: two elements of the tensor are one byte, the shape counts bytes.
        box: extent of one copy; pixels and channels for im2col.
    """

    tiled: bool
    rank: int
    swizzle: int
    element_type: int
    element_bytes: int
    fp4_padded: bool
    box: tuple[int, ...]

    @classmethod
    def of(cls, rank: int, metadata: Mapping[str, Any]) -> MapKind:
        """Return the kind of a descriptor of a tensor of `rank`, by its entry in `tensordesc_meta`."""
        return cls(
            tiled=not metadata.get("is_im2col", False),
            rank=rank,
            swizzle=int(metadata["swizzle"]),
            element_type=int(metadata["elem_type"]),
            element_bytes=int(metadata["elem_size"]),
            fp4_padded=bool(metadata["fp4_padded"]),
            box=tuple(int(size) for size in metadata["block_size"]),
        )

    def packed(self) -> bytes:
        """Return the kind for the launch in C, see `native.map_kind`."""
        *head, box = astuple(self)
        return native.map_kind(self, *map(int, head), box=box)


def map_kinds(name: str, signature: Sequence[Any], metadata: Any) -> list[MapKind]:
    """Return the kind of each descriptor of a kernel, in order.

    Raises:
        LaunchError: the metadata does not describe them.
    """
    ranks: list[int] = []

    def walk(kind: Any) -> None:
        if isinstance(kind, (tuple, list)):
            for item in kind:
                walk(item)
            return
        descriptor = descriptors.split_descriptor(kind)
        if descriptor is not None:
            ranks.append(descriptor.rank)

    walk(tuple(signature))
    recorded = list(getattr(metadata, "tensordesc_meta", None) or ())
    if len(recorded) != len(ranks):
        raise errors.LaunchError(
            f"the compiled {name} does not say how its descriptors are encoded",
            expected=f"{len(ranks)} entries in tensordesc_meta",
            got=len(recorded),
        )
    return [MapKind.of(rank, entry) for rank, entry in zip(ranks, recorded)]


class TensorMaps:
    """Encodes descriptors through the driver.

    Args:
        cuda: the driver.
        index: of the device that the kernel is loaded on.
    """

    def __init__(self, cuda: Driver, index: int):
        self.cuda = cuda
        self.index = index
        self._known: dict[Any, bytes] = {}

    def encode(self, kind: MapKind, descriptor: TensorDescriptor) -> bytes:
        """Return the map of a descriptor.

        Raises:
            CapabilityError: the driver has no tensor maps, or not of this kind.
            ArgumentError, ShapeError, LayoutError, DtypeError: the descriptor is not legal.
            LaunchError: the driver refuses it for another reason.
        """
        if kind.tiled:  # the engine keeps these
            return self._encode(kind, descriptor)
        base: Any = descriptor.base
        place = (base.data_ptr(), tuple(descriptor.shape), tuple(descriptor.strides))
        modes = (descriptor.padding, descriptor.round_f32_to_tf32)
        corners = [value and tuple(value) for value in descriptor.extra.values()]
        key = (kind, *place, *modes, *corners)
        if key not in self._known:
            if len(self._known) >= _MOST_MAPS:
                self._known.clear()
            self._known[key] = self._encode(kind, descriptor)
        return self._known[key]

    def _encode(self, kind: MapKind, descriptor: TensorDescriptor) -> bytes:
        if len(descriptor.shape) != kind.rank or len(descriptor.strides) != kind.rank:
            raise errors.ArgumentError(
                "the kernel was compiled for a descriptor of another rank",
                argument=type(descriptor).__name__,
                expected=kind.rank,
                got=len(descriptor.shape),
            )
        descriptor.check_launch()
        self.cuda.ensure_context(self.index)
        base: Any = descriptor.base
        sizes = [list(map(int, values)) for values in (descriptor.shape, descriptor.strides)]
        modes = (descriptor.round_f32_to_tf32, descriptor.padding == "nan")
        tensor = (base.data_ptr(), *sizes, *modes)
        if kind.tiled:
            status, encoded = self.cuda.encode_tiled(kind, *tensor)
        else:
            operands = self._corners(kind, descriptor.extra)
            status, encoded = self.cuda.encode("cuTensorMapEncodeIm2col", kind, tensor, operands)
        if status:
            self._refuse(status, kind, descriptor)
        return encoded

    @staticmethod
    def _corners(kind: MapKind, extra: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the operands of `cuTensorMapEncodeIm2col` between the strides and the modes."""
        pixels, channels = kind.box
        lower, upper = extra["pixel_box_lower_corner"], extra["pixel_box_upper_corner"]
        steps = extra["element_strides"] or [1] * kind.rank
        return (
            (ctypes.c_int * len(lower))(*lower[::-1]),
            (ctypes.c_int * len(upper))(*upper[::-1]),
            ctypes.c_uint32(channels),
            ctypes.c_uint32(pixels),
            (ctypes.c_uint32 * len(steps))(*steps[::-1]),
        )

    def _refuse(self, status: int, kind: MapKind, descriptor: TensorDescriptor) -> NoReturn:
        capability = self.cuda.capability(self.index)
        needed = 100 if kind.fp4_padded else 90
        if capability < needed:
            raise errors.CapabilityError(
                f"tensor maps{' of padded fp4' if kind.fp4_padded else ''} need sm_{needed}",
                argument=type(descriptor).__name__,
                got=f"sm_{capability}",
            )
        raise errors.LaunchError(
            "the driver cannot encode the descriptor",
            argument=repr(descriptor),
            expected=f"a tensor for copies of {list(kind.box)} elements of {kind.element_bytes} bytes",
            got=self.cuda.error_text(status),
        )
