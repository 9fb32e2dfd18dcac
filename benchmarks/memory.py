"""Kernels bound by memory, against torch and Triton's own Gluon (the same source, other imports).

Each contender gets the best of the same sweep of configurations; then all run in turns.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Callable, Mapping, Optional, Sequence

from common import Result, device, in_turns, parse_arguments, sweep, write
from upstream import our_example, upstream_example

from gluon_core.plugin.targets import Target
from gluon_report.example import Arrays

Choices = Sequence[Mapping[str, Any]]


def product(**choices: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(zip(choices, values)) for values in itertools.product(*choices.values())]


def at_least_one_each(choices: Choices, warp_size: int) -> list[Mapping[str, Any]]:
    """Without those in which a thread would hold the same elements as another."""
    results = []
    for choice in choices:
        block = choice["block"]
        elements = math.prod(block) if isinstance(block, tuple) else block
        if elements >= choice.get("vector", 4) * warp_size * choice["num_warps"]:
            results.append(choice)
    return results


def copy_into(args: Mapping[str, Any], source: Callable[[Any], Any]) -> Callable[[], Any]:
    import torch

    result = torch.empty_like(args["dst"])
    return lambda: result.copy_(source(args["src"]))


def torch_memcpy(args: Mapping[str, Any]) -> Callable[[], Any]:
    return copy_into(args, lambda src: src)


def torch_every_other_row(args: Mapping[str, Any]) -> Callable[[], Any]:
    return lambda: args["src"][::2].contiguous()


def torch_transpose(args: Mapping[str, Any]) -> Callable[[], Any]:
    return copy_into(args, lambda src: src.T)


def torch_add(args: Mapping[str, Any]) -> Callable[[], Any]:
    import torch

    result = torch.empty_like(args["out"])
    return lambda: torch.add(args["a"], args["b"], out=result)


def torch_softmax(args: Mapping[str, Any]) -> Callable[[], Any]:
    import torch

    return lambda: torch.softmax(args["src"], dim=1)


def cases(warp_size: int) -> list[tuple[str, int, Choices, Callable[..., Any], dict]]:
    """List (file, index of the example, choices, rival of torch, bound)."""
    flat = at_least_one_each(
        product(block=(512, 1024, 2048, 4096, 8192), vector=(4,), num_warps=(4, 8))
        + product(block=(2048,), vector=(1, 2, 8), num_warps=(4,)),
        warp_size,
    )
    rows = at_least_one_each(
        product(block=[(1, n) for n in (512, 1024, 2048, 4096)], vector=(4,), num_warps=(4, 8))
        + product(block=[(2, 1024), (4, 512), (2, 2048)], vector=(4,), num_warps=(4,))
        + product(block=[(1, 2048)], vector=(1, 2), num_warps=(4,)),
        warp_size,
    )
    columns = [{**choice, "block": choice["block"][::-1]} for choice in rows]
    sides = (32, 64, 128)
    tiles = at_least_one_each(
        product(
            block=[b for b in itertools.product(sides, sides) if math.prod(b) <= 8192],
            vector=(1, 4),
            num_warps=(4, 8),
        ),
        warp_size,
    )
    strips = at_least_one_each(
        product(block=(1024, 2048, 4096), tiles=(4, 8, 16, 32), num_warps=(4, 8)), warp_size
    )
    whole = [{"num_warps": n} for n in (4, 8, 16)]
    return [
        ("memcpy_1d", 0, flat, torch_memcpy, {"torch": (">=", 0.99)}),
        ("memcpy_2d", 0, rows, torch_every_other_row, {"torch": (">=", 1.40)}),
        ("memcpy_2d", 1, columns, torch_every_other_row, {"torch": (">=", 1.40)}),
        ("transpose_copy", 0, tiles, torch_transpose, {"torch": (">=", 2.9)}),
        ("memcpy_autotuned", 0, [{}], torch_memcpy, {}),
        # Upstream's is the same machine code: the bound is equality within noise.
        ("add_double_buffered", 0, strips, torch_add, {"upstream": (">=", 0.99)}),
        ("softmax", 0, whole, torch_softmax, {}),
    ]


def run(
    name: str,
    index: int,
    choices: Choices,
    rival: Callable[..., Any],
    wanted: dict,
    target: Target,
) -> Result:
    import torch

    ours, theirs = (m.EXAMPLES[index] for m in (our_example(name), upstream_example(name)))
    args = ours.arguments(Arrays(target), True)
    _, choice, config = sweep(ours, args, target, choices)
    _, their_choice, their_config = sweep(theirs, args, target, choices)

    of_torch = rival(args)
    contenders = {
        "ours": lambda: ours.launch(args, config),
        "torch": of_torch,
        "upstream": lambda: theirs.launch(args, their_config),
    }
    expected = of_torch()
    for contender in ("ours", "upstream"):
        args[ours.output].fill_(float("nan"))
        contenders[contender]()
        got = args[ours.output].reshape(expected.shape)
        torch.testing.assert_close(got, expected, rtol=ours.tolerance, atol=ours.tolerance)
    seconds = in_turns(contenders, target)
    moved = ours.bytes_moved(args)
    rate = {contender: moved / s / 1e12 for contender, s in seconds.items()}
    tuned = getattr(ours.kernel, "best_config", None)
    chosen = str(tuned) if tuned is not None else text(choice)
    if choice != their_choice:
        chosen += f"; upstream {text(their_choice)}"
    return Result(
        ours.name,
        "TB/s",
        rate["ours"],
        {contender: rate[contender] for contender in ("torch", "upstream")},
        {contender: seconds[contender] / seconds["ours"] for contender in ("torch", "upstream")},
        wanted,
        chosen,
    )


def text(choice: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in choice.items())


def results(only: str = "") -> list[Result]:
    import torch

    target, results = device(), []
    for case in cases(target.warp_size):
        if only in case[0]:
            results.append(run(*case, target))
            torch.cuda.empty_cache()
    return results


def main() -> int:
    chosen: Optional[Any] = parse_arguments(__doc__)
    return write(results(chosen.only), chosen.json)


if __name__ == "__main__":
    raise SystemExit(main())
