"""The command `python -m tests.fuzz`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Optional, Sequence

from rich.console import Console
from rich.progress import track

from gluon_core.registry.load import registry
from tests.fuzz.campaign import add, entries
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
    options = parser.parse_args(arguments)
    targets = [registry().target(name) for name in options.targets.split(",")]
    ways = Ways(not options.no_simulator, not options.simulate_only, options.device)
    label = options.targets + (" on the device" if options.device else "")
    seen = {row["seed"]: row["outcome"] for row in entries(options.log) if row["targets"] == label}
    seeds = range(options.seed, options.seed + options.count)
    left = [seed for seed in seeds if seed not in seen]
    began = time.monotonic()
    ended = outcomes(left, targets, ways, options.jobs, options.seconds)
    rows = ({"seed": seed, "targets": label, "outcome": outcome} for seed, outcome in ended)
    console = Console(stderr=True)
    disable = not console.is_terminal
    for row in track(
        add(options.log, rows), "kernels", len(left), console=console, disable=disable
    ):
        seen[row["seed"]] = row["outcome"]
    done, spent = sum(seed in seen for seed in left), time.monotonic() - began
    ends: dict[str, list[int]] = {}
    for seed in seeds:
        if seed in seen:
            ends.setdefault(seen[seed], []).append(seed)
    _table(ends, len(seeds))
    if console.is_terminal or options.jobs > 1:
        rate = f"{done / max(spent, 1e-9):.2f} kernels a second"
        print(f"{done} of them now, in {spent:.0f} s, {rate}", file=sys.stderr)
    for text, failed in ends.items() if not options.no_reduction else ():
        for seed in failed[:_REDUCED] if _reducible(text) else ():
            path = options.log.with_name(f"{options.log.stem}-{seed}.py")
            if not path.exists():
                small = reduced(program_for(seed, targets), targets, ways)
                path.write_text(small.source)
                print(f"{seed}: {text}; in {len(small.all)} statements: {path}", flush=True)
    return 0 if set(ends) <= {"same"} else 1


def _table(ends: dict[str, list[int]], wanted: int) -> None:
    """Return the counts of outcomes, the most frequent first, and the first seeds of those that differ."""
    for text, seeds in sorted(ends.items(), key=lambda end: -len(end[1])):
        few = "" if text == "same" else f"  (seeds {', '.join(map(str, seeds[:_NAMED]))})"
        print(f"{len(seeds):9,}  {text}{few}")
    looked_at = sum(map(len, ends.values()))
    rest = f", {wanted - looked_at:,} are left: the same command goes on" * (looked_at < wanted)
    print(f"{looked_at:9,}  of {wanted:,} kernels{rest}", flush=True)


def _reducible(text: str) -> bool:
    """Return True if a kernel that ended so can run again here, and leaves this process alive."""
    return text not in ("same", LOST, HUNG) and DEVICE_LOST not in text


if __name__ == "__main__":
    sys.exit(main())
