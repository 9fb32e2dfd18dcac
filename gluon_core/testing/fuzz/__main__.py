"""The command `python -m gluon_core.testing.fuzz`."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Optional, Sequence

from rich.console import Console
from rich.progress import track

from gluon_core.contract.registry import registry
from gluon_core.testing.fuzz.program import generate
from gluon_core.testing.fuzz.runs import outcome, reduced

__all__ = ["main"]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """0 where every kernel means the same everywhere, 1 where one does not."""
    parser = argparse.ArgumentParser(prog="python -m gluon_core.testing.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="kernels")
    parser.add_argument("--seed", type=int, default=0, help="of the first kernel")
    parser.add_argument("--targets", default="sm_80,sm_90,gfx942", help="with commas between")
    parser.add_argument("--simulate-only", action="store_true", help="compile nothing")
    parser.add_argument("--log", type=Path, default=Path("fuzz.jsonl"), help="to go on from")
    given = parser.parse_args(arguments)
    targets = [registry().target(name) for name in given.targets.split(",")]
    seen: dict[int, str] = {}
    if given.log.exists():
        for line in filter(str.strip, given.log.read_text().splitlines()):
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the run was stopped while it wrote this
            if entry["targets"] == given.targets:
                seen[entry["seed"]] = entry["outcome"]
    seeds = range(given.seed, given.seed + given.count)
    left = [seed for seed in seeds if seed not in seen]
    console = Console(stderr=True)
    partitions = all(target.limits.partitions for target in targets)
    with given.log.open("a") as log:
        log.write("\n" * bool(seen))  # behind a line that was not finished
        for seed in track(left, "kernels", console=console, disable=not console.is_terminal):
            program = generate(seed, partitions)
            found = outcome(program, targets, not given.simulate_only)
            seen[seed] = found
            entry = {"seed": seed, "targets": given.targets, "outcome": found}
            log.write(json.dumps(entry) + "\n")
            log.flush()
            if found != "same":
                small = reduced(program, targets, not given.simulate_only)
                path = given.log.with_name(f"{given.log.stem}-{seed}.py")
                path.write_text(small.source)
                print(f"{seed}: {found}; in {len(small.statements)} statements: {path}", flush=True)
    counts = Counter(seen[seed] for seed in seeds)
    for text, count in counts.most_common():
        print(f"{count:6}  {text}")
    return 0 if set(counts) <= {"same"} else 1


if __name__ == "__main__":
    sys.exit(main())
