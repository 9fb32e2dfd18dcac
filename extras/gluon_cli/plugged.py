"""Commands of plugins: `gluon NAME` of a plugin that answers `gluon_commands`."""

from __future__ import annotations

from typing import Any, Callable, Optional

import typer

from gluon_cli.output import command
from gluon_core.errors import GluonError
from gluon_core.plugin.paths import load_named
from gluon_core.registry.load import registry

__all__ = ["find", "names"]


def names() -> list[str]:
    """Return the commands of all plugins."""
    try:
        return list(registry().offers("command"))
    except GluonError:  # the command itself reports the error
        return []


def find(name: str) -> Optional[Any]:
    """Return the command of that name; None where no plugin has one.

    In place of a command that cannot be loaded it returns one that says so, for the others to be listed.
    """
    try:
        offer = registry().offers("command").get(name)
        if offer is None:
            registry().refuse_clash("command", name)
            return None
        value = load_named(offer.value, f"plugin {offer.by.origin}, command {name!r}")
    except GluonError as error:
        value = _refusing(error)
    if not isinstance(value, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command()(command(value))
        value = app
    loaded = typer.main.get_command(value)
    loaded.name = name
    return loaded


def _refusing(error: GluonError) -> Callable[[], None]:
    def refuse() -> None:
        """Not available: a plugin is broken."""
        raise error

    return refuse
