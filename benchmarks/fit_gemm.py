"""Fit the table that chooses the tilings of products on Hopper to the times in `gemm_times.json`; `tune_gemm.py` measures them.

    python benchmarks/fit_gemm.py                    # writes tuned/hopper.json, anywhere
    python benchmarks/fit_gemm.py --add times.json   # with times of `tune_gemm.py --measure`, which the file keeps
    python benchmarks/fit_gemm.py --validate         # by a table of four fifths of the products

`--validate` prints how much longer the chosen tilings of the other products take than the best measured ones, `--jobs 5` trains so many
networks at a time.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterable, NamedTuple, Optional, Sequence

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

import numpy as np  # noqa: E402

from gluon_kernels.gemm import choice, tilings  # noqa: E402

FILE = Path(__file__).with_name("gemm_times.json")
# Networks, the widths of their layers, passes over all products by which one is trained, and products of a step.
NETS, WIDTHS, EPOCHS, BATCH = 5, (96, 96), 60, 160
# Settings of AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization), whose rate rises in the first WARM of the steps and falls in the others.
RATE, DECAY, MOMENTS, WARM = 4e-3, 1e-3, (0.9, 0.999), 0.3
# The speed, of that of the best tiling of a product, below which a tiling weighs less; its least weight; and how much of the error that all tilings of
# a product have in common does not count.
NEAR, LEAST, COMMON = 0.8, 0.05, 0.7
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
    """Hold the measured tilings of products.

    Args:
        inputs: of the networks, [points, INPUTS].
        errors: logarithms of the measured times by the expected ones.
        speed: as shares of that of the best measured tiling of the product.
        counts: points of each product, which follow each other.
    """

    inputs: np.ndarray
    errors: np.ndarray
    speed: np.ndarray
    counts: np.ndarray


def of_product(row: Row, of: dict[str, float]) -> tuple[tilings.Size, choice.Columns, np.ndarray]:
    """Return the size, the measured tilings, and their times."""
    kinds = [tilings.TILINGS[name] for name in of]
    return choice.size_of(row), choice.Columns(kinds), np.array(list(of.values()))


def points_of(times: Times, table: choice.Table) -> Points:
    """Return the points of all times."""
    parts: list[tuple[np.ndarray, ...]] = []
    for row, of in times.items():
        size, kinds, measured = of_product(row, of)
        expected = choice.expected(kinds, size, table)
        known = expected == expected
        columns = (
            choice.inputs(kinds, size, expected, table),
            np.log(measured / expected),
            measured.min() / measured,
        )
        parts.append(tuple(column[known] for column in columns))
    counts = np.array([len(errors) for _, errors, _ in parts])
    return Points(*(np.concatenate(columns).astype(float) for columns in zip(*parts)), counts)


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


def uncorrected(table: dict[str, Any]) -> choice.Table:
    """Return the table without corrections of its model."""
    return choice.read({**table, "centers": [], "scales": [], **choice.packed(())})


def corrected(
    table: dict[str, Any], times: Times, nets: int = NETS, epochs: int = EPOCHS, jobs: int = 1
) -> dict[str, Any]:
    """Return the table with networks that correct its model by measured times."""
    points = points_of(times, uncorrected(table))
    centers, scales = points.inputs.mean(0), points.inputs.std(0) + 1e-3
    inputs = np.clip((points.inputs - centers) / scales, -choice.WIDE, choice.WIDE)
    train = partial(trained, points._replace(inputs=inputs), epochs)
    if jobs > 1:
        with ProcessPoolExecutor(jobs) as pool:
            layers = list(pool.map(train, range(nets)))
    else:
        layers = [train(seed) for seed in range(nets)]
    of_all = [tuple(map(np.stack, zip(*layer))) for layer in zip(*layers)]
    numbers = {name: [float(f"{x:.6g}") for x in of] for name, of in (("centers", centers), ("scales", scales))}  # fmt: skip
    return {**table, **numbers, **choice.packed(of_all)}


def trained(points: Points, epochs: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the layers of a network that tells the errors of points by their inputs: those of a product's tilings with respect to each other above all."""
    import torch

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    inputs, errors = (torch.tensor(x, dtype=torch.float32) for x in points[:2])
    weights = torch.tensor(np.clip(points.speed / NEAR, LEAST, 1.0) ** 2, dtype=torch.float32)
    firsts = np.cumsum(points.counts) - points.counts
    widths, layers = (choice.INPUTS, *WIDTHS, 1), []
    for before, width in zip(widths, widths[1:]):
        layers += [torch.nn.Linear(before, width), torch.nn.SiLU()]
    network = torch.nn.Sequential(*layers[:-1])
    parameters = list(network.parameters())
    moments = [(torch.zeros_like(x), torch.zeros_like(x)) for x in parameters]
    batch = min(BATCH, len(points.counts))
    steps, step = len(points.counts) // batch, 0
    for _ in range(epochs):
        order = torch.randperm(len(points.counts)).numpy()
        for chosen in np.split(order[: steps * batch], steps):
            counts = points.counts[chosen]
            product = torch.tensor(np.repeat(np.arange(batch), counts))
            first = firsts[chosen] - (np.cumsum(counts) - counts)
            places = torch.tensor(np.arange(counts.sum()) + np.repeat(first, counts))
            weight, zeros = weights[places], torch.zeros(batch)
            off = network(inputs[places])[:, 0] - errors[places]
            total = zeros.index_add(0, product, weight).clamp_min(1e-6)
            shared = zeros.index_add(0, product, off * weight) / total
            off = off - COMMON * shared[product]
            loss = torch.nn.functional.huber_loss(off, torch.zeros_like(off), reduction="none", delta=0.1)  # fmt: skip
            slopes = torch.autograd.grad((weight * loss).sum() / weight.sum(), parameters)
            step += 1
            descend(parameters, slopes, moments, step, _pace(step / (epochs * steps)))
    linear = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
    return [
        (layer.weight.detach().numpy().T, layer.bias.detach().numpy()[None]) for layer in linear
    ]


def _pace(done: float) -> float:
    """Return the rate of a step, by the share of the steps that are done."""
    rising = (1 - math.cos(math.pi * done / WARM)) / 2
    falling = (1 + math.cos(math.pi * (done - WARM) / (1 - WARM))) / 2
    return RATE * (max(0.04, rising) if done < WARM else falling)


def descend(parameters: list[Any], slopes: Any, moments: list[Any], step: int, rate: float) -> None:
    """Take a step of AdamW; that of `torch.optim` takes longer to import than small networks to train."""
    first, second = MOMENTS
    for x, slope, (mean, square) in zip(parameters, slopes, moments):
        mean.lerp_(slope, 1 - first)
        square.lerp_(slope * slope, 1 - second)
        divisor = (square / (1 - second**step)).sqrt().add_(1e-8)
        x.data.mul_(1 - rate * DECAY).addcdiv_(mean, divisor, value=-rate / (1 - first**step))


def use(table: dict[str, Any]) -> None:
    """Let tilings be chosen by a table."""
    read_table = choice.read(table)
    choice._table = lambda: read_table  # type: ignore[assignment]
    choice._order.cache_clear()
    choice.choose.cache_clear()


def fitted(times: Times, jobs: int = 1) -> dict[str, Any]:
    """Return a table without entries of products."""
    return corrected({"model": factors_of(times), "shapes": {}}, times, jobs=jobs)


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


def _ratios(name: str, ratios: Iterable[float]) -> str:
    ordered = sorted(ratios)
    mean = float(np.exp(np.mean(np.log(ordered))))
    return f"of {name}: mean {mean:.3f}, 5th percentile {ordered[len(ordered) // 20]:.3f}, worst {ordered[0]:.3f}, {len(ordered)} products"


def validate(times: Times, parts: int = 5, jobs: int = 1) -> str:
    """Return how fast the chosen tilings of products are that the table does not know, by the best measured ones."""
    several = [row for row, of in times.items() if len(of) > 3]
    random.Random(7).shuffle(several)
    held, ratios = several[::parts], []
    others = set(held)
    use(fitted({row: of for row, of in times.items() if row not in others}, jobs))
    for row in held:
        size, kinds, measured = of_product(row, times[row])
        expected = choice.predicted(kinds.tilings, size)
        taken = min((time, us) for time, us in zip(expected, measured) if time is not None)[1]
        ratios.append(float(measured.min() / taken))
    return _ratios("the best tiling", ratios)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--add", type=Path, nargs="*", default=())
    parser.add_argument("--jobs", type=int, default=1, help="networks that are trained at a time")
    parser.add_argument("--validate", action="store_true")
    chosen = parser.parse_args(arguments)
    times = read()
    if chosen.add:
        from tune_gemm import size_of

        for file in chosen.add:
            add(times, json.loads(file.read_text()), size_of)
        write(times)
    if chosen.validate:
        print(validate(times, jobs=chosen.jobs))
        return
    table = fitted(times, chosen.jobs)
    use(table)
    table["shapes"] = entries(times)
    choice.FILE.write_text(written(table))
    print(
        f"{sum(map(len, times.values()))} times of {len(times)} products, {len(table['shapes'])} entries"
    )


if __name__ == "__main__":
    main()
