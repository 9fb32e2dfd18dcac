"""Powers of two that scalars are known to be multiples of, while a kernel is traced.

Hardware that copies tiles asks for aligned bases and strides. Parameters declared divisible by 16,
constants, `gl.multiple_of` and arithmetic on them are known; results of control flow, loads and
called functions are not. Only certain facts count, so that nothing illegal is selected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Sequence

from gluon_core._triton import tl, tl_tuple, unwrap
from gluon_core.semantic.narrow import NarrowOps

__all__ = ["MOST", "MultipleOps", "Multiples", "PassedMultiples"]

Path = tuple[int, ...]
MOST = 16  # no hardware asks for more


class Multiples:
    """Record the largest powers of two, at most `MOST`, that values of a trace are known to be
    multiples of; a pointer's counts bytes. Control flow clones tensors, so handles identify values."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}  # with the handle, whose id is then no other's
        self.asked = 0  # how often they decided something

    def of(self, value: Any) -> int:
        value = unwrap(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return min(int(value & -value), MOST) if value else MOST
        if not isinstance(value, tl.tensor):
            return 1
        known: int = self._known.get(id(value.handle), (None, 1))[1]
        return known

    def note(self, value: Any, multiple: int) -> Any:
        """Note that `value` is a multiple of `multiple`; return `value`."""
        if multiple < 2 or not isinstance(value, tl.tensor) or value.type.is_block():
            return value
        if value.dtype.is_int() or value.dtype.is_ptr():
            self._known[id(value.handle)] = value.handle, min(multiple, MOST)
        return value

    def of_sum(self, one: Any, other: Any) -> int:
        """Return the multiple of a sum or a difference. An offset that is added to a pointer counts elements."""
        for pointer, offset in ((one, other), (other, one)):
            if isinstance(pointer, tl.tensor) and pointer.type.scalar.is_ptr():
                return min(self.of(pointer), self.of(offset) * _element_bytes(pointer))
        return min(self.of(one), self.of(other))

    # -- arguments --------------------------------------------------------------------------------

    def within(self, value: Any) -> Any:
        """Return the multiple of an argument, or of each of its parts."""
        parts = _parts(value)
        return self.of(value) if parts is None else tuple(map(self.within, parts))

    def copy(self, value: Any, to: Any) -> None:
        """Note the known facts of a value for another one that equals it, such as a partition's argument."""
        parts, own = _parts(value), _parts(to)
        if parts is None or own is None:
            self.note(to, self.of(value))
            return
        for one, other in zip(parts, own):
            self.copy(one, other)

    def bind(self, value: Any, multiple: Callable[[Path], int], path: Path) -> None:
        """Note the known facts of a parameter, by its path among the parameters."""
        parts = _parts(value)
        if parts is None:
            self.note(value, multiple(path))
            return
        for index, part in enumerate(parts):
            self.bind(part, multiple, (*path, index))


def _element_bytes(pointer: Any) -> int:
    bits: int = pointer.dtype.element_ty.primitive_bitwidth
    return max(1, bits // 8)


def _parts(value: Any) -> Optional[Sequence[Any]]:
    """Return the parts of a tuple or an aggregate; None for other values."""
    if isinstance(value, (tuple, list, tl_tuple)):
        return list(value)
    fields = getattr(getattr(value, "type", None), "fields", None)
    return None if not fields else [getattr(value, field[0], None) for field in fields]


class MultipleOps(NarrowOps):
    """Follows known multiples through integer and pointer arithmetic on scalars."""

    @property
    def multiples(self) -> Multiples:
        known: Multiples = self.session.multiples
        return known

    def known_multiple(self, value: Any) -> int:
        """Return the largest power of two, at most 16, that a scalar is known to be a multiple of; for a
        pointer, in bytes. A selection by it makes the function another one for its caller."""
        self.multiples.asked += 1
        return self.multiples.of(value)

    def to_tensor(self, x: Any, *more: Any, **named: Any) -> Any:
        result = super().to_tensor(x, *more, **named)
        return result if result is x else self.multiples.note(result, self.multiples.of(x))

    def add(self, input: Any, other: Any, *more: Any, **named: Any) -> Any:
        result = super().add(input, other, *more, **named)
        return self.multiples.note(result, self.multiples.of_sum(input, other))

    def sub(self, input: Any, other: Any, *more: Any, **named: Any) -> Any:
        result = super().sub(input, other, *more, **named)
        return self.multiples.note(result, self.multiples.of_sum(input, other))

    def mul(self, input: Any, other: Any, *more: Any, **named: Any) -> Any:
        result = super().mul(input, other, *more, **named)
        return self.multiples.note(result, self.multiples.of(input) * self.multiples.of(other))

    def floordiv(self, input: Any, other: Any) -> Any:
        result, divisor = super().floordiv(input, other), unwrap(other)
        if not isinstance(divisor, int) or divisor < 1 or divisor & (divisor - 1):
            return result
        return self.multiples.note(result, self.multiples.of(input) // divisor)

    def shl(self, input: Any, other: Any) -> Any:
        result, bits = super().shl(input, other), unwrap(other)
        shifted = 1 << min(bits, 4) if isinstance(bits, int) and bits >= 0 else 1
        return self.multiples.note(result, self.multiples.of(input) * shifted)

    def minimum(self, x: Any, y: Any, propagate_nan: Any) -> Any:
        result = super().minimum(x, y, propagate_nan)
        return self.multiples.note(result, min(self.multiples.of(x), self.multiples.of(y)))

    def maximum(self, x: Any, y: Any, propagate_nan: Any) -> Any:
        result = super().maximum(x, y, propagate_nan)
        return self.multiples.note(result, min(self.multiples.of(x), self.multiples.of(y)))

    def cast(self, input: Any, dst_ty: Any, fp_downcast_rounding: Optional[str] = None) -> Any:
        result = super().cast(input, dst_ty, fp_downcast_rounding)
        if result is input:
            return result
        return self.multiples.note(result, self.multiples.of(input))

    def multiple_of(self, x: Any, values: Sequence[int]) -> Any:
        result = super().multiple_of(x, values)
        return self.multiples.note(result, max(self.multiples.of(x), self.multiples.of(values[0])))


@dataclass
class PassedMultiples:
    """Multiples that are known of the arguments of a call.

    Args:
        by_name: parameter -> its multiple, or those of its parts.
        asked: how often the kernel had asked for multiples before the call.
        variant: the generated function that is called, once it is known.
    """

    by_name: Mapping[str, Any]
    asked: int
    variant: Any = None

    def of(self, name: str, path: Path) -> int:
        """Return the multiple of one part of a parameter."""
        known = self.by_name.get(name, 1)
        for index in path:
            known = known[index] if isinstance(known, tuple) and index < len(known) else 1
        return known if isinstance(known, int) else 1
