"""The executed instructions, by line of the kernel's source: the output of `--trace-isa`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gluon_core.simulation.watch import Executed
from gluon_emu.amdgcn.decode.program import Program
from gluon_emu.amdgcn.decode.text import parse
from gluon_emu.amdgcn.isa import table
from gluon_emu.counted import counted

__all__ = ["Tally", "bank_cycles", "digest", "executed", "summary", "write"]


@dataclass
class Tally:
    """The counts of a launch's instructions, by their place in the program.

    Args:
        size: instructions of the program.
        watched: whether bank conflicts are counted, which takes time.
        counts: how many waves executed each.
        moved: bytes of global memory.
        conflicts: cycles that banks of LDS cost beyond the first.
        useful: whether a wait ever had something to wait for.
        jumped: of each conditional branch, the waves that jumped.
    """

    size: int
    watched: bool = False
    counts: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    conflicts: list[int] = field(default_factory=list)
    useful: list[bool] = field(default_factory=list)
    jumped: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts, self.moved = [0] * self.size, [0] * self.size
        self.conflicts, self.useful = [0] * self.size, [False] * self.size
        self.jumped = [0] * self.size

    def add(self, other: Tally) -> None:
        """Add the counts of other workgroups of the launch."""
        for name in ("counts", "moved", "conflicts", "jumped"):
            mine, theirs = getattr(self, name), getattr(other, name)
            mine[:] = [a + b for a, b in zip(mine, theirs)]
        self.useful[:] = [a or b for a, b in zip(self.useful, other.useful)]


def bank_cycles(place: np.ndarray, size: int, mask: np.ndarray, banks: int) -> int:
    """Cycles beyond the first that the banks of LDS need for one access of each wave.

    A wave's bytes go through in groups of lanes that fill the banks once; in each, two words of one
    bank take two cycles, and one word that several lanes read takes one.
    """
    words = np.maximum(1, size // 4)
    together = max(1, banks // int(words))
    extra = 0
    for row in range(place.shape[0]):
        lanes = np.nonzero(mask[row])[0]
        for group in np.unique(lanes // together):
            chosen = place[row, lanes[lanes // together == group]] // 4
            every = np.unique((chosen[:, None] + np.arange(words)).ravel())
            extra += int(np.bincount(every % banks).max(initial=1)) - 1
    return extra


def summary(code: Any, tally: Tally, grid: tuple[int, int, int]) -> dict[str, Any]:
    """Return the report for `write`: totals, and for each source line its instructions with their counts."""
    families: Counter[str] = Counter()
    lines: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    mix: Counter[str] = Counter()
    for ins, count in zip(code.program.instructions, tally.counts):
        if not count:
            continue
        mix[ins.name] += count
        op = table.find(ins.name)
        families[op.family if op is not None else ins.name] += count
        entry: dict[str, Any] = {"instruction": ins.text, "count": count}
        if tally.moved[ins.index]:
            entry["bytes"] = tally.moved[ins.index]
        if tally.conflicts[ins.index]:
            entry["bank_cycles"] = tally.conflicts[ins.index]
        if ins.name.startswith(("s_waitcnt", "s_wait_")) and not tally.useful[ins.index]:
            entry["idle"] = True  # there was never anything to wait for
        place = ("", 0) if ins.location is None else (ins.location.file, ins.location.line)
        lines[place].append(entry)
    waits = sum(n for name, n in mix.items() if name.startswith(("s_waitcnt", "s_wait_")))
    return {
        "kernel": code.program.name,
        "architecture": code.program.architecture,
        "code": digest(code.program),
        "grid": list(grid),
        "waves": max(tally.counts, default=0),
        "instructions": sum(mix.values()),
        "waits": waits,
        "global_bytes": sum(tally.moved),
        "bank_cycles": sum(tally.conflicts),
        "mix": dict(mix.most_common()),
        "families": dict(families.most_common()),
        "counts": list(tally.counts),
        "code_lines": [ins.line for ins in code.program.instructions],
        "sources": [
            f"{place.file}:{place.line}" if (place := ins.location) and place.line else ""
            for ins in code.program.instructions
        ],
        "branches": [
            [ins.index, tally.jumped[ins.index], count - tally.jumped[ins.index]]
            for ins, count in zip(code.program.instructions, tally.counts)
            if ins.name.startswith("s_cbranch_")
        ],
        "useful": list(tally.useful),
        "lines": [
            {
                "file": file,
                "line": line,
                "count": sum(e["count"] for e in entries),
                "instructions": entries,
            }
            for (file, line), entries in sorted(lines.items())
        ],
    }


def digest(program: Program) -> str:
    """Hash the instructions alone, so that the place of the source file does not matter."""
    text = "\n".join(ins.text for ins in program.instructions)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def executed(compiled: Any, path: str) -> Executed:
    """Return the counts of the launches of `compiled` in a file; see `gluon_emu.counted.counted`."""
    return counted(compiled, path, digest(parse(compiled.asm["amdgcn"], compiled.metadata.name)))


def write(path: str, *args: Any) -> None:
    """Append the summary of a launch to a file of JSON lines."""
    with open(path, "a") as file:
        file.write(json.dumps(summary(*args)) + "\n")
