"""Kernels as operators: elementwise, a norm with its gradient, a matrix product with its gradient."""

import torch

import gluon_core as gluon
from gluon_core import language as gl

BLOCK = 256


@gluon.jit
def scale_kernel(x, out, n, factor, BLOCK: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(out + i, gl.load(x + i, mask=i < n) * factor, mask=i < n)


@gluon.jit
def norm_kernel(x, weight, out, rstd, n, eps, BLOCK: gl.constexpr):
    row = gl.program_id(0)
    i = gl.arange(0, BLOCK, gl.BlockedLayout([1], [32], [4], [0]))
    values = gl.load(x + row * n + i, mask=i < n, other=0.0)
    wide = values.to(rstd.dtype.element_ty)
    scale = 1.0 / gl.sqrt(gl.sum(wide * wide, 0) / n + eps)
    gl.store(rstd + row, scale)
    result = wide * scale * gl.load(weight + i, mask=i < n, other=0.0)
    gl.store(out + row * n + i, result.to(values.dtype), mask=i < n)


@gluon.jit
def norm_backward_kernel(grad, x, weight, rstd, grad_x, grad_weight, n, BLOCK: gl.constexpr):
    """The gradient of a row of x, and what that row adds to the gradient of the weights."""
    row = gl.program_id(0)
    i = gl.arange(0, BLOCK, gl.BlockedLayout([1], [32], [4], [0]))
    offsets = row * n + i
    dtype: gl.constexpr = rstd.dtype.element_ty
    scale = gl.load(rstd + row)
    upper = gl.load(grad + offsets, mask=i < n, other=0.0).to(dtype)
    normal = gl.load(x + offsets, mask=i < n, other=0.0).to(dtype) * scale
    scaled = upper * gl.load(weight + i, mask=i < n, other=0.0).to(dtype)
    result = (scaled - normal * (gl.sum(scaled * normal, 0) / n)) * scale
    gl.store(grad_x + offsets, result.to(grad_x.dtype.element_ty), mask=i < n)
    gl.store(grad_weight + offsets, upper * normal, mask=i < n)


@gluon.jit
def matmul_kernel(a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(BM, BN, BK, dtype, dtype)
    a_in: gl.constexpr = gl.portable.blocked_layout([BM, BK], dtype)
    b_in: gl.constexpr = gl.portable.blocked_layout([BK, BN], dtype)
    rows = (gl.program_id(0) * BM + gl.arange(0, BM, gl.SliceLayout(1, a_in)))[:, None]
    columns = (gl.program_id(1) * BN + gl.arange(0, BN, gl.SliceLayout(0, b_in)))[None, :]
    inner_a = gl.arange(0, BK, gl.SliceLayout(0, a_in))[None, :]
    inner_b = gl.arange(0, BK, gl.SliceLayout(1, b_in))[:, None]
    acc = gl.zeros([BM, BN], gl.float32, layouts.accumulator)
    for k in range(0, K, BK):
        in_a = (rows < M) & (inner_a + k < K)
        in_b = (inner_b + k < K) & (columns < N)
        left = gl.load(a + rows * K + (inner_a + k), mask=in_a, other=0.0)
        right = gl.load(b + (inner_b + k) * N + columns, mask=in_b, other=0.0)
        left = gl.convert_layout(left, layouts.a)
        right = gl.convert_layout(right, layouts.b)
        acc = gl.portable.mma(left, right, acc)
    i = (gl.program_id(0) * BM + gl.arange(0, BM, gl.SliceLayout(1, layouts.accumulator)))[:, None]
    j = (gl.program_id(1) * BN + gl.arange(0, BN, gl.SliceLayout(0, layouts.accumulator)))[None, :]
    gl.store(c + i * N + j, acc.to(c.dtype.element_ty), mask=(i < M) & (j < N))


def blocks(n, size):
    return (n + size - 1) // size


# ---- elementwise: the function tells the shape itself -------------------------------------------


def _keep_factor(ctx, inputs, output):
    ctx.factor = inputs[1]


@gluon.torch.op(
    "gluon_tests::scale",
    backward=lambda ctx, grad: (scale(grad, ctx.factor), None),
    setup_context=_keep_factor,
    autocast=torch.bfloat16,
    vmap="one_by_one",
)
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    n = x.numel()
    gluon.torch.launch(scale_kernel, (blocks(n, BLOCK),), x, out, n, factor, BLOCK=BLOCK)
    return out


@gluon.torch.op("gluon_tests::scale_into", mutates_args=("out",), vmap="one_by_one")
def scale_into(x: torch.Tensor, out: torch.Tensor, factor: float) -> None:
    scale_kernel[(blocks(x.numel(), BLOCK),)](x, out, x.numel(), factor, BLOCK=BLOCK)


@gluon.torch.op("gluon_tests::scale_seen")
def scale_seen(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    gluon.torch.launch(scale_kernel, (blocks(n, BLOCK),), x, out, n, factor, BLOCK=BLOCK)
    return out


# ---- a norm: shapes of two results --------------------------------------------------------------


def _wide(dtype):
    return torch.float64 if dtype is torch.float64 else torch.float32


@gluon.torch.op(
    "gluon_tests::norm_backward",
    shape=lambda grad, x, weight, rstd: [x.shape, (x.shape, rstd.dtype)],
)
def norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, n = x.shape
    grad_x, grad_weight = torch.empty_like(x), torch.empty_like(x, dtype=rstd.dtype)
    norm_backward_kernel[(rows,)](
        grad.contiguous(), x, weight, rstd, grad_x, grad_weight, n, BLOCK=BLOCK
    )
    return grad_x, grad_weight


def _norm_grads(ctx, grad, _):
    x, weight, rstd = ctx.saved_tensors
    grad_x, grad_weight = norm_backward(grad, x, weight, rstd)
    return grad_x, grad_weight.sum(0).to(weight.dtype), None


def _keep_rows(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], inputs[1], output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(True)


@gluon.torch.op(
    "gluon_tests::norm",
    shape=lambda x, weight, eps: [x.shape, ((x.shape[0],), _wide(x.dtype))],
    backward=_norm_grads,
    setup_context=_keep_rows,
)
def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    rows, n = x.shape
    out = torch.empty_like(x)
    rstd = torch.empty(rows, dtype=_wide(x.dtype), device=x.device)
    norm_kernel[(rows,)](x, weight, out, rstd, n, eps, BLOCK=BLOCK)
    return out, rstd


def norm_reference(x, weight, eps):
    wide = x.to(_wide(x.dtype))
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight
    return scaled.to(x.dtype)


# ---- a matrix product: a fake of its own --------------------------------------------------------


def _keep_both(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _matmul_grads(ctx, grad):
    a, b = ctx.saved_tensors
    return matmul(grad, b.t()), matmul(a.t(), grad)


@gluon.torch.op(
    "gluon_tests::matmul",
    fake=lambda a, b: a.new_empty(a.shape[0], b.shape[1]),
    backward=_matmul_grads,
    setup_context=_keep_both,
)
def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    c = a.new_empty(m, n)
    matmul_kernel[(blocks(m, 64), blocks(n, 64))](
        a.contiguous(), b.contiguous(), c, m, n, k, BM=64, BN=64, BK=32
    )
    return c
