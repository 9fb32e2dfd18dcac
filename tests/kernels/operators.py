"""A case of each operator that `gluon_kernels` registers: its arguments, and where it has gradients a reference in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F

import gluon_kernels as kernels
from gluon_kernels.linear_attention.problem import recurrence
from gluon_kernels.quant.problem import restored

CHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)
OF_FP8 = CHECKS[1:3]  # the others compare operands of 8 bits, which torch does not do on a host


@dataclass(frozen=True)
class Case:
    """The arguments of an operator.

    Args:
        arguments: `f() -> arguments` of `torch.ops.gluon_kernels.<name>`.
        checks: of `torch.library.opcheck`.
    """

    arguments: Callable[[], tuple[Any, ...]]
    checks: tuple[str, ...] = CHECKS


@dataclass(frozen=True)
class Gradients:
    """A public function whose gradients are compared with those of a reference by differences.

    Args:
        call: `f(*inputs) -> result`.
        inputs: `f() -> tensors` that have gradients.
        reference: `f(*inputs) -> result` of float64 tensors, by torch.
        tolerance: the largest relative error of a derivative.
    """

    call: Callable[..., torch.Tensor]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    reference: Callable[..., torch.Tensor]
    tolerance: float = 2e-3


HALF = 3e-2  # the tolerance of 16-bit results


def half(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape) * scale).bfloat16()


def fp8(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(torch.float8_e4m3fn)


def ends(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


EXPERTS = torch.tensor([[0, 2], [1, 0], [2, 1], [0, -1], [1, 2]])
LABELS = torch.tensor([3, 0, -100, 8, 2])


def layer() -> tuple[torch.Tensor, ...]:
    return half(5, 16), torch.rand(5, 2), half(3, 16, 16, scale=0.25), half(3, 8, 16, scale=0.35)


def int4() -> tuple[torch.Tensor, torch.Tensor]:
    weight = (torch.arange(24 * 32).reshape(24, 32) * 37 % 256).to(torch.uint8)
    return weight, torch.linspace(0.01, 0.1, 48).reshape(24, 2)


def attention_arguments() -> tuple[torch.Tensor, ...]:
    return half(1, 2, 40, 32), half(1, 1, 40, 32), half(1, 1, 40, 32)


WINDOW = (None, None, 0.0)


def with_results(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    results = getattr(torch.ops.gluon_kernels, name)(*arguments)
    return results if isinstance(results, tuple) else (results,)


def attention_backward() -> tuple[Any, ...]:
    tensors = attention_arguments()
    arguments = (*tensors, True, 0.2, *WINDOW)
    return (half(1, 2, 40, 32), *tensors, *with_results("attention", arguments), True, 0.2, *WINDOW)


def varlen(*more: Any) -> tuple[Any, ...]:
    lists = (ends(0, 17, 40), ends(0, 17, 40))
    return half(40, 2, 32), half(40, 1, 32), half(40, 1, 32), *lists, True, 0.2, *WINDOW, *more


def varlen_backward() -> tuple[Any, ...]:
    q, k, v, of_queries, of_keys, *rest = varlen()
    results = with_results("attention_varlen", (q, k, v, of_queries, of_keys, *rest))
    return half(40, 2, 32), q, k, v, *results, of_queries, of_keys, *rest


def pages() -> tuple[torch.Tensor, torch.Tensor]:
    return ends(0, 1, 2, 3).reshape(2, 2), ends(20, 30)


def norm_backward() -> tuple[Any, ...]:
    x, weight = torch.randn(5, 24), torch.randn(24)
    _, _, statistics = with_results("norm", (x, weight, None, None, 1e-5, True, torch.float32))
    return torch.randn(5, 24), x, weight, statistics, True, [True, True]


def loss_backward() -> tuple[Any, ...]:
    x = torch.randn(5, 9)
    logsum = torch.logsumexp(x, 1)
    return torch.rand(5), x, LABELS, logsum, -100


def linear_attention() -> tuple[torch.Tensor, ...]:
    """Return queries, keys, values, decays and rates of 70 tokens: a chunk and a part of one."""
    q, k = (F.normalize(torch.randn(1, 70, 1, 16), dim=-1).bfloat16() for _ in "qk")
    v, g = half(1, 70, 2, 16), F.logsigmoid(torch.randn(1, 70, 2)) / 16
    return q, k, v, g, torch.rand(1, 70, 2)


def by_channel() -> tuple[torch.Tensor, ...]:
    """Return the same with a decay for each channel of the keys."""
    q, k, v, _, beta = linear_attention()
    return q, k, v, F.logsigmoid(torch.randn(1, 70, 2, 16)) / 16, beta


def scan_arguments() -> tuple[torch.Tensor, ...]:
    """Return `x`, `dt`, `a`, `b` and `c` of Mamba-2's scan."""
    b, c = (half(1, 70, 1, 16, scale=0.25) for _ in "bc")
    return half(1, 70, 2, 16), torch.rand(1, 70, 2), -torch.rand(2), b, c


def scan(x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:  # fmt: skip
    return recurrence(c, b, x * dt[..., None], dt * a, None, 1.0)[0]


OPERATORS: dict[str, Case] = {
    "matmul": Case(lambda: (half(24, 16).requires_grad_(), half(16, 40), half(40), "relu", torch.float32)),
    "matmul_out": Case(lambda: (half(24, 16), half(16, 40), None, None, torch.empty(24, 40).bfloat16())),
    "matmul_fp8": Case(lambda: (fp8(40, 160), fp8(24, 160).mT, torch.rand(40, 2), torch.rand(2, 1), torch.bfloat16, True), OF_FP8),
    "matmul_fp8_out": Case(lambda: (fp8(40, 64), fp8(24, 64).mT, torch.rand(1), torch.rand(1), False, torch.empty(40, 24).bfloat16()), OF_FP8),
    "linear_attention": Case(lambda: (*linear_attention(), None, 0.25)),
    "linear_attention_backward": Case(lambda: (half(1, 70, 2, 16), torch.randn(1, 2, 16, 16), *linear_attention(), None, 0.25)),
    "matmul_batch_invariant": Case(lambda: (half(24, 16).requires_grad_(), half(16, 40), torch.float32)),
    "linear": Case(lambda: (half(5, 64).requires_grad_(), *int4(), half(24), "silu", None)),
    "linear_out": Case(lambda: (half(5, 64), *int4(), None, None, torch.empty(5, 24).bfloat16())),
    "restore_weights": Case(lambda: (*int4(), torch.bfloat16, 64)),
    "grouped_matmul": Case(lambda: (half(70, 24).requires_grad_(), half(3, 24, 40), ends(10, 10, 70))),
    "grouped_matmul_out": Case(lambda: (half(70, 24), half(3, 24, 40), ends(10, 10, 70), torch.empty(70, 40).bfloat16())),
    "grouped_matmul_gradient": Case(lambda: (half(70, 24), half(70, 40), ends(10, 10, 70))),
    "moe": Case(lambda: (layer()[0].requires_grad_(), layer()[1], EXPERTS, *layer()[2:], "silu")),
    "moe_out": Case(lambda: (*layer()[:2], EXPERTS, *layer()[2:], "gelu", torch.empty(5, 16).bfloat16())),
    "linear_cross_entropy": Case(lambda: (torch.randn(5, 16).requires_grad_(), torch.randn(9, 16), LABELS, -100)),
    "linear_cross_entropy_gradient": Case(lambda: (torch.rand(5), torch.randn(5, 16), torch.randn(9, 16), LABELS, torch.rand(5) + 9, -100)),
    "quantize": Case(lambda: (torch.randn(2, 3, 140), torch.int8, "block")),
    "attention": Case(lambda: (*(x.requires_grad_() for x in attention_arguments()), True, 0.2, *WINDOW)),
    "attention_out": Case(lambda: (*attention_arguments(), True, 0.2, *WINDOW, half(1, 2, 40, 32))),
    "attention_backward": Case(attention_backward),
    "attention_varlen": Case(varlen),
    "attention_varlen_out": Case(lambda: varlen(half(40, 2, 32))),
    "attention_varlen_backward": Case(varlen_backward),
    "attention_decode": Case(lambda: (half(2, 4, 32), half(4, 16, 2, 32), half(4, 16, 2, 32), *pages(), 0.2)),
    "attention_fp8": Case(lambda: (fp8(1, 2, 40, 64), *(fp8(1, 1, 40, 64) for _ in "kv"), *(torch.rand(1, n) for n in (2, 1, 1)), True, 0.1, torch.bfloat16), OF_FP8[1:]),
    "mla_decode": Case(lambda: (half(2, 16, 96), half(4, 16, 96), *pages(), 64, 0.1)),
    "rotary": Case(lambda: (half(2, 5, 3, 16).requires_grad_(), torch.rand(5, 8), torch.rand(5, 8), False)),
    "softmax": Case(lambda: (torch.randn(5, 24).requires_grad_(), torch.float32)),
    "softmax_out": Case(lambda: (torch.randn(5, 24), torch.empty(5, 24))),
    "softmax_backward": Case(lambda: (torch.randn(5, 24), torch.randn(5, 24).softmax(1), torch.float32)),
    "norm": Case(lambda: (torch.randn(5, 24).requires_grad_(), torch.randn(24), torch.randn(24), None, 1e-5, True, torch.float32)),
    "norm_out": Case(lambda: (torch.randn(5, 24), torch.randn(24), None, None, 1e-5, False, torch.empty(5, 24))),
    "norm_backward": Case(norm_backward),
    "cross_entropy": Case(lambda: (torch.randn(5, 9).requires_grad_(), LABELS, -100, True)),
    "cross_entropy_backward": Case(loss_backward),
    "swiglu": Case(lambda: (torch.randn(5, 24).requires_grad_(), torch.randn(5, 24))),
    "swiglu_backward": Case(lambda: (torch.randn(5, 24), torch.randn(5, 24), torch.randn(5, 24))),
    "topk": Case(lambda: (torch.randn(5, 24).requires_grad_(), 3, True)),
    "cumsum": Case(lambda: (torch.randn(5, 24).requires_grad_(), torch.float32, False)),
}  # fmt: skip


def grouped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.cat([a[:10] @ b[0], a[10:30] @ b[1], a[30:] @ b[2]])


def moe(x: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:  # fmt: skip
    rows = []
    for token in range(len(x)):
        total = torch.zeros_like(x[0])
        for choice in range(EXPERTS.shape[1]):
            expert = int(EXPERTS[token, choice])
            if expert >= 0:
                gate, value = (x[token] @ gate_up[expert]).chunk(2)
                total = total + weights[token, choice] * ((F.silu(gate) * value) @ down[expert])
        rows.append(total)
    return torch.stack(rows)


def quantized(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    weight, scales = int4()
    return F.silu(x @ restored(weight, scales, torch.float64).mT + bias)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def attended_lists(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    parts = []
    for part in (slice(0, 17), slice(17, 40)):
        q_, k_, v_ = (x[part].transpose(0, 1)[None] for x in (q, k, v))
        parts.append(attended(q_, k_, v_)[0].transpose(0, 1))
    return torch.cat(parts)


def rotated(x: torch.Tensor) -> torch.Tensor:
    cos, sin = ANGLES.double().cos()[:, None], ANGLES.double().sin()[:, None]
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


ANGLES = torch.arange(40).reshape(5, 8) / 13

GRADIENTS: dict[str, Gradients] = {
    "matmul": Gradients(
        lambda a, b, bias: kernels.matmul(a, b, bias=bias, activation="gelu"),
        lambda: (torch.randn(24, 16), torch.randn(16, 40), torch.randn(40)),
        lambda a, b, bias: F.gelu(a @ b + bias),
    ),
    "bmm": Gradients(kernels.bmm, lambda: (torch.randn(2, 9, 16), torch.randn(2, 16, 20)), torch.bmm),
    "linear": Gradients(
        lambda x, bias: kernels.linear(x, int4()[0], bias, scales=int4()[1], activation="silu"),
        lambda: (half(5, 64), half(24)), quantized, HALF,
    ),
    "matmul_batch_invariant": Gradients(
        kernels.matmul_batch_invariant, lambda: (torch.randn(24, 16), torch.randn(16, 40)), torch.matmul
    ),
    "gated_delta_rule": Gradients(
        kernels.gated_delta_rule, linear_attention, lambda *x: recurrence(*x)[0], HALF
    ),
    "kda": Gradients(kernels.kda, by_channel, lambda *x: recurrence(*x)[0], HALF),
    "gated_linear_attention": Gradients(
        kernels.gated_linear_attention, lambda: linear_attention()[:4], lambda *x: recurrence(*x)[0], HALF
    ),
    "grouped_matmul": Gradients(
        lambda a, b: kernels.grouped_matmul(a, b, ends(10, 30, 70)),
        lambda: (half(70, 24), half(3, 24, 40)), grouped, HALF,
    ),
    "moe": Gradients(
        lambda x, weights, gate_up, down: kernels.moe(x, weights, EXPERTS, gate_up, down),
        layer, moe, HALF,
    ),
    "linear_cross_entropy": Gradients(
        lambda x, weight: kernels.linear_cross_entropy(x, weight, LABELS),
        lambda: (torch.randn(5, 16), torch.randn(9, 16)),
        lambda x, weight: F.cross_entropy(x @ weight.mT, LABELS),
    ),
    "softmax": Gradients(kernels.softmax, lambda: (torch.randn(5, 24),), lambda x: x.softmax(-1)),
    "layer_norm": Gradients(
        kernels.layer_norm, lambda: (torch.randn(5, 24), torch.randn(24), torch.randn(24)),
        lambda x, weight, bias: F.layer_norm(x, (24,), weight, bias),
    ),
    "rms_norm": Gradients(
        lambda x, weight: kernels.rms_norm(x, weight),
        lambda: (torch.randn(5, 24), torch.randn(24)),
        lambda x, weight: F.rms_norm(x, (24,), weight, 1e-6),
    ),
    "cross_entropy": Gradients(
        lambda x: kernels.cross_entropy(x, LABELS), lambda: (torch.randn(5, 9),),
        lambda x: F.cross_entropy(x, LABELS),
    ),
    "swiglu": Gradients(
        kernels.swiglu, lambda: (torch.randn(5, 24), torch.randn(5, 24)), lambda x, y: F.silu(x) * y
    ),
    "topk": Gradients(
        lambda x: kernels.topk(x, 3).values, lambda: (torch.randn(5, 24),), lambda x: x.topk(3).values
    ),
    "cumsum": Gradients(
        lambda x: kernels.cumsum(x, -1), lambda: (torch.randn(5, 24),), lambda x: x.cumsum(-1)
    ),
    "rotary": Gradients(
        lambda x: kernels.rotary(x, ANGLES.cos(), ANGLES.sin()),
        lambda: (torch.randn(2, 5, 3, 16),), rotated,
    ),
    "attention": Gradients(
        lambda q, k, v: kernels.attention(q, k, v, causal=True), attention_arguments, attended, HALF
    ),
    "attention_varlen": Gradients(
        lambda q, k, v: kernels.attention_varlen(q, k, v, ends(0, 17, 40), ends(0, 17, 40), causal=True),
        lambda: varlen()[:3], attended_lists, HALF,
    ),
    "ssd": Gradients(kernels.ssd, scan_arguments, scan, HALF),
}  # fmt: skip

#: Public functions without gradients, each with the reason.
WITHOUT: dict[str, Optional[str]] = {
    "matmul_fp8": "operands of 8 bits have none",
    "quantize": "rounding has none",
    "attention_fp8": "operands of 8 bits have none",
    "attention_decode": "a step of inference",
    "mla_decode": "a step of inference",
}
