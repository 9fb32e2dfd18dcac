"""Who has a name that several plugins claim.

A name goes to the plugin that had it first, and the others lose that name and nothing else. Load
order says nothing about who was first, since entry points load by the alphabet. This does, from
first to last:

1. the core's own;
2. plugins of distributions that gluon-core's metadata names in its extras;
3. all other installed plugins, which rank alike;
4. plugins that a program registers itself, in that order.

Among those that rank alike a backend's own name comes before an architecture's own name, and that
before an alias. Where that does not tell, nobody has the name, and asking for it is an error that
names them all. `settle` is a pure function of what the plugins bring, so nothing depends on the order
in which they come.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence

from gluon_core.plugin.backend import Backend
from gluon_core.plugin.language import Lowering
from gluon_core.plugin.targets import Architecture

__all__ = ["Clash", "Contribution", "State", "key_of", "settle"]

_CHOOSE = "Choose with GLUON_PLUGINS, or uninstall one of them."
_QUALIFY = "Name the backend, too, as in BACKEND:ARCHITECTURE."

# What a plugin claims a name for; the lower wins among plugins of one rank.
_BACKEND, _ARCHITECTURE, _ALIAS = range(3)


def key_of(spelling: str) -> str:
    """`SM_90`, `sm-90` and `sm90` are one spelling."""
    return spelling.strip().lower().replace("_", "").replace("-", "")


class Contribution(NamedTuple):
    """What one plugin brings, verified.

    Args:
        plugin: its name.
        origin: its name with its distribution, for messages.
        rank: who was first; the lower, the earlier.
        backends: in its order.
        lowerings: beyond those of its backends.
    """

    plugin: str
    origin: str
    rank: int
    backends: tuple[Backend, ...] = ()
    lowerings: tuple[Lowering, ...] = ()


@dataclass(frozen=True)
class Clash:
    """A name that several plugins claim.

    Args:
        kind: `backend`, `spelling`, `simulator`, `export`, `lowering` or `priority`.
        name: what they claim.
        keeps: name of the plugin that has it, None if nobody has.
        loses: names of the plugins that have not.
        text: one sentence that names all of them.
        remedy: what to do about it.
    """

    kind: str
    name: str
    keeps: Optional[str]
    loses: tuple[str, ...]
    text: str
    remedy: str


@dataclass(frozen=True)
class State:
    """What the plugins offer together, clashes settled.

    Args:
        backends: name -> backend and origin of its plugin, those first that were first.
        architectures: of those backends.
        spellings: key of a bare word -> the architecture that it means.
        simulator: the backend that kernels run on unasked.
        defaults: the architectures that say they are the default, of the plugins that were first.
        exports: name in `gl` -> its path and the origin of its plugin.
        lowerings: (op, name) -> lowering and the name of its plugin.
        barred: (op, name) of a lowering -> architecture, as `backend:name` -> why it is not taken there.
        clashes: every name that was claimed more than once.
    """

    backends: Mapping[str, tuple[Backend, str]] = field(default_factory=dict)
    architectures: tuple[Architecture, ...] = ()
    spellings: Mapping[str, Architecture] = field(default_factory=dict)
    simulator: Optional[str] = None
    defaults: tuple[Architecture, ...] = ()
    exports: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    lowerings: Mapping[tuple[str, str], tuple[Lowering, str]] = field(default_factory=dict)
    barred: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    clashes: tuple[Clash, ...] = ()

    def clash(self, kind: str, name: str) -> Optional[Clash]:
        """The clash of that kind about `name`, as `key_of` spells it."""
        return next(
            (c for c in self.clashes if c.kind == kind and key_of(c.name) == key_of(name)), None
        )


class _Claim(NamedTuple):
    """One plugin's claim: what it wants the name for, and how a message calls that."""

    by: Contribution
    value: Any
    words: str
    weight: int = 0

    @property
    def order(self) -> tuple[int, int]:
        return self.by.rank, self.weight


# A backend that is there, beside what brought it.
_Owned = tuple[Backend, Contribution]


def settle(contributions: Iterable[Contribution]) -> State:
    """What `contributions` offer together; whoever loses a name is in `clashes`."""
    clashes: list[Clash] = []
    ordered = sorted(contributions, key=lambda c: (c.rank, c.plugin))
    backends = _backends(ordered, clashes)
    spellings, refused = _spellings(backends, clashes)
    there = tuple(a for b, _ in backends for a in b.architectures if id(a) not in refused)
    lowerings = _lowerings(ordered, backends, clashes)
    return State(
        backends={b.name: (b, by.origin) for b, by in backends},
        architectures=there,
        spellings=spellings,
        simulator=_simulator(backends, clashes),
        defaults=_defaults(backends, there),
        exports=_exports(backends, clashes),
        lowerings={key: (low, by.plugin) for key, (low, by) in lowerings.items()},
        barred=_ties(lowerings, there, clashes),
        clashes=tuple(clashes),
    )


def _decide(
    kind: str, name: str, claims: Sequence[_Claim], clashes: list[Clash], what: str, remedy: str
) -> Optional[_Claim]:
    """The claim that holds; where there are others, or it cannot be told, `clashes` gets a clash."""
    if len(claims) == 1:
        return claims[0]
    first = min(claim.order for claim in claims)
    best = [claim for claim in claims if claim.order == first]
    winner = best[0] if len(best) == 1 else None
    listed = " and by ".join(f"{c.words} (plugin {c.by.origin})" for c in claims)
    verdict = f"{winner.words} has it" if winner is not None else "nobody has it"
    clash = Clash(
        kind,
        name,
        winner.by.plugin if winner is not None else None,
        tuple(dict.fromkeys(c.by.plugin for c in claims if c is not winner)),
        f"{what} is claimed twice: by {listed}; {verdict}",
        remedy,
    )
    if all((kind, name) != (c.kind, c.name) for c in clashes):
        clashes.append(clash)
    return winner


def _backends(ordered: Sequence[Contribution], clashes: list[Clash]) -> list[_Owned]:
    claims: dict[str, list[_Claim]] = {}
    for by in ordered:
        for backend in by.backends:
            claims.setdefault(backend.name, []).append(_Claim(by, backend, repr(backend.name)))
    found = []
    for name, group in claims.items():
        won = _decide("backend", name, group, clashes, f"the backend name {name!r}", _CHOOSE)
        if won is not None:
            found.append((won.value, won.by))
    return found


def _simulator(backends: Sequence[_Owned], clashes: list[Clash]) -> Optional[str]:
    claims = [
        _Claim(by, b, f"backend {b.name!r}")
        for b, by in backends
        if b.simulates and b.simulation.unasked
    ]
    if not claims:
        return None
    what = "that it simulates where nobody names a target"
    won = _decide("simulator", "simulator", claims, clashes, what, _CHOOSE)
    return won.value.name if won is not None else None


def _defaults(
    backends: Sequence[_Owned], there: Sequence[Architecture]
) -> tuple[Architecture, ...]:
    """A later plugin's default is that of its own backend only, which is no clash."""
    ranks = {backend.name: by.rank for backend, by in backends}
    found = [arch for arch in there if arch.default]
    first = min((ranks[arch.backend] for arch in found), default=None)
    return tuple(arch for arch in found if ranks[arch.backend] == first)


def _spellings(
    backends: Sequence[_Owned], clashes: list[Clash]
) -> tuple[dict[str, Architecture], frozenset[int]]:
    """Key of a bare word -> architecture, and the identities of architectures that are not there
    because their own name is somebody else's."""
    refused: frozenset[int] = frozenset()
    while True:
        found, more = _spelled(backends, refused, clashes)
        if not more:
            return found, refused
        refused |= more  # what they also claimed is free again


def _spelled(
    backends: Sequence[_Owned], refused: frozenset[int], clashes: list[Clash]
) -> tuple[dict[str, Architecture], frozenset[int]]:
    claims: dict[str, list[_Claim]] = {}
    written: dict[str, str] = {}  # key -> as the first to claim it writes it
    for backend, by in backends:
        words = f"the backend {backend.name!r}"
        claims.setdefault(key_of(backend.name), []).append(_Claim(by, backend, words, _BACKEND))
        written.setdefault(key_of(backend.name), backend.name)
        for arch in backend.architectures:
            if id(arch) in refused:
                continue
            for spelling in arch.spellings:
                group = claims.setdefault(key_of(spelling), [])
                written.setdefault(key_of(spelling), spelling)
                weight = _ARCHITECTURE if spelling == arch.name else _ALIAS
                if all(claim.value is not arch for claim in group):
                    words = f"{arch.backend}:{arch.name}"
                    group.append(_Claim(by, arch, words, weight))
    found: dict[str, Architecture] = {}
    more: set[int] = set()
    for key, group in claims.items():
        what = f"the spelling {written[key]!r}"
        won = _decide("spelling", written[key], group, clashes, what, _QUALIFY)
        if won is None:
            continue
        if isinstance(won.value, Architecture):
            found[key] = won.value
        more.update(id(c.value) for c in group if c.weight == _ARCHITECTURE and c is not won)
    return found, frozenset(more)


def _exports(backends: Sequence[_Owned], clashes: list[Clash]) -> dict[str, tuple[str, str]]:
    claims: dict[str, list[_Claim]] = {}
    for backend, by in backends:
        for name, path in backend.language.exports.items():
            claims.setdefault(name, []).append(_Claim(by, path, path, _ALIAS))
    for backend, by in backends:  # gl.<name> is also a backend's namespace
        if backend.language.namespace is not None and backend.name in claims:
            words = f"the backend {backend.name!r}"
            claims[backend.name].append(_Claim(by, None, words, _BACKEND))
    found = {}
    for name, group in claims.items():
        won = _decide("export", name, group, clashes, f"gl.{name}", _CHOOSE)
        if won is not None and won.value is not None:
            found[name] = (won.value, won.by.origin)
    return found


_Lowerings = dict[tuple[str, str], tuple[Lowering, Contribution]]


def _lowerings(
    ordered: Sequence[Contribution], backends: Sequence[_Owned], clashes: list[Clash]
) -> _Lowerings:
    there = {id(backend) for backend, _ in backends}
    claims: dict[tuple[str, str], list[_Claim]] = {}
    for by in ordered:
        own = [low for b in by.backends if id(b) in there for low in b.language.lowerings]
        for low in (*own, *by.lowerings):
            group = claims.setdefault((low.op, low.name), [])
            group.append(_Claim(by, low, low.implement))
    found = {}
    for key, group in claims.items():
        name = "/".join(key)
        won = _decide("lowering", name, group, clashes, f"the lowering {name!r}", _CHOOSE)
        if won is not None:
            found[key] = (won.value, won.by)
    return found


def _ties(
    lowerings: _Lowerings, architectures: Sequence[Architecture], clashes: list[Clash]
) -> dict[tuple[str, str], dict[str, str]]:
    """(op, name) of a lowering -> architecture -> why it is not taken there: another of the same
    priority is there, too, and was first, or it cannot be told which was."""
    groups: dict[tuple[str, int], list[tuple[Lowering, Contribution]]] = {}
    for low, by in lowerings.values():
        groups.setdefault((low.op, low.priority), []).append((low, by))
    barred: dict[tuple[str, str], dict[str, str]] = {}
    for (op, priority), group in groups.items():
        for i, (one, first) in enumerate(group):
            for other, second in group[i + 1 :]:
                needed = {*one.requires, *other.requires}
                where = [f"{a.backend}:{a.name}" for a in architectures if needed <= a.capabilities]
                if not where:
                    continue
                losers = [other] if first.rank < second.rank else [one, other]
                for low in losers:
                    rival = other if low is one else one
                    reason = f"shares priority {priority} with {rival.name}"
                    barred.setdefault((op, low.name), {}).update(dict.fromkeys(where, reason))
                clashes.append(
                    Clash(
                        "priority",
                        f"{op}/{one.name}, {op}/{other.name}",
                        first.plugin if len(losers) == 1 else None,
                        tuple(
                            dict.fromkeys((first.plugin,) * (len(losers) - 1) + (second.plugin,))
                        ),
                        f"lowerings {one.name!r} (plugin {first.origin}) and {other.name!r} (plugin "
                        f"{second.origin}) of {op!r} share priority {priority}, and both can fit "
                        f"{', '.join(where)}; "
                        + (f"{one.name!r} is taken" if len(losers) == 1 else "neither is taken"),
                        "Give one of them another priority.",
                    )
                )
    return barred
