"""Write results to files: JSON for machines, a table for source."""

from __future__ import annotations

import json
import keyword
import re
from pathlib import Path
from typing import Any, Iterable, Mapping

from gluon_tune.errors import TuneError
from gluon_tune.tuned.store import Key, Store, Trial

__all__ = ["best_of", "table_source", "write"]


def best_of(rows: Iterable[tuple[Key, Trial]]) -> list[tuple[Key, Trial]]:
    """Return the best trial of each key that has one with status "ok"."""
    best: dict[Key, tuple[Key, Trial]] = {}
    for key, trial in rows:
        if trial.status == "ok":
            best.setdefault(key, (key, trial))
    return list(best.values())


def table_source(rows: Iterable[tuple[Key, Trial]]) -> str:
    """Python that holds a table of configurations for each kernel: `kernel[grid](..., config=TABLE)`."""
    tables: dict[str, dict[tuple[str, str, str], Mapping[str, Any]]] = {}
    why: dict[tuple[str, str, str], str] = {}
    for key, trial in best_of(rows):
        place = (key.target, key.device, key.bucket)
        fixed = {n: v for n, v in json.loads(key.fixed).items() if not isinstance(v, list)}
        table = tables.setdefault(_name(trial.name), {})
        if place in table and key.objective != "time":
            continue  # a measurement goes before a count
        table[place] = {**fixed, **trial.config}
        why[place] = f"{key.objective} {trial.value:.6g}, {key.versions}"
    lines = ['"""Configurations that `gluon tune` found; a launch takes one as `config=`."""', ""]
    for name, table in sorted(tables.items()):
        lines.append(f"{name} = {{")
        for place, config in sorted(table.items()):
            lines.append(f"    # {why[place]}")
            lines.append(f"    {place!r}: {dict(config)!r},")
        lines += ["}", ""]
    return "\n".join(lines)


def _name(kernel: str) -> str:
    name = re.sub(r"\W", "_", kernel).upper()
    return f"{name}_" if not name.isidentifier() or keyword.iskeyword(name) else name


def write(store: Store, path: str) -> int:
    """Write a store to FILE.json, with every trial, or to FILE.py, the best ones; answers how many.

    Raises:
        TuneError: another ending, or nothing to write.
    """
    rows = store.trials()
    kind = Path(path).suffix
    if kind not in (".json", ".py"):
        raise TuneError("must end in .json or .py", argument="--export", got=path)
    if not rows:
        raise TuneError(f"the store {store.path} is empty", argument="--export")
    if kind == ".json":
        Path(path).write_text(json.dumps(store.document(), indent=1, default=str) + "\n")
        return len(rows)
    Path(path).write_text(table_source(rows))
    return len(best_of(rows))
