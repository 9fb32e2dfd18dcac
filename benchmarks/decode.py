"""Attention of one new token against pages of keys and values, against a copy of as many bytes: 64
sequences of 8192 keys in pages of 16, 8 heads of 8 queries each, bfloat16. Both kernels are measured."""

from __future__ import annotations

import itertools
import sys
from typing import Any, Callable

from common import Result, device, example_module, main
from row_kernels import difference, in_turns

from gluon_core.errors import GluonError
from gluon_core.plugin.targets import Target
from gluon_report.example import Arrays

CASES = {
    "64 x 8192 keys, 8 heads of 8": (64, 8, 8, 128, 16, 8192),
    "8 x 32768 keys, 8 heads of 8": (8, 8, 8, 128, 16, 32768),
    "64 x 8192 keys, 1 head of 8": (64, 1, 8, 128, 16, 8192),
}
CHOICES = [
    {"block": block, "stages": stages, "num_warps": warps}
    for block, stages, warps in ((32, 2, 1), (32, 3, 1), (32, 4, 1), (64, 3, 2), (64, 2, 2))
]
SPLITS = (1, 2, 4, 8, 16)


def exact(args: Any) -> Any:
    """In float32, a sequence at a time."""
    import torch

    sequences, queries, width = args["q"].shape
    heads = args["heads"]
    partial = torch.empty((sequences, queries, width), device=args["q"].device)
    for i in range(sequences):
        k, v = (
            args[name][args["table"][i].long()].flatten(0, 1) for name in ("k_cache", "v_cache")
        )
        q = args["q"][i].float().reshape(heads, -1, width)
        score = torch.einsum("hsd,nhd->hsn", q, k.float()) * args["scale"]
        p = torch.softmax(score * 0.6931471805599453, -1)
        partial[i] = torch.einsum("hsn,nhd->hsd", p, v.float()).reshape(queries, width)
    return partial


def launcher(module: Any, args: Any, config: Any, out: Any) -> Callable[[], Any]:
    """Return a function that launches both kernels."""
    first = module.paged_attention[module.grid(args, config)]
    second = module.combine[(args["logsums"].shape[0],)]
    fixed = (args["parts"], args["logsums"], out, config["D"], config["SPLITS"])

    def run() -> None:
        first(*args.values(), **config)
        second(*fixed, num_warps=1)

    return run


def measure(name: str, shape: tuple[int, ...], target: Target) -> Result:
    import torch

    module = example_module("attention_paged")
    base = module.arguments(Arrays(target), True, shape)
    wanted, out = exact(base), torch.empty_like(base["q"])
    runs, errors = {}, {}
    for choice, splits in itertools.product(CHOICES, SPLITS):
        if not 400 <= shape[0] * shape[1] * splits <= 6000:
            continue
        parts = torch.empty((shape[0] * shape[1] * shape[2], splits, shape[3]), device="cuda")
        args = {**base, "parts": parts, "logsums": parts.new_empty(parts.shape[:2])}
        config = module.large_config(target.warp_size, splits=splits, **choice)
        text = ", ".join(f"{k} {v}" for k, v in {**choice, "splits": splits}.items())
        run = launcher(module, args, config, out)
        try:
            run()
        except GluonError as error:
            print(f"{name} {text}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        errors[text] = difference(out, wanted)
        if errors[text] <= 1e-2:
            runs[text] = run
        else:
            print(f"WRONG {name} {text}: {errors[text]}", flush=True)
    moved = module.bytes_read(base)
    times = in_turns(runs, 3, 3)
    for text, time in times.items():
        print(f"{name} {text}: {moved / time / 1e12:.2f} TB/s", file=sys.stderr)
    best = min(times, key=lambda text: times[text])
    source = torch.empty(moved // 8, dtype=torch.float32, device="cuda")
    into = torch.empty_like(source)
    copies = {"copy": lambda: into.copy_(source), "kernel": lambda: torch.neg(source, out=into)}
    times = in_turns({"ours": runs[best], **copies})
    ours = moved / times["ours"] / 1e12
    copy = moved / min(times["copy"], times["kernel"]) / 1e12
    wants = {"copy": (">=", 0.85)}
    ratios = {"copy": ours / copy}
    return Result(
        f"decode, {name}", "TB/s", ours, {"copy": copy}, ratios, wants, best, errors[best]
    )


def results(only: str = "") -> list[Result]:
    import torch

    target, results = device(), []
    for name, shape in CASES.items():
        if only in name:
            results.append(measure(name, shape, target))
            torch.cuda.empty_cache()
    return results


if __name__ == "__main__":
    raise SystemExit(main(results, __doc__))
