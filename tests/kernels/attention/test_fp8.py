"""`gluon_kernels.attention_fp8` through its public door."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from gluon_core.errors import ArgumentError, CapabilityError, DtypeError, ShapeError
from gluon_kernels import attention_fp8
from gluon_kernels.attention import fp8, order
from gluon_kernels.problem import error_of
from tests.kernels.launched import launches_of

pytestmark = [pytest.mark.once, pytest.mark.sampled(3)]


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    fp8._plans.forget()


def inputs(heads=2, of_keys=1, length=200, keys=200, width=128):
    tensors, scales = [], []
    for count, rows in ((heads, length), (of_keys, keys), (of_keys, keys)):
        x = torch.randn(1, count, rows, width)
        scale = x.abs().amax((2, 3)) / 448
        tensors.append((x / scale[..., None, None]).to(torch.float8_e4m3fn))
        scales.append(scale)
    return *tensors, *scales


def reference(q, k, v, q_scale, k_scale, v_scale, causal):
    q, k, v = (
        x.double() * scale[..., None, None].double()
        for x, scale in ((q, q_scale), (k, k_scale), (v, v_scale))
    )
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    score = q @ k.mT * q.shape[3] ** -0.5
    if causal:
        score = score.masked_fill(torch.ones(score.shape[2:]).triu(1).bool(), -torch.inf)
    return score.softmax(-1) @ v


@pytest.fixture
def transposed_first(monkeypatch):
    """Let no call be short enough to transpose values itself."""
    monkeypatch.setattr(fp8, "SHORT", dict.fromkeys((64, 128), {False: 0, True: 0}))


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("operations", [0, 1e12])
def test_tiles_of_the_last_round_are_in_parts(operations, strided, monkeypatch):
    monkeypatch.setattr(fp8, "SHORT", {128: {False: operations}})
    monkeypatch.setattr(fp8, "multiprocessors", lambda tensor: 3)
    monkeypatch.setattr(order, "JOINING", 0.0)
    order.tiles_in_parts.cache_clear()
    tensors = inputs(width=128, length=240, keys=430)
    right = reference(*tensors, False)
    if strided:
        tensors = (torch.cat([tensors[0]] * 2, 3)[..., ::2], *tensors[1:])
        right = reference(*tensors, False)
    calls = launches_of(lambda: attention_fp8(*tensors), "sim:sm_90")
    assert [x.kernel.fn.__name__ for x in calls][-2:] == ["attention_fp8", "join_tiles"]
    result = attention_fp8(*tensors)
    assert error_of(result, right) < 5e-2
    assert torch.equal(attention_fp8(*tensors), result)
    order.tiles_in_parts.cache_clear()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("causal, width, keys", [(True, 128, 300), (False, 64, 150)])
def test_a_short_call_transposes_values_itself(causal, width, keys):
    tensors = inputs(width=width, keys=keys)
    with patch.object(fp8, "_transpose_launch", side_effect=AssertionError("a launch of its own")):
        result = attention_fp8(*tensors, causal=causal)
    assert error_of(result, reference(*tensors, causal)) < 5e-2


@pytest.mark.sampled(14)
@pytest.mark.gluon_schedules(2, checks=True)
@pytest.mark.parametrize("length, keys", [(400, 400), (200, 300), (20, 300)])
def test_three_groups_of_warps_wait_for_transposed_values(length, keys, monkeypatch):
    """Those of rows that see fewer keys than the others release the values that they do not read."""
    monkeypatch.setattr(fp8, "WIDE_TILE", 0.1)
    for processors in (132, 2):
        monkeypatch.setattr(fp8, "multiprocessors", lambda tensor, n=processors: n)
        fp8._plans.forget()
        tensors = inputs(width=64, length=length, keys=keys)
        (launch,) = launches_of(lambda t=tensors: attention_fp8(*t, causal=True), "sim:sm_90")
        tiles = tensors[0].shape[0] * tensors[0].shape[1] * -(-length // 192)
        assert launch.grid == (min(tiles, processors),)
        result = attention_fp8(*tensors, causal=True)
        assert error_of(result, reference(*tensors, True)) < 5e-2


def test_narrow_causal_heads_have_rows_of_two_or_three_groups():
    """Those of three take longer where a tile is all that a program has."""

    def rows(heads, length):
        return fp8._rows_of((128, 192), length, length, heads, 132, 128 * length)[0]

    assert rows(16, 2960) == rows(32, 1500) == rows(32, 4000) == 192
    assert rows(16, 1100) == rows(8, 700) == rows(128, 500) == 128


@pytest.mark.parametrize("causal, width, keys", [(True, 128, 200), (False, 64, 150)])
def test_heads_with_scales(causal, width, keys, transposed_first):
    tensors = inputs(width=width, keys=keys)
    result = attention_fp8(*tensors, causal=causal)
    assert result.dtype is torch.bfloat16
    assert error_of(result, reference(*tensors, causal)) < 5e-2


def test_heads_are_no_axis_of_a_grid_where_values_are_transposed(transposed_first):
    """The second axis has 65,535 programs at most."""
    tensors = inputs(heads=3, of_keys=3, length=20, keys=150, width=64)
    launches = launches_of(lambda: attention_fp8(*tensors), "sim:sm_90")
    assert [x.grid for x in launches if x.kernel.fn.__name__ == "transpose"] == [(2 * 3,)]
    assert error_of(attention_fp8(*tensors), reference(*tensors, False)) < 5e-2


@pytest.mark.parametrize(
    "causal, keys, rows", [(True, 400, 192), (False, 450, 192), (True, 300, 128)]
)
def test_several_steps_of_keys(causal, keys, rows, monkeypatch, transposed_first):
    """Groups of warps with other rows of a tile see other numbers of steps."""
    monkeypatch.setitem(fp8.FORMS, 128, (rows, 64, 3))
    tensors = inputs(1, 1, 400, keys, 128)
    assert error_of(attention_fp8(*tensors, causal=causal), reference(*tensors, causal)) < 5e-2


@pytest.mark.parametrize("short", [True, False])
def test_strides_and_declaration(short, monkeypatch):
    if not short:
        monkeypatch.setattr(fp8, "SHORT", dict.fromkeys((64, 128), {False: 0, True: 0}))
    q, k, v, *scales = inputs(2, 2, 70, 70, 64)
    right = attention_fp8(q, k, v, *scales, out_dtype=torch.float16)
    packed = [
        x.view(torch.uint8).transpose(1, 2).contiguous().transpose(1, 2).view(x.dtype)
        for x in (q, k, v)
    ]
    assert torch.equal(attention_fp8(*packed, *scales, out_dtype=torch.float16), right)
    op = torch.ops.gluon_kernels.attention_fp8.default
    arguments = (q, k, v, *scales, True, 0.125, torch.bfloat16)
    tests = ("test_faketensor",)  # torch compares no 8-bit floats, as the others do
    assert set(torch.library.opcheck(op, arguments, test_utils=tests).values()) == {"SUCCESS"}


Q, K, V, *S = inputs(2, 1, 8, 8)
MISTAKES = [
    (lambda: attention_fp8(Q.float(), K, V, *S), DtypeError, "q: "),
    (lambda: attention_fp8(Q[..., :32], K, V, *S), ShapeError, "q: "),
    (lambda: attention_fp8(Q, K, V[:, :, :4], *S), ShapeError, "v: "),
    (
        lambda: attention_fp8(Q[:, :1], K.expand(1, 2, 8, 128), V.expand(1, 2, 8, 128), *S),
        ShapeError,
        "k: ",
    ),
    (lambda: attention_fp8(Q, K, V, S[1], *S[1:]), ShapeError, "q_scale: "),
    (lambda: attention_fp8(Q, K, V, S[0], S[1].to("meta"), S[2]), ArgumentError, "k_scale: "),
    (lambda: attention_fp8(Q, K, V, *S, out_dtype=torch.float32), DtypeError, "out_dtype: "),
    (lambda: attention_fp8(Q, K, V, *S, scale=0.0), ArgumentError, "must be positive"),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_named_before_a_launch(number):
    call, error, words = MISTAKES[number]
    with pytest.raises(error, match=words):
        call()


def test_other_devices_are_named(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_80")
    with pytest.raises(CapabilityError, match="Hopper"):
        attention_fp8(Q[:, :, :4], K, V, *S)
