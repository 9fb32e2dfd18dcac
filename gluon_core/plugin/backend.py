"""The contract that a vendor fills in.

A backend is one object that a plugin hands over through the `gluon_backends` hook. It has a facet for
each thing that a vendor may have, and the registry verifies it when it registers. Paths are
`"package.module"` or `"package.module:attribute"` strings so that importing a plugin imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gluon_core.plugin.compiler import Compiler
from gluon_core.plugin.device import Device
from gluon_core.plugin.language import Language
from gluon_core.plugin.paths import Name
from gluon_core.plugin.simulation import HARDWARE, Simulation
from gluon_core.plugin.targets import Architecture

__all__ = ["API_VERSION", "Backend"]

API_VERSION = 3


@dataclass(frozen=True, eq=False)
class Backend:
    """One vendor's hardware, or a simulator: a name, architectures, and the facets that it has.

    A name and architectures alone make targets, and kernels run on them in the simulator.

    Args:
        name: `gl.<name>`, `target="<name>:arch"`.
        architectures: usable with no device present; none of a backend that simulates.
        compiler: makes machine code.
        device: finds devices and launches.
        language: the vendor's ops, layouts and descriptors, and its form of portable ops.
        simulation: runs kernels for the architectures of other backends; `HARDWARE` runs none.
        api_version: the contract version that this backend was written for.
    """

    name: Name
    architectures: tuple[Architecture, ...] = ()
    compiler: Compiler = field(default_factory=Compiler)
    device: Device = field(default_factory=Device)
    language: Language = field(default_factory=Language)
    simulation: Simulation = field(default_factory=lambda: HARDWARE)
    api_version: int = API_VERSION

    @property
    def compiles(self) -> bool:
        """Return True if the backend has a compiler, not options alone."""
        return type(self.compiler).builder is not Compiler.builder

    @property
    def simulates(self) -> bool:
        """Return True if the backend runs kernels for the architectures of others."""
        return self.simulation is not HARDWARE

    @property
    def packages(self) -> frozenset[str]:
        """Return the top-level packages that hold its code, the core's left out."""
        own = self.language
        facets = (self.compiler, self.device, self.simulation)
        paths = (own.namespace, own.host, own.reference, *own.exports.values())
        modules = [type(facet).__module__ for facet in facets] + [path for path in paths if path]
        return frozenset(module.partition(".")[0] for module in modules) - {"gluon_core"}
