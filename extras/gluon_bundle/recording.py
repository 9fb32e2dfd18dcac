"""Recording which forms of which kernels a program launches."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Optional

from gluon_bundle.form import form_key, given_options, has_code
from gluon_core import _triton
from gluon_core.compiler.source import GluonASTSource
from gluon_core.launch.miss import OBSERVERS
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry

__all__ = ["Recorded", "Recording", "record"]

Sizes = tuple[int, int, int]


@dataclass
class Recorded:
    """One form of a kernel that was launched.

    Attributes:
        source: the kernel, with the types, constants and marks of the launch.
        target: where it ran; a simulated one too.
        options: those that are not the target's defaults.
        grid: of all its launches; None where they differed.
        launches: how many there were.
    """

    source: GluonASTSource
    target: Target
    options: Mapping[str, Any]
    grid: Optional[Sizes]
    launches: int = 1

    @property
    def hardware(self) -> Target:
        """Return the target that it is compiled for: the simulated hardware, where nothing executes machine code."""
        if has_code(self.target):
            return self.target
        architecture = self.target.architecture
        return Target(architecture.backend, architecture)


class Recording:
    """The launches that `record` collects: iterate over it, or pass it to `Bundle.add_recorded`."""

    def __init__(self) -> None:
        self._launches: dict[tuple[Any, str], Recorded] = {}
        self._lock = threading.Lock()

    def note(
        self, source: GluonASTSource, target: Target, options: Any, grid: Optional[Sizes]
    ) -> None:
        """Remember a launch; `grid` is None where nothing ran."""
        backend = registry().backend(target.backend)
        explicit = given_options(options, backend, target)
        key = (source.fn, form_key(source, target, explicit))
        values = {name: getattr(options, name) for name in explicit}
        with self._lock:
            launch = self._launches.get(key)
            if launch is None:
                self._launches[key] = Recorded(source, target, values, grid)
                return
            launch.launches += 1
            if grid is not None and grid != launch.grid:
                launch.grid = None

    def __iter__(self) -> Iterator[Recorded]:
        return iter(tuple(self._launches.values()))

    def __len__(self) -> int:
        return len(self._launches)


@contextmanager
def record() -> Iterator[Recording]:
    """Collect the forms of the kernels that are launched inside, on any target.

    with gluon_core.bundle.record() as recording:
        main()
    bundle.add_recorded(recording)
    """

    def seen(metadata: Any) -> None:
        """Do nothing: while there is a launch hook, launches take no fast way."""

    recording = Recording()
    hook = _triton.knobs.runtime.launch_enter_hook
    OBSERVERS.append(recording.note)
    if hasattr(hook, "add"):
        hook.add(seen)
    try:
        yield recording
    finally:
        OBSERVERS.remove(recording.note)
        if hasattr(hook, "remove"):
            hook.remove(seen)
