"""Global and shared memory."""

from __future__ import annotations

from typing import Any, Optional, Protocol, Union

from gluon_core._triton import constexpr, tensor, unwrap
from gluon_core.errors import ArgumentError
from gluon_core.features import ATOMIC_LOADS
from gluon_core.plugin.ops import builtin, semantic_layer
from gluon_core.plugin.typing import BufferLayout, Const, Dtype, Operand, Scalar, Shape, Values
from gluon_core.semantic import layer
from gluon_core.values import distributed_type, shared_memory_descriptor
from gluon_core.values.cache_policy import AnyCachePolicy
from gluon_core.values.memory import shared_memory_descriptor_type

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

Policy = Union[AnyCachePolicy, constexpr]


@builtin
def load(
    pointer: tensor,
    mask: Optional[Operand] = None,
    other: Optional[Operand] = None,
    boundary_check: Values = (),
    padding_option: Const[str] = "",
    cache_modifier: Optional[Const[str]] = None,
    eviction_policy: Optional[Const[str]] = None,
    volatile: Const[bool] = False,
    cache_policy: Optional[Policy] = None,
) -> tensor:
    """Return the values that `pointer`, a scalar or a tensor of pointers, points to.

    Args:
        mask: int1, broadcast to the pointers; where false nothing is read.
        other: value of the result where `mask` is false; undefined by default.
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
    return semantic_layer().load_global(
        pointer, mask, other, cache_modifier, eviction_policy, volatile, cache_policy
    )


@builtin
def store(
    pointer: tensor,
    value: Operand,
    mask: Optional[Operand] = None,
    boundary_check: Values = (),
    cache_modifier: Optional[Const[str]] = None,
    eviction_policy: Optional[Const[str]] = None,
    cache_policy: Optional[Policy] = None,
) -> None:
    """Write `value`, cast to the pointed-to dtype, where `mask` is true.

    Args:
        boundary_check: accepted for older kernels; must stay at its default.
        cache_modifier: `".wb"`, `".cg"`, `".cs"` or `".wt"`.

    Raises:
        DtypeError: not a pointer, a const pointer, or a mask that is not boolean.
        ShapeError: value or mask do not fit.
    """
    _reject_block_pointer_options(boundary_check, "")
    semantic_layer().store_global(
        pointer, value, mask, cache_modifier, eviction_policy, cache_policy
    )


def _reject_block_pointer_options(boundary_check: Any, padding_option: Any) -> None:
    boundary = unwrap(boundary_check)
    if (boundary is not None and len(boundary)) or unwrap(padding_option):
        raise ArgumentError(
            "belongs to block pointers, which this language does not have",
            argument="boundary_check",
            remedy="Use mask=...",
        )


class _Atomic(Protocol):
    def __call__(
        self,
        pointer: tensor,
        val: Operand,
        mask: Optional[Operand] = None,
        sem: Optional[Const[str]] = None,
        scope: Optional[Const[str]] = None,
    ) -> tensor:
        """Change the value at `pointer` atomically; return the old value."""


def _atomic(kind: str, action: str) -> _Atomic:
    """Return the op `atomic_KIND`, documented."""

    def op(
        pointer: tensor,
        val: Operand,
        mask: Optional[Operand] = None,
        sem: Optional[Const[str]] = None,
        scope: Optional[Const[str]] = None,
    ) -> tensor:
        return getattr(semantic_layer(), f"atomic_{kind}")(pointer, val, mask, sem, scope)

    op.__doc__ = f"""Atomically {action} at `pointer`; return the old value.

    Args:
        mask: int1; nothing happens where it is false.
        sem: "acq_rel" (default), "acquire", "release" or "relaxed".
        scope: "gpu" (default), "cta" or "sys".
    """
    return builtin(name=f"gl.atomic_{kind}")(op)


atomic_add = _atomic("add", "add `val` to the value")
atomic_and = _atomic("and", "and `val` into the value")
atomic_or = _atomic("or", "or `val` into the value")
atomic_xor = _atomic("xor", "xor `val` into the value")
atomic_max = _atomic("max", "raise the value to at least `val`")
atomic_min = _atomic("min", "lower the value to at most `val`")
atomic_xchg = _atomic("xchg", "replace the value with `val`")


@builtin
def atomic_cas(
    pointer: tensor,
    cmp: Operand,
    val: Operand,
    sem: Optional[Const[str]] = None,
    scope: Optional[Const[str]] = None,
) -> tensor:
    """Atomically replace the value at `pointer` by `val` if it equals `cmp`; returns the old value."""
    return layer().atomic_cas(pointer, cmp, val, sem, scope)


@builtin(since=ATOMIC_LOADS)
def atomic_load(
    pointer: tensor,
    mask: Optional[Operand] = None,
    sem: Optional[Const[str]] = None,
    scope: Optional[Const[str]] = None,
) -> tensor:
    """Read atomically; `sem` is "acquire" (default) or "relaxed"."""
    return layer().atomic_load(pointer, unwrap(mask), sem, scope)


@builtin(since=ATOMIC_LOADS)
def atomic_store(
    pointer: tensor,
    val: Operand,
    mask: Optional[Operand] = None,
    sem: Optional[Const[str]] = None,
    scope: Optional[Const[str]] = None,
) -> None:
    """Write atomically; `sem` is "release" (default) or "relaxed"."""
    layer().atomic_store(pointer, val, unwrap(mask), sem, scope)


@builtin(since=ATOMIC_LOADS)
def atomic_poll(
    pointer: tensor,
    expected_value: Operand,
    sem: Optional[Const[str]] = None,
    scope: Optional[Const[str]] = None,
    timeout_ns: Optional[Scalar[float]] = None,
) -> tensor:
    """Wait until the integer at `pointer` equals `expected_value`, at most `timeout_ns` nanoseconds.

    Returns int1: whether it did.
    """
    return layer().atomic_poll(pointer, expected_value, sem, scope, timeout_ns)


@builtin
def allocate_shared_memory(
    element_ty: Dtype, shape: Shape, layout: BufferLayout, value: Optional[tensor] = None
) -> shared_memory_descriptor:
    """Return a buffer in shared memory, filled with `value` if given.

    Args:
        shape: of the buffer; may have one leading dimension more than the layout, which indexes
            copies of it.
        layout: a shared layout.

    Raises:
        LayoutError, ShapeError: they do not fit each other.
        LimitError: more than one block can have.
    """
    return semantic_layer().allocate_shared(element_ty, shape, layout, value)


@builtin
def bank_conflicts(
    distr_ty: Union[distributed_type, constexpr],
    shared_ty: Union[shared_memory_descriptor_type, constexpr],
) -> constexpr:
    """Shared-memory wavefronts lost to bank conflicts when a tensor of type `distr_ty` is loaded
    from or stored to a buffer of type `shared_ty`; a compile-time integer, 0 is best.
    """
    return layer().bank_conflicts(distr_ty, shared_ty)
