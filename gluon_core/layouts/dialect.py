"""Which compiler's conventions hold: a few answers differ between Triton releases.

The installed version is read from its package metadata, without importing it; with no Triton
installed, the newest conventions hold.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata
from typing import Optional

from gluon_core.errors import CapabilityError
from gluon_core.features import NEWEST, Feature

__all__ = ["compiler_version", "follows", "require_followed", "set_compiler_version"]

_set: Optional[tuple[int, int]] = None


def set_compiler_version(version: Optional[tuple[int, int]]) -> None:
    """Follow the conventions of Triton `version`, e.g. (3, 6); None follows the installed one."""
    global _set
    _set = version


@lru_cache(maxsize=1)
def _installed() -> tuple[int, int]:
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm"):
        try:
            major, minor = metadata.version(name).split(".")[:2]
            return int(major), int(minor)
        except (metadata.PackageNotFoundError, ValueError):
            continue
    return NEWEST


def compiler_version() -> tuple[int, int]:
    """Return the version whose conventions hold."""
    return _set or _installed()


def follows(feature: Feature) -> bool:
    """Return True if the compiler whose conventions hold has `feature`."""
    return feature.held_by(compiler_version())


def require_followed(feature: Feature, op: str) -> None:
    """Raise unless the compiler whose conventions hold has the `feature` that `op` needs.

    Raises:
        CapabilityError: naming the releases that have it.
    """
    if not follows(feature):
        raise CapabilityError(feature.refusal(op, compiler_version()))
