"""The parameter buffer of a launch, and the array of pointers into it that drivers take."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Sequence

from gluon_runtime.errors import BundleArgumentError
from gluon_runtime.manifest import MAP_ALIGNMENT, MAP_BYTES, Packing

__all__ = ["Arguments", "Packer"]


def _bfloat16(value: float) -> int:
    """Return the upper half of the float32, as compilers of such parameters expect it."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits >> 16


class Arguments:
    """Memory for the arguments of one launch.

    Attributes:
        buffer: the values, each at the offset that the manifest gives.
        pointers: address of an array of the values' addresses, those of the scratch memory at the end.
        operand: the same for ctypes.
        size: bytes of `buffer`.
    """

    __slots__ = ("buffer", "operand", "pointers", "size", "_array")

    def __init__(self, packing: Packing):
        self.size = packing.size
        count = (packing.size + 7) // 8
        room = (ctypes.c_uint64 * (count + MAP_ALIGNMENT // 8))()
        gap = -ctypes.addressof(room) % MAP_ALIGNMENT
        self.buffer = (ctypes.c_uint64 * count).from_buffer(room, gap)
        start = ctypes.addressof(self.buffer)
        offsets = [place for field in packing.fields for place in field.places]
        offsets += packing.scratch
        self._array = (ctypes.c_void_p * len(offsets))(*(start + offset for offset in offsets))
        self.pointers = ctypes.addressof(self._array)
        self.operand = ctypes.c_void_p(self.pointers)

    def content(self) -> bytes:
        """Return a copy of the values."""
        return bytes(self.buffer)[: self.size]


class Packer:
    """Writes the arguments of one form. Buffers go back to a pool, so threads never share one.

    Args:
        names: of the parameters, for errors.
    """

    def __init__(self, packing: Packing, names: Sequence[str]):
        self._packing = packing
        self._names = [names[field.path[0]] for field in packing.fields]
        self._pool: list[Arguments] = []
        self._narrow = [i for i, field in enumerate(packing.fields) if field.code == "bf16"]
        self._maps = [i for i, field in enumerate(packing.fields) if field.map is not None][::-1]
        text, place = "<", 0
        for field in packing.fields:
            code = "H" if field.code == "bf16" else field.code
            if field.map is not None:
                rank = len(field.map.box)
                code = f"{MAP_BYTES}s{rank}i{4 * (rank % 2)}x{rank}q"
            text += f"{field.offset - place}x{code}"
            place = field.end
        first, second = packing.scratch
        text += f"{first - place}xQ{second - first - 8}xQ"
        self._struct = struct.Struct(text)

    def take(
        self, values: Sequence[Any], global_scratch: int = 0, profile_scratch: int = 0
    ) -> Arguments:
        """Return a buffer that holds `values`, one per field (of a descriptor: its map, shape and
        strides, a tuple); give it back with `put`.

        Raises:
            BundleArgumentError: a value does not fit its field.
        """
        try:
            arguments = self._pool.pop()
        except IndexError:
            arguments = Arguments(self._packing)
        if self._narrow or self._maps:
            values = list(values)
            for index in self._narrow:
                values[index] = _bfloat16(values[index])
            for index in self._maps:  # from the last on, so that the others stay where they are
                values[index : index + 1] = values[index]
        try:
            self._struct.pack_into(arguments.buffer, 0, *values, global_scratch, profile_scratch)
        except (struct.error, OverflowError, TypeError) as error:
            raise self._refused(values, error) from error
        return arguments

    def put(self, arguments: Arguments) -> None:
        self._pool.append(arguments)

    def _refused(self, values: Sequence[Any], error: Exception) -> BundleArgumentError:
        fields = self._packing.fields if not self._maps else ()
        for name, field, value in zip(self._names, fields, values):
            code = "H" if field.code == "bf16" else field.code
            try:
                struct.pack(f"<{code}", value)
            except (struct.error, OverflowError, TypeError) as inner:
                return BundleArgumentError(str(inner), argument=name, got=repr(value))
        return BundleArgumentError(str(error))
