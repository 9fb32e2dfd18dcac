"""One form of a kernel while it is examined, and the comparison of its results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, ContextManager, Iterator, Optional, Sequence

import numpy as np

from gluon_certify.certificate import Compared, KernelPart
from gluon_certify.coverage import Counted
from gluon_certify.regions import Memory, typed
from gluon_core.compiler.kernel import CompiledKernel
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.paths import load_named
from gluon_report.differential import compare

__all__ = ["ROUNDING", "Failed", "Subject", "compared", "settings_of"]

# Distances that rounding explains, as a share of the largest magnitude, by the narrowest type that a value has on
# its way: four units in its last place.
ROUNDING = {
    "fp64": 2.0**-40, "fp32": 2.0**-14, "fp16": 2.0**-9, "bf16": 2.0**-6, "fp8e4nv": 2.0**-2,
    "fp8e4b8": 2.0**-2, "fp8e5": 2.0**-1, "fp8e5b16": 2.0**-1,
}  # fmt: skip


def settings_of(backend: Backend) -> Callable[..., ContextManager[Any]]:
    """Return the function that sets the checks of an executor."""
    assert backend.simulation.settings is not None  # of both executors
    using: Callable[..., ContextManager[Any]] = load_named(
        backend.simulation.settings, f"backend {backend.name!r}, simulation"
    )
    return using


@dataclass(frozen=True)
class Failed:
    """A launch of which the machine code was wrong.

    Args:
        error: the class of the emulator's report; "" where the results differ.
        after: the memory that the simulator left.
    """

    grid: Any
    arguments: tuple[Any, ...]
    memory: Memory
    before: list[np.ndarray]
    after: list[np.ndarray]
    order: dict[str, Any]
    error: str


@dataclass
class Subject:
    """One form of a kernel while it is examined.

    Args:
        simulated: the kernel of the simulator.
        hardware: its machine code; None where it does not compile.
        part: the part of the certificate.
        failed: the launch whose machine code was wrong: arguments, grid, memory before and after.
    """

    simulated: CompiledKernel
    hardware: Optional[CompiledKernel]
    part: KernelPart
    counted: Optional[Counted] = None
    bare: set[str] = field(default_factory=set)
    allowed: float = 0.0
    run: Optional[Callable[..., Any]] = None
    failed: Optional[Failed] = None


def compared(memory: Memory, after: Sequence[np.ndarray], allowed: float) -> Iterator[Compared]:
    """Yield the comparison of each region with the memory that the simulator left."""
    for region, simulated in zip(memory.regions, after):
        one, other = typed(region.data, region.element), typed(simulated, region.element)
        difference = compare(region.name, one, other)
        floats = region.element in ROUNDING and one.dtype != np.uint8
        share = max(allowed, ROUNDING[region.element]) if floats else 0.0
        worst = difference.worst / difference.scale if difference.scale else difference.worst
        yield Compared(region.name, region.element, one.size, difference.differing, worst, share)
