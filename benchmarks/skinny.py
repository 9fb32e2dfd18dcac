"""Matrix products of few rows against cuBLAS, in CUDA graphs; a matrix of 4096x4096 stays in the L2 cache
of a large GPU, one of 8192x8192 does not. On Hopper the best of both examples."""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import Any, Iterator

from common import Result, device, parse_arguments, write
from row_kernels import difference, in_turns

from gluon_core.cli.demo import examples_package
from gluon_core.cli.example import Arrays, Example
from gluon_core.contract.targets import Target
from gluon_core.errors import GluonError

ROWS = (1, 8, 16, 64, 128)
SIDES = (4096, 8192)
# (block, stages, warps)
HOPPER = (
    ((8, 64, 128), 6, 4),
    ((8, 64, 256), 5, 4),
    ((8, 128, 128), 5, 4),
    ((16, 64, 128), 6, 4),
    ((16, 64, 256), 5, 4),
    ((64, 64, 128), 6, 4),
    ((64, 64, 256), 3, 4),
    ((128, 64, 128), 4, 8),
    ((128, 64, 64), 8, 4),
    ((128, 128, 64), 6, 8),
)
CHOICES = (
    ((64, 64, 64), 6, 4),
    ((64, 64, 128), 4, 4),
    ((64, 128, 64), 4, 4),
    ((64, 128, 64), 6, 4),
    ((64, 128, 128), 4, 4),
    ((64, 256, 64), 4, 4),
    ((16, 64, 128), 4, 4),
    ((16, 128, 64), 4, 4),
    ((128, 64, 64), 6, 8),
    ((128, 128, 64), 4, 8),
    ((128, 128, 64), 6, 8),
)
SPLITS = (1, 2, 4, 8, 16)


def candidates(target: Target, m: int, side: int) -> Iterator[tuple[Example, dict[str, Any]]]:
    """Examples and choices that give most processors something to do, and not too much."""
    for file, choices in (("matmul_skinny", CHOICES), ("matmul_skinny_hopper", HOPPER)):
        example = importlib.import_module(f"{examples_package().__name__}.{file}").EXAMPLES[0]
        for (block, stages, warps), splits in itertools.product(choices, SPLITS):
            programs = -(-m // block[0]) * (side // block[1]) * splits
            if example.lacks(target) or not 96 <= programs <= (600 if choices is CHOICES else 132):
                continue
            if block[0] < 2 * max(m, 32 if choices is CHOICES else 8):
                yield (
                    example,
                    {
                        "block": block,
                        "stages": stages,
                        "splits": splits,
                        "num_warps": warps,
                    },
                )


def measure(m: int, side: int, target: Target) -> Result:
    import torch

    (portable,) = importlib.import_module(f"{examples_package().__name__}.matmul_skinny").EXAMPLES
    base = portable.arguments(Arrays(target), True, (m, side, side))
    a, b, into = base["a"], base["b"], torch.empty_like(base["c"])
    wanted = a.float() @ b.float()
    runs, errors = {}, {}
    for example, choice in candidates(target, m, side):
        block, splits = choice["block"], choice["splits"]
        blocks = -(-m // block[0]) * (side // block[1])
        args = {
            **base,
            "sums": torch.empty((blocks, splits, *block[:2]), device="cuda"),
            "counters": torch.zeros(blocks, dtype=torch.int32, device="cuda"),
        }
        config = example.configure(target, True, **choice)
        text = ", ".join(f"{name} {value}" for name, value in choice.items())
        text = f"{'' if example is portable else 'Hopper, '}{text}"
        try:
            run = example.launcher(args, config)
            args["c"].fill_(float("nan"))
            run()
            run()  # with counters as the first has left them
        except GluonError as error:
            print(f"{m} {side} {text}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        errors[text] = difference(args["c"], wanted)
        if errors[text] <= 1e-2:
            runs[text] = run
        else:
            print(f"WRONG {m}x{side}x{side} {text}: {errors[text]}", flush=True)
    times = in_turns(runs, 3, 10)
    moved = 2 * (side * side + 2 * m * side)
    for text, time in times.items():
        print(f"{m} {side} {text}: {time * 1e6:.1f} us, {moved / time / 1e12:.2f}", file=sys.stderr)
    best = min(times, key=lambda text: times[text])
    times = in_turns({"ours": runs[best], "cuBLAS": lambda: torch.matmul(a, b, out=into)})
    ours, library = (moved / times[who] / 1e12 for who in ("ours", "cuBLAS"))
    return Result(
        f"{m}x{side}x{side} bf16, {times['ours'] * 1e6:.1f} us",
        "TB/s",
        ours,
        {"cuBLAS": library},
        {"cuBLAS": ours / library},
        {"cuBLAS": (">=", 1.0)},
        best,
        errors[best],
    )


def results(only: str = "") -> list[Result]:
    target = device()
    return [measure(m, n, target) for n in SIDES for m in ROWS if only in f"{m}x{n}"]


def main() -> int:
    chosen: Any = parse_arguments(__doc__)
    return write(results(chosen.only), chosen.json)


if __name__ == "__main__":
    raise SystemExit(main())
