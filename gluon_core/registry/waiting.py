"""Calls into plugins that may never come back: named after a while, and where Ctrl-C ends them."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, suppress
from typing import Iterator

__all__ = ["PluginInterrupted", "Wait", "waiting_for"]

PATIENCE = 10.0  # seconds until a call is named


class PluginInterrupted(KeyboardInterrupt):
    """Ctrl-C came while a plugin was at work.

    Args:
        plugin: its name, and the distribution where that is known.
        hook: its function that was called.
    """

    def __init__(self, plugin: str, hook: str):
        self.plugin = plugin
        self.hook = hook
        super().__init__(
            f"interrupted while waiting for plugin {plugin}, {hook}. If it hangs, start without it: "
            "GLUON_PLUGINS lists the plugins to load."
        )


class Wait:
    """Calls of one plugin, one after the other.

    Args:
        plugin: its name, and the distribution where that is known.
        hook: the call that is under way.
    """

    def __init__(self, plugin: str, hook: str):
        self.plugin, self.hook = plugin, hook

    def name(self) -> None:
        """Name the call on standard error."""
        text = (
            f"gluon: plugin {self.plugin}, {self.hook}: no answer after {PATIENCE:g} s, still waiting. "
            "Ctrl-C ends it; GLUON_PLUGINS, a list of the plugins to load, starts without it "
            "(`gluon info` lists them)."
        )
        print(text, file=sys.stderr, flush=True)


@contextmanager
def waiting_for(plugin: str, hook: str) -> Iterator[Wait]:
    """Call `hook` of `plugin` inside; it is not for launches, since it starts a thread."""
    wait = Wait(plugin, hook)
    timer = threading.Timer(PATIENCE, wait.name)
    timer.daemon = True
    with suppress(RuntimeError):  # no thread to be had, or the interpreter is ending
        timer.start()
    try:
        yield wait
    except PluginInterrupted:
        raise  # of a plugin that this one waits for
    except KeyboardInterrupt as interrupt:
        if type(interrupt) is not KeyboardInterrupt:
            raise  # says more already
        raise PluginInterrupted(plugin, wait.hook) from interrupt
    finally:
        timer.cancel()
