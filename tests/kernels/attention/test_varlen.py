"""`gluon_kernels.attention_varlen` through its public door."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels import attention, attention_varlen, eager
from gluon_kernels.attention import (
    hopper_varlen_backward,
    varlen,
    varlen_gradient_launches,
    varlen_launches,
)
from gluon_kernels.attention.masks import Mask
from gluon_kernels.attention.problem import VARLEN, VARLEN_GRADIENTS, lists_of
from gluon_kernels.problem import error_of
from tests.kernels.launched import launches_of
from tests.kernels.routes import route

pytestmark = [pytest.mark.once, pytest.mark.sampled(24)]

CASES = [pytest.param(s, id=str(i)) for i, s in enumerate(VARLEN_GRADIENTS.small)]


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    for plans in (varlen._plans, varlen._gradient_plans):
        plans.forget()
    yield
    for plans in (varlen._plans, varlen._gradient_plans):
        plans.forget()


@pytest.mark.sampled(10)
@pytest.mark.parametrize("shape", CASES)
def test_every_form(shape):
    assert VARLEN_GRADIENTS.check(shape, "cpu") is None


@pytest.mark.sampled(10)
@pytest.mark.parametrize("number", [0, 2])
def test_repeatable_gradients(number):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert VARLEN_GRADIENTS.check(VARLEN_GRADIENTS.small[number], "cpu") is None
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.sampled(14)
@pytest.mark.parametrize("target", ["sim:sm_80", "sim:gfx942", "sim:sm_100"])
def test_other_targets(target, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    assert VARLEN_GRADIENTS.check(VARLEN_GRADIENTS.small[2], "cpu") is None


def test_sequences_without_rows_or_keys_by_tensor_copies(monkeypatch):
    """A descriptor in the kernel covers a row where a sequence has none."""
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_100")
    shape = {"lengths": (20, 0), "heads": 1, "width": 64, "causal": False, "keys": (20, 0)}
    assert VARLEN.check(shape, "cpu") is None


@pytest.mark.campaign
def test_launches_for_many_sequences(monkeypatch):
    monkeypatch.setattr(varlen_launches, "SEQUENCES", 2)
    shape = {**VARLEN.small[0], "lengths": (30, 1, 0, 70, 40)}
    shape.pop("keys", None)
    assert VARLEN_GRADIENTS.check(shape, "cpu") is None


@pytest.mark.sampled(4)
@pytest.mark.parametrize("window", [None, (20, 0), (90, 30)])
@pytest.mark.parametrize("rows, width", [(64, 64), (128, 64), (192, 64), (64, 200), (128, 200)])
def test_tiles_of_one_to_three_groups(rows, width, window, monkeypatch):
    """Many tiles have more rows than few have, and those of narrow heads 192."""
    monkeypatch.setattr(varlen_launches, "_rows_of", lambda *arguments: rows)
    monkeypatch.setattr(varlen_launches, "NARROW", 0)
    causal = window is None or window[1] == 0
    shape = {"lengths": (200, 30), "heads": 1, "width": width, "causal": causal, "window": window}
    assert VARLEN.check(shape, "cpu") is None


@pytest.mark.sampled(6)
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_programs_share_the_heads_of_queries(parts, monkeypatch):
    """Those of a head of keys, where programs are few; the gradients of their keys are added up later."""
    shape = {"lengths": (40, 30), "heads": 4, "heads of keys": 1, "width": 64, "causal": True}
    arguments = VARLEN_GRADIENTS.arguments(shape, "cpu")
    monkeypatch.setattr(varlen_gradient_launches, "multiprocessors", lambda tensor: parts)
    monkeypatch.setattr(varlen_gradient_launches, "_parts_of_heads", lambda *arguments: parts)
    launches = launches_of(lambda: VARLEN_GRADIENTS.op(**arguments), "sim:sm_90")
    grids = [x.grid for x in launches if x.kernel.fn.__name__ == "varlen_gradients_atomic"]
    assert grids == [(parts,)]
    assert VARLEN_GRADIENTS.check(shape, "cpu") is None


def test_programs_share_heads_where_that_saves_time():
    """A head of 64 columns without a mask has a loop of its own in long sequences. Few tiles are shared by all programs that there are."""
    full, causal = Mask(None, None, 0.0), Mask(None, 0, 0.0)
    parts = varlen_gradient_launches._parts_of_heads
    assert parts((12800, 12800), 5, (16, 4), 64, full, 132) == 4
    assert parts((12800, 12800), 5, (16, 4), 64, causal, 132) == 1
    assert parts((16000, 16000), 80, (32, 8), 128, causal, 132) == 1
    assert parts((500, 500), 1, (8, 1), 128, causal, 132) == 8
    assert parts((12800, 12800), 5, (16, 16), 64, full, 132) == 1


@pytest.mark.sampled(11)
@pytest.mark.gluon_schedules(3, checks=True)
@pytest.mark.parametrize(
    "shape",
    [
        {"lengths": (140, 0, 30), "heads": 1, "width": 64, "causal": True, "window": (20, 0)},
        {"lengths": (270, 30), "heads": 1, "width": 64, "causal": True},
        {"lengths": (70, 30), "keys": (140, 20), "heads": 2, "width": 128, "causal": False},
        {"lengths": (70, 0, 130), "heads": 1, "width": 192, "causal": True, "window": (20, 0)},
        {"lengths": (20, 0, 30), "keys": (40, 130, 30), "heads": 1, "width": 64, "causal": True},
    ],
)
def test_programs_take_tiles_of_keys_in_turn(shape, monkeypatch):
    """Two programs take three to six tiles, some of keys that no query sees; those with steps of both kinds take the masked ones first."""
    monkeypatch.setattr(varlen_gradient_launches, "multiprocessors", lambda tensor: 2)
    arguments = VARLEN_GRADIENTS.arguments(shape, "cpu")
    launches = launches_of(lambda: VARLEN_GRADIENTS.op(**arguments), "sim:sm_90")
    names = ("varlen_gradients_atomic", "wide_key_gradients")
    grids = [x.grid for x in launches if x.kernel.fn.__name__ in names]
    assert grids == [(2,)]
    assert VARLEN_GRADIENTS.check(shape, "cpu") is None


@pytest.mark.gluon_schedules(3, checks=True)
@pytest.mark.parametrize(
    "shape, rows, keys",
    [
        (
            {"lengths": (300, 0, 50), "heads": 2, "width": 64, "causal": True, "window": (90, 0)},
            128,
            64,
        ),
        ({"lengths": (150, 0, 270), "heads": 1, "width": 128, "causal": False}, 128, 128),
        ({"lengths": (130, 0, 200), "heads": 2, "width": 64, "causal": True}, 64, 128),
    ],
)
def test_programs_take_tiles_of_queries_in_turn(shape, rows, keys, monkeypatch):
    """Two programs take several tiles each, of one to five tiles of keys, and leave the counter at zero; windows of few keys have small ones."""
    monkeypatch.setattr(varlen_launches, "multiprocessors", lambda tensor: 2)
    monkeypatch.setattr(varlen_launches, "_rows_of", lambda *arguments: rows)
    arguments = VARLEN.arguments(shape, "cpu")
    (launch,) = launches_of(lambda: VARLEN.op(**arguments), "sim:sm_90")
    assert launch.grid == (2,)
    assert launch.arguments[1][0].block_shape[0] == keys
    result = VARLEN.op(**arguments)
    assert torch.equal(VARLEN.op(**arguments), result)
    assert error_of(result, VARLEN.reference(**arguments)) < VARLEN.tolerance


@pytest.mark.parametrize("window, loops", [((190, 0), 3), ((189, 0), 2), ((60, 200), 2)])
def test_borders_of_windows(window, loops):
    """Steps that one border crosses have a loop of their own where none is crossed by both, nor by the end of the keys that a far border crosses."""
    shape = {"lengths": (330,), "heads": 1, "width": 128, "causal": False, "window": window}
    settings = ((128, 64), window[::-1], False, 32, True, 1)
    assert hopper_varlen_backward.loops(settings) == loops
    assert VARLEN_GRADIENTS.check(shape, "cpu") is None


def test_heads_are_walked_together_in_equal_numbers():
    """The cache holds 14 of 16 heads of 2735 tokens."""
    of_token = 8 * 128
    assert varlen_gradient_launches._tiles(22, 16, 2735 * of_token, 132) == (22, 16, 8)
    assert varlen_gradient_launches._tiles(3, 16, 300 * of_token, 132) == (3, 16, 16)
    assert varlen_gradient_launches._tiles(22, 3, 2735 * of_token, 132) == (22, 3, 3)


def test_few_tiles_of_queries_have_few_rows():
    """Those of a causal mask end together in one and a half rounds, others in one."""
    rows = partial(varlen_launches._rows_of, 64)
    assert rows(2700, 4, 8, True, 132) == rows(700, 1, 8, False, 132) == 64
    assert rows(2700, 4, 8, False, 132) == rows(2700, 4, 16, False, 132) == 128
    assert rows(3100, 1, 16, True, 132) == rows(3100, 1, 8, False, 132) == 192
    assert (
        rows(3800, 1, 8, True, 132) == varlen_launches._rows_of(128, 3100, 1, 16, True, 132) == 128
    )


def test_heads_are_walked_together_where_the_cache_holds_their_keys():
    size = 1 << 20
    assert varlen_launches._heads_together(16, size) == 16
    assert varlen_launches._heads_together(16, 2 * size) == 8
    assert varlen_launches._heads_together(12, 4 * size) == 6


def test_keys_that_no_query_sees_have_no_gradient():
    """The kernel of wide heads takes a step for them, whose sums it drops: here of the next sequence, with gradients that are not numbers."""
    q, k, v, _ = tensors((70, 140), 192)
    q, k, v = q[:70].requires_grad_(), k.requires_grad_(), v.requires_grad_()
    lists = lists_of((30, 0, 40), "cpu"), lists_of((100, 70, 40), "cpu")
    grad = torch.ones_like(q)
    grad[30:] = torch.nan
    result = attention_varlen(q, k, v, *lists, causal=True, window=(20, 0))
    for gradient in torch.autograd.grad(result, (k, v), grad):
        assert (gradient[100:170] == 0).all() and gradient[170:].isnan().any()


@pytest.mark.parametrize("width", [64, 96, 128])
def test_exponentials_by_arithmetic(width, monkeypatch):
    """They are near those of the unit, and 0 for keys that a row does not see: the first 50 rows of the second sequence see none."""
    monkeypatch.setattr(varlen_launches, "COMPUTED", dict.fromkeys((64, 96, 128), 8))
    q, k, v, firsts = tensors((300, 200), width)
    of_keys = lists_of((300, 150), "cpu")
    arguments = {"causal": True, "window": (200, 0)}
    result = attention_varlen(q, k[:450], v[:450], firsts, of_keys, **arguments)
    right = VARLEN.reference(
        q, k[:450], v[:450], cu_seqlens_q=firsts, cu_seqlens_k=of_keys, **arguments, softcap=0.0
    )
    assert error_of(result, right) < 1e-2
    assert (result[300:350] == 0).all()


def tensors(lengths=(40, 30), width=64):
    total = sum(lengths)
    q, k, v = (torch.randn(total, 2, width).bfloat16() for _ in "qkv")
    return q, k, v, lists_of(lengths, "cpu")


def test_equal_lengths_are_a_batch():
    q, k, v, lists = tensors((40, 40))
    batch = [x.unflatten(0, (2, 40)).transpose(1, 2) for x in (q, k, v)]
    result = attention_varlen(q, k, v, lists, causal=True)
    right = attention(*batch, causal=True).transpose(1, 2).flatten(0, 1)
    assert error_of(result, right) < 1e-2
    out = torch.empty(80, 4, 64).bfloat16()[:, ::2]
    assert attention_varlen(q, k, v, lists, causal=True, out=out) is out
    assert torch.equal(out, result)


def test_one_plan_serves_other_lengths(monkeypatch):
    monkeypatch.setattr(varlen, "is_plain", lambda *tensors: True)
    q, k, v, lists = tensors((40, 30))
    attention_varlen(q, k, v, lists)
    result = attention_varlen(q, k, v, lists_of((10, 60), "cpu"))
    assert len(varlen._plans) == 1
    right = [
        attention(*(x[a:b].transpose(0, 1)[None] for x in (q, k, v)))
        for a, b in ((0, 10), (10, 70))
    ]
    right = torch.cat([x[0].transpose(0, 1) for x in right])
    assert error_of(result, right) < 1e-2


def test_calls_past_the_operators(monkeypatch):
    """The way of tensors on a GPU."""

    def plain(*tensors, gradients=False):
        return gradients or not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))

    monkeypatch.setattr(eager, "route", route)
    monkeypatch.setattr(varlen, "is_plain", plain)
    for problem in (VARLEN, VARLEN_GRADIENTS):
        assert problem.check(problem.small[1], "cpu") is None


def test_no_tokens_and_no_sequences():
    q, k, v, lists = tensors((0, 0))
    assert attention_varlen(q, k, v, lists).shape == (0, 2, 64)
    q, _, _, lists = tensors((3, 2))
    assert not attention_varlen(q, k, v, lists, torch.zeros(3).int()).any()


def test_declaration():
    q, k, v, lists = tensors()
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    op = torch.ops.gluon_kernels.attention_varlen.default
    arguments = (q, k, v, lists, lists, True, 0.125, None, None, 0.0)
    done = torch.library.opcheck(op, arguments, rtol=2e-2, atol=2e-2)
    assert set(done.values()) == {"SUCCESS"}
    compiled = torch.compile(
        lambda q, k, v, s: attention_varlen(q * 2, k, v, s), backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(q, k, v, lists), attention_varlen(q * 2, k, v, lists))


def test_autocast_and_meta():
    q, k, v, lists = tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attention_varlen(q.float(), k.float(), v.float(), lists).dtype is torch.bfloat16
    q, k, v, lists = (x.to("meta") for x in (q, k, v, lists))
    assert attention_varlen(q, k, v, lists).shape == q.shape


X = torch.zeros(8, 2, 64).bfloat16()
S = torch.tensor([0, 8], dtype=torch.int32)
MISTAKES = [
    (lambda: attention_varlen(X.float(), X.float(), X.float(), S), DtypeError, "q: "),
    (lambda: attention_varlen(X, X.half(), X, S), DtypeError, "k: "),
    (lambda: attention_varlen(X[0], X, X, S), ShapeError, "q: "),
    (lambda: attention_varlen(X, X, X[:4], S), ShapeError, "v: "),
    (lambda: attention_varlen(X, X[..., :32], X, S), ShapeError, "k: "),
    (lambda: attention_varlen(X[:, :1], X, X, S), ShapeError, "k: .*divisor"),
    (lambda: attention_varlen(X, X, X, S.long()), DtypeError, "cu_seqlens_q: "),
    (lambda: attention_varlen(X, X, X, S[None]), ShapeError, "cu_seqlens_q: "),
    (lambda: attention_varlen(X, X, X, S, S[:1]), ShapeError, "cu_seqlens_k: "),
    (lambda: attention_varlen(X, X, X, S - 1), ArgumentError, "cu_seqlens_q: .*must not decrease"),
    (
        lambda: attention_varlen(X, X, X, S, 2 * S),
        ArgumentError,
        "cu_seqlens_k: .*must not decrease",
    ),
    (lambda: attention_varlen(X, X, X, S, S.to("meta")), ArgumentError, "cu_seqlens_k: "),
    (lambda: attention_varlen(X, X, X, S, window=3), ArgumentError, "window: "),
    (lambda: attention_varlen(X, X, X, S, out=X[:, :1]), ShapeError, "out: "),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_named_before_a_launch(number):
    call, error, words = MISTAKES[number]
    with pytest.raises(error, match=words):
        call()
