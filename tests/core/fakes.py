"""Small backends and plugins to register; not a vendor among them."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from types import SimpleNamespace

from gluon_core.plugin.backend import API_VERSION, Backend
from gluon_core.plugin.compiler import Compiler
from gluon_core.plugin.device import Device
from gluon_core.plugin.hookspec import hookimpl
from gluon_core.plugin.language import Language, Lowering
from gluon_core.plugin.simulation import HARDWARE, Simulation
from gluon_core.plugin.targets import Architecture, Limits


def entry(name, value=None, distribution=None):
    """An installed entry point; `distribution` is the name of what ships it."""
    entry_point = EntryPoint(name, value or f"{name}_plugin", "gluon_core.backends")
    return (
        entry_point._for(SimpleNamespace(name=distribution, version="1.0"))
        if distribution
        else entry_point
    )


def architecture(name, backend, *aliases, **fields):
    fields.setdefault("arch", name)
    fields.setdefault("triton_backend", backend + "rt")
    fields.setdefault("warp_size", 32)
    return Architecture(name, backend, aliases, limits=Limits(65536), **fields)


class CompleteCompiler(Compiler):
    """Defines the names of the contract; none of it is called in these tests."""

    def options(self, target, requested):
        raise NotImplementedError

    def builder(self, context, target):
        raise NotImplementedError

    def pipeline(self, target, options):
        raise NotImplementedError

    def inspect(self, compiled):
        raise NotImplementedError


class CompleteDevice(Device):
    def launcher(self, compiled):
        raise NotImplementedError


def complete(name, *architectures, simulates=False, api_version=API_VERSION, **attributes):
    """A backend with every facet; each attribute goes to the facet that has it."""
    facets = {
        "compiler": CompleteCompiler(),
        "device": CompleteDevice(),
        "simulation": Simulation(),
    }
    for attribute in [*attributes]:
        for facet in facets.values():
            if hasattr(facet, attribute):
                setattr(facet, attribute, attributes.pop(attribute))
                break
    if not simulates:
        facets["simulation"] = HARDWARE
    language = Language(**attributes)
    return Backend(name, architectures, language=language, api_version=api_version, **facets)


class Plugin:
    """A plugin object that returns its argument."""

    def __init__(self, name, *backends, lowerings=(), commands=None, modules=None, services=None):
        self.__name__ = name
        self._backends = backends
        self._lowerings = lowerings
        offers = {"commands": commands, "modules": modules, "services": services}
        self._offers = {kind: {} if names is None else names for kind, names in offers.items()}

    @hookimpl
    def gluon_backends(self):
        return list(self._backends)

    @hookimpl
    def gluon_lowerings(self):
        return list(self._lowerings)

    @hookimpl
    def gluon_commands(self):
        return self._offers["commands"]

    @hookimpl
    def gluon_modules(self):
        return self._offers["modules"]

    @hookimpl
    def gluon_services(self):
        return self._offers["services"]


def lowering(op="load", name="fast", **fields):
    fields.setdefault("priority", 10)
    fields.setdefault("implement", "somewhere.lowerings:emit")
    return Lowering(op, name, **fields)


def acme(**attributes):
    """Two architectures, one of them with a unit."""
    return complete(
        "acme",
        architecture(
            "a1", "acme", "anvil", arch=1, capabilities=frozenset({"acme.unit"}), default=True
        ),
        architecture("a2", "acme", "rocket_2", arch=2, warp_size=64),
        **attributes,
    )


def roadrunner(**attributes):
    return complete("roadrunner", architecture("beep9", "roadrunner", "dust"), **attributes)


def simulator(name="double", **attributes):
    return complete(name, simulates=True, **attributes)
