"""Calls into plugins that may never come back: named after a while, and where Ctrl-C ends them."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import Iterator, Optional

__all__ = ["PluginInterrupted", "waiting_for", "watching"]

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


class _Wait:
    """One call that is waited for."""

    def __init__(self, plugin: str, hook: str):
        self.plugin, self.hook, self.begin = plugin, hook, time.monotonic()

    def tell(self) -> None:
        text = (
            f"gluon: plugin {self.plugin}, {self.hook}: no answer after {PATIENCE:g} s, still "
            f"waiting. {REMEDY}"
        )
        print(text, file=sys.stderr, flush=True)


_here = (
    threading.local()
)  # `waits`: the calls of this thread that are waited for, the innermost last


def _watch(waits: list[_Wait], ended: threading.Event) -> None:
    named, pause = None, PATIENCE
    while not ended.wait(pause):
        (wait,) = waits[-1:] or (named,)
        pause = PATIENCE
        if wait is not named and wait is not None:
            pause -= time.monotonic() - wait.begin
            if pause <= 0:
                named, pause = wait, PATIENCE
                wait.tell()


@contextmanager
def watching() -> Iterator[list[_Wait]]:
    """Inside, one thread watches all calls into plugins; without it, each has a thread of its own."""
    outer: Optional[list[_Wait]] = getattr(_here, "waits", None)
    if outer is not None:
        yield outer
        return
    waits: list[_Wait] = []
    ended = threading.Event()
    with suppress(RuntimeError):  # no thread to be had, or the interpreter is ending
        threading.Thread(target=_watch, args=(waits, ended), daemon=True).start()
    _here.waits = waits
    try:
        yield waits
    finally:
        _here.waits = None
        ended.set()


@contextmanager
def waiting_for(plugin: str, hook: str) -> Iterator[None]:
    """Inside, `hook` of `plugin` is called; it is not for launches, since it may start a thread."""
    with watching() as waits:
        waits.append(_Wait(plugin, hook))
        try:
            yield
        except PluginInterrupted:
            raise  # of a plugin that this one waits for
        except KeyboardInterrupt as interrupt:
            if type(interrupt) is not KeyboardInterrupt:
                raise  # says more already
            raise PluginInterrupted(plugin, hook) from interrupt
        finally:
            waits.pop()
