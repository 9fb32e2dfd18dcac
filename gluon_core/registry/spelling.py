"""From every spelling of a target to the one `Target` it means."""

from __future__ import annotations

import os
from typing import Any, Iterable, Optional, Sequence, Union

from gluon_core.errors import TargetError, did_you_mean
from gluon_core.plugin.targets import Architecture, Target
from gluon_core.registry.contents import Contents
from gluon_core.registry.names import key_of

__all__ = ["Targets"]

_MOST_NAMES = 12  # that an error lists
_NEWEST = 4  # of each backend, where there are more


class Targets(Contents):
    """The part of a registry that parses targets."""

    def _publish(self) -> None:
        super()._publish()
        self._by_key = {key: claim.value for key, claim in self._names.held("spelling").items()}
        self._parsed: dict[str, Target] = {}

    def target(self, spec: Union[str, Target, Any, None] = None) -> Target:
        """Return the target that `spec` spells.

        Args:
            spec: an architecture or alias (`hopper`, `gfx942`), `backend:architecture`
                (`nvidia:sm_90`, `sim:hopper`), a backend alone, a `Target`, any object with
                `backend`, `arch` and `warp_size` such as Triton's GPUTarget, or None for
                `GLUON_TARGET`, else the device that is plugged in, else the simulator.

        Raises:
            TargetError: no plugin knows it; the nearest spellings are named.
            PluginError: it belongs to a plugin that did not load.
        """
        if spec is None:
            return self._default()
        if isinstance(spec, Target):
            self.backend(spec.backend)
            return spec
        if isinstance(spec, str):
            target = self._parsed.get(spec)
            if target is None:
                target = self._parse(spec)
                if spec.strip().lower() not in self.backends:  # whose device may change
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
        backends = self.backends.values()
        device = next(filter(None, map(self.device_of, backends)), None)
        simulator = self.simulator()
        if device is None and simulator is not None:
            device = Target(simulator.name, self.default_architecture())
        if device is not None:
            return device
        self.refuse_clash("simulator", "simulating", TargetError)
        problems = [backend.device.problem() for backend in backends]
        remedies = (*problems, "Name one with target= or GLUON_TARGET.", self.installed())
        raise TargetError(
            "no target was named, no device is plugged in, and no simulator is installed",
            argument="target",
            remedy=" ".join(filter(None, remedies)),
        )

    def default_architecture(self) -> Architecture:
        """Return the architecture that the simulator runs kernels for when nobody names one."""
        return self._default_of(self.architectures(), "the simulator")

    def _default_of(self, among: Sequence[Architecture], subject: str) -> Architecture:
        chosen = [arch for arch in among if arch.default or len(among) == 1]
        if len(chosen) == 1:
            return chosen[0]
        names = ", ".join(f"{arch.backend}:{arch.name}" for arch in chosen or among)
        none = "none is the default" if among else "no plugin has one"
        raise TargetError(
            f"{subject} needs an architecture: {'several are the default' if chosen else none}",
            argument="target",
            expected=f"one of {names}" if names else None,
            remedy=None if names else self.installed(),
        )

    def _parse(self, spec: str) -> Target:
        head, colon, tail = spec.strip().partition(":")
        backend = self.backends.get(head.lower())
        if not colon:
            return self._parse_bare(head, spec)
        if backend is None:
            # Triton's own spelling, `backend:arch[:warp_size]`
            if head.lower() in {arch.triton_backend for arch in self.architectures()}:
                name, _, warp = tail.partition(":")
                size = int(warp) if warp.isdigit() else None
                return self._of_triton(head.lower(), name, size, spec)
            self.raise_if_failed(head.lower())
            raise self._unknown(head, self.backends, "backend", spec)
        among, word = backend.architectures, tail
        if backend.simulates:
            owner, colon, rest = tail.partition(":")
            other: Any = self.backends.get(tail.lower())
            if colon:
                among, word = self.backend(owner.lower()).architectures, rest
            else:
                self.refuse_clash("spelling", tail, TargetError, f"{backend.name}:")
                among = self.architectures()
            if self._by_key.get(key_of(tail)) is other not in (None, backend):
                return Target(backend.name, self._default_of(other.architectures, f"{spec!r}"))
        return Target(backend.name, self._among(among, word, spec))

    def _parse_bare(self, word: str, spec: str) -> Target:
        self.refuse_clash("spelling", word, TargetError)
        meant = self._by_key.get(key_of(word))
        if isinstance(meant, Architecture):
            return Target(meant.backend, meant)
        backend = self.backends.get(word.lower())
        if backend is None:
            self.raise_if_failed(word.lower())
            known = [*_spellings(self.architectures()), *self.backends]
            raise self._unknown(word, known, "target", spec)
        if backend.simulates:
            return Target(backend.name, self.default_architecture())
        return self.device_of(backend) or Target(
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
        known = self.architectures()
        family = [a for a in known if a.triton_backend == backend] or [
            a for a in known if a.backend == backend
        ]
        # Feature suffixes such as `gfx942:sramecc+` do not choose the architecture.
        wanted = str(arch).split(":")[0]
        fits = [a for a in family if str(a.arch) == wanted] or [
            a for a in family if key_of(wanted) in map(key_of, a.spellings)
        ]
        if not fits:
            message = f"no plugin compiles for {backend}:{arch}"
            remedy = self.remedy(wanted, [str(a.arch) for a in family])
            raise TargetError(message, argument="target", got=str(spec), remedy=remedy)
        for one in fits:
            if warp_size in (None, one.warp_size):
                return Target(one.backend, one)
        size = fits[0].warp_size
        message, got = f"{backend}:{arch} has warps of {size} threads", f"warp_size={warp_size}"
        raise TargetError(message, argument="target", expected=f"warp_size={size}", got=got)

    def _unknown(self, word: str, known: Iterable[str], category: str, spec: str) -> TargetError:
        names, (one, several, _) = list(known), spec.partition(",")
        hint = f"Name one target: {one}." if several else did_you_mean(word.lower(), names)
        if hint is None and category != "backend":
            hint = f"Known: {', '.join(names)}."
            if len(names) > _MOST_NAMES:
                newest = []
                for backend in self.backends.values():
                    own = [a.name for a in backend.architectures if a.name.lower() in names]
                    newest += [f"{', '.join(own[-_NEWEST:])} ({backend.name})"] if own else []
                hint = f"Among others: {'; '.join(newest)}. `gluon info` lists all."
        hint = " ".join(filter(None, (hint, self.installed())))
        message = f"unknown {category} {word!r}"
        return TargetError(message, argument="target", got=repr(spec), remedy=hint)


def _spellings(among: Iterable[Architecture]) -> list[str]:
    return [spelling for arch in among for spelling in arch.spellings]
