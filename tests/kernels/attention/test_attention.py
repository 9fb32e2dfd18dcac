"""`gluon_kernels.attention` through its public door."""

from __future__ import annotations

import importlib
import math
import re
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_core.launch.jit import GluonJITFunction
from gluon_core.registry.load import registry
from gluon_kernels import attention, eager
from gluon_kernels.attention import ops
from gluon_kernels.attention.problem import ATTENTION, GRADIENTS
from gluon_kernels.problem import error_of
from gluon_torch.errors import MissingGradientError
from tests.kernels.launched import launches_of
from tests.kernels.routes import route
from tests.kernels.sizes import repeated

pytestmark = [pytest.mark.once, pytest.mark.sampled(12)]

PROBLEMS = (ATTENTION, GRADIENTS)
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


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5])
def test_repeatable_gradients(number):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert PROBLEMS[1].check(PROBLEMS[1].small[number], "cpu") is None
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shared", [1, 2])
def test_repeatable_gradients_of_wide_heads(shared, monkeypatch):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    shape = {"batch": 1, "heads": 2, "heads of keys": 2 // shared, "length": 20, "width": 192}
    assert PROBLEMS[1].check(shape, "cpu") is None


@pytest.mark.parametrize("width, scale", [(64, 0.0), (64, -0.3), (192, -0.3)])
def test_scales_that_are_not_positive(width, scale):
    q, k, v = (torch.randn(1, 1, 70, width).bfloat16() for _ in "qkv")
    score = q.float() @ k.float().mT * scale
    hidden = torch.ones(70, 70).triu(1).bool()
    right = score.masked_fill(hidden, -torch.inf).softmax(-1) @ v.float()
    assert error_of(attention(q, k, v, causal=True, scale=scale), right) < 2e-2


@pytest.mark.parametrize("each", [4, 2, 1])
@pytest.mark.parametrize("number", [0, 1])
def test_programs_take_heads_that_share_keys(number, each, monkeypatch):
    """Gradients of keys and values are added up in a program, and those of several programs after it."""
    from gluon_kernels.attention import launches

    monkeypatch.setattr(launches, "heads_of", lambda *arguments: (each, 3))
    sizes = [dict(length=150, width=64, causal=True), dict(length=90, width=128, causal=False)]
    keys = [170, 140][number]
    shape = {"batch": 2, "heads": 4, "heads of keys": 1, "keys": keys, **sizes[number]}
    assert GRADIENTS.check(shape, "cpu") is None


def heads(length=80, width=64, dtype=torch.bfloat16):
    return [torch.randn(1, 2, length, width).to(dtype) for _ in "qkv"]


def test_three_groups_of_warps(monkeypatch):
    """Tiles of 192 rows, which only many heads have otherwise."""
    from gluon_kernels.attention import launches
    from gluon_kernels.attention.order import UNMASKED

    monkeypatch.setattr(launches, "rows_of", lambda *arguments: (192, UNMASKED))
    for number in (0, 2):
        assert PROBLEMS[0].check(PROBLEMS[0].small[number], "cpu") is None


@pytest.mark.gluon_schedules(2, checks=True)
@pytest.mark.parametrize(
    "shape",
    [
        {"heads": 2, "length": 150, "width": 64, "causal": True},
        {"heads": 1, "length": 140, "width": 128, "causal": True},
        {"heads": 1, "length": 100, "width": 128, "causal": False, "keys": 600},
        {"heads": 2, "length": 140, "width": 96, "causal": True},
        {"heads": 1, "length": 140, "width": 192, "causal": True},
        {"heads": 1, "length": 100, "width": 256, "causal": False, "keys": 1300},
    ],
)
def test_one_group_of_warps(shape, monkeypatch):
    """Few tiles have 64 rows each, and a processor of their own; those of the last shape have parts of the keys."""
    arguments = ATTENTION.arguments({"batch": 1, **shape}, "cpu")
    first = launches_of(lambda: ATTENTION.op(**arguments), "sim:sm_90")[0]
    tiles = shape["heads"] * -(-shape["length"] // 64)
    assert first.grid == (tiles * 4 if shape["width"] == 256 else tiles,)
    for programs in (132, 2):
        for name in ("launches", "wide_launches"):
            plans = importlib.import_module(f"gluon_kernels.attention.{name}")
            monkeypatch.setattr(plans, "multiprocessors", lambda tensor, n=programs: n)
            monkeypatch.setattr(plans, "rows_of", lambda *arguments: (64, 67))
        ops._plans.forget()
        assert ATTENTION.check({"batch": 1, **shape}, "cpu") is None


@pytest.mark.gluon_schedules(2, checks=True)
@pytest.mark.parametrize(
    "shape, most",
    [
        ({"heads": 2, "length": 390, "width": 64, "causal": True}, 2),
        ({"heads": 1, "length": 270, "width": 128, "causal": True}, 2),
        ({"heads": 1, "length": 400, "width": 64, "causal": False, "keys": 200}, 3),
        ({"heads": 2, "heads of keys": 1, "length": 270, "width": 96, "causal": True}, 3),
    ],
)
def test_steps_of_few_tiles_of_keys_are_in_parts(shape, most, monkeypatch):
    """Programs share the steps of a tile of keys where tiles are few, and their gradients are added up later."""
    plans = importlib.import_module("gluon_kernels.attention.launches")
    monkeypatch.setattr(plans, "steps_of_part", lambda *arguments: most)
    arguments = GRADIENTS.arguments({"batch": 1, **shape}, "cpu")
    launches = launches_of(lambda: GRADIENTS.op(**arguments), "sim:sm_90")
    grids = [x.grid for x in launches if x.kernel.fn.__name__ == "gradients_atomic"]
    tiles = plans._steps_of_tiles(
        shape["length"],
        min(shape.get("keys", shape["length"]), shape["length"]),
        plans.width_of(shape["width"]),
        shape["causal"],
    )
    assert grids == [(shape["heads"] * sum(-(-steps // most) for steps in tiles),)]
    assert launches[-1].kernel.fn.__name__ == "finish_and_join"
    for programs in (132, 2):
        monkeypatch.setattr(plans, "multiprocessors", lambda tensor, programs=programs: programs)
        ops._gradient_plans.forget()
        assert GRADIENTS.check({"batch": 1, **shape}, "cpu") is None


@pytest.mark.parametrize(
    "shape",
    [
        {"heads": 2, "length": 130, "width": 256, "heads of keys": 1, "causal": True},
        {"heads": 1, "length": 70, "width": 200, "keys": 100},
        {"heads": 1, "length": 130, "width": 192, "causal": True},
    ],
)
def test_gradients_of_wide_heads(shape):
    """Two groups of warps share the columns of a tile of 64 keys; the second step of queries takes the sums of the first."""
    assert PROBLEMS[1].check({"batch": 1, **shape}, "cpu") is None


@pytest.mark.gluon_schedules(3, checks=True)
@pytest.mark.parametrize(
    "shape",
    [
        {"heads": 2, "length": 140, "width": 64, "causal": True},
        {"heads": 1, "length": 140, "width": 64, "keys": 300},
        {"heads": 1, "length": 140, "width": 96, "keys": 300},
    ],
)
def test_programs_take_tiles_of_keys_in_turn(shape, monkeypatch):
    """Two programs take four tiles, or three, of which the last one lacks keys."""
    plans = importlib.import_module("gluon_kernels.attention.launches")
    monkeypatch.setattr(plans, "multiprocessors", lambda tensor: 2)
    arguments = GRADIENTS.arguments({"batch": 1, **shape}, "cpu")
    launches = launches_of(lambda: GRADIENTS.op(**arguments), "sim:sm_90")
    grids = [x.grid for x in launches if x.kernel.fn.__name__ == "gradients_atomic"]
    assert grids == [(2,)]
    assert GRADIENTS.check({"batch": 1, **shape}, "cpu") is None


@pytest.mark.sampled(1)
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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(1)
def test_batches_past_the_third_axis_of_a_grid(monkeypatch):
    """Launches share the batches, with and without a place for the result."""
    plans = importlib.import_module("gluon_kernels.attention.portable_launches")
    monkeypatch.setattr(plans, "GRID", 17)
    monkeypatch.setenv("GLUON_TARGET", "sim:gfx942")
    shape = {"batch": 18, "heads": 1, "length": 3, "width": 32, "causal": True}
    for problem in PROBLEMS:
        arguments = problem.arguments(shape, "cpu")
        launches = launches_of(lambda p=problem, a=arguments: p.op(**a), "sim:gfx942")
        assert {16, 2} == {x.grid[2] for x in launches}
        assert problem.check(shape, "cpu") is None
    q, k, v = (torch.randn(18, 1, 3, 32).bfloat16() for _ in "qkv")
    result = torch.empty_like(q)
    assert attention(q, k, v, causal=True, out=result) is result
    assert torch.equal(result, attention(q, k, v, causal=True))


@pytest.mark.parametrize("keys", [64, 128])
@pytest.mark.parametrize("number", [0, 2])
def test_tiles_of_few_keys(number, keys, monkeypatch):
    plans = importlib.import_module("gluon_kernels.attention.launches")
    monkeypatch.setattr(plans, "keys_of", lambda *arguments: keys)
    assert ATTENTION.check(ATTENTION.small[number], "cpu") is None


@pytest.mark.sampled(1000)
@pytest.mark.parametrize("length", [704, 10579])
@pytest.mark.parametrize("width, causal", [(64, True), (64, False), (128, True), (128, False)])
def test_products_of_gradients_overlap(width, causal, length, monkeypatch):
    """The assembler waits for each product where registers are too few, and says so."""
    shape = {"batch": 2, "heads": 4, "length": length, "width": width, "causal": causal}
    prepared = []

    def recorded(self, *arguments, grid, **options):
        if self.fn.__name__ == "gradients_atomic":
            prepared.append((self, arguments, grid, options))
        return lambda *values: None  # launched, these would take hours

    monkeypatch.setattr(GluonJITFunction, "prepare", recorded)
    GRADIENTS.op(**GRADIENTS.arguments(shape, "cpu"))
    ((kernel, arguments, grid, options),) = prepared
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target = registry().target("sm_90")
        compiled = kernel.warmup(*arguments, grid=grid, target=target, **options)
    assert compiled.report().spills <= 32
    # The first queries, gradients, keys and values come while the kernel before computes the statistics.
    steps = r"tensor\.(4)d\.shared::cluster|griddepcontrol\.(w)ait"
    assert "4444w" in "".join(map("".join, re.findall(steps, compiled.asm["ptx"])))


@pytest.mark.parametrize(
    "shape",
    [
        {"heads": 2, "length": 140, "width": 192, "heads of keys": 1, "causal": True},
        {"heads": 1, "length": 70, "width": 136, "keys": 150, "packed": True},
    ],
)
def test_wide_heads_in_two_parts(shape):
    assert PROBLEMS[0].check({"batch": 2, **shape}, "cpu") is None


class Copies(TorchDispatchMode):
    """The operations that copy tensors."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in ("copy_", "clone", "_to_copy"):
            self.names.append(name)
        return function(*args, **(kwargs or {}))


def ordered(heads, length, width, tokens_first):
    """Return a tensor of [2, heads, length, width], which has heads or tokens first in memory."""
    if tokens_first:
        return torch.randn(2, length, heads, width).bfloat16().transpose(1, 2)
    return torch.randn(2, heads, length, width).bfloat16()


@pytest.mark.parametrize(
    "width, values, keys, causal, tokens_first",
    [(192, 192, 40, True, True), (192, 128, 40, True, True), (192, 128, 40, True, False), (256, 256, 90, False, False)],
)  # fmt: skip
def test_wide_gradients_copy_nothing(width, values, keys, causal, tokens_first):
    """Heads share keys, and operands have tokens first, as a projection leaves them, or heads; results and gradients have heads first."""
    sizes = (2, 40, width), (1, keys, width), (1, keys, values)
    leaves = [ordered(*size, tokens_first).requires_grad_() for size in sizes]
    grad = ordered(2, 40, values, tokens_first)
    result = attention(*leaves, causal=causal)
    with Copies() as copies:
        ours = torch.autograd.grad(result, leaves, grad)
    assert not copies.names
    right = masked(*leaves, right=0) if causal else masked(*leaves)
    for one, other in zip(ours, torch.autograd.grad(right, leaves, grad.double())):
        assert one.is_contiguous() and error_of(one, other) < 2e-2


def test_wide_gradients_of_operands_in_two_orders():
    leaves = [ordered(n, 70, 192, n == 1).requires_grad_() for n in (2, 1, 1)]
    grad = ordered(2, 70, 192, False)
    ours = torch.autograd.grad(attention(*leaves), leaves, grad)
    for one, other in zip(ours, torch.autograd.grad(masked(*leaves), leaves, grad.double())):
        assert error_of(one, other) < 2e-2


@pytest.mark.parametrize("length, kernel", [(130, "attention_wide"), (100, "attention_hopper")])
def test_long_heads_of_96_that_share_keys_are_in_two_parts(length, kernel, monkeypatch):
    """Short ones are joined, which saves tiles."""
    from gluon_kernels.attention import routes

    monkeypatch.setattr(routes, "LONG", 128)
    monkeypatch.setattr(routes, "multiprocessors", lambda tensor: 2)
    q, k, v = (torch.randn(1, heads, length, 96).bfloat16() for heads in (4, 2, 2))
    (launch,) = launches_of(lambda: attention(q, k, v), "sim:sm_90")
    assert launch.kernel.fn.__name__ == kernel
    assert error_of(attention(q, k, v), masked(q, k, v)) < 1e-2


def test_groups_in_a_ping_pong_schedule(monkeypatch):
    from gluon_kernels.attention import launches

    monkeypatch.setattr(launches, "ORDERED", True)
    for number in (0, 2):
        assert PROBLEMS[0].check(PROBLEMS[0].small[number], "cpu") is None


@pytest.mark.parametrize(
    "length, heads, keys, width",
    [(1, 4, 900, 128), (5, 4, 300, 64), (20, 4, 900, 128), (70, 2, 800, 64)],
)
def test_keys_are_split_for_few_queries(length, heads, keys, width):
    """Decoding steps: heads that share keys are rows of one tile, and programs have parts of the keys."""
    q = torch.randn(1, length, heads, width).bfloat16().transpose(1, 2)
    k, v = (torch.randn(1, heads // 2, keys, width).bfloat16() for _ in "kv")
    out = torch.empty_like(q)
    right = masked(q, k, v)
    assert error_of(attention(q, k, v), right) < 1e-2
    assert attention(q, k, v, out=out) is out
    assert error_of(out, right) < 1e-2
    leaves = [x.requires_grad_() for x in (q, k, v)]
    grad = torch.randn_like(q)
    ours = torch.autograd.grad(attention(*leaves), leaves, grad)
    for one, other in zip(ours, torch.autograd.grad(masked(*leaves), leaves, grad.double())):
        assert error_of(one, other) < 2e-2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", [64, 128, 192, 256])
def test_tiles_of_the_last_round_are_in_parts(width, monkeypatch):
    from gluon_kernels.attention import launches, order, wide_launches

    for module in (launches, wide_launches):
        monkeypatch.setattr(module, "multiprocessors", lambda tensor: 3)
    monkeypatch.setattr(order, "JOINING", 0.0)
    order.tiles_in_parts.cache_clear()
    q, k, v = (torch.randn(1, 2, n, width).bfloat16() for n in (200, 400, 400))
    calls = launches_of(lambda: attention(q, k, v), "sim:sm_90")
    kernel = "attention_hopper" if width <= 128 else "attention_wide"
    assert [x.kernel.fn.__name__ for x in calls] == [kernel, "join_tiles"]
    scale = width**-0.5
    result, logsums = torch.ops.gluon_kernels.attention(q, k, v, False, scale)
    assert error_of(result, masked(q, k, v)) < 1e-2
    score = q.double() @ k.double().mT * scale
    assert error_of(logsums, score.logsumexp(-1) / math.log(2)) < 1e-3
    assert torch.equal(attention(q, k, v), result)
    order.tiles_in_parts.cache_clear()


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


def test_the_declarations_of_operators_are_true():
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

    def plain(*tensors, gradients=False):
        return gradients or not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))

    monkeypatch.setattr(eager, "route", route)
    monkeypatch.setattr(ops, "is_plain", plain)
    for problem in PROBLEMS:
        assert problem.check(problem.small[2], "cpu") is None
    q, k, v = heads(70)
    result = attention(q, k.requires_grad_(), v)
    (of_keys,) = torch.autograd.grad(result.sum(), k, retain_graph=True)  # of no strides
    right = torch.autograd.grad(masked(q, k, v).sum(), k)[0]
    assert error_of(of_keys, right) < 2e-2
    for total in ((result * result).sum(), result.sum()):
        (of_keys,) = torch.autograd.grad(total, k, create_graph=True)
        with pytest.raises(MissingGradientError, match="differentiable once"):
            (total + of_keys.square().sum()).backward(inputs=[k], retain_graph=True)


@pytest.mark.parametrize(
    "shape, sequences",
    [
        ({"heads": 2, "length": 40, "width": 64, "causal": True}, 2),
        ({"heads": 1, "length": 20, "width": 60}, 0),  # rows that are no multiples of 16 bytes
        ({"heads": 1, "length": 40, "width": 192}, 2),
        ({"heads": 2, "length": 40, "width": 192, "heads of keys": 1, "packed": True}, 2),
    ],
)
def test_no_python_is_between_launches_of_operands_in_place(shape, sequences, monkeypatch):
    recorded = []
    for name in ("launches", "varlen_launches"):
        module = importlib.import_module(f"gluon_kernels.attention.{name}")
        make = module.sequence
        monkeypatch.setattr(
            module,
            "sequence",
            lambda *parts, make=make: recorded.append(make(*parts)) or recorded[-1],
        )
    assert GRADIENTS.check({"batch": 1, **shape}, "cpu") is None
    assert len(recorded) == sequences


def test_each_call_of_gradients_asks_for_equal_bits(monkeypatch):
    monkeypatch.setattr(eager, "route", route)
    arguments = GRADIENTS.arguments({"batch": 1, "heads": 1, "length": 20, "width": 64}, "cpu")

    def calls():
        for repeatable in (False, True, False):
            monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: repeatable)
            GRADIENTS.op(**arguments)

    names = [x.kernel.fn.__name__ for x in launches_of(calls, "sim:sm_90")]
    own = [name for name in names if name in ("gradients_atomic", "key_gradients")]
    assert own == ["gradients_atomic", "key_gradients", "gradients_atomic"]


def test_autocast_and_meta():
    q, k, v = heads(70, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attention(q, k, v).dtype is torch.bfloat16
    q, k, v = (x.bfloat16().to("meta") for x in (q, k, v))
    assert attention(q, k, v).shape == q.shape


def masked(q, k, v, left=None, right=None, softcap=0.0, scores=lambda s: s):
    """Return attention in float64, and 0 for queries that see no key."""
    q, k, v = q.double(), k.double(), v.double()
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    score = scores(q @ k.mT * q.shape[-1] ** -0.5)
    if softcap:
        score = softcap * torch.tanh(score / softcap)
    away = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
    seen = torch.ones_like(away, dtype=torch.bool)
    if left is not None:
        seen &= away >= -left
    if right is not None:
        seen &= away <= right
    return score.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0) @ v


FORMS = [
    (dict(queries=70, keys=100, width=64), dict(window=(20, 5))),
    (dict(queries=100, keys=40, width=128), dict(window=(30, -1), softcap=4.0, causal=True)),
    (dict(queries=70, keys=70, width=192, values=128), dict(causal=True)),
    (dict(queries=40, keys=50, width=200), dict()),
]


def shaped(queries, keys, width, values=None):
    q = torch.randn(2, 4, queries, width).bfloat16()
    k = torch.randn(2, keys, 2, width).bfloat16().transpose(1, 2)
    return q, k, torch.randn(2, 2, keys, values or width).bfloat16()


TARGETS = [("sim:sm_90", n) for n in range(len(FORMS))]
TARGETS += [("sim:sm_80", 1), ("sim:gfx942", 1), ("sim:gfx942", 2), ("sim:sm_100", 2)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target, number", TARGETS)
def test_windows_caps_and_widths(target, number, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    sizes, options = FORMS[number]
    tensors = [x.requires_grad_() for x in shaped(**sizes)]
    left, right = (None if x == -1 else x for x in options.get("window", (None, None)))
    right = 0 if options.get("causal") else right
    result = attention(*tensors, **options)
    right = masked(*tensors, left, right, options.get("softcap", 0.0))
    assert error_of(result, right) < 2e-2
    grad = torch.randn_like(result)
    ours = torch.autograd.grad(result, tensors, grad)
    for one, other in zip(ours, torch.autograd.grad(right, tensors, grad.double())):
        assert error_of(one, other) < 2e-2


@gluon.jit
def halved(score, row, key, head, extra):
    return score * 0.5


@gluon.jit
def biased(score, row, key, head, extra):
    bias, count, factor = extra
    offsets = row * count + key
    inside = (row < count) & (key < count)
    return score + gl.load(bias + offsets, mask=inside, other=0.0) * factor


def test_functions_of_scores():
    q, k, v = heads(40)
    half = attention(q, k, v, causal=True, score_mod=halved)
    assert error_of(half, masked(q, k, v, right=0, scores=lambda s: s / 2)) < 2e-2
    for _ in range(2):
        bias = torch.randn(40, 40)
        result = attention(q, k, v, score_mod=biased, score_args=(bias, 40, 1.4426950408889634))
        assert error_of(result, masked(q, k, v, scores=lambda s: s + bias)) < 2e-2
    assert len(ops._score_plans) == 2
    with pytest.raises(ArgumentError, match="score_mod: "):
        attention(q.requires_grad_(), k, v, score_mod=halved)


X = torch.zeros(1, 2, 8, 64).bfloat16()
MISTAKES = [
    (lambda: attention(X.double(), X.double(), X.double()), DtypeError, "q: "),
    (lambda: attention(X, X.half(), X), DtypeError, "k: "),
    (lambda: attention(X[0], X[0], X[0]), ShapeError, "q: "),
    (lambda: attention(X, X, X[:, :1]), ShapeError, "v: "),
    (lambda: attention(X, X, X, window=(3,)), ArgumentError, "window: "),
    (lambda: attention(X, X, X, window=(-2, 0)), ArgumentError, "window: "),
    (lambda: attention(X, X, X, softcap=-1.0), ArgumentError, "softcap: "),
    (lambda: attention(X, X, X, score_mod=halved, out=X.clone()), ArgumentError, "score_mod: "),
    (lambda: attention(X, X[..., :32], X[..., :32]), ShapeError, "k: "),
    (lambda: attention(X[:, :1], X, X), ShapeError, "k: .*divisor"),
    (lambda: attention(X, X[:, :, :0], X[:, :, :0]), ShapeError, "k: "),
    (lambda: attention(X, X.to("meta"), X), ArgumentError, "k: "),
    (lambda: attention(X, X, X, out=X[:, :1]), ShapeError, "out: "),
    (lambda: attention(X.clone(), X, X.clone(), out=X), ArgumentError, "out: .*k does not share"),
    (lambda: attention(*[torch.zeros(1, 1, 8, 264).half()] * 3), ShapeError, "q: "),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_named_before_a_launch(number):
    call, error, words = MISTAKES[number]
    with pytest.raises(error, match=words):
        call()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_calls_on_a_gpu_repeat(monkeypatch):
    """A tile of one or two tiles of keys releases its queries while the copy of the next ones waits for that: loads must have read them."""
    monkeypatch.delenv("GLUON_TARGET", raising=False)
    shape = {"batch": 1, "heads": 32, "length": 2048, "width": 128, "causal": True}
    for seed in repeated(20, 1):
        torch.manual_seed(seed)
        arguments = ATTENTION.arguments({**shape, "heads of keys": 4}, "cuda")
        assert torch.equal(attention(**arguments), attention(**arguments)), seed
