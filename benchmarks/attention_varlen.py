"""Measure attention of packed sequences (32 heads of 128, 8 of keys and values, bfloat16) against
torch: its attention of varlen sequences, cuDNN where all are equally long, FlexAttention elsewhere."""

from __future__ import annotations

import math
import sys
from typing import Any, Callable, Mapping, Optional

from common import Result, device, difference, example_module, in_turns, main
from products import right

from gluon_core.plugin.targets import Target
from gluon_report.example import Arrays

HEADS, SHARED, DEPTH = 32, 4, 128
EQUAL = [8192] * 4
MIXED = [8192, 300, 5000, 1, 2048, 700, 8192, 1200, 3000, 4135]
# name, lengths, window, cap
CASES = (
    ("equal, causal", EQUAL, (None, 0), None),
    ("mixed, causal", MIXED, (None, 0), None),
    ("equal, window of 1024", EQUAL, (1023, 0), None),
    ("equal, causal, capped", EQUAL, (None, 0), 30.0),
)


def exact(args: Mapping[str, Any], sequence: int, head: int) -> tuple[slice, Any]:
    """Return the tokens and the result of one head of a sequence, in float32."""
    import torch

    begin, end = args["of_queries"][sequence : sequence + 2].tolist()
    rows = slice(begin, end)
    q = args["q"][rows, head].float()
    k, v = (args[name][rows, head // SHARED].float() for name in "kv")
    score = q @ k.T / math.sqrt(DEPTH)
    if args["cap"]:
        score = args["cap"] * torch.tanh(score / args["cap"])
    place = torch.arange(end - begin, device=q.device)
    away = place[None, :] - place[:, None]
    left, right_side = args["window"]
    hidden = away > right_side
    if left is not None:
        hidden |= away < -left
    return rows, score.masked_fill(hidden, float("-inf")).softmax(1) @ v


def rivals(args: Mapping[str, Any], lengths: list[int]) -> dict[str, Callable[[], Any]]:
    """Return by name the rivals with results [tokens, heads, D]."""
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (args[name] for name in "qkv")
    left, _ = args["window"]
    rivals: dict[str, Callable[[], Any]] = {}
    if not args["cap"]:
        try:
            from torch.nn.attention.varlen import varlen_attn

            ends, most = args["of_queries"], max(lengths)
            wide = [t.repeat_interleave(SHARED, 1) for t in (k, v)]
            window = (-1 if left is None else left, 0)

            def varlen() -> Any:
                return varlen_attn(q, *wide, ends, ends, most, most, window_size=window)

            def older() -> Any:
                return varlen_attn(q, *wide, ends, ends, most, most, is_causal=True)

            rivals["torch's varlen"] = varlen
            if left is None:
                rivals["torch's varlen, older"] = older
        except ImportError as problem:
            print(problem, file=sys.stderr)
    if len(set(lengths)) > 1:
        return rivals
    batched = [t.unflatten(0, (len(lengths), -1)).transpose(1, 2).contiguous() for t in (q, k, v)]

    def packed(out: Any) -> Any:
        return out.transpose(1, 2).flatten(0, 1)

    if left is None and not args["cap"]:
        for name, kind in (
            ("cuDNN", SDPBackend.CUDNN_ATTENTION),
            ("torch's flash", SDPBackend.FLASH_ATTENTION),
        ):

            def library(kind: Any = kind) -> Any:
                with sdpa_kernel([kind]):
                    return packed(
                        F.scaled_dot_product_attention(*batched, is_causal=True, enable_gqa=True)
                    )

            rivals[name] = library
        return rivals
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length, cap = lengths[0], args["cap"]

    def visible(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i >= j) & (i - j <= left) if left is not None else i >= j

    def capped(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return cap * torch.tanh(score / cap)

    mask = create_block_mask(visible, None, None, length, length, device="cuda")
    compiled = torch.compile(flex_attention)
    rivals["FlexAttention"] = lambda: packed(
        compiled(*batched, score_mod=capped if cap else None, block_mask=mask, enable_gqa=True)
    )
    return rivals


def measure(case: tuple[Any, ...], target: Target) -> Optional[Result]:
    import torch

    name, lengths, window, cap = case
    module = example_module("attention_varlen_hopper")
    example = module.example(name, DEPTH, window, cap, SHARED)
    args = example.arguments(Arrays(target), True, lengths, HEADS)
    run = example.launcher(args, example.configure(target, True))
    args["out"].fill_(float("nan"))
    run()
    checks = [exact(args, s, h) for s, h in ((0, 0), (len(lengths) - 1, HEADS - 1))]
    places = [(rows, 0 if i == 0 else HEADS - 1) for i, (rows, _) in enumerate(checks)]
    error = max(
        difference(args["out"][rows, head], wanted)
        for (rows, head), (_, wanted) in zip(places, checks)
    )
    complete = bool(torch.isfinite(args["out"]).all())
    if not (error < 1e-2 and complete):
        print(f"WRONG {name}: {error}, {'all' if complete else 'not all'} written", flush=True)
        return None
    runs: dict[str, Callable[[], Any]] = {"ours": run}
    reference = args["out"].clone()
    for who, library in rivals(args, lengths).items():
        if right(f"{name} {who}", library, reference, 2e-2)[0]:
            runs[who] = library
    flops = example.flops(args)
    rate = {who: flops / s / 1e12 for who, s in in_turns(runs, target, 5, 5).items()}
    mine = rate.pop("ours")
    best = "best rival"
    ratios = {who: mine / value for who, value in rate.items()}
    if rate:
        ratios[best] = mine / max(rate.values())
    config = "block 128x128, stages 2"
    case_name = f"varlen attention, {name}, {sum(lengths)} tokens"
    wanted = {best: (">=", 1.0)} if rate else {}
    return Result(case_name, "TFLOP/s", mine, rate, ratios, wanted, config, error)


def results(only: str = "") -> list[Result]:
    import torch

    target, results = device(), []
    for case in CASES:
        if only in case[0]:
            line = measure(case, target)
            if line is not None:
                results.append(line)
            torch.cuda.empty_cache()
    return results


if __name__ == "__main__":
    raise SystemExit(main(results, __doc__))
