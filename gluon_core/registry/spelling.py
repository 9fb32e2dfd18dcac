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


class Spellings:
    """Parses targets against the contents of one registry."""

    def __init__(self, registry: Contents, names: Names):
        self._registry = registry
        held = names.held("spelling").items()
        self._by_key: dict[str, Architecture] = {
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
            target = self._parsed.get(spec)
            if target is None:
                target = self._parse(spec)
                if spec.strip().lower() not in self._registry.backends:  # whose device may change
                    self._parsed[spec] = target
            return target
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
        backends = self._registry.backends.values()
        for backend in backends:
            device = self._registry.device_of(backend)
            if device is not None:
                return device
        simulator = self._registry.simulator()
        if simulator is not None:
            return Target(simulator.name, self.default_architecture())
        self._registry.refuse_clash("simulator", "simulating", TargetError)
        problems = [backend.device.problem() for backend in backends]
        remedies = (*problems, "Name one with target= or GLUON_TARGET.", self._registry.installed())
        raise TargetError(
            "no target was named, no device is plugged in, and no simulator is installed",
            argument="target",
            remedy=" ".join(filter(None, remedies)),
        )

    def default_architecture(self) -> Architecture:
        return self._default_of(self._registry.architectures(), "the simulator")

    def _default_of(self, among: Sequence[Architecture], what: str) -> Architecture:
        chosen = [arch for arch in among if arch.default or len(among) == 1]
        if len(chosen) == 1:
            return chosen[0]
        names = ", ".join(f"{arch.backend}:{arch.name}" for arch in chosen or among)
        none = "none is the default" if among else "no plugin has one"
        raise TargetError(
            f"{what} needs an architecture: {'several are the default' if chosen else none}",
            argument="target",
            expected=f"one of {names}" if names else None,
            remedy=None if names else self._registry.installed(),
        )

    def _parse(self, spec: str) -> Target:
        plugins = self._registry
        head, colon, tail = spec.strip().partition(":")
        if not colon:
            return self._parse_bare(head, spec)
        backend = plugins.backends.get(head.lower())
        if backend is None:
            # Triton's own spelling, `backend:arch[:warp_size]`
            if head.lower() in {arch.triton_backend for arch in plugins.architectures()}:
                name, _, warp = tail.partition(":")
                size = int(warp) if warp.isdigit() else None
                return self._of_triton(head.lower(), name, size, spec)
            plugins.raise_if_failed(head.lower())
            raise self._unknown(head, plugins.backends, "backend", spec)
        if not backend.simulates:
            return Target(backend.name, self._among(backend.architectures, tail, spec))
        owner, colon, rest = tail.partition(":")
        if colon:
            owned = plugins.backend(owner.lower()).architectures
            return Target(backend.name, self._among(owned, rest, spec))
        plugins.refuse_clash("spelling", tail, TargetError, f"{backend.name}:")
        other = plugins.backends.get(tail.lower())
        if other not in (None, backend) and key_of(tail) not in self._by_key:
            return Target(backend.name, self._default_of(other.architectures, f"{spec!r}"))
        return Target(backend.name, self._among(plugins.architectures(), tail, spec))

    def _parse_bare(self, word: str, spec: str) -> Target:
        plugins = self._registry
        plugins.refuse_clash("spelling", word, TargetError)
        arch = self._by_key.get(key_of(word))
        if arch is not None:
            return Target(arch.backend, arch)
        backend = plugins.backends.get(word.lower())
        if backend is None:
            plugins.raise_if_failed(word.lower())
            known = [*_spellings(plugins.architectures()), *plugins.backends]
            raise self._unknown(word, known, "target", spec)
        if backend.simulates:
            return Target(backend.name, self.default_architecture())
        return plugins.device_of(backend) or Target(
            backend.name, self._default_of(backend.architectures, f"{backend.name!r}")
        )

    def _among(self, among: Sequence[Architecture], word: str, spec: str) -> Architecture:
        """Return the architecture that is spelled `word`, whatever it means elsewhere."""
        spelled = [arch for arch in among if key_of(word) in map(key_of, arch.spellings)]
        spelled = spelled or [a for a in among if str(a.arch).lower() == word.strip().lower()]
        if len(spelled) == 1:
            return spelled[0]
        raise self._unknown(word, _spellings(among), "architecture", spec)

    def _of_triton(self, backend: str, arch: Any, warp_size: Optional[int], spec: Any) -> Target:
        known = self._registry.architectures()
        family = [a for a in known if a.triton_backend == backend] or [
            a for a in known if a.backend == backend
        ]
        # Feature suffixes such as `gfx942:sramecc+` do not choose the architecture.
        wanted = str(arch).split(":")[0]
        fits = [a for a in family if str(a.arch) == wanted] or [
            a for a in family if key_of(wanted) in map(key_of, a.spellings)
        ]
        if not fits:
            raise TargetError(
                f"no plugin compiles for {backend}:{arch}",
                argument="target",
                got=str(spec),
                remedy=self._registry.remedy(wanted, [str(a.arch) for a in family]),
            )
        for one in fits:
            if warp_size in (None, one.warp_size):
                return Target(one.backend, one)
        raise TargetError(
            f"{backend}:{arch} has warps of {fits[0].warp_size} threads",
            argument="target",
            expected=f"warp_size={fits[0].warp_size}",
            got=f"warp_size={warp_size}",
        )

    def _some(self, names: Sequence[str]) -> str:
        """Return names to begin with: all, or the newest architectures of each backend where there are many."""
        if len(names) <= _MOST_NAMES:
            return f"Known: {', '.join(names)}."
        newest = []
        for backend in self._registry.backends.values():
            own = [arch.name for arch in backend.architectures if arch.name.lower() in names]
            newest += [f"{', '.join(own[-_NEWEST:])} ({backend.name})"] if own else []
        return f"Among others: {'; '.join(newest)}. `gluon info` lists all."

    def _unknown(self, word: str, known: Iterable[str], what: str, spec: str) -> TargetError:
        names = list(known)
        hint = did_you_mean(word.lower(), names)
        if hint is None and what != "backend":
            hint = self._some(names)
        return TargetError(
            f"unknown {what} {word!r}",
            argument="target",
            got=repr(spec),
            remedy=" ".join(filter(None, (hint, self._registry.installed()))),
        )


def _spellings(among: Iterable[Architecture]) -> list[str]:
    return [spelling for arch in among for spelling in arch.spellings]
