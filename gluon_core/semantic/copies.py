"""Operands of copies between global and shared memory, which vendors' ops share."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from gluon_core import _triton
from gluon_core._triton import unwrap
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError, refuse
from gluon_core.features import OTHER_WITHOUT_MASK
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.semantic.base import shape_of
from gluon_core.values.tensors import describe

__all__ = ["check_copied", "consecutive_elements", "like", "masked"]


def masked(
    semantic: SemanticLayer,
    source: Any,
    element: Any,
    mask: Any,
    other: Any = None,
    subject: str = "pointer",
    other_alone: bool = False,
) -> tuple[Optional[Any], Optional[Any]]:
    """Return the mask of an access, and the value where it is false, with `source`'s shape and
    layout.

    Args:
        source: tensor of the pointers or offsets that are accessed.
        element: dtype that `other` is cast to.
        mask: int1, broadcast to `source`; None for all.
        other: scalar or tensor; None for none.
        subject: name of `source` in errors.
        other_alone: `other` may be given without a mask, which changes nothing.

    Raises:
        DtypeError: the mask is not boolean.
        ShapeError: mask or other do not fit.
        ArgumentError: else `other` without a mask, from Triton 3.8 on.
    """
    mask, other = semantic.check_mask(source, mask), unwrap(other)
    if mask is not None:
        mask = like(semantic, source, mask, "mask", subject)
    if other is not None:
        if mask is None and not (other_alone or _triton.has(OTHER_WITHOUT_MASK)):
            raise ArgumentError(
                "needs a mask",
                argument="other",
                got=describe(other),
                remedy="Pass mask=..., or drop other.",
            )
        other = semantic.cast(semantic.to_tensor(other), element)
        other = like(semantic, source, other, "other", subject)
    return mask, other


def like(semantic: SemanticLayer, source: Any, value: Any, argument: str, subject: str) -> Any:
    """`value`, of the access to `source` that errors call `subject`, with its shape and layout.

    Raises:
        ShapeError: it does not fit.
    """
    if value.type.is_block():
        have, want = shape_of(value), shape_of(source)
        if len(have) != len(want) or any(h not in (1, w) for h, w in zip(have, want)):
            raise ShapeError(
                f"does not match the {subject}", argument=argument, expected=want, got=have
            )
    return semantic.broadcast_impl_value(source, value)[1]


def check_copied(memory: Any, source: Any, element: Any, argument: str, bits: bool = False) -> None:
    """Raise unless the shared memory has the dtype and shape of the elements that `source` points to.

    Args:
        bits: a dtype of the same width does, too.

    Raises:
        DtypeError, ShapeError: it has not.
    """
    same_width = memory.dtype.primitive_bitwidth == element.primitive_bitwidth
    if memory.dtype != element and not (bits and same_width):
        refuse(
            DtypeError(
                "the element type is not the pointer's",
                argument=argument,
                expected=element,
                got=memory.dtype,
            )
        )
    shape = shape_of(source)
    if list(memory.shape) != shape:
        refuse(
            ShapeError(
                "the shape differs from that of the copied tensor",
                argument=argument,
                expected=shape,
                got=list(memory.shape),
            )
        )


def consecutive_elements(layout: Any, shared: Any, shape: Sequence[int]) -> Optional[int]:
    """Return the number of consecutive registers of each thread that go to consecutive addresses of
    `shared`.

    None where a layout has no linear form: the compiler will know.
    """
    try:
        moves = layout.to_linear(shape).invert_and_compose(shared.to_linear(shape))
    except LayoutError:
        return None
    column = list(moves.out_dims).index("offset")
    steps = {name: [row[column] for row in rows] for name, rows in moves.bases.items()}
    registers = steps.pop("register")
    count = 0
    while count < len(registers) and registers[count] == 1 << count:
        count += 1
    others = [*registers[count:], *(step for rows in steps.values() for step in rows)]
    while count and any(step & ((1 << count) - 1) for step in others):
        count -= 1
        others.append(registers[count])
    return 1 << count
