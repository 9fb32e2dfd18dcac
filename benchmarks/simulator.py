"""The simulator against Triton's own interpreter: the same tile programs, on one core of the CPU.

A kernel for one architecture has no counterpart there: its rival is the portable kernel. Each case runs
in a process of its own, the simulator with and without its checks in turns, and with all checks on all
cores; the last lines are geometric means. Peak memory is that of the runs beyond their inputs and
outputs.

    python benchmarks/simulator.py --only softmax
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Mapping, Sequence

from common import Result, parse_arguments, write
from upstream import our_example

HERE = Path(__file__).parent
MIB = 1 << 20
OUR_REPEATS, THEIR_REPEATS = 15, 3


@dataclass(frozen=True)
class Case:
    """A kernel at a size.

    Args:
        label: for the table.
        example: file in `examples/`.
        shape: argument of its `arguments`.
        choices: argument of its `config`.
        numbers: sizes, then tiles, of the case in `interpreted.py`.
        in_mean: whether it counts in the geometric means.
        portable: where `interpreted` is empty, the case of the portable kernel as the rival.
    """

    label: str
    example: str
    shape: Any
    choices: Mapping[str, Any]
    numbers: Sequence[int]
    interpreted: str
    in_mean: bool = True
    portable: str = ""


CASES = (
    Case("memcpy 4 Mi", "memcpy_1d", 2**22, {"block": 2048}, (2**22, 2048), "memcpy"),
    Case("softmax 1024x1024", "softmax", (1024, 1024), {}, (1024, 1024, 1024), "softmax"),
    Case("layer norm 1024x1024", "layer_norm", (1024, 1024), {}, (1024, 1024, 1024), "layer_norm"),
    Case(
        "matmul 512x512x512 fp16", "matmul", (512, 512, 512), {"block": (64, 64, 32)},
        (512, 512, 512, 64, 64, 32), "matmul",
    ),
    Case(
        "split sum 64x65536, atomics", "split_sum", (64, 65536), {}, (64, 65536, 1024, 8192),
        "split_sum",
    ),
    Case(
        "attention 1x2x512x64", "attention", (2, 512, 64), {"block": (64, 64)},
        (2, 512, 64, 64, 64), "attention",
    ),
    Case(
        "matmul 256x256x256 fp16", "matmul", (256, 256, 256), {"block": (64, 64, 32)},
        (256, 256, 256, 64, 64, 32), "matmul", in_mean=False,
    ),
    Case(
        "matmul 512x512x512, TMA and wgmma", "matmul_cooperative_hopper", (512, 512, 512), {}, (), "",
        in_mean=False, portable="matmul 512x512x512 fp16",
    ),
)  # fmt: skip
MODES = ("all checks", "races off", "checks off", "all cores")


def simulate(case: Case) -> dict[str, Any]:
    """Run a case here: seconds of each run, the modes in turns, and memory in MiB."""
    from gluon_core.registry.load import registry
    from gluon_report.example import Arrays
    from gluon_sim.settings import Settings, using

    one = Settings(workers=1)
    kinds = (one, replace(one, races=False), Settings.without_checks(workers=1), Settings())
    settings = dict(zip(MODES, kinds))

    target = registry().target("sim:sm_90")
    example = our_example(case.example).EXAMPLES[0]
    config = example.configure(target, **case.choices)
    # Traced, compiled and imported at the smallest size, so that memory counts the run alone.
    small = example.arguments(Arrays(target), False)
    example.launch(small, config, target=target)
    args = example.arguments(Arrays(target), False, case.shape)
    data = sum(value.nbytes for value in args.values() if hasattr(value, "nbytes"))
    before = _peak()
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(OUR_REPEATS + 1):
        for mode in MODES:
            if case.example == "split_sum":
                args["dst"][:] = 0
            with using(settings[mode]):
                started = time.perf_counter()
                example.launch(args, config, target=target)
                times[mode].append(time.perf_counter() - started)
    added = _peak() - before
    problem = example.difference(args[example.output], example.reference(args))
    if problem:
        raise SystemExit(f"the simulator is wrong: {problem}")
    medians = {mode: statistics.median(samples[1:]) for mode, samples in times.items()}
    return {"seconds": medians, "data": data / MIB, "added": added / MIB}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _child(arguments: Sequence[str], **environment: str) -> Any:
    one = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **one, **environment},
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(case: Case) -> tuple[dict[str, float], float, dict[str, Any]]:
    """Return (seconds of each mode, those of the rival, the result of `simulate`)."""
    run = _child([__file__, "--case", str(CASES.index(case))])
    if case.portable:
        position = next(i for i, other in enumerate(CASES) if other.label == case.portable)
        checked = _child([__file__, "--case", str(position)])
        return run["seconds"], checked["seconds"]["all checks"], run
    script = str(HERE / "interpreted.py")
    theirs = _child([script, case.interpreted, json.dumps(case.numbers), str(THEIR_REPEATS + 1)])
    return run["seconds"], statistics.median(theirs[1:]), run


def results(only: str = "") -> list[Result]:
    results = []
    speedups: dict[str, list[float]] = {mode: [] for mode in MODES}
    for case in CASES:
        if only not in case.label:
            continue
        seconds, theirs, run = measure(case)
        rival = "the portable kernel" if case.portable else "the interpreter"
        ratios = {f"{rival}, {m}": theirs / seconds[m] for m in MODES}
        for mode in MODES if case.in_mean else ():
            speedups[mode].append(theirs / seconds[mode])
        # Inputs and outputs are there before the run; it may add twice that at most.
        limit = 2 * run["data"] + 200
        ratios["its memory limit"] = run["added"] / limit
        results.append(
            Result(
                case.label,
                "s",
                seconds["all checks"],
                {
                    "the portable kernel" if case.portable else "Triton's interpreter": theirs,
                    "races off": seconds["races off"],
                    "checks off": seconds["checks off"],
                    "all cores": seconds["all cores"],
                },
                ratios,
                {"its memory limit": ("<=", 1.0)},
                f"{run['data']:.0f} MiB of data, {run['added']:.0f} MiB more",
            )
        )
    means = {m: math.exp(statistics.fmean(map(math.log, s))) for m, s in speedups.items() if s}
    for mode, wanted in (("all checks", 3.0), ("races off", 10.0), ("checks off", 10.0)):
        if mode in means and not only:
            ratio = {"the interpreter": means[mode]}
            bound = {"the interpreter": (">=", wanted)}
            results.append(
                Result(f"geometric mean, {mode}", "times faster", means[mode], {}, ratio, bound)
            )
    return results


def main() -> int:
    if sys.argv[1:2] == ["--case"]:
        print(json.dumps(simulate(CASES[int(sys.argv[2])])))
        return 0
    chosen = parse_arguments(__doc__)
    return write(results(chosen.only), chosen.json)


if __name__ == "__main__":
    raise SystemExit(main())
