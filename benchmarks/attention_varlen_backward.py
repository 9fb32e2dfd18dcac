"""Gradients of packed attention (bfloat16, 32768 tokens, 32 heads), in one kernel that adds and in two without
atomics, against cuDNN and torch's flash attention where all sequences are equally long. TFLOP/s count five
products. The error is how far both forms are apart."""

from __future__ import annotations

from typing import Any, Callable

from attention_varlen import EQUAL, MIXED
from common import Result, device, difference, example_module, main
from rivals import in_any_order

HEADS = 32
# name, width, lengths, heads that share keys, window
CASES = (
    ("causal, head 64", 64, EQUAL, 1, (None, 0)),
    ("causal, head 128", 128, EQUAL, 1, (None, 0)),
    ("causal, head 128, 4 share", 128, EQUAL, 4, (None, 0)),
    ("full, head 128, 2 share", 128, EQUAL, 2, (None, None)),
    ("mixed, causal, head 128, 4 share", 128, MIXED, 4, (None, 0)),
)
Runs = dict[str, Callable[[], Any]]


def libraries(leaves: Any, grad: Any, length: int, shared: int, causal: bool) -> Runs:
    """Theirs, of sequences side by side: [batch, heads, rows, width]."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def side_by_side(t: Any) -> Any:
        return t.detach().unflatten(0, (-1, length)).transpose(1, 2).contiguous()

    transposed_leaves = [side_by_side(t).requires_grad_() for t in leaves]
    back, rivals = side_by_side(grad), {}
    for name, kind in (
        ("cuDNN", SDPBackend.CUDNN_ATTENTION),
        ("torch's flash", SDPBackend.FLASH_ATTENTION),
    ):
        with sdpa_kernel([kind]):
            result = torch.nn.functional.scaled_dot_product_attention(
                *transposed_leaves, is_causal=causal, enable_gqa=shared > 1
            )

        def run(result: Any = result) -> Any:
            return torch.autograd.grad(result, transposed_leaves, back, retain_graph=True)

        rivals[name] = run
    return rivals


def measure(case: tuple[Any, ...]) -> list[Result]:
    import torch

    name, width, lengths, shared, window = case
    places = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    tokens = sum(lengths)
    shapes = [(tokens, HEADS, width), *[(tokens, HEADS // shared, width)] * 2]
    leaves = [torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in shapes]
    out, sums = example_module("serving_ops").attention_varlen(
        *leaves, places, places, *window, None
    )
    args = {**dict(zip("qkv", leaves)), "grad": torch.randn_like(leaves[0]), "out": out}
    args |= {"logsums": sums, "of_queries": places, "of_keys": places, "window": window}
    args |= {"cap": None}
    names = ("for_queries", "for_keys", "for_values")
    runs, results = {}, {}
    for form in ("one", "two"):
        file = f"attention_varlen_backward_{'atomic' if form == 'one' else 'deterministic'}_hopper"
        gradients = {n: torch.full_like(t, float("nan")) for n, t in zip(names, leaves)}
        arguments = {**args, **gradients}
        arguments |= {
            n: torch.empty(s, device="cuda")
            for n, s in example_module(file).kept(arguments).items()
        }
        runs[form] = lambda file=file, arguments=arguments: example_module(file).launch(arguments)
        runs[form]()
        results[form] = gradients
    apart = max(difference(results["one"][n], results["two"][n]) for n in names)
    if not apart < 2e-2:
        raise SystemExit(f"{name}: the two forms differ by {apart}")
    if len(set(lengths)) == 1:
        runs |= libraries(leaves, args["grad"], lengths[0], shared, window[1] == 0)
    pairs = sum(n * (n + 1) / 2 if window[1] == 0 else n * n for n in lengths)
    seconds = in_any_order(runs, 9, 2)
    rate = {who: 10 * HEADS * width * pairs / s / 1e12 for who, s in seconds.items()}
    ours = {form: rate.pop(form) for form in ("one", "two")}
    return [
        Result(
            f"gradients of varlen attention, {name}, {form} of ours",
            "TFLOP/s",
            ours[form],
            rate,
            {who: ours[form] / other for who, other in rate.items()},
            {"cuDNN": (">=", 1.05)} if form == "one" and rate else {},
            "",
            apart,
        )
        for form in ours
    ]


def results(only: str = "") -> list[Result]:
    import torch

    device()
    results = []
    for case in CASES:
        if only in case[0]:
            results += measure(case)
            torch.cuda.empty_cache()
    return results


if __name__ == "__main__":
    raise SystemExit(main(results, __doc__))
