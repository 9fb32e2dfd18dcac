"""Operators of PyTorch for the rest of a transformer's block: layer norm, SwiGLU and rotary embedding
with gradients, top-k, rows as 8-bit numbers. See docs/torch.md."""

from typing import Any

import torch

import gluon_core as gluon
from tests.kernels.cases import rotary as turning
from tests.kernels.cases import row_norm, row_quantize, row_topk_bitonic, rows
from tests.kernels.cases import row_topk_radix as topk_form
from tests.kernels.cases.gemm_ops import ArraysLike, run
from tests.kernels.cases.row_ops import LONGEST, flat, gradients_of_norm, launch

PIECE = 32768  # columns that a program sorts


def sizes(x):
    return {"rows": x.shape[0], "columns": x.shape[1], "stride": x.shape[1]}


# -- layer norm -----------------------------------------------------------------------------------


@gluon.torch.op(
    "gluon_examples::layer_norm_backward",
    shape=lambda grad, x, weight, mean, scale: [x.shape, *[(weight.shape, weight.dtype)] * 2],
)
def layer_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of `x`, of the weight and of the bias."""
    return gradients_of_norm(grad, x, weight, mean, scale)


def keep_for_norm(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2], *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def norm_gradients(ctx, grad, *_):
    return (*layer_norm_backward(grad, *ctx.saved_tensors), None)


@gluon.torch.op("gluon_examples::layer_norm", backward=norm_gradients, setup_context=keep_for_norm)
def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the norm along the last dimension, and each row's mean and scale."""
    src = flat(x)
    out = torch.empty_like(src)
    mean, scale = (torch.empty(src.shape[:1], device=x.device) for _ in range(2))
    operands = (src, weight, bias, out, None, None, mean, scale, *src.shape, src.shape[1], epsilon)
    launch(row_norm.norm_wide, row_norm.norm, src, *operands, CENTRED=True)
    return out.reshape(x.shape), mean, scale


# -- SwiGLU ---------------------------------------------------------------------------------------


@gluon.torch.op("gluon_examples::swiglu_backward", shape=lambda grad, gate, up: [gate.shape] * 2)
def swiglu_backward(
    grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = {name: flat(x) for name, x in (("grad", grad), ("gate", gate), ("up", up))}
    tensors |= {f"d_{name}": torch.empty_like(tensors[name]) for name in ("gate", "up")}
    run(rows.MORE[0], {**tensors, **sizes(tensors["gate"])}, columns=gate.shape[-1])
    return tensors["d_gate"].reshape(gate.shape), tensors["d_up"].reshape(up.shape)


def keep_both(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


@gluon.torch.op(
    "gluon_examples::swiglu",
    shape=lambda gate, up: gate.shape,
    backward=lambda ctx, grad: swiglu_backward(grad, *ctx.saved_tensors),
    setup_context=keep_both,
)
def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up."""
    gates = flat(gate)
    args = {"gate": gates, "up": flat(up), "dst": torch.empty_like(gates), **sizes(gates)}
    return run(rows.EXAMPLES[0], args, columns=gates.shape[1]).reshape(gate.shape)


# -- rotary embedding -----------------------------------------------------------------------------


def keep_angles(ctx, inputs, output):
    ctx.save_for_backward(*inputs[1:3])
    ctx.inverse = inputs[3]


def turned_back(ctx, grad):
    return rotary(grad, *ctx.saved_tensors, not ctx.inverse), None, None, None


@gluon.torch.op(
    "gluon_examples::rotary",
    shape=lambda x, cosines, sines, inverse: x.shape,
    backward=turned_back,
    setup_context=keep_angles,
)
def rotary(
    x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, inverse: bool
) -> torch.Tensor:
    """Rotate halves of heads [batch, length, heads, width] by the angles of their position, [length,
    width / 2]."""
    length, heads, width = x.shape[1:]
    src = x.contiguous().reshape(-1, heads, width)
    args = {"src": src, "cosines": cosines, "sines": sines, "dst": torch.empty_like(src)}
    args |= {"length": length, "heads": heads, "row_stride": heads * width}
    half, warps = max(1, 1 << (width // 2 - 1).bit_length()), 4
    rotated = run(
        turning.EXAMPLES[0], args, half=half, heads=heads, num_warps=warps, inverse=inverse
    )
    return rotated.reshape(x.shape)


# -- without gradients ----------------------------------------------------------------------------


@gluon.torch.op(
    "gluon_examples::top_k",
    shape=lambda x, count: [
        (*x.shape[:-1], count),
        ((*x.shape[:-1], count), torch.int32),
    ],
)
def top_k(x: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest of each row, descending, and their columns: of equal ones the first; floats of 16 or 32
    bits. Up to 8 of them have a zero as 0, whatever its sign."""
    if x.dtype not in FEW:
        raise TypeError(f"x must be float16, bfloat16 or float32, got {x.dtype}")
    if not 0 < count <= x.shape[-1]:
        raise ValueError(f"count must be 1 to {x.shape[-1]}, the length of a row, got {count}")
    src, new = flat(x), ArraysLike(x)
    columns, name = src.shape[1], str(x.dtype).removeprefix("torch.")
    if count <= 8 and columns <= PIECE:
        args = row_topk_bitonic.arguments(FixedInput(src), False, tuple(src.shape), name, count)
        top = run(FEW[x.dtype], args, columns=columns), args["indices"]
        return tuple(part.reshape(*x.shape[:-1], count) for part in top)
    args = topk_form.arguments(FixedInput(src), False, tuple(src.shape), name, count)
    pieces = gluon.cdiv(columns, PIECE)
    first = topk_form.between(args, pieces, new) if pieces > 1 else None
    config = topk_form.config_of(8 * x.element_size(), 32)
    top = topk_form.top_k(args, config, first)
    return tuple(part.reshape(*x.shape[:-1], count) for part in top)


class FixedInput(ArraysLike):
    """`ArraysLike` that returns a tensor of yours in place of random numbers."""

    def __init__(self, tensor):
        super().__init__(tensor)
        self.tensor = tensor

    def random(self, shape, dtype):
        return self.tensor


FEW = {torch.bfloat16: row_topk_bitonic.EXAMPLES[0], torch.float32: row_topk_bitonic.MORE[0]}
FEW[torch.float16] = FEW[torch.bfloat16]
QUANTIZED = {torch.int8: (row_quantize.EXAMPLES[0], row_quantize.MORE[0])}
QUANTIZED[torch.float8_e4m3fn] = (row_quantize.MORE[1], row_quantize.MORE[2])


@gluon.torch.op(
    "gluon_examples::quantize_rows",
    shape=lambda x, dtype: [(x.shape, dtype), (x.shape[:-1], torch.float32)],
)
def quantize_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` as int8 or float8_e4m3fn, and the scale of each row."""
    src = flat(x)
    args: dict[str, Any] = {"src": src, "dst": torch.empty_like(src, dtype=dtype)}
    args |= {"scales": torch.empty(src.shape[:1], device=x.device), **sizes(src)}
    example = QUANTIZED[dtype][src.shape[1] > LONGEST]
    out = run(example, args, columns=src.shape[1])
    return out.reshape(x.shape), args["scales"].reshape(x.shape[:-1])


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"  # there, the simulator runs kernels
    gate, up = (torch.randn(5, 300, device=device, requires_grad=True) for _ in range(2))
    gradients = torch.autograd.grad(swiglu(gate, up).sum(), (gate, up))
    wanted = torch.autograd.grad((torch.nn.functional.silu(gate) * up).sum(), (gate, up))
    torch.testing.assert_close(gradients, wanted)
    print("gradients are torch's")
