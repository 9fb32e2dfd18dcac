"""The contents of a registry: backends, lowerings, exports and offers of its plugins, and their errors."""

from __future__ import annotations

import os
from importlib import metadata
from types import MappingProxyType
from typing import Any, Iterable, Mapping, NamedTuple, Optional

from gluon_core.errors import GluonError, PluginError, TargetError, did_you_mean
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.language import Lowering
from gluon_core.plugin.paths import load_named
from gluon_core.plugin.targets import Architecture, Target
from gluon_core.registry.names import CORE, Claim, Clash, Contribution, Names
from gluon_core.waiting import Waiting

__all__ = ["Contents", "PluginFailure"]


class PluginFailure(NamedTuple):
    """An installed plugin that did not load: its entry point, the package that ships it (`name version`, None
    where unknown), the exception, and that as text."""

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
        """Return one line: the error's class and message."""
        return f"{type(self.error).__name__}: {str(self.error) or 'no message'}"


class Contents:
    """The part of a registry that is asked; `gluon_core.registry.load` fills it.

    Attributes:
        backends: name -> backend, without names that several plugins claim.
        failures: entry point name -> the reason why that plugin is not there.
        skipped: entry points that `GLUON_PLUGINS` left out.
    """

    backends: Mapping[str, Backend]

    def __init__(self) -> None:
        self.failures: dict[str, PluginFailure] = {}
        self.skipped: set[str] = set()
        self._contributions: dict[str, Contribution] = {}
        self._answered: set[str] = set()
        self._publish()

    def _publish(self) -> None:
        """Compute the answers from the contributions so far."""
        names = self._names = Names(self._contributions.values())
        self._held = {k: names.held(k) for k in ("export", "command", "module", "service")}
        held = names.held("backend")
        self.backends = MappingProxyType({name: claim.value for name, claim in held.items()})
        self._lowerings: dict[str, list[Claim]] = {}
        lowerings = names.claimed("lowering")
        for claim in sorted(lowerings, key=lambda c: (-c.value.priority, c.value.name)):
            self._lowerings.setdefault(claim.value.op, []).append(claim)

    @property
    def plugins(self) -> Mapping[str, Contribution]:
        """Name -> the contribution of that plugin."""
        return {name: by for name, by in self._contributions.items() if name != CORE}

    @property
    def clashes(self) -> tuple[Clash, ...]:
        """Return the names that several plugins claim."""
        return self._names.clashes()

    def offers(self, kind: str) -> Mapping[str, Claim]:
        """Return the claims that one plugin alone has, by name.

        Args:
            kind: `export` (to `gl`: values and namespaces), `module` (of `gluon_core`), `command` or
                `service`.
        """
        return self._held[kind]

    def architectures(self) -> tuple[Architecture, ...]:
        """Return every architecture of every plugin, in the order of their backends."""
        return tuple(arch for b in self.backends.values() for arch in b.architectures)

    def lowerings(self, op: str) -> tuple[Lowering, ...]:
        """Return the lowerings of a portable op, highest priority first; empty for an unknown op."""
        return tuple(claim.value for claim in self._lowerings.get(op, ()))

    def contributor(self, lowering: Lowering) -> Contribution:
        """Return the contribution of the plugin that `lowering` comes from."""
        claims = self._lowerings.get(lowering.op, ())
        core = Contribution(CORE, None)
        return next((claim.by for claim in claims if claim.value is lowering), core)

    def simulator(self) -> Optional[Backend]:
        """Return the simulator that runs kernels unasked, None without one, or with several."""
        return next((claim.value for claim in self._names.held("simulator").values()), None)

    def backend(self, name: str) -> Backend:
        """Return the backend called `name`.

        Raises:
            PluginError: it is installed and did not load; `__cause__` is its exception.
            TargetError: nobody contributes it.
        """
        if name not in self.backends:
            self.raise_if_failed(name)
            message = f"no plugin contributes a backend {name!r}"
            remedy = self.remedy(name, self.backends)
            raise TargetError(message, argument="backend", got=repr(name), remedy=remedy)
        return self.backends[name]

    def service(self, name: str) -> Any:
        """Return the service `name` of a plugin, loaded.

        Raises:
            PluginError: no plugin has it, or several, or it cannot be loaded.
        """
        claim = self.offers("service").get(name)
        if claim is None:
            self.refuse_clash("service", name)
            remedy = f'Install it: pip install "gluon-core[{name.partition(".")[0]}]".'
            raise PluginError(f"no installed plugin offers {name!r}", remedy=remedy)
        return load_named(claim.value, f"plugin {claim.by.origin}, {name!r}")

    def refuse_clash(
        self, kind: str, name: str, error: type[GluonError] = PluginError, prefix: str = ""
    ) -> None:
        """Raise `error` if several plugins claim the name of that kind, written after `prefix`."""
        clash = self._names.clash(kind, name, prefix)
        if clash is not None:
            argument = "target" if error is TargetError else name
            raise error(clash.text, argument=argument, remedy=clash.remedy)

    def raise_if_failed(self, name: str, error: type[PluginError] = PluginError) -> None:
        """Raise `error` with the remembered cause if the plugin or backend `name` did not load, or if
        several plugins claim that name."""
        failures = self.failures.values()
        of_backend = (f for f in failures if getattr(f.error, "backend_name", None) == name)
        failure = self.failures.get(name) or next(of_backend, None)
        if failure is not None:
            message = f"{failure.source} is installed but did not load: {failure.reason}"
            remedy = "`gluon info` shows its traceback."
            raise error(message, argument=name, remedy=remedy) from failure.error
        self.refuse_clash("backend", name, error)
        if name in self.skipped:
            message = f"plugin {name!r} is installed but left out"
            remedy = f"Add it to GLUON_PLUGINS (now {os.environ.get('GLUON_PLUGINS', '')!r})."
            raise error(message, argument=name, remedy=remedy)

    def remedy(self, word: str, known: Iterable[str] = ()) -> str:
        """Return the nearest of `known` to `word`, and how to install it or what is installed, for the
        end of an error."""
        try:
            extras = metadata.metadata("gluon-core").get_all("Provides-Extra") or ()
        except metadata.PackageNotFoundError:  # run from a checkout
            extras = ()
        install = f'Install it: pip install "gluon-core[{word}]".' if word in extras else None
        return " ".join(filter(None, (did_you_mean(word, known), install or self.installed())))

    def installed(self) -> str:
        """Return a line that names the installed backends and those that failed, for the end of an error."""
        failed = f" Failed to load: {', '.join(self.failures)} (see `gluon info`)."
        names = ", ".join(sorted(self.backends)) or "none"
        return f"Installed backends: {names}.{failed if self.failures else ''}"

    def problems(self) -> tuple[str, ...]:
        """Return a line for each plugin that did not load and each name that several claim."""
        broken = [f"{one.source} did not load: {one.reason}" for one in self.failures.values()]
        return (*broken, *(clash.text for clash in self.clashes))

    def waiting_for(self, backend: Backend, method: str) -> Waiting:
        """Call `method` of `backend` inside, which may take long."""
        by = [by.origin for by in self._contributions.values() if backend in by.backends]
        return Waiting((*by, repr(backend.name))[0], f"{method} of its backend")

    def device_of(self, backend: Backend) -> Optional[Target]:
        """Return `backend.device.target()`; the first time it may take as long as a driver needs to start."""
        if backend.name not in self._answered:
            with self.waiting_for(backend, "device()"):
                backend.device.target()
            self._answered.add(backend.name)
        return backend.device.target()
