"""Global memory: loads and stores, cache hints."""

from __future__ import annotations

from typing import Any

from gluon_core import _triton
from gluon_core._triton import ir, tl, unwrap
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError
from gluon_core.features import CACHE_POLICY
from gluon_core.semantic.base import SemanticBase, is_placeholder, shape_of
from gluon_core.semantic.operands import compile_time_bool
from gluon_core.values import CachePolicy, one_of
from gluon_core.values.tensors import describe

__all__ = ["MemoryOps", "check_choice", "named"]

LOAD_CACHE = ("", ".ca", ".cg", ".cs", ".cv")
STORE_CACHE = ("", ".wb", ".cg", ".cs", ".wt")
EVICTION = ("", "evict_normal", "evict_first", "evict_last")


def check_choice(argument: str, value: Any, choices: tuple[str, ...]) -> str:
    """`value` (None is the default, ""), if it is one of `choices`."""
    value = unwrap(value)
    chosen: str = "" if value is None or value == "none" else value
    return one_of(argument, chosen, choices)


class MemoryOps(SemanticBase):
    def check_pointer(self, pointer: Any, argument: str = "pointer") -> Any:
        """`pointer` if it is a (tensor of) pointer(s) to elements."""
        self.require_tensor(pointer, argument)
        if not pointer.type.scalar.is_ptr():
            raise DtypeError(
                "not a pointer",
                argument=argument,
                expected="a pointer or a tensor of pointers",
                got=describe(pointer),
            )
        return pointer

    @staticmethod
    def refuse_swapped(pointer: Any, value: Any, op: str) -> None:
        """Raise DtypeError where the value of `op` is the pointer, and the pointer is none."""
        operands = unwrap(pointer), unwrap(value)
        first, second = (
            isinstance(operand, tl.tensor) and operand.type.scalar.is_ptr() for operand in operands
        )
        if second and not first:
            raise DtypeError(
                "the pointer and the value are swapped",
                argument="pointer",
                expected="a pointer or a tensor of pointers",
                got=describe(operands[0]),
                remedy=f"Put the pointer first: {op}(pointer, value).",
            )

    def check_mask(self, pointer: Any, mask: Any, argument: str = "mask") -> Any:
        """`mask` as a boolean tensor that may accompany `pointer`, or None."""
        mask = unwrap(mask)
        if mask is None:
            return None
        mask = self.to_tensor(mask)
        if mask.dtype != tl.int1:
            raise DtypeError("must be boolean", argument=argument, expected="int1", got=mask.dtype)
        self._check_companion(pointer, mask, argument)
        return mask

    def warn_of_cut(self, element: Any, value: Any, op: str) -> None:
        """Warn where floats become integers on their way to memory."""
        if element.is_int() and value.dtype.is_floating():
            self.warn(
                f"{op}: a {value.dtype} is cut to {element} on its way to memory. "
                f"Convert it where that is meant: value.to(gl.{named(element)})."
            )

    def warn_of_narrowing(self, element: Any, value: Any, plain: Any, op: str) -> None:
        """Warn where an integer loses bits that are compared, or kept."""
        if not (element.is_int() and value.dtype.is_int()):
            return
        bits = element.primitive_bitwidth
        if isinstance(plain, int):
            lost = not -(1 << (bits - 1)) <= plain < 1 << bits
        else:
            lost = value.dtype.primitive_bitwidth > bits
        if lost:
            self.warn(
                f"{op}: of a {value.dtype} the {element} in memory keeps {bits} bits. "
                f"Convert it where that is meant: value.to(gl.{named(element)})."
            )

    @staticmethod
    def _check_companion(pointer: Any, value: Any, argument: str) -> None:
        if value.type.is_block() and not pointer.type.is_block():
            raise ShapeError(
                "a tensor cannot accompany a scalar pointer",
                argument=argument,
                expected="a scalar",
                got=describe(value),
            )

    def load(self, pointer: Any, mask: Any = None, other: Any = None, *hints: Any) -> Any:
        """Load for Triton's own functions; `hints` are those of the installed version."""
        cache, eviction, volatile, policy = self._triton_hints(hints, volatile=True)
        return self.load_global(pointer, mask, other, cache, eviction, volatile, policy)

    def store(self, pointer: Any, value: Any, mask: Any = None, *hints: Any) -> Any:
        """Store for Triton's own functions and `tensor.store`."""
        cache, eviction, _, policy = self._triton_hints(hints, volatile=False)
        return self.store_global(pointer, value, mask, cache, eviction, policy)

    @staticmethod
    def _triton_hints(hints: tuple[Any, ...], volatile: bool) -> tuple[Any, Any, bool, Any]:
        """(cache modifier, eviction policy, volatile, policy) from Triton's positional hints."""
        if _triton.has(CACHE_POLICY):
            policy = hints[0] if hints else None
            return None, None, hints[1] if len(hints) > 1 else False, policy
        if hints and unwrap(hints[0]):
            raise ArgumentError(
                "belongs to block pointers, which this language does not have",
                argument="boundary_check",
                remedy="Use mask=...",
            )
        strings = hints[2:] if volatile else hints[1:]
        padded = (*strings, *([None] * (3 - len(strings))))
        return padded[0], padded[1], bool(padded[2]), None

    def load_global(
        self,
        pointer: Any,
        mask: Any = None,
        other: Any = None,
        cache_modifier: Any = None,
        eviction_policy: Any = None,
        volatile: Any = False,
        cache_policy: Any = None,
    ) -> Any:
        pointer = self.check_pointer(pointer)
        volatile = compile_time_bool(volatile, "volatile")
        mask = self.check_mask(pointer, mask)
        other = unwrap(other)
        if other is not None:
            if mask is None:
                raise ArgumentError(
                    "needs a mask",
                    argument="other",
                    got=describe(other),
                    remedy="Pass mask=..., or drop other.",
                )
            other = self.to_tensor(other)
            self._check_companion(pointer, other, "other")
            self._check_widening(pointer, other, "other")
        self._check_widening(pointer, mask, "mask")
        hints = self._hints(cache_modifier, eviction_policy, cache_policy, LOAD_CACHE)
        self.note_access(pointer, pointer.type.scalar.element_ty)
        return super().load(pointer, mask, other, *self._positional(hints), volatile)

    def store_global(
        self,
        pointer: Any,
        value: Any,
        mask: Any = None,
        cache_modifier: Any = None,
        eviction_policy: Any = None,
        cache_policy: Any = None,
    ) -> Any:
        self.refuse_swapped(pointer, value, "gl.store")
        pointer = self.check_pointer(pointer)
        if pointer.type.scalar.is_const():
            raise DtypeError(
                "cannot store through a const pointer", argument="pointer", got=describe(pointer)
            )
        plain, value = unwrap(value), self.require_value(value, "value")
        self._check_companion(pointer, value, "value")
        self._check_widening(pointer, value, "value")
        self.warn_of_cut(pointer.type.scalar.element_ty, value, "gl.store")
        if isinstance(plain, int):
            self.warn_of_narrowing(pointer.type.scalar.element_ty, value, plain, "gl.store")
        mask = self.check_mask(pointer, mask)
        self._check_widening(pointer, mask, "mask")
        hints = self._hints(cache_modifier, eviction_policy, cache_policy, STORE_CACHE)
        self.note_access(pointer, pointer.type.scalar.element_ty)
        return super().store(pointer, value, mask, *self._positional(hints, store=True))

    @staticmethod
    def _check_widening(pointer: Any, value: Any, argument: str) -> None:
        """Raise unless the tensor `value` broadcasts to the pointers, or, but for a stored value, the
        pointers to it.

        Raises:
            ShapeError: the shapes do not fit.
            LayoutError: the shapes are equal and the layouts differ.
        """
        if value is None or not value.type.is_block():
            return
        have, want = shape_of(pointer), shape_of(value)
        widens = argument != "value"
        fits = len(have) == len(want) and all(
            w in (1, h) or (widens and h == 1) for h, w in zip(have, want)
        )
        if not fits:
            raise ShapeError(
                "does not match the pointer", argument=argument, expected=have, got=want
            )
        layouts = pointer.type.layout, value.type.layout
        if have == want and layouts[0] != layouts[1] and not any(map(is_placeholder, layouts)):
            raise LayoutError(
                "the layout differs from that of the pointers",
                argument=argument,
                expected=layouts[0],
                got=layouts[1],
                remedy="Convert one to the other's with gl.convert_layout.",
            )

    @staticmethod
    def _hints(cache: Any, eviction: Any, policy: Any, choices: tuple[str, ...]) -> Any:
        """Return the two strings, or the policy object that replaces them."""
        policy = unwrap(policy)
        cache = check_choice("cache_modifier", cache, choices)
        eviction = check_choice("eviction_policy", eviction, EVICTION)
        if policy is None:
            return cache, eviction
        _triton.require(CACHE_POLICY, "cache_policy")
        if cache or eviction:
            raise ArgumentError(
                "says the same as cache_modifier and eviction_policy",
                argument="cache_policy",
                remedy="Pass either the policy or the two strings.",
            )
        if not hasattr(policy, "_to_ir"):
            raise ArgumentError(
                "not a cache policy",
                argument="cache_policy",
                expected="CachePolicy(...)",
                got=describe(policy),
            )
        return policy

    def cache_operands(
        self, cache: Any, eviction: Any = None, policy: Any = None, store: bool = False
    ) -> tuple[Any, ...]:
        """Return the hints of an asynchronous copy as its builder takes them."""
        hints = self._hints(cache, eviction, policy, STORE_CACHE if store else LOAD_CACHE)
        if _triton.has(CACHE_POLICY):
            chosen = CachePolicy(*hints) if isinstance(hints, tuple) else hints
            return (chosen._to_ir(self.builder),)
        cache, eviction = hints
        modifier = self.cache_modifier(cache, store)
        eviction = "" if eviction == "evict_normal" else eviction
        return modifier, self._str_to_eviction_policy(eviction)

    def cache_modifier(
        self, name: Any, store: bool = False, argument: str = "cache_modifier"
    ) -> Any:
        """Return the builder's enum of a cache modifier of loads or stores.

        Raises:
            ArgumentError: no such modifier.
        """
        chosen = check_choice(argument, name, STORE_CACHE if store else LOAD_CACHE)
        to_enum = self._str_to_store_cache_modifier if store else self._str_to_load_cache_modifier
        return to_enum(chosen)

    @staticmethod
    def _positional(hints: Any, store: bool = False) -> tuple[Any, ...]:
        """Return the hints as the installed Triton's load and store take them."""
        if _triton.has(CACHE_POLICY):
            return (CachePolicy(*hints) if isinstance(hints, tuple) else hints,)
        cache, eviction = hints
        eviction = "" if eviction == "evict_normal" else eviction
        return ((), cache, eviction) if store else ((), "", cache, eviction)

    def _str_to_load_cache_modifier(self, cache_modifier: str) -> Any:
        """As Triton's own, which knows no ".cs" before 3.8 although the builder always did."""
        return getattr(ir.CACHE_MODIFIER, cache_modifier.lstrip(".").upper() or "NONE")

    def advance(self, base: Any, offsets: Any) -> Any:
        """Refuse a tensor's method: Gluon makes no pointers to blocks, and the compiler aborts."""
        raise DtypeError(
            "only block pointers advance, and Gluon has none",
            argument="base",
            got=describe(base),
            remedy="Add to the offsets, or use a tensor descriptor.",
        )

    def expect_zero(self, x: Any, mask: Any) -> Any:
        """`x`; with `debug` on, an assertion that it is zero where `mask` is true."""
        mask = self.to_tensor(unwrap(mask))
        if self.options.debug:
            holds = self.or_(self.equal(x, self.to_tensor(0)), self.not_(mask))
            self.device_assert(
                holds, "expect_zero: a value is not zero where the mask is set", None
            )
        return x


def named(dtype: Any) -> str:
    """Return the dtype as kernels spell it."""
    return next((name for name in dir(tl) if getattr(tl, name) is dtype), str(dtype))
