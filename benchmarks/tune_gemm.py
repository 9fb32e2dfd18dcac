"""Measure every tiling of a product on Hopper for shapes of all kinds, and fit the table that chooses between them.

    python benchmarks/tune_gemm.py --measure times.json [--count 60] [--seed 1]     # on the GPU
    python benchmarks/tune_gemm.py --measure times.json --shapes 84x3936x4096:NN,1000x1000x1000:NT
    python benchmarks/tune_gemm.py --fit times.json                                 # writes tuned/hopper.json, anywhere
    python benchmarks/tune_gemm.py --fit old.json,new.json                          # of several measurements
    python benchmarks/tune_gemm.py --add times.json                                 # corrects it by more shapes
    python benchmarks/tune_gemm.py --validate old.json,new.json                     # by tables of three quarters of the shapes

`--fit` prints the shapes that the model gets wrong by more than 5 %; those get an entry of their own.
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
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple, Sequence

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from gluon_kernels.gemm import choice, tilings  # noqa: E402
from gluon_kernels.gemm.problem import BMM, MATMUL, MATMUL_FP8  # noqa: E402
from gluon_kernels.problem import Problem, error_of  # noqa: E402

EACH = 400e-6  # seconds of a graph
NEAR = 0.6  # of the weight of the best tilings: those far from it correct nothing
NOISE = 0.09  # of the variance of an error of the model, that measurements have
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
        most: of each kernel, the best ones by the model.
    """

    near: float
    most: int


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
    counts: Counter[str] = Counter()
    picked = []
    for tiling in sorted(fitting, key=lambda t: expected[t.name] or 0.0):
        counts[tiling.kernel] += 1
        if counts[tiling.kernel] <= pick.most:
            if (expected[tiling.name] or 0.0) <= pick.near * least + 1.0:
                picked.append(tiling)
    return picked


def forms(shapes: list[dict[str, Any]], pick: Pick) -> list[tuple[dict[str, Any], tilings.Tiling]]:
    """Return a shape for each kernel that the measurements compile."""
    wanted: dict[Any, tuple[dict[str, Any], tilings.Tiling]] = {}
    for shape in shapes:
        size = size_of(shape)
        for tiling in candidates(size, pick):
            loads = size.vectors if tiling.kernel == "direct" else None
            kind = shape.get("stored"), shape.get("scales")
            form = (tiling.name, kind, math.gcd(shape["N"], 8), loads)
            wanted.setdefault(form, ({**shape, "M": min(shape["M"], 256)}, tiling))
    return list(wanted.values())


def warm(shapes: list[dict[str, Any]], pick: Pick, share: tuple[int, int]) -> None:
    """Compile this process's share of the measured configurations."""
    for shape, tiling in forms(shapes, pick)[share[0] :: share[1]]:
        compiled(shape, tiling)


def compiled(shape: dict[str, Any], tiling: tilings.Tiling) -> None:
    product_of(shape).plan(tiling)


def measure(shapes: list[dict[str, Any]], pick: Pick, limit: float) -> dict[str, Any]:
    started, rows = time.time(), []
    for shape in shapes:
        if time.time() - started > limit:
            print(f"ended after {limit:.0f} s with {len(shapes) - len(rows)} shapes left")
            break
        problem, arguments, plan = product_of(shape)
        right = problem.reference(**arguments)
        rival = problem.rivals["torch"]
        runs: dict[str, Callable[[], Any]] = {"torch": partial(rival, **arguments)}
        wrong = []
        for tiling in candidates(size_of(shape), pick):
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


Sample = tuple[tuple[float, ...], float, float]  # quantities, microseconds, weight


def samples_of(measured: dict[str, Any]) -> Iterator[tuple[tilings.Tiling, tilings.Size, float, float]]:  # fmt: skip
    """Yield each measured tiling with the size, its microseconds without copies, and a weight: those far from the best need no exact time."""
    for row in measured["rows"]:
        least = min((t for n, t in row["times"].items() if n in tilings.TILINGS), default=0.0)
        size = size_of(row["shape"])
        for name, seconds in {**row.get("rough", {}), **row["times"]}.items():
            tiling = tilings.TILINGS.get(name)
            if tiling is not None:
                copies = choice.padding(size) if tiling.kernel != "direct" else 0.0
                time_alone = max(seconds * 1e6 - copies, 0.5 * seconds * 1e6)
                yield tiling, size, time_alone, min(1.0, 1.2 * least / seconds) * row.get("weight", 1.0)  # fmt: skip


def written(table: dict[str, Any]) -> str:
    """Return JSON with a line for each entry."""
    parts = []
    for key, value in table.items():
        if isinstance(value, dict):
            lines = (
                f"  {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}"
                for k, v in value.items()
            )
            parts.append(f" {json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n }")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def use(table: dict[str, Any]) -> None:
    """Let tilings be chosen by a table."""
    read = choice.read(table)
    choice._table = lambda: read  # type: ignore[assignment]
    choice._order.cache_clear()
    choice.choose.cache_clear()


def fitted(measured: dict[str, Any]) -> dict[str, Any]:
    """Return a table: non-negative factors for the times of the tilings of each kernel, with least relative errors, and corrections of them."""
    kinds: dict[str, list[Sample]] = {}
    for tiling, size, time_alone, weight in samples_of(measured):
        quantities = choice.features(choice.Columns([tiling]), size)
        sample = (tuple(float(np.ravel(x)[0]) for x in quantities), time_alone, weight)
        kinds.setdefault(choice.kind_of(tiling), []).append(sample)
    model = {
        kind: [float(f"{x:.5g}") for x in _factors(*zip(*rows))] for kind, rows in kinds.items()
    }
    return corrected({"model": model, "shapes": {}}, measured)


def corrected(table: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Return the table with corrections of the model by measured times, besides those that it has."""
    known = choice.read(table)
    errors: dict[tuple[str, tuple[int, ...]], list[float]] = {}
    sizes = [tuple(row) for row in table.get("sizes", ())]
    if len(known.weights):  # the errors that gave the weights
        old = choice.likeness(known.points, known.points) @ known.weights + NOISE * known.weights
        places = [
            (name, sizes[n]) for n, of_size in choice.by_size(table).items() for name, _ in of_size
        ]
        errors = {place: [float(error)] for place, error in zip(places, old)}
    for tiling, size, time_alone, weight in samples_of(measured):
        expected = float(choice.expected(choice.Columns([tiling]), size, known)[0])
        if expected == expected and weight > NEAR:
            errors.setdefault((tiling.name, choice.row_of(size)), []).append(
                math.log(time_alone / expected)
            )
    points = [
        choice.traits(choice.Columns([tilings.TILINGS[name]]), choice.size_of(row))[0]
        for name, row in errors
    ]
    like = choice.likeness(*(np.array(points, float),) * 2) + NOISE * np.eye(len(points))
    solved = np.linalg.solve(like, np.array([statistics.median(x) for x in errors.values()]))
    numbers = {row: n for n, row in enumerate(dict.fromkeys(row for _, row in errors))}
    weights: dict[str, list[tuple[int, float]]] = {}
    for (name, row), weight in zip(errors, solved):
        weights.setdefault(name, []).append((numbers[row], float(f"{weight:.3g}")))
    return {**table, "sizes": list(numbers), "weights": weights}


def add(measured: dict[str, Any], file: Path) -> None:
    """Correct the table by more measured times, with the factors that it has, and write it."""
    table = corrected(json.loads(file.read_text()), measured)
    file.write_text(written(table))


def validate(measured: dict[str, Any], parts: int = 4) -> None:
    """Print how much longer the chosen tilings of shapes take than the best measured ones, where the table does not know the shapes."""
    rows = [row for row in measured["rows"] if len(tilings.TILINGS.keys() & row["times"]) > 3]
    random.Random(1).shuffle(rows)
    worse, of_torch = [], []
    for part in range(parts):
        held = rows[part::parts]
        use(fitted({**measured, "rows": [row for row in rows if row not in held]}))
        for row in held:
            size = size_of(row["shape"])
            ours = {n: t for n, t in row["times"].items() if n in tilings.TILINGS}
            kinds = [tilings.TILINGS[name] for name in ours]
            pairs = zip(choice.predicted(kinds, size), ours.values())
            taken = min((time, seconds) for time, seconds in pairs if time is not None)[1]
            worse.append(taken / min(ours.values()))
            of_torch.append(row["times"]["torch"] / taken)
    for name, ratios in (("the best tiling", [1 / x for x in worse]), ("torch", of_torch)):
        ratios.sort()
        mean = float(np.exp(np.mean(np.log(ratios))))
        print(f"of {name}: mean {mean:.3f}, 5th percentile {ratios[len(ratios) // 20]:.3f}, worst {ratios[0]:.3f}, {len(ratios)} shapes")  # fmt: skip


def read(files: str) -> dict[str, Any]:
    """Return the measurements of several files as one."""
    several = [json.loads(Path(file).read_text()) for file in files.split(",")]
    return {**several[-1], "rows": [row for measured in several for row in measured["rows"]]}


def fit(measured: dict[str, Any], file: Path) -> None:
    """Fit the model to measured times, and write the table."""
    table = fitted(measured)
    use(table)
    shapes: dict[str, str] = table["shapes"]
    ratios, of_torch = [], []
    for row in measured["rows"]:
        size = size_of(row["shape"])
        ours = {n: t for n, t in row["times"].items() if n in tilings.TILINGS}
        if not ours:
            continue
        chosen = choice.choose(size).name
        best = min(ours, key=ours.__getitem__)
        worse = ours.get(chosen, float("inf")) / ours[best]
        if chosen in ours:
            ratios.append(worse)
            of_torch.append(row["times"]["torch"] / ours[chosen])
        # A tiling that was not measured may be better yet.
        if 1.05 < worse < math.inf and len(ours) > 3:
            shapes[size.name] = best
            print(f"{row['shape']}: {chosen} instead of {best}, {worse:.3f}")
    mean = float(np.exp(np.mean(np.log(ratios))))
    print(f"chosen against the best tiling: mean {mean:.3f}, worst {max(ratios):.3f}; "
          f"{len(measured['rows']) - len(ratios)} chosen ones were not measured")  # fmt: skip
    mean = float(np.exp(np.mean(np.log(of_torch))))
    print(f"torch against the chosen: mean {mean:.3f}, worst {min(of_torch):.3f}")
    table["device"] = measured["device"]
    file.write_text(written(table))


def _factors(rows: Sequence[Any], times: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return non-negative factors of least relative squares, by coordinate descent on the normal equations."""
    matrix = np.array(rows) * (np.array(weights) / np.array(times))[:, None]
    scale = np.sqrt((matrix**2).sum(0)) + 1e-30
    matrix = matrix / scale
    gram, right = matrix.T @ matrix, matrix.T @ np.array(weights, dtype=float)
    numbers = np.zeros(len(scale))
    for _ in range(2000):
        before = numbers.copy()
        for i in range(len(numbers)):
            numbers[i] = max(
                0.0, numbers[i] + (right[i] - gram[i] @ numbers) / max(gram[i, i], 1e-30)
            )
        if np.abs(numbers - before).max() < 1e-7:
            break
    return [float(x) for x in numbers / scale]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--fit")
    parser.add_argument("--validate")
    parser.add_argument("--add", type=Path, help="correct the table, keep its factors")
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
    chosen = parser.parse_args()
    pick = Pick(chosen.near, chosen.most)
    if chosen.fit:
        fit(read(chosen.fit), choice.FILE)
        return
    if chosen.validate:
        validate(read(chosen.validate))
        return
    if chosen.add:
        add(json.loads(chosen.add.read_text()), choice.FILE)
        return
    shapes = shapes_of(chosen.seed, chosen.count, chosen.shapes)
    if chosen.warm:
        number, parts = map(int, chosen.warm.split("/"))
        warm(shapes, pick, (number, parts))
        return
    begin = time.time()
    command = [sys.executable, __file__, *sys.argv[1:]]
    jobs = [
        subprocess.Popen([*command, "--warm", f"{i}/{chosen.jobs}"]) for i in range(chosen.jobs)
    ]
    for job in jobs:
        job.wait()
    print(f"compiled in {time.time() - begin:.1f} s", flush=True)
    measured = measure(shapes, pick, chosen.limit)
    chosen.measure.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
