"""Hopper kernels against cuBLAS, cuDNN and torch, in turns; adds also against the same file on upstream
Gluon, which lacks the building blocks of the others. Each speed comes with its error against a reference
in higher precision.

`K=...` lines give each size; the line of means, the geometric mean over them.
"""

from __future__ import annotations

import statistics
from types import ModuleType
from typing import Any, Callable, Mapping

from common import Result, device, difference, in_turns, main
from upstream import our_example, upstream_example

from gluon_core.plugin.targets import Target
from gluon_report.example import Arrays, Example

SIZES = (512, 1024, 2048, 4096, 8192, 16384)


def named(module: ModuleType, name: str) -> Example:
    return next(example for example in module.EXAMPLES if example.name == name)


def compare(
    name: str,
    file: str,
    args: Mapping[str, Any],
    library: tuple[str, Callable[[], Any]],
    reference: Callable[[], Any],
    target: Target,
    wanted: dict[str, tuple[str, float]],
    case: str = "",
) -> Result:
    """Measure an example of `file` on `args`, with descriptors made before; upstream's if it is wanted."""
    ours = named(our_example(file), name)
    examples = {"ours": ours}
    if "upstream" in wanted:
        examples["upstream"] = named(upstream_example(file), name)
    rival, of_library = library
    contenders: dict[str, Callable[[], Any]] = {rival: of_library}
    errors = {}
    expected = reference()
    for contender, example in examples.items():
        run = example.launcher(args, example.configure(target, True))
        args[example.output].fill_(float("nan"))
        run()
        errors[contender] = difference(args[example.output].reshape(expected.shape), expected)
        if not errors[contender] < 2e-2:
            raise SystemExit(
                f"{contender}: {example.name} is wrong: relative error {errors[contender]}"
            )
        contenders[contender] = run
    del expected
    seconds = in_turns(contenders, target, repeats=10)
    if ours.flops is not None:
        work, unit = ours.flops(args), "TFLOP/s"
    else:
        assert ours.bytes_moved is not None
        work, unit = ours.bytes_moved(args), "TB/s"
    rate = {contender: work / s / 1e12 for contender, s in seconds.items()}
    return Result(
        case or ours.name,
        unit,
        rate["ours"],
        {contender: rate[contender] for contender in contenders if contender != "ours"},
        {
            contender: seconds[contender] / seconds["ours"]
            for contender in contenders
            if contender != "ours"
        },
        wanted,
        blocks(ours, target),
        errors["ours"],
    )


def blocks(example: Example, target: Target) -> str:
    config = example.configure(target, True)
    return ", ".join(f"{k} {v}" for k, v in config.items() if isinstance(v, int) and k != "GROUP")


def matmuls(target: Target) -> list[Result]:
    import torch

    lines = []
    example = our_example("matmul_cooperative_hopper").EXAMPLES[0]
    for size in SIZES:
        args = example.arguments(Arrays(target), True, (8192, 8192, size))
        a, b = args["a"], args["b"]
        into = torch.empty_like(args["c"])
        library = "cuBLAS", lambda a=a, b=b, into=into: torch.matmul(a, b, out=into)
        exact = lambda a=a, b=b: a.float() @ b.float()  # noqa: E731
        case, wanted = f"matmul 8192x8192x{size} bf16", {"cuBLAS": (">=", 0.95)}
        lines.append(
            compare(
                example.name,
                "matmul_cooperative_hopper",
                args,
                library,
                exact,
                target,
                wanted,
                case,
            )
        )
    mean = Result(
        "matmul, geometric mean over K",
        lines[-1].unit,
        statistics.geometric_mean(line.ours for line in lines),
        {"cuBLAS": statistics.geometric_mean(line.rivals["cuBLAS"] for line in lines)},
        {"cuBLAS": statistics.geometric_mean(line.ratios["cuBLAS"] for line in lines)},
        {"cuBLAS": (">=", 1.0)},
    )
    return [*lines, mean, narrow(target)]


def narrow(target: Target) -> Result:
    """8-bit floats; cuBLAS with fast accumulation, as `wgmma` does by itself."""
    import torch

    example = our_example("matmul_cooperative_hopper").EXAMPLES[1]
    args = example.arguments(Arrays(target), True, (8192, 8192, 8192))
    a, b, one = args["a"], args["b"], torch.ones((), device="cuda")

    def library() -> Any:
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return compare(
        example.name,
        "matmul_cooperative_hopper",
        args,
        ("cuBLAS", library),
        lambda: a.float() @ b.float().T,
        target,
        {"cuBLAS": (">=", 0.95)},
        "matmul 8192x8192x8192 fp8",
    )


def adds(target: Target) -> list[Result]:
    """1 GiB operands; `copy` is the rate of torch's copy, as bytes read and written."""
    import torch

    results = []
    for example in our_example("add_tma").EXAMPLES:
        args = example.arguments(Arrays(target), True)
        a, b, into = args["a"], args["b"], torch.empty_like(args["a"])
        line = compare(
            example.name,
            "add_tma",
            args,
            ("torch", lambda a=a, b=b, into=into: torch.add(a, b, out=into)),
            lambda a=a, b=b: a.double() + b.double(),
            target,
            {"upstream": (">=", 0.98), "copy": (">=", 0.88)},
        )
        seconds = in_turns({"copy": lambda a=a, into=into: into.copy_(a)}, target)["copy"]
        copy = 2 * a.numel() * a.element_size() / seconds / 1e12
        line.rivals = {**line.rivals, "copy": copy}
        line.ratios["copy"] = line.ours / copy
        results.append(line)
        del args, a, b, into
        torch.cuda.empty_cache()
    return results


def results(only: str = "") -> list[Result]:
    target, results = device(), []
    for name, run in (("matmul", matmuls), ("add", adds)):
        if only in name:
            results += run(target)
    return results


if __name__ == "__main__":
    raise SystemExit(main(results, __doc__))
