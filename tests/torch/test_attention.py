"""An op with a gradient of its own kernels, as torch checks it."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.torch.attention_op import attention, attention_backward

pytestmark = pytest.mark.once


def inputs(device, n, width=6, dtype=torch.float32, grad=True, heads=2):
    make = dict(dtype=dtype, device=device, requires_grad=grad)
    return [torch.randn(1, heads, n, width, **make) for _ in range(3)]


def reference(q, k, v, causal):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n, width, dtype", [(5, 6, torch.float32), (21, 16, torch.float16)])
def test_results_and_gradients(n, width, dtype, causal, device):
    tensors = inputs(device, n, width, dtype)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    out, lse = attention(*tensors, causal)
    wanted = reference(*exact, causal)
    near = dict(atol=1e-2, rtol=1e-2) if dtype is torch.float16 else dict(atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.double(), wanted, **near)
    scores = exact[0] @ exact[1].mT * width**-0.5
    if causal:
        hidden = torch.ones(n, n, device=device).triu(1).bool()
        scores = scores.masked_fill(hidden, -float("inf"))
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), **near)
    upper = torch.randn_like(wanted)
    gradients = torch.autograd.grad(out, tensors, upper.to(dtype))
    for mine, other in zip(gradients, torch.autograd.grad(wanted, exact, upper)):
        torch.testing.assert_close(mine.double(), other, **near)


@pytest.mark.parametrize("causal", [False, True])
def test_the_gradient_is_that_of_the_function(causal, device):
    tensors = inputs(device, 3, 2, torch.float64, heads=1)
    assert torch.autograd.gradcheck(lambda *x: attention(*x, causal)[0], tensors)


@pytest.mark.once
def test_torch_finds_nothing_wrong_with_it(device):
    tensors = inputs(device, 5)
    for op, arguments in (
        (attention, (*tensors, True)),
        (
            attention_backward,
            (
                *(x.detach() for x in (tensors[0], *tensors)),
                *torch.rand(2, 1, 2, 5, device=device).unbind(),
                False,
            ),
        ),
    ):
        outcome = torch.library.opcheck(op.overload, arguments, atol=1e-4, rtol=1e-4)
        assert len(outcome) == 4 and set(outcome.values()) == {"SUCCESS"}


@pytest.mark.once
def test_training_in_one_graph_for_all_lengths(device):
    def loss(q, k, v):
        return attention(q * 2, k, v, True)[0].square().sum()

    counter = CompileCounterWithBackend("aot_eager" if device == "cpu" else "inductor")
    compiled = torch.compile(loss, backend=counter, fullgraph=True, dynamic=True)
    for n in (4, 7, 18):
        tensors = inputs(device, n)
        gradients = torch.autograd.grad(compiled(*tensors), tensors)
        wanted = torch.autograd.grad(
            reference(tensors[0] * 2, *tensors[1:], True).square().sum(), tensors
        )
        torch.testing.assert_close(gradients, wanted, atol=1e-3, rtol=1e-3)
    assert counter.frame_count == 1
