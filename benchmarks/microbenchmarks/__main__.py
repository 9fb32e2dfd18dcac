"""Measure the machine that the model of time describes: `python benchmarks/microbenchmarks --json FILE`.

Every number comes from a loop in PTX whose warps store their clocks, or from graphs of launches. Cycles are of the SM's clock
unless a name says otherwise. `--dry` assembles all loops and runs none; `--only` names a part.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import compute  # noqa: E402
import memory  # noqa: E402
import sync  # noqa: E402
import tma  # noqa: E402
from device import Device, Dry  # noqa: E402

PARTS = {
    "launch": sync.launches,
    "scalar": compute.scalar,
    "matrix": compute.matrix,
    "shared": memory.shared,
    "sync": sync.barriers,
    "global": memory.latencies,
    "tma": tma.copies,
    "bandwidth": memory.bandwidths,
    "cp_async": memory.asynchronous,
    "atomics": memory.atomics,
    "sustained": compute.sustained,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    device: Any = Dry() if options.dry else Device()
    facts: dict[str, Any] = {
        "device": getattr(device, "name", "none"),
        "date": datetime.date.today().isoformat(),
        "multiprocessors": device.multiprocessors,
    }
    failures = 0
    for name, part in PARTS.items():
        if options.only and name not in options.only.split(","):
            continue
        started = time.perf_counter()
        try:
            facts[name] = part(device)
        except Exception as error:
            failures += 1
            print(f"{name} failed: {type(error).__name__}: {error}", flush=True)
        print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
        _show(name, facts.get(name, {}))
        if options.json:
            options.json.write_text(json.dumps(facts, indent=1))
    return 1 if failures else 0


def _show(name: str, facts: Any) -> None:
    if isinstance(facts, dict):
        for key, value in facts.items():
            _show(f"{name} | {key}", value)
    else:
        print(f"| {name} | {facts:.4g} |", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
