"""The checks of an emulated launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Mapping, Optional

from gluon_core.simulation.settings import LaunchSettings, Scopes

__all__ = ["Settings", "current", "of_launch", "using"]


@dataclass(frozen=True)
class Settings(LaunchSettings):
    """The options of an emulated launch.

    Args:
        waits: report uses of registers and LDS that a memory operation may still write.
        races: report accesses to LDS of two waves that no barrier orders.
        order: report loads of another workgroup's stores that no release and acquire order.
        hazards: report instructions that are closer together than the hardware allows.
        uninitialised: report uses of registers and LDS that nobody wrote.
        timeout: seconds after which a launch ends with a report; None for no limit.
        trace: a file that gets the executed instructions, counted by line of the kernel's source.
        assembly: "KERNEL=FILE,...": launches of KERNEL execute the assembly in FILE rather than the
            compiler's.
        resident: waves that run at once; None chooses.
        processes: that share a launch which takes seconds; None for one per core.
        search: of PTX: report accesses that nothing orders, between threads, proxies and asynchronous work; on
            where all checks are asked for.
        schedule, seed: of PTX: copies happen when they are waited for ("latest"), at once ("eager"), or they and the
            warps go in a random order. They change nothing for AMD, where an operation that may be late is reported
            in any case.
        sums: of PTX: `wgmma` adds as the hardware does ("hardware"), or in float32 by a library ("float32"), which takes
            a seventh of the time and differs in the last bits.
        progress: show on standard error how far a launch is that takes more than two seconds.
    """

    PREFIX: ClassVar[str] = "GLUON_EMU"
    RUNNER: ClassVar[str] = "emulator"
    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "schedule": ("latest", "eager", "random"),
        "sums": ("hardware", "float32"),
    }
    STRICT: ClassVar[Mapping[str, Any]] = {"search": True}
    POSITIVE: ClassVar[tuple[str, ...]] = ("timeout", "resident", "processes")

    waits: bool = True
    races: bool = True
    order: bool = True
    hazards: bool = True
    uninitialised: bool = True
    timeout: Optional[float] = None
    trace: Optional[str] = None
    assembly: Optional[str] = None
    resident: Optional[int] = None
    processes: Optional[int] = None
    search: bool = False
    schedule: str = "latest"
    seed: int = 0
    sums: str = "hardware"
    progress: bool = False


_scopes = Scopes(Settings)
current = _scopes.current
of_launch = _scopes.of_launch
using = _scopes.using
