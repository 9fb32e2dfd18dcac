"""Rows that begin anywhere: their bodies by whole accesses, their edges by single ones; on the simulator, and in clusters on the emulator."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import gluon_kernels as kernels
from gluon_kernels.norm import gradient_launches, launches, ops, rows, tilings
from tests.kernels.launched import launches_of, on_target

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]
LONG = 8219  # columns of rows that several programs share
CASES = {
    "softmax": (kernels.softmax, lambda x, w, b: x.softmax(-1)),
    "rms_norm": (kernels.rms_norm, lambda x, w, b: F.rms_norm(x, w.shape, w, 1e-6)),
    "layer_norm": (kernels.layer_norm, lambda x, w, b: F.layer_norm(x, w.shape, w, b)),
}


@pytest.fixture
def shared(monkeypatch):
    """Rows of LONG take several programs, as longer ones do, and few rows are enough for clusters."""
    short = rows.tiling

    def long(columns, *more, **named):
        tiles = short(columns, *more, **named)
        if columns != LONG:
            return tiles
        return rows.replace(tiles, parts=4, pieces=-(-tiles.parts * tiles.pieces // 4))

    monkeypatch.setattr(tilings, "tiling", long)
    monkeypatch.setattr(tilings, "multiprocessors", lambda tensor: 8)
    monkeypatch.setattr(launches, "ALONE", 0)
    monkeypatch.setattr(launches, "ALONE_NORM", 0)


@pytest.fixture
def everywhere(monkeypatch):
    monkeypatch.setattr(tilings, "LEAST_ODD", 300)


def checked(name, columns, dtype, apart, target, count=3):
    """Check an op for rows that are `columns + apart` elements apart, and return the launch."""
    ours, theirs = CASES[name]
    torch.manual_seed(0)
    x = (torch.randn(count, columns + apart) * 3 + 1).to(dtype)[:, :columns]
    vectors = [torch.randn(columns).to(dtype) for _ in range(2)]
    of_op = () if name == "softmax" else vectors if name == "layer_norm" else vectors[:1]
    results = []
    with on_target(target):
        (launch,) = launches_of(lambda: results.append(ours(x, *of_op)), target)
    expected = theirs(x.double(), *(v.double() for v in vectors))
    limit = 1e-2 if dtype.itemsize == 2 else 1e-5
    assert (results[-1].double() - expected).abs().max() < limit * expected.abs().max()
    return launch


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("columns, dtype, apart", [
    (1001, torch.bfloat16, 0), (1001, torch.bfloat16, 24), (333, torch.float32, 0), (778, torch.float16, 8),
])  # fmt: skip
def test_rows_of_programs(name, columns, dtype, apart, everywhere):
    launch = checked(name, columns, dtype, apart, "sim:sm_90")
    assert launch.kernel.fn.__module__ == "gluon_kernels.norm.odd"


@pytest.mark.parametrize("name", CASES)
def test_parts_of_a_row(name, everywhere, shared):
    launch = checked(name, LONG, torch.bfloat16, 0, "sim:sm_90", 1)
    assert launch.grid == (4,) and launch.kernel.fn.__module__ == "gluon_kernels.norm.odd"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_clusters(name, everywhere, shared):
    launch = checked(name, LONG, torch.bfloat16, 0, "emu:sm_90")
    blocks = 4 if name == "softmax" else 8  # of few rows
    assert launch.kernel.fn.__name__.startswith("cluster_") and launch.options["num_ctas"] == blocks


def test_vectors_of_another_dtype_are_not_shifted(everywhere):
    x, weight = torch.randn(3, 1001).bfloat16(), torch.randn(1001)
    with on_target("sim:sm_90"):
        result = kernels.rms_norm(x, weight)
    expected = F.rms_norm(x.double(), (1001,), weight.double(), 1e-6)
    assert (result.double() - expected).abs().max() < 1e-2 * expected.abs().max()


def test_rows_that_begin_at_other_places_than_their_results(everywhere):
    """Columns of a wider matrix, whose rows are one more element apart than those of the result."""
    x = torch.randn(3, 1002)[:, :1001]
    with on_target("sim:sm_90"):
        (launch,) = launches_of(lambda: kernels.softmax(x), "sim:sm_90")
        assert torch.allclose(kernels.softmax(x), x.softmax(-1), atol=1e-7)
    assert launch.kernel.fn.__module__ == "gluon_kernels.norm.portable"


def test_other_vendors(everywhere):
    for target in ("sim:gfx942", "sim:gfx1250"):
        checked("layer_norm", 1001, torch.bfloat16, 0, target)


def test_statistics_for_the_gradient(everywhere):
    x = torch.randn(3, 1001) + 1
    with on_target("sim:sm_90"):
        _, _, statistics = ops._norm.function(x, None, None, None, 1e-5, True, x.dtype)
    scales = (x.var(-1, correction=0) + 1e-5).rsqrt()
    assert torch.allclose(statistics, torch.cat([scales, x.mean(-1)]), rtol=1e-5)


@pytest.mark.parametrize("columns, dtype, count, apart, target", [
    (1001, torch.bfloat16, 37, 0, "sim:sm_90"), (333, torch.float32, 5, 0, "emu:sm_90"),
    (2111, torch.bfloat16, 9, 24, "sim:sm_90"), (1001, torch.float16, 30, 0, "sim:gfx942"),
])  # fmt: skip
@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("few", [0, 512])  # rows up to which one launch has rows and columns
def test_gradients(name, columns, dtype, count, apart, target, few, everywhere, monkeypatch):
    monkeypatch.setattr(gradient_launches, "FEW_NARROW", few)
    monkeypatch.setattr(gradient_launches, "multiprocessors", lambda tensor: 8)  # several rows each
    ours, theirs = CASES[name]
    torch.manual_seed(0)
    x = (torch.randn(count, columns + apart) * 2 + 1).to(dtype)[:, :columns]
    vectors = [torch.randn(columns).to(dtype) for _ in range(2)]
    grad = torch.randn(count, columns).to(dtype)
    results = []
    for call, convert in ((ours, lambda t: t), (theirs, torch.Tensor.double)):
        leaves = [convert(t).detach().requires_grad_() for t in (x, *vectors)]
        wanted = leaves if name == "layer_norm" else leaves[:2]
        of_op = wanted if call is ours else leaves
        with on_target(target):
            results.append(torch.autograd.grad(call(*of_op), wanted, convert(grad)))
    limit = 2e-2 if dtype.itemsize == 2 else 1e-5
    for mine, right in zip(*results, strict=True):
        assert (mine.double() - right).abs().max() < limit * right.abs().max()


@pytest.mark.parametrize("without", ["weight", "gradients of vectors"])
def test_gradients_of_rows_alone(without, everywhere):
    x = torch.randn(20, 1001, requires_grad=True)
    weight = None if without == "weight" else torch.randn(1001)
    with on_target("sim:sm_90"):
        (launch, *_), grads = launched_gradients(x, weight)
    assert launch.kernel.fn.__module__ == "gluon_kernels.norm.odd_gradients"
    right = F.rms_norm(x, (1001,), weight, 1e-6)
    (expected,) = torch.autograd.grad(right, x, torch.ones_like(x))
    assert (grads - expected).abs().max() < 1e-5 * expected.abs().max()


def launched_gradients(x, weight):
    """Return the launches of the gradient of RMS norm, and the gradient of `x`."""
    result, grads = kernels.rms_norm(x, weight), []
    ones = torch.ones_like(x)
    launches = launches_of(
        lambda: grads.append(torch.autograd.grad(result, x, ones, retain_graph=True)), "sim:sm_90"
    )
    return launches, grads[-1][0]
