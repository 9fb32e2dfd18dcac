"""`gluon_kernels.gated_delta_rule` and `gated_linear_attention` through their public doors."""

from __future__ import annotations

import pytest
import torch

from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels import gated_delta_rule, gated_linear_attention
from gluon_kernels.linear_attention import launches, ops
from gluon_kernels.linear_attention.problem import DELTA, LINEAR, PROBLEMS, chunked, recurrence
from gluon_kernels.problem import error_of

pytestmark = pytest.mark.once

CASES = [pytest.param(p, s, id=f"{p.name}-{i}") for p in PROBLEMS for i, s in enumerate(p.small)]


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    ops._plans.forget()
    yield
    ops._plans.forget()


@pytest.mark.parametrize("problem, shape", CASES)
def test_every_form(problem, shape):
    assert problem.check(shape, "cpu") is None


@pytest.mark.parametrize("target", ["sim:sm_80", "sim:gfx942", "sim:sm_100"])
def test_other_targets(target, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    assert DELTA.check(DELTA.small[2], "cpu") is None


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_segments_and_groups_of_warps(problem, monkeypatch):
    long = {**problem.small[0], "length": 1100, "heads": 1, "width": 128, "values": 128}
    assert problem.check(long, "cpu") is None
    monkeypatch.setattr(launches, "multiprocessors", lambda x: 1)
    assert problem.check({**long, "length": 70}, "cpu") is None


def test_references_agree():
    """The chunked reference is the recurrence, token by token, in float64."""
    for problem in PROBLEMS:
        arguments = problem.arguments(problem.small[0], "cpu")
        for one, other in zip(chunked(**arguments), recurrence(**arguments)):
            assert error_of(one, other) < 1e-12


def test_equal_keys():
    """The inverse of a chunk has entries far from those of its factors where all keys are equal."""
    arguments = DELTA.arguments({**DELTA.small[1], "dtype": "bfloat16"}, "cpu")
    arguments["k"] = arguments["k"][:, :1].expand_as(arguments["k"]).contiguous()
    arguments["beta"] = torch.ones_like(arguments["beta"])
    for one, other in zip(
        gated_delta_rule(**arguments, return_state=True), recurrence(**arguments)
    ):
        assert error_of(one, other) < 3e-2


def test_states_continue_a_sequence():
    whole = LINEAR.arguments(LINEAR.small[0], "cpu")
    parts = [
        {n: x[:, a:b] for n, x in whole.items() if n != "initial_state"}
        for a, b in ((0, 80), (80, 150))
    ]
    first, state = gated_linear_attention(
        **parts[0], initial_state=whole["initial_state"], return_state=True
    )
    second, _ = gated_linear_attention(**parts[1], initial_state=state, return_state=True)
    result = torch.cat([first, second], 1)
    assert error_of(result, recurrence(**whole)[0]) < 2e-2


def tensors(length=70, width=64):
    q, k, v = (torch.randn(1, length, 2, width).bfloat16() for _ in "qkv")
    k = torch.nn.functional.normalize(k, dim=-1)
    return q, k, v, -torch.rand(1, length, 2), torch.rand(1, length, 2)


def test_strides_and_plans(monkeypatch):
    monkeypatch.setattr(ops, "is_plain", lambda *tensors: True)
    q, k, v, g, beta = tensors()
    right = gated_delta_rule(q, k, v, g, beta)
    mixed = torch.cat([q, k, v], -1)
    parts = mixed.split(64, -1)
    assert torch.equal(gated_delta_rule(*parts, g, beta), right)
    apart = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, g, beta)]
    assert torch.equal(gated_delta_rule(*apart, scale=None), right)
    before = len(ops._plans)
    gated_delta_rule(*(x.clone() for x in (q, k, v, g, beta)))
    assert len(ops._plans) == before


def test_no_tokens():
    q, k, v, g, beta = tensors(0)
    state = torch.randn(1, 2, 64, 64)
    out, final = gated_delta_rule(q, k, v, g, beta, initial_state=state, return_state=True)
    assert out.shape == v.shape and torch.equal(final, state)


X = torch.zeros(1, 8, 2, 64).bfloat16()
G = torch.zeros(1, 8, 2)
MISTAKES = [
    (lambda: gated_delta_rule(X.float(), X, X, G, G), DtypeError, "q: "),
    (lambda: gated_delta_rule(X, X.half(), X, G, G), DtypeError, "k: "),
    (lambda: gated_delta_rule(X[0], X, X, G, G), ShapeError, "q: "),
    (lambda: gated_delta_rule(X, X[..., :32], X, G, G), ShapeError, "k: "),
    (lambda: gated_delta_rule(X, X, X[:, :4], G, G), ShapeError, "v: "),
    (lambda: gated_delta_rule(X, X, X[:, :, :1], G, G), ShapeError, "v: .*multiple"),
    (lambda: gated_delta_rule(X, X, X, G[:, :4], G), ShapeError, "g: "),
    (lambda: gated_delta_rule(X, X, X, G, G.int()), DtypeError, "beta: "),
    (lambda: gated_linear_attention(X, X, X, G.to("meta")), ArgumentError, "g: "),
    (
        lambda: gated_linear_attention(X, X, X, G, initial_state=torch.zeros(1, 2, 64)),
        ShapeError,
        "initial_state: ",
    ),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_named_before_a_launch(number):
    call, error, words = MISTAKES[number]
    with pytest.raises(error, match=words):
        call()
