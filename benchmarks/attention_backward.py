"""The gradients of attention on Hopper against those of cuDNN and torch's flash attention: 4 x 32 heads of
8192, bfloat16. Ours are one kernel that adds to the gradients of queries, with the two small ones before
and after it; and two kernels without atomics, without the sums `delta`. Errors are against float32."""

from __future__ import annotations

import math
import sys
from typing import Any

from common import Result, device, example_module, main
from row_kernels import in_turns

from gluon_core.plugin.targets import Target

SHAPE = (4, 32, 8192)
STAGES = (2, 3)


def exact(tensors: Any, causal: bool, head: int) -> Any:
    """Return the gradients of one head in float32, its result, and the logarithm (base 2) of its sums
    and its deltas."""
    import torch

    q, k, v, grad = (t.flatten(0, 1)[head].float() for t in tensors)
    scale = 1 / math.sqrt(q.shape[-1])
    score = q @ k.T * scale
    if causal:
        above = torch.ones_like(score, dtype=torch.bool).triu(1)
        score.masked_fill_(above, float("-inf"))
    logsum = score.logsumexp(1)
    p = (score - logsum[:, None]).exp()
    out = p @ v
    delta = (grad * out).sum(1)
    change = p * (grad @ v.T - delta[:, None])
    gradients = change @ k * scale, change.T @ q * scale, p.T @ grad
    return *gradients, out, logsum / math.log(2), delta


def measure(causal: bool, depth: int, target: Target) -> list[Result]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    module = example_module("attention_backward_deterministic_hopper")
    adding = example_module("attention_backward_atomic_hopper")
    tensors = [torch.randn(*SHAPE, depth, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    heads, length = SHAPE[0] * SHAPE[1], SHAPE[2]
    logsums, deltas = (torch.empty(heads, length, device="cuda") for _ in range(2))
    flat = dict(zip(("q", "k", "v", "grad"), (t.flatten(0, 1) for t in tensors)))
    results = torch.empty_like(flat["q"])
    for head in range(heads):
        *_, results[head], logsums[head], deltas[head] = exact(tensors, causal, head)
    names = ("for_queries", "for_keys", "for_values")
    gradients = {name: torch.full_like(flat["q"], float("nan")) for name in names}
    examples = {e.name: e for e in module.MORE}
    kind = f"{'causal' if causal else 'full'}, head {depth}"
    keys, queries = (examples[f"attention backward, {w}, {kind}"] for w in ("keys", "queries"))
    kept = {"logsums": logsums, "deltas": deltas}
    key_args = {
        **flat,
        "for_keys": gradients["for_keys"],
        "for_values": gradients["for_values"],
        **kept,
    }
    query_args = {**flat, "for_queries": gradients["for_queries"], **kept}
    runs = {}
    for stages in STAGES:
        for who, example, args in (("keys", keys, key_args), ("queries", queries, query_args)):
            try:
                run = example.launcher(args, example.configure(target, True, stages=stages))
                run()
                runs[who, stages] = run
            except Exception as error:
                print(f"{kind} {who} stages {stages}: {str(error)[:100]}", file=sys.stderr)
    wanted = dict(zip(names, exact(tensors, causal, heads - 1)))

    def error() -> float:
        """Return the largest error of the last head's gradients, and forget them."""
        distances = [
            (gradients[n][-1].float() - wanted[n]).norm() / wanted[n].norm() for n in names
        ]
        for tensor in gradients.values():
            tensor.fill_(float("nan"))
        return max(float(one) for one in distances)

    errors = {"two": error()}
    shapes = adding.kept((heads, length, depth)).items()
    room = {name: torch.empty(shape, device="cuda") for name, shape in shapes}
    arguments = {**flat, **gradients, "out": results, "logsums": logsums, **room}

    def one() -> None:
        adding.launch(arguments, causal)

    one()
    errors["one"] = error()
    times = in_turns(runs, 3, 2)
    flops = 2 * heads * length * length * depth // (2 if causal else 1)
    best = {}
    for who, products in (("keys", 4), ("queries", 3)):
        for stages in STAGES:
            if (who, stages) in times:
                rate = products * flops / times[who, stages] / 1e12
                print(f"{kind} {who} stages {stages}: {rate:.0f} TFLOP/s", file=sys.stderr)
        best[who] = min((k for k in times if k[0] == who), key=lambda k: times[k])

    def both() -> None:
        for key in best.values():
            runs[key]()

    contenders: dict[str, Any] = {"one": one, "two": both}
    leaves = [t.clone().requires_grad_() for t in tensors[:3]]
    for name, backend in (
        ("cuDNN", SDPBackend.CUDNN_ATTENTION),
        ("flash", SDPBackend.FLASH_ATTENTION),
    ):
        with sdpa_kernel([backend]):
            out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)

        def library(out: Any = out) -> Any:
            return torch.autograd.grad(out, leaves, tensors[3], retain_graph=True)

        contenders[name] = library
    seconds = rounds(contenders)
    rate = {who: 5 * flops / time / 1e12 for who, time in seconds.items()}
    ours = {form: rate.pop(form) for form in ("one", "two")}
    stages = ", ".join(f"{who}: stages {key[1]}" for who, key in best.items())
    forms = {"one": ("adding", "three kernels"), "two": ("without atomics", stages)}
    return [
        Result(
            f"attention backward, {kind}, 4x32x8192 bf16, {name}",
            "TFLOP/s",
            ours[form],
            rate,
            {who: ours[form] / other for who, other in rate.items()},
            {"cuDNN": (">=", 1.05)} if form == "one" else {},
            config,
            errors[form],
        )
        for form, (name, config) in forms.items()
    ]


def rounds(contenders: Any) -> dict[str, float]:
    """In turns, without graphs: autograd has none, and each takes milliseconds."""
    import statistics

    import torch

    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(6):
        for name, run in contenders.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) / 1e3)
    return {name: statistics.median(samples[1:]) for name, samples in times.items()}


def results(only: str = "") -> list[Result]:
    import torch

    target = device()
    results: list[Result] = []
    for depth in (64, 128):
        for causal in (False, True):
            if only in f"{'causal' if causal else 'full'} {depth}":
                results += measure(causal, depth, target)
                torch.cuda.empty_cache()
    return results


if __name__ == "__main__":
    raise SystemExit(main(results, __doc__))
