"""Powers of two that scalars are known to be multiples of, while a kernel is traced.

Hardware that copies tiles asks for aligned bases and strides. Parameters declared divisible by 16,
constants, `gl.multiple_of` and arithmetic on them are known; results of control flow, loads and
called functions are not. Only what is known for certain counts, so that nothing illegal is selected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Sequence

from gluon_core._triton import tl, tl_tuple, unwrap
from gluon_core.semantic.narrow import NarrowOps

__all__ = ["MOST", "MultipleOps", "PassedMultiples", "mark_multiples", "multiples_in"]

MOST = 16  # no hardware asks for more
_KNOWN = "gluon_multiple"  # the attribute of a tensor; a pointer's counts bytes


def _multiple(value: Any) -> int:
    """The largest power of two, at most `MOST`, that `value` is known to be a multiple of."""
    value = unwrap(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return min(int(value & -value), MOST) if value else MOST
    known: int = getattr(value, _KNOWN, 1)
    return known


def _element_bytes(pointer: Any) -> int:
    return max(1, pointer.dtype.element_ty.primitive_bitwidth // 8)


def _set_multiple(value: Any, multiple: int) -> Any:
    if multiple > 1 and isinstance(value, tl.tensor) and not value.type.is_block():
        setattr(value, _KNOWN, min(multiple, MOST))
    return value


class MultipleOps(NarrowOps):
    """Follows known multiples through integer and pointer arithmetic on scalars."""

    def known_multiple(self, value: Any) -> int:
        """The largest power of two, at most 16, that a scalar is known to be a multiple of; of a
        pointer, in bytes. What is selected by it makes the function another one for its caller."""
        self.session.asked_multiples += 1
        return _multiple(value)

    def add(self, input: Any, other: Any, *more: Any, **named: Any) -> Any:
        result = super().add(input, other, *more, **named)
        return _set_multiple(result, _of_sum(input, other))

    def sub(self, input: Any, other: Any, *more: Any, **named: Any) -> Any:
        result = super().sub(input, other, *more, **named)
        return _set_multiple(result, _of_sum(input, other))

    def mul(self, input: Any, other: Any, *more: Any, **named: Any) -> Any:
        result = super().mul(input, other, *more, **named)
        return _set_multiple(result, _multiple(input) * _multiple(other))

    def shl(self, input: Any, other: Any) -> Any:
        result, bits = super().shl(input, other), unwrap(other)
        shifted = 1 << min(bits, 4) if isinstance(bits, int) and bits >= 0 else 1
        return _set_multiple(result, _multiple(input) * shifted)

    def minimum(self, x: Any, y: Any, propagate_nan: Any) -> Any:
        result = super().minimum(x, y, propagate_nan)
        return _set_multiple(result, min(_multiple(x), _multiple(y)))

    def maximum(self, x: Any, y: Any, propagate_nan: Any) -> Any:
        result = super().maximum(x, y, propagate_nan)
        return _set_multiple(result, min(_multiple(x), _multiple(y)))

    def cast(self, input: Any, dst_ty: Any, fp_downcast_rounding: Optional[str] = None) -> Any:
        result = super().cast(input, dst_ty, fp_downcast_rounding)
        if result is input or not isinstance(result, tl.tensor) or result.dtype.is_floating():
            return result
        return _set_multiple(result, _multiple(input))

    def multiple_of(self, x: Any, values: Sequence[int]) -> Any:
        result = super().multiple_of(x, values)
        return _set_multiple(result, max(_multiple(x), _multiple(values[0])))


def _of_sum(one: Any, other: Any) -> int:
    """Of a sum or a difference. An offset that is added to a pointer counts elements."""
    for pointer, offset in ((one, other), (other, one)):
        if isinstance(pointer, tl.tensor) and pointer.type.scalar.is_ptr():
            return min(_multiple(pointer), _multiple(offset) * _element_bytes(pointer))
    return min(_multiple(one), _multiple(other))


# -- arguments -----------------------------------------------------------------------------------


def _parts(value: Any) -> Optional[Sequence[Any]]:
    """What a tuple, or an aggregate, consists of; None for other values."""
    if isinstance(value, (tuple, list, tl_tuple)):
        return list(value)
    fields = getattr(getattr(value, "type", None), "fields", None)
    return None if not fields else [getattr(value, field[0], None) for field in fields]


def multiples_in(value: Any) -> Any:
    """The known multiple of an argument, or of each of its parts."""
    parts = _parts(value)
    if parts is not None:
        return tuple(map(multiples_in, parts))
    return _multiple(value) if isinstance(value, tl.tensor) else 1


def mark_multiples(
    value: Any, multiple: Callable[[tuple[int, ...]], int], path: tuple[int, ...]
) -> None:
    """Note what is known of a parameter, by its path among the parameters."""
    parts = _parts(value)
    if parts is None:
        _set_multiple(value, multiple(path))
        return
    for index, part in enumerate(parts):
        mark_multiples(part, multiple, (*path, index))


@dataclass
class PassedMultiples:
    """What is known of the arguments of a call.

    Args:
        by_name: parameter -> its multiple, or those of its parts.
        asked: how often the kernel had asked for multiples before the call.
        variant: the generated function that is called, once it is known.
    """

    by_name: Mapping[str, Any]
    asked: int
    variant: Any = None

    def of(self, name: str, path: tuple[int, ...]) -> int:
        """The multiple of one part of a parameter."""
        known = self.by_name.get(name, 1)
        for index in path:
            known = known[index] if isinstance(known, tuple) and index < len(known) else 1
        return known if isinstance(known, int) else 1
