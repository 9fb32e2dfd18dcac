"""The simulator against Triton's own interpreter: one matmul in the same tiles, on the CPU."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import Result, parse_arguments, write
from upstream import our_example

from gluon_core.cli.example import Arrays
from gluon_core.plugins import registry

SIZES = (256, 256, 256)
BLOCK = (64, 64, 32)
REPEATS = 5


def simulated() -> list[float]:
    """Seconds of each run on the simulator, the first without the trace."""
    target = registry().target("sim:sm_90")
    (example,) = our_example("matmul").EXAMPLES
    args = example.arguments(Arrays(target), False, SIZES)
    config = example.configure(target, block=BLOCK)
    example.launch(args, config, target=target)  # traces the kernel
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        example.launch(args, config, target=target)
        times.append(time.perf_counter() - started)
    problem = example.difference(args["c"], example.reference(args))
    if problem:
        raise SystemExit(f"the simulator is wrong: {problem}")
    return times


def interpreted() -> list[float]:
    """Seconds of each run in Triton's interpreter, after one to warm up."""
    script = Path(__file__).with_name("interpreted.py")
    arguments = json.dumps([*SIZES, *BLOCK, REPEATS + 1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])[1:]


def results(only: str = "") -> list[Result]:
    ours, theirs = statistics.median(simulated()), statistics.median(interpreted())
    return [
        Result(
            f"simulated matmul {'x'.join(map(str, SIZES))} fp16",
            "s",
            ours,
            {"Triton's interpreter": theirs},
            {"Triton's interpreter": ours / theirs},
            {"Triton's interpreter": ("<=", 0.5)},
            f"tiles {BLOCK}",
        )
    ]


def main() -> int:
    chosen = parse_arguments(__doc__)
    return write(results(chosen.only), chosen.json)


if __name__ == "__main__":
    raise SystemExit(main())
