"""The stations of a call of an op, and the bookkeeping where torch's own stations are not asked."""

import sys
from typing import Optional

import pytest
import torch

import gluon_torch

pytestmark = pytest.mark.once


@gluon_torch.op("gluon_calls::fill", mutates_args=("out", "more", "rest"))
def fill(
    x: torch.Tensor,
    out: torch.Tensor,
    rest: list[torch.Tensor],
    more: Optional[torch.Tensor] = None,
) -> None:
    for tensor in (out, more, *rest):
        if tensor is not None:
            tensor.copy_(x)


@gluon_torch.op("gluon_calls::plus", shape=lambda x, one: x.shape)
def plus(x: torch.Tensor, one: float = 1.0) -> torch.Tensor:
    return torch.add(x, one)


def stations(call):
    """Functions of torch's library of ops, and of its compiler, that run in a call."""
    seen = []

    def watch(frame, event, _):
        if event == "call" and any(
            part in frame.f_code.co_filename for part in ("torch/_library", "torch/_dynamo")
        ):
            seen.append(frame.f_code.co_name)

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return set(seen)


def test_a_call_that_needs_nothing_passes_no_station_of_torch(device):
    x = torch.randn(4, device=device)
    out, other = torch.empty_like(x), torch.empty_like(x)
    assert not stations(lambda: fill(x, out, [other]))
    assert torch.equal(out, x) and torch.equal(other, x)
    assert stations(lambda: plus(x)) <= {"_c_check_aliasing_constraint"}
    with torch.no_grad():
        assert stations(lambda: plus(x.requires_grad_())) <= {"_c_check_aliasing_constraint"}
    assert "autograd_impl" in stations(lambda: plus(x))


def test_written_bytes_are_counted_once(device):
    x, out, more, one, two = (torch.randn(4, device=device) for _ in range(5))

    def counts():
        return [tensor._version for tensor in (x, out, more, one, two)]

    for arguments, expected in (
        ((x, out, [one, two], more), [0, 1, 1, 1, 1]),
        ((x, out, [], None), [0, 1, 0, 0, 0]),
        ((x, out, [two]), [0, 1, 0, 0, 1]),
    ):
        with torch.no_grad():  # copy_ inside of the op counts, too
            before = counts()
            for tensor in arguments[1:2]:
                tensor.copy_(x)
            inside = counts()[1] - before[1]
        before = counts()
        fill(*arguments)
        assert [b - a for a, b in zip(before, counts())] == [n * (1 + inside) for n in expected]
    assert torch.equal(two, x)


def test_a_written_tensor_that_a_gradient_needs_is_noticed(device):
    x = torch.randn(4, device=device, requires_grad=True)
    kept = torch.randn(4, device=device)
    product = (x * kept).sum()
    fill(torch.ones(4, device=device), kept, [])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_a_gradient_that_nobody_gave_is_an_error(device):
    x = torch.randn(4, device=device, requires_grad=True)
    result = plus(x)
    assert result.requires_grad
    with pytest.raises(RuntimeError, match="plus has no gradient.*torch.no_grad"):
        result.sum().backward()


def test_a_result_that_is_an_argument_is_an_error(device):
    @gluon_torch.op("gluon_calls::itself")
    def itself(x: torch.Tensor) -> torch.Tensor:
        return x

    with pytest.raises(RuntimeError, match="alias"):
        itself(torch.ones(3, device=device))


def test_the_compiler_leaves_the_implementation_alone(device):
    """Called from a frame that the compiler gave up on, while it watches what is called."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    def function(x):
        return plus.overload(x)

    torch._dynamo.eval_frame.skip_code(function.__code__)
    x = torch.randn(4, device=device)
    assert torch.equal(torch.compile(function, backend=backend)(x), x + 1)
    assert not graphs


def test_implementations_can_be_switched_off(device):
    torch.library.register_kernel("gluon_calls::plus", device, lambda x, one=1.0: x - one)
    x = torch.randn(4, device=device)
    assert torch.equal(plus(x), x - 1)
    with plus._definition.set_kernel_enabled(device, enabled=False):
        assert torch.equal(plus(x), x + 1)
    assert torch.equal(plus(x), x - 1)
