"""Measure tilings of `linear` with quantized weights on Hopper, those that the model expects near the best, for shapes of its sweeps.

    python benchmarks/tune_linear.py --out times.json [--seed 1] [--count 40] [--most 4] [--jobs 9]     # on the GPU
    python benchmarks/tune_linear.py --errors times.json                                                # anywhere

The second prints how far the model is off and how much longer than the best tiling the one that it chooses takes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "benchmarks")]

import sweep  # noqa: E402
import torch  # noqa: E402
from tune_gemm import estimate, graph_of, seconds_of  # noqa: E402

from gluon_kernels.problem import error_of  # noqa: E402
from gluon_kernels.quant import layer, tilings  # noqa: E402
from gluon_kernels.quant.problem import LINEAR  # noqa: E402

NEAR = 1.25  # times the expected time of the best, up to which tilings are measured
PROCESSORS = 132

best = tilings.best


def sizes_of(shape: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of `tilings.expected` behind the tiling."""
    packed = 2 if shape["format"] in ("int4", "mxfp4") else 1
    exponents = shape["format"] == "mxfp4"
    return *(shape[x] for x in "MNK"), packed, shape["group"], exponents, PROCESSORS


def candidates(shape: dict[str, Any], most: int) -> list[tilings.Tiling]:
    """Return the best tilings by the model, one of each width first."""
    m, _, k, _, group, exponents, _ = sizes = sizes_of(shape)
    every = [t for t in tilings.tilings(m, k, group, exponents) if t.kernel != "restored"]
    times = {tiling: tilings.expected(tiling, *sizes) for tiling in every}
    near = sorted(every, key=times.__getitem__)
    near = [tiling for tiling in near if times[tiling] <= NEAR * times[near[0]]]
    first = {tiling.block: tiling for tiling in reversed(near)}
    return sorted(near, key=lambda t: (first[t.block] is not t, times[t]))[:most]


def plan_of(arguments: dict[str, Any], tiling: tilings.Tiling) -> Any:
    tilings.best = lambda *sizes, **more: tiling
    x, weight, scales = (arguments[name] for name in ("x", "weight", "scales"))
    run = layer._build(x, weight, scales, None, None, None, None)
    tilings.best = best
    return partial(run, x, weight, scales, None, None)


def measure(todo: list[tuple[dict[str, Any], list[tilings.Tiling]]], limit: float) -> list[Any]:
    started, results = time.time(), []
    (rival,) = LINEAR.rivals.values()
    for shape, several in todo:
        if time.time() - started > limit:
            print("ended early")
            break
        arguments = LINEAR.arguments(shape, "cuda")
        right = LINEAR.reference(**arguments)
        runs, wrong = {"torch": partial(rival, **arguments)}, []
        for tiling in several:
            name = " ".join(map(str, tiling))
            try:
                runs[name] = plan_of(arguments, tiling)
                error = error_of(runs[name](), right)
                if not error < LINEAR.tolerance:
                    wrong.append(f"{name}: off by {error:.2g}")
            except Exception as error:
                runs.pop(name, None)
                wrong.append(f"{name}: {type(error).__name__} {str(error)[:200]}")
        graphs = {name: graph_of(run, estimate(run)) for name, run in runs.items()}
        times = seconds_of(graphs, 5)
        results.append({"shape": shape, "times": times, "wrong": wrong})
        text = ", ".join(f"{name}: {us * 1e6:.1f}" for name, us in times.items())
        print(" ".join(map(str, shape.values())), "|", text, *wrong, flush=True)
    return results


def errors(rows: list[dict[str, Any]]) -> None:
    """Print the errors of the model, and those of its choice."""
    logs, losses = [], []
    for row in rows:
        times = {k: 1e6 * v for k, v in row["times"].items() if k != "torch"}
        sizes, kinds = sizes_of(row["shape"]), {}
        for name in times:
            kernel, *numbers = name.split()
            kinds[name] = tilings.expected(tilings.Tiling(kernel, *map(int, numbers)), *sizes)
        logs += [math.log(times[name] / kinds[name]) for name in times]
        if len(times) > 1:
            losses.append(times[min(kinds, key=kinds.__getitem__)] / min(times.values()))
    mean = statistics.fmean(logs)
    print(
        f"{len(logs)} times take {math.exp(mean):.3f} of the expected ones, with a spread of {statistics.pstdev(logs):.3f}"
    )
    print(f"the chosen ones of {len(losses)} shapes take {statistics.fmean(losses):.3f} of the best, at most {max(losses):.2f}")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--most", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--warm", help="I/N: compile a share only")
    parser.add_argument("--limit", type=float, default=1e9)
    parser.add_argument("--errors", type=Path, nargs="*")
    chosen = parser.parse_args()
    if chosen.errors:
        errors([row for file in chosen.errors for row in json.loads(file.read_text())])
        return 0
    draw = random.Random(chosen.seed)
    shapes = [dict(LINEAR.draw(draw)) for _ in range(chosen.count)]
    todo = [(shape, candidates(shape, chosen.most)) for shape in shapes]
    if chosen.warm:
        number, parts = map(int, chosen.warm.split("/"))
        pool = sweep.Pool(sweep.POOL)
        torch.randn, torch.randint = pool.empty, pool.integers
        sweep.compile_only()
        pairs = [(shape, tiling) for shape, several in todo for tiling in several]
        for shape, tiling in pairs[number::parts]:
            pool.begin()
            plan_of(LINEAR.arguments(shape, "cuda"), tiling)
        return 0
    base = [sys.executable, __file__, *sys.argv[1:]]
    jobs = [
        subprocess.Popen([*base, "--warm", f"{i}/{chosen.jobs}"], stdout=subprocess.DEVNULL)
        for i in range(chosen.jobs)
    ]
    for job in jobs:
        job.wait()
    results = measure(todo, chosen.limit)
    if chosen.out:
        chosen.out.write_text(json.dumps(results))
    errors(results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
