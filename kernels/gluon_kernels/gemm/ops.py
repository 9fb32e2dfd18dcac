"""`matmul` and `bmm` as operators of PyTorch: registration, gradients, and the plan of each call."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_kernels.checks import check_apart, check_devices, check_no_gradients, check_tensors
from gluon_kernels.eager import differentiable, direct, route
from gluon_kernels.gemm import portable
from gluon_kernels.gemm.call import Call, check_settings, checked
from gluon_kernels.plans import Plans, current_target

__all__ = ["bmm", "matmul"]


def _plan_of(call: Call, out: Optional[Tensor]) -> Callable[..., Any]:
    if call.empty:
        return _without_products(call)
    target = current_target()
    if target.has("nvidia.wgmma"):
        from gluon_kernels.gemm import launches

        if launches.takes(call):
            return launches.plan(call, out)
        return portable.plan(call, out)
    from gluon_kernels.gemm import vendors

    return vendors.plan(call, out, target) or portable.plan(call, out)


def _without_products(call: Call) -> Callable[..., Any]:
    """Return the plan of sums of nothing: zeros, and what the epilogue makes of them."""
    shape, dtype, activation = call.shape, call.out_dtype, call.activation

    def run(a: Tensor, b: Tensor, bias: Optional[Tensor], out: Optional[Tensor]) -> Tensor:
        result = torch.zeros(shape, dtype=torch.float32, device=a.device)
        if bias is not None:
            result = result + bias.float()
        result = activated(result, activation).to(dtype)
        return result if out is None else out.copy_(result)

    return run


def activated(x: Tensor, activation: Optional[str]) -> Tensor:
    """Apply an activation by torch."""
    functional = torch.nn.functional
    if activation is None:
        return x
    if activation.startswith("gelu"):
        return functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")
    return functional.relu(x) if activation == "relu" else functional.silu(x)


def _build(
    a: Tensor, b: Tensor, bias: Optional[Tensor], activation: Optional[str],
    out_dtype: Optional[torch.dtype], out: Optional[Tensor],
) -> Callable[..., Any]:  # fmt: skip
    call = checked("matmul", a, b, bias, activation, out_dtype, out)
    return _plan_of(call, out)


plans = Plans(_build, vectors=(2,))
is_plain, signature, is_compiling = (
    gluon.torch.is_plain,
    gluon.torch.signature,
    torch.compiler.is_compiling,
)
_increment_version: Callable[[tuple[Tensor, ...]], None] = torch._C._increment_version


def _fake(
    a: Tensor, b: Tensor, bias: Optional[Tensor] = None, activation: Optional[str] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> Tensor:  # fmt: skip
    call = checked("matmul", a, b, bias, activation, out_dtype)
    return a.new_empty(call.shape, dtype=call.out_dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, bias, ctx.activation, _ = inputs
    ctx.save_for_backward(a, b, bias)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Return the gradients of all arguments."""
    return (*_gradients_of(ctx, grad, ctx.activation), None, None)


def _gradients_of(ctx: Any, grad: Tensor, activation: Optional[str] = None) -> tuple[Any, ...]:
    """Return the gradients, which are products, too; what was before an activation is computed again."""
    a, b, bias = ctx.saved_tensors
    needs = ctx.needs_input_grad
    to_bias = bias is not None and needs[2]
    if activation is None and grad.dtype is a.dtype and is_plain(grad, a, b, bias):
        known_by = (signature(grad, a, b), needs[0], needs[1])
        run = gradient_plans.get(known_by)
        if run is None:
            run = gradient_plans.find(known_by, grad, a, b, needs[0], needs[1])
        return (*run(grad, a, b), _to_bias(grad, bias) if to_bias else None)
    if activation is not None:
        again = torch.is_grad_enabled()  # these gradients have gradients
        before = _product(a, b, bias, None, torch.float32)
        before = before if again else before.detach().requires_grad_()
        with torch.enable_grad():
            after = activated(before, activation)
        (grad,) = torch.autograd.grad(after, before, grad.float(), create_graph=again)
    own = grad.to(a.dtype)
    return (
        _product(own, b.mT) if needs[0] else None,
        _product(a.mT, own) if needs[1] else None,
        _to_bias(grad, bias) if to_bias else None,
    )


def _to_bias(grad: Tensor, bias: Tensor) -> Tensor:
    """Return the sum of all rows, added up in float32."""
    return grad.flatten(0, -2).sum(0, dtype=torch.float32).to(bias.dtype)


def _build_gradients(
    grad: Tensor, a: Tensor, b: Tensor, of_a: bool, of_b: bool
) -> Callable[..., tuple[Optional[Tensor], Optional[Tensor]]]:
    """Return `run(grad, a, b)`: the gradients of the wanted operands."""
    left = _plan_of(checked("matmul", grad, b.mT, None, None, None), None) if of_a else None
    right = _plan_of(checked("matmul", a.mT, grad, None, None, None), None) if of_b else None

    def run(grad: Tensor, a: Tensor, b: Tensor) -> tuple[Optional[Tensor], Optional[Tensor]]:
        return (
            None if left is None else left(grad, b.mT, None, None),
            None if right is None else right(a.mT, grad, None, None),
        )

    return run


gradient_plans = Plans(_build_gradients)


def _run(
    a: Tensor, b: Tensor, bias: Optional[Tensor] = None, activation: Optional[str] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> Tensor:  # fmt: skip
    known_by = (signature(a, b, bias), activation, out_dtype)
    result: Tensor = plans.find(known_by, a, b, bias, activation, out_dtype, None)(a, b, bias, None)
    return result


@gluon.torch.op(
    "gluon_kernels::matmul", fake=_fake, backward=_gradients, setup_context=_keep, vmap="one_by_one"
)
def _matmul(
    a: Tensor,
    b: Tensor,
    bias: Optional[Tensor] = None,
    activation: Optional[str] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> Tensor:
    return _run(a, b, bias, activation, out_dtype)


@gluon.torch.op("gluon_kernels::matmul_out", mutates_args=("out",))
def _matmul_out(
    a: Tensor, b: Tensor, bias: Optional[Tensor], activation: Optional[str], out: Tensor
) -> None:
    _run_into(a, b, bias, activation, out)


_call, _call_out = _matmul, _matmul_out.overload
_watched = differentiable(_run, _keep, _gradients, again=True)


def _forward(ctx: Any, a: Tensor, b: Tensor, bias: Optional[Tensor]) -> Tensor:
    ctx.to_save = (a, b, bias)
    return _run(a, b, bias)


_watched_alone = direct(_forward, _gradients_of, _gradients_of)


def _product(
    a: Tensor, b: Tensor, bias: Optional[Tensor] = None, activation: Optional[str] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> Tensor:  # fmt: skip
    """Multiply matrices, or as many by as many, by the shortest way that torch allows."""
    result: Tensor
    way = 0 if is_compiling() else route(a, b, bias)
    if way == 2 and activation is None and out_dtype is None:
        result = _watched_alone(a, b, bias)
    else:
        result = (_call, _run, _watched)[way](a, b, bias, activation, out_dtype)
    return result


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    bias: Optional[Tensor] = None,
    activation: Optional[str] = None,
    out: Optional[Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """Multiply matrices: `activation(a @ b + bias)`.

    Sums are float32, bias and activation are applied to them before rounding. Equal inputs give equal bits. Gradients flow
    to `a`, `b` and `bias`; under `torch.autocast` operands are cast as those of `torch.matmul` are.

    Args:
        a: [..., M, K] or [K], float16, bfloat16 or float32, of any strides.
        b: [..., K, N] or [K] of the same dtype, of any strides; dimensions in front of the matrices are broadcast.
        bias: [N], floating-point.
        activation: "relu", "silu", "gelu" or "gelu_tanh".
        out: the result is stored here, [..., M, N] of any strides; not for calls with gradients.
        out_dtype: of the result, float16, bfloat16 or float32; that of the operands by default.

    Returns:
        [..., M, N], without M where `a` is a vector and without N where `b` is one.

    Raises:
        ShapeError: sizes that do not fit each other.
        DtypeError: other dtypes.
        ArgumentError: an unknown activation, tensors on different devices, or an `out` that shares memory with an operand.
    """
    if activation is not None or out_dtype is not None:
        check_settings(activation, out_dtype)
    if not (is_compiling() or a is None or b is None):
        if out is not None:
            plain = is_plain(a, b, bias, out) and a.ndim == 2 and b.ndim == 2
            if plain and out_dtype in (None, out.dtype):
                return _run_into(a, b, bias, activation, out)
        else:
            way = route(a, b, bias)
            result: Tensor
            if way == 2 and activation is None and out_dtype is None and a.ndim == b.ndim == 2:
                result = _watched_alone(a, b, bias)
                return result
            if way and a.ndim == b.ndim == 2:
                result = (_run if way == 1 else _watched)(a, b, bias, activation, out_dtype)
                return result
            if way == 1 and b.ndim == 2 and a.ndim > 2:
                rows = _run(a.flatten(0, -2), b, bias, activation, out_dtype)
                return rows.view(*a.shape[:-1], b.shape[1])
    check_tensors("matmul", {"bias": bias, "out": out}, a=a, b=b)
    if not a.is_meta and torch.is_autocast_enabled(a.device.type):
        return _under_autocast(matmul, a, b, bias=bias, activation=activation, out=out, out_dtype=out_dtype)  # fmt: skip
    if a.ndim != 2 or b.ndim != 2:
        return _folded(a, b, bias, activation, out, out_dtype)
    if out is None:
        return _product(a, b, bias, activation, out_dtype)
    return _into(a, b, bias, activation, out, out_dtype)


def bmm(
    a: Tensor,
    b: Tensor,
    *,
    bias: Optional[Tensor] = None,
    activation: Optional[str] = None,
    out: Optional[Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """Multiply matrices side by side: [batch, M, K] by [batch, K, N]; see `matmul`.

    Raises:
        ShapeError: other than three dimensions, or sizes that do not fit each other.
        DtypeError, ArgumentError: as those of `matmul`.
    """
    if activation is not None or out_dtype is not None:
        check_settings(activation, out_dtype)
    if type(a) is not Tensor or type(b) is not Tensor:
        check_tensors("bmm", a=a, b=b)
    if a.ndim != 3 or b.ndim != 3:
        checked("bmm", a.unsqueeze(0) if a.ndim == 2 else a, b, bias, activation, out_dtype)
    if out is None and not is_compiling() and is_plain(a, b, bias):
        return _run(a, b, bias, activation, out_dtype)
    check_tensors("bmm", {"bias": bias, "out": out}, a=a, b=b)
    if not a.is_meta and torch.is_autocast_enabled(a.device.type):
        return _under_autocast(bmm, a, b, bias=bias, activation=activation, out=out, out_dtype=out_dtype)  # fmt: skip
    if out is None:
        return _product(a, b, bias, activation, out_dtype)
    return _into(a, b, bias, activation, out, out_dtype)


def _run_into(a: Tensor, b: Tensor, bias: Optional[Tensor], activation: Optional[str], out: Tensor) -> Tensor:  # fmt: skip
    """Store a product in `out`, a change that autograd notices."""
    check_apart(out, a=a, b=b)
    known_by = (signature(a, b, bias, out), activation)
    plans.find(known_by, a, b, bias, activation, out.dtype, out)(a, b, bias, out)
    _increment_version((out,))
    return out


def _into(
    a: Tensor, b: Tensor, bias: Optional[Tensor], activation: Optional[str], out: Tensor,
    out_dtype: Optional[torch.dtype],
) -> Tensor:  # fmt: skip
    if out_dtype is not None and out_dtype != out.dtype:
        checked("matmul", a, b, bias, activation, out_dtype, out)  # says which does not fit
    check_devices(a, out=out)
    check_no_gradients(a, b, bias, out)
    if not is_compiling() and is_plain(a, b, bias, out):
        _run_into(a, b, bias, activation, out)
    else:
        _call_out(a, b, bias, activation, out)
    return out


def _under_autocast(op: Callable[..., Tensor], a: Tensor, b: Tensor, **options: Any) -> Tensor:
    """Call `op` on operands that are cast, with autocast switched off."""
    kind = a.device.type
    dtype = torch.get_autocast_dtype(kind)
    if a.is_floating_point() and b.is_floating_point():
        a, b = a.to(dtype), b.to(dtype)
    if is_compiling():
        with torch.autocast(kind, enabled=False):
            return op(a, b, **options)
    torch.set_autocast_enabled(kind, False)  # the context takes as long as the rest of a call
    try:
        return op(a, b, **options)
    finally:
        torch.set_autocast_enabled(kind, True)


def _fronts(a: Tensor, b: Tensor) -> tuple[int, ...]:
    """Return the dimensions in front of the matrices of the result."""
    try:
        return tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    except RuntimeError:
        raise gluon.errors.ShapeError(
            "the batch dimensions do not broadcast",
            argument="b",
            expected=f"dimensions that broadcast with {list(a.shape[:-2])}",
            got=list(b.shape),
        ) from None


def _with_vectors(
    a: Tensor, b: Tensor, bias: Optional[Tensor], activation: Optional[str], out: Optional[Tensor],
    out_dtype: Optional[torch.dtype],
) -> Tensor:  # fmt: skip
    """Multiply where `a` is a row or `b` a column."""
    row, column = a.ndim == 1, b.ndim == 1
    if out is not None:
        wide = out.unsqueeze(-1) if column else out
        wide = wide.unsqueeze(-2) if row else wide
    result = matmul(
        a[None] if row else a, b[:, None] if column else b, bias=bias, activation=activation,
        out=None if out is None else wide, out_dtype=out_dtype,
    )  # fmt: skip
    if out is not None:
        return out
    result = result.squeeze(-1) if column else result
    return result.squeeze(-1 if column else -2) if row else result


def _folded(
    a: Tensor, b: Tensor, bias: Optional[Tensor], activation: Optional[str], out: Optional[Tensor],
    out_dtype: Optional[torch.dtype],
) -> Tensor:  # fmt: skip
    """Multiply tensors of other than two dimensions each, as `torch.matmul` does."""
    if a.ndim == 0 or b.ndim == 0:
        raise gluon.errors.ShapeError(
            "matmul multiplies matrices and vectors",
            argument="a, b",
            expected="[..., M, K] by [..., K, N]",
            got=f"{list(a.shape)} and {list(b.shape)}",
        )
    if a.ndim == 1 or b.ndim == 1:
        return _with_vectors(a, b, bias, activation, out, out_dtype)
    front = a.shape[:-2] if b.ndim == 2 else _fronts(a, b)
    if b.ndim > 2 and b.shape[:-2].numel() == 1:
        a, b = a.expand(*front, *a.shape[-2:]), b.reshape(b.shape[-2:])
    if b.ndim > 2:
        flat_a, flat_b = (x.expand(*front, *x.shape[-2:]).flatten(0, -3) for x in (a, b))
    else:
        flat_a, flat_b = a.flatten(0, -2), b
    wanted = (*front, a.shape[-2], b.shape[-1])
    if out is None:
        return _product(flat_a, flat_b, bias, activation, out_dtype).reshape(wanted)
    if tuple(out.shape) != wanted:
        raise gluon.errors.ShapeError(
            "out has the wrong shape",
            argument="out",
            expected=list(wanted),
            got=list(out.shape),
        )
    shape = (*flat_a.shape[:-1], b.shape[-1])
    try:
        flat = out.view(shape)
    except RuntimeError:  # its strides do not allow that
        flat = out.new_empty(shape)
    _into(flat_a, flat_b, bias, activation, flat, out_dtype)
    return out if flat.data_ptr() == out.data_ptr() else out.copy_(flat.view(wanted))
