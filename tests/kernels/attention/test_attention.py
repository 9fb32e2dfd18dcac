"""`gluon_kernels.attention` through its public door."""

from __future__ import annotations

import importlib
import math

import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels import attention, eager
from gluon_kernels.attention import ops
from gluon_kernels.attention.problem import ATTENTION, GRADIENTS
from gluon_kernels.problem import error_of
from gluon_torch.errors import MissingGradientError
from tests.kernels.attention.masked import masked
from tests.kernels.launched import launches_of
from tests.kernels.routes import route
from tests.kernels.sizes import repeated

pytestmark = [pytest.mark.once, pytest.mark.sampled(12), pytest.mark.usefixtures("hopper")]

PROBLEMS = (ATTENTION, GRADIENTS)
CASES = [pytest.param(p, s, id=f"{p.name}-{i}") for p in PROBLEMS for i, s in enumerate(p.small)]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("problem, shape", CASES)
def test_every_form(problem, shape):
    assert problem.check(shape, "cpu") is None


@pytest.mark.parametrize("width, scale", [(64, 0.0), (64, -0.3), (192, -0.3)])
def test_scales_that_are_not_positive(width, scale):
    q, k, v = (torch.randn(1, 1, 70, width).bfloat16() for _ in "qkv")
    score = q.float() @ k.float().mT * scale
    hidden = torch.ones(70, 70).triu(1).bool()
    right = score.masked_fill(hidden, -torch.inf).softmax(-1) @ v.float()
    assert error_of(attention(q, k, v, causal=True, scale=scale), right) < 2e-2


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


@pytest.mark.parametrize("keys", [64, 128])
@pytest.mark.parametrize("number", [0, 2])
def test_tiles_of_few_keys(number, keys, monkeypatch):
    plans = importlib.import_module("gluon_kernels.attention.launches")
    monkeypatch.setattr(plans, "keys_of", lambda *arguments: keys)
    assert ATTENTION.check(ATTENTION.small[number], "cpu") is None


@pytest.mark.parametrize(
    "shape",
    [
        {"heads": 2, "length": 140, "width": 192, "heads of keys": 1, "causal": True},
        {"heads": 1, "length": 70, "width": 136, "keys": 150, "packed": True},
    ],
)
def test_wide_heads_in_two_parts(shape):
    assert PROBLEMS[0].check({"batch": 2, **shape}, "cpu") is None


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
        assert problem.check({**problem.small[2], "length": 40, "keys": 70}, "cpu") is None
    q, k, v = heads(40)
    result = attention(q, k.requires_grad_(), v)
    (of_keys,) = torch.autograd.grad(result.sum(), k, retain_graph=True)  # of no strides
    right = torch.autograd.grad(masked(q, k, v).sum(), k)[0]
    assert error_of(of_keys, right) < 2e-2
    for total in ((result * result).sum(), result.sum()):
        (of_keys,) = torch.autograd.grad(total, k, create_graph=True)
        with pytest.raises(MissingGradientError, match="differentiable once"):
            (total + of_keys.square().sum()).backward(inputs=[k], retain_graph=True)


def test_autocast_and_meta():
    q, k, v = heads(70, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attention(q, k, v).dtype is torch.bfloat16
    q, k, v = (x.bfloat16().to("meta") for x in (q, k, v))
    assert attention(q, k, v).shape == q.shape


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


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "keys, values",
    [
        pytest.param(70, 64, marks=pytest.mark.campaign),
        pytest.param(40, 64, marks=pytest.mark.campaign),
        (70, 192),
    ],
)
def test_heads_that_share_no_keys_are_sequences(keys, values):
    """Contiguous ones with a window or a cap are not copied, those with sinks are."""
    q, k = torch.randn(2, 2, 70, 64).bfloat16(), torch.randn(2, 2, keys, 64).bfloat16()
    v, sinks = torch.randn(2, 2, keys, values).bfloat16(), torch.randn(2)
    (launch,) = launches_of(lambda: attention(q, k, v, window=(20, 5), softcap=4.0), "sim:sm_90")
    assert tuple(launch.arguments[0][0].shape) == (280, 1, 64)
    right = masked(q, k, v, 20, 5, 4.0)
    result = attention(q, k, v, window=(20, 5), softcap=4.0)
    assert result.is_contiguous() and error_of(result, right) < 1e-2
    out = torch.empty_like(result)
    assert torch.equal(attention(q, k, v, window=(20, 5), softcap=4.0, out=out), result)
    ends = attention(q, k, v, window=(20, 5), softcap=4.0, sinks=torch.full((2,), -torch.inf))
    assert error_of(ends, right) < 1e-2
    score = attention(q, k, v, window=(20, 5), sinks=sinks)
    one = attention(q[:, 1:], k[:, 1:], v[:, 1:], window=(20, 5), sinks=sinks[1:])
    assert error_of(score[:, 1:], one) < 1e-2


TARGETS = [("sim:sm_90", n) for n in range(len(FORMS))]
TARGETS += [("sim:sm_80", 1), ("sim:gfx942", 1), ("sim:gfx942", 2), ("sim:sm_100", 2)]


@pytest.mark.sampled(8)
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
