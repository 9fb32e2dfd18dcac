"""The names that plugins claim, and the clashes between them.

A name that two plugins claim is nobody's: whoever asks for it gets an error that names both
distributions, and everything else of both plugins works. `GLUON_PLUGINS` keeps one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional

from gluon_core.plugin.backend import Backend
from gluon_core.plugin.language import Lowering
from gluon_core.plugin.targets import Architecture

__all__ = ["Claim", "Clash", "Contribution", "Names", "key_of"]


CORE = "gluon_core"  # the name of the plugin that the core itself is, and its package


def key_of(spelling: str) -> str:
    """Return the key of a spelling: `SM_90`, `sm-90` and `sm90` are one."""
    return spelling.strip().lower().replace("_", "").replace("-", "")


class Contribution(NamedTuple):
    """The verified contribution of one plugin.

    Args:
        plugin: its name.
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


@dataclass(frozen=True)
class Clash:
    """A name that several plugins claim.

    Args:
        kind: `backend`, `spelling`, `simulator`, `export`, `lowering`, `command`, `module` or
            `service`.
        name: as the first of them writes it.
        plugins: their names.
        text: one sentence that names all of them.
        remedy: how to keep one.
    """

    kind: str
    name: str
    plugins: tuple[str, ...]
    text: str
    remedy: str


class Claim(NamedTuple):
    """The claim of one plugin: the name, a value, and the words of a message for it."""

    by: Contribution
    name: str
    value: Any
    words: str

    @property
    def path(self) -> str:
        """Return the path of a command, a module or a service."""
        return str(self.value)


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


class Names:
    """Every name that some contributions claim, by kind."""

    def __init__(self, contributions: Iterable[Contribution]):
        self._contributions = list(contributions)
        self._claims: dict[tuple[str, str], list[Claim]] = {}
        for by in self._contributions:
            for backend in by.backends:
                self._claim("backend", backend.name, by, backend, f"backend {backend.name!r}")
            for kind, paths in by.offers.items():
                for name, path in paths.items():
                    self._claim(kind, name, by, path, path)
        for claim in self.held("backend").values():  # a backend that two claim claims nothing
            for kind, name, value, words in _names_of(claim.value):
                self._claim(kind, name, claim.by, value, words)
        for by in self._contributions:
            for lowering in by.lowerings:
                self._claim(
                    "lowering", f"{lowering.op}/{lowering.name}", by, lowering, lowering.implement
                )

    def _claim(self, kind: str, name: str, by: Contribution, value: Any, words: str) -> None:
        group = self._claims.setdefault(_key(kind, name), [])
        if all(claim.value is not value for claim in group):  # one may repeat its own spelling
            group.append(Claim(by, name, value, words))

    def claimed(self, kind: str) -> Iterator[Claim]:
        """Yield each claim of a kind, those that clash included."""
        for (of, _), group in self._claims.items():
            if of == kind:
                yield from group

    def held(self, kind: str) -> dict[str, Claim]:
        """Return name -> claim of each name of a kind that one plugin alone claims."""
        groups = self._claims.items()
        return {name: group[0] for (of, name), group in groups if of == kind and len(group) == 1}

    def clash(self, kind: str, name: str, prefix: str = "") -> Optional[Clash]:
        """Return the clash of that kind about `name`, None where there is none.

        Args:
            prefix: of the spelling of a target, such as "sim:".
        """
        group = self._claims.get(_key(kind, name), [])
        if len(group) < 2:
            return None
        name = group[0].name
        listed = " and by ".join(f"{c.words} (plugin {c.by.origin})" for c in group)
        full = [
            f"'{prefix}{claim.value.backend}:{name}'"
            for claim in group
            if kind == "spelling" and isinstance(claim.value, Architecture)
        ]
        say = f"Say {' or '.join(full)}. " if full else ""
        rivals = dict.fromkeys(claim.by.plugin for claim in group)
        leave = " or ".join(repr(plugin) for plugin in rivals if plugin != CORE)
        installed = ",".join(by.plugin for by in self._contributions if by.plugin != CORE)
        return Clash(
            kind,
            name,
            tuple(rivals),
            f"{_KINDS[kind].format(name)} is claimed twice: by {listed}",
            f"{say}GLUON_PLUGINS, the plugins to load, keeps one: leave {leave} out of {installed}.",
        )

    def clashes(self) -> tuple[Clash, ...]:
        """Return every clash."""
        return tuple(filter(None, (self.clash(kind, name) for kind, name in self._claims)))


def _key(kind: str, name: str) -> tuple[str, str]:
    return kind, key_of(name) if kind == "spelling" else name


def _names_of(backend: Backend) -> Iterator[tuple[str, str, Any, str]]:
    """Yield kind, name, value and words of each name that a backend claims besides its own."""
    words = f"the backend {backend.name!r}"
    yield "spelling", backend.name, backend, words
    yield "module", backend.name, backend, words
    for arch in backend.architectures:
        for spelling in arch.spellings:
            yield "spelling", spelling, arch, f"{backend.name}:{arch.name}"
    if backend.simulates and backend.simulation.unasked:
        yield "simulator", "simulating", backend, words
    for name, path in backend.language.exports.items():
        yield "export", name, path, path
    if backend.language.namespace is not None:  # gl.<name> is its namespace
        yield "export", backend.name, backend, words
    for lowering in backend.language.lowerings:
        yield "lowering", f"{lowering.op}/{lowering.name}", lowering, lowering.implement
