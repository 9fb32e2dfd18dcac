"""Operators of PyTorch for serving: varlen attention, with gradients, and of one new
token each against pages, with GQA and latent. See docs/torch.md."""

import math
from typing import Any, Optional

import torch

import gluon_core as gluon
from gluon_core.registry.load import registry
from tests.kernels.cases import attention_mla as latent_form
from tests.kernels.cases import attention_paged as paged_form
from tests.kernels.cases import attention_varlen_backward_atomic_hopper as adding
from tests.kernels.cases import attention_varlen_backward_deterministic_hopper as repeatable
from tests.kernels.cases import attention_varlen_hopper as packed_form
from tests.kernels.cases.gemm_ops import ArraysLike, run

LOG2E = math.log2(math.e)


def most_of(ends):
    """For how many sequences a kernel is compiled."""
    return max(32, 1 << (ends.shape[0] - 2).bit_length())


@gluon.torch.op(
    "gluon_examples::attention_varlen_backward",
    shape=lambda grad, q, k, v, *_: [q.shape, k.shape, v.shape],
)
def attention_varlen_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    of_queries: torch.Tensor,
    of_keys: torch.Tensor,
    out: torch.Tensor,
    logsums: torch.Tensor,
    left: Optional[int],
    right: Optional[int],
    cap: Optional[float],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of heads of 128 without a cap by one kernel that adds to the gradients of queries, unless
    torch.use_deterministic_algorithms asks for equal bits, which two kernels have."""
    width, inputs = q.shape[2], {"grad": grad, "q": q, "k": k, "v": v, "out": out}
    if width not in (64, 128) or v.shape[2] != width:
        raise ValueError(
            f"q and v: gradients of varlen attention are of heads of 64 or 128 elements, "
            f"queries, keys and values alike; got {width} and {v.shape[2]}. Detach q, k and v."
        )
    args: dict[str, Any] = {name: x.contiguous() for name, x in inputs.items()}
    outputs = {"for_queries": "q", "for_keys": "k", "for_values": "v"}
    # Zeros, for tokens that no sequence has.
    args |= {name: torch.zeros_like(args[of]) for name, of in outputs.items()}
    args |= {"logsums": logsums, "of_queries": of_queries, "of_keys": of_keys}
    args |= {"cap": cap, "window": (left, right)}
    # Where one kernel has registers for it; else two, which make two products more.
    at_once = width == 128 and cap is None and not torch.are_deterministic_algorithms_enabled()
    form = adding if at_once else repeatable
    args |= {name: ArraysLike(q).empty(shape) for name, shape in form.kept(args).items()}
    form.launch(args, most_of(of_queries))
    return args["for_queries"], args["for_keys"], args["for_values"]


def keep_varlen(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.settings = inputs[5:]
    ctx.mark_non_differentiable(output[1])


def varlen_backward(ctx, grad, _):
    gradients = attention_varlen_backward(grad, *ctx.saved_tensors, *ctx.settings)
    return (*gradients, *[None] * 5)


@gluon.torch.op(
    "gluon_examples::attention_varlen",
    shape=lambda q, k, v, of_queries, of_keys, left, right, cap: [
        (*q.shape[:2], v.shape[2]),
        (q.shape[:2], torch.float32),
    ],
    backward=varlen_backward,
    setup_context=keep_varlen,
)
def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    of_queries: torch.Tensor,
    of_keys: torch.Tensor,
    left: Optional[int],
    right: Optional[int],
    cap: Optional[float],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of [tokens, heads, width], sequence i from of_queries[i] to of_queries[i + 1] (int32) and its keys
    likewise, on Hopper: the result, and the logarithm (base 2) of each row's sum.

    A query sees `left` keys before its own place and `right` behind it; None is no bound, and a causal
    mask (None, 0). Scores stay below `cap`.
    """
    heads, depth, width = *q.shape[1:], v.shape[2]
    example = packed_form.example("op", depth, (left, right), cap, heads // k.shape[1], width)
    args = {name: x.contiguous() for name, x in (("q", q), ("k", k), ("v", v))}
    args |= {"out": q.new_empty(*q.shape[:2], width), "of_queries": of_queries, "of_keys": of_keys}
    logsums = ArraysLike(q).empty(q.shape[:2])
    args |= {"cap": cap, "window": (left, right), "logsums": logsums}
    out = run(example, args, most=most_of(of_queries))
    return out, logsums


@gluon.torch.op(
    "gluon_examples::attention_paged", shape=lambda q, k_cache, v_cache, table, lengths: q.shape
)
def attention_paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Of one token of each sequence, [sequences, heads, width], against caches [pages, page, heads of keys,
    width]; `table`, int32 [sequences, most pages], says which pages a sequence has."""
    (sequences, queries, width), (_, page, heads, _) = q.shape, k_cache.shape
    new, splits, shared = ArraysLike(q), 4, queries // heads
    args: dict[str, Any] = {"q": q.contiguous(), "k_cache": k_cache, "v_cache": v_cache}
    args |= {"table": table, "lengths": lengths}
    args |= {"parts": new.empty((sequences * queries, splits, width))}
    args |= {"logsums": new.empty((sequences * queries, splits)), "heads": heads}
    args |= {"table_stride": table.shape[1], "scale": LOG2E / math.sqrt(width)}
    config = paged_form.config(32, shared, width, page, splits=splits, num_warps=2)
    return paged_form.decode(args, config)


@gluon.torch.op(
    "gluon_examples::attention_latent",
    shape=lambda q, cache, table, lengths, latent, scale: (*q.shape[:2], latent),
)
def attention_latent(
    q: torch.Tensor,
    cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    latent: int,
    scale: float,
) -> torch.Tensor:
    """Latent attention of one token of each sequence: queries [sequences, heads, latent + turned] against
    [pages, page, latent + turned], whose first `latent` elements are the values; 32 turned ones with
    `latent` up to 64, else 64."""
    (sequences, heads, _), page, target = q.shape, cache.shape[1], registry().target(None)
    chunk = 1024
    most = gluon.cdiv(table.shape[1] * page, chunk)
    config = latent_form.config(
        target.warp_size,
        latent,
        page,
        chunk,
        **{"block": (16, 16), "stages": 2, **latent_form.choices(target)},
    )
    new = ArraysLike(q)
    args = {"q": q.contiguous(), "cache": cache, "table": table, "lengths": lengths}
    args |= {"parts": new.empty((sequences, heads, most, latent))}
    args |= {"logsums": new.empty((sequences, heads, most)), "heads": heads, "most": most}
    args |= {"table_stride": table.shape[1], "scale": scale * LOG2E}
    return latent_form.decode(args, config)


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"  # there, the simulator runs kernels
    q, cache = (torch.randn(2, 4, 2, 64, device=device).bfloat16() for _ in "qc")
    ends = {"dtype": torch.int32, "device": device}
    table = torch.tensor([[1], [0]], **ends)
    got = attention_paged(q[:, 0], cache, cache, table, torch.tensor([3, 4], **ends))
    for i, length in enumerate((3, 4)):
        kv = cache[1 - i, :length].transpose(0, 1).float()
        wanted = torch.nn.functional.scaled_dot_product_attention(q[i, 0, :, None].float(), kv, kv)
        torch.testing.assert_close(got[i].float(), wanted[:, 0], atol=2e-2, rtol=2e-2)
    print("attention is torch's")
