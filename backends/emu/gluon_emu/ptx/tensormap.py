"""Tensor maps: 128 bytes that describe a tensor in global memory and the box of it that a copy moves.

The driver's encoding is not documented; this is the emulator's own. `tensormap.replace` changes its fields.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gluon_emu.errors import EmulatorError

__all__ = ["BYTES", "FIELDS", "GROUPS", "TensorMap", "check_map", "encode_map"]

BYTES = 128
_FORMAT = "<Q8B5I4x4Q5H5H6h2H"
TF32 = 11

# Fields of `tensormap.replace`: name -> (offset, bytes, distance of the next by ordinal).
FIELDS = {
    "global_address": (0, 8, 0), "rank": (8, 1, 0), "elemtype": (9, 1, 0),
    "interleave_layout": (10, 1, 0), "swizzle_mode": (11, 1, 0), "fill_mode": (12, 1, 0),
    "swizzle_atomicity": (14, 1, 0), "global_dim": (16, 4, 4), "global_stride": (40, 8, 8),
    "box_dim": (72, 2, 2), "element_stride": (82, 2, 2),
}  # fmt: skip
# The bytes of an element, by the numbers of PTX: u8 u16 u32 s32 u64 s64 f16 f32 f32.ftz f64 bf16 tf32 tf32.ftz
_SIZES = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 4, 9: 8, 10: 2, 11: 4, 12: 4}
# Elements of 4 and 6 bits (b4x16, b4x16_p64, b6x16_p32): the bytes of 16 of them in global and in shared memory.
GROUPS = {13: (8, 8), 14: (8, 16), 15: (12, 16)}
_WORD = 4


@dataclass(frozen=True)
class TensorMap:
    """A tensor map; dimensions are the fastest first.

    Args:
        strides: bytes, of all dimensions but the first.
        swizzle: 0 none, 1 of 32, 2 of 64, 3 of 128 bytes.
        fill: 1 for NaN outside of the tensor.
        lower, upper: corners of the box of pixels, of im2col.
    """

    address: int
    element: int
    swizzle: int
    fill: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    tiled: bool = True
    interleave: int = 0
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Bytes of an element; of those of 4 and 6 bits, the word that a copy moves."""
        return _SIZES.get(self.element, _WORD)

    def encode(self) -> bytes:
        """Return the 128 bytes."""

        def five(values: tuple[int, ...]) -> list[int]:
            return [*values, *[0] * 5][:5]

        corners = [*self.lower, *[0] * 3][:3] + [*self.upper, *[0] * 3][:3]
        raw = struct.pack(
            _FORMAT, self.address, self.rank - 1, self.element, self.interleave, self.swizzle,
            self.fill, int(not self.tiled), 0, 0, *(n & 0xFFFFFFFF for n in five(self.shape)),
            *five(self.strides)[:4], *five(self.box), *five(self.steps), *corners, 0, 0,
        )  # fmt: skip
        return raw.ljust(BYTES, b"\0")

    @classmethod
    @lru_cache(maxsize=256)
    def decode(cls, raw: bytes) -> "TensorMap":
        """Decode the 128 bytes of a tensor map.

        Raises:
            EmulatorError: the bytes are no tensor map.
        """
        values = struct.unpack_from(_FORMAT, raw)
        address, rank, element, interleave, swizzle, fill, mode = values[:7]
        rank += 1
        if not 1 <= rank <= 5 or element not in {*_SIZES, *GROUPS} or swizzle > 3 or mode > 1:
            raise EmulatorError("a copy by a tensor map, where there is none in memory")
        return cls(
            address, element, swizzle, fill, values[9 : 9 + rank], values[14 : 14 + rank - 1],
            values[18 : 18 + (rank if not mode else 2)], values[23 : 23 + rank], not mode, interleave,
            values[28:31][: max(0, rank - 2)], values[31:34][: max(0, rank - 2)],
        )  # fmt: skip


def encode_map(
    value: Any, meta: dict[str, Any], base: int, shape: list[int], strides: list[int]
) -> bytes:
    """Return the tensor map of a descriptor of the host, whose box the compiler describes in `meta`.

    Raises:
        EmulatorError: a GPU's driver encodes no such map (CUDA Driver API reference, Tensor Map Object Management).
    """
    size, rank = int(meta["elem_size"]), len(shape)
    element = TF32 if getattr(value, "round_f32_to_tf32", False) else int(meta["elem_type"])
    dims = shape[::-1]
    if meta.get("fp4_padded"):
        dims[0] *= 2
    tiled = not meta.get("is_im2col", False)
    extra = getattr(value, "extra", None) or {}
    steps = [1] * rank if tiled else list((extra.get("element_strides") or [1] * rank)[::-1])
    encoded = TensorMap(
        base, element, int(meta["swizzle"]), int(value.padding == "nan"), tuple(dims),
        tuple(n * size for n in strides[::-1][1:]), tuple(int(n) for n in meta["block_size"][::-1]),
        tuple(steps), tiled, 0,
        () if tiled else tuple(extra["pixel_box_lower_corner"][::-1]),
        () if tiled else tuple(extra["pixel_box_upper_corner"][::-1]),
    )  # fmt: skip
    check_map(encoded)
    return encoded.encode()


def check_map(map_: TensorMap) -> None:
    """Check that a driver encodes such a map.

    Raises:
        EmulatorError: it does not.
    """
    most, inner = 1 << 32, map_.box[0] * map_.size
    if any(not 1 <= extent <= most for extent in map_.shape):
        raise EmulatorError(f"a tensor map of extents {map_.shape}: each is 1 to 2^32")
    strided = zip(map_.strides, map_.shape[1:])  # that of a single row is not used
    wrong = [stride for stride, extent in strided if extent > 1 and stride % 16]
    if wrong:
        raise EmulatorError(f"a tensor map with a stride of {wrong[0]} bytes: a multiple of 16")
    if map_.element in GROUPS:
        return
    if inner % 16:
        raise EmulatorError(
            f"a tensor map whose boxes have rows of {inner} bytes: a multiple of 16"
        )
    if map_.swizzle and inner > 16 << map_.swizzle:
        raise EmulatorError(
            f"a tensor map whose boxes have rows of {inner} bytes, more than its swizzle of {16 << map_.swizzle}"
        )
