"""`gluon_kernels.quantize` through its public door."""

from __future__ import annotations

import pytest
import torch

from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels import quantize
from gluon_kernels.norm import rows, tilings
from gluon_kernels.quant import ops

pytestmark = pytest.mark.once

# The largest error of an element, relative to the largest one.
ERRORS = {torch.int8: 1 / 200, torch.float8_e4m3fn: 1 / 15, torch.float8_e5m2: 1 / 7}


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    ops._plans.forget()
    yield
    ops._plans.forget()


def restored(values, scales, scaling):
    values, columns = values.float(), values.shape[-1]
    if scaling == "row":
        return values * scales[..., None]
    if scaling == "mx":
        return values * torch.exp2(scales.float() - 127).repeat_interleave(32, -1)[..., :columns]
    return values * scales.repeat_interleave(128, -1)[..., :columns]


CASES = [(dtype, scaling) for dtype in ERRORS for scaling in ("row", "block", "mx")]


# Powers of two are for floats.
@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype, scaling", [c for c in CASES if c != (torch.int8, "mx")])
def test_values_and_scales(dtype, scaling):
    for x in (torch.randn(5, 300), torch.randn(2, 3, 640).bfloat16(), torch.randn(3, 90)[:, 1:60]):
        x = x.clone() if x.is_contiguous() else x
        x[..., 0, :] = 0
        values, scales = quantize(x, dtype, scaling=scaling)
        error = (restored(values, scales, scaling) - x.float()).abs().max() / x.float().abs().max()
        # The largest element of a block of mxfp8 may be cut by an eighth.
        assert error < (1 / 7 if scaling == "mx" else ERRORS[dtype])
        assert values.dtype is dtype


@pytest.mark.parametrize("scaling", ["row", "mx"])
def test_targets_without_8_bit_floats_store_their_codes(scaling, monkeypatch):
    """All float16 below 448, ties included, are rounded as on Hopper."""
    x = torch.arange(0x5F00, dtype=torch.int16).view(torch.float16).float()
    x = torch.cat([x, -x])[None]
    x[0, -1] = 448
    right = quantize(x, scaling=scaling)
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_80")
    ops._plans.forget()
    values, scales = quantize(x, scaling=scaling)
    assert torch.equal(values.view(torch.uint8), right[0].view(torch.uint8))
    assert torch.equal(scales, right[1])


def test_rows_of_several_programs(monkeypatch):
    tiling = rows.tiling
    layout = rows.gl.BlockedLayout([1, 1], [1, 32], [1, 2], [1, 0])
    monkeypatch.setattr(tilings, "tiling", lambda *a, **b: rows.Tiling(1, 4, 1, 4, 64, 2, layout))
    x = torch.randn(3, 900)
    values, scales = quantize(x, torch.int8)
    torch.testing.assert_close(scales, x.abs().amax(-1) / 127)
    monkeypatch.setattr(tilings, "tiling", tiling)
    ops._plans.forget()
    assert torch.equal(quantize(x, torch.int8)[0], values)


def test_meta():
    values, scales = quantize(torch.randn(3, 40).to("meta"), scaling="block")
    assert values.is_meta and scales.shape == (3, 1)


X = torch.zeros(4, 8)
MISTAKES = [
    (lambda: quantize(X.int()), DtypeError, "x: "),
    (lambda: quantize(torch.zeros(())), ShapeError, "x: "),
    (lambda: quantize(X, torch.uint8), DtypeError, "dtype: "),
    (lambda: quantize(X, torch.int8, scaling="mx"), DtypeError, "dtype: "),
    (lambda: quantize(X, scaling="rows"), ArgumentError, "scaling: .*row"),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_named_before_a_launch(number):
    call, error, words = MISTAKES[number]
    with pytest.raises(error, match=words):
        call()
