"""The registry: which plugins are installed, what they offer, and why one of them is missing.

`registry()` is the default one, filled once from the entry points of the groups `gluon_core.backends` and
`gluon_core.extras`; `load(...)` makes a separate one. A plugin that cannot be imported or breaks the contract is
remembered in `failures`, and the others work. The variable `GLUON_PLUGINS`, a comma-separated list of
names, narrows which plugins of the first group load. Threads share a loaded registry without locks.
"""

from __future__ import annotations

import os
import threading
import traceback
from importlib import metadata
from typing import Any, Callable, Iterable, Optional, Sequence, cast

import pluggy

from gluon_core.errors import MACHINERY, PluginError, did_you_mean
from gluon_core.plugin import hookspec
from gluon_core.plugin.paths import load_path
from gluon_core.registry import CORE_PLUGINS
from gluon_core.registry.contents import PluginFailure
from gluon_core.registry.names import CORE, Contribution
from gluon_core.registry.spelling import Targets
from gluon_core.registry.verify import check, check_answer
from gluon_core.waiting import Waiting

__all__ = ["Contribution", "PluginFailure", "Registry", "load", "registry"]


# Hook -> the kind of what it answers.
_OFFERS = {"gluon_commands": "command", "gluon_modules": "module", "gluon_services": "service"}
_HOOKS = {"gluon_backends": "backends", "gluon_lowerings": "lowerings", **_OFFERS}


class Registry(Targets):
    """The contributions of plugins, read-only once `load` has returned it.

    Attributes:
        observers: the plugins that observe stages, and their `gluon_stage_done`.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._manager = pluggy.PluginManager(hookspec.PROJECT)
        self._manager.add_hookspecs(hookspec)
        self._frozen = False
        super().__init__()
        for path in CORE_PLUGINS:
            self._register(load_path(path), Contribution(CORE, None), Waiting(CORE, ""))
        self._publish()

    def register(
        self, plugin: Any, name: Optional[str] = None, distribution: Optional[str] = None
    ) -> Contribution:
        """Verify `plugin` (a module or any object with hook implementations) and add it, whole or not at all.

        Raises:
            PluginError: it breaks the contract, or the registry is frozen.
        """
        with self._lock:
            name = name or str(getattr(plugin, "__name__", type(plugin).__name__))
            by = Contribution(name, distribution)
            with Waiting(by.origin, "its hooks") as wait:
                self._register(plugin, by, wait)
            self._publish()
            return self.plugins[name]

    def _register(self, plugin: Any, by: Contribution, wait: Waiting) -> None:
        if self._frozen or by.plugin in self._contributions:
            why, remedy = f"a plugin {by.plugin!r} is registered already", "Give it another name."
            if self._frozen:
                why, remedy = (
                    "the registry is frozen",
                    f"Pass it to {__name__}.load(plugins=[...]).",
                )
            raise PluginError(why, argument="plugin", got=repr(by.plugin), remedy=remedy)
        try:
            self._manager.register(plugin, name=by.plugin)
            self._manager.check_pending()
            parts: dict[str, Any] = {"backends": (), "lowerings": (), "offers": {}}
            for hook, kind in _HOOKS.items():
                wait.hook = f"{hook}()"
                for answer in self._alone(plugin, hook)():
                    check_answer(wait.plugin, hook, answer)
                    if kind in parts:
                        parts[kind] += tuple(answer)
                    else:
                        parts["offers"][kind] = dict(answer)
            check(by._replace(**parts))
        except BaseException as error:
            if self._manager.get_plugin(by.plugin) is not None:
                self._manager.unregister(name=by.plugin)
            if isinstance(error, pluggy.PluginValidationError):
                message = f"plugin {by.origin} breaks the hook specification: {error}"
                remedy = "gluon_core/plugin/hookspec.py lists the hooks and their arguments."
                raise PluginError(message, remedy=remedy) from error
            raise
        self._contributions[by.plugin] = by._replace(**parts)

    def _alone(self, plugin: Any, hook: str) -> Callable[..., Any]:
        """Return the hook of `plugin` and of no other."""
        others = [p for p in self._manager.get_plugins() if p is not plugin]
        return cast(Callable[..., Any], self._manager.subset_hook_caller(hook, others))

    def _publish(self) -> None:
        super()._publish()
        self.observers: list[tuple[str, Callable[..., Any]]] = []
        for impl in reversed(self._manager.hook.gluon_stage_done.get_hookimpls()):  # as pluggy does
            origin = self._contributions[impl.plugin_name].origin
            self.observers.append((origin, self._alone(impl.plugin, "gluon_stage_done")))

    def load_entry_point(self, entry: metadata.EntryPoint) -> None:
        """Import and register one entry point, which `load` publishes; a failure of any kind is
        remembered, not raised."""
        dist = getattr(entry, "dist", None)
        distribution = f"{dist.name} {dist.version}" if dist is not None else None
        name = entry.name
        if name in self._contributions or name in self.failures:
            name += f" ({entry.value})"  # two distributions use the name: keep both
        try:
            with Waiting(f"{name!r} ({distribution or entry.value})", "its import") as wait:
                plugin = entry.load()
                with self._lock:
                    self._register(plugin, Contribution(name, distribution), wait)
            MACHINERY.update(*(b.packages for b in self._contributions[name].backends))
            where = getattr(plugin, "__name__", type(plugin).__module__)
            MACHINERY.add(where.partition(".")[0])
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a plugin may raise anything, SystemExit included
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            self.failures[name] = PluginFailure(entry.name, entry.value, distribution, error, text)


def _installed() -> list[metadata.EntryPoint]:
    """Return the installed entry points of both groups.

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
    """Return a new, frozen registry.

    Args:
        entry_points: those to load; None loads the installed ones, narrowed by `GLUON_PLUGINS`.
        plugins: objects or modules with hook implementations, registered after those; an error in
            one of them is raised.
    """
    loaded = Registry()
    wanted = os.environ.get("GLUON_PLUGINS") if entry_points is None else None
    entry_points = _installed() if entry_points is None else entry_points
    if wanted is not None:
        keep = {name.strip() for name in wanted.split(",") if name.strip()}
        known = {e.name for e in entry_points if e.group == hookspec.ENTRY_POINTS}
        for unknown in sorted(keep - known):
            listed = f"Installed: {', '.join(sorted(known)) or 'none'}."
            remedy = did_you_mean(unknown, known) or listed
            message, got = f"no installed plugin is called {unknown!r}", repr(wanted)
            raise PluginError(message, argument="GLUON_PLUGINS", got=got, remedy=remedy)
        loaded.skipped.update(known - keep)
        entry_points = [e for e in entry_points if e.group == hookspec.EXTRAS or e.name in keep]
    for entry in entry_points:
        loaded.load_entry_point(entry)
    for plugin in plugins:
        loaded.register(plugin)
    loaded._publish()
    loaded._frozen = True
    return loaded


_default: Optional[Registry] = None
_default_lock = threading.RLock()
_loading = threading.local()


def registry() -> Registry:
    """Return the default registry, loaded from the installed entry points on the first call."""
    return _default if _default is not None else _load_default()


def _load_default() -> Registry:
    global _default
    if getattr(_loading, "now", False):
        message = "the registry was asked for while it is loading"
        remedy = "A plugin's module must not call registry() or import a kernel at import time."
        raise PluginError(message, remedy=remedy)
    with _default_lock:
        if _default is None:
            _loading.now = True
            try:
                _default = load()
            finally:
                _loading.now = False
    return _default
