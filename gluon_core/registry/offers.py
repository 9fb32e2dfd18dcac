"""The offers of plugins by name: commands of `gluon`, modules behind `gluon_core.<name>`, and services."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from types import MappingProxyType
from typing import Any, Iterable, Mapping, Optional

from gluon_core.errors import PluginError

__all__ = ["HOOKS", "Offer", "Offers", "installation"]

_WORD = r"[A-Za-z_]\w*"
_PATH = rf"{_WORD}(\.{_WORD})*"
_COMMAND, _MODULE, _SERVICE = r"[a-z][a-z0-9-]*", r"[a-z][a-z0-9_]*", r"[a-z][a-z0-9_.]*"

# Hook -> (the form of its names, the form of its paths).
HOOKS: Mapping[str, tuple[str, str]] = {
    "gluon_commands": (_COMMAND, rf"{_PATH}:{_WORD}"),
    "gluon_modules": (_MODULE, _PATH),
    "gluon_services": (_SERVICE, rf"{_PATH}(:{_WORD})?"),
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


class Offers:
    """The offers of all plugins, by hook and name."""

    def __init__(self) -> None:
        self._by_hook: dict[str, dict[str, Offer]] = {hook: {} for hook in HOOKS}

    def of(self, hook: str) -> Mapping[str, Offer]:
        """Return name -> offer, of one hook."""
        return MappingProxyType(self._by_hook[hook])

    def by(self, origin: str) -> tuple[str, ...]:
        """Return what one plugin offers, as words: `command tune`."""
        return tuple(
            f"{hook.removeprefix('gluon_').rstrip('s')} {name}"
            for hook, offers in self._by_hook.items()
            for name, offer in offers.items()
            if offer.origin == origin
        )

    def add(self, origin: str, answers: Mapping[str, Iterable[Any]], taken: Iterable[str]) -> None:
        """Add what one plugin answered to each hook, all of it or nothing.

        Args:
            answers: hook -> (name, path) pairs.
            taken: names below `gluon_core` that modules of plugins cannot have.

        Raises:
            PluginError: a name or a path has a wrong form, or the name belongs to another plugin.
        """
        new = {hook: _checked(origin, hook, answers[hook]) for hook in HOOKS}
        for hook, offers in new.items():
            for name in offers:
                owner = self._by_hook[hook].get(name)
                if owner is not None:
                    raise PluginError(
                        f"plugins {owner.origin} and {origin} both have the name {name!r}",
                        argument=f"{hook}()",
                        remedy="Rename it in one of them, or uninstall one.",
                    )
        reserved = sorted({*new["gluon_modules"]} & {*taken})
        if reserved:
            raise PluginError(
                f"plugin {origin}: gluon_core.{reserved[0]} exists already",
                argument="gluon_modules()",
                remedy="Rename it.",
            )
        for hook, offers in new.items():
            self._by_hook[hook].update(offers)


def _checked(origin: str, hook: str, pairs: Iterable[Any]) -> dict[str, Offer]:
    names, paths = HOOKS[hook]
    offers = {}
    for pair in pairs:
        if not (
            isinstance(pair, tuple)
            and all(isinstance(part, str) for part in pair)
            and re.fullmatch(names, pair[0])
            and re.fullmatch(paths, pair[1])
        ):
            raise PluginError(
                f"plugin {origin}: {hook}() must return a mapping of names to paths",
                argument=f"{hook}()",
                expected="such as {'name': 'package.module:attribute'}",
                got=repr(pair),
            )
        offers[pair[0]] = Offer(pair[1], origin)
    return offers


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
