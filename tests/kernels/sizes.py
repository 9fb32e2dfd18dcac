"""Sizes of the tests on a GPU, and fewer tiles and repetitions for an emulated one, which needs 0.3 ns for a product of two elements."""

from __future__ import annotations

import math
from typing import Any

from gluon_core.launch.device import device_target
from gluon_kernels.problem import Problem, Shape

__all__ = ["emulated", "repeated", "sized"]

_PRODUCTS = 5e10
_BYTES = 5e8
_EXTENTS = ("M", "N", "K", "rows", "tokens", "width", "inner")


def emulated() -> bool:
    """Return whether the device of this process is emulated."""
    return str(device_target()).startswith("emu:")


def repeated(count: int, few: int) -> range:
    """Return the repetitions of a test: `few` where every call does the same by construction."""
    return range(few if emulated() else count)


def sized(problem: Problem, shape: Shape) -> Shape:
    """Return a shape; for an emulated device, its largest extent is halved as long as there is too much work.

    An extent keeps the power of two, up to 128, that it is a multiple of, so that the operator chooses among the same
    kernels, with partial tiles and partial steps where there were any.
    """
    size: dict[str, Any] = dict(shape)
    while emulated() and (problem.flops(size) / 2 > _PRODUCTS or problem.bytes(size) > _BYTES):
        name = max((name for name in _EXTENTS if name in size), key=lambda name: size[name])
        unit = math.gcd(size[name], 128)
        size[name] = max(unit, size[name] // 2 // unit * unit)
    return size
