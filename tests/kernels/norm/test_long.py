"""Rows longer than the programs of a row hold, and rows far apart: results and gradients are those of any row."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import gluon_kernels as kernels
from gluon_core.errors import ShapeError
from gluon_kernels.norm import (
    composite,
    gated,
    gradient_launches,
    loss_launches,
    ops,
    tilings,
    views,
)
from gluon_kernels.topk import launches, sums

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("hopper")]
N = 5000

CASES = {
    "softmax": (kernels.softmax, lambda x: x.softmax(-1), 1),
    "rms_norm": (
        lambda x, y: kernels.rms_norm(x, y[0]),
        lambda x, y: F.rms_norm(x, (N,), y[0], 1e-6),
        2,
    ),
    "layer_norm": (
        lambda x, y: kernels.layer_norm(x, y[0], y[1]),
        lambda x, y: F.layer_norm(x, (N,), y[0], y[1]),
        2,
    ),
    "residual": (
        lambda x, y: sum(kernels.layer_norm(x, residual=y)),
        lambda x, y: F.layer_norm(x + y, (N,)) + x + y,
        2,
    ),
    "swiglu": (kernels.swiglu, lambda x, y: F.silu(x) * y, 2),
}


@pytest.fixture
def longest(monkeypatch):
    monkeypatch.setattr(composite, "LONGEST", N - 1)
    monkeypatch.setattr(composite, "WIDEST", N - 1)
    plans = (ops._softmaxes, ops._norms, ops._norm_gradients, ops._softmax_gradients, gated._plans)
    for one in plans:
        one.forget()
    yield
    for one in plans:
        one.forget()


def compare(name):
    torch.manual_seed(0)
    ours, theirs, count = CASES[name]
    inputs = [torch.randn(2, N) for _ in range(count)]
    grad = torch.randn(2, N)
    results = []
    for call in (ours, theirs):
        leaves = [x.clone().requires_grad_() for x in inputs]
        result = call(*leaves)
        results.append((result, *torch.autograd.grad(result, leaves, grad)))
    for mine, right in zip(*results, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_long_rows(name, longest):
    compare(name)


def test_long_rows_in_memory_of_the_caller(longest):
    x, out = torch.randn(2, N), torch.empty(2, N)
    assert kernels.softmax(x, out=out) is out
    torch.testing.assert_close(out, x.softmax(-1))
    assert kernels.layer_norm(x, out=out) is out
    torch.testing.assert_close(out, F.layer_norm(x, (N,)), rtol=1e-4, atol=1e-4)


def test_too_many_classes_are_an_error_before_a_launch(longest):
    with pytest.raises(ShapeError, match="up to 4999 columns"):
        kernels.cross_entropy(torch.randn(2, N), torch.zeros(2, dtype=torch.int64))


def test_rows_far_apart_are_copied(monkeypatch):
    monkeypatch.setattr(views, "FARTHEST", 100)
    x = torch.randn(6, 300)[:, :40]
    assert views.Rows.of(x).copied
    torch.testing.assert_close(kernels.softmax(x), x.softmax(-1))
    assert not views.Rows.of(torch.randn(6, 300)).copied


def test_quantize_takes_a_vector():
    values, scale = kernels.quantize(torch.linspace(-2, 2, 40))
    assert values.shape == (40,) and scale.shape == ()
    torch.testing.assert_close(values.float() * scale, torch.linspace(-2, 2, 40), rtol=0.1, atol=0)


@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums_of_few_long_rows(reverse):
    rows, columns = 2, 40001
    assert sums._parts(rows, columns, 132)[0] == 10
    assert sums._parts(1, 3 * 10**9, 132)[0] <= sums.MOST_PARTS
    assert sums._parts(500, columns, 132) == (1, columns)
    x = torch.randn(rows, columns, requires_grad=True)
    result = kernels.cumsum(x)
    if reverse:  # the gradient
        (result,) = torch.autograd.grad(result, x, x.detach())
        right = x.detach().double().flip(-1).cumsum(-1).flip(-1)
    else:
        right = x.double().cumsum(-1)
    torch.testing.assert_close(result.double(), right, rtol=1e-4, atol=2e-3)


def test_topk_of_a_row_that_no_lists_divide(monkeypatch):
    monkeypatch.setattr(launches, "MOST_GROUPS", 0)
    monkeypatch.setattr(launches, "is_whole", lambda *sizes: False)
    x = torch.randn(2, 900)
    assert torch.equal(kernels.topk(x, 9).values, x.topk(9).values)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("few", [0, 100])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "residual"])
def test_gradients_of_rows_whose_sums_no_program_keeps(name, few, monkeypatch):
    monkeypatch.setattr(gradient_launches, "MOST_SUMMED", 1)
    monkeypatch.setattr(gradient_launches, "FEW", few)
    monkeypatch.setattr(gradient_launches, "FEW_NARROW", few)
    ops._norm_gradients.forget()
    compare(name)
    ops._norm_gradients.forget()


@pytest.mark.parametrize("walking", [True, False])
def test_gradients_of_weights_over_shares_of_rows(walking, monkeypatch):
    monkeypatch.setattr(gradient_launches, "MOST_SUMMED", 1)
    monkeypatch.setattr(gradient_launches, "FEW", 0)
    if not walking:
        monkeypatch.setattr(gradient_launches, "walking_tiling", lambda *sizes: None)
    monkeypatch.setattr(gradient_launches, "multiprocessors", lambda tensor: 3)
    ops._norm_gradients.forget()
    x, grad = torch.randn(37, 2100), torch.randn(37, 2100)  # shares of 5 rows, tiles of 4
    results = []
    for call in (kernels.rms_norm, lambda x, w: F.rms_norm(x, (2100,), w, 1e-6)):
        leaves = [t.requires_grad_() for t in (x.clone(), torch.ones(2100))]
        results.append(torch.autograd.grad(call(*leaves), leaves, grad))
    ops._norm_gradients.forget()
    for mine, right in zip(*results, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "columns", [12288, 16384, 17000, 24576]
)  # programs that walk have 4 and 8 warps
def test_losses_of_long_rows(columns, monkeypatch):
    monkeypatch.setattr(loss_launches, "WALKED", 1)
    monkeypatch.setattr(tilings, "multiprocessors", lambda x: 1)  # the rows are not few
    launched = []
    prepared = loss_launches.prepared
    monkeypatch.setattr(loss_launches, "prepared", lambda kernel, *arguments, **options: (
        launched.append(kernel.__name__), prepared(kernel, *arguments, **options))[1])  # fmt: skip
    torch.manual_seed(0)
    x = torch.randn(5, columns + 8).to(torch.bfloat16)[:, :columns]
    x[2, ::3] = -float("inf")
    x[3, 7] = 300.0
    labels = torch.tensor([0, -100, columns - 1, 7, columns // 2])
    mine = kernels.cross_entropy(x, labels, reduction="none")
    torch.testing.assert_close(mine, F.cross_entropy(x.float(), labels, reduction="none"))
    assert launched == ["cross_entropy_walk" if columns > 16384 else "cross_entropy"]
