"""Cache hints of NVIDIA's loads, stores and asynchronous copies (Triton 3.9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Union

from gluon_core import errors
from gluon_core.plugin.ops import tl, unwrap
from gluon_core.values import CachePolicy as PlainCachePolicy
from gluon_core.values import one_of

__all__ = ["CacheHint", "CachePolicy", "FractionalEvictionPolicy"]

_MODIFIERS = ("ca", "cg", "cs", "cv", "wb", "wt")
_L1 = ("evict_normal", "evict_first", "evict_last", "evict_unchanged", "no_allocate")
_L2_PRIMARY = ("evict_first", "evict_last", "evict_normal", "evict_unchanged")
_L2_SECONDARY = ("evict_first", "evict_unchanged")
_PREFETCH = (64, 128, 256)


@dataclass(frozen=True)
class FractionalEvictionPolicy:
    """Set the priority of cache lines in L2: one for a fraction of accesses, another for the rest.

    Args:
        primary: `"evict_first"`, `"evict_last"`, `"evict_normal"` or `"evict_unchanged"`, for
            `fraction` of the accessed addresses.
        fraction: in (0, 1].
        secondary: `"evict_first"` or `"evict_unchanged"`, for the other addresses.

    Raises:
        ArgumentError: another priority, or a fraction outside (0, 1].

    ISA: PTX 9.7.9.18, createpolicy.fractional.
    """

    primary: str
    fraction: float
    secondary: str = "evict_unchanged"

    since = PlainCachePolicy.since

    def __post_init__(self) -> None:
        fields = {name: unwrap(getattr(self, name)) for name in self.__dataclass_fields__}
        one_of("primary", fields["primary"], _L2_PRIMARY)
        one_of("secondary", fields["secondary"], _L2_SECONDARY)
        fraction = fields["fraction"]
        number = isinstance(fraction, (int, float)) and not isinstance(fraction, bool)
        if not number or not 0 < fraction <= 1:
            raise errors.ArgumentError(
                "not a fraction", argument="fraction", expected="0 < fraction <= 1", got=fraction
            )
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def type(self) -> Any:
        """Return the type of this value inside a kernel: a constexpr."""
        return tl.constexpr(self).type

    def mangle(self) -> str:
        """Return an identifier part that differs between different policies."""
        fraction = float(self.fraction).hex().replace(".", "d").replace("+", "p").replace("-", "m")
        return f"FEP_{self.primary}_{fraction}_{self.secondary}_FEP"


@dataclass(frozen=True)
class CachePolicy:
    """Set the use of L1 and L2 by an access; Triton 3.9 and later.

    Args:
        cache_modifier: `"ca"`, `"cg"`, `"cs"`, `"cv"`, `"wb"` or `"wt"`, with or without a leading
            dot.
        l1: eviction priority in L1: `"evict_normal"`, `"evict_first"`, `"evict_last"`,
            `"evict_unchanged"` or `"no_allocate"`.
        l2: a `FractionalEvictionPolicy`.
        l2_prefetch_size: bytes around the address that L2 may fetch: 64, 128 or 256.

    Raises:
        ArgumentError: no field is given, or one has another value.

    ISA: PTX 9.7.9.1 (cache operators), 9.7.9.2 (cache eviction priority hints).
    """

    cache_modifier: Optional[str] = None
    l1: Optional[str] = None
    l2: Optional[FractionalEvictionPolicy] = None
    l2_prefetch_size: Optional[int] = None

    since = PlainCachePolicy.since

    def __post_init__(self) -> None:
        fields = {name: unwrap(getattr(self, name)) for name in self.__dataclass_fields__}
        if all(value is None for value in fields.values()):
            raise errors.ArgumentError(
                "says nothing",
                argument="CachePolicy",
                expected="at least one of cache_modifier, l1, l2, l2_prefetch_size",
            )
        if isinstance(fields["cache_modifier"], str):
            fields["cache_modifier"] = fields["cache_modifier"].removeprefix(".")
        for name, choices in (
            ("cache_modifier", _MODIFIERS),
            ("l1", _L1),
            ("l2_prefetch_size", _PREFETCH),
        ):
            if fields[name] is not None:
                one_of(name, fields[name], choices)
        l2 = fields["l2"]
        if l2 is not None and not isinstance(l2, FractionalEvictionPolicy):
            raise errors.ArgumentError(
                "not an L2 policy", argument="l2", expected="FractionalEvictionPolicy", got=repr(l2)
            )
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def type(self) -> Any:
        """Return the type of this value inside a kernel: a constexpr."""
        return tl.constexpr(self).type

    def _to_ir(self, builder: Any) -> Any:
        l2 = self.l2
        return builder.get_nvidia_cache_policy(
            self.cache_modifier,
            self.l1,
            l2.primary if l2 else None,
            l2.secondary if l2 else None,
            float(l2.fraction) if l2 else None,
            self.l2_prefetch_size,
        )

    def mangle(self) -> str:
        """Return an identifier part that differs between different policies."""
        l2 = self.l2.mangle() if self.l2 else "none"
        parts = (self.cache_modifier, self.l1, l2, self.l2_prefetch_size)
        return "CP_" + "_".join("none" if p is None else str(p) for p in parts) + "_CP"


# Policies that ops accept: NVIDIA's, or one for every vendor.
CacheHint = Union[CachePolicy, PlainCachePolicy, tl.constexpr]
