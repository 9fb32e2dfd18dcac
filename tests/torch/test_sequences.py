"""`gluon.torch.sequence` and `gluon.torch.planned`, in Python and by the functions in C++; see test_shortcut for the latter."""

from __future__ import annotations

import weakref

import pytest
import torch

import gluon_core as gluon
from tests.torch.squares import operands, refuses_second_gradients

pytestmark = pytest.mark.once


def product(x, y, out, *more):
    assert all(tensor is None for tensor in more)
    torch.mul(x, y, out=out)


def test_tensors_of_a_sequence_have_places():
    shared = torch.full((3,), 5.0)
    run = gluon.torch.sequence(
        2,
        (lambda: torch.empty(3), lambda: torch.empty(3)),
        [(product, (0, 1, 2)), (product, (2, 4, 3, None, 5))],
        (3, None, 2),
        lambda: (shared, None),
    )
    x, y = torch.arange(3.0), torch.full((3,), 2.0)
    last, nothing, first = run(x, y, "ignored")
    assert first.tolist() == [0, 2, 4] and last.tolist() == [0, 10, 20] and nothing is None
    again, _, _ = run(x, y)
    assert again is not last


def test_a_sequence_returns_one_result_alone():
    run = gluon.torch.sequence(1, (lambda: torch.empty(2),), [(product, (0, 0, 1))], 1)
    x = torch.tensor([2.0, 3.0])
    assert run(x).tolist() == [4, 9]
    with pytest.raises(TypeError, match="takes 1 tensors"):
        run()


def test_errors_of_launches_reach_the_caller():
    def broken(*tensors):
        raise ValueError("broken")

    run = gluon.torch.sequence(1, (lambda: torch.empty(2),), [(broken, (0, 1))], 1)
    with pytest.raises(ValueError, match="broken"):
        run(torch.ones(2))
    run = gluon.torch.sequence(1, (broken,), [], 1)
    with pytest.raises(ValueError, match="broken"):
        run(torch.ones(2))


def test_a_sequence_holds_nothing_of_a_call():
    run = gluon.torch.sequence(1, (lambda: torch.empty(2),), [(product, (0, 0, 1))], 1)
    x = torch.ones(2)
    result = run(x)
    held = weakref.ref(x), weakref.ref(result)
    del x, result
    assert held[0]() is None and held[1]() is None


def scaled_square(built, again=True):
    """Return `f(x, factor, nothing)`, x * x * factor, by plans; `built` collects what they are made for."""

    def forward(x, factor, nothing):
        built.append(("forward", tuple(x.shape)))
        return lambda x, factor, nothing: (x * x * factor, None, x * 2)

    def backward(needs, grad, x, factor, nothing, twice):
        built.append(("backward", tuple(x.shape), needs))

        def run(grad, x, factor, nothing, twice):
            assert nothing is None
            to_x = twice * factor * grad if needs[0] else None
            return to_x, x * x * grad if needs[1] else None, None

        return run

    def gradients(ctx, grad):
        x, factor, _, _ = ctx.saved_tensors
        return 2 * x * factor * grad, x * x * grad, None

    return gluon.torch.planned(forward, backward, gradients if again else None, keep=(0, 1, 4, 5))


def test_a_plan_serves_all_calls_of_a_signature():
    built = []
    call = scaled_square(built)
    for rows in (3, 3, 5, 3):
        x, factor = operands(rows)
        grads = torch.autograd.grad(call(x, factor, None).sum(), (x, factor))
        torch.testing.assert_close(grads, (2 * x * factor, x * x))
    both = (True, True, False)
    assert built == [
        ("forward", (3, 4)), ("backward", (3, 4), both), ("forward", (5, 4)), ("backward", (5, 4), both),
    ]  # fmt: skip
    x, factor = operands()
    call(x, factor.detach(), None).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x * factor)
    assert built[4:] == [("backward", (3, 4), (True, False, False))]


@pytest.mark.parametrize("alone", [True, False])
def test_last_tensors_without_gradients_are_left_out(alone):
    def backward(needs, grad, x, y):
        return lambda grad, x, y: grad * y if alone else (grad * y, grad * x)

    call = gluon.torch.planned(
        lambda x, y, *nothing: lambda x, y, *nothing: x * y, backward, keep=(0, 1)
    )
    x, y = (torch.randn(3, requires_grad=True) for _ in "xy")
    grads = torch.autograd.grad(call(x, y, None, None).sum(), (x, y), allow_unused=True)
    torch.testing.assert_close(grads, (y, None if alone else x))


def test_gradients_of_all_orders_by_plans():
    x, factor = operands()
    call = scaled_square([])
    of_both = lambda x, factor: call(x, factor, None)  # noqa: E731
    assert torch.autograd.gradcheck(of_both, (x, factor))
    assert torch.autograd.gradgradcheck(of_both, (x, factor))


def test_gradients_without_gradients_say_so():
    refuses_second_gradients(scaled_square([], again=False))


def test_a_result_that_is_kept_does_not_outlive_its_graph():
    call = gluon.torch.planned(
        lambda x: torch.exp,
        lambda needs, grad, result: lambda grad, result: grad * result,
        keep=(1,),
    )
    x = torch.ones(3, requires_grad=True)
    out = call(x)
    (grad,) = torch.autograd.grad(out, x, torch.ones(3))
    torch.testing.assert_close(grad, out.detach())
    held = weakref.ref(out)
    del out
    assert held() is None


def test_errors_of_builders_reach_the_caller():
    def broken(*arguments):
        raise ValueError("broken")

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match="broken"):
        gluon.torch.planned(broken, broken)(x)
    with pytest.raises(ValueError, match="broken"):
        gluon.torch.planned(lambda x: broken, broken)(x)
    with pytest.raises(ValueError, match="broken"):
        gluon.torch.planned(lambda x: torch.exp, broken)(x).sum().backward()
    with pytest.raises(IndexError):
        gluon.torch.planned(lambda x: torch.exp, broken, keep=(7,))(x)
