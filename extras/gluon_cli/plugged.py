"""Commands that plugins bring: `gluon NAME` of a backend that names a function as its command."""

from __future__ import annotations

from typing import Any, Callable, Optional

import typer

from gluon_cli.output import command
from gluon_core.errors import PluginError
from gluon_core.plugin.paths import load_named
from gluon_core.registry.load import registry

__all__ = ["find", "names"]


def names() -> list[str]:
    """Return the commands of all backends that have one."""
    return [name for name, backend in registry().backends.items() if backend.command is not None]


def find(name: str) -> Optional[Any]:
    """Return the command of that name; None where no backend has one.

    In place of a command that cannot be loaded it returns one that says so, for the others to be listed.
    """
    backend = registry().backends.get(name)
    if backend is None or backend.command is None:
        return None
    try:
        function = load_named(backend.command, f"backend {name!r}, command")
    except PluginError as error:
        function = _refusing(error)
    app = typer.Typer(add_completion=False)
    app.command(name)(command(function))
    return typer.main.get_command(app)


def _refusing(error: PluginError) -> Callable[[], None]:
    def refuse() -> None:
        """Not available: its plugin is broken."""
        raise error

    return refuse
