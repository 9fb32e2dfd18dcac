"""Assertions that failed: their messages, their places, and the numbers that were compared.

Triton's `device_assert`, and its checks of integer overflow, end in a branch around code that prints a
line for each lane and traps. The comparison behind the condition has the line of the assertion.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Sequence

import numpy as np

from gluon_emu.amdgcn.decode.program import Instruction, Program
from gluon_emu.amdgcn.isa.bind import TYPES, Context, scalar_reader, vector_reader

__all__ = ["describe", "lanes_text", "watched"]

_SHOWN = 4  # lanes or waves that a report lists
_LINE = re.compile(
    r"device assertion failed: '(?P<text>.*)', in \S+ at (?P<file>.*):(?P<line>\d+)$"
)
_COMPARISON = re.compile(r"(?:v_cmpx?|s_cmpk?)_(n?(?:gt|lt|ge|le|eq|lg|ne|lg))_(\w+)$")


def watched(program: Program, context: Context) -> dict[int, Callable[[Any], None]]:
    """Return the comparisons on the lines of assertions: index -> function that records their operands."""
    traps = [ins for ins in program.instructions if ins.name == "s_trap"]
    recorders = {}
    for ins in program.instructions:
        comparison = _COMPARISON.match(ins.name)
        if comparison is None or not any(_of_condition(ins, trap) for trap in traps):
            continue
        if comparison[2] in TYPES and len(ins.operands) >= 2:
            recorders[ins.index] = _remember(ins, context, comparison[2])
    return recorders


def _of_condition(ins: Instruction, trap: Instruction) -> bool:
    """Return whether an instruction belongs to the condition of an assertion: it is on the same line, but
    not in the column of the code that prints."""
    one, other = ins.location, trap.location
    if one is None or other is None or (one.file, one.line) != (other.file, other.line):
        return False
    return one.column != other.column


def _remember(ins: Instruction, context: Context, kind: str) -> Callable[[Any], None]:
    sources = ins.operands[-2:]
    if ins.name.startswith("s_"):
        reads = [_column(scalar_reader(source, kind, context)) for source in sources]
    else:
        reads = [vector_reader(ins, s, kind, context, place) for place, s in enumerate(sources)]

    def remember(b: Any) -> None:
        kept = b.machine.compared.get(ins.index)
        if kept is None:
            shape = (b.machine.ended.size, context.lanes)
            kept = b.machine.compared[ins.index] = [np.zeros(shape, TYPES[kind]) for _ in reads]
        for values, read in zip(kept, reads):
            new = np.broadcast_to(read(b), b.exec.shape)
            values[b.waves] = np.where(b.exec, new, values[b.waves])

    return remember


def _column(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda b: np.reshape(read(b), (-1, 1))


def describe(ins: Instruction, b: Any) -> str:
    """Return the message of an assertion that failed in the waves of a batch, "" where none was printed."""
    service, location = b.machine.service, ins.location
    lines = [m for m in map(_LINE.match, service.complaints if service else ()) if m]
    if not lines:
        return ""
    places = [] if location is None else [(location.file, location.line), *location.inlined]
    own = [m for m in lines if (m["file"], int(m["line"])) in places]
    text = (own or lines)[-1]["text"]
    parts = [f"assertion failed: {text}"]
    order = sorted(range(b.waves.size), key=lambda row: int(b.waves[row]))
    for row in order[:_SHOWN]:
        group, wave = b.machine.place_of(int(b.waves[row]))
        lanes = [int(lane) for lane in np.flatnonzero(b.exec[row])]
        parts.append(f"in workgroup {group}, wave {wave}, {lanes_text(lanes)}")
        if "overflow detected" not in text:
            parts += [f"  {values}" for values in _operands(ins, b, row, lanes)]
    if len(order) > _SHOWN:
        parts.append(f"and in {len(order) - _SHOWN} more waves")
    return "\n  ".join(parts)


def _operands(ins: Instruction, b: Any, row: int, lanes: Sequence[int]) -> list[str]:
    """Return the numbers that were compared on the line of an assertion."""
    texts = []
    for index, (left, right) in b.machine.compared.items():
        other = b.machine.program.instructions[index]
        if not _of_condition(other, ins):
            continue
        match = _COMPARISON.match(other.name)
        assert match is not None  # only matching comparisons are watched
        wave = int(b.waves[row])
        pairs = [f"{left[wave, lane]} and {right[wave, lane]} (lane {lane})" for lane in lanes]
        if other.name.startswith("s_"):
            pairs = [f"{left[wave, 0]} and {right[wave, 0]}"]
        more = ", ..." if len(pairs) > _SHOWN else ""
        texts.append(f"it compared {', '.join(pairs[:_SHOWN])}{more}")
    return texts


def lanes_text(lanes: Sequence[int]) -> str:
    """Return the numbers of lanes as text, with runs shortened."""
    runs: list[list[int]] = []
    for lane in lanes:
        if runs and runs[-1][-1] == lane - 1:
            runs[-1][1:] = [lane]
        else:
            runs.append([lane])
    shown = [str(r[0]) if len(r) == 1 else f"{r[0]}-{r[1]}" for r in runs[: 2 * _SHOWN]]
    more = ", ..." if len(runs) > 2 * _SHOWN else ""
    return f"{'lane' if len(lanes) == 1 else 'lanes'} {', '.join(shown)}{more}"
