"""`gluon_kernels.attention` through its public door."""

from __future__ import annotations

import pytest
import torch

from gluon_core.errors import ArgumentError, CapabilityError, DtypeError, ShapeError
from gluon_kernels import attention, eager
from gluon_kernels.attention import ops
from gluon_kernels.attention.problem import PROBLEMS
from gluon_kernels.problem import error_of

pytestmark = pytest.mark.once

CASES = [pytest.param(p, s, id=f"{p.name}-{i}") for p in PROBLEMS for i, s in enumerate(p.small)]


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    for plans in (ops._plans, ops._gradient_plans):
        plans.forget()
    yield
    for plans in (ops._plans, ops._gradient_plans):
        plans.forget()


@pytest.mark.parametrize("problem, shape", CASES)
def test_every_form(problem, shape):
    assert problem.check(shape, "cpu") is None


@pytest.mark.parametrize("number", [0, 2, 3])
def test_repeatable_gradients(number):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert PROBLEMS[1].check(PROBLEMS[1].small[number], "cpu") is None
    finally:
        torch.use_deterministic_algorithms(before)


def heads(length=80, width=64, dtype=torch.bfloat16):
    return [torch.randn(1, 2, length, width).to(dtype) for _ in "qkv"]


def test_three_groups_of_warps(monkeypatch):
    """Tiles of 192 rows, which only many heads have otherwise."""
    from gluon_kernels.attention import launches

    monkeypatch.setattr(launches, "_tiles", lambda *arguments: (192, 128))
    for number in (0, 2):
        assert PROBLEMS[0].check(PROBLEMS[0].small[number], "cpu") is None


def test_plans_scale_and_memory_of_the_caller():
    q, k, v = heads()
    right = (q.double() @ k.double().mT * 0.5).softmax(-1) @ v.double()
    assert error_of(attention(q, k, v, scale=0.5), right) < 2e-2
    assert error_of(attention(q, k, v, scale=0.5), right) < 2e-2
    assert len(ops._plans) == 1
    for out in (
        torch.empty(1, 80, 2, 64).bfloat16().transpose(1, 2),
        torch.empty(1, 2, 64, 80).bfloat16().mT,
    ):
        assert attention(q, k, v, scale=0.5, out=out) is out
        assert error_of(out, right) < 2e-2


def test_the_operators_declare_what_they_do():
    q, k, v = (x.requires_grad_() for x in heads(70))
    done = torch.library.opcheck(
        torch.ops.gluon_kernels.attention.default, (q, k, v, True, 0.125), rtol=2e-2, atol=2e-2
    )
    assert set(done.values()) == {"SUCCESS"}
    compiled = torch.compile(
        lambda q, k, v: attention(q * 2, k, v), backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(q, k, v), attention(q * 2, k, v))


def test_calls_past_the_operators(monkeypatch):
    """The way of tensors on a GPU."""

    def plain(*tensors):
        return not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))

    monkeypatch.setattr(eager, "is_plain", plain)
    monkeypatch.setattr(ops, "is_plain", plain)
    for problem in PROBLEMS:
        assert problem.check(problem.small[2], "cpu") is None


def test_autocast_and_meta():
    q, k, v = heads(70, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attention(q, k, v).dtype is torch.bfloat16
    q, k, v = (x.bfloat16().to("meta") for x in (q, k, v))
    assert attention(q, k, v).shape == q.shape


X = torch.zeros(1, 2, 8, 64).bfloat16()
MISTAKES = [
    (lambda: attention(X.float(), X.float(), X.float()), DtypeError, "q: "),
    (lambda: attention(X, X.half(), X), DtypeError, "k: "),
    (lambda: attention(X[0], X[0], X[0]), ShapeError, "q: "),
    (lambda: attention(X, X, X[:, :1]), ShapeError, "v: "),
    (lambda: attention(X, X[..., :32], X[..., :32]), ShapeError, "k: "),
    (lambda: attention(X[:, :1], X, X), ShapeError, "k: .*divisor"),
    (lambda: attention(X, X[:, :, :0], X[:, :, :0]), ShapeError, "k: "),
    (lambda: attention(X, X.to("meta"), X), ArgumentError, "k: "),
    (lambda: attention(X, X, X, out=X[:, :1]), ShapeError, "out: "),
    (lambda: attention(X.clone(), X, X.clone(), out=X), ArgumentError, "out: .*k does not share"),
    (lambda: attention(*[torch.zeros(1, 1, 8, 256).half()] * 3), ShapeError, "q: "),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_named_before_a_launch(number):
    call, error, words = MISTAKES[number]
    with pytest.raises(error, match=words):
        call()


def test_other_devices_are_named(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:gfx942")
    with pytest.raises(CapabilityError, match="Hopper"):
        attention(X, X, X)
