"""Global and shared memory."""

from __future__ import annotations

from typing import Any

from gluon_core._triton import unwrap
from gluon_core.builtin import builtin
from gluon_core.errors import ArgumentError

__all__ = [
    "allocate_shared_memory",
    "atomic_add",
    "atomic_and",
    "atomic_cas",
    "atomic_load",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_poll",
    "atomic_store",
    "atomic_xchg",
    "atomic_xor",
    "bank_conflicts",
    "load",
    "store",
]


@builtin
def load(
    pointer: Any,
    mask: Any = None,
    other: Any = None,
    boundary_check: Any = (),
    padding_option: Any = "",
    cache_modifier: Any = None,
    eviction_policy: Any = None,
    volatile: Any = False,
    cache_policy: Any = None,
    _semantic: Any = None,
) -> Any:
    """The values that `pointer`, a scalar or a tensor of pointers, points to.

    Args:
        mask: int1, broadcast to the pointers; where false nothing is read.
        other: what the result holds where `mask` is false; undefined by default.
        boundary_check, padding_option: accepted for older kernels; must stay at their defaults.
        cache_modifier: `".ca"`, `".cg"`, `".cs"` or `".cv"` (PTX ISA, cache operators).
        eviction_policy: `"evict_normal"`, `"evict_first"` or `"evict_last"`.
        volatile: neither cached nor merged.
        cache_policy: a `CachePolicy` in place of the two strings; Triton 3.9.

    Raises:
        DtypeError: not a pointer, or a mask that is not boolean.
        ShapeError: mask or other do not fit.
    """
    _reject_block_pointer_options(boundary_check, padding_option)
    return _semantic.load_global(
        pointer, mask, other, cache_modifier, eviction_policy, volatile, cache_policy
    )


@builtin
def store(
    pointer: Any,
    value: Any,
    mask: Any = None,
    boundary_check: Any = (),
    cache_modifier: Any = None,
    eviction_policy: Any = None,
    cache_policy: Any = None,
    _semantic: Any = None,
) -> Any:
    """Write `value`, cast to the pointed-to dtype, where `mask` is true.

    Args:
        boundary_check: accepted for older kernels; must stay at its default.
        cache_modifier: `".wb"`, `".cg"`, `".cs"` or `".wt"`.

    Raises:
        DtypeError: not a pointer, a const pointer, or a mask that is not boolean.
        ShapeError: value or mask do not fit.
    """
    _reject_block_pointer_options(boundary_check, "")
    return _semantic.store_global(pointer, value, mask, cache_modifier, eviction_policy, cache_policy)


def _reject_block_pointer_options(boundary_check: Any, padding_option: Any) -> None:
    boundary = unwrap(boundary_check)
    if (boundary is not None and len(boundary)) or unwrap(padding_option):
        raise ArgumentError(
            "belongs to block pointers, which this language does not have",
            argument="boundary_check",
            remedy="Use mask=...",
        )


def _rmw(op: str, what: str) -> Any:
    def atomic(
        pointer: Any,
        val: Any,
        mask: Any = None,
        sem: Any = None,
        scope: Any = None,
        _semantic: Any = None,
    ) -> Any:
        return getattr(_semantic, f"atomic_{op}")(pointer, val, mask, sem, scope)

    atomic.__name__ = atomic.__qualname__ = f"atomic_{op}"
    atomic.__doc__ = (
        f"Atomically {what} at `pointer`; returns what was there before.\n\n"
        "`sem` is 'acq_rel' (default), 'acquire', 'release' or 'relaxed'; `scope` is 'gpu' "
        "(default), 'cta' or 'sys'. Nothing happens where `mask` is false."
    )
    return builtin(atomic)


atomic_add = _rmw("add", "add `val` to the value")
atomic_and = _rmw("and", "and `val` into the value")
atomic_or = _rmw("or", "or `val` into the value")
atomic_xor = _rmw("xor", "xor `val` into the value")
atomic_max = _rmw("max", "raise the value to at least `val`")
atomic_min = _rmw("min", "lower the value to at most `val`")
atomic_xchg = _rmw("xchg", "replace the value with `val`")


@builtin
def atomic_cas(
    pointer: Any, cmp: Any, val: Any, sem: Any = None, scope: Any = None, _semantic: Any = None
) -> Any:
    """Atomically replace the value at `pointer` by `val` if it equals `cmp`; returns the old value."""
    return _semantic.atomic_cas(pointer, cmp, val, sem, scope)


@builtin(since=(3, 9))
def atomic_load(
    pointer: Any, mask: Any = None, sem: Any = None, scope: Any = None, _semantic: Any = None
) -> Any:
    """Read atomically; `sem` is 'acquire' (default) or 'relaxed'."""
    return _semantic.atomic_load(pointer, unwrap(mask), sem, scope)


@builtin(since=(3, 9))
def atomic_store(
    pointer: Any,
    val: Any,
    mask: Any = None,
    sem: Any = None,
    scope: Any = None,
    _semantic: Any = None,
) -> Any:
    """Write atomically; `sem` is 'release' (default) or 'relaxed'."""
    return _semantic.atomic_store(pointer, val, unwrap(mask), sem, scope)


@builtin(since=(3, 9))
def atomic_poll(
    pointer: Any,
    expected_value: Any,
    sem: Any = None,
    scope: Any = None,
    timeout_ns: Any = None,
    _semantic: Any = None,
) -> Any:
    """Wait until the integer at `pointer` equals `expected_value`, at most `timeout_ns` nanoseconds.

    Returns int1: whether it did.
    """
    return _semantic.atomic_poll(pointer, expected_value, sem, scope, timeout_ns)


@builtin
def allocate_shared_memory(
    element_ty: Any, shape: Any, layout: Any, value: Any = None, _semantic: Any = None
) -> Any:
    """A buffer in shared memory, filled with `value` if given.

    Args:
        shape: of the buffer; may have one leading dimension more than the layout, which indexes
            copies of it.
        layout: a shared layout.

    Raises:
        LayoutError, ShapeError: they do not fit each other.
        LimitError: more than one block can have.
    """
    return _semantic.allocate_shared(element_ty, shape, layout, value)


@builtin
def bank_conflicts(distr_ty: Any, shared_ty: Any, _semantic: Any = None) -> Any:
    """Shared-memory wavefronts lost to bank conflicts when a tensor of type `distr_ty` is loaded
    from or stored to a buffer of type `shared_ty`; a compile-time integer, 0 is best.
    """
    return _semantic.bank_conflicts(distr_ty, shared_ty)
