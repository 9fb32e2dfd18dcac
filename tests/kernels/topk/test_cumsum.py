"""`gluon_kernels.cumsum` through its public door."""

from __future__ import annotations

import pytest
import torch

from gluon_core.errors import ArgumentError, DtypeError
from gluon_kernels import cumsum, softmax
from gluon_kernels.norm import columns, ops
from gluon_kernels.topk import sums
from tests.kernels.launched import launches_of

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    sums._plans.forget()
    yield
    sums._plans.forget()


def test_rows_of_any_width_and_dimension():
    for x in (torch.randn(3, 9001), torch.randn(70, 33), torch.randn(2, 5, 90)[..., ::2]):
        torch.testing.assert_close(cumsum(x), x.cumsum(-1), rtol=1e-4, atol=1e-3)
    x = torch.randn(40, 3)
    torch.testing.assert_close(cumsum(x, 0), x.cumsum(0))
    narrow = torch.randn(3, 500).bfloat16()
    right = narrow.double().cumsum(-1).float()
    torch.testing.assert_close(cumsum(narrow, dtype=torch.float32), right, rtol=1e-5, atol=1e-4)
    assert cumsum(narrow).dtype is torch.bfloat16
    assert cumsum(torch.zeros(0, 4)).shape == (0, 4)


@pytest.mark.parametrize("shape, dim", [((70, 40), 0), ((3, 50, 33), 1), ((2100, 17), 0)])
def test_columns_without_a_transposed_copy(shape, dim, monkeypatch):
    monkeypatch.setattr(sums, "route", lambda *tensors: 1)
    x = torch.randn(shape)
    torch.testing.assert_close(cumsum(x, dim), x.cumsum(dim), rtol=1e-4, atol=1e-3)
    half = x.bfloat16()
    right = half.double().cumsum(dim).float()
    torch.testing.assert_close(cumsum(half, dim, dtype=torch.float32), right, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "shape, held",
    [((13, 1040), [16, 4]), ((2, 30, 520), [32, 2]), ((5, 1200), [8, 8]), ((13, 1030), [4, 1])],
)
def test_threads_have_all_rows_of_short_columns(shape, held, monkeypatch):
    for module in (sums, ops):
        monkeypatch.setattr(module, "route", lambda *tensors: 1)
    monkeypatch.setattr(columns, "multiprocessors", lambda tensor: 1)
    sums._plans_of_columns.forget()
    ops._softmaxes_of_columns.forget()
    x = torch.randn(shape)
    for op, right in ((cumsum, torch.cumsum), (softmax, torch.softmax)):
        results = []
        (launched,) = launches_of(lambda op=op: results.append(op(x, -2)), "sim:sm_90")
        arguments = dict(zip(launched.kernel.arg_names, launched.arguments))
        assert arguments["layout"].size_per_thread == held
        torch.testing.assert_close(results[0], right(x, -2), rtol=1e-5, atol=1e-5)
    sums._plans_of_columns.forget()
    ops._softmaxes_of_columns.forget()


def test_gradient_and_declaration():
    x = torch.randn(3, 90, requires_grad=True)
    weight = torch.randn(3, 90)
    (mine,) = torch.autograd.grad((cumsum(x) * weight).sum(), [x])
    (theirs,) = torch.autograd.grad((x.cumsum(-1) * weight).sum(), [x])
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    done = torch.library.opcheck(torch.ops.gluon_kernels.cumsum.default, (x, torch.float32, False))
    assert set(done.values()) == {"SUCCESS"}


def test_mistakes_are_named_before_a_launch():
    with pytest.raises(DtypeError, match="x: "):
        cumsum(torch.zeros(3).int())
    with pytest.raises(ArgumentError, match="dim: "):
        cumsum(torch.zeros(3), 1)
    with pytest.raises(ArgumentError, match="dtype: "):
        cumsum(torch.zeros(3), dtype=torch.int32)
