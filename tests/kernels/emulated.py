"""The small problems of every operator on the emulator, in as many processes as there are cores.

    python -m tests.kernels.emulated [--skip N] [TARGET ...]

TARGET is emu:sm_80 and emu:sm_90 by default. Prints each problem that is wrong, and the sums.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed


def ended(target, number):
    """Return how a problem ends on a target: "passed", or the error."""
    import torch

    from gluon_emu.settings import using
    from tests.kernels.launched import on_target
    from tests.kernels.test_targets import SMALL

    torch.set_num_threads(1)
    problem, shape = SMALL[number].values
    begun = time.monotonic()
    try:
        with on_target(target), using(timeout=300):
            wrong = problem.check(shape, "cpu")
    except Exception as error:
        wrong = f"{type(error).__name__}: {str(error)[:300]}"
    return "passed" if wrong is None else f"{problem.name} {shape}: {wrong}", time.monotonic() - begun  # fmt: skip


def main(*targets, skip=0):
    from tests.kernels.test_targets import SMALL

    jobs = [(target, number) for number in range(skip, len(SMALL)) for target in targets]
    counts, begun = Counter(), time.monotonic()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        waiting = {pool.submit(ended, *job): job for job in jobs}
        for done in as_completed(waiting):
            target, number = waiting[done]
            outcome, seconds = done.result()
            counts[target, "passed" if outcome == "passed" else "failed"] += 1
            if outcome != "passed":
                print(target, SMALL[number].id, outcome, f"({seconds:.0f} s)", flush=True)
            elif sum(counts.values()) % 20 == 0:
                print(dict(counts), f"{time.monotonic() - begun:.0f} s", flush=True)
    print(dict(counts), f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    first = int(arguments[1]) if arguments[:1] == ["--skip"] else 0
    main(*(arguments[2:] if first else arguments) or ("emu:sm_80", "emu:sm_90"), skip=first)
