"""The registry: which plugins are installed, what they offer, and why one of them is missing.

`registry()` is the default one, filled once from the entry points of the groups `gluon_core.backends` and
`gluon_core.extras`; `load(...)` makes a separate one. Entry points load one at a time: a plugin that
cannot be imported or breaks the contract is remembered in `failures` and the others work. A name that two plugins claim
is an error for whoever asks for it (`gluon_core.registry.names`). The environment variable
`GLUON_PLUGINS`, a comma-separated list of entry point names, narrows which plugins of the first group load.

Once loaded a registry is frozen: it is only read, so threads share it without locks, and nothing on
the launch path calls pluggy.
"""

from __future__ import annotations

import os
import threading
import traceback
from dataclasses import dataclass
from importlib import metadata
from types import MappingProxyType
from typing import Any, Callable, ContextManager, Iterable, Mapping, Optional, Sequence, Union, cast

import pluggy

from gluon_core.errors import MACHINERY, GluonError, PluginError, TargetError, did_you_mean
from gluon_core.plugin import hookspec
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.language import Lowering
from gluon_core.plugin.paths import load_named, load_path
from gluon_core.plugin.targets import Architecture, Target
from gluon_core.registry import CORE_PLUGINS
from gluon_core.registry import verify as _verify
from gluon_core.registry.names import CORE, Clash, Contribution, Names
from gluon_core.registry.offers import HOOKS, Offer, installation
from gluon_core.registry.spelling import Spellings
from gluon_core.registry.waiting import waiting_for

__all__ = ["Plugin", "PluginFailure", "Registry", "load", "registry"]


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


class Registry:
    """What the plugins offer. Mutable until `freeze`, read-only from then on."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._manager = pluggy.PluginManager(hookspec.PROJECT)
        self._manager.add_hookspecs(hookspec)
        self._contributions: dict[str, Contribution] = {}
        self._services: dict[str, Any] = {}
        self._distributions: dict[str, Optional[str]] = {}
        self._failures: dict[str, PluginFailure] = {}
        self._skipped: set[str] = set()
        self._frozen = False
        self._answered: set[str] = set()
        for path in CORE_PLUGINS:
            self._register(load_path(path), CORE, None)

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
        found = self._backends.get(name)
        if found is not None:
            return found
        self.raise_if_failed(name)
        raise TargetError(
            f"no plugin contributes a backend {name!r}",
            argument="backend",
            got=repr(name),
            remedy=self._remedy(name, self._backends),
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

    def spellings(self) -> Mapping[str, Architecture]:
        """Key of a bare word (`names.key_of`) -> the architecture that it means."""
        return self._spellings.by_key

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

    # -- targets ---------------------------------------------------------------------------------

    def target(self, spec: Union[str, Target, None, Any] = None) -> Target:
        """The target that `spec` spells.

        Args:
            spec: an architecture or alias (`hopper`, `gfx942`), `backend:architecture`
                (`nvidia:sm_90`, `sim:hopper`), a backend alone, a `Target`, any object with
                `backend`, `arch` and `warp_size` such as Triton's GPUTarget, or None for
                `GLUON_TARGET`, else the device that is plugged in, else the simulator.

        Raises:
            TargetError: nobody knows it; the nearest spellings are named.
            PluginError: it belongs to a plugin that did not load.
        """
        return self._spellings.target(spec)

    def simulator(self) -> Optional[Backend]:
        """The backend that stands in for the architectures of the others, if one is installed."""
        return self._simulator

    def default_architecture(self) -> Architecture:
        """The architecture that the simulator stands in for when nobody says."""
        return self._spellings.default_architecture()

    # -- observers -------------------------------------------------------------------------------

    def stage_done(self, stage: str, module: Any, target: Target) -> None:
        """Tell the observers that `stage` finished; costs an attribute read when there are none.

        Raises:
            PluginError: one of them raised.
            PluginInterrupted: Ctrl-C came while one of them was at work.
        """
        for origin, call in self._observers:
            try:
                with waiting_for(origin, f"gluon_stage_done(stage={stage!r})"):
                    call(stage=stage, module=module, target=target)
            except GluonError:
                raise
            except Exception as error:
                raise PluginError(
                    f"plugin {origin}, gluon_stage_done(stage={stage!r}), raised "
                    f"{type(error).__name__}: {error}",
                    remedy="It only observes, and the kernel may be right: mend that plugin, or "
                    "leave it out, as with GLUON_PLUGINS.",
                ) from error

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

    # -- filling ---------------------------------------------------------------------------------

    def register(
        self, plugin: Any, name: Optional[str] = None, distribution: Optional[str] = None
    ) -> Plugin:
        """Verify `plugin` (a module or any object with hook implementations) and add it, whole or
        not at all.

        Raises:
            PluginError: it breaks the contract, or the registry is frozen.
        """
        with self._lock:
            name = name or str(getattr(plugin, "__name__", type(plugin).__name__))
            if name in self._contributions:
                raise PluginError(
                    f"a plugin {name!r} is registered already",
                    argument="name",
                    remedy="Give it another name.",
                )
            self._register(plugin, name, distribution)
            return self._plugins[name]

    def _register(self, plugin: Any, name: str, distribution: Optional[str]) -> None:
        if self._frozen:
            raise PluginError(
                "the registry is frozen",
                argument="plugin",
                got=repr(name),
                remedy="Pass it to gluon_core.registry.load.load(plugins=[...]).",
            )
        origin = f"{name!r} ({distribution})" if distribution else repr(name)
        try:
            self._manager.register(plugin, name=name)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            self._forget(name)
            raise PluginError(
                f"plugin {origin} breaks the hook specification: {error}",
                remedy="gluon_core/plugin/hookspec.py lists the hooks and their arguments.",
            ) from error
        try:
            contribution = self._contribution(plugin, name, origin)
        except BaseException:
            self._forget(name)
            raise
        self._contributions[name] = contribution
        self._distributions[name] = distribution
        self._publish()

    def _contribution(self, plugin: Any, name: str, origin: str) -> Contribution:
        backends = self._asked(plugin, "gluon_backends", origin)
        lowerings = self._asked(plugin, "gluon_lowerings", origin)
        _verify.check(origin, backends, lowerings)
        answers = {hook: self._asked(plugin, hook, origin) for hook in HOOKS}
        offers = _verify.check_offers(origin, answers)
        return Contribution(name, origin, backends, lowerings, offers)

    def _asked(self, plugin: Any, hook: str, origin: str) -> tuple[Any, ...]:
        """Return the answer of `plugin` alone to `hook`, as a tuple."""
        call = self._alone(plugin, hook)
        if not any(
            impl.plugin is plugin for impl in getattr(self._manager.hook, hook).get_hookimpls()
        ):
            return ()
        with waiting_for(origin, f"{hook}()"):
            answers = call()
        values: list[Any] = []
        for answer in answers:
            if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
                raise PluginError(
                    f"plugin {origin}: {hook}() must return a list",
                    argument=hook,
                    expected="a list or tuple",
                    got=type(answer).__name__,
                )
            values.extend(answer.items() if isinstance(answer, Mapping) else answer)
        return tuple(values)

    def _forget(self, name: str) -> None:
        if self._manager.get_plugin(name) is not None:
            self._manager.unregister(name=name)

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
        self._spellings = Spellings(self, names)
        hooks = self._manager.hook.gluon_stage_done.get_hookimpls()
        self._observers: list[tuple[str, Callable[..., Any]]] = [
            (self._origin(impl.plugin_name), self._alone(impl.plugin, "gluon_stage_done"))
            for impl in reversed(hooks)  # as pluggy calls them
        ]

    def _origin(self, name: str) -> str:
        distribution = self._distributions.get(name)
        return f"{name!r} ({distribution})" if distribution else repr(name)

    def _alone(self, plugin: Any, hook: str) -> Callable[..., Any]:
        """Return the hook of `plugin` and of no other."""
        others = [p for p in self._manager.get_plugins() if p is not plugin]
        return cast(Callable[..., Any], self._manager.subset_hook_caller(hook, others))

    def load_entry_point(self, entry: metadata.EntryPoint) -> None:
        """Import and register one entry point; a failure of any kind is remembered, not raised."""
        dist = getattr(entry, "dist", None)
        distribution = f"{dist.name} {dist.version}" if dist is not None else None
        name = entry.name
        if name in self._contributions or name in self._failures:
            name += f" ({entry.value})"  # two distributions use the name: keep both
        try:
            with waiting_for(f"{name!r} ({distribution or entry.value})", "its import"):
                plugin = entry.load()
            with self._lock:
                self._register(plugin, name, distribution)
            MACHINERY.update(*(b.packages for b in self._contributions[name].backends))
            where = getattr(plugin, "__name__", type(plugin).__module__)
            MACHINERY.add(where.partition(".")[0])
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a plugin may raise anything, SystemExit included
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            self._failures[name] = PluginFailure(entry.name, entry.value, distribution, error, text)

    def freeze(self) -> Registry:
        """End of loading: `register` raises from here on."""
        self._frozen = True
        return self

    # -- explaining ------------------------------------------------------------------------------

    def explain(self) -> str:
        """What loaded, what did not and why, as text."""
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

    def _remedy(self, word: str, known: Iterable[str]) -> str:
        return " ".join(filter(None, (did_you_mean(word, known), self.installed())))


def _of_backend(failure: PluginFailure, name: str) -> bool:
    """Return whether `failure` is of the backend `name`, which its error names."""
    return getattr(failure.error, "backend_name", None) == name


def _installed() -> list[metadata.EntryPoint]:
    """Return the installed entry points of both groups, narrowed by `GLUON_PLUGINS`.

    They are sorted, so that the order never depends on sys.path; the same one seen twice (an editable
    checkout and its wheel) counts once.
    """
    groups = hookspec.ENTRY_POINTS, hookspec.EXTRAS
    entries = (entry for group in groups for entry in metadata.entry_points(group=group))
    unique = {(entry.group, entry.name, entry.value): entry for entry in entries}
    return [unique[key] for key in sorted(unique)]


def load(
    entry_points: Optional[Sequence[metadata.EntryPoint]] = None, plugins: Iterable[Any] = ()
) -> Registry:
    """A new, frozen registry.

    Args:
        entry_points: what to load; None loads the installed ones, narrowed by `GLUON_PLUGINS`.
        plugins: objects or modules with hook implementations, registered after those; an error in
            one of them is raised.
    """
    made = Registry()
    if entry_points is None:
        entry_points = _installed()
        wanted = os.environ.get("GLUON_PLUGINS")
        if wanted is not None:
            keep = {name.strip() for name in wanted.split(",") if name.strip()}
            narrowed = {e.name for e in entry_points if e.group == hookspec.ENTRY_POINTS}
            unknown = sorted(keep - narrowed)
            if unknown:
                raise PluginError(
                    f"no installed plugin is called {unknown[0]!r}",
                    argument="GLUON_PLUGINS",
                    got=repr(wanted),
                    remedy=did_you_mean(unknown[0], narrowed)
                    or f"Installed: {', '.join(sorted(narrowed)) or 'none'}.",
                )
            made._skipped.update(narrowed - keep)
            entry_points = [e for e in entry_points if e.group == hookspec.EXTRAS or e.name in keep]
    for entry in entry_points:
        made.load_entry_point(entry)
    for plugin in plugins:
        made.register(plugin)
    return made.freeze()


_default: Optional[Registry] = None
_default_lock = threading.RLock()
_loading = threading.local()


def registry() -> Registry:
    """The default registry, loaded from the installed entry points on the first call."""
    if _default is not None:
        return _default
    return _load_default()


def _load_default() -> Registry:
    global _default
    if getattr(_loading, "now", False):
        raise PluginError(
            "the registry was asked for while it is loading",
            remedy="A plugin's module must not call registry() or import a kernel at import time.",
        )
    with _default_lock:
        if _default is None:
            _loading.now = True
            try:
                _default = load()
            finally:
                _loading.now = False
    return _default
