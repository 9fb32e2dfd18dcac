"""`gluon_kernels.topk` through its public door."""

from __future__ import annotations

import pytest
import torch

from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels import topk
from gluon_kernels.topk import launches, ops, portable, whole
from gluon_kernels.topk.problem import TOPK

pytestmark = [pytest.mark.once, pytest.mark.sampled(12)]


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    ops._plans.forget()
    yield
    ops._plans.forget()


@pytest.fixture(params=["lists", "whole rows"])
def form(request, monkeypatch):
    """Each way to select: by lists of parts of rows, and by programs that hold a row."""
    monkeypatch.setattr(launches, "is_whole", lambda *sizes: request.param == "whole rows")
    return request.param


def test_the_form_of_a_row():
    assert launches.is_whole(8704, 16, 256) and launches.is_whole(225, 32, 1)
    assert not launches.is_whole(16384, 16, 8)  # few of many
    assert launches.is_whole(17024, 16, 256) and launches.is_whole(9856, 16, 100)
    assert not launches.is_whole(32769, 16, 1000) and not launches.is_whole(16385, 32, 1000)


def compare(x, k, largest=True, dim=-1):
    """Compare with a stable sort: among equals, those of lower indices come first."""
    result = topk(x, k, dim, largest)
    order = torch.sort(x + 0.0, dim=dim, descending=largest, stable=True)
    assert torch.equal(result.indices, order.indices.narrow(dim, 0, k))
    torch.testing.assert_close(
        result.values, order.values.narrow(dim, 0, k), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.sampled(24)
@pytest.mark.parametrize("number", range(len(TOPK.small)))
def test_every_form(number, form):
    assert TOPK.check(TOPK.small[number], "cpu") is None


@pytest.mark.parametrize("target", ["sim:sm_80", "sim:gfx942"])
def test_elsewhere(target, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    assert TOPK.check(TOPK.small[0], "cpu") is None


def test_equal_elements_and_such_that_are_no_numbers(form):
    compare(torch.ones(2, 2100).half(), 3)
    compare(torch.randint(0, 3, (2, 1100)).float(), 40)
    x = torch.randn(3, 400)
    x[0, 7], x[1, ::3], x[2] = float("nan"), float("inf"), -float("inf")
    compare(x, 5)
    compare(x, 5, largest=False)
    compare(torch.tensor([[0.0, -0.0, 0.0, -1.0]]), 3)


def test_sorted_rows_and_lists_that_overflow(monkeypatch):
    monkeypatch.setattr(launches, "is_whole", lambda *sizes: False)
    x = torch.arange(1000).float()
    compare(torch.stack([x, x.flip(0)]), 20)
    divided = launches.divided
    monkeypatch.setattr(launches, "divided", lambda *a: {**divided(*a), "CAP": 32, "MOST": 32})
    compare(torch.randn(2, 1000).sort(1).values, 31)


def test_parts_of_rows(monkeypatch):
    monkeypatch.setattr(launches, "is_whole", lambda *sizes: False)
    divided = launches.divided

    def in_parts(*arguments):
        return {**divided(*arguments), "PARTS": 4, "GROUPS": 1}

    monkeypatch.setattr(launches, "divided", in_parts)
    for _ in range(2):
        compare(torch.randn(3, 900).bfloat16(), 12)


def test_any_dimension_and_strides(form):
    compare(torch.randn(40, 3), 5, dim=0)
    compare(torch.randn(4, 70)[:, ::2], 3)
    compare(torch.randn(4, 700)[:, :333], 30)
    assert topk(torch.randn(3, 0), 0).values.shape == (3, 0)


def test_more_than_lists_hold():
    x = torch.randn(2, 40000)
    assert torch.equal(topk(x, 300).values, torch.topk(x, 300).values)


def test_rows_that_a_program_holds():
    compare(torch.randn(3, 4097).bfloat16(), 700)
    compare(torch.randint(0, 3, (2, 2100)).half(), 1000)
    compare(torch.full((2, 1500), float("nan")), 300, largest=False)
    compare(torch.randn(300, 40), 7)  # programs walk over rows


@pytest.mark.parametrize("dtype, columns, count, group", [
    (torch.bfloat16, 2304, 70, 8), (torch.half, 2301, 64, 8), (torch.bfloat16, 1000, 50, 4), (torch.float32, 1000, 20, 8),
    (torch.bfloat16, 600, 70, 1),
])  # fmt: skip
def test_the_largest_of_groups_bound_the_elements_that_are_looked_at(dtype, columns, count, group):
    x = torch.randn(3, columns).to(dtype)
    x[1] = x[1].sort().values  # the largest are in few groups
    x[2] = 1.0
    compare(x, count)
    assert launches.held(columns, 16, 8, count)["GROUP"] == group


def test_gradient_and_declaration():
    x = torch.randn(3, 50, requires_grad=True)
    weight = torch.randn(3, 4)
    (mine,) = torch.autograd.grad((topk(x, 4).values * weight).sum(), [x])
    (theirs,) = torch.autograd.grad((torch.topk(x, 4).values * weight).sum(), [x])
    assert torch.equal(mine, theirs)
    done = torch.library.opcheck(torch.ops.gluon_kernels.topk.default, (x, 4, True))
    assert set(done.values()) == {"SUCCESS"}
    compiled = torch.compile(lambda x: topk(x.sin(), 3).values, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), torch.topk(x.sin(), 3).values)


def test_memory_of_the_caller():
    x = torch.randn(3, 50)
    out = torch.empty(3, 4), torch.empty(3, 4, dtype=torch.int64)
    result = topk(x, 4, out=out)
    assert result.values is out[0] and torch.equal(out[0], torch.topk(x, 4).values)


X = torch.zeros(4, 8)
MISTAKES = [
    (lambda: topk(X, 9), ArgumentError, "k: .*0 to 8"),
    (lambda: topk(X, -1), ArgumentError, "k: "),
    (lambda: topk(X, 1, 3), ArgumentError, "dim: "),
    (lambda: topk(X.int(), 1), DtypeError, "x: "),
    (lambda: topk(torch.zeros(()), 1), ShapeError, "x: "),
    (lambda: topk(X, 1, out=(X, X)), ShapeError, "out: "),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_named_before_a_launch(number):
    call, error, words = MISTAKES[number]
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("columns, bits", [(131072, 16), (50304, 32), (1001, 16)])
def test_they_compile(target, columns, bits):
    warp = 64 if target == "gfx942" else 32
    align = 16 if columns % 16 == 0 else 1
    constants = {**launches.divided(1024, columns, bits, align, 8, 132, warp), "LARGEST": True}
    options = {"num_warps": constants.pop("num_warps"), "target": target}
    x, whole = torch.bfloat16 if bits == 16 else torch.float32, torch.int32
    arguments = (x, x, torch.int64, whole, whole, columns, columns, 8, 1 << 20)
    assert portable.topk.warmup(*arguments, **constants, **options)


@pytest.mark.parametrize("target", ["sm_90", "gfx942", "gfx1250"])
@pytest.mark.parametrize("columns, bits, count", [(16384, 16, 1000), (8000, 32, 50), (331, 16, 1)])
def test_whole_rows_compile(target, columns, bits, count):
    warp = 64 if target == "gfx942" else 32
    constants = {**launches.held(columns, bits, 8 if columns % 8 == 0 else 1, count, warp), "LARGEST": True}  # fmt: skip
    options = {"num_warps": constants.pop("num_warps"), "target": target}
    x, whole_row = torch.bfloat16 if bits == 16 else torch.float32, torch.int64
    lists = torch.int64 if constants["WIDE"] else torch.int32
    arguments = (x, x, whole_row, lists, 1000, columns, columns, count)
    assert whole.topk_whole.warmup(*arguments, **constants, **options)


def test_many_of_short_rows(form):
    compare(torch.randn(3, 128).bfloat16(), 100)
    compare(torch.randn(2, 1292).bfloat16(), 100)
    compare(torch.randint(0, 9, (2, 512)).half(), 256)
    compare(torch.randn(2, 600), 256, largest=False)
