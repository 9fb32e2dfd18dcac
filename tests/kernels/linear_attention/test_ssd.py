"""`gluon_kernels.ssd` through its public door."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels import eager, ssd
from gluon_kernels.linear_attention import (
    decay_gradients,
    decay_launches,
    launches,
    shared_heads,
    ssd_gradients,
)
from gluon_kernels.problem import error_of
from tests.kernels.launched import launches_of
from tests.kernels.routes import route

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    sys.modules["gluon_kernels.linear_attention.ssd"]._plans.forget()
    ssd_gradients._plans.forget()


def inputs(length=70, heads=4, groups=2, width=64, size=32):
    x = torch.randn(1, length, heads, width).bfloat16()
    b, c = (torch.randn(1, length, groups, size).bfloat16() / size**0.5 for _ in "bc")
    return x, torch.randn(1, length, heads), -torch.rand(heads) - 0.1, b, c


def scan(x, dt, a, b, c, d, bias, state):
    """Return the scan token by token."""
    b, c = (t.repeat_interleave(x.shape[2] // t.shape[2], 2) for t in (b, c))
    step = torch.nn.functional.softplus(dt + bias)
    results = []
    for t in range(x.shape[1]):
        taken = (step[:, t, :, None] * b[:, t])[..., None] * x[:, t, :, None, :]
        state = state * (step[:, t] * a).exp()[..., None, None] + taken
        results.append((state * c[:, t, :, :, None]).sum(-2) + d[:, None] * x[:, t])
    return torch.stack(results, 1), state


def test_results_states_and_gradients(length=70, groups=2, width=64):
    torch.manual_seed(
        3
    )  # gradients of `a` and `dt_bias` are sums over tokens, which cancel in some draws
    x, dt, a, b, c = inputs(length, 4, groups, width)
    d, bias, state = torch.randn(4), torch.randn(4), torch.randn(1, 4, 32, width)
    ours = [t.requires_grad_() for t in (x, dt, a, b, c, d, bias, state)]
    options = dict(d=d, dt_bias=bias, dt_softplus=True, initial_state=state)
    results = ssd(x, dt, a, b, c, **options, return_state=True)
    wide = [t.detach().double().requires_grad_() for t in ours]
    right = scan(*wide)
    for one, other in zip(results, right):
        assert error_of(one, other) < 2e-2
    assert torch.equal(ssd(x, dt, a, b, c, **options), results[0])
    grads = [torch.randn_like(one) for one in results]
    mine = torch.autograd.grad(results, ours, grads)
    for one, other in zip(mine, torch.autograd.grad(right, wide, [g.double() for g in grads])):
        assert error_of(one, other) < 2e-2


def test_calls_past_the_operators(monkeypatch):
    """The way of tensors on a GPU: the walks apply steps and weights themselves."""

    def plain(*tensors, gradients=False):
        return gradients or not (
            torch.is_grad_enabled() and any(t.requires_grad for t in tensors if t is not None)
        )

    scans = sys.modules["gluon_kernels.linear_attention.ssd"]
    x, dt, a, b, c = inputs(100, width=80)
    with torch.no_grad():
        known = ssd(x, dt.abs(), a, b, c)
        monkeypatch.setattr(scans, "is_plain", plain)
        assert error_of(ssd(x, dt.abs(), a, b, c), known) < 1e-2
        assert len(scans._plans) == 1
        assert ssd(*(t[:, :0] for t in (x, dt)), a, b[:, :0], c[:, :0]).shape[1] == 0
    monkeypatch.setattr(eager, "route", route)
    test_results_states_and_gradients()
    assert len(scans._plans) == 3


@pytest.mark.sampled(3)
@pytest.mark.parametrize("each, width", [(1, 64), (2, 128), (4, 40)])
def test_gradients_of_heads_that_share_keys(each, width, monkeypatch):
    """A program adds up those of a group; groups that share keys are added up behind it."""
    monkeypatch.setattr(decay_gradients, "heads_of_group", lambda sizes, processors: each)
    monkeypatch.setattr(eager, "route", route)
    test_results_states_and_gradients(groups=1, width=width)
    assert len(ssd_gradients._plans) == 1


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kept, few", [(True, 0), (False, 0), (False, 3)])
def test_states_and_their_gradients_walk_in_segments(kept, few, monkeypatch):
    """Walks back, and those over states that forward did not keep, need nothing of each other: they are programs of one launch."""
    monkeypatch.setattr(launches, "least_time", lambda walks: (3, 1))
    monkeypatch.setattr(decay_launches, "AHEAD", 1)
    monkeypatch.setattr(decay_launches, "FEW_SEGMENTS", few)
    if kept:
        monkeypatch.setattr(eager, "route", route)
    every = launches_of(lambda: test_results_states_and_gradients(length=130), "sim:sm_90")
    walks = [one for one in every if one.kernel.fn.__name__ == "recur_decaying"]
    walks = walks[:2] + walks[-2:]  # a forward that keeps what it may, and gradients

    def taken(name):
        return [one.arguments[one.kernel.arg_names.index(name)] is not None for one in walks]

    assert taken("states_desc") == [False, kept, False, True]
    assert taken("grad_desc") == [False, False, not kept, not kept]
    assert taken("fresh") == [False, True, False, True]
    assert taken("totals") == [True, few > 0] * 2
    both = 1 if kept else 2
    assert [one.grid[2] // walks[0].grid[2] for one in walks] == [1, 1, both, both]
    # Those that read states before segments are placed while these are computed.
    assert [one.options.get("launch_pdl", False) for one in walks] == [False, True, False, True]
    sums = [one for one in every if one.kernel.fn.__name__ == "add_segments"]
    assert bool(sums) == (not few) and all(one.options["launch_pdl"] for one in sums)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("programs, each, width", [(1, 2, 128), (3, 1, 64)])
def test_programs_walk_over_groups_of_heads(programs, each, width, monkeypatch):
    monkeypatch.setattr(decay_gradients, "multiprocessors", lambda x: programs)
    monkeypatch.setattr(decay_gradients, "heads_of_group", lambda sizes, processors: each)
    test_results_states_and_gradients(groups=1, width=width)


def test_sums_of_chunks():
    """The gradients of `a`, `d` and `dt_bias` add up more chunks than a program reads at a time, and an odd number of heads."""
    x = torch.randn(3, 2, 70, 11)
    assert error_of(shared_heads.chunks_plan(x)(x), x.sum((1, 2))) < 1e-6


def test_groups_have_all_heads_that_share_keys_if_there_are_enough():
    many = launches.Sizes(1, 65536, 32, 32, 128, 64, 1024, 1, 1024, False, False, True, 1)
    few = replace(many, length=256, chunks=4)
    assert decay_gradients.heads_of_group(many, 132) == 32
    assert decay_gradients.heads_of_group(few, 132) == 1
    assert decay_gradients.heads_of_group(replace(many, shared=1), 132) == 1


def test_autocast_casts_operands():
    x, dt, a, b, c = inputs(8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ssd(x.float(), dt, a, b.float(), c.float()), ssd(x, dt, a, b, c))


X, DT, A, B, C = inputs(8)
MISTAKES = [
    (lambda: ssd(X[0], DT, A, B, C), ShapeError, "x: "),
    (lambda: ssd(X, DT[:, :4], A, B, C), ShapeError, "dt: "),
    (lambda: ssd(X, DT, A.long(), B, C), DtypeError, "a: "),
    (lambda: ssd(X, DT, A, B[:, :, :0], C), ShapeError, "b: "),
    (lambda: ssd(X, DT, A, B, C[..., :8]), ShapeError, "c: "),
    (lambda: ssd(X, DT, A, B, C, d=A[:2]), ShapeError, "d: "),
    (lambda: ssd(X, DT, A.to("meta"), B, C), ArgumentError, "a: "),
    (lambda: ssd(X.float(), DT, A, B, C), DtypeError, "x: "),
    (lambda: ssd(X, DT, A, B, C.float()), DtypeError, "c: ssd takes"),
    (lambda: ssd(X[..., :0], DT, A, B, C), ShapeError, "x: "),
    (lambda: ssd(X, DT, A, *[B.repeat(1, 1, 1, 9)] * 2), ShapeError, "b: .*1 to 256"),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_named_before_a_launch(number):
    call, error, words = MISTAKES[number]
    with pytest.raises(error, match=words):
        call()


def test_batches_past_the_third_axis_of_a_grid(monkeypatch):
    """Gradients of what batches share are sums over the launches."""
    x, dt, a, b, c = (t.expand(3, *t.shape[1:]).clone() if t.ndim > 1 else t for t in inputs(20))
    d, bias, state = torch.randn(4), torch.randn(4), torch.randn(3, 4, 32, 64)
    leaves = [t.requires_grad_() for t in (x, dt, a, b, c, d, bias, state)]

    def results():
        options = dict(d=d, dt_bias=bias, initial_state=state, return_state=True)
        outs = ssd(x, dt, a, b, c, **options)
        return (*outs, *torch.autograd.grad(outs, leaves, [torch.ones_like(o) for o in outs]))

    whole = results()
    sys.modules["gluon_kernels.linear_attention.ssd"]._plans.forget()
    monkeypatch.setattr(sys.modules["gluon_kernels.linear_attention.ops"], "BATCHES", 2)
    parts = []
    grids = [x.grid for x in launches_of(lambda: parts.extend(results()), "sim:sm_90")]
    assert max(grid[2] for grid in grids if len(grid) > 2) <= 4
    for one, other in zip(parts, whole):
        assert error_of(one, other) < 1e-2


def test_calls_without_gradients_take_more_batches_than_a_grid(monkeypatch):
    """They have no way through autograd, which takes the two results apart."""
    tensors = [t.expand(3, *t.shape[1:]).clone() if t.ndim > 1 else t for t in inputs(20)]
    whole = ssd(*tensors, return_state=True)
    module = sys.modules["gluon_kernels.linear_attention.ssd"]
    monkeypatch.setattr(module, "is_plain", lambda *tensors: True)
    monkeypatch.setattr(sys.modules["gluon_kernels.linear_attention.ops"], "BATCHES", 2)
    for one, other in zip(ssd(*tensors, return_state=True), whole):
        assert error_of(one, other) < 1e-2
