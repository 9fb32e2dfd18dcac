"""The names that plugins claim, and the clashes between them.

A name that two plugins claim belongs to neither: its use raises an error that names both
distributions, and everything else of both plugins works. `GLUON_PLUGINS` keeps one of them.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional

from gluon_core.plugin.backend import Backend
from gluon_core.plugin.language import Lowering
from gluon_core.plugin.targets import Architecture

__all__ = ["CORE", "Claim", "Clash", "Contribution", "Names", "key_of"]

CORE = "gluon_core"  # the name of the plugin that the core itself is, and its package

# Kind of name -> its words in errors.
_KINDS = {
    "backend": "the backend name {!r}",
    "spelling": "the spelling {!r}",
    "simulator": "{} where nobody names a target",
    "export": "gl.{}",
    "lowering": "the lowering {!r}",
    "command": "the command gluon {}",
    "module": "gluon_core.{}",
    "service": "the service {!r}",
}


def key_of(spelling: str) -> str:
    """Return the key of a spelling: `SM_90`, `sm-90` and `sm90` are one."""
    return spelling.strip().lower().replace("_", "").replace("-", "")


class Contribution(NamedTuple):
    """The verified contribution of one plugin.

    Args:
        plugin: its name; where entry points of several have one, with the module path in parentheses.
        distribution: `name version` of the package that ships it, None when registered by hand.
        backends: in its order.
        lowerings: beyond those of its backends.
        offers: kind (`command`, `module`, `service`) -> name -> path.
    """

    plugin: str
    distribution: Optional[str]
    backends: tuple[Backend, ...] = ()
    lowerings: tuple[Lowering, ...] = ()
    offers: Mapping[str, Mapping[str, str]] = {}

    @property
    def origin(self) -> str:
        """Return the plugin with its distribution, for messages."""
        return f"{self.plugin!r} ({self.distribution})" if self.distribution else repr(self.plugin)


class Clash(NamedTuple):
    """A name of one kind (a backend, a spelling, a command) that several plugins claim: a sentence that
    names all of them, and how to keep one."""

    kind: str
    name: str
    plugins: tuple[str, ...]
    text: str
    remedy: str


class Claim(NamedTuple):
    """The claim of one plugin to a name, for a backend, an architecture, a lowering, or a path."""

    by: Contribution
    name: str
    value: Any

    def __str__(self) -> str:
        value, words = self.value, getattr(self.value, "implement", str(self.value))
        if isinstance(value, Backend):
            words = f"the backend {value.name!r}"
        elif isinstance(value, Architecture):
            words = f"{value.backend}:{value.name}"
        return f"{words} (plugin {self.by.origin})"


class Names:
    """Every name that some contributions claim, by kind."""

    def __init__(self, contributions: Iterable[Contribution]):
        self._plugins: list[str] = []
        self._claims: dict[str, dict[str, list[Claim]]] = {kind: {} for kind in _KINDS}
        for by in contributions:
            self._plugins += [by.plugin] if by.plugin != CORE else []
            for names in _names_of(by):
                self._claim(by, *names)
        for claim in self.held("backend").values():  # a backend that two claim claims nothing
            for names in _names_of_backend(claim.value):
                self._claim(claim.by, *names)

    def _claim(self, by: Contribution, kind: str, name: str, value: Any) -> None:
        group = self._claims[kind].setdefault(key_of(name) if kind == "spelling" else name, [])
        if all(claim.value is not value for claim in group):  # one may repeat its own spelling
            group.append(Claim(by, name, value))

    def claimed(self, kind: str) -> list[Claim]:
        """Return each claim of a kind, those that clash included."""
        return [claim for group in self._claims[kind].values() for claim in group]

    def held(self, kind: str) -> dict[str, Claim]:
        """Return name -> claim of each name of a kind that one plugin alone claims."""
        return {name: group[0] for name, group in self._claims[kind].items() if len(group) == 1}

    def clash(self, kind: str, name: str, prefix: str = "") -> Optional[Clash]:
        """Return the clash of that kind about `name`, None where there is none.

        Args:
            prefix: of the spelling of a target, such as "sim:".
        """
        group = self._claims[kind].get(key_of(name) if kind == "spelling" else name, [])
        if len(group) < 2:
            return None
        name = group[0].name
        architectures = [c.value for c in group if isinstance(c.value, Architecture)]
        full = " or ".join(f"'{prefix}{arch.backend}:{name}'" for arch in architectures)
        rivals = dict.fromkeys(claim.by.plugin for claim in group)
        leave = " or ".join(repr(plugin) for plugin in rivals if plugin != CORE)
        text = (
            f"{_KINDS[kind].format(name)} is claimed twice: by {' and by '.join(map(str, group))}"
        )
        remedy = (
            f"{f'Say {full}. ' if full else ''}GLUON_PLUGINS, the plugins to load, keeps one: "
            f"leave {leave} out of {','.join(self._plugins)}."
        )
        return Clash(kind, name, tuple(rivals), text, remedy)

    def clashes(self) -> tuple[Clash, ...]:
        """Return every clash."""
        each = (self.clash(kind, name) for kind, names in self._claims.items() for name in names)
        return tuple(filter(None, each))


def _names_of(by: Contribution) -> Iterator[tuple[str, str, Any]]:
    """Yield kind, name and value of each name that a plugin claims, but for those of its backends."""
    yield from (("backend", backend.name, backend) for backend in by.backends)
    yield from (("lowering", f"{low.op}/{low.name}", low) for low in by.lowerings)
    for kind, paths in by.offers.items():
        yield from ((kind, name, path) for name, path in paths.items())


def _names_of_backend(backend: Backend) -> Iterator[tuple[str, str, Any]]:
    name, language = backend.name, backend.language
    yield "spelling", name, backend
    for arch in backend.architectures:
        yield from (("spelling", spelling, arch) for spelling in arch.spellings)
    if backend.simulates and backend.simulation.unasked:
        yield "simulator", "simulating", backend
    yield "module", name, language.host or backend
    yield from (("export", export, path) for export, path in language.exports.items())
    if language.namespace is not None:
        yield "export", name, language.namespace
    yield from (("lowering", f"{low.op}/{low.name}", low) for low in language.lowerings)
