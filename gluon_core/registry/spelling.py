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
        self._by_key = {key: claim.value for key, claim in names.held("spelling").items()}
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
        plugins, wanted = self._registry, os.environ.get("GLUON_TARGET")
        if wanted:
            try:
                return self.target(wanted)
            except TargetError as error:
                error.argument = "GLUON_TARGET"
                raise
        backends = plugins.backends.values()
        device = next(filter(None, map(plugins.device_of, backends)), None)
        simulator = plugins.simulator()
        if device is None and simulator is not None:
            device = Target(simulator.name, self.default_architecture())
        if device is not None:
            return device
        plugins.refuse_clash("simulator", "simulating", TargetError)
        problems = [backend.device.problem() for backend in backends]
        remedies = (*problems, "Name one with target= or GLUON_TARGET.", plugins.installed())
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
        backend = plugins.backends.get(head.lower())
        if not colon:
            return self._parse_bare(head, spec)
        if backend is None:
            # Triton's own spelling, `backend:arch[:warp_size]`
            if head.lower() in {arch.triton_backend for arch in plugins.architectures()}:
                name, _, warp = tail.partition(":")
                size = int(warp) if warp.isdigit() else None
                return self._of_triton(head.lower(), name, size, spec)
            plugins.raise_if_failed(head.lower())
            raise self._unknown(head, plugins.backends, "backend", spec)
        among, word = backend.architectures, tail
        if backend.simulates:
            owner, colon, rest = tail.partition(":")
            other: Any = plugins.backends.get(tail.lower())
            if colon:
                among, word = plugins.backend(owner.lower()).architectures, rest
            else:
                plugins.refuse_clash("spelling", tail, TargetError, f"{backend.name}:")
                among = plugins.architectures()
            if self._by_key.get(key_of(tail)) is other not in (None, backend):
                return Target(backend.name, self._default_of(other.architectures, f"{spec!r}"))
        return Target(backend.name, self._among(among, word, spec))

    def _parse_bare(self, word: str, spec: str) -> Target:
        plugins = self._registry
        plugins.refuse_clash("spelling", word, TargetError)
        meant = self._by_key.get(key_of(word))
        if isinstance(meant, Architecture):
            return Target(meant.backend, meant)
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

    def _unknown(self, word: str, known: Iterable[str], what: str, spec: str) -> TargetError:
        names = list(known)
        hint = did_you_mean(word.lower(), names)
        if hint is None and what != "backend":
            hint = f"Known: {', '.join(names)}."
            if len(names) > _MOST_NAMES:
                newest = []
                for backend in self._registry.backends.values():
                    own = [a.name for a in backend.architectures if a.name.lower() in names]
                    newest += [f"{', '.join(own[-_NEWEST:])} ({backend.name})"] if own else []
                hint = f"Among others: {'; '.join(newest)}. `gluon info` lists all."
        remedy = " ".join(filter(None, (hint, self._registry.installed())))
        message = f"unknown {what} {word!r}"
        return TargetError(message, argument="target", got=repr(spec), remedy=remedy)


def _spellings(among: Iterable[Architecture]) -> list[str]:
    return [spelling for arch in among for spelling in arch.spellings]
