"""The results of the programs in `probes` on GPUs, recorded in `evidence.json`.

    python -m tests.compat.evidence --write          # on a machine with a GPU
    python -m tests.compat.evidence --side ours NAME...

Each program runs in a process of its own, so that a fault or a hang ends nothing else. The file keeps, for each
kind of GPU and release of Triton, the date and command of the run, and the result of each program.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.compat.probes import PROBES

__all__ = ["FILE", "against", "digest", "ended", "recorded", "results"]

FILE = Path(__file__).with_name("evidence.json")
_SECONDS = 45
_COMMAND = "python -m tests.compat.evidence --write"


def digest(source: str) -> str:
    """Return the digest by which the file names the text of a program."""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def recorded() -> list[dict[str, Any]]:
    """Return all runs in the file."""
    runs: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return runs


def results(name: str) -> list[str]:
    """Return the results of a probe in the recorded runs of its present program."""
    wanted = digest(PROBES[name].source)
    entries = [run["programs"].get(name) for run in recorded()]
    return [entry["result"] for entry in entries if entry and entry["digest"] == wanted]


def against(title: str) -> str:
    """Return the first recorded result that refutes a row of `differences`; empty if none does."""
    for name, probe in PROBES.items():
        if probe.title == title:
            for run in recorded():
                entry = run["programs"].get(name)
                if entry and entry["digest"] == digest(probe.source) and entry["result"] != "right":
                    return f"{name}, {entry['result']} ({run['gpu']}, Triton {run['triton']}, {run['date']})"
    return ""


def _one(name: str, side: str) -> str:
    """Run one program in this process; return `right`, or `wrong` with numbers."""
    import torch

    from tests.frontend import oracle

    module = oracle.load(
        PROBES[name].source, {"theirs": oracle.UPSTREAM, "ours": oracle.OURS}[side]
    )
    got, want = module.run(torch, "cuda")
    torch.cuda.synchronize()
    got, want = got.flatten().cpu(), want.flatten().cpu()
    differ = (got != want).nonzero().flatten()
    if not len(differ):
        return "right"
    first = int(differ[0])
    return (
        f"wrong: {len(differ)} of {got.numel()} elements, the first at {first}: "
        f"{got[first].item()}, expected {want[first].item()}"
    )


def ended(name: str, side: str) -> str:
    """Run one program in a process of its own; return its result, or its error in a few words."""
    command = [sys.executable, "-m", "tests.compat.evidence", "--one", name, "--side", side]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return f"hangs: no end within {_SECONDS} s"
    if done.returncode < 0:
        return f"abort: signal {-done.returncode}"
    lines = [line.strip() for line in done.stdout.splitlines() if line.startswith("== ")]
    if lines:
        return lines[-1][3:]
    words = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in words if "Error" in line] or words[-1:]
    return f"error: {errors[0][:200]}" if errors else "error: no words"


def run(side: str, names: list[str], jobs: int) -> dict[str, Any]:
    """Run programs on the GPU of this machine."""
    import torch
    import triton

    with ThreadPoolExecutor(jobs) as pool:
        ends = list(pool.map(lambda name: ended(name, side), names))
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(0),
        "driver": subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True,
        ).stdout.strip(),
        "triton": triton.__version__,
        "torch": torch.__version__,
        "command": _COMMAND,
        "programs": {
            name: {"digest": digest(PROBES[name].source), "result": end}
            for name, end in zip(names, ends)
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--side", choices=["theirs", "ours"], default="theirs")
    parser.add_argument("--one")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1))
    options = parser.parse_args()
    if options.one:
        print(f"== {_one(options.one, options.side)}", flush=True)
        return
    names = [n for n in PROBES if not options.names or any(part in n for part in options.names)]
    now = run(options.side, names, options.jobs)
    for name, entry in now["programs"].items():
        print(f"{name:55} {entry['result']}")
    if options.write:
        kind = ("gpu", "triton")
        kept = [run for run in recorded() if [run[k] for k in kind] != [now[k] for k in kind]]
        FILE.write_text(json.dumps([*kept, now], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
