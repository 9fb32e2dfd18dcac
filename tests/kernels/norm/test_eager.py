"""Calls with gradients past torch's dispatcher, which a GPU takes; here by tensors that pass for its own."""

import pytest
import torch
import torch.nn.functional as F

import gluon_kernels as kernels
from gluon_kernels.norm import gated, linear_loss, loss, ops
from gluon_kernels.problem import error_of
from gluon_kernels.topk import ops as topk_ops
from gluon_kernels.topk import sums
from gluon_torch.errors import MissingGradientError
from tests.kernels.routes import route

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]
LABELS = torch.tensor([3, 0, -100, 39, 2])

CASES = {
    "softmax": (lambda x, w, b: kernels.softmax(x), lambda x, w, b: x.softmax(-1)),
    "rms_norm": (
        lambda x, w, b: kernels.rms_norm(x, w),
        lambda x, w, b: F.rms_norm(x, (40,), w, 1e-6),
    ),
    "layer_norm": (
        lambda x, w, b: kernels.layer_norm(x, w, b),
        lambda x, w, b: F.layer_norm(x, (40,), w, b, 1e-5),
    ),
    "cross_entropy": (
        lambda x, w, b: kernels.cross_entropy(x, LABELS),
        lambda x, w, b: F.cross_entropy(x, LABELS),
    ),
    "cross_entropy of rows": (
        lambda x, w, b: kernels.cross_entropy(x, LABELS, reduction="none"),
        lambda x, w, b: F.cross_entropy(x, LABELS, reduction="none"),
    ),
    "linear_cross_entropy": (
        lambda x, w, b: kernels.linear_cross_entropy(x, x * w, LABELS % 5),
        lambda x, w, b: F.cross_entropy(x @ (x * w).mT, LABELS % 5),
    ),
    "linear_cross_entropy of rows": (
        lambda x, w, b: kernels.linear_cross_entropy(x, x * w, LABELS % 5, reduction="none"),
        lambda x, w, b: F.cross_entropy(x @ (x * w).mT, LABELS % 5, reduction="none"),
    ),
    "topk": (lambda x, w, b: kernels.topk(x, 7).values, lambda x, w, b: x.topk(7).values),
    "swiglu": (
        lambda x, w, b: kernels.swiglu(x, x * 2),
        lambda x, w, b: F.silu(x) * (x * 2),
    ),
    "cumsum": (lambda x, w, b: kernels.cumsum(x), lambda x, w, b: x.cumsum(-1)),
    "cumsum of columns": (lambda x, w, b: kernels.cumsum(x, 0), lambda x, w, b: x.cumsum(0)),
    "softmax of columns": (lambda x, w, b: kernels.softmax(x, 0), lambda x, w, b: x.softmax(0)),
    "softmax of long columns": (  # in chunks
        lambda x, w, b: kernels.softmax(x.repeat(120, 1), 0),
        lambda x, w, b: x.repeat(120, 1).softmax(0),
    ),
    "cumsum of long columns": (
        lambda x, w, b: kernels.cumsum(x.repeat(120, 1), 0),
        lambda x, w, b: x.repeat(120, 1).cumsum(0),
    ),
    "softmax of few columns": (  # by a transposed copy
        lambda x, w, b: kernels.softmax(x[:, :3], 0),
        lambda x, w, b: x[:, :3].softmax(0),
    ),
}


@pytest.fixture
def short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ops, loss, linear_loss, gated, sums, topk_ops):
        monkeypatch.setattr(module, "route", route)


TWICE = [name for name in CASES if "linear" not in name and "long" not in name]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("past", [True, False], ids=["past the dispatcher", "operator"])
@pytest.mark.parametrize("name", TWICE)
def test_gradients_have_gradients(name, past, request):
    if past:
        request.getfixturevalue("short_way")
    torch.manual_seed(0)
    inputs = [torch.randn(5, 40), torch.randn(40), torch.randn(40)]
    results = []
    for call in CASES[name]:
        leaves = [x.clone().requires_grad_() for x in inputs]
        result = call(*leaves)
        weight = torch.linspace(0.5, 2, result.numel()).reshape(result.shape)
        wanted = {"create_graph": True, "allow_unused": True}
        first = torch.autograd.grad((result * weight).sum(), leaves, **wanted)
        total = sum(((part * part.detach().cos()) ** 2).sum() for part in first if part is not None)
        if not total.requires_grad:  # linear
            results.append(())
            continue
        results.append(torch.autograd.grad(total, leaves, allow_unused=True))
    for mine, right in zip(*results, strict=True):
        right = torch.zeros(()) if right is None else right
        mine = torch.zeros_like(right) if mine is None else mine
        torch.testing.assert_close(mine, right.expand_as(mine), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("most, dtype, classes", [
    (1 << 27, torch.float32, 40), (1, torch.float32, 300), (1 << 27, torch.float16, 40), (1 << 27, torch.bfloat16, 40),
])  # fmt: skip
def test_losses_of_a_linear_layer_in_parts(most, dtype, classes, short_way, monkeypatch):
    monkeypatch.setattr(linear_loss, "_AT_ONCE", most)
    x = torch.randn(200, 16).to(dtype).requires_grad_()
    weight = torch.randn(classes, 16).to(dtype).requires_grad_()
    labels = torch.randint(classes, (200,))
    labels[::7] = -100
    scales = torch.linspace(0.5, 2, 200)
    for reduction in ("mean", "none"):
        with torch.no_grad():
            plain = kernels.linear_cross_entropy(x, weight, labels, reduction=reduction)
        result = kernels.linear_cross_entropy(x, weight, labels, reduction=reduction)
        wide = x.float() @ weight.float().mT
        right = F.cross_entropy(wide, labels, reduction=reduction)
        grad = scales if right.ndim else scales[100]
        pairs = zip(*(torch.autograd.grad(loss, [x, weight], grad) for loss in (result, right)))
        most = 1e-5 if dtype == torch.float32 else 1e-2 if dtype == torch.bfloat16 else 2e-3
        for mine, wanted in [(plain, right), (result, right), *pairs]:
            assert error_of(mine, wanted) < most


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gradients_of_a_linear_layer_without_labels_that_count(dtype, short_way):
    x, weight = (torch.randn(n, 16, dtype=dtype, requires_grad=True) for n in (5, 40))
    loss = kernels.linear_cross_entropy(x, weight, torch.full((5,), -100))
    for gradient in torch.autograd.grad(loss, [x, weight]):
        assert not gradient.any()


@pytest.mark.parametrize("dtype, most", [(torch.float16, 2e-3), (torch.bfloat16, 1e-2)])
def test_a_mean_does_not_lose_small_probabilities(dtype, most, short_way, monkeypatch):
    """1 / (rows * classes) is below the normal numbers of float16."""
    x = torch.randn(128, 16).to(dtype)
    weight = (torch.randn(1024, 16) / 64).to(dtype).requires_grad_()
    labels = torch.randint(8, (128,))
    loss = kernels.linear_cross_entropy(x, weight, labels)
    (mine,) = torch.autograd.grad(loss, [weight], torch.tensor(1024.0))
    right = F.cross_entropy(x.double() @ weight.double().mT, labels)
    (wanted,) = torch.autograd.grad(right, [weight], torch.tensor(1024.0, dtype=torch.float64))
    assert error_of(mine[8:], wanted[8:]) < most  # of classes that no row has


@pytest.mark.parametrize("name", CASES)
def test_gradients_past_the_dispatcher(name: str, short_way: None) -> None:
    torch.manual_seed(0)
    ours, theirs = CASES[name]
    inputs = [torch.randn(5, 40), torch.randn(40), torch.randn(40)]
    for kinds in ((True, True, True), (True, False, False)):
        results = []
        for call in (ours, theirs):
            leaves = [x.clone().requires_grad_(kind) for x, kind in zip(inputs, kinds, strict=True)]
            result = call(*leaves)
            grad = torch.linspace(0.5, 2, result.numel()).reshape(result.shape)
            result.backward(grad)
            results.append((result, *(leaf.grad for leaf in leaves)))
        for mine, right in zip(*results, strict=True):
            assert (mine is None) == (right is None)
            limit = 5e-3 if "long" in name else 1e-5  # gradients of copies cancel each other
            assert mine is None or error_of(mine, right) < limit


def test_gradients_of_gradients_of_a_linear_layer_are_refused(short_way: None) -> None:
    x, weight = torch.randn(5, 40, requires_grad=True), torch.randn(6, 40)
    loss = kernels.linear_cross_entropy(x, weight, LABELS % 5)
    for total in (loss.square(), loss):
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        with pytest.raises(MissingGradientError, match="differentiable once"):
            first.sum().backward()


def test_means_of_calls_that_share_a_counter(short_way: None) -> None:
    for _ in range(3):
        x = torch.randn(300, 40)
        labels = torch.randint(0, 40, (300,))
        assert error_of(kernels.cross_entropy(x, labels), F.cross_entropy(x, labels)) < 1e-5
