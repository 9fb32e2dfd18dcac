"""The contents of a registry: backends, lowerings, exports and offers of its plugins, and their errors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ContextManager, Iterable, Mapping, Optional

from gluon_core.errors import GluonError, PluginError, TargetError, did_you_mean
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.language import Lowering
from gluon_core.plugin.paths import load_named
from gluon_core.plugin.targets import Architecture, Target
from gluon_core.registry.names import CORE, Clash, Contribution, Names
from gluon_core.registry.offers import HOOKS, Offer, installation
from gluon_core.registry.waiting import waiting_for

__all__ = ["Contents", "Plugin", "PluginFailure"]


@dataclass(frozen=True)
class Plugin:
    """One registered plugin.

    Args:
        name: its entry point's name, or what `Registry.register` was given. Where several have one
            name, it is followed by the module path in parentheses.
        distribution: `name version` of the package that ships it, None when registered by hand.
        backends: the names of its backends, without those that another plugin has.
        lowerings: `op/name` of each lowering it contributes, likewise.
        offers: its commands, modules and services, such as `command tune`.
    """

    name: str
    distribution: Optional[str]
    backends: tuple[str, ...]
    lowerings: tuple[str, ...]
    offers: tuple[str, ...] = ()


@dataclass(frozen=True)
class PluginFailure:
    """Why an installed plugin is not there.

    Args:
        name: its entry point's name.
        value: the module path that the entry point names.
        distribution: `name version` of the package that ships it, None where unknown.
        error: what was raised.
        traceback: the same as text.
    """

    name: str
    value: str
    distribution: Optional[str]
    error: BaseException
    traceback: str

    @property
    def source(self) -> str:
        return f"plugin {self.name!r} ({self.distribution or self.value})"

    @property
    def reason(self) -> str:
        """One line: the error's class and message."""
        return f"{type(self.error).__name__}: {str(self.error) or 'no message'}"


class Contents:
    """The part of a registry that is asked; `gluon_core.registry.load` fills it."""

    def __init__(self) -> None:
        self._contributions: dict[str, Contribution] = {}
        self._distributions: dict[str, Optional[str]] = {}
        self._failures: dict[str, PluginFailure] = {}
        self._skipped: set[str] = set()
        self._services: dict[str, Any] = {}
        self._answered: set[str] = set()
        self._publish()

    def _publish(self) -> None:
        """Compute what is asked for from the contributions so far."""
        names = self._names = Names(list(self._contributions.values()))
        held = {kind: names.held(kind) for kind in ("backend", "simulator", "export")}
        self._backends: Mapping[str, Backend] = MappingProxyType(
            {name: claim.value for name, claim in held["backend"].items()}
        )
        self._simulator = next((claim.value for claim in held["simulator"].values()), None)
        self._exports: Mapping[str, str] = MappingProxyType(
            {n: c.value for n, c in held["export"].items() if isinstance(c.value, str)}
        )
        self._offers: dict[str, Mapping[str, Offer]] = {
            kind: MappingProxyType(
                {
                    name: Offer(claim.value, claim.by.origin)
                    for name, claim in names.held(kind).items()
                    if isinstance(claim.value, str)
                }
            )
            for kind in HOOKS.values()
        }
        lowerings = list(names.claimed("lowering"))
        self._lowerings: dict[str, list[Lowering]] = {}
        for claim in sorted(lowerings, key=lambda c: (-c.value.priority, c.value.name)):
            self._lowerings.setdefault(claim.value.op, []).append(claim.value)
        self._plugins = {
            name: Plugin(
                name,
                self._distributions[name],
                tuple(b.name for b in made.backends if self._backends.get(b.name) is b),
                tuple(f"{c.value.op}/{c.value.name}" for c in lowerings if c.by is made),
                tuple(f"{kind} {offer}" for kind in made.offers for offer in made.offers[kind]),
            )
            for name, made in self._contributions.items()
            if name != CORE
        }

    # -- what is there ---------------------------------------------------------------------------

    @property
    def backends(self) -> Mapping[str, Backend]:
        """Name -> backend, without names that several plugins claim."""
        return self._backends

    @property
    def plugins(self) -> Mapping[str, Plugin]:
        """Name -> what that plugin contributed."""
        return MappingProxyType(self._plugins)

    @property
    def failures(self) -> Mapping[str, PluginFailure]:
        """Entry point name -> why that plugin is not there."""
        return MappingProxyType(self._failures)

    @property
    def clashes(self) -> tuple[Clash, ...]:
        """The names that several plugins claim."""
        return self._names.clashes()

    def clash(self, kind: str, name: str, prefix: str = "") -> Optional[Clash]:
        """The clash of that kind about `name`, written after `prefix`, if there is one."""
        return self._names.clash(kind, name, prefix)

    def refuse_clash(self, kind: str, name: str, error: type[GluonError] = PluginError) -> None:
        """Raise `error` if several plugins claim the name of that kind."""
        clash = self.clash(kind, name)
        if clash is not None:
            raise error(clash.text, argument=name, remedy=clash.remedy)

    @property
    def skipped(self) -> frozenset[str]:
        """Entry points that `GLUON_PLUGINS` left out."""
        return frozenset(self._skipped)

    def backend(self, name: str) -> Backend:
        """The backend called `name`.

        Raises:
            PluginError: it is installed and did not load; `__cause__` is what it raised.
            TargetError: nobody contributes it.
        """
        backend = self._backends.get(name)
        if backend is not None:
            return backend
        self.raise_if_failed(name)
        raise TargetError(
            f"no plugin contributes a backend {name!r}",
            argument="backend",
            got=repr(name),
            remedy=self.remedy(name, self._backends),
        )

    def raise_if_failed(self, name: str, error: type[PluginError] = PluginError) -> None:
        """Raise `error` with the remembered cause if the plugin or backend `name` did not load, or if
        several plugins claim that name."""
        failure = self._failures.get(name)
        if failure is None:
            failure = next((f for f in self._failures.values() if _of_backend(f, name)), None)
        if failure is not None:
            raise error(
                f"{failure.source} is installed but did not load: {failure.reason}",
                argument=name,
                remedy="`gluon info` shows its traceback.",
            ) from failure.error
        self.refuse_clash("backend", name, error)
        if name in self._skipped:
            raise error(
                f"plugin {name!r} is installed but left out",
                argument=name,
                remedy=f"Add it to GLUON_PLUGINS (now {os.environ.get('GLUON_PLUGINS', '')!r}).",
            )

    def architectures(self) -> tuple[Architecture, ...]:
        """Every architecture of every plugin, in the order of their backends."""
        return tuple(arch for b in self._backends.values() for arch in b.architectures)

    def capabilities(self) -> Mapping[str, tuple[Architecture, ...]]:
        """Capability -> the architectures that have it, sorted by capability."""
        by_name: dict[str, list[Architecture]] = {}
        for arch in self.architectures():
            for capability in arch.capabilities:
                by_name.setdefault(capability, []).append(arch)
        return {name: tuple(by_name[name]) for name in sorted(by_name)}

    def lowerings(self, op: str) -> tuple[Lowering, ...]:
        """The lowerings of a portable op, highest priority first; empty for an unknown op."""
        return tuple(self._lowerings.get(op, ()))

    def contributor(self, lowering: Lowering) -> str:
        """The plugin that contributes `lowering`; `gluon_core` for the core's own."""
        claims = self._names.claimed("lowering")
        return next((claim.by.plugin for claim in claims if claim.value is lowering), CORE)

    def origin(self, lowering: Lowering) -> str:
        """The plugin that contributes `lowering`, with its distribution."""
        return self._origin(self.contributor(lowering))

    def exports(self) -> Mapping[str, str]:
        """The vendor names that `gl` itself offers -> path of the value."""
        return self._exports

    def commands(self) -> Mapping[str, Offer]:
        """Return the commands that plugins add to `gluon`."""
        return self._offers["command"]

    def modules(self) -> Mapping[str, Offer]:
        """Return the modules behind `gluon_core.<name>` that belong to no backend."""
        return self._offers["module"]

    def services(self) -> Mapping[str, Offer]:
        """Return the services of plugins, which `service` loads."""
        return self._offers["service"]

    def service(self, name: str) -> Any:
        """Return the service `name` of a plugin, loaded.

        Raises:
            PluginError: no plugin has it, or several, or it cannot be loaded.
        """
        if name not in self._services:
            offer = self.services().get(name)
            if offer is None:
                self.refuse_clash("service", name)
                extra = name.partition(".")[0]
                raise PluginError(
                    f"no installed plugin offers {name!r}",
                    remedy=f'Install it: pip install "gluon-core[{extra}]".',
                )
            self._services[name] = load_named(offer.path, f"plugin {offer.origin}, {name!r}")
        return self._services[name]

    def installation(self, name: str) -> str:
        """Return how to install what offers `name`, for the end of an error."""
        command = installation(name)
        return f"Install it: {command}." if command else self.installed()

    def simulator(self) -> Optional[Backend]:
        """Return the simulator that runs kernels unasked, None without one, or with several."""
        return self._simulator

    # -- waiting ----------------------------------------------------------------------------------

    def waiting_for(self, backend: Backend, method: str) -> ContextManager[None]:
        """Inside, `method` of `backend` is called, which may take long."""
        claim = self._names.held("backend").get(backend.name)
        origin = claim.by.origin if claim is not None else repr(backend.name)
        return waiting_for(origin, f"{method} of its backend")

    def device_of(self, backend: Backend) -> Optional[Target]:
        """`backend.device.target()`; the first time it may take as long as a driver needs to start."""
        if backend.name in self._answered:
            return backend.device.target()
        with self.waiting_for(backend, "device()"):
            target = backend.device.target()
        self._answered.add(backend.name)
        return target

    def _origin(self, name: str) -> str:
        distribution = self._distributions.get(name)
        return f"{name!r} ({distribution})" if distribution else repr(name)

    # -- explaining ------------------------------------------------------------------------------

    def explain(self) -> str:
        """Return which plugins loaded, and why others did not, as text."""
        lines = []
        for plugin in self._plugins.values():
            what = [f"backend {name}" for name in plugin.backends]
            if plugin.lowerings:
                what.append(f"{len(plugin.lowerings)} lowerings")
            what += plugin.offers
            lines.append(
                f"{plugin.name} ({plugin.distribution or 'registered by hand'}): "
                + (", ".join(what) or "observes only")
            )
        for failure in self._failures.values():
            lines.append(f"{failure.name} ({failure.distribution or failure.value}): did not load")
            lines.extend("    " + line for line in failure.traceback.rstrip().splitlines())
        lines.extend(clash.text for clash in self.clashes)
        lines.extend(f"{name}: left out by GLUON_PLUGINS" for name in sorted(self._skipped))
        return "\n".join(lines) or "no plugins are installed"

    def problems(self) -> tuple[str, ...]:
        """One line for each plugin that did not load and each name that several claim."""
        broken = [
            f"{found.source} did not load: {found.reason}" for found in self._failures.values()
        ]
        return (*broken, *(clash.text for clash in self.clashes))

    def installed(self) -> str:
        """One line naming what is installed and what failed, for the end of an error."""
        names = ", ".join(sorted(self._backends)) or "none"
        text = f"Installed backends: {names}."
        if self._failures:
            text += f" Failed to load: {', '.join(self._failures)} (see `gluon info`)."
        return text

    def remedy(self, word: str, known: Iterable[str]) -> str:
        """Return the nearest of `known` to `word` and what is installed, for the end of an error."""
        return " ".join(filter(None, (did_you_mean(word, known), self.installed())))


def _of_backend(failure: PluginFailure, name: str) -> bool:
    """Return whether `failure` is of the backend `name`, which its error names."""
    return getattr(failure.error, "backend_name", None) == name
