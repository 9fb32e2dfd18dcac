"""Gradients of `gluon_kernels.attention` through its public door."""

from __future__ import annotations

import importlib
import re
import warnings
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gluon_core.launch.jit import GluonJITFunction
from gluon_core.registry.load import registry
from gluon_kernels import attention, eager
from gluon_kernels.attention import ops
from gluon_kernels.attention.masks import Mask
from gluon_kernels.attention.problem import GRADIENTS
from gluon_kernels.problem import error_of
from tests.kernels.attention.masked import masked
from tests.kernels.launched import launches_of
from tests.kernels.routes import route

pytestmark = [pytest.mark.once, pytest.mark.sampled(12), pytest.mark.usefixtures("hopper")]


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5])
def test_repeatable_gradients(number):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert GRADIENTS.check(GRADIENTS.small[number], "cpu") is None
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shared", [1, 2])
def test_repeatable_gradients_of_wide_heads(shared, monkeypatch):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    shape = {"batch": 1, "heads": 2, "heads of keys": 2 // shared, "length": 20, "width": 192}
    assert GRADIENTS.check(shape, "cpu") is None


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


@pytest.mark.sampled(60)
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
    assert GRADIENTS.check({"batch": 1, **shape}, "cpu") is None


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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch, overlap", [(8, True), (40, False)])
@pytest.mark.parametrize("window", [None, (40, 0)])
def test_launches_of_gradients_overlap_where_their_tensors_are_not_large(
    batch, overlap, window, monkeypatch
):
    """27 and 137 MB, the former more than half of an L2 cache."""
    options = {}

    def recorded(self, *arguments, grid, **of_launch):
        options[self.fn.__name__] = of_launch
        return lambda *values: None

    monkeypatch.setattr(GluonJITFunction, "prepare", recorded)
    leaves = [torch.zeros(batch, 8, 320, 64).bfloat16().requires_grad_() for _ in "qkv"]
    torch.autograd.grad(attention(*leaves, window=window), leaves, torch.zeros_like(leaves[0]))
    (main,) = [name for name in options if "gradients_atomic" in name]
    for name in ("prepare", main, "finish"):
        assert options[name].get("launch_pdl", False) == overlap, name


@pytest.mark.gluon_schedules(2, checks=True)
@pytest.mark.sampled(6)
@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize(
    "shape",
    [
        {"batch": 2, "length": 70, "width": 192, "causal": True},
        {"batch": 1, "length": 40, "keys": 90, "width": 200, "packed": True},
        {"batch": 1, "length": 20, "width": 144},
    ],
)
def test_programs_share_the_heads_of_wide_queries(shape, parts, monkeypatch):
    """Those of a head of keys, whose gradients of parts are added up in order: equal bits each time."""
    plans = importlib.import_module("gluon_kernels.attention.varlen_gradient_launches")
    monkeypatch.setattr(plans, "_parts_of_wide_heads", lambda *arguments: parts)
    shape = {"heads": 4, "heads of keys": 1, **shape}
    arguments = GRADIENTS.arguments(shape, "cpu")
    results = []
    call = lambda **named: results.append(GRADIENTS.op(**named)) or results[-1]  # noqa: E731
    launches = launches_of(lambda: call(**arguments), "sim:sm_90")
    assert launches[-1].kernel.fn.__name__ == "join_heads"
    same = replace(GRADIENTS, op=call, arguments=lambda *_: arguments)
    assert same.check(shape, "cpu") is None
    first, again = results
    assert all(torch.equal(x, y) for x, y in zip(first, again))


def test_programs_share_the_heads_of_wide_queries_where_processors_are_idle():
    plans = importlib.import_module("gluon_kernels.attention.varlen_gradient_launches")
    full, causal = Mask(None, None, 0.0), Mask(None, 0, 0.0)
    parts = plans._parts_of_wide_heads
    assert parts((768, 768), 1, (16, 4), True, full, 132) == 4
    assert parts((2048, 2048), 8, (8, 2), True, causal, 132) == 2
    assert parts((4096, 4096), 32, (32, 8), True, causal, 132) == 1
    assert parts((768, 768), 1, (16, 16), True, full, 132) == 1


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
    for name in ("launches", "varlen_gradient_launches"):
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
