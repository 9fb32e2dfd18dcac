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
from importlib import metadata
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Union, cast

import pluggy

from gluon_core.errors import MACHINERY, GluonError, PluginError, did_you_mean
from gluon_core.plugin import hookspec
from gluon_core.plugin.paths import load_path
from gluon_core.plugin.targets import Architecture, Target
from gluon_core.registry import CORE_PLUGINS
from gluon_core.registry import verify as _verify
from gluon_core.registry.contents import Contents, Plugin, PluginFailure
from gluon_core.registry.names import CORE, Contribution
from gluon_core.registry.offers import HOOKS
from gluon_core.registry.spelling import Spellings
from gluon_core.registry.waiting import waiting_for, watching

__all__ = ["Plugin", "PluginFailure", "Registry", "load", "registry"]


class Registry(Contents):
    """What the plugins offer. Mutable until `freeze`, read-only from then on."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._manager = pluggy.PluginManager(hookspec.PROJECT)
        self._manager.add_hookspecs(hookspec)
        self._frozen = False
        super().__init__()
        for path in CORE_PLUGINS:
            self._register(load_path(path), CORE, None)
        self._publish()

    # -- targets ---------------------------------------------------------------------------------

    def target(self, spec: Union[str, Target, Any, None] = None) -> Target:
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

    def spellings(self) -> Mapping[str, Architecture]:
        """Key of a bare word (`names.key_of`) -> the architecture that it means."""
        return self._spellings.by_key

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
            self._publish()
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
        super()._publish()
        self._spellings = Spellings(self, self._names)
        hooks = self._manager.hook.gluon_stage_done.get_hookimpls()
        self._observers: list[tuple[str, Callable[..., Any]]] = [
            (self._origin(impl.plugin_name), self._alone(impl.plugin, "gluon_stage_done"))
            for impl in reversed(hooks)  # as pluggy calls them
        ]

    def _alone(self, plugin: Any, hook: str) -> Callable[..., Any]:
        """Return the hook of `plugin` and of no other."""
        others = [p for p in self._manager.get_plugins() if p is not plugin]
        return cast(Callable[..., Any], self._manager.subset_hook_caller(hook, others))

    def load_entry_point(self, entry: metadata.EntryPoint) -> None:
        """Import and register one entry point, which `freeze` publishes; a failure of any kind is
        remembered, not raised."""
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
        self._publish()
        self._frozen = True
        return self


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
    with watching():
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
