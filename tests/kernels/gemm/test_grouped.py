"""`gluon_kernels.grouped_matmul` and `moe` through their public door."""

from __future__ import annotations

import pytest
import torch

import gluon_kernels
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels.moe import layer, ops
from gluon_kernels.moe.problem import GROUPED_MATMUL, MOE
from gluon_kernels.problem import error_of

pytestmark = [pytest.mark.once, pytest.mark.sampled(8)]


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    for plans in (ops.plans, ops.gradient_plans, layer.plans):
        plans.forget()
    yield
    for plans in (ops.plans, ops.gradient_plans, layer.plans):
        plans.forget()


@pytest.mark.parametrize("shape", GROUPED_MATMUL.small)
def test_groups_of_any_rows(shape):
    assert GROUPED_MATMUL.check(shape, "cpu") is None


@pytest.mark.parametrize("target", ["sim:sm_80", "sim:gfx942"])
def test_the_portable_kernel(target, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    assert GROUPED_MATMUL.check(GROUPED_MATMUL.small[1], "cpu") is None


def test_groups_are_read_when_the_kernel_runs():
    arguments = GROUPED_MATMUL.arguments(GROUPED_MATMUL.small[0], "cpu")
    for ends in ([300, 300, 300, 300], [0, 0, 0, 300], [1, 129, 257, 300]):
        arguments["offs"] = torch.tensor(ends, dtype=torch.int32)
        result = gluon_kernels.grouped_matmul(**arguments)
        assert error_of(result, GROUPED_MATMUL.reference(**arguments)) < 5e-3
    assert len(ops.plans) == 1


def test_gradients_of_rows_and_matrices():
    arguments = GROUPED_MATMUL.arguments(
        {"groups": 3, "rows": 70, "N": 40, "K": 24, "seed": 5}, "cpu"
    )
    inputs = [arguments["a"].requires_grad_(), arguments["b"].requires_grad_()]
    result = gluon_kernels.grouped_matmul(*inputs, arguments["offs"])
    grads = torch.autograd.grad(result.float().square().sum(), inputs)
    wide = [x.detach().float().requires_grad_() for x in inputs]
    right = GROUPED_MATMUL.reference(*wide, arguments["offs"])
    for grad, wanted in zip(grads, torch.autograd.grad(right.square().sum(), wide)):
        assert error_of(grad, wanted) < 1e-2


@pytest.mark.parametrize("shape", MOE.small)
def test_layers_of_any_sizes(shape):
    assert MOE.check(shape, "cpu") is None


def test_the_layer_elsewhere(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:gfx942")
    assert MOE.check(MOE.small[3], "cpu") is None


def test_results_in_memory_of_the_caller():
    arguments = MOE.arguments(MOE.small[0], "cpu")
    result = gluon_kernels.moe(**arguments)
    for out in (torch.empty(40, 72).bfloat16(), torch.empty(72, 40).bfloat16().mT):
        assert gluon_kernels.moe(**arguments, out=out) is out
        assert torch.equal(out, result)  # equal inputs, equal bits
    with pytest.raises(ArgumentError, match="out: "):
        gluon_kernels.moe(**{**arguments, "x": arguments["x"].requires_grad_()}, out=out)
    rows = GROUPED_MATMUL.arguments(GROUPED_MATMUL.small[2], "cpu")
    out = torch.empty(130, 64).bfloat16()
    assert gluon_kernels.grouped_matmul(**rows, out=out) is out
    assert torch.equal(out, gluon_kernels.grouped_matmul(**rows))


@pytest.mark.parametrize(
    "change, error, text",
    [
        ({"experts": torch.zeros(40, 3, dtype=torch.int64)}, ShapeError, "weights, experts: "),
        ({"experts": torch.zeros(40, 2)}, DtypeError, "experts: "),
        ({"weights": torch.zeros(40, 2, dtype=torch.int32)}, DtypeError, "weights: "),
        ({"x": torch.zeros(40, 64).bfloat16()}, ShapeError, "gate_up, down: "),
        ({"x": torch.zeros(40, 72)}, DtypeError, "x, gate_up, down: "),
        ({"activation": "swish"}, ArgumentError, "activation: "),
        ({"down": torch.zeros(4, 40, 72, device="meta").bfloat16()}, ArgumentError, "down: "),
        ({"out": torch.zeros(40, 64).bfloat16()}, ShapeError, "out: "),
    ],
)
def test_wrong_arguments_of_a_layer_end_before_a_launch(change, error, text):
    arguments = MOE.arguments(MOE.small[0], "cpu")
    with pytest.raises(error, match=text):
        gluon_kernels.moe(**{**arguments, **change})
    assert len(layer.plans) == 0


@pytest.mark.parametrize("way", ["operator", "function"])
def test_a_whole_layer_and_its_gradients(way, monkeypatch):
    if way == "function":  # calls with gradients on a GPU
        monkeypatch.setattr(layer, "wants_gradient", lambda *tensors: torch.is_grad_enabled())
    torch.manual_seed(0)
    tokens, width, inner, experts, choices = 20, 16, 24, 4, 2
    x = torch.randn(tokens, width).bfloat16().requires_grad_()
    gate_up = (torch.randn(experts, width, 2 * inner) / 4).bfloat16().requires_grad_()
    down = (torch.randn(experts, inner, width) / 5).bfloat16().requires_grad_()
    weights = torch.rand(tokens, choices).requires_grad_()
    ids = torch.stack([torch.randperm(experts)[:choices] for _ in range(tokens)])

    def reference(x, weights, gate_up, down):
        rows = []
        for token in range(tokens):
            total = 0
            for choice in range(choices):
                expert = ids[token, choice]
                gate, value = (x[token] @ gate_up[expert]).chunk(2)
                inside = torch.nn.functional.silu(gate) * value
                total = total + weights[token, choice] * (inside @ down[expert])
            rows.append(total)
        return torch.stack(rows)

    inputs = [x, weights, gate_up, down]
    wide = [t.detach().double().requires_grad_() for t in inputs]
    result = gluon_kernels.moe(x, weights, ids, gate_up, down)
    right = reference(*wide)
    assert error_of(result, right) < 2e-2
    grads = torch.autograd.grad(result.float().square().sum(), inputs, retain_graph=True)
    rights = torch.autograd.grad(right.square().sum(), wide, retain_graph=True)
    for grad, wanted in zip(grads, rights):
        assert error_of(grad, wanted) < 4e-2
    # Gradients of gradients, where the gradient of the result needs none.
    (grad,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    (wanted,) = torch.autograd.grad(right.sum(), wide[0], create_graph=True)
    (again,) = torch.autograd.grad(grad.float().square().sum(), weights)
    (of_weights,) = torch.autograd.grad(wanted.square().sum(), wide[1])
    assert error_of(again, of_weights) < 4e-2


@pytest.mark.parametrize(
    "change, error",
    [
        ({"offs": torch.zeros(2, dtype=torch.int32)}, ShapeError),
        ({"offs": torch.zeros(3)}, DtypeError),
        ({"offs": torch.zeros(6, dtype=torch.int32)[::2]}, ArgumentError),
        ({"offs": torch.tensor([40, 20, 70], dtype=torch.int32)}, ArgumentError),
        ({"offs": torch.tensor([20, 40, 71], dtype=torch.int32)}, ArgumentError),
        ({"a": torch.zeros(5, 20).bfloat16()}, ShapeError),
        ({"a": torch.zeros(5, 24)}, DtypeError),
    ],
)
def test_wrong_arguments_end_before_a_launch(change, error):
    arguments = GROUPED_MATMUL.arguments({"groups": 3, "rows": 70, "N": 40, "K": 24}, "cpu")
    with pytest.raises(error):
        gluon_kernels.grouped_matmul(**{**arguments, **change})
