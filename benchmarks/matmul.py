"""The portable matmul against torch: what one source for every matrix unit costs on this one.

torch uses the best instructions of the GPU; the example takes those that `gl.portable` has lowerings
for, which `gluon explain examples/matmul.py` lists.
"""

from __future__ import annotations

from typing import Any

from common import Result, device, in_turns, parse_arguments, sweep, write
from upstream import our_example

from gluon_core.cli.example import Arrays

SIZES = [(4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 8192)]
CHOICES: list[dict[str, Any]] = [
    {"block": (128, 128, 32), "stages": 3, "num_warps": 4},
    {"block": (128, 128, 32), "stages": 4, "num_warps": 4},
    {"block": (128, 128, 32), "stages": 4, "num_warps": 8},
    {"block": (128, 128, 64), "stages": 3, "num_warps": 8},
    {"block": (128, 128, 64), "stages": 4, "num_warps": 4},
    {"block": (128, 256, 32), "stages": 4, "num_warps": 8},
    {"block": (256, 128, 32), "stages": 4, "num_warps": 8},
    {"block": (128, 256, 64), "stages": 3, "num_warps": 8},
    {"block": (256, 128, 64), "stages": 3, "num_warps": 8},
]


def results(only: str = "") -> list[Result]:
    import torch

    target, found = device(), []
    (example,) = our_example("matmul").EXAMPLES
    for sizes in SIZES:
        name = f"matmul {'x'.join(map(str, sizes))} fp16"
        if only not in name:
            continue
        args = example.arguments(Arrays(target), True, sizes)
        _, choice, config = sweep(example, args, target, CHOICES)
        expected = torch.matmul(args["a"], args["b"])
        args["c"].fill_(float("nan"))
        example.launch(args, config)
        scale = float(expected.abs().max())
        torch.testing.assert_close(args["c"], expected, rtol=0, atol=example.tolerance * scale)
        contenders = {
            "ours": lambda args=args, config=config: example.launch(args, config),
            "torch": lambda args=args: torch.matmul(args["a"], args["b"]),
        }
        seconds = in_turns(contenders, target)
        rate = {who: example.flops(args) / s / 1e12 for who, s in seconds.items()}
        found.append(
            Result(
                name,
                "TFLOP/s",
                rate["ours"],
                {"torch": rate["torch"]},
                {"torch": seconds["torch"] / seconds["ours"]},
                {},
                ", ".join(f"{key} {value}" for key, value in choice.items()),
            )
        )
    return found


def main() -> int:
    chosen = parse_arguments(__doc__)
    return write(results(chosen.only), chosen.json)


if __name__ == "__main__":
    raise SystemExit(main())
