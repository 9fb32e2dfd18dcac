"""The registry: which plugins are installed, what they offer, and why one of them is missing.

`registry()` is the default one, filled once from the entry points of group `gluon_core.backends`;
`load(...)` makes a separate one. Entry points load one at a time: a plugin that cannot be imported
or breaks the contract is remembered in `failures` and the others work. The environment variable
`GLUON_PLUGINS`, a comma-separated list of entry point names, narrows which plugins load.

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
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

import pluggy

from gluon_core import _verify, hookspec
from gluon_core._spelling import Spellings
from gluon_core.backend import Backend, Lowering
from gluon_core.errors import PluginError, TargetError, did_you_mean
from gluon_core.targets import Architecture, Target

__all__ = ["Plugin", "PluginFailure", "Registry", "load", "registry"]

CORE = "gluon_core"


@dataclass(frozen=True)
class Plugin:
    """One registered plugin.

    Args:
        name: its entry point's name, or what `Registry.register` was given.
        distribution: `name version` of the package that ships it, None when registered by hand.
        backends: the names of its backends.
        lowerings: `op/name` of each lowering it contributes.
    """

    name: str
    distribution: Optional[str]
    backends: tuple[str, ...]
    lowerings: tuple[str, ...]


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
        from gluon_core.portable.lowerings import LOWERINGS

        self._lock = threading.RLock()
        self._manager = pluggy.PluginManager(hookspec.PROJECT)
        self._manager.add_hookspecs(hookspec)
        self._state = _verify.State()
        self._plugins: dict[str, Plugin] = {}
        self._failures: dict[str, PluginFailure] = {}
        self._owners: dict[tuple[str, str], str] = {}
        self._skipped: set[str] = set()
        self._frozen = False
        self._observed = False
        self._state = _verify.add(self._state, CORE, (), LOWERINGS)
        self._publish()

    # -- what is there ---------------------------------------------------------------------------

    @property
    def backends(self) -> Mapping[str, Backend]:
        """Name -> backend, in order of registration."""
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
        """Raise `error` with the remembered cause if the plugin or backend `name` did not load."""
        failure = self._failures.get(name)
        if failure is None:
            failure = next((f for f in self._failures.values() if _of_backend(f, name)), None)
        if failure is not None:
            raise error(
                f"{failure.source} is installed but did not load: {failure.reason}",
                argument=name,
                remedy="`gluon info` shows its traceback.",
            ) from failure.error
        if name in self._skipped:
            raise error(
                f"plugin {name!r} is installed but left out",
                argument=name,
                remedy=f"Add it to GLUON_PLUGINS (now {os.environ.get('GLUON_PLUGINS', '')!r}).",
            )

    def architectures(self) -> tuple[Architecture, ...]:
        """Every architecture of every plugin, in order of registration."""
        return self._state.architectures

    def capabilities(self) -> Mapping[str, tuple[Architecture, ...]]:
        """Capability -> the architectures that have it, sorted by capability."""
        return self._capabilities

    def lowerings(self, op: str) -> tuple[Lowering, ...]:
        """The lowerings of a portable op, highest priority first; empty for an unknown op."""
        return self._lowerings.get(op, ())

    def contributor(self, lowering: Lowering) -> str:
        """The plugin that contributes `lowering`; `gluon_core` for the core's own."""
        return self._owners.get((lowering.op, lowering.name), CORE)

    def exports(self) -> Mapping[str, str]:
        """The vendor names that `gl` itself offers -> path of the value."""
        return self._exports

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
        return next((b for b in self._backends.values() if b.simulates), None)

    def default_architecture(self) -> Architecture:
        """The architecture that the simulator stands in for when nobody says."""
        return self._spellings.default_architecture()

    # -- observers -------------------------------------------------------------------------------

    def stage_done(self, stage: str, module: Any, target: Target) -> None:
        """Tell the observers that `stage` finished; costs an attribute read when there are none."""
        if self._observed:
            self._manager.hook.gluon_stage_done(stage=stage, module=module, target=target)

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
            if self._frozen:
                raise PluginError(
                    "the registry is frozen",
                    argument="plugin",
                    got=repr(name or plugin),
                    remedy="Pass it to gluon_core.plugins.load(plugins=[...]).",
                )
            name = name or str(getattr(plugin, "__name__", type(plugin).__name__))
            if name in self._plugins:
                raise PluginError(
                    f"a plugin {name!r} is registered already",
                    argument="name",
                    remedy="Two distributions use one entry point name; uninstall one of them.",
                )
            self._register(plugin, name, distribution)
            return self._plugins[name]

    def _register(self, plugin: Any, name: str, distribution: Optional[str]) -> None:
        origin = f"{name!r} ({distribution})" if distribution else repr(name)
        try:
            self._manager.register(plugin, name=name)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            self._forget(name)
            raise PluginError(
                f"plugin {origin} breaks the hook specification: {error}",
                remedy="gluon_core/hookspec.py lists the hooks and their arguments.",
            ) from error
        try:
            backends = _called(self._manager, plugin, "gluon_backends", origin)
            lowerings = _called(self._manager, plugin, "gluon_lowerings", origin)
            state = _verify.add(self._state, origin, backends, lowerings)
        except BaseException:
            self._forget(name)
            raise
        own = [low for b in backends for low in b.lowerings] + list(lowerings)
        self._owners.update({(low.op, low.name): name for low in own})
        self._plugins[name] = Plugin(
            name,
            distribution,
            tuple(b.name for b in backends),
            tuple(f"{low.op}/{low.name}" for low in own),
        )
        self._state = state
        self._publish()

    def _forget(self, name: str) -> None:
        if self._manager.get_plugin(name) is not None:
            self._manager.unregister(name=name)

    def _publish(self) -> None:
        state = self._state
        self._backends: Mapping[str, Backend] = MappingProxyType(
            {key: backend for key, (backend, _) in state.backends.items()}
        )
        capabilities: dict[str, list[Architecture]] = {}
        for arch in state.architectures:
            for capability in arch.capabilities:
                capabilities.setdefault(capability, []).append(arch)
        self._capabilities = MappingProxyType(
            {c: tuple(capabilities[c]) for c in sorted(capabilities)}
        )
        by_op: dict[str, list[Lowering]] = {}
        for lowering, _ in state.lowerings.values():
            by_op.setdefault(lowering.op, []).append(lowering)
        self._lowerings = {
            op: tuple(sorted(found, key=lambda low: (-low.priority, low.name)))
            for op, found in by_op.items()
        }
        self._exports = MappingProxyType({key: path for key, (path, _) in state.exports.items()})
        self._spellings = Spellings(self)
        self._observed = bool(self._manager.hook.gluon_stage_done.get_hookimpls())

    def load_entry_point(self, entry: metadata.EntryPoint) -> None:
        """Import and register one entry point; a failure of any kind is remembered, not raised."""
        dist = getattr(entry, "dist", None)
        distribution = f"{dist.name} {dist.version}" if dist is not None else None
        try:
            self.register(entry.load(), entry.name, distribution)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a plugin may raise anything, SystemExit included
            self._fail(entry, distribution, error)

    def _fail(
        self, entry: metadata.EntryPoint, distribution: Optional[str], error: BaseException
    ) -> None:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        failure = PluginFailure(entry.name, entry.value, distribution, error, text)
        key = entry.name
        while key in self._failures or key in self._plugins:
            key += "'"  # two distributions share the name: keep both
        self._failures[key] = failure

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
            lines.append(
                f"{plugin.name} ({plugin.distribution or 'registered by hand'}): "
                + (", ".join(what) or "observes only")
            )
        for failure in self._failures.values():
            lines.append(f"{failure.name} ({failure.distribution or failure.value}): did not load")
            lines.extend("    " + line for line in failure.traceback.rstrip().splitlines())
        lines.extend(f"{name}: left out by GLUON_PLUGINS" for name in sorted(self._skipped))
        return "\n".join(lines) or "no plugins are installed"

    def installed(self) -> str:
        """One line naming what is installed and what failed, for the end of an error."""
        names = ", ".join(self._backends) or "none"
        text = f"Installed backends: {names}."
        if self._failures:
            text += f" Failed to load: {', '.join(self._failures)} (see `gluon info`)."
        return text

    def _remedy(self, word: str, known: Iterable[str]) -> str:
        return " ".join(filter(None, (did_you_mean(word, known), self.installed())))


def _called(manager: Any, plugin: Any, hook: str, origin: str) -> tuple[Any, ...]:
    """What `plugin` alone answers to `hook`, as a tuple."""
    others = [p for p in manager.get_plugins() if p is not plugin]
    values: list[Any] = []
    for answer in manager.subset_hook_caller(hook, others)():
        if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
            raise PluginError(
                f"plugin {origin}: {hook}() must return a list",
                argument=hook,
                expected="a list or tuple",
                got=type(answer).__name__,
            )
        values.extend(answer)
    return tuple(values)


def _of_backend(failure: PluginFailure, name: str) -> bool:
    """Whether `failure` is of the backend `name`, judged by what the contract error names."""
    return getattr(failure.error, "backend_name", None) == name


def _found() -> list[metadata.EntryPoint]:
    """The installed entry points, sorted so that the order never depends on sys.path; the same one
    seen twice (an editable checkout beside its wheel) counts once."""
    unique = {(e.name, e.value): e for e in metadata.entry_points(group=hookspec.ENTRY_POINTS)}
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
        entry_points = _found()
        wanted = os.environ.get("GLUON_PLUGINS")
        if wanted is not None:
            keep = {name.strip() for name in wanted.split(",") if name.strip()}
            unknown = sorted(keep - {e.name for e in entry_points})
            if unknown:
                raise PluginError(
                    f"no installed plugin is called {unknown[0]!r}",
                    argument="GLUON_PLUGINS",
                    got=repr(wanted),
                    remedy=did_you_mean(unknown[0], [e.name for e in entry_points])
                    or f"Installed: {', '.join(e.name for e in entry_points) or 'none'}.",
                )
            made._skipped.update(e.name for e in entry_points if e.name not in keep)
            entry_points = [e for e in entry_points if e.name in keep]
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
