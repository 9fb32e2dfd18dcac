"""Measure the ten steps of examples/tutorials against torch: the gain of each new idea."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path
from typing import Any, Callable

from common import Result, device, in_turns, parse_arguments, write

from gluon_core.plugin.targets import Target

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "tutorials"
LENGTH, SIDE, EDGE = 2**28, 16384, 4096  # elements of a copy; edges of a transpose, of a product


def step(number: int) -> Any:
    """Return the module of a step; steps import each other by their bare names."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(next(FOLDER.glob(f"step{number:02}_*.py")).stem)


def compared(
    case: str,
    ours: Callable[[], Any],
    library: Callable[[], Any],
    distance: Callable[[], float],
    amount: float,
    unit: str,
    target: Target,
) -> Result:
    """Print one line: `amount` is bytes or operations, `distance` the error of `ours`."""
    ours()
    error = distance()
    times = in_turns({"ours": ours, "torch": library}, target, 3, 10)
    mine, theirs = (amount / times[contender] / 1e12 for contender in ("ours", "torch"))
    assert error <= 1e-2, f"{case}: {error}"
    return Result(case, unit, mine, {"torch": theirs}, {"torch": mine / theirs}, error=error)


def copies(target: Target) -> list[Result]:
    import torch

    x = torch.rand(LENGTH, device="cuda")
    out = torch.empty_like(x)
    first, second = step(1), step(2)
    ways = {
        "1 copy": lambda: first.launch(x, out),
        "2 one element to a thread": lambda: second.launch(
            x, out, layout=second.LAYOUTS["one each"]
        ),
        "2 four neighbours to a thread": lambda: second.launch(x, out),
    }
    results = []
    for case, ours in ways.items():
        out.zero_()
        results.append(
            compared(
                case,
                ours,
                lambda: out.copy_(x),
                lambda: float((out != x).any()),
                8 * LENGTH,
                "TB/s",
                target,
            )
        )
    return results


def transposes(target: Target) -> list[Result]:
    import torch

    x = torch.rand(SIDE, SIDE, device="cuda")
    out = torch.empty_like(x)
    tiles, shared = step(3), step(4)
    ways = {
        "3 transpose, convert_layout": lambda: tiles.launch(x, out),
        "4 shared memory, plain": lambda: shared.launch(x, out, shared=shared.PLAIN),
        "4 shared memory, swizzled": lambda: shared.launch(x, out),
    }
    results = []
    for case, ours in ways.items():
        out.zero_()
        results.append(
            compared(
                case,
                ours,
                lambda: out.copy_(x.T),
                lambda: float((out != x.T).any()),
                8 * SIDE * SIDE,
                "TB/s",
                target,
            )
        )
    return results


def products(target: Target) -> list[Result]:
    import torch

    a, b = (torch.randn(EDGE, EDGE, device="cuda", dtype=torch.float16) for _ in range(2))
    c, into = torch.empty_like(a), torch.empty_like(a)
    wanted = a.float() @ b.float()
    words = {
        5: "multiply-add",
        6: "mma.sync",
        7: "cp.async",
        8: "TMA and wgmma",
        9: "four stages",
        10: "warp-specialized",
    }
    results = []
    for number, label in words.items():
        c.zero_()
        results.append(
            compared(
                f"{number} product, {label}",
                partial(step(number).launch, a, b, c),
                lambda: torch.matmul(a, b, out=into),
                lambda: float(torch.linalg.norm(c.float() - wanted) / torch.linalg.norm(wanted)),
                2 * EDGE**3,
                "TFLOP/s",
                target,
            )
        )
    return results


def results(only: str = "") -> list[Result]:
    target = device()
    parts = (("copy", copies), ("transpose", transposes), ("product", products))
    return [line for name, part in parts if only in name for line in part(target)]


if __name__ == "__main__":
    arguments = parse_arguments(__doc__)
    raise SystemExit(write(results(arguments.only), arguments.json))
