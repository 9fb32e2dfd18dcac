"""The names that plugins claim, and the clashes between them.

A name that two plugins claim is nobody's: whoever asks for it gets an error that names both
distributions, and everything else of both plugins works. `GLUON_PLUGINS` keeps one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

from gluon_core.plugin.backend import Backend
from gluon_core.plugin.language import Lowering
from gluon_core.plugin.targets import Architecture

__all__ = ["Claim", "Clash", "Contribution", "Names", "key_of"]


CORE = "gluon_core"  # the name of the plugin that the core itself is


def key_of(spelling: str) -> str:
    """Return the key of a spelling: `SM_90`, `sm-90` and `sm90` are one."""
    return spelling.strip().lower().replace("_", "").replace("-", "")


class Contribution(NamedTuple):
    """The verified contribution of one plugin.

    Args:
        plugin: its name.
        origin: its name with its distribution, for messages.
        backends: in its order.
        lowerings: beyond those of its backends.
        offers: kind (`command`, `module`, `service`) -> name -> path.
    """

    plugin: str
    origin: str
    backends: tuple[Backend, ...] = ()
    lowerings: tuple[Lowering, ...] = ()
    offers: Mapping[str, Mapping[str, str]] = {}


@dataclass(frozen=True)
class Clash:
    """A name that several plugins claim.

    Args:
        kind: `backend`, `spelling`, `simulator`, `export`, `lowering`, `command`, `module` or
            `service`.
        name: what they claim.
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
    """The claim of one plugin: a value, and the words of a message for it."""

    by: Contribution
    value: Any
    words: str


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

    def __init__(self, contributions: Sequence[Contribution]):
        self._claims: dict[tuple[str, str], list[Claim]] = {}
        self._written: dict[tuple[str, str], str] = {}  # as the first to claim it writes it
        self._plugins = [by.plugin for by in contributions]
        for by in contributions:
            for backend in by.backends:
                self._claim("backend", backend.name, by, backend, f"backend {backend.name!r}")
            for kind, paths in by.offers.items():
                for name, path in paths.items():
                    self._claim(kind, name, by, path, path)
        for claim in self.held("backend").values():
            self._claim_for(claim.by, claim.value)
        for by in contributions:
            for lowering in by.lowerings:
                self._claim_lowering(by, lowering)

    def _claim_for(self, by: Contribution, backend: Backend) -> None:
        """Claim the names of a backend that is there."""
        words = f"the backend {backend.name!r}"
        self._claim("spelling", backend.name, by, backend, words)
        self._claim("module", backend.name, by, backend, words)
        for arch in backend.architectures:
            for spelling in arch.spellings:
                self._claim("spelling", spelling, by, arch, f"{backend.name}:{arch.name}")
        if backend.simulates and backend.simulation.unasked:
            self._claim("simulator", "simulating", by, backend, words)
        for name, path in backend.language.exports.items():
            self._claim("export", name, by, path, path)
        if backend.language.namespace is not None:  # gl.<name> is its namespace
            self._claim("export", backend.name, by, backend, words)
        for lowering in backend.language.lowerings:
            self._claim_lowering(by, lowering)

    def _claim_lowering(self, by: Contribution, lowering: Lowering) -> None:
        name = f"{lowering.op}/{lowering.name}"
        self._claim("lowering", name, by, lowering, lowering.implement)

    def _claim(self, kind: str, name: str, by: Contribution, value: Any, words: str) -> None:
        key = kind, key_of(name) if kind == "spelling" else name
        self._written.setdefault(key, name)
        group = self._claims.setdefault(key, [])
        if all(claim.value is not value for claim in group):  # one may repeat its own spelling
            group.append(Claim(by, value, words))

    def claimed(self, kind: str) -> Iterator[Claim]:
        """Yield each claim of a kind, those that clash included."""
        for (of, _), group in self._claims.items():
            if of == kind:
                yield from group

    def held(self, kind: str) -> dict[str, Claim]:
        """Return name -> claim of each name of a kind that one plugin alone claims."""
        return {
            name: group[0]
            for (of, name), group in self._claims.items()
            if of == kind and len(group) == 1
        }

    def clash(self, kind: str, name: str, prefix: str = "") -> Optional[Clash]:
        """Return the clash of that kind about `name`, None where there is none.

        Args:
            prefix: of the spelling of a target, such as "sim:".
        """
        key = kind, key_of(name) if kind == "spelling" else name
        group = self._claims.get(key, [])
        if len(group) < 2:
            return None
        listed = " and by ".join(f"{c.words} (plugin {c.by.origin})" for c in group)
        return Clash(
            kind,
            self._written[key],
            tuple(dict.fromkeys(claim.by.plugin for claim in group)),
            f"{_KINDS[kind].format(self._written[key])} is claimed twice: by {listed}",
            self._remedy(kind, prefix, self._written[key], group),
        )

    def clashes(self) -> tuple[Clash, ...]:
        """Return every clash."""
        return tuple(filter(None, (self.clash(kind, name) for kind, name in self._claims)))

    def _remedy(self, kind: str, prefix: str, name: str, group: Sequence[Claim]) -> str:
        full = [
            f"'{prefix}{claim.value.backend}:{name}'"
            for claim in group
            if kind == "spelling" and isinstance(claim.value, Architecture)
        ]
        say = f"Say {' or '.join(full)}. " if full else ""
        rivals = dict.fromkeys(repr(c.by.plugin) for c in group if c.by.plugin != CORE)
        installed = ",".join(plugin for plugin in self._plugins if plugin != CORE)
        return (
            f"{say}GLUON_PLUGINS, the plugins to load, keeps one: leave {' or '.join(rivals)} "
            f"out of {installed}."
        )
