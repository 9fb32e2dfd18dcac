"""The small problems of every operator on the emulator, in as many processes as there are cores.

    python -m tests.kernels.emulated [--skip N] [--only NAME] [TARGET ...]

TARGET is emu:sm_80 and emu:sm_90 by default, NAME a part of the problems' names. Prints each problem that is wrong, and the sums.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
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


def main(targets, skip, only):
    from tests.kernels.test_targets import SMALL

    numbers = [n for n in range(skip, len(SMALL)) if only in SMALL[n].id]
    jobs = [(target, number) for number in numbers for target in targets]
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
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*", default=["emu:sm_80", "emu:sm_90"])
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--only", default="")
    main(**vars(parser.parse_args()))
