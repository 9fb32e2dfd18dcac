"""Softmax, norms and cross entropy of `gluon_kernels` through their public door."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import gluon_kernels as kernels
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_core.launch.jit import GluonJITFunction
from gluon_core.registry.load import registry
from gluon_kernels.norm import (
    loss,
    loss_launches,
    ops,
    portable,
    rows,
    tilings,
    views,
)
from gluon_kernels.norm.problem import PROBLEMS, WITH_GRADIENTS
from gluon_kernels.plans import Plans
from gluon_kernels.topk.problem import WITH_GRADIENTS as OF_SUMS
from tests.kernels.launched import launches_of
from tests.kernels.routes import route

pytestmark = [pytest.mark.once, pytest.mark.sampled(6), pytest.mark.usefixtures("hopper")]

CASES = [pytest.param(p, s, id=f"{p.name}-{i}") for p in PROBLEMS for i, s in enumerate(p.small)]
PLANS = [value for value in vars(ops).values() if isinstance(value, Plans)]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("problem, shape", CASES)
def test_every_form(problem, shape):
    assert problem.check(shape, "cpu") is None


@pytest.mark.parametrize("problem", (*WITH_GRADIENTS, *OF_SUMS), ids=lambda problem: problem.name)
def test_problems_with_gradients(problem):
    assert problem.check(problem.small[0], "cpu") is None


@pytest.mark.parametrize("target", ["sim:sm_80", "sim:gfx942"])
def test_elsewhere(target, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    for problem in PROBLEMS:
        assert problem.check(problem.small[0], "cpu") is None


@pytest.mark.parametrize("shape, dim", [((70, 40), 0), ((3, 50, 33), 1), ((2, 5, 7), -2), ((2100, 17), 0)])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_along_other_dimensions(shape, dim, dtype, way):
    x = torch.randn(shape).to(dtype)
    x.flatten()[::11] = -torch.inf
    right = x.double().softmax(dim)
    ours = kernels.softmax(x, dim).double()
    torch.testing.assert_close(ours, right, rtol=1e-2, atol=1e-3, equal_nan=True)
    x[..., 0], x[..., 1] = -torch.inf, torch.nan
    assert torch.equal(kernels.softmax(x, dim).isnan(), x.double().softmax(dim).isnan())
    assert kernels.softmax(x.mT, -1).shape == x.mT.shape


@pytest.mark.parametrize("dtype, columns", [(torch.bfloat16, 136), (torch.float16, 800), (torch.bfloat16, 504)])  # fmt: skip
def test_programs_have_several_short_rows(dtype, columns, monkeypatch):
    for module in (tilings, loss_launches):
        monkeypatch.setattr(module, "multiprocessors", lambda tensor: 1)  # rows are many
    monkeypatch.setattr(tilings, "LEAST_ODD", 10_000)
    torch.manual_seed(0)
    x = torch.randn(21, columns).to(dtype)
    weight, bias = torch.randn(2, columns).to(dtype)
    labels = torch.randint(0, columns, (21,))
    labels[::4] = -100
    wide = x.double()
    grad = torch.randn(21, columns).to(dtype)
    by_softmax = wide.softmax(-1).to(dtype)
    known = by_softmax.double()
    slope = known * (grad.double() - (grad.double() * known).sum(-1, keepdim=True))
    cases = (
        (lambda: kernels.softmax(x), known),
        (lambda: kernels.rms_norm(x, weight), F.rms_norm(wide, (columns,), weight.double(), 1e-6)),
        (lambda: kernels.layer_norm(x, weight, bias), F.layer_norm(wide, (columns,), weight.double(), bias.double())),
        (lambda: kernels.layer_norm(x, residual=x)[0], F.layer_norm((x + x).double(), (columns,))),
        (lambda: kernels.cross_entropy(x, labels), F.cross_entropy(wide, labels)),
        (lambda: ops._softmax_backward.function(grad, by_softmax, dtype), slope),
    )  # fmt: skip
    for call, right in cases:
        results = []
        launched, *_ = launches_of(lambda call=call: results.append(call()), "sim:sm_90")
        arguments = dict(zip(launched.kernel.arg_names, launched.arguments))
        assert launched.options["num_warps"] in (4, 8) and arguments["ROWS"] > 1
        assert (results[0].double() - right).abs().max() < 1e-2 * right.abs().max()


@pytest.mark.parametrize("count, columns, rows_warps_pieces", [
    (60_000, 1536, (4, 4, 6)), (40_000, 2048, (4, 4, 8)), (7710, 9344, (1, 4, 10)), (7307, 14784, (1, 4, 15)),
    (87, 13568, (1, 8, 7)), (405, 2088, (1, 2, 5)), (1692, 17792, (1, 8, 9)), (106, 26984, (1, 16, 7)),
    (1000, 128, (4, 2, 1)), (12_000, 128, (16, 4, 2)), (30_000, 136, (16, 4, 3)), (100_000, 128, (32, 4, 4)), (27_512, 76, (32, 4, 5)),
    (90_000, 256, (16, 4, 4)), (5000, 256, (8, 4, 2)), (20_000, 430, (8, 4, 14)), (5000, 430, (4, 4, 7)), (9000, 832, (4, 4, 4)),
])  # fmt: skip
def test_losses_of_many_rows_have_few_warps(count, columns, rows_warps_pieces):
    align = {76: 4, 430: 2}.get(columns, 8)
    src = views.Rows(torch.empty(0, dtype=torch.bfloat16), False, count, columns, columns, align)
    tiles = loss_launches._tiles(src)
    assert (tiles.rows, tiles.num_warps, tiles.pieces) == rows_warps_pieces
    assert tiles.pieces * tiles.width >= columns and tiles.parts == 1


@pytest.mark.parametrize("columns", [64, 20_000])
def test_logarithms_of_sums_are_kept_for_gradients_alone(columns, monkeypatch):
    """By programs that have a row, and by ones that share it."""
    monkeypatch.setattr(loss, "route", route)
    x, labels = torch.randn(3, columns), torch.arange(3)
    right = F.cross_entropy(x, labels, reduction="none")
    for wanted in (False, True):
        leaf, losses = x.clone().requires_grad_(wanted), []
        (launched,) = launches_of(
            lambda: losses.append(kernels.cross_entropy(leaf, labels, reduction="none")),
            "sim:sm_90",
        )
        arguments = dict(zip(launched.kernel.arg_names, launched.arguments))
        assert (arguments["logsum"] is not None) == wanted
        torch.testing.assert_close(losses[0], right)


def test_few_short_rows_have_programs_of_their_own():
    x = views.Rows.of(torch.empty(300, 800, dtype=torch.bfloat16))
    assert tilings.packed(tilings.tiling_of(x), x).rows == 1
    x = views.Rows.of(torch.empty(3000, 800, dtype=torch.bfloat16))
    assert tilings.packed(tilings.tiling_of(x), x).rows == 4


@pytest.mark.parametrize("columns", [1, 30, 78, 88, 128, 300, 420, 512, 513, 1000])
@pytest.mark.parametrize("own", [16, 32])
def test_lanes_of_short_rows_have_few_elements(columns, own):
    for count in (3, 600, 50_000):
        x = views.Rows.of(torch.empty(0, columns, dtype=torch.bfloat16))
        x = rows.replace(x, count=count)
        tiles = tilings.of_short_rows(own, x)
        if columns > 32 * own:
            assert tiles is None
            continue
        held = tiles.pieces * tiles.layout.size_per_thread[1]
        assert (
            held <= own
            and tiles.pieces * tiles.width >= columns > tiles.pieces * tiles.width - held * 32
        )
        warps = tiles.grid(count) * tiles.num_warps
        assert warps >= min(count, 4 * 132) or tiles.width >= columns
        assert tiles.num_warps == 1 or tiles.grid(count) >= 132
    assert tilings.of_short_rows(own, views.Rows.of(torch.empty(9, 64))) is None


@pytest.mark.parametrize("columns, width", [(128, 64), (78, 16), (344, 256), (99, 32)])
def test_short_rows_of_softmax_have_few_lanes(columns, width, monkeypatch):
    """Unless their elements are stored one at a time, in parts of sectors."""
    monkeypatch.setattr(tilings, "multiprocessors", lambda tensor: 1)  # rows are many
    x, grad = (torch.randn(50, columns).bfloat16() for _ in range(2))
    result = x.double().softmax(-1)
    known = result.bfloat16().double()
    slope = known * (grad.double() - (grad.double() * known).sum(-1, keepdim=True))
    calls = (
        (lambda: kernels.softmax(x), result),
        (lambda: ops._softmax_backward.function(grad, known.bfloat16(), x.dtype), slope),
    )
    for call, right in calls:
        results = []
        (launched,) = launches_of(lambda call=call: results.append(call()), "sim:sm_90")
        assert launched.arguments[launched.kernel.arg_names.index("WIDTH")] == width
        assert (results[0].double() - right).abs().max() < 1e-2 * right.abs().max()


def test_few_short_rows_have_threads_of_their_own():
    for count, wanted in ((3000, 4), (9000, 8)):
        x = views.Rows.of(torch.empty(count, 512, dtype=torch.bfloat16))
        assert tilings.packed(tilings.tiling_of(x), x).rows == wanted
    for columns, wanted in ((430, 4), (78, 8)):  # loaded two elements at a time
        x = views.Rows.of(torch.empty(9000, columns, dtype=torch.bfloat16))
        assert tilings.packed(tilings.tiling_of(x), x).rows >= wanted


def test_rows_of_norms_have_warps_of_fewer_elements():
    for columns, warps in ((2624, 4), (5632, 8), (6400, 8), (2048, 2)):
        x = views.Rows.of(torch.empty(600, columns, dtype=torch.bfloat16))
        assert tilings.tiling_of(x, own=24).num_warps == warps
    (launched,) = launches_of(lambda: kernels.rms_norm(torch.zeros(2, 2624).half()), "sim:sm_90")
    assert launched.options["num_warps"] == 4


def test_warps_have_two_rows_where_one_leaves_many_lanes_without_columns():
    for count, columns, wanted in (
        (9000, 78, (8, 3)), (9000, 94, (8, 3)), (9000, 100, None), (9000, 64, None), (9000, 360, (8, 3)), (5000, 78, None),
    ):  # fmt: skip
        x = views.Rows.of(torch.empty(count, columns, dtype=torch.bfloat16))
        tiles = tilings.of_halves(x, x)
        assert (tiles and (tiles.rows, tiles.pieces)) == wanted
    assert tilings.of_halves(views.Rows.of(torch.empty(9000, 78))) is None


@pytest.mark.parametrize("columns", [78, 132])
def test_norms_of_two_rows_of_a_warp(columns, monkeypatch):
    monkeypatch.setattr(tilings, "FEW_SHORT", 0)
    x, weight, bias = (
        torch.randn(*size).bfloat16() for size in ((21, columns), (columns,), (columns,))
    )
    results = []
    (launched,) = launches_of(
        lambda: results.append(kernels.layer_norm(x, weight, bias)), "sim:sm_90"
    )
    assert launched.grid == (3,)
    right = F.layer_norm(x.double(), (columns,), weight.double(), bias.double())
    assert (results[0].double() - right).abs().max() < 1e-2 * right.abs().max()


def test_vectors_are_loaded_early_where_all_programs_begin_at_once():
    for count, columns, vectors, soon in (
        (1183, 2560, 1, True), (1183, 2560, 2, False), (541, 2624, 2, True), (9000, 2560, 1, False),
    ):  # fmt: skip
        x = views.Rows.of(torch.empty(count, columns, dtype=torch.bfloat16))
        assert tilings.early(tilings.tiling_of(x, own=24), x, vectors) is soon


@pytest.mark.parametrize("count, warps", [(4, 8), (5, 4), (9, 8)])
def test_threads_of_layer_norm_have_more_elements_where_all_programs_begin_at_once(
    count, warps, monkeypatch
):
    monkeypatch.setattr(tilings, "multiprocessors", lambda x: 1)
    x, vector = torch.zeros(count, 6208).half(), torch.zeros(6208).half()
    (launched,) = launches_of(lambda: kernels.layer_norm(x, vector, vector), "sim:sm_90")
    (of_one_vector,) = launches_of(lambda: kernels.layer_norm(x, vector), "sim:sm_90")
    assert (launched.options["num_warps"], of_one_vector.options["num_warps"]) == (warps, 8)


def test_threads_have_two_short_rows_of_a_softmax():
    x = views.Rows.of(torch.empty(20_000, 128, dtype=torch.bfloat16))
    tiles = tilings.tiling_of(x)
    for most, rows_and_warps in ((None, (8, 1)), (2, (16, 4)), (1, (8, 4))):
        several = tilings.packed(tiles, x, most)
        assert (several.rows, several.num_warps) == rows_and_warps


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows, columns", [(140, 21504), (150, 16384), (150, 12000), (600, 20480)])
def test_losses_of_long_rows_spill_nothing(rows, columns, monkeypatch):
    compiled = []

    def recorded(self, *arguments, grid, **options):
        target = registry().target("sm_90")
        compiled.append(self.warmup(*arguments, grid=grid, target=target, **options))
        return lambda *values: None

    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    monkeypatch.setattr(GluonJITFunction, "prepare", recorded)
    x = torch.empty(rows, columns, dtype=torch.bfloat16)
    kernels.cross_entropy(x, torch.zeros(rows, dtype=torch.int64), reduction="none")
    (report,) = [one.report() for one in compiled]
    assert report.spills == 0 and report.registers <= 64


@pytest.mark.parametrize("dtype, columns, anew", [
    (torch.bfloat16, 512, True), (torch.float16, 1000, True), (torch.bfloat16, 300, False), (torch.float32, 512, False),
])  # fmt: skip
def test_losses_convert_many_elements_of_a_thread_anew(dtype, columns, anew, monkeypatch):
    monkeypatch.setattr(loss_launches, "ANEW_FROM", 13)
    x, labels = (torch.randn(5, columns) * 4).to(dtype), torch.arange(5) * 50
    x[1, ::3], x[2, 100] = -torch.inf, 60.0
    results = []
    launched, *_ = launches_of(
        lambda: results.append(kernels.cross_entropy(x, labels, reduction="none")), "sim:sm_90"
    )
    assert launched.arguments[launched.kernel.arg_names.index("ANEW")] is anew
    torch.testing.assert_close(
        results[0], F.cross_entropy(x.float(), labels, reduction="none"), rtol=1e-5, atol=1e-5
    )


def test_programs_of_columns_have_all_rows():
    for columns, bits, align, count in itertools.product(
        (17, 300, 4024, 100_000), (16, 32), (1, 2, 8, 16), (1, 20, 264)
    ):
        tiles = rows.column_tiling(columns, bits, align, count, 8)
        assert tiles.layout.size_per_thread[1] == min(align, 128 // bits)
        lanes, warps = tiles.layout.threads_per_warp, tiles.layout.warps_per_cta
        assert lanes[1] * tiles.layout.size_per_thread[1] == tiles.width and warps == [8, 1]
        assert tiles.rows % (8 * lanes[0]) == 0 and tiles.rows <= 256  # offsets have 32 bits


def test_rows_that_programs_share_use_their_counters_again(programs):
    x = torch.randn(3, 700)
    for _ in range(3):
        torch.testing.assert_close(kernels.softmax(x), x.softmax(-1))
    kept = kernels.softmax(x)
    assert torch.equal(kept, kernels.softmax(x))  # equal inputs, equal bits


def test_extreme_rows():
    x = torch.randn(4, 300)
    x[0] = -float("inf")
    x[1, 3] = float("nan")
    x[2, ::2] = -float("inf")
    x[3] *= 1e30
    torch.testing.assert_close(kernels.softmax(x), x.softmax(-1), equal_nan=True)


def test_a_mean_far_from_zero():
    x = torch.randn(3, 4000) + 1e3
    right = F.layer_norm(x.double(), (4000,)).float()
    torch.testing.assert_close(kernels.layer_norm(x), right, rtol=1e-3, atol=1e-3)


def test_memory_of_the_caller():
    x, weight = torch.randn(6, 40), torch.randn(40)
    whole = torch.zeros(6, 100)
    for out in (whole[:, 3:43], torch.zeros(40, 6).mT, whole[:, :80:2]):
        assert kernels.softmax(x, out=out) is out
        torch.testing.assert_close(out, x.softmax(-1))
        kernels.rms_norm(x, weight, out=out)
        torch.testing.assert_close(out, F.rms_norm(x, (40,), weight, 1e-6))
    wanted = x.softmax(-1)
    torch.testing.assert_close(kernels.softmax(x, out=x), wanted)


def test_results_do_not_overwrite_inputs():
    whole = torch.randn(6, 48)
    for call in (
        lambda: kernels.softmax(whole[:, :40], out=whole[:, 4:44]),
        lambda: kernels.rms_norm(whole[:5], out=whole[1:]),
        lambda: kernels.layer_norm(whole[:1], whole[1], out=whole[1:2]),
    ):
        with pytest.raises(ArgumentError, match="out: .*shares memory"):
            call()
    x = whole[:, :24]
    right = x.softmax(-1)
    torch.testing.assert_close(kernels.softmax(x, out=whole[:, 24:]), right)  # aside


def test_a_plan_serves_all_calls_of_its_key():
    for _ in range(3):
        x = torch.randn(6, 40)
        torch.testing.assert_close(kernels.softmax(x), x.softmax(-1))
    assert len(ops._softmaxes) == 1
    kernels.softmax(torch.randn(6, 48))
    assert len(ops._softmaxes) == 2


def test_a_plan_of_equal_arguments_serves_different_ones():
    x, weight, bias = torch.randn(6, 40), torch.randn(40), torch.randn(40)
    kernels.layer_norm(x, weight, weight)
    right = F.layer_norm(x, (40,), weight, bias)
    torch.testing.assert_close(kernels.layer_norm(x, weight, bias), right, rtol=1e-4, atol=1e-5)
    same = x.clone()
    kernels.softmax(same, out=same)
    out, before = torch.empty_like(x), x.clone()
    torch.testing.assert_close(kernels.softmax(x, out=out), x.softmax(-1))
    assert torch.equal(x, before)


def test_the_declarations_of_operators_are_true():
    x, weight, bias = torch.randn(5, 24), torch.randn(24), torch.randn(24)
    leaf = x.clone().requires_grad_()
    ours = torch.ops.gluon_kernels
    labels = torch.tensor([1, 2, -100, 0, 23])
    cases = [
        (ours.softmax, (leaf, torch.float32)),
        (ours.softmax_out, (x, torch.empty_like(x))),
        (ours.norm, (leaf, weight, bias, None, 1e-5, True, torch.float32)),
        (ours.norm, (leaf, weight, None, x, 1e-5, False, torch.float32)),
        (ours.norm_out, (x, weight, None, x, 1e-5, False, torch.empty_like(x))),
        (ours.cross_entropy, (leaf, labels, -100, False)),
        (ours.cross_entropy, (leaf, labels, -100, True)),
        (ours.swiglu, (leaf, x)),
    ]
    for op, arguments in cases:
        done = torch.library.opcheck(op.default, arguments)
        assert set(done.values()) == {"SUCCESS"}, op


def test_one_graph_serves_all_sizes():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    def function(x, weight, labels):
        y = kernels.rms_norm(kernels.softmax(x.sin()), weight)
        return kernels.cross_entropy(y, labels)

    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=True)
    weight = torch.randn(24)
    for count in (8, 24, 40):
        x, labels = torch.randn(count, 24), torch.zeros(count, dtype=torch.int64)
        torch.testing.assert_close(compiled(x, weight, labels), function(x, weight, labels))
    assert len(graphs) == 1


def test_autocast_meta_and_vmap():
    x = torch.randn(4, 5, 24).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert kernels.softmax(x).dtype is torch.float32
        assert kernels.layer_norm(x).dtype is torch.float32
    result = kernels.rms_norm(x.to("meta"))
    assert result.shape == x.shape and result.is_meta
    mapped = torch.vmap(kernels.softmax)(x.float())
    torch.testing.assert_close(mapped, x.float().softmax(-1))


X = torch.zeros(4, 8)
LABELS = torch.zeros(4, dtype=torch.int64)
MISTAKES = [
    (lambda: kernels.softmax(X.int()), DtypeError, "x: .*int32"),
    (lambda: kernels.softmax(X, 2), ArgumentError, "dim: .*-2 to 1"),
    (lambda: kernels.softmax(torch.zeros(())), ShapeError, "at least one dimension"),
    (lambda: kernels.softmax(X, out=torch.zeros(4, 9)), ShapeError, "out: "),
    (lambda: kernels.softmax(X.clone().requires_grad_(), out=X.clone()), ArgumentError, "out: "),
    (lambda: kernels.softmax(X, out=torch.zeros(8).expand(4, 8)), ArgumentError, "out: .*expanded"),
    (lambda: kernels.rms_norm(X, torch.zeros(9)), ShapeError, r"weight: .*\[8\].*\[9\]"),
    (lambda: kernels.layer_norm(X, bias=torch.zeros(8).int()), DtypeError, "bias: "),
    (lambda: kernels.rms_norm(X, residual=torch.zeros(4, 9)), ShapeError, "residual: "),
    (lambda: kernels.swiglu(X, X[:3]), ShapeError, "up: "),
    (lambda: kernels.swiglu(X, X.half()), DtypeError, "up: "),
    (lambda: kernels.swiglu(X, [1.0]), DtypeError, "up: .*list"),
    (lambda: kernels.linear_cross_entropy([1.0], X, LABELS), DtypeError, "x: .*list"),
    (lambda: kernels.cross_entropy(X, LABELS[:3]), ShapeError, "labels: "),
    (lambda: kernels.cross_entropy(X, LABELS.float()), DtypeError, "labels: "),
    (lambda: kernels.cross_entropy(X, LABELS, reduction="man"), ArgumentError, "mean"),
    (lambda: kernels.cross_entropy(X[None], LABELS), ShapeError, "x: "),
    (lambda: kernels.cross_entropy(X, LABELS.to("meta")), ArgumentError, "labels: "),
    (lambda: kernels.cross_entropy(X, LABELS + 8), ArgumentError, "labels: .*0 to 7.*got 8"),
    (lambda: kernels.cross_entropy(X, LABELS - 1, reduction="sum"), ArgumentError, "labels: .*got -1"),
    (lambda: kernels.linear_cross_entropy(X, X, LABELS + 4), ArgumentError, "labels: .*0 to 3"),
    (lambda: kernels.linear_cross_entropy(X, X.to("meta"), LABELS), ArgumentError, "weight: "),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_named_before_a_launch(number):
    call, error, words = MISTAKES[number]
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("columns", [64, 70000])
def test_labels_that_are_no_class_read_nothing(columns, monkeypatch):
    """As on a GPU, where the host does not read labels."""
    monkeypatch.setattr(loss, "check_labels", lambda *labels: None)
    labels = torch.tensor([3, -1, columns, -100, 1 << 29])
    losses = kernels.cross_entropy(torch.randn(5, columns), labels, reduction="none")
    assert losses.isnan().tolist() == [False, True, True, False, True] and losses[3] == 0


def test_tilings_cover_rows():
    for columns in (1, 7, 64, 300, 4096, 5120, 12288, 50304, 131072, 1000003):
        for bits, count, held, waits in itertools.product(
            (16, 32), (1, 2**16), (1, 2), (True, False)
        ):
            align = columns & -columns if columns & 15 else 16
            tiles = rows.tiling(columns, bits, align, 32, count, held, waits)
            assert tiles.parts * tiles.pieces * tiles.width >= columns
            assert tiles.parts == 1 or tiles.rows == 1
            assert tiles.parts <= (64 if waits else 1024)
            if columns > 64 and align > 1:
                assert tiles.parts * tiles.pieces * tiles.width < 1.4 * columns
    few = rows.tiling(32768, 16, 16, 32, 8)
    assert few.parts == 8  # few rows are divided
    assert rows.tiling(32768, 16, 16).parts == 1


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("columns", [256, 5120, 131072])
def test_they_compile(target, columns):
    warp = 64 if target == "gfx942" else 32
    constants = rows.tiling(columns, 16, 16, warp).constants()
    options = {"num_warps": constants.pop("num_warps"), "target": target}
    x, numbers = torch.bfloat16, torch.float32
    shared = (numbers, torch.int32) if constants["PARTS"] > 1 else (None, None)
    sizes = (100, columns, columns, columns)
    assert portable.softmax.warmup(x, x, *shared, *sizes, **constants, **options)
    arguments = (x, x, x, x, x, x, numbers, *shared, *sizes, columns, 1e-5)
    for early in (True, False):
        assert portable.norm.warmup(*arguments, CENTRED=True, EARLY=early, **constants, **options)
