"""The facet of simulation: running the kernels of other vendors' architectures on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ContextManager, Optional, Sequence

from gluon_core.errors import CapabilityError
from gluon_core.plugin.paths import CodePath

if TYPE_CHECKING:
    from gluon_core.plugin.launcher import Compiled

__all__ = ["HARDWARE", "Simulation"]

_SIMULATOR = "Run the kernels on the simulator."


class Simulation:
    """The facet of a backend that has no architectures of its own and runs kernels for those of others.

    Attributes:
        unasked: kernels run on it when nobody names a target and there is no device.
        machine_code: its launcher executes the output of the architecture's compiler, also where that
            is Triton's own (the service `standin`).
        stands_in_for: the backends whose architectures it runs; None for all.
        watches: the fields of a `gluon_core.simulation.watch.Watch` that `watch` grants.
        settings: path of its `gluon_core.simulation.settings.Settings`.
        ranks: path of its `gluon_core.simulation.ranks.Ranks`, where it runs several ranks at once.
    """

    unasked: bool = True
    machine_code: bool = False
    stands_in_for: Optional[tuple[str, ...]] = None
    watches: Sequence[str] = ("profile", "profile_json", "profile_html", "trace", "debug")
    settings: Optional[CodePath] = None
    ranks: Optional[CodePath] = None

    def watch(self, wish: Any) -> ContextManager[Any]:
        """Watch the launches inside, as the `Watch` asks.

        Raises:
            CapabilityError: this backend cannot.
        """
        raise CapabilityError("this backend cannot watch its kernels", remedy=_SIMULATOR)

    def predict(self, tell: Any, only: bool = False) -> ContextManager[Any]:
        """Predict the time of the launches inside: `tell` gets a `gluon_core.simulation.predicted.Predicted` of each;
        with `only`, no results are computed.

        Raises:
            CapabilityError: this backend has no model of time.
        """
        raise CapabilityError("this backend predicts no times", remedy=_SIMULATOR)

    def hardware_options(self, options: Any) -> Any:
        """Return the options of the architecture's own backend, with which `asm["ptx"]` is compiled."""
        return options

    def executed(self, compiled: Compiled, path: str) -> Any:
        """Return the `gluon_core.simulation.watch.Executed` of the kernel's launches, from the file `path` that
        `Watch.trace_isa` named.

        Raises:
            CapabilityError: this backend does not execute machine code instruction by instruction.
            ArgumentError: the file is none of these, or has no launch of the kernel.
        """
        message = f"the backend {compiled.target.backend} does not count executed instructions"
        remedy = "Compile for a target that executes machine code on the CPU, as the launches did."
        raise CapabilityError(message, got=str(compiled.target), remedy=remedy)


HARDWARE = Simulation()
"""The facet of a backend that does not simulate."""
