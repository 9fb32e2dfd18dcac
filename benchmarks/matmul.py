"""Measure the portable matmul: the cost of one source for every matrix unit on this one.

The rivals are torch, which uses the best instructions of the GPU, and on Hopper the kernel that names
them, `matmul_cooperative_hopper.py` with its warps specialized. `gluon explain examples/matmul.py`
lists the lowerings of the portable kernel. The error is that of the portable kernel against float32.
"""

from __future__ import annotations

from typing import Any

from common import Result, device, in_turns, main, sweep
from upstream import our_example

from gluon_core.plugin.targets import Target
from gluon_report.example import Arrays

SIZES = [(8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 8192)]
WANTED = {"explicit": (">=", 0.85)}
# For units that read shared memory on their own, and for all others.
ASYNCHRONOUS: list[dict[str, Any]] = [
    {"block": (128, 256, 64), "stages": 4, "num_warps": 8},
    {"block": (256, 128, 64), "stages": 4, "num_warps": 8},
    {"block": (128, 256, 64), "stages": 3, "num_warps": 8},
    {"block": (128, 128, 64), "stages": 4, "num_warps": 4},
]
SYNCHRONOUS: list[dict[str, Any]] = [
    {"block": (128, 128, 32), "stages": 3, "num_warps": 4},
    {"block": (128, 128, 32), "stages": 4, "num_warps": 8},
    {"block": (128, 128, 64), "stages": 3, "num_warps": 8},
    {"block": (128, 256, 32), "stages": 4, "num_warps": 8},
]


def choices(target: Target) -> list[dict[str, Any]]:
    own = any(target.has(unit) for unit in ("nvidia.wgmma", "nvidia.tcgen05"))
    return ASYNCHRONOUS if own else SYNCHRONOUS


def results(only: str = "") -> list[Result]:
    import torch

    target, results = device(), []
    (example,) = our_example("matmul").EXAMPLES
    explicit = our_example("matmul_cooperative_hopper").EXAMPLES[0]
    for sizes in SIZES:
        name = f"matmul {'x'.join(map(str, sizes))} bf16"
        if only not in name:
            continue
        args = example.arguments(Arrays(target), True, sizes, "bfloat16")
        _, choice, config = sweep(example, args, target, choices(target))
        expected = args["a"].float() @ args["b"].float()
        contenders = {
            "ours": example.launcher(args, config),
            "torch": lambda args=args: torch.matmul(args["a"], args["b"], out=args["c"]),
        }
        if not explicit.lacks(target):
            contenders["explicit"] = explicit.launcher(args, explicit.configure(target, True))
        errors = {}
        for contender, run in contenders.items():
            args["c"].fill_(float("nan"))
            run()
            errors[contender] = float((args["c"].float() - expected).norm() / expected.norm())
            if not errors[contender] < 2e-2:
                raise SystemExit(
                    f"{contender}: {name} is wrong: relative error {errors[contender]}"
                )
        del expected
        seconds = in_turns(contenders, target, repeats=10)
        rate = {contender: example.flops(args) / s / 1e12 for contender, s in seconds.items()}
        rivals = [contender for contender in contenders if contender != "ours"]
        results.append(
            Result(
                name,
                "TFLOP/s",
                rate["ours"],
                {contender: rate[contender] for contender in rivals},
                {contender: seconds[contender] / seconds["ours"] for contender in rivals},
                WANTED if "explicit" in contenders else {},
                ", ".join(f"{key} {value}" for key, value in choice.items()),
                errors["ours"],
            )
        )
    return results


if __name__ == "__main__":
    raise SystemExit(main(results, __doc__))
