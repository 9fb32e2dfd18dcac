"""Calls into plugins that may never come back: named after a while, and where Ctrl-C ends them."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import Any, Optional

__all__ = ["PluginInterrupted", "Waiting"]

PATIENCE = 10.0  # seconds until a call is named


class PluginInterrupted(KeyboardInterrupt):
    """Ctrl-C came while a plugin was at work."""


class Waiting:
    """Call `hook` of `plugin` inside; it is not for launches, since it starts a thread.

    Args:
        plugin: its name, and the distribution where that is known.
        hook: the call that is under way; it may change, for calls one after the other.
    """

    def __init__(self, plugin: str, hook: str):
        self.plugin, self.hook = plugin, hook
        self._timer = threading.Timer(PATIENCE, self._name)

    def __enter__(self) -> Waiting:
        self._timer.daemon = True
        with suppress(RuntimeError):  # no thread to be had, or the interpreter is ending
            self._timer.start()
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Any, _: Any) -> None:
        self._timer.cancel()
        if kind is KeyboardInterrupt:  # its subclasses say more already
            raise PluginInterrupted(
                f"interrupted while waiting for plugin {self.plugin}, {self.hook}. If it hangs, "
                "start without it: GLUON_PLUGINS lists the plugins to load."
            ) from error

    def _name(self) -> None:
        print(
            f"gluon: plugin {self.plugin}, {self.hook}: no answer after {PATIENCE:g} s, still waiting. "
            "Ctrl-C ends it; GLUON_PLUGINS, a list of the plugins to load, starts without it "
            "(`gluon info` lists them).",
            file=sys.stderr,
            flush=True,
        )
