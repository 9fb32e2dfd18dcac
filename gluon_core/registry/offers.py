"""The offers of plugins by name: commands of `gluon`, modules behind `gluon_core.<name>`, and services."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from typing import Mapping, Optional

__all__ = ["HOOKS", "Offer", "installation"]

# Hook -> the kind of the names that plugins answer.
HOOKS: Mapping[str, str] = {
    "gluon_commands": "command",
    "gluon_modules": "module",
    "gluon_services": "service",
}


@dataclass(frozen=True)
class Offer:
    """The path behind a name.

    Args:
        path: `package.module` or `package.module:attribute`.
        origin: the plugin, with its distribution where that is known.
    """

    path: str
    origin: str


def installation(name: str) -> Optional[str]:
    """Return the command that installs what `name` is called after: an extra of gluon-core, if it has one.

    Args:
        name: of a module or a service; `tune.configurations` comes with the extra `tune`.
    """
    extra = name.partition(".")[0]
    try:
        known = metadata.metadata("gluon-core").get_all("Provides-Extra") or ()
    except metadata.PackageNotFoundError:  # run from a checkout
        return None
    return f'pip install "gluon-core[{extra}]"' if extra in known else None
