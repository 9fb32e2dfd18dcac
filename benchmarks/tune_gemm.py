"""Measure the tilings of a product on Hopper for shapes of all kinds; `fit_gemm.py` fits the table that chooses between them.

python benchmarks/tune_gemm.py --measure times.json [--count 60] [--seed 1]     # on the GPU
python benchmarks/tune_gemm.py --measure times.json --count 700 --kernels 120      # few kernels, many shapes
python benchmarks/tune_gemm.py --measure times.json --shapes 84x3936x4096:NN,1000x1000x1000:NT
python benchmarks/fit_gemm.py --add times.json                                  # anywhere
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

import torch  # noqa: E402

from gluon_kernels.dependent import SMALL  # noqa: E402
from gluon_kernels.gemm import choice, tilings  # noqa: E402
from gluon_kernels.gemm.problem import BMM, MATMUL, MATMUL_FP8  # noqa: E402
from gluon_kernels.problem import Problem, error_of  # noqa: E402

EACH = 400e-6  # seconds of a graph
PROCESSORS = torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 132  # fmt: skip


def graph_of(call: Callable[[], Any], seconds: float) -> tuple[Any, int]:
    """Return a CUDA graph of so many calls that it takes about EACH, and their number."""
    count = max(2, min(50, int(EACH / seconds)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return graph, count


def estimate(call: Callable[[], Any]) -> float:
    call()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
    begin.record()
    for _ in range(3):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 3e3


def seconds_of(graphs: dict[str, tuple[Any, int]], rounds: int) -> dict[str, float]:
    """Return the median seconds of one call of each, measured in random order."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    names = list(graphs)
    events = [torch.cuda.Event(enable_timing=True) for _ in "ab"]
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            graph, count = graphs[name]
            events[0].record()
            graph.replay()
            events[1].record()
            events[1].synchronize()
            times[name].append(events[0].elapsed_time(events[1]) / 1e3 / count)
    return {name: statistics.median(samples) for name, samples in times.items()}


def shapes_of(seed: int, count: int, listed: str = "") -> list[dict[str, Any]]:
    """Return the listed shapes, M x N x K and how operands are stored, or random ones."""
    if listed:
        parts = [one.split(":") for one in listed.split(",")]
        return [
            {**dict(zip("MNK", map(int, sizes.split("x")))), "dtype": "bfloat16", "stored": stored}
            for sizes, stored in parts
        ]
    draw = random.Random(seed)
    drawn = [dict(MATMUL.draw(draw)) for _ in range(count)]
    drawn += [dict(BMM.draw(draw)) for _ in range(count // 5)]
    eight = [dict(MATMUL_FP8.draw(draw)) for _ in range(count // 2)]
    drawn += [shape for shape in eight if shape["scales"] != "block"]
    return [dict(shape) for shape in MATMUL.named] + drawn


def size_of(shape: dict[str, Any]) -> tilings.Size:
    """Return the size of a shape of contiguous operands, of 16 bits or, where it has scales, of 8."""
    batch, m, n, k = (shape.get(x, 1) for x in ("batch", "M", "N", "K"))
    if "scales" in shape:
        pitch = k % 32
        return tilings.Size(
            1, m, n, -(-k // 2), processors=PROCESSORS, pitches=(pitch, pitch), eight=True
        )
    stored = tuple(x == "T" for x in shape["stored"])
    sides = ((m if stored[0] else k, m * k), (k if stored[1] else n, k * n))
    vectors = tuple(math.gcd(side, 8) for side, _ in sides)
    padded = sum(2 * batch * elements for side, elements in sides if side % 8)
    pitches = tuple(0 if side % 8 else 2 * side % 32 for side, _ in sides)
    return tilings.Size(
        batch, m, n, k, transposed=stored, vectors=vectors, padded=padded, processors=PROCESSORS, pitches=pitches
    )  # fmt: skip


class Product(NamedTuple):
    """A product to measure.

    Args:
        problem, arguments: of the sweeps.
        plan: `plan(tiling) -> run`, where `run()` returns the result.
    """

    problem: Problem
    arguments: dict[str, Any]
    plan: Callable[[tilings.Tiling], Callable[[], Any]]


def product_of(shape: dict[str, Any]) -> Product:
    from gluon_kernels.gemm import fp8, launches
    from gluon_kernels.gemm.call import Call, checked

    problem = MATMUL_FP8 if "scales" in shape else MATMUL
    arguments = problem.arguments(shape, "cuda")
    a, b, scales = arguments["a"], arguments["b"], ()
    if problem is MATMUL_FP8:
        scales = fp8._of_rows(arguments["a_scale"], arguments["b_scale"], shape["M"], shape["N"])
        call = Call(a, b, None, None, torch.bfloat16, 1, *(shape[x] for x in "MNK"), scales)
    else:
        call = checked("matmul", a, b, None, None, None)

    def plan(tiling: tilings.Tiling) -> Callable[[], Any]:
        run = launches.plan(call, None, launches.of_eight(tiling) if scales else tiling)
        return lambda: run(a, b, None, None, *scales)

    return Product(problem, arguments, plan)


class Pick(NamedTuple):
    """Say which tilings of a shape are measured.

    Args:
        near: none that the model expects to be so many times slower than the best.
        most: of each kernel, the best ones by the model; with a pattern, of all that match it.
        pattern: of names. The best ones that do not match are measured next to those that do.
    """

    near: float
    most: int
    pattern: str = ""


BESIDE = 2  # tilings that do not match
ENOUGH = 3  # tilings of a shape that are measured where not all are compiled


def candidates(size: tilings.Size, pick: Pick) -> list[tilings.Tiling]:
    """Return the tilings that fit and are picked."""
    fits = tilings.columns().fitting(size)
    fitting = [
        tiling
        for tiling, fit in zip(tilings.TILINGS.values(), fits)
        if fit and not (size.eight and tiling.kernel == "direct")
    ]
    names = [tiling.name for tiling in fitting]
    expected = dict(zip(names, choice.predicted(fitting, size)))
    least = min((x for x in expected.values() if x is not None), default=0.0)
    near = [t for t in fitting if (expected[t.name] or 0.0) <= pick.near * least + 1.0]
    near.sort(key=lambda t: expected[t.name] or 0.0)
    if pick.pattern:
        matching = [t for t in near if re.search(pick.pattern, t.name)][: pick.most]
        others = [t for t in near if not re.search(pick.pattern, t.name)]
        return matching + others[:BESIDE] if matching else []
    counts: Counter[str] = Counter()
    picked = []
    for tiling in near:
        counts[tiling.kernel] += 1
        if counts[tiling.kernel] <= pick.most:
            picked.append(tiling)
    return picked


def form_of(shape: dict[str, Any], tiling: tilings.Tiling) -> tuple[Any, ...]:
    """Return what the kernel of a tiling is compiled for."""
    size = size_of(shape)
    loads = size.vectors if tiling.kernel == "direct" else None
    kind = shape.get("stored"), shape.get("scales"), size.memory < SMALL
    return (tiling.name, kind, math.gcd(shape["N"], 8), loads)


def forms(
    shapes: list[dict[str, Any]], pick: Pick, most: int = 0
) -> dict[Any, tuple[dict[str, Any], tilings.Tiling]]:
    """Return a shape for each kernel that the measurements compile: of all, or of the `most` that are candidates of more shapes than others."""
    wanted: dict[Any, tuple[dict[str, Any], tilings.Tiling]] = {}
    counts: Counter[Any] = Counter()
    for shape in shapes:
        for tiling in candidates(size_of(shape), pick):
            form = form_of(shape, tiling)
            counts[form] += 1
            wanted.setdefault(form, (shape, tiling))
    return {form: wanted[form] for form, _ in counts.most_common(most or None)}


def warm(shapes: list[dict[str, Any]], pick: Pick, share: tuple[int, int], most: int) -> None:
    """Compile this process's share of the measured configurations."""
    for shape, tiling in list(forms(shapes, pick, most).values())[share[0] :: share[1]]:
        compiled(shape, tiling)


def compiled(shape: dict[str, Any], tiling: tilings.Tiling) -> None:
    product_of(shape).plan(tiling)


def measure(
    shapes: list[dict[str, Any]], pick: Pick, limit: float, most: int = 0
) -> dict[str, Any]:
    """Return the times of each shape's candidates; with `most`, of shapes that have ENOUGH of so many kernels."""
    started, rows = time.time(), []
    known = forms(shapes, pick, most) if most else None
    for shape in shapes:
        if time.time() - started > limit:
            print(f"ended after {limit:.0f} s with {len(shapes) - len(rows)} shapes left")
            break
        picked = candidates(size_of(shape), pick)
        if known is not None:
            picked = [tiling for tiling in picked if form_of(shape, tiling) in known]
        if len(picked) < (1 if known is None else ENOUGH):
            continue
        problem, arguments, plan = product_of(shape)
        right = problem.reference(**arguments)
        rival = problem.rivals["torch"]
        runs: dict[str, Callable[[], Any]] = {"torch": partial(rival, **arguments)}
        wrong = []
        for tiling in picked:
            try:
                run = plan(tiling)
                error = error_of(run(), right)
            except Exception as error:
                wrong.append(f"{tiling.name}: {type(error).__name__} {str(error)[:200]}")
                continue
            if not error < problem.tolerance:
                wrong.append(f"{tiling.name}: off by {error:.2g}")
            runs[tiling.name] = run
        del right
        rough = {name: estimate(run) for name, run in runs.items()}
        if len(runs) == 1:
            print(shape, *wrong, flush=True)
            continue
        least = min(t for name, t in rough.items() if name != "torch")
        near = {n: r for n, r in runs.items() if n == "torch" or rough[n] < 2 * least + 10e-6}
        graphs = {name: graph_of(run, rough[name]) for name, run in near.items()}
        rows.append(
            {"shape": shape, "times": seconds_of(graphs, 5), "rough": rough, "wrong": wrong}
        )
        ours = {n: t for n, t in rows[-1]["times"].items() if n != "torch"}
        best = min(ours, key=ours.__getitem__)
        near_best = sorted(ours, key=ours.__getitem__)[:6]
        print("   ", ", ".join(f"{n} {ours[n] * 1e6:.1f}" for n in near_best))
        print(shape, best, f"{ours[best] * 1e6:.1f} us, torch {rows[-1]['times']['torch'] * 1e6:.1f} us, "
              f"ratio {rows[-1]['times']['torch'] / ours[best]:.3f}", *wrong, flush=True)  # fmt: skip
        del graphs
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--measure", type=Path, required=True)
    parser.add_argument("--warm", help="K/N: compile a share only")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=200, help="seconds of measuring")
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--shapes", default="", help="MxNxK:STORED,... instead of random ones")
    parser.add_argument(
        "--near", type=float, default=2.0, help="skip tilings expected so many times slower"
    )
    parser.add_argument("--most", type=int, default=100, help="tilings of each kernel")
    parser.add_argument("--pattern", default="", help="of the names of tilings to measure")
    parser.add_argument("--kernels", type=int, default=0, help="compile so many at most, those of most shapes")  # fmt: skip
    chosen = parser.parse_args()
    pick = Pick(chosen.near, chosen.most, chosen.pattern)
    shapes = shapes_of(chosen.seed, chosen.count, chosen.shapes)
    if chosen.warm:
        number, parts = map(int, chosen.warm.split("/"))
        warm(shapes, pick, (number, parts), chosen.kernels)
        return
    begin = time.time()
    command = [sys.executable, __file__, *sys.argv[1:]]
    jobs = [
        subprocess.Popen([*command, "--warm", f"{i}/{chosen.jobs}"]) for i in range(chosen.jobs)
    ]
    for job in jobs:
        job.wait()
    print(f"compiled in {time.time() - begin:.1f} s", flush=True)
    measured = measure(shapes, pick, chosen.limit, chosen.kernels)
    chosen.measure.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
