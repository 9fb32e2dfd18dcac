"""Long rows on clusters of Hopper, as machine code on the emulator: blocks share a row and exchange numbers once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import gluon_kernels as kernels
from gluon_kernels.norm import launches, loss_launches, ops, rows, tilings, views
from gluon_kernels.norm.loss import _losses as loss_losses
from gluon_kernels.norm.loss import losses_of
from tests.kernels.launched import launches_of, on_target

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]
COLUMNS = 8216  # two tiles of four warps, the second in part
EVEN = 8192  # whole tiles


@pytest.fixture
def shared(monkeypatch):
    """Rows of COLUMNS take several programs, as longer ones do, and few rows are enough for clusters."""
    short = rows.tiling

    def long(columns, *more, **named):
        tiles = short(columns, *more, **named)
        return rows.replace(tiles, parts=2) if columns in (COLUMNS, EVEN) else tiles

    monkeypatch.setattr(tilings, "tiling", long)
    monkeypatch.setattr(tilings, "multiprocessors", lambda tensor: 8)
    monkeypatch.setattr(launches, "ALONE", 0)
    monkeypatch.setattr(launches, "ALONE_NORM", 0)


CASES = {
    "softmax": (kernels.softmax, lambda x, w, b: x.softmax(-1)),
    "rms_norm": (kernels.rms_norm, lambda x, w, b: F.rms_norm(x, w.shape, w, 1e-6)),
    "layer_norm": (kernels.layer_norm, lambda x, w, b: F.layer_norm(x, w.shape, w, b)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("columns", [COLUMNS, EVEN])
@pytest.mark.parametrize("name", CASES)
def test_clusters_share_a_row(name, columns, shared):
    ours, theirs = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(3, columns).bfloat16() * 3 + 1
    vectors = [torch.randn(columns).bfloat16() for _ in range(2)]
    vectors_of_op = () if name == "softmax" else vectors if name == "layer_norm" else vectors[:1]
    with on_target("emu:sm_90"):
        result = ours(x, *vectors_of_op)
        (launch,) = launches_of(lambda: ours(x, *vectors_of_op), "emu:sm_90")
    blocks = 4 if name == "softmax" else 8  # of few rows
    assert launch.kernel.fn.__name__.startswith("cluster_") and launch.options["num_ctas"] == blocks
    expected = theirs(x.float(), *(v.float() for v in vectors))
    assert (result.float() - expected).abs().max() < 1e-2 * expected.abs().max()


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("columns", [COLUMNS, EVEN])
def test_the_weight_comes_to_shared_memory_before_the_row(columns, kept, shared, monkeypatch):
    monkeypatch.setattr(tilings, "AHEAD_FROM", 1)
    x, weight = torch.randn(3, columns).bfloat16() * 3 + 1, torch.randn(columns).to(kept)
    with on_target("emu:sm_90"):
        (launch,) = launches_of(lambda: kernels.rms_norm(x, weight), "emu:sm_90")
        result = kernels.rms_norm(x, weight)
    assert launch.arguments[launch.kernel.arg_names.index("AHEAD")] is True
    expected = F.rms_norm(x.float(), weight.shape, weight.float(), 1e-6)
    assert (result.float() - expected).abs().max() < 1e-2 * expected.abs().max()


def test_the_weight_comes_ahead_where_three_blocks_hold_it():
    weight = torch.empty(0, dtype=torch.bfloat16)
    long = rows.cluster_tiling(131072, 16, 8, 806)
    assert tilings.ahead(long, weight, None) and tilings.ahead(long, weight.float(), None)
    assert not tilings.ahead(long, weight.double(), None)  # 128 KB
    assert not tilings.ahead(long, weight, weight) and not tilings.ahead(long, None, None)
    assert not tilings.ahead(rows.cluster_tiling(65536, 16, 8, 806), weight, None)
    assert not tilings.ahead(rows.tiling(131072, 16, 8), weight, None)


@pytest.mark.parametrize("processors, count, blocks", [(3, 4, 4), (1, 3, 2)])
def test_fewer_blocks_share_a_row(processors, count, blocks, shared, monkeypatch):
    monkeypatch.setattr(tilings, "multiprocessors", lambda tensor: processors)
    x = torch.randn(count, COLUMNS).half() * 3
    with on_target("emu:sm_90"):
        result = kernels.softmax(x)
        (launch,) = launches_of(lambda: kernels.softmax(x), "emu:sm_90")
    assert launch.options["num_ctas"] == blocks
    assert torch.allclose(result.float(), x.float().softmax(-1), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("count, columns, blocks", [
    (4000, 24576, 2), (4000, 32768, 4), (2000, 50304, 8), (806, 131072, 8), (140, 32768, 4), (100, 32768, 8), (90, 16384, 4), (4000, 8192, None),
])  # fmt: skip
def test_softmax_takes_as_few_blocks_as_keep_its_exponentials(count, columns, blocks):
    x = views.Rows.of(torch.empty(count, columns, dtype=torch.bfloat16))
    with on_target("emu:sm_90"):
        tiles, options = tilings.tiling_or_cluster(
            x, x, least=1 << 18, fewest=2, raises=True, anew=True
        )
    assert options.get("num_ctas") == blocks
    assert not blocks or tilings.keeps_exponentials(tiles) == (columns < 100_000)


@pytest.mark.parametrize("processors, soon", [(23, False), (24, True)])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_blocks_that_are_alone_load_vectors_before_the_exchange(
    name, processors, soon, shared, monkeypatch
):
    monkeypatch.setattr(tilings, "multiprocessors", lambda tensor: processors)
    ours, theirs = CASES[name]
    x, weight, bias = torch.randn(3, COLUMNS) * 3 + 1, torch.randn(COLUMNS), torch.randn(COLUMNS)
    vectors = (weight, bias) if name == "layer_norm" else (weight,)
    with on_target("emu:sm_90"):
        result = ours(x, *vectors)
        (launch,) = launches_of(lambda: ours(x, *vectors), "emu:sm_90")
    assert launch.arguments[launch.kernel.arg_names.index("EARLY")] is soon
    assert ("maxnreg" in launch.options) is not soon
    assert torch.allclose(result, theirs(x, weight, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [5000, 5001])
@pytest.mark.parametrize("name", CASES)
def test_few_rows_have_a_program_each(name, columns):
    ours, theirs = CASES[name]
    x = torch.randn(3, columns).bfloat16() * 3 + 1
    vectors = [torch.randn(columns).bfloat16() for _ in range(2)]
    vectors_of_op = () if name == "softmax" else vectors if name == "layer_norm" else vectors[:1]
    results = []
    (launch,) = launches_of(lambda: results.append(ours(x, *vectors_of_op)), "sim:sm_90")
    assert launch.arguments[launch.kernel.arg_names.index("PARTS")] == 1
    assert launch.options["num_warps"] == 8 and launch.grid == (3,)
    expected = theirs(x.float(), *(v.float() for v in vectors))
    assert (results[0].float() - expected).abs().max() < 1e-2 * expected.abs().max()


def test_programs_of_few_rows_have_more_warps_where_these_are_long():
    for columns, warps in ((5120, 8), (10240, 8), (10248, 16), (16384, 16)):
        x = views.Rows.of(torch.empty(99, columns, dtype=torch.bfloat16))
        with on_target("emu:sm_90"):
            tiles, options = tilings.tiling_or_cluster(x, alone=16384)
        assert (tiles.num_warps, tiles.parts, options) == (warps, 1, {})


@pytest.mark.parametrize("dtype, most, keeps, anew", [
    (torch.bfloat16, 48, True, False), (torch.bfloat16, 7, False, True), (torch.float32, 20, True, False), (torch.float32, 19, False, False),
])  # fmt: skip
def test_threads_keep_exponentials_where_they_have_few(dtype, most, keeps, anew, shared, monkeypatch):  # fmt: skip
    """Others raise their elements a second time, and convert those of 16 bits for that: a thread has 24 here, of float32 20."""
    monkeypatch.setattr(tilings, "KEPT", most)
    x = (torch.randn(2, COLUMNS) * 3).to(dtype)
    x[0, 3], x[1, ::2] = 40.0, -float("inf")
    with on_target("emu:sm_90"):
        result = kernels.softmax(x)
        (launch,) = launches_of(lambda: kernels.softmax(x), "emu:sm_90")
    arguments = dict(zip(launch.kernel.arg_names, launch.arguments))
    assert (arguments["KEEP"], arguments["ANEW"]) == (keeps, anew)
    right = x.double().softmax(-1)
    assert ((result - right).abs() <= 2e-6 + 2**-8 * right).all()


@pytest.mark.parametrize("size", [1e4, 6e8, 3e9, 1e30, 3e38])
def test_softmax_of_large_numbers(size, shared):
    """A maximum times log2(e) is rounded, by more than an exponent of float32 has for the largest."""
    x = torch.randn(2, EVEN) * 3
    x[0, 5], x[0, 6000] = size, size * (1 - 2**-23)
    x[1, 7], x[1, 8000] = -size, size * 0.5
    with on_target("emu:sm_90"):
        result = kernels.softmax(x)
    assert torch.allclose(result, x.double().softmax(-1).float(), rtol=1e-5, atol=1e-9)


def test_statistics_are_kept_for_the_gradient(shared):
    x, weight = torch.randn(2, COLUMNS) * 2 + 1, torch.randn(COLUMNS)
    with on_target("emu:sm_90"):
        _, _, statistics = ops._norm.function(x, weight, None, None, 1e-5, True, x.dtype)
    scales = (x.var(-1, correction=0) + 1e-5).rsqrt()
    assert torch.allclose(statistics, torch.cat([scales, x.mean(-1)]), rtol=1e-5)


def test_losses(shared):
    x = torch.randn(4, COLUMNS).bfloat16() * 3
    x[1, ::3], x[2, 7] = -float("inf"), 300.0
    labels = torch.tensor([COLUMNS - 1, -100, 7, COLUMNS])
    with on_target("emu:sm_90"):
        loss, logsum = losses_of(x, labels, -100, True)
        (launch,) = launches_of(lambda: losses_of(x, labels, -100, True), "emu:sm_90")
    assert launch.kernel.fn.__name__ == "cluster_cross_entropy"
    right = F.cross_entropy(x[:3].float(), labels[:3], reduction="none")
    torch.testing.assert_close(loss[:3], right)
    assert loss[3].isnan()  # no class
    torch.testing.assert_close(logsum, x.float().logsumexp(-1))


def test_four_blocks_share_long_rows_of_losses(monkeypatch):
    """Rows that are too few to keep processors busy one by one, and too many for eight blocks each."""
    monkeypatch.setattr(loss_launches, "SHARED", (COLUMNS, 2 * COLUMNS))
    x, labels = torch.randn(4, COLUMNS).bfloat16() * 3, torch.arange(4)
    for processors, name in ((3, "cluster_cross_entropy"), (1, "cross_entropy")):
        monkeypatch.setattr(loss_launches, "multiprocessors", lambda tensor: processors)
        loss_losses.forget()
        with on_target("emu:sm_90"):
            loss, _ = losses_of(x, labels, -100, False)
            (launch,) = launches_of(lambda: losses_of(x, labels, -100, False), "emu:sm_90")
        assert launch.kernel.fn.__name__ == name
        assert launch.options.get("num_ctas", 1) == (4 if processors == 3 else 1)
        torch.testing.assert_close(loss, F.cross_entropy(x.float(), labels, reduction="none"))


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
