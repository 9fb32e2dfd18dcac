"""Atomic reads and writes of global memory."""

from __future__ import annotations

from functools import partialmethod
from typing import Any

from gluon_core._triton import unwrap
from gluon_core.errors import DtypeError
from gluon_core.semantic.base import shape_of
from gluon_core.semantic.memory import MemoryOps, check_choice, named
from gluon_core.semantic.operands import same_bits
from gluon_core.values.tensors import describe

__all__ = ["AtomicOps"]

SEMANTICS = ("", "acquire", "release", "acq_rel", "relaxed")
SCOPES = ("", "gpu", "cta", "sys")


class AtomicOps(MemoryOps):
    """Each op checks pointer, value, mask, memory order and scope, then leaves the rest to Triton.

    Memory orders and scopes are those of the PTX ISA, section Memory Consistency Model.
    """

    def _atomic(self, op: str, pointer: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        self.refuse_swapped(pointer, val, f"gl.atomic_{op}")
        pointer = self.check_pointer(pointer)
        if pointer.type.scalar.is_const():
            raise DtypeError(
                "cannot write through a const pointer", argument="pointer", got=describe(pointer)
            )
        element = pointer.type.scalar.element_ty
        if op in ("and", "or", "xor") and not element.is_int():
            raise DtypeError(f"atomic_{op} works on integers", argument="pointer", got=element)
        plain, val = unwrap(val), self.require_value(val, "val")
        self._check_widening(pointer, val, "value")
        self._check_companion(pointer, val, "val")
        self.warn_of_cut(element, val, f"gl.atomic_{op}")
        if isinstance(plain, int):
            self.warn_of_narrowing(element, val, plain, f"gl.atomic_{op}")
        self._check_value_layout(pointer, val)
        mask = self.check_mask(pointer, mask)
        parent = getattr(super(), f"atomic_{op}")
        return parent(pointer, val, mask, *self._order(sem, scope))

    def _check_value_layout(self, pointer: Any, val: Any) -> None:
        """Check that a tensor value is already laid out as the pointers are."""
        if val.type.is_block() and shape_of(val) == shape_of(pointer):
            self.unify_layouts(pointer, val)

    def atom_red_typechecking_impl(self, ptr: Any, val: Any, mask: Any, op: str) -> Any:
        """Triton's checks, after scalars got the layout of the pointers rather than AutoLayout."""
        if ptr.type.is_block():
            if val is not None and not val.type.is_block():
                val = self._splat_like(val, ptr)
            if mask is not None and not mask.type.is_block():
                mask = self._splat_like(mask, ptr)
        return super().atom_red_typechecking_impl(ptr, val, mask, op)

    def memory_order(self, sem: Any, scope: Any) -> tuple[Any, Any]:
        """Return the builder's enums of the order and the scope of an atomic op."""
        sem, scope = self._order(sem, scope)
        return self._str_to_sem(sem), self._str_to_scope(scope)

    @staticmethod
    def _order(sem: Any, scope: Any) -> tuple[Any, Any]:
        return (
            check_choice("sem", sem, SEMANTICS) or None,
            check_choice("scope", scope, SCOPES) or None,
        )

    atomic_add = partialmethod(_atomic, "add")
    atomic_max = partialmethod(_atomic, "max")
    atomic_min = partialmethod(_atomic, "min")
    atomic_and = partialmethod(_atomic, "and")
    atomic_or = partialmethod(_atomic, "or")
    atomic_xor = partialmethod(_atomic, "xor")
    atomic_xchg = partialmethod(_atomic, "xchg")

    def atomic_cas(self, pointer: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        pointer = self.check_pointer(pointer)
        element = pointer.type.scalar.element_ty
        if pointer.type.is_block():
            self.require_op(
                "atomic_cas", element, "Give it a scalar pointer, or use another atomic."
            )
        operands = []
        for argument, value in (("cmp", cmp), ("val", val)):
            literal = unwrap(value)
            value = self.require_value(literal, argument)
            self._check_companion(pointer, value, argument)
            self._check_compared(element, value, literal, argument)
            if pointer.type.is_block():
                value = self.broadcast_impl_value(pointer, value)[1]
            operands.append(self.cast(value, element))
        return super().atomic_cas(pointer, *operands, *self._order(sem, scope))

    @staticmethod
    def _check_compared(element: Any, value: Any, literal: Any, argument: str) -> None:
        """Raise unless `value` has the dtype in memory: the hardware compares bits, not numbers.

        Literals take that dtype where it holds them; integers may be of the other signedness.

        Raises:
            DtypeError: another dtype.
        """
        if isinstance(literal, (bool, int)):
            bits = element.primitive_bitwidth
            fits = not element.is_int() or -(1 << (bits - 1)) <= literal < 1 << bits
        elif isinstance(literal, float):
            fits = element.is_floating()
        else:
            fits = same_bits(element, value.dtype)
        if not fits:
            raise DtypeError(
                "not the dtype in memory, whose bits are compared and exchanged",
                argument=argument,
                expected=element,
                got=value.dtype if literal is value else repr(literal),
                remedy=f"Convert it: {argument}.to(gl.{named(element)}).",
            )

    def atomic_load(self, pointer: Any, mask: Any, sem: Any, scope: Any) -> Any:
        pointer = self.check_pointer(pointer)
        return super().atomic_load(
            pointer, self.check_mask(pointer, mask), *self._order(sem, scope)
        )

    def atomic_store(self, pointer: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        pointer = self.check_pointer(pointer)
        val = self.to_tensor(unwrap(val))
        self._check_companion(pointer, val, "val")
        mask = self.check_mask(pointer, mask)
        return super().atomic_store(pointer, val, mask, *self._order(sem, scope))

    def atomic_poll(
        self, pointer: Any, expected: Any, sem: Any, scope: Any, timeout_ns: Any
    ) -> Any:
        pointer = self.check_pointer(pointer)
        if not pointer.type.scalar.element_ty.is_int():
            raise DtypeError(
                "takes integers",
                argument="pointer",
                expected="pointers to integers",
                got=describe(pointer),
            )
        expected = self.to_tensor(unwrap(expected))
        return super().atomic_poll(pointer, expected, *self._order(sem, scope), unwrap(timeout_ns))
