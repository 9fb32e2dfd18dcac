"""Describe how a load or store treats the caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Protocol

from gluon_core import _triton
from gluon_core._triton import unwrap
from gluon_core.features import CACHE_POLICY
from gluon_core.values.choices import one_of

__all__ = ["CACHE_MODIFIERS", "EVICTION_POLICIES", "AnyCachePolicy", "CachePolicy"]


CACHE_MODIFIERS = ("none", "ca", "cg", "cs", "cv", "wb", "wt")


EVICTION_POLICIES = ("evict_normal", "evict_first", "evict_last")


class AnyCachePolicy(Protocol):
    """A `CachePolicy`, or a vendor's kind of one."""

    def _to_ir(self, builder: Any) -> Any: ...


@dataclass(frozen=True)
class CachePolicy:
    """Set the treatment of the caches by a load or store; Triton 3.9 and later.

    Args:
        cache_modifier: `"none"`, `"ca"`, `"cg"`, `"cs"`, `"cv"`, `"wb"` or `"wt"`, with or without
            the leading dot (PTX ISA, cache operators).
        eviction_policy: `"evict_normal"`, `"evict_first"` or `"evict_last"`.
    """

    cache_modifier: Optional[str] = "none"
    eviction_policy: Optional[str] = "evict_normal"

    since = CACHE_POLICY

    def __post_init__(self) -> None:
        modifier = unwrap(self.cache_modifier) or "none"
        modifier = modifier.lstrip(".") if isinstance(modifier, str) else modifier
        modifier = one_of("cache_modifier", modifier, CACHE_MODIFIERS)
        eviction = unwrap(self.eviction_policy) or "evict_normal"
        eviction = one_of("eviction_policy", eviction, EVICTION_POLICIES)
        object.__setattr__(self, "cache_modifier", modifier)
        object.__setattr__(self, "eviction_policy", eviction)

    @property
    def type(self) -> Any:
        return _triton.constexpr_type(self)

    def _to_ir(self, builder: Any) -> Any:
        return builder.get_cache_policy(self.cache_modifier, self.eviction_policy)

    def mangle(self) -> str:
        return f"CP_{self.cache_modifier}_{self.eviction_policy}_CP"
