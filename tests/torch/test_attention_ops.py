"""The operator of `examples/attention_ops.py`: its gradients in both forms against torch's."""

from __future__ import annotations

import pytest
import torch

from tests.kernels import cases

pytestmark = pytest.mark.once

ops = cases.module("attention_ops")


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    """Tensors are on the CPU here, where there is a GPU as well."""
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")


def gradients(repeatable, causal):
    torch.manual_seed(0)
    leaves = [torch.randn(2, 1, 130, 64).bfloat16().requires_grad_() for _ in range(3)]
    grad = torch.randn(2, 1, 130, 64).bfloat16()
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(repeatable)
    try:
        computed = torch.autograd.grad(ops.attention(*leaves, causal)[0], leaves, grad)
    finally:
        torch.use_deterministic_algorithms(before)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    out = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal)
    return computed, torch.autograd.grad(out, wide, grad.double())


@pytest.mark.parametrize("repeatable, causal", [(False, True), (True, False)])
def test_gradients(repeatable, causal, monkeypatch):
    other, name = (ops.adding, "launch") if repeatable else (ops, "without_atomics")
    monkeypatch.delattr(other, name)  # only the form that was asked for is there
    for mine, theirs in zip(*gradients(repeatable, causal)):
        torch.testing.assert_close(mine.double(), theirs, atol=2e-2, rtol=2e-2)
