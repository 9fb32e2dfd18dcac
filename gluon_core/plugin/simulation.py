"""The facet of simulation: running the kernels of other vendors' architectures on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Mapping, Optional, Sequence

from gluon_core.errors import CapabilityError
from gluon_core.plugin.paths import CodePath

if TYPE_CHECKING:
    from gluon_core.plugin.launcher import Compiled

__all__ = ["HARDWARE", "Executed", "Simulation", "Watch"]


@dataclass(frozen=True)
class Executed:
    """Counts of the work of a kernel's launches, for any number of resident warps.

    Args:
        launches: how many are counted here.
        warps: of all launches.
        instructions: machine instructions, each counted once for each warp that executed it.
        instruction_mix: family of instructions -> how many of them.
        global_bytes: moved from and to global memory.
        bank_cycles: that banks of shared memory took beyond the first of each access.
        idle_waits: waits that never had anything to wait for, of `waits`.
        lines: (file, line, instructions) of the kernel's source, line 0 where it is not known.
        same_code: whether all is of this very code; else of the kernel with other types or constants.
    """

    launches: int
    warps: int
    instructions: int
    instruction_mix: Mapping[str, int]
    global_bytes: int
    bank_cycles: int
    waits: int
    idle_waits: int
    lines: tuple[tuple[str, int, int], ...]
    same_code: bool = True


@dataclass(frozen=True)
class Watch:
    """Requests to a simulator while kernels run; files are written when the run is over.

    Args:
        profile: print the bytes and operations of each line of each kernel.
        profile_json, profile_html: write the same to these files.
        trace: write a timeline to this file, in the JSON format of Chrome and Perfetto.
        debug: open a prompt where a kernel fails or calls `breakpoint()`.
        trace_isa: write the executed machine instructions, counted by source line, to this file.
        asm: "KERNEL=FILE", for each kernel whose launches execute the machine code in a file of
            assembly rather than the compiler's.
        findings: called with the simulator's findings when the run is over.
    """

    profile: bool = False
    profile_json: Optional[str] = None
    profile_html: Optional[str] = None
    trace: Optional[str] = None
    debug: bool = False
    trace_isa: Optional[str] = None
    findings: Optional[Callable[[Any], None]] = field(default=None, metadata={"option": "--html"})
    asm: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != Watch()


class Simulation:
    """The facet of a backend that has no architectures of its own and runs kernels for those of others.

    Attributes:
        unasked: kernels run on it when nobody names a target and there is no device.
        machine_code: its launcher executes the output of the architecture's compiler, also where that
            is Triton's own (the service `standin`).
        stands_in_for: the backends whose architectures it runs; None for all.
        watches: the fields of `Watch` that `watch` grants.
        settings: path of its `gluon_core.simulation.settings.Settings`.
        ranks: path of its `gluon_core.simulation.ranks.Ranks`, where it runs several ranks at once.
    """

    unasked: bool = True
    machine_code: bool = False
    stands_in_for: Optional[tuple[str, ...]] = None
    watches: Sequence[str] = ("profile", "profile_json", "profile_html", "trace", "debug")
    settings: Optional[CodePath] = None
    ranks: Optional[CodePath] = None

    def watch(self, wish: Watch) -> ContextManager[Any]:
        """Watch the launches inside.

        Raises:
            CapabilityError: this backend cannot.
        """
        message, remedy = "this backend cannot watch its kernels", "Run them on the simulator."
        raise CapabilityError(message, remedy=remedy)

    def hardware_options(self, options: Any) -> Any:
        """Return the options of the architecture's own backend in `options`.

        Questions about machine code (`asm["ptx"]`, `n_regs`) are answered by compiling with them.
        """
        return options

    def executed(self, compiled: Compiled, path: str) -> Executed:
        """Return the counts of the kernel's launches that `Watch.trace_isa` wrote to the file `path`.

        Raises:
            CapabilityError: this backend does not execute machine code instruction by instruction.
            ArgumentError: the file is none of these, or has no launch of the kernel.
        """
        message = f"the backend {compiled.target.backend} does not count executed instructions"
        remedy = "Compile for a target that executes machine code on the CPU, as the launches did."
        raise CapabilityError(message, got=str(compiled.target), remedy=remedy)


HARDWARE = Simulation()
"""The facet of a backend that does not simulate."""
