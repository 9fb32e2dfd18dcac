"""Every benchmark, as one markdown report on stdout: `python benchmarks/run_all.py > report.md`.

The simulator is measured everywhere, the rest where there is a GPU. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Callable, Optional

import hopper
import matmul
import memory
import simulator
from common import Result, environment, markdown

from gluon_report.example import device_target

HERE = Path(__file__).resolve().parent


def launch_overhead() -> Optional[str]:
    """Run `launch_overhead.py` and return its output."""
    done = subprocess.run(
        [sys.executable, str(HERE / "launch_overhead.py")], stdout=subprocess.PIPE, text=True
    )
    if done.returncode not in (0, 1):
        return None
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument(
        "--skip",
        nargs="*",
        default=[],
        choices=("memory", "matmul", "hopper", "simulator", "launch"),
    )
    chosen = parser.parse_args()
    parts: list[tuple[str, str, Callable[[], list[Result]]]] = [
        ("simulator", "Simulator", simulator.results)
    ]
    if device_target() is not None:
        parts += [("memory", "Memory", memory.results), ("matmul", "Matmul", matmul.results)]
    if (target := device_target()) is not None and target.has("nvidia.wgmma"):
        parts.append(("hopper", "Hopper", hopper.results))
    known = environment()
    print("\n".join(f"- {key}: {value}" for key, value in known.items()))
    every: list[Result] = []
    for key, title, run in parts:
        if key in chosen.skip:
            continue
        started = time.perf_counter()
        target = run()
        every += target
        print(f"\n## {title}\n\n{markdown(target)}", flush=True)
        print(f"{title}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    if device_target() is not None and "launch" not in chosen.skip:
        report = launch_overhead()
        print(f"\n## Launches\n\n{report or 'launch_overhead.py failed'}", flush=True)
    if chosen.json is not None:
        content = {"environment": known, "results": [asdict(r) for r in every]}
        chosen.json.write_text(json.dumps(content, indent=2))
    return 1 if any(r.met(name) is False for r in every for name in r.ratios) else 0


if __name__ == "__main__":
    raise SystemExit(main())
