"""The host's time of a launch of kernels without layouts, and of Triton's launch of the same text, in a loop without a graph.

  python benchmarks/eager_launches.py [--seed N] [--json FILE] [--compile]

Operands are so small that the device waits for the host. Batches are shorter than the driver's queue, in turns, and waiting
for them is not timed; the result is the median of many. Needs an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

ROUNDS = 60


def launches() -> dict[str, Any]:
    """Return the makers of the launches: pointers, descriptors, and attention whose form the host chooses."""
    from twin_gemm_cases import over_tiles, strided

    tile = (64, 64, 64)
    return {
        "GEMM by pointers": strided(64, 64, 64, tile, 4, 3),
        "GEMM by block pointers": over_tiles("by_blocks", 64, 64, 64, tile, 4, 3),
        "GEMM by descriptors that the kernel makes": over_tiles(
            "described", 64, 64, 64, tile, 4, 3, TRANSPOSED=False, BIAS=False
        ),
        "attention, whose form the host chooses": attention,
    }


def attention() -> Any:
    """Return the launch of an attention by pointers, which is a kernel of the tests."""
    from twin_cases import Launch, empty, normal

    q, k, v = (normal(2, 128, 64) for _ in range(3))
    o = empty(2, 128, 64)
    words = dict(HEAD=64, BLOCK_M=128, BLOCK_N=64, CAUSAL=False, num_warps=4, num_stages=2)
    return Launch("products", "attention_kernel", (1, 2), [q, k, v, o, 0.125, 128], words, [o])


def forms(launch: Any, folder: Path) -> list[Any]:
    """Return the kernel of a launch as plain Triton and without layouts."""
    from layout_free_cases import both
    from twin_cases import twins

    modules = (both if launch.file == "products" else twins)(launch.file, folder)
    return [getattr(module, launch.kernel) for module in modules]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of operands and order")
    parser.add_argument("--json", type=Path, help="file for the table")
    parser.add_argument("--compile", action="store_true", help="without times")
    asked = parser.parse_args()
    import torch
    import triton
    from common import host_us
    from runs import Twins

    if not torch.cuda.is_available():
        print("there is no GPU here", file=sys.stderr)
        return 3
    triton.set_allocator(
        lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8)
    )
    torch.manual_seed(asked.seed)
    table: dict[str, dict[str, float]] = {}
    print("| launch | ours, us | Triton's, us |\n| --- | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in launches().items():
            launch = make()
            plain, free = forms(launch, Path(folder))
            args, words = launch.args, launch.words
            runs = Twins(
                {
                    "ours": lambda k=free: k[launch.grid](*args, **words),  # noqa: B023
                    "triton": lambda k=plain: k[launch.grid](*args, **words),  # noqa: B023
                },
                launch.results,
                launch.added,
                launch.apart,
            )
            runs.check()
            if not asked.compile:
                row = table[name] = host_us(runs, random.Random(asked.seed), ROUNDS)
                print(f"| {name} | {row['ours']:.2f} | {row['triton']:.2f} |", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
