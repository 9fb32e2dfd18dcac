"""Kernels over rows as operators of PyTorch, with gradients: softmax, RMS norm, cross entropy.

They take the last dimension for rows, and work under autograd and `torch.compile`. See docs/torch.md.
"""

from typing import Any

import torch

import gluon_core as gluon
from gluon_core.registry.load import registry
from tests.kernels.cases import row_cross_entropy, row_norm, row_norm_backward, row_softmax
from tests.kernels.cases.rows import parts, whole

LONGEST = 16384  # what registers hold


def launch(for_any, for_short, x, *arguments, **constants):
    """One kernel for rows that registers hold, one for any; the last of them has no other."""
    rows, columns = x.shape
    warp = registry().target(None).warp_size if x.is_cuda else 32
    if for_short is not None and columns <= LONGEST:
        config = whole(columns, warp)
        grid = (gluon.cdiv(rows, config["ROWS"]),)
        return gluon.torch.launch(for_short, grid, *arguments, **config, **constants)
    config = parts(warp)
    names = (*for_any.arg_names, "num_warps")
    config = {name: value for name, value in config.items() if name in names}
    return gluon.torch.launch(for_any, (rows,), *arguments, **config, **constants)


def flat(x):
    return x.contiguous().reshape(-1, x.shape[-1])


# -- softmax ----------------------------------------------------------------------------------------


@gluon.torch.op("gluon_examples::softmax_backward")
def softmax_backward(grad: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    g, y = flat(grad), flat(result)
    out = torch.empty_like(y)
    of_any, of_short = row_softmax.softmax_backward_wide, row_softmax.softmax_backward
    launch(of_any, of_short, y, g, y, out, *y.shape, y.shape[1])
    return out.reshape(result.shape)


def keep_result(ctx, inputs, output):
    ctx.save_for_backward(output)


def softmax_gradient(ctx, grad):
    return softmax_backward(grad, *ctx.saved_tensors)


@gluon.torch.op("gluon_examples::softmax", backward=softmax_gradient, setup_context=keep_result)
def softmax(x: torch.Tensor) -> torch.Tensor:
    """Along the last dimension."""
    src = flat(x)
    out = torch.empty_like(src)
    launch(row_softmax.softmax_wide, row_softmax.softmax, src, src, out, *src.shape, src.shape[1])
    return out.reshape(x.shape)


# -- RMS norm ---------------------------------------------------------------------------------------


def gradients_of_norm(grad, x, weight, mean, scale) -> Any:
    """Those of `x`, of the weight and of the bias, or None; `mean` is None for RMS norm."""
    g, src = flat(grad), flat(x)
    rows, columns = src.shape
    out = torch.empty_like(src)
    warp, centred = 32, mean is not None
    operands = (g, src, weight, mean, scale, out)
    if columns <= LONGEST:
        config = {**whole(columns, warp, rows=1), "CENTRED": centred}
        size = (min(rows, 264), columns)
        sums = [torch.empty(size, device=x.device) for _ in range(1 + centred)]
        kernel, outs = row_norm_backward.norm_backward, (sums[0], sums[1] if centred else None)
        sizes = (rows, columns, columns)
        gluon.torch.launch(kernel, (size[0],), *operands, *outs, *sizes, **config)
    else:
        kernel = row_norm_backward.norm_backward_wide
        launch(kernel, None, src, *operands, rows, columns, columns, CENTRED=centred)
        config = row_norm_backward.large_sums_config(warp, rows=16, num_warps=4)
        config["CENTRED"] = centred
        shares = gluon.cdiv(rows, config["SHARE"])
        grid, sums = (gluon.cdiv(columns, config["BLOCK"]), shares), []
        for of in (src, None)[: 1 + centred]:
            sums.append(torch.empty((shares, columns), device=x.device))
            kernel, operands = row_norm_backward.column_sums, (g, of, mean, scale, sums[-1])
            gluon.torch.launch(kernel, grid, *operands, rows, columns, columns, **config)
    of_weight, *of_bias = (part.sum(0).to(weight.dtype) for part in sums)
    return out.reshape(x.shape), of_weight, *(of_bias or [None])


@gluon.torch.op("gluon_examples::rms_norm_backward")
def rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `x` and of `weight`."""
    return gradients_of_norm(grad, x, weight, None, scale)[:2]


def keep_for_norm(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2], output[1])
    ctx.mark_non_differentiable(output[1])


def norm_gradient(ctx, grad, _):
    return (*rms_norm_backward(grad, *ctx.saved_tensors), None)


@gluon.torch.op("gluon_examples::rms_norm", backward=norm_gradient, setup_context=keep_for_norm)
def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm along the last dimension, and what each row was multiplied with."""
    src = flat(x)
    out = torch.empty_like(src)
    scale = torch.empty(src.shape[:1], dtype=torch.float32, device=x.device)
    operands = (src, weight, None, out, None, None, None, scale, *src.shape, src.shape[1], epsilon)
    launch(row_norm.norm_wide, row_norm.norm, src, *operands, CENTRED=False)
    return out.reshape(x.shape), scale


# -- cross entropy ----------------------------------------------------------------------------------


@gluon.torch.op("gluon_examples::cross_entropy_backward")
def cross_entropy_backward(
    grad: torch.Tensor, x: torch.Tensor, labels: torch.Tensor, logsum: torch.Tensor, ignored: int
) -> torch.Tensor:
    src = x.contiguous()
    rows, columns = src.shape
    out = torch.empty_like(src)
    block = min(2048, whole(columns, 32)["BLOCK"])
    grid = (rows, gluon.cdiv(columns, block))
    operands = (grad.contiguous(), src, labels, logsum, out, rows, columns, columns, ignored)
    kernel = row_cross_entropy.cross_entropy_backward
    gluon.torch.launch(kernel, grid, *operands, ROWS=1, BLOCK=block, num_warps=4)
    return out


def keep_for_loss(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2], output[1])
    ctx.ignored = inputs[2]
    ctx.mark_non_differentiable(output[1])


def loss_gradient(ctx, grad, _):
    return cross_entropy_backward(grad, *ctx.saved_tensors, ctx.ignored), None, None


@gluon.torch.op(
    "gluon_examples::cross_entropy", backward=loss_gradient, setup_context=keep_for_loss
)
def cross_entropy(
    x: torch.Tensor, labels: torch.Tensor, ignored: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each row of `x`, [rows, classes]: the loss, and the logarithm of the sum."""
    src = x.contiguous()
    loss, logsum = (torch.empty(src.shape[:1], device=x.device) for _ in range(2))
    operands = (src, labels, loss, logsum, *src.shape, src.shape[1], ignored)
    launch(row_cross_entropy.cross_entropy_wide, row_cross_entropy.cross_entropy, src, *operands)
    return loss, logsum


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"  # there, the simulator runs kernels
    x = torch.randn(4, 300, device=device, requires_grad=True)
    labels = torch.tensor([1, 299, 5, 7], device=device)
    loss, _ = cross_entropy(softmax(x), labels, -100)
    loss.sum().backward()
    again = x.detach().requires_grad_()
    torch.nn.functional.cross_entropy(again.softmax(1), labels, reduction="sum").backward()
    torch.testing.assert_close(x.grad, again.grad)
    print("gradients are torch's")
