"""Calls into plugins that may never come back: named after a while, and where Ctrl-C ends them."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import Iterator, Optional

__all__ = ["PluginInterrupted", "waiting_for"]

PATIENCE = 10.0  # seconds until a call is named

REMEDY = (
    "Ctrl-C ends it; GLUON_PLUGINS, a list of the plugins to load, starts without it "
    "(`gluon info` lists them)."
)


class PluginInterrupted(KeyboardInterrupt):
    """Somebody pressed Ctrl-C while a plugin was at work.

    Args:
        plugin: its name, and the distribution where that is known.
        hook: what was called of it.
    """

    def __init__(self, plugin: str, hook: str):
        self.plugin = plugin
        self.hook = hook
        super().__init__(
            f"interrupted while waiting for plugin {plugin}, {hook}. If it hangs, start without it: "
            "GLUON_PLUGINS lists the plugins to load."
        )


@contextmanager
def waiting_for(plugin: str, hook: str) -> Iterator[None]:
    """Inside, `hook` of `plugin` is called; it is not for launches, since it starts a timer."""
    timer: Optional[threading.Timer] = threading.Timer(PATIENCE, _tell, (plugin, hook))
    assert timer is not None
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:  # no thread to be had, or the interpreter is ending
        timer = None
    try:
        yield
    except PluginInterrupted:
        raise  # of a plugin that this one waits for
    except KeyboardInterrupt as interrupt:
        if type(interrupt) is not KeyboardInterrupt:
            raise  # says more already
        raise PluginInterrupted(plugin, hook) from interrupt
    finally:
        if timer is not None:
            timer.cancel()


def _tell(plugin: str, hook: str) -> None:
    text = (
        f"gluon: plugin {plugin}, {hook}: no answer after {PATIENCE:g} s, still waiting. {REMEDY}"
    )
    print(text, file=sys.stderr, flush=True)
