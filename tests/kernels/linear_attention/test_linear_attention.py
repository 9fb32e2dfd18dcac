"""`gluon_kernels.gated_delta_rule`, `kda` and `gated_linear_attention` through their public doors."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels import eager, gated_delta_rule, gated_linear_attention, kda
from gluon_kernels.linear_attention import cost, gradients, launches, ops
from gluon_kernels.linear_attention.problem import (
    DELTA,
    DELTA_GRADIENTS,
    KDA,
    KDA_GRADIENTS,
    LINEAR,
    LINEAR_GRADIENTS,
    PROBLEMS,
    chunked,
    chunked_by_channel,
    recurrence,
)
from gluon_kernels.problem import error_of
from tests.kernels.launched import launches_of
from tests.kernels.routes import route

pytestmark = [pytest.mark.once, pytest.mark.sampled(17)]

CASES = [pytest.param(p, s, id=f"{p.name}-{i}") for p in PROBLEMS for i, s in enumerate(p.small)]


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    for plans in (ops._plans, ops._gradient_plans):
        plans.forget()
    yield
    for plans in (ops._plans, ops._gradient_plans):
        plans.forget()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("problem, shape", CASES)
def test_every_form(problem, shape):
    assert problem.check(shape, "cpu") is None


@pytest.mark.sampled(6)
@pytest.mark.parametrize("problem", [DELTA_GRADIENTS, KDA_GRADIENTS], ids=lambda p: p.name)
@pytest.mark.parametrize("target", ["sim:sm_80", "sim:gfx942", "sim:sm_100"])
def test_other_targets(target, problem, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    assert problem.check(DELTA.small[2], "cpu") is None


def test_gradients_where_products_of_different_depths_differ_in_layout(monkeypatch):
    """On gfx950 the accumulator of 64 x 64 values is not the one of 64 x 64 tokens."""
    monkeypatch.setenv("GLUON_TARGET", "sim:gfx950")
    assert DELTA_GRADIENTS.check({**DELTA.small[0], "length": 70}, "cpu") is None


@pytest.mark.parametrize("programs, each", [(1, 1), (2, 2)])
def test_gradients_of_groups_of_heads(programs, each, monkeypatch):
    """Programs walk over several groups, whose heads add up the gradients of their queries and keys."""
    monkeypatch.setattr(gradients, "multiprocessors", lambda x: programs)
    monkeypatch.setattr(gradients, "heads_of_group", lambda sizes, processors: each)
    shape = {**DELTA.small[0], "length": 70, "heads": 4, "heads of keys": 2, "width": 64 * each}
    assert DELTA_GRADIENTS.check(shape, "cpu") is None


KEPT = [(DELTA_GRADIENTS, 2, 1), (LINEAR_GRADIENTS, 0, 0), (KDA_GRADIENTS, 2, 2)]


@pytest.mark.parametrize("problem, walks, preparations", KEPT, ids=lambda p: str(getattr(p, "name", p)))  # fmt: skip
def test_gradients_by_tensors_that_forward_kept(problem, walks, preparations, monkeypatch):
    """Operators of `torch.library` compute it again."""
    monkeypatch.setattr(launches, "least_time", lambda walks: (2, 1))
    arguments = problem.arguments({**problem.small[0], "length": 130, "heads": 1}, "cpu")
    again = problem.op(**arguments)
    monkeypatch.setattr(eager, "route", route)
    results = []
    every = launches_of(lambda: results.append(problem.op(**arguments)), "sim:sm_90")
    names = [one.kernel.fn.__name__ for one in every]
    assert names.count("recur") == walks
    assert sum(name.startswith("prepare") for name in names) == preparations
    assert all(torch.equal(one, other) for one, other in zip(results[0], again))


@pytest.mark.sampled(1)
def test_checkpoints_of_calls(monkeypatch):
    """They keep nothing, and what a call keeps serves gradients more than once."""
    monkeypatch.setattr(eager, "route", route)
    inputs = [x.requires_grad_() for x in tensors(40)[:4]]
    grad, kept = torch.randn_like(inputs[2]), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        result = gated_linear_attention(*inputs)
    assert len(kept) == len(inputs) + 1  # the states of chunks
    right = torch.autograd.grad(result, inputs, grad, retain_graph=True)
    for result in (result, checkpoint(gated_linear_attention, *inputs, use_reentrant=False)):
        results = torch.autograd.grad(result, inputs, grad)
        assert all(torch.equal(one, other) for one, other in zip(results, right))


def test_walks_back_take_no_memory_of_the_walk_in_front(monkeypatch):
    """The first walk back of segments begins while the walk over states runs, and stores what its segments take in."""
    alive, kept = [], []

    class Watched(launches.Workspace):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            new = self.segments

            def segments():
                alive.append([one() is not None for one in kept])
                result = new()
                kept.append(weakref.ref(result))
                return result

            self.segments = segments

    monkeypatch.setattr(gradients, "Workspace", Watched)
    monkeypatch.setattr(launches, "least_time", lambda walks: (2, 1))
    shape = {**DELTA.small[0], "length": 130, "heads": 1, "heads of keys": 1}
    arguments = DELTA_GRADIENTS.arguments(shape, "cpu")
    every = launches_of(lambda: DELTA_GRADIENTS.op(**arguments), "sim:sm_90")
    back = [one for one in every if one.kernel.fn.__name__ == "recur_back"]
    assert [one.options.get("launch_pdl", False) for one in back] == [True, False]
    assert len(alive) == 6 and alive[4][3]  # three were made for the plan


@pytest.mark.sampled(13)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_segments_and_groups_of_warps(problem, monkeypatch):
    torch.manual_seed(3)  # the only head's gradient of `a` is a sum that cancels in some draws
    long = {
        **problem.small[0], "length": 330, "heads": 1, "groups": 1, "width": 128, "values": 128
    }  # fmt: skip
    monkeypatch.setattr(launches, "least_time", lambda walks: (4, 1))
    assert problem.check(long, "cpu") is None
    for plans in (ops._plans, ops._gradient_plans):
        plans.forget()
    monkeypatch.setattr(launches, "least_time", lambda walks: (1, 2))
    monkeypatch.setattr(launches, "multiprocessors", lambda x: 1)
    assert problem.check({**long, "length": 70}, "cpu") is None


def test_segments_are_those_that_take_the_least_time():
    def ways(heads, chunks, width=128, delta=True, processors=132):
        return cost.least_time(cost.Walks(heads, chunks, width, width, delta, False, processors))

    for delta in (True, False):
        assert ways(128, 64, delta=delta)[0] == 1  # heads that fill the device
        assert ways(8, 4, delta=delta)[0] == 1  # too short to be walked twice
        segments, groups = ways(8, 1024, delta=delta)
        assert segments >= 6
        assert ways(1, 1024, delta=delta, processors=4)[0] < segments
        assert ways(8, 1024, width=64, delta=delta)[1] == 1  # a group has 64 columns
    assert ways(8, 1024)[1] == ways(128, 64, delta=False)[1] == 2


@pytest.mark.sampled(1)
def test_memory_bounds_the_segments_of_many_heads():
    walks = cost.Walks(64, 209, 128, 64, False, False, 132)
    assert cost.least_time(walks)[0] == 1  # two would read keys and values of the first once more
    assert cost.least_time(walks._replace(shared=8))[0] == 2  # which the L2 cache has
    assert cost.least_time(walks._replace(heads=8))[0] > 2


@pytest.mark.sampled(1)
def test_long_walks_take_two_waves_of_programs():
    """Two segments of 64 heads leave half of the device without a program before; three leave the second wave half empty."""
    walks = cost.Walks(64, 443, 128, 64, False, False, 132, 8)
    assert cost.least_time(walks)[0] == 2
    assert cost.least_time(walks._replace(waves=2))[0] == 4
    assert cost.least_time(walks._replace(waves=2, chunks=30))[0] <= 2


@pytest.mark.sampled(1)
def test_a_walk_begins_while_the_last_programs_of_its_preparation_end(monkeypatch):
    arguments = DELTA.arguments({**DELTA.small[0], "length": 200}, "cpu")

    def overlaps(processors):
        monkeypatch.setattr(launches, "multiprocessors", lambda x: processors)
        monkeypatch.setattr(launches, "least_time", lambda walks: (1, 1))
        both = launches_of(lambda: gated_delta_rule(**arguments), "sim:sm_90")
        return [one.options.get("launch_pdl", False) for one in both]

    assert overlaps(132) == [False, True]
    assert overlaps(1) == [False, False]  # 8 programs, of which four are under way at a time


def test_references_agree():
    """The chunked reference is the recurrence, token by token, in float64."""
    for problem, reference in ((DELTA, chunked), (LINEAR, chunked), (KDA, chunked_by_channel)):
        arguments = problem.arguments(problem.small[0], "cpu")
        for one, other in zip(reference(**arguments), recurrence(**arguments)):
            assert error_of(one, other) < 1e-12


def by_channel(gates, width=64, length=70):
    """Return the arguments of `kda` with some gates, and with an initial state."""
    q, k, v, _, beta = tensors(length, width)
    g = gates(1, length, 2, width)
    return (q, k, v, g, beta), torch.randn(1, 2, width, width)


def strong(*shape):
    """Return gates of which some decay by e^-60 a token: their sums within a chunk are far past the exponents of float32."""
    return torch.where(torch.rand(*shape) < 0.5, -60.0, -0.02) * torch.rand(*shape)


def forgetting(*shape):
    """Return gates of which some forget their channel."""
    return torch.where(torch.rand(*shape) < 0.05, -torch.inf, -0.02)


def barely_mild(batch, length, *shape):
    """Return gates of which some halves of blocks decay almost as far as products with one anchor may."""
    strong = torch.rand(batch, -(-length // 8), *shape) < 0.5
    return torch.where(strong, -4.2, -0.05).repeat_interleave(8, 1)[:, :length].contiguous()


def barely_gentle(batch, length, *shape):
    """Return gates of which some halves of chunks decay almost as far as products with one anchor for the chunk may."""
    strong = torch.rand(batch, -(-length // 32), *shape) < 0.5
    return torch.where(strong, -2.15, -0.05).repeat_interleave(32, 1)[:, :length].contiguous()


@pytest.mark.parametrize(
    "gates", [strong, barely_mild, barely_gentle, forgetting, torch.zeros], ids=lambda f: f.__name__
)
def test_gates_of_any_strength(gates):
    inputs, state = by_channel(gates)
    results = kda(*inputs, initial_state=state, return_state=True)
    for one, other in zip(results, recurrence(*inputs, initial_state=state)):
        assert error_of(one, other) < 2e-2


@pytest.mark.parametrize("gates", [strong, barely_mild, barely_gentle], ids=lambda f: f.__name__)
def test_gradients_of_gates_of_any_strength(gates):
    inputs, state = by_channel(gates)
    leaves = [x.requires_grad_() for x in (*inputs, state)]
    grad = torch.randn_like(inputs[2])
    ours = torch.autograd.grad(kda(*inputs, initial_state=state), leaves, grad)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    right = recurrence(*wide[:5], initial_state=wide[5])[0]
    for one, other in zip(ours, torch.autograd.grad(right, wide, grad.double())):
        assert error_of(one, other) < 2e-2


def test_one_gate_for_all_channels_is_the_gated_delta_rule():
    q, k, v, g, beta = tensors()
    one = kda(q, k, v, g[..., None].expand(*g.shape, 64), beta)
    assert error_of(one, gated_delta_rule(q, k, v, g, beta)) < 2e-2


@pytest.mark.sampled(5)
@pytest.mark.parametrize("width", [16, 200])
def test_other_widths_of_keys(width):
    inputs, _ = by_channel(strong, width, 66)
    assert error_of(kda(*inputs), recurrence(*inputs)[0]) < 2e-2


def test_wide_keys_need_shared_memory(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:gfx942")
    with pytest.raises(ShapeError, match="1 to 128, got 160"):
        LINEAR.check({**LINEAR.small[0], "length": 5, "width": 160, "state": False}, "cpu")


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


def test_gradients_through_final_states():
    q, k, v, g, beta = (x.requires_grad_() for x in tensors())
    state = torch.randn(1, 2, 64, 64, requires_grad=True)
    inputs = (q, k, v, g, beta, state)
    grads = torch.randn_like(v), torch.randn(1, 2, 64, 64)
    results = gated_delta_rule(*inputs[:5], initial_state=state, return_state=True)
    ours = torch.autograd.grad(results, inputs, grads)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    results = recurrence(*wide[:5], initial_state=wide[5])
    right = torch.autograd.grad(results, wide, [x.double() for x in grads])
    for one, other, x in zip(ours, right, inputs):
        assert one.dtype == x.dtype and error_of(one, other) < 2e-2


def test_declaration():
    q, k, v, g, beta = (x.requires_grad_() for x in tensors(70, 64))
    op = torch.ops.gluon_kernels.linear_attention.default
    for rates in (beta, None):
        done = torch.library.opcheck(op, (q, k, v, g, rates, None, 0.125), rtol=2e-2, atol=2e-2)
        assert set(done.values()) == {"SUCCESS"}
    wide = (-torch.rand(1, 70, 2, 64)).requires_grad_()
    done = torch.library.opcheck(op, (q, k, v, wide, beta, None, 0.125), rtol=2e-2, atol=2e-2)
    assert set(done.values()) == {"SUCCESS"}
    compiled = torch.compile(
        lambda *t: gated_delta_rule(t[0] * 2, *t[1:]), backend="eager", fullgraph=True
    )
    inputs = (q, k, v, g, beta)
    assert torch.equal(compiled(*inputs), gated_delta_rule(q * 2, *inputs[1:]))


def test_calls_past_the_operators(monkeypatch):
    """The way of tensors on a GPU."""

    def plain(*tensors, gradients=False):
        return gradients or not (
            torch.is_grad_enabled() and any(t.requires_grad for t in tensors if t is not None)
        )

    monkeypatch.setattr(eager, "route", route)
    monkeypatch.setattr(ops, "is_plain", plain)
    for problem in (DELTA, DELTA_GRADIENTS):
        assert problem.check(problem.small[2], "cpu") is None


def test_no_tokens():
    q, k, v, g, beta = tensors(0)
    state = torch.randn(1, 2, 64, 64)
    out, final = gated_delta_rule(q, k, v, g, beta, initial_state=state, return_state=True)
    assert out.shape == v.shape and torch.equal(final, state)


X = torch.zeros(1, 8, 2, 64).bfloat16()
G = torch.zeros(1, 8, 2)
W = torch.zeros(1, 8, 2, 64)
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
    (lambda: gated_delta_rule(X, X, X, W, G), ShapeError, "g: "),
    (lambda: kda(X, X, X, G, G), ShapeError, "g: .*channel"),
    (lambda: kda(X, X, X, W[..., :32], G), ShapeError, "g: .*channel"),
    (lambda: kda(X, X, X, W, W), ShapeError, "beta: "),
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


@pytest.mark.parametrize("problem", [DELTA, DELTA_GRADIENTS, LINEAR], ids=lambda p: p.name)
def test_batches_past_the_third_axis_of_a_grid(problem, monkeypatch):
    """Launches share the batches; the last ones have fewer."""
    monkeypatch.setattr(ops, "BATCHES", 2)
    shape = {**problem.small[0], "batch": 3, "length": 20}
    arguments = problem.arguments(shape, "cpu")
    grids = [x.grid for x in launches_of(lambda: problem.op(**arguments), "sim:sm_90")]
    assert grids and max(grid[2] for grid in grids if len(grid) > 2) <= 4
    assert problem.check(shape, "cpu") is None
