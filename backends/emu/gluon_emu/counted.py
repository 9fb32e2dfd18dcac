"""The counts of launches that were written to a file, `--trace-isa`, read again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Callable

from gluon_core.errors import ArgumentError
from gluon_core.simulation.watch import Executed

__all__ = ["counted"]


def counted(compiled: Any, path: str, code: str) -> Executed:
    """Return the counts of the launches of `compiled` in a file of JSON lines; those of the kernel
    with other types or constants where there are none of this code.

    Args:
        code: the hash of its instructions.

    Raises:
        ArgumentError: the file cannot be read, is something else, or has no launch of the kernel.
    """
    try:
        launches = [json.loads(line) for line in Path(path).read_text().splitlines() if line]
        names = {(one["kernel"], one["architecture"]) for one in launches}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            "not a file that `gluon run --trace-isa` wrote",
            argument=path,
            got=f"{type(error).__name__}: {error}",
        ) from error
    wanted = compiled.metadata.name, compiled.target.architecture.name
    own = [one for one in launches if (one["kernel"], one["architecture"]) == wanted]
    if not own:
        raise ArgumentError(
            "no launch of the kernel in this file",
            argument=path,
            expected=" on ".join(wanted),
            got=", ".join(" on ".join(name) for name in sorted(names)) or "nothing",
        )
    same = [one for one in own if one["code"] == code]
    chosen = same or own
    mix: Counter[str] = Counter()
    lines: Counter[tuple[str, int]] = Counter()
    idle = 0
    for one in chosen:
        mix.update(one["families"])
        for line in one["lines"]:
            lines[line["file"], line["line"]] += line["count"]
            idle += sum(e["count"] for e in line["instructions"] if e.get("idle"))
    total: Callable[[str], int] = lambda key: sum(one[key] for one in chosen)  # noqa: E731
    return Executed(
        launches=len(chosen),
        warps=total("waves"),
        instructions=total("instructions"),
        instruction_mix=dict(mix.most_common()),
        global_bytes=total("global_bytes"),
        bank_cycles=total("bank_cycles"),
        waits=total("waits"),
        idle_waits=idle,
        lines=tuple((file, line, count) for (file, line), count in sorted(lines.items())),
        same_code=bool(same),
    )
