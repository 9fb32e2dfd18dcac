"""The command `python -m tests.fuzz`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Optional, Sequence

from rich.console import Console
from rich.progress import track

from gluon_core.registry.load import registry
from tests.fuzz.runs import DEVICE_LOST, Ways, reduced
from tests.fuzz.workers import HUNG, LOST, outcomes, program_for

__all__ = ["main"]

_NAMED = 8  # seeds of an outcome in the table
_REDUCED = 3  # kernels of an outcome that are made smaller


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """0 where every kernel means the same everywhere, 1 where one does not."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="kernels")
    parser.add_argument("--seed", type=int, default=0, help="of the first kernel")
    parser.add_argument("--targets", default="sm_80,sm_90,gfx942", help="with commas between")
    parser.add_argument("--simulate-only", action="store_true", help="compile nothing")
    parser.add_argument("--device", action="store_true", help="run them on the GPU of this machine")
    parser.add_argument("--no-simulator", action="store_true", help="do not simulate")
    parser.add_argument("--no-reduction", action="store_true", help="do not make failures smaller")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, help="begin no kernel after so many")
    parser.add_argument("--log", type=Path, default=Path("fuzz.jsonl"), help="to go on from")
    given = parser.parse_args(arguments)
    targets = [registry().target(name) for name in given.targets.split(",")]
    ways = Ways(not given.no_simulator, not given.simulate_only, given.device)
    what = given.targets + (" on the device" if given.device else "")
    seen = _done_before(given.log, what)
    seeds = range(given.seed, given.seed + given.count)
    left = [seed for seed in seeds if seed not in seen]
    began = time.monotonic()
    with given.log.open("a") as log:
        log.write("\n" * bool(seen))  # behind a line that was not finished
        found = outcomes(left, targets, ways, given.jobs, given.seconds)
        console = Console(stderr=True)
        shown = track(found, "kernels", len(left), console=console, disable=not console.is_terminal)
        for seed, outcome in shown:
            seen[seed] = outcome
            log.write(json.dumps({"seed": seed, "targets": what, "outcome": outcome}) + "\n")
            log.flush()
    done, spent = sum(seed in seen for seed in left), time.monotonic() - began
    ends: dict[str, list[int]] = {}
    for seed in seeds:
        if seed in seen:
            ends.setdefault(seen[seed], []).append(seed)
    _table(ends, len(seeds))
    if console.is_terminal or given.jobs > 1:
        rate = f"{done / max(spent, 1e-9):.2f} kernels a second"
        print(f"{done} of them now, in {spent:.0f} s, {rate}", file=sys.stderr)
    for text, failed in ends.items() if not given.no_reduction else ():
        for seed in failed[:_REDUCED] if _reducible(text) else ():
            path = given.log.with_name(f"{given.log.stem}-{seed}.py")
            if not path.exists():
                small = reduced(program_for(seed, targets), targets, ways)
                path.write_text(small.source)
                print(f"{seed}: {text}; in {len(small.all)} statements: {path}", flush=True)
    return 0 if set(ends) <= {"same"} else 1


def _table(ends: dict[str, list[int]], wanted: int) -> None:
    """How many ended how, the most frequent first, and the first seeds of those that differ."""
    for text, seeds in sorted(ends.items(), key=lambda end: -len(end[1])):
        few = "" if text == "same" else f"  (seeds {', '.join(map(str, seeds[:_NAMED]))})"
        print(f"{len(seeds):9,}  {text}{few}")
    looked_at = sum(map(len, ends.values()))
    rest = f", {wanted - looked_at:,} are left: the same command goes on" * (looked_at < wanted)
    print(f"{looked_at:9,}  of {wanted:,} kernels{rest}", flush=True)


def _reducible(text: str) -> bool:
    """Whether a kernel that ended so can be run again here, and leaves this process alive."""
    return text not in ("same", LOST, HUNG) and DEVICE_LOST not in text


def _done_before(log: Path, what: str) -> dict[int, str]:
    seen: dict[int, str] = {}
    if log.exists():
        for line in filter(str.strip, log.read_text().splitlines()):
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the run was stopped while it wrote this
            if entry["targets"] == what:
                seen[entry["seed"]] = entry["outcome"]
    return seen


if __name__ == "__main__":
    sys.exit(main())
