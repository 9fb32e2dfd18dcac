"""Products of rows with their expert's matrix as operators of PyTorch: rows in groups, with gradients, and rows
that stand anywhere. Rows are multiples of 16 bytes. See docs/torch.md."""

from typing import Optional

import torch

import gluon_core as gluon
from gluon_core.registry.load import registry
from tests.kernels.cases import (
    grouped_gemm,
    grouped_gemm_hopper,
    grouped_gemm_wgrad,
    grouped_gemm_wgrad_hopper,
    matmul_gather_scatter,
    matmul_gather_scatter_hopper,
)
from tests.kernels.cases.gemm_ops import run


def fitting(portable, hopper):
    """The example in roles where the target can run it."""
    example = hopper.EXAMPLES[0]
    return portable.EXAMPLES[0] if example.lacks(registry().target(None)) else example


def groups_of(counts):
    """For how many groups a kernel is compiled."""
    return max(16, 1 << (counts.shape[0] - 1).bit_length())


@gluon.torch.op(
    "gluon_examples::grouped_gemm_wgrad",
    shape=lambda a, b, starts, counts: (counts.shape[0], a.shape[1], b.shape[1]),
)
def grouped_weights(
    a: torch.Tensor, b: torch.Tensor, starts: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """Of each group its rows of `a`, turned, times its rows of `b`; zeros where it has none."""
    (rows, k), n = a.shape, b.shape[1]
    c = a.new_empty(len(counts), k, n)
    if rows == 0 or c.numel() == 0:
        return c.zero_()
    args = {"a": a.contiguous(), "b": b.contiguous(), "c": c, "starts": starts, "counts": counts}
    args |= {"groups": len(counts), "rows": rows, "N": n, "K": k}
    return run(fitting(grouped_gemm_wgrad, grouped_gemm_wgrad_hopper), args)


def keep_grouped(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def grouped_gradients(ctx, grad):
    a, b, *groups = ctx.saved_tensors
    to_a, to_b, *_ = ctx.needs_input_grad
    return (
        grouped(grad, b.mT, *groups) if to_a else None,
        grouped_weights(a, grad, *groups) if to_b else None,
        None,
        None,
    )


@gluon.torch.op(
    "gluon_examples::grouped_gemm",
    shape=lambda a, b, starts, counts: (a.shape[0], b.shape[2]),
    backward=grouped_gradients,
    setup_context=keep_grouped,
)
def grouped(
    a: torch.Tensor, b: torch.Tensor, starts: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """Rows of `a` from starts[i] on, counts[i] of them (int32), times b[i]; zeros where no group is."""
    rows, n = a.shape[0], b.shape[2]
    args = {"a": a.contiguous(), "c": a.new_zeros(rows, n), "starts": starts, "counts": counts}
    if args["c"].numel() == 0 or len(counts) == 0:
        return args["c"]
    args |= {"groups": len(counts), "rows": rows, "N": n, "K": a.shape[1]}
    example, choices = fitting(grouped_gemm, grouped_gemm_hopper), {}
    if b.mT.is_contiguous() and example.requires:  # as the gradients want it, without a copy
        choices["transposed"] = True
        b = b.mT
    return run(example, {**args, "b": b.contiguous()}, most=groups_of(counts), **choices)


@gluon.torch.op(
    "gluon_examples::matmul_gather_scatter",
    shape=lambda a, b, starts, counts, sources, targets, weights, rows: (rows, b.shape[2]),
)
def gathered(
    a: torch.Tensor,
    b: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    sources: Optional[torch.Tensor],
    targets: Optional[torch.Tensor],
    weights: Optional[torch.Tensor],
    rows: int,
) -> torch.Tensor:
    """The same for a list of rows: row i of it is read at sources[i] and goes to targets[i] of `rows`, times
    weights[i]; see `matmul_gather_scatter.py`."""
    n, k = b.shape[2], a.shape[1]
    args = {"a": a.contiguous(), "b": b.contiguous(), "c": a.new_zeros(rows, n)}
    args |= {"starts": starts, "counts": counts, "sources": sources, "targets": targets}
    args |= {"weights": weights, "groups": len(counts), "N": n, "K": k}
    example = fitting(matmul_gather_scatter, matmul_gather_scatter_hopper)
    return run(example, args, most=groups_of(counts))


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"  # there, the simulator runs kernels
    a, b = (
        torch.randn(s, device=device).bfloat16().requires_grad_() for s in ((70, 64), (2, 64, 64))
    )
    starts, counts = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, 9], [9, 61]))
    (gradient,) = torch.autograd.grad(grouped(a, b, starts, counts).sum(), [b])
    wanted = torch.stack([part.sum(0) for part in a.detach().float().split([9, 61])])
    torch.testing.assert_close(gradient.float()[:, :, 0], wanted, atol=0.1, rtol=0.02)
    print("gradients are torch's")
