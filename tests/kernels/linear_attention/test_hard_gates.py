"""Gates and rates that sequences of models seldom have, against references in float64, through public doors."""

from __future__ import annotations

import pytest
import torch

from gluon_core.registry.load import registry
from gluon_kernels.linear_attention import decay_gradients, gradients, ops
from gluon_kernels.linear_attention.problem import (
    DELTA_GRADIENTS,
    KDA_GRADIENTS,
    LINEAR_GRADIENTS,
)
from gluon_kernels.problem import error_of
from tests.kernels.launched import launches_of

pytestmark = [pytest.mark.once, pytest.mark.sampled(6)]

PROBLEMS = [DELTA_GRADIENTS, LINEAR_GRADIENTS, KDA_GRADIENTS]


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    for plans in (ops._plans, ops._gradient_plans):
        plans.forget()
    yield
    for plans in (ops._plans, ops._gradient_plans):
        plans.forget()


def shape_of(problem, batch, length, heads, width=64):
    values = 64 if problem is LINEAR_GRADIENTS else width
    sizes = {"batch": batch, "length": length, "heads": heads, "width": width, "values": values}
    return {**sizes, "heads of keys": heads}


def errors(problem, arguments):
    return [
        error_of(one, right)
        for one, right in zip(problem.op(**arguments), problem.reference(**arguments))
        if right.abs().max() > 1e-6
    ]


def weak(g, beta):
    g.zero_()


def strong(g, beta):
    g *= 16


def huge(g, beta):
    g *= 400


def cliffs(g, beta):
    g.copy_(torch.where(torch.rand_like(g) < 0.05, -80.0, -0.001))


def half_of_the_rates(g, beta):
    if beta is not None:
        beta *= torch.rand_like(beta) < 0.5


def full_rates(g, beta):
    if beta is not None:
        beta.fill_(1.0)


@pytest.mark.parametrize(
    "change", [weak, strong, huge, cliffs, half_of_the_rates, full_rates], ids=lambda x: x.__name__
)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda x: x.name)
def test_gates_and_rates(problem, change):
    """The second chunk has one token."""
    torch.manual_seed(3)
    arguments = problem.arguments(shape_of(problem, 1, 65, 2), "cpu")
    with torch.no_grad():
        change(arguments["g"], arguments.get("beta"))
    assert max(errors(problem, arguments)) < problem.tolerance


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda x: x.name)
def test_rates_of_zero_take_nothing_in(problem):
    """Gradients of queries, keys and values are zero, those of rates are not."""
    if problem is LINEAR_GRADIENTS:
        pytest.skip("has no rates")
    torch.manual_seed(3)
    arguments = problem.arguments(shape_of(problem, 1, 65, 2), "cpu")
    with torch.no_grad():
        arguments["beta"].zero_()
    *others, rates = problem.op(**arguments)
    assert not any(x.any() for x in others)
    assert error_of(rates, problem.reference(**arguments)[-1]) < problem.tolerance


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda x: x.name)
def test_one_token(problem):
    """Sums of few products of both signs cancel: errors are those of the gradient's own products."""
    torch.manual_seed(3)
    arguments = problem.arguments(shape_of(problem, 2, 1, 8), "cpu")
    assert max(errors(problem, arguments)) < problem.tolerance


@pytest.mark.parametrize("module, problem, width", [(gradients, DELTA_GRADIENTS, 128), (decay_gradients, LINEAR_GRADIENTS, 64)])  # fmt: skip
def test_a_program_takes_several_chunks_and_columns(module, problem, width, monkeypatch):
    """Slots of all rings are taken again, a head has two tiles of columns, and states last: most of a gate's gradient is what they carry past its chunk."""
    monkeypatch.setattr(module, "multiprocessors", lambda x: 1)
    shape = {**shape_of(problem, 1, 330, 1, width), "values": 128, "state": True}
    arguments = problem.arguments(shape, "cpu")
    with torch.no_grad():
        arguments["g"] *= 0.05
    assert max(errors(problem, arguments)) < problem.tolerance


@pytest.mark.campaign
def test_gradients_of_wide_gates_fit_into_the_memory_of_gfx942(monkeypatch):
    """A block has 64 KiB; all 128 channels at a time would take 88."""
    monkeypatch.setenv("GLUON_TARGET", "sim:gfx942")
    shape = {**shape_of(KDA_GRADIENTS, 1, 70, 1, 128), "values": 64}
    assert KDA_GRADIENTS.check(shape, "cpu") is None
    arguments = KDA_GRADIENTS.arguments(shape, "cpu")
    every = launches_of(lambda: KDA_GRADIENTS.op(**arguments), "sim:gfx942")
    (last,) = [one for one in every if one.kernel.fn.__name__ == "channel_gradients"]
    target = registry().target("gfx942")
    compiled = last.kernel.warmup(*last.arguments, grid=last.grid, target=target, **last.options)
    assert compiled.metadata.shared <= target.limits.shared_memory == 64 << 10
