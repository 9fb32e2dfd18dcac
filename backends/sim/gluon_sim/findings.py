"""The findings of a run as plain data, which `gluon run --html` draws."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

__all__ = ["BankUse", "Findings", "Held", "KernelFindings", "LineFindings", "Party", "Trouble"]


@dataclass(frozen=True)
class Held:
    """A value of a kernel.

    Args:
        file, line: where it is made.
        name: of the variable; "" where it has none.
        type: its type without the layout, such as "tensor<64x64xfp16>".
        layout: a `gluon_core.layouts.Layout`.
        shape: of the tensor or buffer.
        bits: of one element.
    """

    file: str
    line: int
    name: str
    type: str
    layout: Any
    shape: tuple[int, ...]
    bits: int


@dataclass(frozen=True)
class BankUse:
    """The accesses of one line to one buffer of shared memory, over all programs.

    Args:
        file, line: of the access.
        way: "read" or "written".
        passes: over the banks; `ideal` of them without conflicts.
        buffer: its layout. `buffer_line` is where it is allocated.
        cure: a layout of the buffer with fewer passes over all of its accesses, if one was found.
        cured: passes of this line with it.
        note: why there is no remedy, or what the remedy leaves.
    """

    file: str
    line: int
    way: str
    passes: int
    ideal: int
    buffer: Any
    buffer_line: int
    cure: Any = None
    cured: Optional[int] = None
    note: str = ""


@dataclass(frozen=True)
class LineFindings:
    """The counts of a kernel's line: a text for each of the kernel's columns, and numbers to sort by."""

    file: str
    line: int
    cells: tuple[str, ...]
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class KernelFindings:
    """One kernel on one target, all its launches together.

    Args:
        columns: of the profile, the one that says where the time goes first.
        summary: what bounds the kernel, in sentences.
        total: the cells of all lines together.
    """

    kernel: str
    target: str
    file: str
    line: int
    launches: int
    programs: int
    columns: tuple[str, ...]
    lines: tuple[LineFindings, ...]
    total: tuple[str, ...]
    summary: tuple[str, ...] = ()
    banks: tuple[BankUse, ...] = ()
    values: tuple[Held, ...] = ()


@dataclass(frozen=True)
class Party:
    """One side of a mistake: a task that waits, an access of a race, a line that never came.

    Args:
        name: of the task, partition or program.
        action: that it takes or waits for.
        file, line: where; 0 for nowhere.
        waits_for: indices of the parties that could let it go on, or that it has no order with.
    """

    name: str
    action: str
    file: str = ""
    line: int = 0
    waits_for: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trouble:
    """An error that a launch ended with.

    Args:
        error: its class. `text` is all that it says.
        relation: what an arrow between the parties means.
    """

    error: str
    kernel: str
    target: str
    text: str
    file: str = ""
    line: int = 0
    relation: str = ""
    parties: tuple[Party, ...] = ()


@dataclass(frozen=True)
class Findings:
    """Everything of a run.

    Args:
        timeline: events in Chrome's trace format, `traceEvents` and `otherData`.
    """

    kernels: tuple[KernelFindings, ...] = ()
    timeline: Mapping[str, Any] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()
