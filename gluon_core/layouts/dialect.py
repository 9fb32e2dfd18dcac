"""Which compiler's conventions hold: a few answers differ between Triton versions.

The installed version is read from its package metadata, without importing it; with no Triton
installed, the newest conventions hold.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata
from typing import Optional

__all__ = ["compiler_version", "set_compiler_version"]

_NEWEST = (3, 9)
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
    return _NEWEST


def compiler_version() -> tuple[int, int]:
    """The version whose conventions hold."""
    return _set or _installed()


def keeps_register_copies() -> bool:
    """Do registers beyond a small tensor stay, as copies? From 3.9 on they are dropped."""
    return compiler_version() < (3, 9)


def squeezes_to_slices() -> bool:
    """Does a reshape that adds or drops one dimension of size 1 go through SliceLayout?"""
    return compiler_version() >= (3, 9)


def interleaves_buffers() -> bool:
    """Can the blocks of a buffer interleave? Before 3.7 the compiler aborts on it."""
    return compiler_version() >= (3, 7)


def interleaves_slices() -> bool:
    """Can the blocks of a slice interleave? Before 3.8 the compiler aborts on it."""
    return compiler_version() >= (3, 8)


def joins_clustered_slices() -> bool:
    """Can slices along the last dimension of a clustered blocked layout be joined?"""
    return compiler_version() >= (3, 8)
