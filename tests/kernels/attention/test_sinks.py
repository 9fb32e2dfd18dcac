"""Sinks of `gluon_kernels.attention`, `attention_varlen` and `attention_decode`: scores of no key, without values."""

from __future__ import annotations

import pytest
import torch

from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels import attention, attention_decode, attention_varlen
from gluon_kernels.attention import decode_launches
from gluon_kernels.attention.decode_problem import DECODE
from gluon_kernels.problem import error_of
from tests.kernels.launched import launches_of

pytestmark = [pytest.mark.once, pytest.mark.sampled(7)]


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")


def tensor(*shape):
    return torch.randn(*shape).bfloat16()


def attended(q, k, v, sinks, left=None, right=None):
    """Return attention in float64; q and k are [batch, heads, length, width], rows and keys begin together."""
    q, k, v = q.double(), k.double(), v.double()
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    score = q @ k.mT * q.shape[-1] ** -0.5
    away = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
    seen = torch.ones_like(away, dtype=torch.bool)
    seen = seen & (away >= -left) if left is not None else seen
    seen = seen & (away <= right) if right is not None else seen
    score = score.masked_fill(~seen, -torch.inf)
    score = torch.cat([score, sinks.double()[:, None, None].expand(*score.shape[:3], 1)], -1)
    return score.softmax(-1)[..., :-1] @ v


FORMS = [
    ("sim:sm_90", 150, 150, 64, dict(causal=True)),
    ("sim:sm_90", 4, 900, 128, {}),  # parts of the keys in one launch
    ("sim:sm_90", 30, 900, 64, {}),  # parts of the keys, and a launch that joins them
    ("sim:sm_90", 100, 40, 128, dict(window=(20, 0))),  # rows that see no key
    ("sim:gfx942", 40, 50, 80, dict(causal=True)),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", range(len(FORMS)))
def test_forms_and_gradients(number, monkeypatch):
    target, length, keys, width, options = FORMS[number]
    monkeypatch.setenv("GLUON_TARGET", target)
    tensors = [tensor(1, 4, length, width), *(tensor(1, 2, keys, width) for _ in "kv")]
    tensors = [x.requires_grad_() for x in (*tensors, torch.randn(4) * 3)]
    left, right = options.get("window", (None, None))
    right = 0 if options.get("causal") else right
    result = attention(*tensors[:3], sinks=tensors[3], **options)
    expected = attended(*tensors, left, right)
    assert error_of(result, expected) < 2e-2
    out = torch.empty_like(result)
    with torch.no_grad():
        attention(*tensors[:3], sinks=tensors[3], out=out, **options)
    assert error_of(out, expected) < 2e-2
    grad = torch.randn_like(result)
    ours = torch.autograd.grad(result, tensors, grad)
    for one, other in zip(ours, torch.autograd.grad(expected, tensors, grad.double())):
        assert one.dtype is other.dtype
        assert error_of(one, other) < 3e-2  # of products of rounded gradients


@pytest.mark.parametrize("width", [128, 192])
def test_tiles_of_the_last_round_are_in_parts(width, monkeypatch):
    from gluon_kernels.attention import launches, order, wide_launches

    for module in (launches, wide_launches):
        monkeypatch.setattr(module, "multiprocessors", lambda tensor: 3)
    monkeypatch.setattr(order, "JOINING", 0.0)
    order.tiles_in_parts.cache_clear()
    q, k, v = tensor(1, 2, 200, width), *(tensor(1, 2, 400, width) for _ in "kv")
    sinks = torch.tensor([4.0, 6.0])  # as much as all keys
    calls = launches_of(lambda: attention(q, k, v, sinks=sinks), "sim:sm_90")
    assert calls[-1].kernel.fn.__name__ == "join_tiles"
    assert error_of(attention(q, k, v, sinks=sinks), attended(q, k, v, sinks)) < 2e-2
    order.tiles_in_parts.cache_clear()


def test_packed_sequences():
    q, k, v = (tensor(100, n, 64).requires_grad_() for n in (4, 2, 2))
    sinks = torch.randn(4).bfloat16().requires_grad_()
    firsts = torch.tensor([0, 30, 100], dtype=torch.int32)
    result = attention_varlen(q, k, v, firsts, causal=True, sinks=sinks)
    parts = [
        attended(*(x[i:j].transpose(0, 1)[None] for x in (q, k, v)), sinks, None, 0)
        for i, j in ((0, 30), (30, 100))
    ]
    expected = torch.cat([x[0].transpose(0, 1) for x in parts])
    assert error_of(result, expected) < 2e-2
    leaves, grad = (q, k, v, sinks), torch.randn_like(result)
    ours = torch.autograd.grad(result, leaves, grad)
    for one, other in zip(ours, torch.autograd.grad(expected, leaves, grad.double())):
        assert error_of(one, other) < 2e-2


@pytest.mark.parametrize("processors", [1, 132])
def test_decoding(processors, monkeypatch):
    monkeypatch.setattr(decode_launches, "multiprocessors", lambda tensor: processors)
    shape = {"lengths": (600, 0), "page": 16, "heads": 6, "heads of keys": 2, "width": 64}
    q, k, v, table, lengths = DECODE.arguments(shape, "cpu").values()
    sinks = torch.randn(6) * 3
    result = attention_decode(q, k, v, table, lengths, sinks=sinks)
    k, v = (x[table[0].long()].flatten(0, 1)[:600].transpose(0, 1)[None] for x in (k, v))
    assert error_of(result[0], attended(q[:1, :, None], k, v, sinks)[0, :, 0]) < 2e-2
    assert not result[1].any()


def test_declaration_and_mistakes():
    q, k, v = (tensor(1, 2, 40, 64) for _ in "qkv")
    sinks = torch.randn(2, requires_grad=True)
    done = torch.library.opcheck(
        torch.ops.gluon_kernels.attention.default,
        (q, k, v, True, 0.125, None, None, 0.0, sinks),
        rtol=2e-2,
        atol=2e-2,
    )
    assert set(done.values()) == {"SUCCESS"}
    for wrong, error, words in (
        (torch.zeros(2).double(), DtypeError, "sinks: "),
        (torch.zeros(3), ShapeError, r"sinks: .*\[2\]"),
        (torch.zeros(2, device="meta"), ArgumentError, "sinks: "),
    ):
        with pytest.raises(error, match=words):
            attention(q, k, v, sinks=wrong)
    with pytest.raises(ArgumentError, match="score_mod: .*sinks"):
        attention(q, k, v, sinks=torch.zeros(2), score_mod=lambda s, r, k, h, e: s)
