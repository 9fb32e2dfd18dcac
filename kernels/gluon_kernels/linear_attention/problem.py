"""The cases of linear attention, for tests and benchmarks."""

from __future__ import annotations

import importlib
import random
from dataclasses import replace
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from gluon_kernels.linear_attention.ops import gated_delta_rule, gated_linear_attention, kda
from gluon_kernels.linear_attention.ssd import ssd
from gluon_kernels.problem import Problem, Shape

__all__ = [
    "DELTA",
    "DELTA_GRADIENTS",
    "KDA",
    "KDA_GRADIENTS",
    "LINEAR",
    "LINEAR_GRADIENTS",
    "PROBLEMS",
    "SSD",
    "SSD_GRADIENTS",
    "chunked",
    "chunked_by_channel",
    "recurrence",
    "scanned",
]


def recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Optional[Tensor] = None,
    scale: Optional[float] = None,
    initial_state: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """Return the results and final states token by token, in float64 on a CPU, else float32."""
    wide = torch.float64 if v.device.type == "cpu" else torch.float32
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    shared = v.shape[2] // q.shape[2]
    q, k = (x.to(wide).repeat_interleave(shared, 2) for x in (q, k))
    v, decay = v.to(wide), g.to(wide).exp()
    shape = (v.shape[0], v.shape[2], k.shape[3], v.shape[3])
    state = v.new_zeros(shape) if initial_state is None else initial_state.to(wide)
    results = []
    for t in range(v.shape[1]):
        now = decay[:, t]
        state = state * (now[..., None, None] if now.ndim == 2 else now[..., None])
        value = v[:, t]
        if beta is not None:
            value = value - (state * k[:, t, :, :, None]).sum(-2)
            value = value * beta[:, t, :, None].to(wide)
        state = state + k[:, t, :, :, None] * value[:, :, None, :]
        results.append(scale * (state * q[:, t, :, :, None]).sum(-2))
    return torch.stack(results, 1), state


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Optional[Tensor] = None,
    scale: Optional[float] = None,
    initial_state: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """Return what `recurrence` returns, by chunks of 64 tokens: a thousand products instead of many thousand steps."""
    wide = torch.float64 if v.device.type == "cpu" else torch.float32
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    length, shared = v.shape[1], v.shape[2] // q.shape[2]
    more = -length % 64

    def parts(x: Tensor) -> Tensor:  # [chunks, batch, heads, 64, width]
        x = F.pad(x.to(wide), (0, 0, 0, 0, 0, more)).unflatten(1, (-1, 64))
        return x.permute(1, 0, 3, 2, 4)

    q, k = (parts(x.repeat_interleave(shared, 2)) for x in (q, k))
    v, decay = parts(v), parts(g[..., None])[..., 0].cumsum(-1)
    ratio = (decay[..., :, None] - decay[..., None, :]).tril().exp().tril()
    weights = scale * (q @ k.mT) * ratio
    identity = torch.eye(64, dtype=wide, device=v.device)
    inverses = None
    if beta is not None:
        rates = parts(beta[..., None])
        lower = (rates * (k @ k.mT) * ratio).tril(-1)
        inverses = torch.linalg.solve_triangular(identity + lower, identity, upper=False)
        inverses = inverses * rates.mT
    shape = (*v.shape[1:3], k.shape[4], v.shape[4])
    state = v.new_zeros(shape) if initial_state is None else initial_state.to(wide)
    results = []
    for i in range(v.shape[0]):
        from_first = decay[i, ..., None].exp()
        to_last = (decay[i, ..., -1:] - decay[i]).exp()[..., None]
        value = v[i]
        if inverses is not None:
            value = inverses[i] @ (value - from_first * (k[i] @ state))
        results.append(scale * from_first * (q[i] @ state) + weights[i] @ value)
        state = from_first[..., -1:, :] * state + k[i].mT @ (to_last * value)
    result = torch.stack(results, 2).flatten(2, 3)[:, :, :length].transpose(1, 2)
    return result, state


def chunked_by_channel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: Optional[float] = None,
    initial_state: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """Return what `recurrence` returns with a decay for each channel, by chunks of 16 tokens and differences of exponents."""
    wide = torch.float64 if v.device.type == "cpu" else torch.float32
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    length, shared, size = v.shape[1], v.shape[2] // q.shape[2], 16

    def parts(x: Tensor) -> Tensor:  # [chunks, batch, heads, size, width]
        x = F.pad(x.to(wide), (0, 0, 0, 0, 0, -length % size)).unflatten(1, (-1, size))
        return x.permute(1, 0, 3, 2, 4)

    q, k = (parts(x.repeat_interleave(shared, 2)) for x in (q, k))
    v, decay, rates = parts(v), parts(g).cumsum(-2), parts(beta[..., None])
    identity = torch.eye(size, dtype=wide, device=v.device)
    shape = (*v.shape[1:3], k.shape[4], v.shape[4])
    state = v.new_zeros(shape) if initial_state is None else initial_state.to(wide)
    results = []
    below = torch.ones(size, size, device=v.device).tril().bool()[..., None]
    for i in range(v.shape[0]):
        away = decay[i][..., :, None, :] - decay[i][..., None, :, :]
        ratio = torch.where(below, away, -torch.inf).exp()
        weights = scale * (q[i][..., :, None, :] * k[i][..., None, :, :] * ratio).sum(-1)
        lower = rates[i] * (k[i][..., :, None, :] * k[i][..., None, :, :] * ratio).sum(-1).tril(-1)
        from_first = decay[i].exp()
        value = rates[i] * (v[i] - (k[i] * from_first) @ state)
        value = torch.linalg.solve_triangular(identity + lower, value, upper=False)
        results.append(scale * (q[i] * from_first) @ state + weights @ value)
        to_last = (decay[i][..., -1:, :] - decay[i]).exp()
        state = from_first[..., -1, :, None] * state + (k[i] * to_last).mT @ value
    result = torch.stack(results, 2).flatten(2, 3)[:, :, :length].transpose(1, 2)
    return result, state


def _arguments(delta: bool, channels: bool = False) -> Any:
    def arguments(shape: Shape, device: Any) -> dict[str, Any]:
        batch, length, heads = shape["batch"], shape["length"], shape["heads"]
        of_keys = shape.get("heads of keys", heads)
        width, columns = shape["width"], shape.get("values", shape["width"])
        dtype = getattr(torch, shape.get("dtype", "bfloat16"))

        def drawn(*sizes: int) -> Tensor:
            return torch.randn(sizes, device=device, dtype=torch.float32)

        q, k = (F.normalize(drawn(batch, length, of_keys, width), dim=-1).to(dtype) for _ in "qk")
        result = {
            "q": q,
            "k": k,
            "v": drawn(batch, length, heads, columns).to(dtype),
            "g": F.logsigmoid(drawn(batch, length, heads, *([width] if channels else []))) / 16,
        }
        if delta:
            result["beta"] = drawn(batch, length, heads).sigmoid()
        if shape.get("state"):
            result["initial_state"] = drawn(batch, heads, width, columns)
        return result

    return arguments


def _with_state(function: Any) -> Any:
    def run(**arguments: Any) -> Any:
        return function(**arguments, return_state=True)

    return run


def _fla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Any = None
) -> Any:
    chunk = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    shared = v.shape[2] // q.shape[2]
    if shared > 1:
        q, k = (x.repeat_interleave(shared, 2) for x in (q, k))
    return chunk(q, k, v, g, beta, initial_state=initial_state, output_final_state=True)


def _fla_simple(q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Any = None) -> Any:
    chunk = importlib.import_module("fla.ops.simple_gla").chunk_simple_gla
    shared = v.shape[2] // q.shape[2]
    if shared > 1:
        q, k = (x.repeat_interleave(shared, 2) for x in (q, k))
    return chunk(q, k, v, g, initial_state=initial_state, output_final_state=True)


def _fla_kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Any = None
) -> Any:
    chunk = importlib.import_module("fla.ops.kda").chunk_kda
    shared = v.shape[2] // q.shape[2]
    if shared > 1:
        q, k = (x.repeat_interleave(shared, 2) for x in (q, k))
    return chunk(q, k, v, g, beta, initial_state=initial_state, output_final_state=True)


def _flops(delta: bool, times: float) -> Any:
    """Count the products of chunks of 64 tokens, without those of the inverse."""

    def flops(shape: Shape) -> float:
        width, columns = shape["width"], shape.get("values", shape["width"])
        tokens = shape["batch"] * shape["length"] * shape["heads"]
        pair = 64 * (width + columns) + 2 * width * columns
        rule = 64 * (width + columns) + width * columns if delta else 0
        return float(times * 2 * tokens * (pair + rule))

    return flops


def _bytes(times: float, channels: bool = False) -> Any:
    def moved(shape: Shape) -> float:
        tokens = shape["batch"] * shape["length"]
        heads, of_keys = shape["heads"], shape.get("heads of keys", shape["heads"])
        columns = shape.get("values", shape["width"])
        gates = 4 * heads * (1 + (shape["width"] if channels else 1))
        return float(times * tokens * (4 * of_keys * shape["width"] + 4 * heads * columns + gates))

    return moved


def _draw(delta: bool) -> Any:
    def draw(draw: random.Random) -> Shape:
        while True:
            batch, heads = draw.choice((1, 1, 2, 4, 8)), draw.choice((2, 4, 8, 16, 32))
            length = int(2 ** draw.uniform(9, 16))
            if 4096 <= batch * heads * length <= 2**20:
                break
        shared = draw.choice((1, 1, 2, 4))
        width = draw.choice((64, 128, 128))
        return {
            "batch": batch,
            "length": length,
            "heads": heads,
            "heads of keys": max(heads // shared, 1),
            "width": width,
            "values": width if delta else 64,
        }

    return draw


def _case(batch: int, length: int, heads: int, width: int, **more: Any) -> Shape:
    return {"batch": batch, "length": length, "heads": heads, "width": width, **more}


SMALL = (
    _case(1, 150, 2, 64, **{"heads of keys": 1, "state": True}),
    _case(2, 70, 1, 128, dtype="float16"),
    _case(1, 100, 2, 80, values=40, state=True),
)
NAMED = [
    _case(1, 65536, 8, 128, **{"heads of keys": 2}),
    _case(1, 65536, 32, 128, **{"heads of keys": 16}),
    _case(1, 32768, 16, 128),
    _case(4, 8192, 16, 128),
    _case(8, 4096, 32, 128, **{"heads of keys": 16}),
    _case(1, 8192, 32, 128, **{"heads of keys": 16}),
    _case(16, 2048, 16, 128),
    _case(4, 1024, 16, 64),
]


def _with_gradients(function: Any) -> Any:
    """Return the gradients of all tensors by the gradient `grad` of the result."""

    def run(grad: Tensor, **arguments: Any) -> Any:
        leaves = [x for x in arguments.values() if isinstance(x, Tensor)]
        out = function(**arguments)
        return torch.autograd.grad(out[0] if isinstance(out, tuple) else out, leaves, grad)

    return run


def _for_gradients(arguments: dict[str, Any], values: str) -> dict[str, Any]:
    grad = torch.randn_like(arguments[values])
    return {**{name: x.requires_grad_() for name, x in arguments.items()}, "grad": grad}


def _gradient_arguments(delta: bool, channels: bool = False) -> Any:
    return lambda shape, device: _for_gradients(_arguments(delta, channels)(shape, device), "v")


def _gradients_of(reference: Any, grad: Tensor, arguments: dict[str, Any]) -> Any:
    wide = torch.float64 if grad.device.type == "cpu" else torch.float32
    leaves = {name: x.detach().to(wide).requires_grad_() for name, x in arguments.items()}
    return torch.autograd.grad(reference(**leaves)[0], list(leaves.values()), grad.to(wide))


def _gradient_reference(grad: Tensor, **arguments: Any) -> Any:
    reference = chunked_by_channel if arguments["g"].ndim == 4 else chunked
    return _gradients_of(reference, grad, arguments)


def _scan_gradients(grad: Tensor, **arguments: Any) -> Any:
    return _gradients_of(scanned, grad, arguments)


def _problem(name: str, op: Any, delta: bool, rival: Any) -> Problem:
    return Problem(
        name=name,
        op=_with_state(op),
        arguments=_arguments(delta),
        reference=chunked,
        rivals={"fla": rival},
        draw=_draw(delta),
        flops=_flops(delta, 1),
        bytes=_bytes(1),
        tolerance=2e-2,
        small=SMALL,
        named=NAMED if delta else [{**shape, "values": 64} for shape in NAMED],
    )


DELTA = _problem("gated_delta_rule", gated_delta_rule, True, _fla)
LINEAR = _problem("gated_linear_attention", gated_linear_attention, False, _fla_simple)
DELTA_GRADIENTS = replace(
    DELTA,
    name="gated_delta_rule and gradients",
    op=_with_gradients(gated_delta_rule),
    arguments=_gradient_arguments(True),
    reference=_gradient_reference,
    rivals={"fla": _with_gradients(_fla)},
    flops=_flops(True, 3),
    bytes=_bytes(3),
)
LINEAR_GRADIENTS = replace(
    LINEAR,
    name="gated_linear_attention and gradients",
    op=_with_gradients(gated_linear_attention),
    arguments=_gradient_arguments(False),
    reference=_gradient_reference,
    rivals={"fla": _with_gradients(_fla_simple)},
    flops=_flops(False, 3),
    bytes=_bytes(3),
)
KDA = replace(
    DELTA,
    name="kda",
    op=_with_state(kda),
    arguments=_arguments(True, True),
    reference=chunked_by_channel,
    rivals={"fla": _fla_kda},
    bytes=_bytes(1, True),
)
KDA_GRADIENTS = replace(
    KDA,
    name="kda and gradients",
    op=_with_gradients(kda),
    arguments=_gradient_arguments(True, True),
    reference=_gradient_reference,
    rivals={"fla": _with_gradients(_fla_kda)},
    flops=_flops(True, 3),
    bytes=_bytes(3, True),
)


def _scan_arguments(shape: Shape, device: Any) -> dict[str, Any]:
    tokens, heads = (shape["batch"], shape["length"]), shape["heads"]
    dtype = getattr(torch, shape.get("dtype", "bfloat16"))

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device, dtype=torch.float32)

    b, c = (drawn(*tokens, shape["groups"], shape["width"]).to(dtype) for _ in "bc")
    return {
        "x": drawn(*tokens, heads, shape["values"]).to(dtype),
        "dt": drawn(*tokens, heads).to(dtype),
        "a": -1 - 15 * torch.rand(heads, device=device),
        "b": b,
        "c": c,
        "d": torch.ones(heads, device=device),
        "dt_bias": drawn(heads) - 4,
    }


def _scan(**arguments: Any) -> Any:
    return ssd(**arguments, dt_softplus=True, return_state=True)


def scanned(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, dt_bias: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return what `ssd` returns, by `chunked`."""
    wide = torch.float64 if x.device.type == "cpu" else torch.float32
    step = F.softplus(dt.to(wide) + dt_bias)
    out, state = chunked(c, b, x.to(wide) * step[..., None], step * a, scale=1.0)
    return out + x.to(wide) * d[:, None], state


def _mamba(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, dt_bias: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    module = importlib.import_module("mamba_ssm.ops.triton.ssd_combined")
    out, state = module.mamba_chunk_scan_combined(
        x, dt, a, b, c, 256, D=d, dt_bias=dt_bias, dt_softplus=True, return_final_states=True
    )
    return out, state.mT


def _draw_scan(draw: random.Random) -> Shape:
    while True:
        batch, heads = draw.choice((1, 1, 2, 4, 8)), draw.choice((8, 24, 32, 64, 80))
        length = int(2 ** draw.uniform(9, 16))
        if 8192 <= batch * heads * length <= 2**21:
            break
    groups = draw.choice((1, 1, 1, 8))
    return _case(batch, length, heads, draw.choice((64, 128, 128)), groups=groups, values=64)


SSD = Problem(
    name="ssd",
    op=_scan,
    arguments=_scan_arguments,
    reference=scanned,
    rivals={"mamba_ssm": _mamba},
    draw=_draw_scan,
    flops=_flops(False, 1),
    bytes=lambda shape: _bytes(1)({**shape, "heads of keys": shape["groups"]}),
    tolerance=2e-2,
    small=(_case(1, 100, 4, 32, groups=2, values=64), _case(1, 70, 3, 64, groups=1, values=40)),
    named=[
        _case(4, 4096, 32, 128, groups=1, values=64),
        _case(1, 65536, 24, 128, groups=1, values=64),
    ],
)
SSD_GRADIENTS = replace(
    SSD,
    name="ssd and gradients",
    op=_with_gradients(_scan),
    arguments=lambda shape, device: _for_gradients(_scan_arguments(shape, device), "x"),
    reference=_scan_gradients,
    rivals={"mamba_ssm": _with_gradients(_mamba)},
    flops=_flops(False, 3),
    bytes=lambda shape: _bytes(3)({**shape, "heads of keys": shape["groups"]}),
    tolerance=5e-2,  # those of gates are sums over all tokens, which cancel
)
PROBLEMS = (
    DELTA, LINEAR, KDA, SSD, DELTA_GRADIENTS, LINEAR_GRADIENTS, KDA_GRADIENTS, SSD_GRADIENTS,
)  # fmt: skip
