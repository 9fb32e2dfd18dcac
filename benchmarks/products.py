"""Products of groups of rows (mixture of experts), their gradients, rows that stand anywhere, and 8-bit floats
with scales, against torch: its grouped and scaled products, and a loop of cuBLAS over the groups."""

from __future__ import annotations

import sys
from typing import Any, Callable, Mapping, Sequence

import numpy as np
from common import (
    Result,
    device,
    difference,
    example_module,
    in_turns,
    main,
)

from gluon_core.errors import GluonError
from gluon_core.plugin.targets import Target
from gluon_report.example import Arrays, Example

ROWS, SIDE = 32768, 4096
FP8 = (4096, 7168, 16384)


def right(name: str, run: Callable[[], Any], wanted: Any, most: float) -> tuple[bool, float]:
    """Return the error where `run` gives the wanted result; name failing rivals on stderr."""
    import torch

    try:
        got = run()
        torch.cuda.synchronize()
        error = difference(got, wanted)
    except Exception as problem:
        print(f"{name}: {str(problem).splitlines()[0][:200]}", file=sys.stderr)
        return False, float("nan")
    if not error < most:
        print(f"{name}: wrong, relative error {error}", file=sys.stderr)
    return error < most, error


def ours(
    example: Example, args: Mapping[str, Any], target: Target, choices: Sequence[Mapping[str, Any]],
    wanted: Any, most: float, rows: Any = slice(None),
) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:  # fmt: skip
    """Launchers of the choices whose results are right, and their errors."""
    results, errors = {}, {}
    for choice in choices:
        name = f"ours {', '.join(f'{k} {v}' for k, v in choice.items())}".strip()
        try:
            run = example.launcher(args, example.configure(target, True, **choice))
        except GluonError as problem:
            print(f"{name}: {str(problem).splitlines()[0]}", file=sys.stderr)
            continue

        def made(run: Callable[[], Any] = run) -> Any:
            args["c"].fill_(float("nan"))
            run()
            return args["c"][rows]

        good, errors[name] = right(name, made, wanted, most)
        if good:
            results[name] = run
    return results, errors


def line(
    case: str, flops: float, runs: Mapping[str, Callable[[], Any]], errors: Mapping[str, float],
    target: Target, wanted: dict[str, tuple[str, float]],
) -> Result:  # fmt: skip
    """Measure all in turns; return the best of ours and of the others."""
    rate = {name: flops / s / 1e12 for name, s in in_turns(runs, target, 5, 10).items()}
    mine = {name: value for name, value in rate.items() if name.startswith("ours")}
    for name, value in rate.items():
        print(f"{case}: {name}: {value:.0f} TFLOP/s", file=sys.stderr)
    best = max(mine, key=lambda name: mine[name])
    others = {name: value for name, value in rate.items() if name not in mine}
    ratios = {name: mine[best] / value for name, value in others.items()}
    wanted = {name: bound for name, bound in wanted.items() if name in ratios}
    return Result(case, "TFLOP/s", mine[best], others, ratios, wanted, best[5:], errors[best])


def skewed(groups: int, rows: int) -> list[int]:
    """Rows by Zipf's law, the first group the largest."""
    share = 1 / np.arange(1, groups + 1)
    counts = np.floor(share / share.sum() * rows).astype(int)
    counts[0] += rows - counts.sum()
    return [int(count) for count in counts]


def grouped(target: Target) -> list[Result]:
    import torch

    example = example_module("grouped_gemm_hopper").EXAMPLES[0]
    portable = example_module("grouped_gemm").EXAMPLES[0]
    dense = example_module("matmul_cooperative_hopper").EXAMPLES[0]
    dense_args = dense.arguments(Arrays(target), True, (ROWS, SIDE, SIDE))
    at_once = dense.launcher(dense_args, dense.configure(target, True))
    results = []
    for groups in (8, 128):
        for kind, counts, box in (
            ("even", [ROWS // groups] * groups, None),
            ("skewed", skewed(groups, ROWS), None),
            ("even, in boxes", [ROWS // groups] * groups, 2 * ROWS // groups),
        ):
            args = example.arguments(Arrays(target), True, counts, SIDE, SIDE, box)
            a, b, starts = args["a"], args["b"], args["starts"].tolist()
            ranges = [slice(s, s + n) for s, n in zip(starts, counts)]
            inside = torch.cat([torch.arange(r.start, r.stop, device="cuda") for r in ranges])
            into = torch.empty_like(args["c"])

            def loop(a: Any = a, b: Any = b, ranges: Any = ranges, into: Any = into) -> Any:
                for i, rows in enumerate(ranges):
                    torch.mm(a[rows], b[i], out=into[rows])
                return into

            wanted = loop()[inside].float()
            choices = [{"most": groups, "group": group} for group in (4, 8, 16)]
            runs, errors = ours(example, args, target, choices, wanted, 1e-2, inside)
            same = [
                {"most": groups, "group": group, "num_warps": 8, "stages": stages}
                for group in (4, 8, 16)
                for stages in (3, 4)
            ]
            one_source = ours(portable, args, target, same, wanted, 1e-2, inside)[0]
            if one_source:
                times = in_turns(one_source, target, 3, 5)
                runs["the portable one"] = one_source[min(times, key=lambda name: times[name])]
            runs["cuBLAS in a loop"] = loop
            if box is None:
                ends = torch.tensor(counts, device="cuda").cumsum(0).to(torch.int32)
                runs["torch's grouped"] = lambda a=a, b=b, ends=ends: torch._grouped_mm(
                    a, b, offs=ends
                )
                if not right("torch", runs["torch's grouped"], wanted, 1e-2)[0]:
                    del runs["torch's grouped"]
            runs["dense"] = at_once
            bounds = {
                "even": {"dense": (">=", 0.92), "the portable one": ("<=", 1 / 0.97)},
                "skewed": {"cuBLAS in a loop": (">=", 3.0)} if groups > 8 else {},
            }
            case = f"{groups} groups, {kind}, {ROWS}x{SIDE}x{SIDE} bf16"
            flops = 2 * ROWS * SIDE * SIDE
            results.append(line(case, flops, runs, errors, target, bounds.get(kind, {})))
            del runs, args, a, b, into, wanted, loop
            torch.cuda.empty_cache()
    return results


def weights(target: Target) -> list[Result]:
    """Return the gradients of the groups' matrices: A of each group transposed, times B."""
    import torch

    explicit = example_module("grouped_gemm_wgrad_hopper").EXAMPLES[0]
    portable = example_module("grouped_gemm_wgrad").EXAMPLES[0]
    results = []
    for kind, counts in (("even", [ROWS // 8] * 8), ("skewed", skewed(8, ROWS))):
        args = explicit.arguments(Arrays(target), True, counts)
        a, b = args["a"], args["b"]
        ends = torch.tensor(counts, device="cuda").cumsum(0).to(torch.int32)

        def library(a: Any = a, b: Any = b, ends: Any = ends) -> Any:
            return torch._grouped_mm(a.t(), b, offs=ends)

        wanted = torch.stack([p.T @ q for p, q in zip(a.split(counts), b.split(counts))])
        runs, errors = ours(explicit, args, target, [{}], wanted, 1e-2)
        one_source = ours(portable, args, target, [{}], wanted, 1e-2)[0]
        if one_source:
            (runs["the portable one"],) = one_source.values()
        if right("torch's grouped", library, wanted, 1e-2)[0]:
            runs["torch's grouped"] = library
        case = f"8 groups, {kind}, gradients of matrices"
        bound = {"torch's grouped": (">=", 1.0)}
        results.append(line(case, 2 * ROWS * SIDE * SIDE, runs, errors, target, bound))
    return results


def anywhere(target: Target) -> list[Result]:
    """Measure GEMMs of gathered rows against the grouped GEMM with rows that a copy has brought
    together."""
    import torch

    gathering, dense = (
        example_module("matmul_gather_scatter_hopper").EXAMPLES[0],
        example_module("grouped_gemm_hopper"),
    )
    grouped_product = dense.EXAMPLES[0]
    results = []
    for kind, counts in (("even", [ROWS // 8] * 8), ("skewed", skewed(8, ROWS))):
        args = gathering.arguments(Arrays(target), True, counts)
        together = grouped_product.arguments(Arrays(target), True, counts)
        index = args["sources"].long()
        together["b"].copy_(args["b"])
        run = grouped_product.launcher(together, grouped_product.configure(target, True))

        def copied(args: Any = args, index: Any = index, to: Any = together, run: Any = run) -> Any:
            torch.index_select(args["a"], 0, index, out=to["a"])
            run()
            return to["c"]

        wanted = copied().float()
        runs, errors = ours(gathering, args, target, [{}], wanted, 1e-2)
        runs |= {"a copy, then grouped": copied, "grouped alone": run}
        case = f"8 groups, {kind}, rows anywhere"
        results.append(line(case, 2 * ROWS * SIDE * SIDE, runs, errors, target, {}))
        del runs, args, together, wanted
        torch.cuda.empty_cache()
    return results


def narrow(target: Target) -> list[Result]:
    import torch

    fp8 = example_module("matmul_fp8_hopper")
    results = []
    for example in [*fp8.EXAMPLES, *fp8.MORE]:
        args = example.arguments(Arrays(target), True, FP8)
        wanted = example.device_reference(args)
        a, b, of_a, of_b = (args[name] for name in fp8.NAMES)
        by_block = example.name.endswith("block")
        fast = example.name.endswith("fast")
        choices = [
            {"columns": columns, "stages": stages, "group": group}
            for columns, stages in ((256, 4), (256, 3), (128, 6))
            for group in (8, 16)
        ]
        runs, errors = ours(example, args, target, choices, wanted, 4e-2)
        if by_block:
            scales = (of_a.t(), of_b.t())  # [M, K / 128] and [K / 128, N / 128]

            def library(a: Any = a, b: Any = b, scales: Any = scales) -> Any:
                return torch._scaled_mm(a, b.t(), *scales, out_dtype=torch.bfloat16)

        else:
            scales = (of_a[:, None], of_b[None, :])

            def library(a: Any = a, b: Any = b, scales: Any = scales, fast: bool = fast) -> Any:
                return torch._scaled_mm(
                    a, b.t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=fast
                )

        if right("torch's scaled", library, wanted, 4e-2)[0]:
            runs["torch's scaled"] = library
        m, n, k = FP8
        case = f"{example.name}, {m}x{n}x{k}"
        results.append(
            line(case, 2 * m * n * k, runs, errors, target, {"torch's scaled": (">=", 1.0)})
        )
        del runs, args, wanted
        torch.cuda.empty_cache()
    return results


def few(target: Target) -> list[Result]:
    """Scales by block, few rows, in CUDA graphs."""
    from row_kernels import in_turns as in_graphs

    example = example_module("matmul_fp8_small_m_hopper").EXAMPLES[0]
    results = []
    for rows in (1, 16, 64, 128, 160):
        args = example.arguments(Arrays(target), True, (rows, SIDE, SIDE))
        wanted = example.device_reference(args)
        fitting = [m for m in (8, 16, 32, 64) if rows // 8 <= m < 2 * max(rows, 8)]
        choices = [
            {"block": (m, n), "stages": s} for m in fitting for n in (64, 128) for s in (4, 6)
        ]
        runs, errors = ours(example, args, target, choices, wanted, 1e-2)
        times = in_graphs(runs)
        best = min(times, key=lambda name: times[name])
        micro = times[best] * 1e6
        case = f"{example.name}, {rows}x{SIDE}x{SIDE}, in a graph"
        bound = {"15 us": ("<=", 1.0)}
        ratio = {"15 us": micro / 15}
        results.append(Result(case, "us", micro, {}, ratio, bound, best[5:], errors[best]))
    return results


def results(only: str = "") -> list[Result]:
    target, results = device(), []
    parts = {"grouped": grouped, "weights": weights, "anywhere": anywhere}
    for name, run in {**parts, "fp8": narrow, "few": few}.items():
        if only in name:
            results += run(target)
    return results


if __name__ == "__main__":
    raise SystemExit(main(results, __doc__))
