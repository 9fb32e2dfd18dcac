"""Operators on tensors of any strides, without rows, and on results that no call may write: equal results, or an error."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Optional

import pytest
import torch

import gluon_kernels as kernels
from gluon_core.errors import ArgumentError
from tests.kernels.test_arguments import ARGUMENTS, OPERATORS, eight, half, of, on_target

pytestmark = pytest.mark.once
READ_IN_PLACE = {"k_cache", "v_cache", "cache"}


def every_other(x: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros([2 * size for size in x.shape], dtype=x.dtype)
    return wide[tuple(slice(None, None, 2) for _ in x.shape)].copy_(x)


def behind_one(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x)


def reversed_order(x: torch.Tensor) -> torch.Tensor:
    order = list(range(x.ndim))[::-1]
    return x.permute(order).contiguous().permute(order)


def by_columns(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT if x.ndim > 1 else x


def far_apart(x: torch.Tensor) -> torch.Tensor:
    if x.ndim < 2:
        return x
    room = torch.zeros((x.shape[0] - 1) * 2**20 + x[0].numel(), dtype=x.dtype)
    return room.as_strided(x.shape, (2**20, *x.stride()[1:])).copy_(x)


FORMS = [every_other, behind_one, reversed_order, by_columns, far_apart]


def tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result.detach()]
    return [x for part in result for x in tensors(part)]


@functools.cache
def usual(operator: str) -> list[torch.Tensor]:
    """Return the results of contiguous tensors."""
    right = {name: x for name, x in ARGUMENTS[operator].items() if name != "out"}
    return tensors(getattr(kernels, operator)(**right))


def compare(operator: str, name: str, form: Callable[[torch.Tensor], torch.Tensor]) -> None:
    function, right = getattr(kernels, operator), {**ARGUMENTS[operator]}
    if name != "out":
        right.pop("out", None)
    value = form(right[name])
    if name == "out":
        function(**right)
    for one, other in zip(usual(operator), tensors(function(**{**right, name: value}))):
        torch.testing.assert_close(other.float(), one.float(), rtol=2e-2, atol=2e-2)
    if name == "out":
        torch.testing.assert_close(value, right[name], rtol=2e-2, atol=2e-2)


@pytest.mark.sampled(len(OPERATORS))
@pytest.mark.parametrize("operator", OPERATORS)
def test_strides_change_no_result(operator):
    with on_target("sim:sm_90"):
        for name, x in ARGUMENTS[operator].items():
            for form in FORMS if isinstance(x, torch.Tensor) and x.ndim else ():
                if name in READ_IN_PLACE and form not in (behind_one, far_apart):
                    with pytest.raises(ArgumentError, match=f"{name}: .*Pass {name}.contiguous"):
                        compare(operator, name, form)
                else:
                    compare(operator, name, form)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "operator, name",
    [
        ("matmul", "bias"),
        ("attention", "sinks"),
        ("attention_fp8", "k_scale"),
        ("attention_varlen", "cu_seqlens_k"),
        ("attention_decode", "lengths"),
        ("grouped_matmul", "offs"),
    ],
)
def test_vectors_of_every_other_element(operator, name):
    with on_target("sim:sm_90"):
        compare(operator, name, every_other)


def test_plans_copy_a_strided_vector_in_each_call():
    a, b, bias = half(8, 16), half(16, 8), half(16)[::2]
    with on_target("sim:sm_90"):
        for _ in range(2):
            bias += 1
            dense = kernels.matmul(a, b, bias=bias.clone())
            assert torch.equal(kernels.matmul(a, b, bias=bias), dense)


WITH_OUT = [n for n in OPERATORS if isinstance(ARGUMENTS[n].get("out"), torch.Tensor)]


@pytest.mark.parametrize("operator", WITH_OUT)
def test_results_that_no_call_may_write(operator):
    function, right = getattr(kernels, operator), ARGUMENTS[operator]
    with on_target("sim:sm_90"):
        with pytest.raises(ArgumentError, match="out: .*different devices; expected cpu, got meta"):
            function(**{**right, "out": right["out"].to("meta")})
        with pytest.raises(ArgumentError, match="out: out= does not support gradients"):
            function(**{**right, "out": right["out"].clone().requires_grad_()})


none, zeros = torch.zeros(0, dtype=torch.int32), torch.zeros
# name -> (call, shape of the first result)
EMPTY: dict[str, tuple[Callable[..., Any], Optional[list[int]]]] = {
    "attention": (lambda t: kernels.attention(t(0, 2, 8, 16), t(0, 2, 8, 16), t(0, 2, 8, 16)), [0, 2, 8, 16]),
    "attention without queries": (lambda t: kernels.attention(t(1, 2, 0, 16), t(1, 2, 8, 16), t(1, 2, 8, 16)), [1, 2, 0, 16]),
    "attention_decode": (lambda t: kernels.attention_decode(half(0, 2, 16), half(1, 8, 2, 16), half(1, 8, 2, 16), none.view(0, 1), none), [0, 2, 16]),
    "attention_fp8": (lambda t: kernels.attention_fp8(*(eight(0, 2, 8, 64) for _ in "qkv"), *(torch.ones(0, 2) for _ in "qkv")), [0, 2, 8, 64]),
    "attention_varlen": (lambda t: kernels.attention_varlen(t(0, 2, 16), t(0, 2, 16), t(0, 2, 16), of(torch.int32, 0, 0)), [0, 2, 16]),
    "bmm": (lambda t: kernels.bmm(t(0, 3, 4), t(0, 4, 2)), [0, 3, 2]),
    "cross_entropy": (lambda t: kernels.cross_entropy(t(0, 9), none.long(), reduction="none"), [0]),
    "cumsum": (lambda t: kernels.cumsum(t(3, 0, 5), 1), [3, 0, 5]),
    "gated_delta_rule": (lambda t: kernels.gated_delta_rule(t(1, 0, 2, 16), t(1, 0, 2, 16), t(1, 0, 2, 16), zeros(1, 0, 2), zeros(1, 0, 2)), [1, 0, 2, 16]),
    "gated_linear_attention": (lambda t: kernels.gated_linear_attention(t(0, 8, 2, 16), t(0, 8, 2, 16), t(0, 8, 2, 16), zeros(0, 8, 2)), [0, 8, 2, 16]),
    "grouped_matmul": (lambda t: kernels.grouped_matmul(t(0, 16), t(2, 16, 8), of(torch.int32, 0, 0)), [0, 8]),
    "kda": (lambda t: kernels.kda(t(1, 0, 2, 16), t(1, 0, 2, 16), t(1, 0, 2, 16), zeros(1, 0, 2, 16), zeros(1, 0, 2)), [1, 0, 2, 16]),
    "layer_norm": (lambda t: kernels.layer_norm(t(0, 8), t(8), t(8)), [0, 8]),
    "linear": (lambda t: kernels.linear(t(0, 16), torch.ones(8, 16, dtype=torch.int8), scales=torch.ones(8)), [0, 8]),
    "linear_cross_entropy": (lambda t: kernels.linear_cross_entropy(t(0, 16), t(9, 16), none.long(), reduction="none"), [0]),
    "matmul": (lambda t: kernels.matmul(t(0, 4), t(4, 3)), [0, 3]),
    "matmul of sums of nothing": (lambda t: kernels.matmul(t(3, 0), t(0, 4), bias=t(4)), [3, 4]),
    "matmul_batch_invariant": (lambda t: kernels.matmul_batch_invariant(t(0, 4), t(4, 3)), [0, 3]),
    "matmul_fp8": (lambda t: kernels.matmul_fp8(eight(0, 16), eight(8, 16).mT, torch.ones(()), torch.ones(())), [0, 8]),
    "mla_decode": (lambda t: kernels.mla_decode(half(0, 2, 80), half(1, 8, 80), none.view(0, 1), none, latent=64), [0, 2, 64]),
    "moe": (lambda t: kernels.moe(t(0, 8), torch.ones(0, 1), none.view(0, 1), t(2, 8, 16), t(2, 8, 8)), [0, 8]),
    "moe without choices": (lambda t: kernels.moe(t(2, 8), torch.ones(2, 0), none.view(2, 0), t(2, 8, 16), t(2, 8, 8)), [2, 8]),
    "quantize": (lambda t: kernels.quantize(half(0, 8)), [0, 8]),
    "rms_norm": (lambda t: kernels.rms_norm(t(0, 8), t(8)), [0, 8]),
    "rotary": (lambda t: kernels.rotary(t(1, 0, 2, 16), half(0, 8), half(0, 8)), [1, 0, 2, 16]),
    "softmax": (lambda t: kernels.softmax(t(0, 8)), [0, 8]),
    "ssd": (lambda t: kernels.ssd(t(1, 0, 2, 16), zeros(1, 0, 2), -torch.ones(2), t(1, 0, 1, 16), t(1, 0, 1, 16)), [1, 0, 2, 16]),
    "swiglu": (lambda t: kernels.swiglu(t(0, 8), t(0, 8)), [0, 8]),
    "topk": (lambda t: kernels.topk(t(4, 8), 0), [4, 0]),
}  # fmt: skip


def test_every_operator_has_an_empty_case():
    functions = {n for n in kernels.__all__ if inspect.isfunction(getattr(kernels, n))}
    assert functions == {name.split(" ")[0] for name in EMPTY}


def test_nothing_to_compute():
    """A call without rows, tokens or sequences launches nothing that fails, and its gradients are zeros."""
    for name, (call, shape) in EMPTY.items():
        leaves = []

        def leaf(*sizes: int) -> torch.Tensor:
            leaves.append(half(*sizes).requires_grad_())  # noqa: B023
            return leaves[-1]  # noqa: B023

        with on_target("sim:sm_90"):
            first = call(half)
            first = first if isinstance(first, torch.Tensor) else first[0]
            assert list(first.shape) == shape, name
            assert first.numel() == 0 or not first.isnan().any(), name
            result = call(leaf)
            result = result if isinstance(result, torch.Tensor) else result[0]
            if result.requires_grad:
                result.sum().backward()
                assert all(x.grad is None or x.grad.shape == x.shape for x in leaves), name
