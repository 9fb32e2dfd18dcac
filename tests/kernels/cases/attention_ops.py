"""Attention on Hopper as an operator of PyTorch, with its gradients: one kernel that adds to those of
queries, or two that do not where torch.use_deterministic_algorithms asks for equal bits.

Heads are of 64 or 128 elements in bfloat16; sequences have any length. See docs/torch.md.
"""

import torch

import gluon_core as gluon
from tests.kernels.cases import attention_backward_atomic_hopper as adding
from tests.kernels.cases import attention_backward_deterministic_hopper as repeatable
from tests.kernels.cases import attention_hopper as forward


def flat(x):
    return x.contiguous().flatten(0, 1)


def without_atomics(args, causal):
    """The gradients, by two kernels that make two products more."""
    products = args["out"].float() * args["grad"].float()
    heads, length, _ = args["q"].shape
    rest = {"logsums": args["logsums"], "deltas": products.sum(-1)}
    inputs = {name: args[name] for name in ("q", "k", "v", "grad")}
    config = {"STAGES": 2, "CAUSAL": causal, "num_warps": 4}
    grid = (gluon.cdiv(length, 128), heads)
    for kernel, outs in (
        (repeatable.key_gradients, ("for_keys", "for_values")),
        (repeatable.query_gradients, ("for_queries",)),
    ):
        values = repeatable.operands({**inputs, **{out: args[out] for out in outs}, **rest}, config)
        kernel[grid](*values, **config)


@gluon.torch.op(
    "gluon_examples::attention_backward",
    shape=lambda grad, q, k, v, out, logsums, causal: [q.shape] * 3,
)
def attention_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    logsums: torch.Tensor,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    inputs = {"grad": grad, "q": q, "k": k, "v": v, "out": out, "logsums": logsums}
    args = {name: flat(x) for name, x in inputs.items()}
    gradients = {
        f"for_{name}": torch.empty_like(args["q"]) for name in ("queries", "keys", "values")
    }
    args.update(gradients)
    if torch.are_deterministic_algorithms_enabled():
        without_atomics(args, causal)
    else:
        for name, shape in adding.kept(args["q"].shape).items():
            args[name] = torch.empty(shape, dtype=torch.float32, device=q.device)
        adding.launch(args, causal)
    to_q, to_k, to_v = (x.reshape(q.shape) for x in gradients.values())
    return to_q, to_k, to_v


def keep(ctx, inputs, output):
    q, k, v, ctx.causal = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.mark_non_differentiable(output[1])


def backward(ctx, grad, _):
    return (*attention_backward(grad, *ctx.saved_tensors, ctx.causal), None)


@gluon.torch.op(
    "gluon_examples::attention",
    shape=lambda q, k, v, causal: [q.shape, (q.shape[:-1], torch.float32)],
    backward=backward,
    setup_context=keep,
)
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention of q, k and v, [batch, heads, length, width], and the logarithm (base 2) of each
    row's sum."""
    args = {name: flat(x) for name, x in (("q", q), ("k", k), ("v", v))}
    out = torch.empty_like(args["q"])
    logsums = torch.empty(out.shape[:2], dtype=torch.float32, device=q.device)
    args.update(out=out, logsums=logsums)
    config = forward.configure(causal, q.shape[-1])(32)
    run = forward.attention_hopper[forward.grid(args, config)]
    run(*forward.operands(args, config), **config)
    return out.reshape(q.shape), logsums.reshape(q.shape[:-1])


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"  # there, the simulator runs kernels
    tensors = (torch.randn(1, 2, 200, 64, device=device).bfloat16() for _ in "qkv")
    leaves = [x.requires_grad_() for x in tensors]
    gradients = torch.autograd.grad(attention(*leaves, True)[0].sum(), leaves)
    wide = [x.detach().float().requires_grad_() for x in leaves]
    other = torch.nn.functional.scaled_dot_product_attention(
        wide[0], wide[1], wide[2], is_causal=True
    )
    for mine, theirs in zip(gradients, torch.autograd.grad(other.sum(), wide)):
        torch.testing.assert_close(mine.float(), theirs, atol=2e-2, rtol=2e-2)
    print("gradients are torch's")
