"""The arguments of a launch: an address with its element type, a number, a tuple, a descriptor."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Optional

from gluon_runtime import described
from gluon_runtime.arrays import Seen, from_dlpack, from_interface, from_tensor
from gluon_runtime.rules import plain_kind

__all__ = ["Pointer", "Seen", "look"]


@dataclass(frozen=True)
class Pointer:
    """An address on the device, as an argument.

    Args:
        address: of the first element.
        dtype: the element type, such as `fp32`; None fits any.
        size: bytes of storage behind it; None where it is not known.
    """

    address: int
    dtype: Optional[str] = None
    size: Optional[int] = None


def look(value: Any) -> Seen:
    """Return the kind and the properties of an argument; `other` for one that kernels only take as a constant."""
    kind = plain_kind(value)
    if kind == "tuple":
        return Seen(kind, tuple(map(look, value)))
    if kind:
        return Seen(kind, int(value) if kind == "int" else value)
    if isinstance(value, Pointer):
        return Seen("pointer", value.address, value.dtype, value.size)
    if isinstance(value, ctypes.c_void_p):
        return Seen("pointer", value.value or 0)
    if hasattr(value, "block_shape") and hasattr(value, "base"):  # Gluon Core's own, too
        return described.spread(value, look(value.base))
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        return from_tensor(value)
    if hasattr(value, "__cuda_array_interface__"):
        return from_interface(value)
    if hasattr(value, "__dlpack__") and not isinstance(value, type):
        return from_dlpack(value)
    return Seen("other", value)
