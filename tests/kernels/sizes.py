"""Sizes of the tests on a GPU, and fewer tiles and repetitions for an emulated one, which needs 0.3 ns for a product of two elements."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from functools import partial
from typing import Any

from gluon_core.launch.device import device_target
from gluon_kernels.problem import Problem, Shape
from gluon_report.example import Example

__all__ = ["emulated", "example_sized", "repeated", "sized"]

_PRODUCTS = 2e10
_BYTES = 5e8
# Arguments of the large examples: tiles for several waves of blocks, or for several rounds of each block.
_EXAMPLES: dict[str, Any] = {
    "memcpy, autotuned": 2**22,
    "transpose copy": (2**12, 2**12),
    "add, double-buffered": 2**26,
    "add, TMA": (2**18, 32),
    "add, TMA, warp-specialized": (2**18, 32),
    "row softmax": (2**11, 2**13),
    "layer norm": (2**11, 2**12),
    "split sum": (64, 2**17),
    "matmul": (2048, 2048, 1024),
    "matmul, stream-K": (2048, 2304, 1024),
    "matmul, warp-specialized": (4096, 4096, 2048),
    "matmul fp8, warp-specialized": (4096, 4096, 2048),
    "attention": (8, 1024, 64),
}
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


def example_sized(example: Example) -> Example:
    """Return an example whose large arguments are smaller ones for an emulated device."""
    size = _EXAMPLES.get(example.name) if emulated() else None
    if size is None:
        return example
    name = next(
        n for n in inspect.signature(example.arguments).parameters if n in ("shape", "sizes")
    )
    return replace(example, arguments=partial(example.arguments, **{name: size}))
