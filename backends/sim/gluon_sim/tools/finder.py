"""The findings of a run, for a page: see `gluon_sim.findings`."""

from __future__ import annotations

from math import prod
from typing import Any, Sequence

from gluon_core.errors import GluonError
from gluon_sim.findings import (
    Findings,
    Held,
    KernelFindings,
    LineFindings,
    Trouble,
)
from gluon_sim.tools.banks import Banks
from gluon_sim.tools.profile import KernelProfile, Profiler
from gluon_sim.tools.profile_text import HEADS, cells, summary, used
from gluon_sim.tools.trace import Tracer
from gluon_sim.tools.trouble import trouble
from gluon_sim.tools.watcher import Launch, Watcher
from gluon_sim.tracing.source import in_library
from gluon_sim.tracing.types import MemDescType, PointerType, TensorType

__all__ = ["Finder"]

_MOST_EVENTS = 20_000  # of a timeline in a page


class Finder(Watcher):
    """In addition to its `watchers`, it collects values and mistakes."""

    def __init__(self) -> None:
        self.profiler = Profiler()
        self.tracer = Tracer(_MOST_EVENTS)
        self.banks = Banks()
        self._values: dict[tuple[str, str], dict[Any, Held]] = {}
        self._troubles: list[Trouble] = []
        self._seen: list[BaseException] = []

    @property
    def watchers(self) -> tuple[Watcher, ...]:
        """Return all that must watch."""
        return self.profiler, self.tracer, self.banks, self

    def begin(self, launch: Launch) -> None:
        program = launch.program.program
        key = (program.kernel.name, str(launch.target))
        if key in self._values:
            return
        values = self._values[key] = {}
        for op in program.walk_ops():
            loc = op.loc
            if not loc.line or in_library(loc.file):
                continue
            for result in op.results:
                held = _held(loc, result)
                if held is not None and held.name:  # the last op of a line computes the named value
                    values[held.file, held.line, held.name] = held
                elif held is not None:
                    values[held.file, held.line, "", held.type, repr(held.layout)] = held

    def broke(self, launch: Launch, error: BaseException) -> None:
        if isinstance(error, GluonError) and not any(error is one for one in self._seen):
            self._seen.append(error)
            kernel = launch.program.program.kernel.name
            self._troubles.append(trouble(kernel, str(launch.target), error))

    def findings(self) -> Findings:
        """Return the findings so far."""
        kernels = tuple(self._kernel(one) for one in self.profiler.kernels.values())
        return Findings(kernels, self.tracer.document(), tuple(self._troubles))

    def _kernel(self, profile: KernelProfile) -> KernelFindings:
        report = profile.report()
        rows = [(row, cells(row)) for row in report["lines"]]
        total = cells(report["total"])
        columns = used([*(text for _, text in rows), total])
        return KernelFindings(
            profile.name,
            str(profile.target),
            profile.file,
            profile.line,
            profile.launches,
            profile.programs,
            tuple(HEADS[i].lstrip(">") for i in columns),
            tuple(
                LineFindings(row["file"], row["line"], _pick(text, columns), _numbers(row, columns))
                for row, text in rows
            ),
            _pick(total, columns),
            tuple(summary(report)),
            self.banks.uses(profile.name, profile.target),
            tuple(self._values.get((profile.name, str(profile.target)), {}).values()),
        )


def _pick(texts: Sequence[str], columns: Sequence[int]) -> tuple[str, ...]:
    return tuple(texts[i] for i in columns)


def _numbers(row: Any, columns: Sequence[int]) -> tuple[float, ...]:
    """Return the sort keys of the cells of `HEADS`."""
    requests = row["read_requests"] + row["write_requests"]
    every = (
        max(row["seconds"].values(), default=0.0),
        row["executed"],
        row["global_read"],
        row["global_written"],
        (row["read_sectors"] + row["write_sectors"]) / requests if requests else 0,
        row["shared_read"],
        row["shared_written"],
        row["conflicts"],
        sum(row["matrix"].values()),
        sum(row["conversions"].values()),
    )
    return tuple(float(every[i]) for i in columns)


def _held(loc: Any, value: Any) -> Any:
    type = value.type
    if not isinstance(type, (TensorType, MemDescType)) or type.layout is None:
        return None
    element = type.element
    if isinstance(type, TensorType) and not prod(type.dims):
        return None
    bits = 64 if isinstance(element, PointerType) else getattr(element, "bits", 32)
    dims = "x".join(map(str, type.dims))
    kind = "tensor" if isinstance(type, TensorType) else "buffer"
    name = value.name or loc.name or ""
    text = f"{kind}<{dims}x{element}>"
    return Held(loc.file, loc.line, name, text, type.layout, tuple(type.dims), bits)
