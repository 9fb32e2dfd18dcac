"""Triton's active driver, and its allocators of scratch memory."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Optional

import triton

__all__ = [
    "active_driver",
    "disassembled",
    "given_driver",
    "own_driver",
    "profile_allocator",
    "set_active_driver",
    "user_allocator",
]


def given_driver() -> Optional[Any]:
    """Return the driver that Triton uses from now on; None as long as nobody has asked for one."""
    return triton.runtime.driver._active


def active_driver() -> Any:
    """Return the driver of launches.

    Raises:
        RuntimeError: there is no device.
    """
    return triton.runtime.driver.active


def user_allocator(kind: str) -> Optional[Callable[[int, int, int], Any]]:
    """Return the allocator of scratch memory, "global" or "profile", that the program set; else the one
    that Triton brings, or None."""
    from triton.runtime import _allocation

    name = "_allocator" if kind == "global" else f"_{kind}_allocator"
    allocator: Callable[[int, int, int], Any] = getattr(_allocation, name).get()
    if type(allocator).__name__ != "NullAllocator":
        return allocator
    try:
        return getattr(active_driver(), f"allocate_default_{kind}_scratch", None)
    except RuntimeError:
        return None


@contextlib.contextmanager
def profile_allocator(allocator: Callable[[int, int, Optional[int]], Any]) -> Iterator[None]:
    """Take the scratch memory for profiles from `allocator(size, alignment, stream)` meanwhile."""
    from triton.runtime import _allocation

    token = _allocation._profile_allocator.get()
    _allocation.set_profile_allocator(allocator)
    try:
        yield
    finally:
        _allocation.set_profile_allocator(token)


def disassembled(code: bytes) -> str:
    """Return machine code as the tool of Triton shows it."""
    from triton.tools.disasm import get_sass

    return str(get_sass(code))


def own_driver() -> Optional[Any]:
    """Return the driver of the one GPU that Triton finds, None without one. Asking may import torch."""
    try:
        return triton.runtime.driver.default
    except RuntimeError:
        return None


def set_active_driver(driver: Any, default: bool = False) -> None:
    """Make `driver` the value of `triton.runtime.driver.active`; with `default`, after a reset, too."""
    triton.runtime.driver.set_active(driver)
    if default:
        triton.runtime.driver._default = driver
