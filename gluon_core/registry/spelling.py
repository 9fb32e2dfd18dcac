"""From every spelling of a target to the one `Target` it means."""

from __future__ import annotations

import os
from typing import Any, Iterable, Optional, Sequence

from gluon_core.errors import TargetError, did_you_mean
from gluon_core.plugin.targets import Architecture, Target
from gluon_core.registry.contents import Contents
from gluon_core.registry.names import Names, key_of

__all__ = ["Spellings"]

_MOST_NAMES = 12  # that an error lists
_NEWEST = 4  # of each backend, where there are more
_NAME_ONE = "Name one with target= or GLUON_TARGET."


class Spellings:
    """Parses targets against what one registry holds."""

    def __init__(self, registry: Contents, names: Names):
        self._registry = registry
        held = names.held("spelling").items()
        self.by_key: dict[str, Architecture] = {
            key: claim.value for key, claim in held if isinstance(claim.value, Architecture)
        }
        self._parsed: dict[str, Target] = {}

    def target(self, spec: Any) -> Target:
        if spec is None:
            return self._default()
        if isinstance(spec, Target):
            self._registry.backend(spec.backend)
            return spec
        if isinstance(spec, str):
            found = self._parsed.get(spec)
            if found is None:
                found = self._parse(spec)
                if not _is_bare(spec, self._registry):  # a bare backend asks its device each time
                    self._parsed[spec] = found
            return found
        if all(hasattr(spec, name) for name in ("backend", "arch", "warp_size")):
            return self._of_triton(spec.backend, spec.arch, spec.warp_size, spec)
        raise TargetError(
            "not a target",
            argument="target",
            expected="a string such as 'backend:architecture', a Target, a GPUTarget or None",
            got=repr(spec),
        )

    def _default(self) -> Target:
        wanted = os.environ.get("GLUON_TARGET")
        if wanted:
            try:
                return self.target(wanted)
            except TargetError as error:
                error.argument = "GLUON_TARGET"
                raise
        for backend in self._registry.backends.values():
            device = self._registry.device_of(backend)
            if device is not None:
                return device
        simulator = self._registry.simulator()
        if simulator is None:
            clash = self._registry.clash("simulator", "simulating")
            if clash is not None:
                raise TargetError(clash.text, argument="target", remedy=clash.remedy)
            problems = [b.device.problem() for b in self._registry.backends.values()]
            raise TargetError(
                "no target was named, no device is plugged in, and no simulator is installed",
                argument="target",
                remedy=" ".join(filter(None, (*problems, _NAME_ONE, self._registry.installed()))),
            )
        return Target(simulator.name, self.default_architecture())

    def default_architecture(self) -> Architecture:
        return self._default_of(self._registry.architectures(), "the simulator")

    def _default_of(self, among: Iterable[Architecture], what: str) -> Architecture:
        known = tuple(among)
        chosen = [a for a in known if a.default] or (list(known) if len(known) == 1 else [])
        if len(chosen) == 1:
            return chosen[0]
        names = ", ".join(f"{a.backend}:{a.name}" for a in (chosen or known))
        none = "none is the default" if known else "no plugin has one"
        raise TargetError(
            f"{what} needs an architecture: {'several are the default' if chosen else none}",
            argument="target",
            expected=f"one of {names}" if names else None,
            remedy=None if names else self._registry.installed(),
        )

    def _parse(self, spec: str) -> Target:
        head, colon, tail = spec.strip().partition(":")
        if not colon:
            return self._parse_bare(head, spec)
        backend = self._registry.backends.get(head.lower())
        if backend is None:
            # Triton's own spelling, `backend:arch[:warp_size]`
            triton_backends = {a.triton_backend for a in self._registry.architectures()}
            if head.lower() in triton_backends:
                arch, _, warp = tail.partition(":")
                size = int(warp) if warp.isdigit() else None
                return self._of_triton(head.lower(), arch, size, spec)
            self._registry.raise_if_failed(head.lower())
            raise self._unknown(head, self._registry.backends, "backend", spec)
        if not backend.simulates:
            return Target(backend.name, self._owned(tail, backend.name, spec))
        owner, colon, rest = tail.partition(":")
        if colon:
            owned = self._registry.backend(owner.lower())
            return Target(backend.name, self._owned(rest, owned.name, spec))
        self._refuse_ambiguous(tail, spec, f"{backend.name}:")
        other = self._registry.backends.get(tail.lower())
        if other is not None and other is not backend and key_of(tail) not in self.by_key:
            return Target(backend.name, self._default_of(other.architectures, f"{spec!r}"))
        return Target(backend.name, self._any(tail, spec))

    def _parse_bare(self, word: str, spec: str) -> Target:
        self._refuse_ambiguous(word, spec)
        arch = self.by_key.get(key_of(word))
        if arch is not None:
            return Target(arch.backend, arch)
        backend = self._registry.backends.get(word.lower())
        if backend is None:
            self._registry.raise_if_failed(word.lower())
            raise self._unknown(word, [*self._known(), *self._registry.backends], "target", spec)
        if backend.simulates:
            return Target(backend.name, self.default_architecture())
        device = self._registry.device_of(backend)
        if device is not None:
            return device
        return Target(backend.name, self._default_of(backend.architectures, f"{backend.name!r}"))

    def _owned(self, word: str, backend: str, spec: str) -> Architecture:
        """Return the architecture of `backend` that is spelled `word`, whatever it means elsewhere."""
        among = self._registry.backends[backend].architectures
        spelled = [a for a in among if key_of(word) in map(key_of, a.spellings)]
        return self._one(spelled, among, word, spec)

    def _any(self, word: str, spec: str) -> Architecture:
        """Return the architecture of any backend that is spelled `word`."""
        arch = self.by_key.get(key_of(word))
        return self._one([arch] if arch else [], self._registry.architectures(), word, spec)

    def _one(
        self, spelled: Sequence[Architecture], among: Sequence[Architecture], word: str, spec: str
    ) -> Architecture:
        found = spelled or [a for a in among if str(a.arch).lower() == word.strip().lower()]
        if len(found) == 1:
            return found[0]
        raise self._unknown(word, self._known(among), "architecture", spec)

    def _refuse_ambiguous(self, word: str, spec: str, prefix: str = "") -> None:
        """Raise if several plugins claim `word`."""
        clash = self._registry.clash("spelling", word, prefix)
        if clash is not None:
            raise TargetError(clash.text, argument="target", got=repr(spec), remedy=clash.remedy)

    def _of_triton(self, backend: str, arch: Any, warp_size: Optional[int], spec: Any) -> Target:
        family = [a for a in self._registry.architectures() if a.triton_backend == backend]
        if not family and backend in self._registry.backends:
            family = list(self._registry.backends[backend].architectures)
        # Feature suffixes such as `gfx942:sramecc+` do not choose the architecture.
        wanted = str(arch).split(":")[0]
        found = [a for a in family if str(a.arch) == wanted] or [
            a for a in family if key_of(wanted) in {key_of(s) for s in a.spellings}
        ]
        if not found:
            raise TargetError(
                f"no plugin compiles for {backend}:{arch}",
                argument="target",
                got=str(spec),
                remedy=self._registry.remedy(wanted, [str(a.arch) for a in family]),
            )
        same = [a for a in found if warp_size in (None, a.warp_size)]
        if not same:
            raise TargetError(
                f"{backend}:{arch} has warps of {found[0].warp_size} threads",
                argument="target",
                expected=f"warp_size={found[0].warp_size}",
                got=f"warp_size={warp_size}",
            )
        return Target(same[0].backend, same[0])

    def _known(self, among: Optional[Iterable[Architecture]] = None) -> list[str]:
        found = self._registry.architectures() if among is None else among
        return [spelling for a in found for spelling in a.spellings]

    def _some(self, names: Sequence[str]) -> str:
        """Return names to begin with: all, or the newest architectures of each backend where there are many."""
        if len(names) <= _MOST_NAMES:
            return f"Known: {', '.join(names)}."
        newest: dict[str, list[str]] = {}
        for one in self._registry.architectures():
            if one.name.lower() in names:
                newest.setdefault(one.backend, []).append(one.name)
        some = [f"{', '.join(own[-_NEWEST:])} ({backend})" for backend, own in newest.items()]
        return f"Among others: {'; '.join(some)}. `gluon info` lists all."

    def _unknown(self, word: str, known: Iterable[str], what: str, spec: str) -> TargetError:
        names = list(known)
        hint = did_you_mean(word.lower(), names)
        if hint is None and what in ("architecture", "target"):
            hint = self._some(names)
        return TargetError(
            f"unknown {what} {word!r}",
            argument="target",
            got=repr(spec),
            remedy=" ".join(filter(None, (hint, self._registry.installed()))),
        )


def _is_bare(spec: str, registry: Contents) -> bool:
    return spec.strip().lower() in registry.backends
