"""Products of matrices as operators of PyTorch: plain ones with gradients, of 8-bit floats and of weights of
few bits, and the loss of a linear layer. Rows are multiples of 16 bytes. See docs/torch.md."""

from typing import Any

import torch

import gluon_core as gluon
from gluon_core.registry.load import registry
from tests.kernels.cases import fused_linear_cross_entropy as linear
from tests.kernels.cases import (
    matmul,
    matmul_batch_invariant,
    matmul_batched,
    matmul_fp8_hopper,
    matmul_pingpong_hopper,
    matmul_small_m_hopper,
    matmul_small_m_warp_specialized_hopper,
    matmul_split_k,
    matmul_stream_k,
    matmul_weight_only,
)
from tests.kernels.cases.matmul_cooperative_hopper import programs

cdiv = gluon.cdiv


class ArraysLike:
    """Allocate tensors on the device of another one; types by name."""

    def __init__(self, tensor):
        self.device = tensor.device

    def empty(self, shape, dtype="float32"):
        return torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)

    def integers(self, shape, low, high, dtype="int32"):
        return torch.zeros(shape, dtype=getattr(torch, dtype), device=self.device)


def run(example, args, **choices) -> Any:
    """Launch an example in the configuration that is measured, and return its result."""
    example.launch(args, example.configure(registry().target(None), True, **choices))
    return args[example.output]


# -- plain products, by their further operands ----------------------------------------------------


def of_tiles(args, config, parts):
    """Sums of so many parts of each tile, and how many came."""
    block = config["BLOCK_M"], config["BLOCK_N"]
    tiles = cdiv(args["M"], block[0]) * cdiv(args["N"], block[1])
    return (tiles, parts, *block), tiles


def of_programs(args, config):
    count = programs(args, 16)
    return (2 * count, config["BLOCK_M"], config["BLOCK_N"]), 2 * count


def of_splits(args, config):
    return of_tiles(args, config, config["SPLITS"])


def of_helpers(args, config):
    return of_tiles(args, config, max(config["PARTS"], 1))


# The portable example of a product, and its further operands.
PRODUCTS = {
    "matmul": (matmul, None),
    "matmul_stream_k": (matmul_stream_k, of_programs),
    "matmul_small_m": (matmul_split_k, of_splits),
    "matmul_batch_invariant": (
        matmul_batch_invariant,
        lambda args, c: of_tiles(args, c, cdiv(args["K"], c["CHUNK"])),
    ),
}

FEW_ROWS = 128


def for_sizes(name, args):
    """Return the example for a plain product, choices for its configuration, and its further operands. Hopper has
    its own: where there are tiles enough, groups of warps that take turns; where rows are few, transposed ones."""
    m, n, k = (args[x] for x in "MNK")
    (turns,) = matmul_pingpong_hopper.EXAMPLES
    if (
        args["a"].dtype in (torch.float16, torch.bfloat16)
        and min(m, n, k) > 0
        and n % 8 == k % 8 == 0
        and not turns.lacks(registry().target(None))
    ):
        processors = gluon.multiprocessors(args["a"]) or 132
        if name == "matmul" and cdiv(m, 128) * cdiv(n, 128) > processors:
            return turns, matmul_pingpong_hopper.chosen_for(m, n, processors), None
        if name == "matmul_small_m" and m <= FEW_ROWS:
            if m >= matmul_small_m_warp_specialized_hopper.FROM_ROWS:
                (example,) = matmul_small_m_warp_specialized_hopper.EXAMPLES
                choices = matmul_small_m_warp_specialized_hopper.chosen_for(m, n, k, processors)
                return example, choices, of_helpers
            (example,) = matmul_small_m_hopper.EXAMPLES
            return example, matmul_small_m_hopper.chosen_for(m, n, processors), of_splits
    file, scratch = PRODUCTS[name]
    return file.EXAMPLES[0], {}, scratch


def keep_both(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def products(name):
    """The operator `name`; its gradients are products, too."""

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        (m, k), n, new = a.shape, b.shape[1], ArraysLike(a)
        args = {"a": a.contiguous(), "b": b.contiguous(), "c": a.new_empty(m, n)}
        sizes = {"M": m, "N": n, "K": k}
        example, choices, scratch = for_sizes(name, {**args, **sizes})
        if scratch is not None:
            config = example.configure(registry().target(None), True, **choices)
            sums, counters = scratch({**args, **sizes}, config)
            args |= {"sums": new.empty(sums), "counters": new.integers((counters,), 0, 1)}
        return run(example, {**args, **sizes}, **choices)

    def gradients(ctx, grad):
        a, b = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return product(grad, b.mT) if needs[0] else None, product(a.mT, grad) if needs[1] else None

    product = gluon.torch.op(
        f"gluon_examples::{name}",
        shape=lambda a, b: (a.shape[0], b.shape[1]),
        backward=gradients,
        setup_context=keep_both,
    )(function)
    return product


plain = {name: products(name) for name in PRODUCTS}


def batched_gradients(ctx, grad):
    a, b = ctx.saved_tensors
    return bmm(grad, b.mT), bmm(a.mT, grad)


@gluon.torch.op(
    "gluon_examples::bmm",
    shape=lambda a, b: (*a.shape[:2], b.shape[2]),
    backward=batched_gradients,
    setup_context=keep_both,
)
def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply matrices side by side, [matrices, M, K] and [matrices, K, N]."""
    (count, m, k), n = a.shape, b.shape[2]
    args = {"a": a.contiguous(), "b": b.contiguous(), "c": a.new_empty(count, m, n)}
    return run(matmul_batched.EXAMPLES[0], {**args, "matrices": count, "M": m, "N": n, "K": k})


# -- of few bits ------------------------------------------------------------------------------------


@gluon.torch.op(
    "gluon_examples::matmul_fp8",
    shape=lambda a, b, a_scales, b_scales: ((a.shape[0], b.shape[0]), torch.bfloat16),
)
def matmul_fp8(
    a: torch.Tensor, b: torch.Tensor, a_scales: torch.Tensor, b_scales: torch.Tensor
) -> torch.Tensor:
    """Multiply float8_e4m3fn [M, K] and [N, K] to bfloat16, on Hopper. Scales, float32, are of rows, [M] and [N], or
    of blocks: [K / 128, M] and [N / 128, K / 128]."""
    (m, k), n = a.shape, b.shape[0]
    by_block, by_row = matmul_fp8_hopper.EXAMPLES
    if a_scales.ndim == 2 and m % 4:  # rows of 16 bytes
        a_scales = torch.nn.functional.pad(a_scales, (0, -m % 4))
    args = {"a": a, "b": b, "c": ArraysLike(a).empty((m, n), "bfloat16")}
    args = {name: x.contiguous() for name, x in args.items()}
    args |= {"a_scales": a_scales.contiguous(), "b_scales": b_scales.contiguous()}
    return run(by_block if a_scales.ndim == 2 else by_row, {**args, "M": m, "N": n, "K": k})


@gluon.torch.op(
    "gluon_examples::matmul_weight_only",
    shape=lambda a, weights, scales, format: (a.shape[0], weights.shape[0]),
)
def matmul_weight_only_op(
    a: torch.Tensor, weights: torch.Tensor, scales: torch.Tensor, format: str
) -> torch.Tensor:
    """bfloat16 [M, K] times weights of "int8", "int4" or "mxfp4", uint8 [N, bytes of K], with a scale for
    some along K."""
    (m, k), n, new = a.shape, weights.shape[0], ArraysLike(a)
    example = matmul_weight_only.example(format, k // scales.shape[1])
    args = {"a": a.contiguous(), "weights": weights.contiguous(), "scales": scales.contiguous()}
    sizes = {"M": m, "N": n, "K": k}
    config = example.configure(registry().target(None), True)
    sums, counters = of_tiles(sizes, config, config["SPLITS"])
    args |= {"c": a.new_empty(m, n), "sums": new.empty(sums)}
    return run(example, {**args, "counters": new.integers((counters,), 0, 1), **sizes})


# -- the loss of a linear layer -------------------------------------------------------------------


def loss_setup(x, w, labels):
    (example,) = linear.EXAMPLES
    config = example.configure(registry().target(None), True)
    (m, k), n, new = x.shape, w.shape[0], ArraysLike(x)
    args = {"x": x.contiguous(), "w": w.contiguous(), "labels": labels, "factors": None}
    args |= {"sums": new.empty((m, cdiv(n, config["BLOCK_N"]))), "hits": new.empty((m,))}
    return {**args, "M": m, "N": n, "K": k}, config, new


@gluon.torch.op(
    "gluon_examples::fused_linear_cross_entropy_backward",
    shape=lambda grad, x, w, labels, logsum, ignored: [x.shape, w.shape],
)
def fused_linear_cross_entropy_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    labels: torch.Tensor,
    logsum: torch.Tensor,
    ignored: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    more = -x.shape[0] % 8  # rows, which are columns of the left operand of `x`
    pad, factor = torch.nn.functional.pad, torch.where(labels == ignored, 0, grad).float()
    args, config, new = loss_setup(pad(x, (0, 0, 0, more)), w, pad(labels, (0, more)))
    logsum, factor = (pad(part, (0, more)) for part in (logsum, factor))
    to_x, to_w = linear.backward(args, config, new, logsum, factor)
    return to_x[: len(x)].contiguous(), to_w.to(w.dtype)


def keep_for_loss(ctx, inputs, output):
    *tensors, ctx.ignored = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.mark_non_differentiable(output[1])


def loss_gradients(ctx, grad, _):
    to_x, to_w = fused_linear_cross_entropy_backward(grad, *ctx.saved_tensors, ctx.ignored)
    return to_x, to_w, None, None


@gluon.torch.op(
    "gluon_examples::fused_linear_cross_entropy",
    shape=lambda x, w, labels, ignored: [(x.shape[:1], torch.float32)] * 2,
    backward=loss_gradients,
    setup_context=keep_for_loss,
)
def fused_linear_cross_entropy(
    x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, ignored: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of each row of `x @ w.T`, [rows, K] and [classes, K], and the logarithm of its sum."""
    args, config, new = loss_setup(x, w, labels)
    return linear.forward(args, config, new, ignored)


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"  # there, the simulator runs kernels
    a, b = (torch.randn(64, 64, device=device).bfloat16().requires_grad_() for _ in "ab")
    (gradient,) = torch.autograd.grad(plain["matmul"](a, b).sum(), [a])
    torch.testing.assert_close(
        gradient.float(), b.float().sum(1).expand(64, 64), atol=0.1, rtol=0.02
    )
    print("gradients are torch's")
