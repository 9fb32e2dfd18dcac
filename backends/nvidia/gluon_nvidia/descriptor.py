"""Encode tensor maps: the form that a host-side descriptor takes when a kernel is launched with it.

A kernel takes a descriptor as a 128-byte `CUtensorMap` by value, then the shape as int32 and the
strides as int64. How the map is encoded (box, swizzle, element type) is in the compiled kernel's
metadata. Encoding is pure arithmetic on the host, but slow next to a launch, so maps are kept.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Mapping, NoReturn, Sequence

from gluon_core import errors
from gluon_core.values import descriptors
from gluon_nvidia.driver import SUCCESS, Driver
from gluon_runtime import native

if TYPE_CHECKING:
    from gluon_nvidia.host.descriptor import TensorDescriptor

__all__ = ["MapKind", "TensorMaps", "map_kinds"]

# The compiler numbers element types as PTX's tensormap.replace does, the driver as
# CUtensorMapDataType; they differ in three.
_PTX_TO_DRIVER = {8: 10, 9: 8, 10: 9}
TF32 = 11  # CU_TENSOR_MAP_DATA_TYPE_TFLOAT32

INTERLEAVE_NONE = 0
L2_PROMOTION_128B = 2
FILL = {"zero": 0, "nan": 1}  # CUtensorMapFloatOOBfill

# Drivers up to this one mark the maps of small tensors so that copies may fail; the bit is cleared
# for them, as CUTLASS does.
MARKED_UP_TO = 13010
_SMALL = 128 * 1024
_MARK = 1 << 21

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
        shape = [int(extent) for extent in descriptor.shape[::-1]]
        strides = [int(stride) * kind.element_bytes for stride in descriptor.strides[::-1]]
        if kind.fp4_padded:
            shape[0] *= 2
        element = _PTX_TO_DRIVER.get(kind.element_type, kind.element_type)
        common = (
            TF32 if descriptor.round_f32_to_tf32 else element,
            base.data_ptr(),
            shape,
            strides[1:],
        )
        modes = (INTERLEAVE_NONE, kind.swizzle, L2_PROMOTION_128B, FILL[descriptor.padding])
        if kind.tiled:
            box = list(kind.box[::-1])
            status, encoded = self.cuda.encode_tiled(*common, box, [1] * kind.rank, *modes)
        else:
            pixels, channels = kind.box
            extra = descriptor.extra
            steps = list((extra["element_strides"] or [1] * kind.rank)[::-1])
            lower = list(extra["pixel_box_lower_corner"][::-1])
            upper = list(extra["pixel_box_upper_corner"][::-1])
            status, encoded = self.cuda.encode_im2col(
                *common, lower, upper, channels, pixels, steps, *modes
            )
        if status != SUCCESS:
            self._refuse(status, kind, descriptor)
        reach = sum(
            (extent - 1) * step for extent, step in zip(shape, [kind.element_bytes, *strides[1:]])
        )
        if kind.tiled and reach + 1 < _SMALL and self.cuda.version <= MARKED_UP_TO:
            word = int.from_bytes(encoded[8:16], "little") & ~_MARK
            encoded = encoded[:8] + word.to_bytes(8, "little") + encoded[16:]
        return encoded

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
