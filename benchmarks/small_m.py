"""Matrix products of few rows against cuBLAS, in CUDA graphs; a matrix of 4096x4096 stays in the L2 cache
of a large GPU, one of 8192x8192 does not, and 7168 columns do not divide among 132 processors. On Hopper the
best of three examples."""

from __future__ import annotations

import itertools
import sys
from typing import Any, Iterator

from common import Result, device, example_module, parse_arguments, write
from row_kernels import difference, in_turns

from gluon_core.errors import GluonError
from gluon_core.plugin.targets import Target
from gluon_report.example import Arrays, Example

SHAPES = [(m, n, n) for n in (4096, 8192) for m in (1, 8, 16, 64, 128)]
SHAPES += [(m, 7168, 8192) for m in (16, 100, 128)]
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
# (columns, steps of K, stages, warps) of the one in roles
ROLES = ((64, 64, 8, 4), (64, 64, 9, 4), (64, 128, 4, 4), (128, 64, 6, 4), (128, 64, 6, 8))
LEADS = (0, 2, 4)


def in_roles(m: int, n: int, k: int) -> Iterator[dict[str, Any]]:
    """Choices with and without helpers; rows that do not fill a block overlap, or lie outside."""
    roles = example_module("matmul_small_m_warp_specialized_hopper")
    chosen = roles.chosen_for(m, n, k)
    rows, overlap = chosen["block"][0], chosen["overlap"]
    for columns, width, stages, warps in ROLES:
        if warps == 8 and rows < 128:
            continue
        parts = roles.helpers_for(-(-n // columns), -(-k // width))
        helps = [((parts, lead), overlap) for lead in LEADS if parts]
        for help, overlaps in ((0, 0), overlap), *helps, *[((0, 0), False)] * overlap:
            yield {
                "block": (rows, columns, width),
                "stages": stages if rows == 128 else 3 * stages // 2,
                "help": help,
                "overlap": overlaps,
                "num_warps": warps,
            }


def candidates(target: Target, m: int, n: int, k: int) -> Iterator[tuple[Example, dict[str, Any]]]:
    """Examples and choices that give most processors something to do, and not too much."""
    for file, choices in (("matmul_split_k", CHOICES), ("matmul_small_m_hopper", HOPPER)):
        (example,) = example_module(file).EXAMPLES
        for (block, stages, warps), splits in itertools.product(choices, SPLITS):
            programs = -(-m // block[0]) * -(-n // block[1]) * splits
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
    (example,) = example_module("matmul_small_m_warp_specialized_hopper").EXAMPLES
    if not example.lacks(target):
        yield from ((example, choice) for choice in in_roles(m, n, k))


def measure(m: int, n: int, k: int, target: Target) -> Result:
    import torch

    (portable,) = example_module("matmul_split_k").EXAMPLES
    base = portable.arguments(Arrays(target), True, (m, n, k))
    a, b, into = base["a"], base["b"], torch.empty_like(base["c"])
    wanted = a.float() @ b.float()
    runs, errors = {}, {}
    for example, choice in candidates(target, m, n, k):
        block, parts = choice["block"], choice.get("splits", choice.get("help", (0,))[0])
        blocks = -(-m // block[0]) * -(-n // block[1])
        args = {
            **base,
            "sums": torch.empty((blocks, max(parts, 1), *block[:2]), device="cuda"),
            "counters": torch.zeros(blocks, dtype=torch.int32, device="cuda"),
        }
        config = example.configure(target, True, **choice)
        text = ", ".join(f"{name} {value}" for name, value in choice.items())
        kind = "roles, " if "help" in choice else "" if example is portable else "Hopper, "
        text = f"{kind}{text}"
        try:
            run = example.launcher(args, config)
            args["c"].fill_(float("nan"))
            run()
            run()  # with counters as the first has left them
        except GluonError as error:
            print(f"{m}x{n}x{k} {text}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        errors[text] = difference(args["c"], wanted)
        if errors[text] <= 1e-2:
            runs[text] = run
        else:
            print(f"WRONG {m}x{n}x{k} {text}: {errors[text]}", flush=True)
    times = in_turns(runs, 3, 10)
    moved = 2 * (n * k + m * k + m * n)
    for text, time in times.items():
        print(
            f"{m}x{n}x{k} {text}: {time * 1e6:.1f} us, {moved / time / 1e12:.2f}", file=sys.stderr
        )
    best = min(times, key=lambda text: times[text])
    times = in_turns({"ours": runs[best], "cuBLAS": lambda: torch.matmul(a, b, out=into)})
    ours, library = (moved / times[who] / 1e12 for who in ("ours", "cuBLAS"))
    return Result(
        f"{m}x{n}x{k} bf16, {times['ours'] * 1e6:.1f} us",
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
    return [measure(*shape, target) for shape in SHAPES if only in "x".join(map(str, shape))]


def main() -> int:
    chosen: Any = parse_arguments(__doc__)
    return write(results(chosen.only), chosen.json)


if __name__ == "__main__":
    raise SystemExit(main())
