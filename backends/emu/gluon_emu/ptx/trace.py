"""The executed instructions of PTX, by line of the kernel's source: the output of `--trace-isa`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from typing import Any

from gluon_core.simulation.watch import Executed
from gluon_emu.counted import counted
from gluon_emu.ptx.loaded import code_of
from gluon_emu.ptx.machine.code import Code
from gluon_emu.ptx.machine.launch import Counts, Launch

__all__ = ["digest", "executed", "summary", "write"]

_WAITS = ("bar", "barrier", "mbarrier.try_wait", "cp.async.wait_group", "wgmma.wait_group")


def digest(code: Code) -> str:
    """Hash the instructions alone, so that the place of the source file does not matter."""
    text = "\n".join(bound.source.text for bound in code.steps)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def summary(launch: Launch, counts: Counts) -> dict[str, Any]:
    """Return totals, and for each source line its instructions with their counts; of each conditional branch its
    index, the warps that jumped and those that went on.

    Bytes of global memory and cycles of banks are not counted; they are 0.
    """
    code = launch.code
    mix: Counter[str] = Counter()
    families: Counter[str] = Counter()
    lines: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for bound, count in zip(code.steps, counts.counts):
        if not count:
            continue
        statement = bound.source.statement
        name = ".".join((statement.name, *statement.modifiers))
        mix[name] += count
        families[statement.name] += count
        place = bound.source.location
        key = ("", 0) if place is None else (place.file, place.line)
        lines[key].append({"instruction": bound.source.text, "count": count})
    return {
        "kernel": code.kernel.name,
        "architecture": f"sm_{code.module.arch}",
        "code": digest(code),
        "grid": list(launch.grid),
        "waves": max(counts.counts, default=0),
        "instructions": sum(mix.values()),
        "waits": sum(n for name, n in mix.items() if name.startswith(_WAITS)),
        "global_bytes": 0,
        "bank_cycles": 0,
        "mix": dict(mix.most_common()),
        "families": dict(families.most_common()),
        "counts": list(counts.counts),
        "code_lines": [bound.source.line for bound in code.steps],
        "sources": [
            f"{place.file}:{place.line}" if (place := bound.source.location) and place.line else "" for bound in code.steps
        ],
        "branches": [
            [bound.index, counts.jumped[bound.index], count - counts.whole[bound.index]]
            for bound, count in zip(code.steps, counts.counts)
            if bound.guard is not None and bound.source.statement.name == "bra"
        ],
        "lines": [
            {"file": file, "line": line, "count": sum(e["count"] for e in entries), "instructions": entries}
            for (file, line), entries in sorted(lines.items())
        ],
    }  # fmt: skip


def write(path: str, launch: Launch, counts: Counts) -> None:
    """Append the summary of a launch to a file of JSON lines."""
    with open(path, "a") as file:
        file.write(json.dumps(summary(launch, counts)) + "\n")


def executed(compiled: Any, path: str) -> Executed:
    """Return the counts of the launches of `compiled` in a file; see `gluon_emu.counted.counted`."""
    return counted(compiled, path, digest(code_of(compiled.asm["ptx"], compiled.metadata.name)))
