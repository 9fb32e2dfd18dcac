"""Long rows on clusters of Hopper, as machine code on the emulator: blocks share a row and exchange numbers once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import gluon_kernels as kernels
from gluon_kernels.norm import launches, ops, rows
from tests.kernels.launched import launches_of, on_target

pytestmark = [pytest.mark.once]
COLUMNS = 8216  # two tiles of four warps, the second in part


@pytest.fixture
def shared(monkeypatch):
    """Rows of COLUMNS take several programs, as longer ones do, and few rows are enough for clusters."""
    short = rows.tiling

    def long(columns, *more, **named):
        tiles = short(columns, *more, **named)
        return rows.replace(tiles, parts=2) if columns == COLUMNS else tiles

    monkeypatch.setattr(launches, "tiling", long)
    monkeypatch.setattr(launches, "multiprocessors", lambda tensor: 8)


CASES = {
    "softmax": (kernels.softmax, lambda x, w, b: x.softmax(-1)),
    "rms_norm": (kernels.rms_norm, lambda x, w, b: F.rms_norm(x, (COLUMNS,), w, 1e-6)),
    "layer_norm": (kernels.layer_norm, lambda x, w, b: F.layer_norm(x, (COLUMNS,), w, b)),
}


@pytest.mark.parametrize("name", CASES)
def test_clusters_share_a_row(name, shared):
    ours, theirs = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(3, COLUMNS).bfloat16() * 3 + 1
    vectors = [torch.randn(COLUMNS).bfloat16() for _ in range(2)]
    vectors_of_op = () if name == "softmax" else vectors if name == "layer_norm" else vectors[:1]
    with on_target("emu:sm_90"):
        result = ours(x, *vectors_of_op)
        (launch,) = launches_of(lambda: ours(x, *vectors_of_op), "emu:sm_90")
    assert launch.kernel.fn.__name__.startswith("cluster_") and launch.options["num_ctas"] == 8
    expected = theirs(x.float(), *(v.float() for v in vectors))
    assert (result.float() - expected).abs().max() < 1e-2 * expected.abs().max()


def test_statistics_are_kept_for_the_gradient(shared):
    x, weight = torch.randn(2, COLUMNS) * 2 + 1, torch.randn(COLUMNS)
    with on_target("emu:sm_90"):
        _, _, statistics = ops._norm.function(x, weight, None, None, 1e-5, True, x.dtype)
    scales = (x.var(-1, correction=0) + 1e-5).rsqrt()
    assert torch.allclose(statistics, torch.cat([scales, x.mean(-1)]), rtol=1e-5)


def test_gradients_of_softmax(shared):
    result, grad = torch.randn(2, COLUMNS).softmax(-1), torch.randn(2, COLUMNS)
    with on_target("emu:sm_90"):
        gradient = ops._softmax_backward.function(grad, result, torch.float32)
    expected = result * (grad - (grad * result).sum(-1, keepdim=True))
    assert (gradient - expected).abs().max() < 1e-5 * expected.abs().max()


def test_rows_that_a_cluster_holds():
    for columns in (53256, 57152, 65536, 100000, 131072, 262144):
        tiles = rows.cluster_tiling(columns, 16, 8, 806)
        assert tiles is not None and columns <= tiles.pieces * tiles.width < 1.13 * columns
    assert rows.cluster_tiling(262144 + 8, 16, 8, 806) is None
    assert rows.cluster_tiling(262144, 16, 8, 806, held=2) is None
    assert rows.cluster_tiling(131072, 16, 1, 806) is None  # elements loaded one at a time
    assert rows.cluster_tiling(131072, 16, 8, 16) is None  # fewer blocks than multiprocessors
