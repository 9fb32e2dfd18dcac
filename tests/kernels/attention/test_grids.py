"""Attention of more heads and batches than an axis of a grid has programs."""

from __future__ import annotations

import importlib

import pytest
import torch

from gluon_kernels import attention, attention_varlen
from gluon_kernels.attention import ops
from gluon_kernels.attention.problem import ATTENTION, GRADIENTS, VARLEN_GRADIENTS, lists_of
from gluon_kernels.problem import error_of
from tests.kernels.attention.masked import masked
from tests.kernels.launched import launches_of

pytestmark = [pytest.mark.once, pytest.mark.sampled(12), pytest.mark.usefixtures("hopper")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("repeatable", [False, True])
def test_gradients_of_heads_past_the_second_axis_of_a_grid(repeatable, monkeypatch):
    """Launches share the batches; the last ones have fewer."""
    plans = importlib.import_module("gluon_kernels.attention.launches")
    monkeypatch.setattr(plans, "GRID", 5)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: repeatable)
    shape = {"batch": 3, "heads": 2, "length": 5, "width": 64, "causal": True}
    arguments = GRADIENTS.arguments(shape, "cpu")
    launches = launches_of(lambda: GRADIENTS.op(**arguments), "sim:sm_90")
    assert [x.grid[1] for x in launches if len(x.grid) > 1 and x.grid[1] > 5] == []
    assert GRADIENTS.check(shape, "cpu") is None


@pytest.mark.sampled(10)
@pytest.mark.parametrize("target", ["sim:sm_90", "sim:sm_80"])
@pytest.mark.parametrize(
    "batch, heads, most, width, count",
    [
        (1, (4, 2), 3, 64, 2),
        (2, (4, 2), 3, 192, 2),
        (1, (17, 1), 16, 64, 2),  # all on one head of keys
        (2, (6, 2), 2, 64, 6),
    ],
)
def test_gradients_of_heads_of_a_batch_past_the_second_axis_of_a_grid(
    batch, heads, most, width, count, target, monkeypatch
):
    monkeypatch.setenv("GLUON_TARGET", target)
    routes = importlib.import_module("gluon_kernels.attention.routes")
    monkeypatch.setattr(routes, "HEADS", most)
    shape = {
        "batch": batch,
        "heads": heads[0],
        "heads of keys": heads[1],
        "length": 5,
        "width": width,
    }
    arguments = GRADIENTS.arguments(shape, "cpu")
    launches = launches_of(lambda: GRADIENTS.op(**arguments), target)
    names = [x.kernel.fn.__name__ for x in launches]
    of_keys = [name for name in names if "key_gradients" in name or name == "gradients_atomic"]
    assert len(of_keys) == count
    assert GRADIENTS.check(shape, "cpu") is None


@pytest.mark.sampled(6)
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("heads, of_keys, most", [(4, 2, 3), (17, 1, 16), (6, 2, 2)])
def test_heads_of_a_batch_past_the_second_axis_of_a_grid(heads, of_keys, most, sinks, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_80")
    q = torch.randn(2, heads, 5, 32).half()
    k, v = (torch.randn(2, of_keys, 5, 32).half() for _ in "kv")
    more = {"sinks": torch.randn(heads)} if sinks else {}
    whole = attention(q, k, v, causal=True, **more)
    ops._plans.forget()
    routes = importlib.import_module("gluon_kernels.attention.routes")
    monkeypatch.setattr(routes, "HEADS", most)
    launches = launches_of(lambda: attention(q, k, v, causal=True, **more), "sim:sm_80")
    assert len(launches) > 1 and all(x.grid[1] <= most for x in launches)
    assert torch.equal(attention(q, k, v, causal=True, **more), whole)
    out = torch.empty_like(whole)
    assert torch.equal(attention(q, k, v, causal=True, out=out, **more), whole)
    ops._plans.forget()


@pytest.mark.sampled(21)
@pytest.mark.parametrize("width", [64, 192])
@pytest.mark.parametrize("target", ["sim:sm_90", "sim:sm_80"])
@pytest.mark.parametrize("heads, of_keys, most, count", [(4, 2, 3, 2), (17, 1, 16, 2)])
def test_heads_of_packed_sequences_past_the_second_axis_of_a_grid(
    heads, of_keys, most, count, target, width, monkeypatch
):
    monkeypatch.setenv("GLUON_TARGET", target)
    routes = importlib.import_module("gluon_kernels.attention.routes")
    monkeypatch.setattr(routes, "HEADS", most)
    shape = {"lengths": (5, 0, 3), "heads": heads, "heads of keys": of_keys, "width": width}
    arguments = VARLEN_GRADIENTS.arguments(shape, "cpu")
    launches = launches_of(lambda: VARLEN_GRADIENTS.op(**arguments), target)
    names = [x.kernel.fn.__name__ for x in launches]
    of_queries = [n for n in names if "query_gradients" in n or n == "varlen_gradients_atomic"]
    assert len(of_queries) == count
    assert VARLEN_GRADIENTS.check(shape, "cpu") is None


@pytest.mark.sampled(1)
def test_batches_past_the_third_axis_of_a_grid(monkeypatch):
    """Launches share the batches, with and without a place for the result."""
    plans = importlib.import_module("gluon_kernels.attention.portable_launches")
    monkeypatch.setattr(plans, "GRID", 17)
    monkeypatch.setenv("GLUON_TARGET", "sim:gfx942")
    shape = {"batch": 18, "heads": 1, "length": 3, "width": 32, "causal": True}
    for problem in (ATTENTION, GRADIENTS):
        arguments = problem.arguments(shape, "cpu")
        launches = launches_of(lambda p=problem, a=arguments: p.op(**a), "sim:gfx942")
        assert {16, 2} == {x.grid[2] for x in launches}
        assert problem.check(shape, "cpu") is None
    q, k, v = (torch.randn(18, 1, 3, 32).bfloat16() for _ in "qkv")
    result = torch.empty_like(q)
    assert attention(q, k, v, causal=True, out=result) is result
    assert torch.equal(result, attention(q, k, v, causal=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize(
    "batch, heads, of_keys, width, options",
    [
        (1, 65552, 65552, 64, {"causal": True}),
        (1, 65552, 1, 64, {}),
        (65552, 1, 1, 128, {"causal": True}),
        (2, 32776, 32776, 64, {}),
        (1, 65552, 65552, 64, {"window": (2, 1)}),
        (1, 65552, 32776, 192, {"causal": True}),
    ],
)
def test_heads_past_an_axis_of_a_grid_on_a_gpu(
    batch, heads, of_keys, width, options, repeatable, monkeypatch
):
    monkeypatch.delenv("GLUON_TARGET")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: repeatable)
    torch.manual_seed(0)
    sizes = (heads, 20), (of_keys, 5), (of_keys, 5)
    if options:
        sizes = (heads, 5), *sizes[1:]
    leaves = [
        torch.randn(batch, *size, width, device="cuda", dtype=torch.bfloat16).requires_grad_()
        for size in sizes
    ]
    result = attention(*leaves, **options)
    left, right = options.get("window", (None, 0 if "causal" in options else None))
    wanted = masked(*leaves, left, right)
    assert error_of(result, wanted) < 2e-2
    grad = torch.randn_like(result)
    ours = torch.autograd.grad(result, leaves, grad)
    for one, other in zip(ours, torch.autograd.grad(wanted, leaves, grad.double())):
        assert error_of(one, other) < 2e-2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("of_keys, width", [(65552, 64), (1, 64), (65552, 192)])
def test_heads_of_packed_sequences_past_an_axis_of_a_grid_on_a_gpu(of_keys, width, monkeypatch):
    monkeypatch.delenv("GLUON_TARGET")
    torch.manual_seed(0)
    leaves = [
        torch.randn(8, heads, width, device="cuda", dtype=torch.bfloat16).requires_grad_()
        for heads in (65552, of_keys, of_keys)
    ]
    result = attention_varlen(*leaves, lists_of((5, 3), "cuda"), causal=True)
    parts = [[x[part].transpose(0, 1)[None] for x in leaves] for part in (slice(5), slice(5, 8))]
    wanted = torch.cat([masked(*part, right=0)[0].transpose(0, 1) for part in parts])
    assert error_of(result, wanted) < 2e-2
    grad = torch.randn_like(result)
    ours = torch.autograd.grad(result, leaves, grad)
    for one, other in zip(ours, torch.autograd.grad(wanted, leaves, grad.double())):
        assert error_of(one, other) < 2e-2
