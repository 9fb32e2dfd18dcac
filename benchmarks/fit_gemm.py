"""Fit the table that chooses the tilings of products on Hopper to the times in `gemm_times.json`; `tune_gemm.py` measures them.

    python benchmarks/fit_gemm.py                    # writes tuned/hopper.json, anywhere
    python benchmarks/fit_gemm.py --add times.json   # with times of `tune_gemm.py --measure`, which the file keeps
    python benchmarks/fit_gemm.py --scales 200       # search the scales of the traits first, over so many products
    python benchmarks/fit_gemm.py --validate         # by tables of three quarters of the products

The last prints how much longer the chosen tilings of the other products take than the best measured ones.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

import numpy as np  # noqa: E402

from gluon_kernels.gemm import choice, tilings  # noqa: E402

FILE = Path(__file__).with_name("gemm_times.json")
POINTS = 4000  # of the table, which the others are regressed on
NEAR = 0.6  # of the speed of the best tiling of a product, from which on points are worth a place in the table
NOISE = 0.06  # of the variance of an error of the model, that measurements have
WORSE = 1.05  # times the best measured time, from which on a product has an entry of its own

Row = tuple[int, ...]  # of `choice.row_of`
Times = dict[Row, dict[str, float]]  # microseconds of tilings, without copies


def read(file: Path = FILE) -> Times:
    """Return the times that a file has."""
    stored = json.loads(file.read_text())
    rows = [tuple(row) for row in stored["sizes"]]
    times: Times = {row: {} for row in rows}
    for name, of_tiling in stored["times"].items():
        for number, microseconds in of_tiling:
            times[rows[number]][name] = microseconds
    return times


def write(times: Times, file: Path = FILE) -> None:
    """Write times, with a line for each tiling."""
    of_tilings: dict[str, list[tuple[int, float]]] = {}
    for number, of_product in enumerate(times.values()):
        for name, microseconds in of_product.items():
            of_tilings.setdefault(name, []).append((number, float(f"{microseconds:.4g}")))
    file.write_text(written({"sizes": list(times), "times": dict(sorted(of_tilings.items()))}))


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


def add(times: Times, measured: dict[str, Any], size_of: Callable[[Any], tilings.Size]) -> None:
    """Add measurements of `tune_gemm.py`. Clocks differ from run to run: of a product, the times of the run with more tilings count, and those of tilings that
    it does not have."""
    for row in measured["rows"]:
        size, ours = size_of(row["shape"]), {}
        for name, seconds in row["times"].items():
            tiling = tilings.TILINGS.get(name)
            if tiling is not None:
                copies = choice.padding(size) if tiling.kernel != "direct" else 0.0
                ours[name] = max(seconds * 1e6 - copies, 0.5 * seconds * 1e6)
        before = times.get(choice.row_of(size), {})
        first, second = (before, ours) if len(before) > len(ours) else (ours, before)
        if ours:
            times[choice.row_of(size)] = {**second, **first}


class Points(NamedTuple):
    """Hold the measured tilings of products as points of the process.

    Args:
        traits: unscaled, [points, traits].
        errors: logarithms of the measured times by the expected ones.
        times: measured.
        speed: as shares of that of the best measured tiling of the product.
        products: the number of each one's product.
    """

    traits: np.ndarray
    errors: np.ndarray
    times: np.ndarray
    speed: np.ndarray
    products: np.ndarray


def of_product(row: Row, of: dict[str, float]) -> tuple[tilings.Size, choice.Columns, np.ndarray]:
    """Return the size, the measured tilings, and their times."""
    kinds = [tilings.TILINGS[name] for name in of]
    return choice.size_of(row), choice.Columns(kinds), np.array(list(of.values()))


def points_of(times: Times, table: choice.Table) -> Points:
    """Return the points of all times."""
    parts: list[tuple[np.ndarray, ...]] = []
    for number, (row, of) in enumerate(times.items()):
        size, kinds, measured = of_product(row, of)
        expected = choice.expected(kinds, size, table)
        known = expected == expected
        errors, speed = np.log(measured / expected), measured.min() / measured
        columns = (
            choice.traits(kinds, size, expected),
            errors,
            measured,
            speed,
            np.full(len(of), number),
        )
        parts.append(tuple(column[known] for column in columns))
    return Points(*(np.concatenate(columns).astype(float) for columns in zip(*parts)))


def factors_of(times: Times) -> dict[str, list[float]]:
    """Return non-negative factors for the times of the tilings of each kernel, with least relative errors."""
    kinds: dict[str, list[tuple[np.ndarray, float, float]]] = {}
    for row, of in times.items():
        size, columns, measured = of_product(row, of)
        quantities = np.stack([x + np.zeros(len(of)) for x in choice.features(columns, size)], 1)
        weights = np.minimum(1.0, 1.2 * measured.min() / measured)
        for tiling, *sample in zip(columns.tilings, quantities, measured, weights):
            kinds.setdefault(choice.kind_of(tiling), []).append(tuple(sample))
    return {
        kind: [float(f"{x:.5g}") for x in _factors(*zip(*rows))] for kind, rows in kinds.items()
    }


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


def chosen_points(points: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the scaled points that say most of all others: an incomplete Cholesky factorization takes those of the largest variance left."""
    left, places = np.ones(len(points)), []
    factor = np.zeros((min(count, len(points)), len(points)), np.float32)
    for step in range(len(factor)):
        place = int(left.argmax())
        if left[place] < 1e-6:
            break
        column = choice.likeness(points, points[place : place + 1])[:, 0]
        column = column - factor[:step, place] @ factor[:step]
        factor[step] = column / math.sqrt(left[place])
        left = np.maximum(left - factor[step] ** 2, 0.0)
        left[place] = 0.0
        places.append(place)
    return np.array(places, int)


def uncorrected(table: dict[str, Any]) -> choice.Table:
    """Return the table without corrections of its model."""
    return choice.read({**table, **choice.packed(np.zeros((0, len(choice.TRAITS))), np.zeros(0))})


def corrected(table: dict[str, Any], times: Times, count: int = POINTS) -> dict[str, Any]:
    """Return the table with corrections of its model by measured times."""
    bare = uncorrected(table)
    points = points_of(times, bare)
    scaled = points.traits * bare.scales
    near = np.flatnonzero(points.speed > NEAR)
    centers = scaled[near[chosen_points(scaled[near], count)]].astype(np.float16).astype(float)
    like, among = choice.likeness(scaled, centers), choice.likeness(centers, centers)
    gram = like.T @ like + NOISE * among + 1e-6 * np.eye(len(centers))
    weights = np.linalg.solve(gram, like.T @ points.errors)
    return {**table, **choice.packed(centers, weights)}


def use(table: dict[str, Any]) -> None:
    """Let tilings be chosen by a table."""
    read_table = choice.read(table)
    choice._table = lambda: read_table  # type: ignore[assignment]
    choice._order.cache_clear()
    choice.choose.cache_clear()


def fitted(times: Times, scales: dict[str, float]) -> dict[str, Any]:
    """Return a table without entries of products."""
    return corrected({"model": factors_of(times), "shapes": {}, "scales": scales}, times)


def entries(times: Times) -> dict[str, str]:
    """Return the best tilings of products for which the table in use takes one that was measured to be worse."""
    shapes = {}
    for row, of in times.items():
        size, best = choice.size_of(row), min(of, key=of.__getitem__)
        taken = of.get(choice.choose(size).name)
        # A tiling that was not measured may be better yet.
        if len(of) > 1 and taken is not None and taken > WORSE * of[best]:
            shapes[size.name] = best
    return shapes


def within(points: Points, scales: np.ndarray, noise: float) -> float:
    """Return how far the expected times of a product's tilings are off with respect to each other, where the process knows the other products: the root of the
    mean square of the logarithms, of tilings near the best."""
    scaled = points.traits * scales
    inverse = np.linalg.inv(choice.likeness(scaled, scaled) + noise * np.eye(len(scaled)))
    solved, squares, count = inverse @ points.errors, 0.0, 0
    for product in np.unique(points.products):
        places = np.flatnonzero(points.products == product)
        off = np.linalg.solve(inverse[np.ix_(places, places)], solved[places])
        off = off[points.speed[places] > NEAR]
        if len(off) > 1:
            squares += float(((off - off.mean()) ** 2).sum() + 0.02 * (off**2).sum())
            count += len(off) - 1
    return math.sqrt(squares / count)


def searched(
    times: Times, table: dict[str, Any], products: int, rounds: int = 2
) -> dict[str, float]:
    """Return better scales, by a search of one after the other."""
    several = [row for row, of in times.items() if len(of) > 3]
    random.Random(2).shuffle(several)
    points = points_of({row: times[row] for row in several[:products]}, choice.read(table))
    scales = np.array([table["scales"][name] for name in choice.TRAITS])
    least = within(points, scales, NOISE)
    for step in (1.6, 1.25):
        for i in range(len(scales)):
            for factor in (step, 1 / step):
                others = scales.copy()
                others[i] *= factor
                off = within(points, others, NOISE)
                if off < least - 1e-5:
                    least, scales = off, others
                    break
        print(f"off by {least:.4f} over {len(points.errors)} points", flush=True)
    return {name: float(f"{scale:.3g}") for name, scale in zip(choice.TRAITS, scales)}


def _ratios(name: str, ratios: Iterable[float]) -> str:
    ordered = sorted(ratios)
    mean = float(np.exp(np.mean(np.log(ordered))))
    return f"of {name}: mean {mean:.3f}, 5th percentile {ordered[len(ordered) // 20]:.3f}, worst {ordered[0]:.3f}, {len(ordered)} products"


def validate(times: Times, scales: dict[str, float], parts: int = 4) -> Iterator[str]:
    """Yield how fast the chosen tilings of products are that the table does not know, by the best measured ones."""
    several = [row for row, of in times.items() if len(of) > 3]
    random.Random(1).shuffle(several)
    ratios = []
    for part in range(parts):
        held = set(several[part::parts])
        use(fitted({row: of for row, of in times.items() if row not in held}, scales))
        for row in held:
            size, kinds, measured = of_product(row, times[row])
            expected = choice.predicted(kinds.tilings, size)
            taken = min((time, us) for time, us in zip(expected, measured) if time is not None)[1]
            ratios.append(float(measured.min() / taken))
        yield _ratios("the best tiling", ratios)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--add", type=Path, nargs="*", default=())
    parser.add_argument("--scales", type=int, metavar="PRODUCTS")
    parser.add_argument("--validate", action="store_true")
    chosen = parser.parse_args(arguments)
    table, times = json.loads(choice.FILE.read_text()), read()
    if chosen.add:
        from tune_gemm import size_of

        for file in chosen.add:
            add(times, json.loads(file.read_text()), size_of)
        write(times)
    scales = searched(times, table, chosen.scales) if chosen.scales else table["scales"]
    if chosen.validate:
        for line in validate(times, scales):
            print(line, flush=True)
        return
    table = fitted(times, scales)
    use(table)
    table["shapes"] = entries(times)
    choice.FILE.write_text(written(table))
    print(
        f"{sum(map(len, times.values()))} times of {len(times)} products, {len(table['shapes'])} entries"
    )


if __name__ == "__main__":
    main()
