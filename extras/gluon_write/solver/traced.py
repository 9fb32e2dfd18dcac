"""Tell facts of traced ops and values that the graph of unknown layouts asks for."""

from __future__ import annotations

from typing import Any, Optional

from gluon_core.frontend.host_calls import is_library
from gluon_sim.tracing.ir import TERMINATORS
from gluon_sim.tracing.types import PointerType, TensorType
from gluon_write.tracing.sketch import Place

__all__ = ["at_once", "bits_of", "is_mask", "offsets_of", "own_line", "scans", "sited"]

_AT_ONCE = frozenset("add minsi maxsi minui maxui and or xor".split())
_WORD = 32


def at_once(op: Any, tensors: list[Any]) -> bool:
    """Return True if one instruction of NVIDIA reduces the elements of a whole warp: integers of a word at most."""
    ops = _combining(op.regions[0])
    if len(ops) == 1 and ops[0].name == "call":
        ops = _combining(ops[0].args[0].body)
    return (
        len(tensors) == 1
        and [one.name in _AT_ONCE for one in ops] == [True]
        and bits_of(tensors[0].type) <= _WORD
    )


def _combining(region: Any) -> list[Any]:
    """Return the ops of a region but for those that end its blocks."""
    return [op for block in region.blocks for op in block.ops if op.name not in TERMINATORS]


def own_line(value: Any) -> int:
    """Return the line of the kernel that makes a value, 0 within functions of the library."""
    place = value.get_loc()
    return 0 if is_library(place.file) else int(place.line)


def is_mask(value: Any, dims: tuple[int, ...]) -> bool:
    """Return True for an operand that says which elements an access has."""
    kind = value.type
    return isinstance(kind, TensorType) and kind.dims == dims and bits_of(kind) == 1


def scans(region: Any) -> bool:
    """Return True if a function scans a tensor."""
    ops = (op for block in region.blocks for op in block.ops)
    return any(op.name == "scan" or any(map(scans, op.regions)) for op in ops)


def sited(place: Optional[tuple[str, Place]], context: tuple[Any, ...]) -> Any:
    """Return a place with the calls around it; None where one of them has no place."""
    if place is None or not all(isinstance(call, tuple) for call in context):
        return None
    return place[0], (context, place[1])


def bits_of(type: Any) -> int:
    """Return the bits of an element; pointers have 64."""
    if isinstance(type.element, PointerType):
        return 64
    return int(getattr(type.element, "bits", 32))


def offsets_of(tensors: list[Any]) -> Any:
    """Return the offsets among the operands of an access to a base: the first integers of 32 bits."""
    return next((v for v in tensors if str(v.type.element) == "i32"), tensors[0])
