"""`gluon_kernels.linear` through its public door: formats of weights, gradients, results of the caller, errors."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
import torch.nn.functional as F

import gluon_kernels
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_core.registry.load import registry
from gluon_core.testing import TRITON_VERSION
from gluon_kernels.problem import error_of
from gluon_kernels.quant import layer, tilings
from gluon_kernels.quant.problem import LINEAR
from gluon_kernels.quant.problem import restored as restored_weights
from tests.kernels.launched import launches_of
from tests.kernels.routes import route

pytestmark = [pytest.mark.once, pytest.mark.sampled(15)]


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    for plans in (layer.plans, layer.restoring):
        plans.forget()
    yield
    for plans in (layer.plans, layer.restoring):
        plans.forget()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("shape", LINEAR.small)
def test_every_format(shape):
    assert LINEAR.check(shape, "cpu") is None


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["sim:sm_80", "sim:gfx942"])
def test_other_targets_restore_the_weights_of_more_than_four_rows(target, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    for shape in (LINEAR.small[0], LINEAR.small[-1]):
        assert LINEAR.check(shape, "cpu") is None


@pytest.mark.parametrize("target", ["sim:sm_80", "sim:sm_90"])
def test_every_8_bit_float_is_restored(target, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        weight = torch.arange(256, dtype=torch.uint8).view(4, 64).view(dtype)
        numbers = layer._restore(weight, None, torch.float32, 64)
        assert torch.equal(numbers.nan_to_num(7e4), weight.float().nan_to_num(7e4))


def test_few_rows_are_multiplied_in_one_launch(monkeypatch):
    arguments = LINEAR.arguments(LINEAR.small[0], "cpu")
    monkeypatch.setattr(layer, "_restore", None)  # more rows restore the weights first
    assert error_of(LINEAR.op(**arguments), LINEAR.reference(**arguments)) < LINEAR.tolerance


TILINGS = [
    (i, tiling)
    for i, shape in enumerate(LINEAR.small)
    for tiling in tilings.tilings(
        shape["M"], shape["K"], shape["group"], shape["format"] == "mxfp4"
    )
]


@pytest.mark.sampled(80)
@pytest.mark.parametrize("number, tiling", TILINGS)
def test_every_tiling(number, tiling, monkeypatch):
    monkeypatch.setattr(tilings, "best", lambda *sizes, **more: tiling)
    layer.plans.forget()
    assert LINEAR.check(LINEAR.small[number], "cpu") is None


FORMATS = [("int4", 64), ("int4", 128), ("int8", 32), ("mxfp4", 32), ("e4m3", 0)]


@pytest.mark.parametrize("kernel, block, columns", [("rows", 4, 8), ("tokens", 8, 64)])
@pytest.mark.parametrize("format, group", FORMATS)
def test_few_rows_read_weights_into_registers(format, group, kernel, block, columns, monkeypatch):
    """Steps of several warps, and a last one that is not full; weights of all values of a byte."""
    tiling = tilings.Tiling(kernel, block, 0, 2, columns)
    monkeypatch.setattr(tilings, "best", lambda *sizes, **more: tiling)
    layer.plans.forget()
    shape = {"M": 3, "N": 12, "K": 2176, "format": format, "group": group}
    assert LINEAR.check(shape, "cpu") is None
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        weight = torch.arange(256, dtype=torch.uint8).view(256, 1).repeat(1, 32).view(dtype)
        x = torch.zeros(1, 32).bfloat16()
        x[0, 5] = 1
        result = gluon_kernels.linear(x, weight, out_dtype=torch.float32)
        finite = weight[:, 5].float().isfinite()
        assert torch.equal(result[0][finite], weight[:, 5].float()[finite])
        assert not result[0][~finite].isfinite().any()


GROUPS = [
    # Rows of x, of a tile, parts of K, weights' rows, groups along K, format, weights that share a scale.
    (70, 80, 1, 64, 2, "int8", 128),
    (20, 32, 2, 64, 4, "mxfp4", 32),
    (90, 96, 1, 64, 3, "e4m3", 0),
    (40, 48, 3, 128, 2, "int4", 96),
    (20, 32, 1, 256, 1, "int4", 64),
    (130, 144, 1, 128, 1, "int8", 0),
    (130, 144, 0, 128, 1, "int4", 128),
    (200, 96, 0, 128, 1, "mxfp4", 32),
    (6, 8, 4, 64, 2, "int8", 0),  # more programs than programs that add up
    (170, 192, 1, 192, 1, "int8", 128),  # products of 32 weights, as of the next one
    (150, 160, 0, 128, 1, "int4", 96),
    (
        200,
        112,
        0,
        128,
        1,
        "mxfp4",
        32,
    ),  # two tiles of an accumulator with columns in vain, in boxes without them
    (220, 208, 1, 128, 1, "int8", 0),
    (100, 104, 1, 64, 2, "e4m3", 0),
    (90, 48, 1, 64, 2, "int8", 0),  # two tiles of rows and three of weights, a program for each
    (90, 48, 2, 128, 1, "int4", 128),
    (100, 80, 1, 192, 1, "e4m3", 0),
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("m, block, splits, columns, along, format, group", GROUPS)
def test_groups_of_warps_share_rows_and_steps(
    m, block, splits, columns, along, format, group, monkeypatch
):
    """A last step that is not full; without SPLITS three processors have equal shares of some tiles."""
    tiling = tilings.Tiling("groups", block, 128, splits, columns, along)
    monkeypatch.setattr(tilings, "best", lambda *sizes, **more: tiling)
    monkeypatch.setattr(layer, "multiprocessors", lambda x: 3)
    layer.plans.forget()
    k = 1152 if group > 32 else 1056
    shape = {"M": m, "N": 136, "K": k, "format": format, "group": group}
    assert LINEAR.check({**shape, "bias": True, "activation": "silu"}, "cpu") is None


def forced(monkeypatch, *tiling):
    monkeypatch.setattr(tilings, "best", lambda *sizes, **more: tilings.Tiling(*tiling))
    layer.plans.forget()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "format, group, dtype", [("int4", 64, "float16"), ("mxfp4", 32, "bfloat16")]
)
def test_four_threads_load_the_words_of_each_other(format, group, dtype, monkeypatch):
    """Each takes its byte of them; the last step is not full, and the last rows of the weights are missing."""
    forced(monkeypatch, "groups", 80, 128, 1, 64, 2)
    shape = {"M": 70, "N": 40, "K": 192, "format": format, "group": group, "dtype": dtype}
    assert LINEAR.check(shape, "cpu") is None


def test_exponents_begin_at_any_address(monkeypatch):
    """Four of them are loaded at once where they may be."""
    forced(monkeypatch, "groups", 32, 128, 1, 64, 2)
    shape = {"M": 20, "N": 72, "K": 256, "format": "mxfp4", "group": 32}
    arguments = LINEAR.arguments(shape, "cpu")
    expected = LINEAR.op(**arguments)
    apart = torch.zeros(72, 11, dtype=torch.uint8)
    apart[:, 3:] = arguments["scales"]
    assert torch.equal(LINEAR.op(**{**arguments, "scales": apart[:, 3:]}), expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format, group", [("int4", 128), ("int8", 64), ("mxfp4", 32)])
@pytest.mark.parametrize("block", [32, 80])
def test_weights_are_those_of_a_restored_layer_bit_by_bit(format, group, block, monkeypatch):
    """Rows of `x` that select columns return every weight, rounded once; with small scales and large ones."""
    forced(monkeypatch, "groups", block, 128, 1, 64, 2)
    shape = {"M": 32, "N": 40, "K": 256, "format": format, "group": group}
    arguments = LINEAR.arguments(shape, "cpu")
    small, large = (-60, 35) if format == "mxfp4" else (2.0**-60, 2.0**40)
    scales = arguments["scales"]
    for change in (0 if format == "mxfp4" else 1.0, small, large):
        changed = scales + change if format == "mxfp4" else scales * change
        restored = restored_weights(arguments["weight"], changed, torch.float32).bfloat16().float()
        x = torch.zeros(32, 256).bfloat16()
        x[torch.arange(32), torch.arange(32) * 7 + 3] = 1.0
        result = LINEAR.op(x, arguments["weight"], scales=changed, out_dtype=torch.float32)
        assert torch.equal(result, restored[:, torch.arange(32) * 7 + 3].mT)


@pytest.mark.campaign
@pytest.mark.skipif(
    TRITON_VERSION >= (3, 9),
    reason="copies weights to other registers before each product, of which ptxas loses track",
)
@pytest.mark.parametrize("k, fits", [(256, True), (4096, False)])
@pytest.mark.parametrize("block, columns, format, group", [(96, 128, "int4", 128), (192, 128, "int8", 0), (112, 64, "mxfp4", 32)])  # fmt: skip
def test_products_are_under_way_from_step_to_step(block, columns, format, group, k, fits, monkeypatch):  # fmt: skip
    """Without a warning of ptxas, which waits after each product where it does not know their registers at the end of a round. Groups release no slots
    where all steps have one: each would be two barriers."""
    along = 256 // columns // 2
    forced(monkeypatch, "groups", block, 128, 1, columns, along)
    shape = {"M": 20, "N": 72, "K": k, "format": format, "group": group}
    arguments = LINEAR.arguments(shape, "cpu")
    (launch,) = launches_of(lambda: LINEAR.op(**arguments), "sim:sm_90")
    target = registry().target("sm_90")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = launch.kernel.warmup(
            *launch.fresh(), grid=launch.grid, target=target, **launch.options
        )
    code = compiled.asm["ptx"]
    assert code.count("wgmma.wait_group.sync.aligned 0") == 2  # of each group, after the last step
    meeting = along - 1  # arrivals of groups whose sums another one adds
    assert (code.count("mbarrier.arrive.shared") == meeting) == fits
    assert compiled.report().spills == 0


@pytest.mark.campaign
def test_programs_load_all_sums_of_a_tile_before_they_store():
    """Its parts are 64, 32 and 8 rows of `x`: a load behind a store would wait once more for the L2 cache."""
    with pytest.MonkeyPatch.context() as patched:
        forced(patched, "groups", 104, 128, 2, 128, 1)
        arguments = LINEAR.arguments({"M": 100, "N": 40, "K": 256, "format": "int4", "group": 128}, "cpu")  # fmt: skip
        (launch,) = launches_of(lambda: LINEAR.op(**arguments), "sim:sm_90")
    target = registry().target("sm_90")
    code = launch.kernel.warmup(*launch.fresh(), grid=launch.grid, target=target, **launch.options)
    # Programs wait for each other by these loads.
    _, *groups = code.asm["ptx"].split("ld.global.gpu.acquire")
    for after in groups:
        order = re.findall(r"\b(ld|st)\.global\.v4", after)
        assert order == sorted(order) and len(set(order)) == 2
    assert len(groups) == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("block, splits", [(104, 2), (240, 1)])
def test_tiles_leave_columns_of_an_accumulator_out(block, splits, monkeypatch):
    """Those that no product needs, in the middle of it, too: 104 are 64, 32 and 8."""
    forced(monkeypatch, "groups", block, 128, splits, 128, 1)
    shape = {"M": block - 3, "N": 40, "K": 256, "format": "int4", "group": 128}
    assert LINEAR.check(shape, "cpu") is None


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_step_is_released_when_the_next_one_has_started(steps, monkeypatch):
    """Also where there is one, and in a second tile, whose steps take the slots of the first."""
    forced(monkeypatch, "groups", 32, 128, 1, 128, 1)
    monkeypatch.setattr(layer, "multiprocessors", lambda x: 1)
    shape = {"M": 40, "N": 136, "K": 128 * steps, "format": "int4", "group": 128}
    assert LINEAR.check(shape, "cpu") is None


@pytest.mark.campaign
@pytest.mark.parametrize("splits", [0, 1])
def test_programs_of_several_tiles_end_as_compiled(splits, monkeypatch):
    """Triton before 3.8 keeps a number that a loop sets to another one for its next round, which simulators do not show."""
    monkeypatch.setenv("GLUON_TARGET", "emu:sm_90")
    forced(monkeypatch, "groups", 32, 128, splits, 128, 1)
    monkeypatch.setattr(layer, "multiprocessors", lambda x: 3 - 2 * splits)
    shape = {"M": 60, "N": 136, "K": 512, "format": "e4m3", "group": 0}
    assert LINEAR.check(shape, "cpu") is None


def test_results_of_float32_pass_shared_memory_in_parts(monkeypatch):
    forced(monkeypatch, "groups", 256, 128, 1, 128, 1)
    arguments = LINEAR.arguments({"M": 250, "N": 72, "K": 256, "format": "int8", "group": 0}, "cpu")
    result = LINEAR.op(**arguments, out_dtype=torch.float32)
    assert error_of(result, LINEAR.reference(**arguments)) < 1e-5


def test_two_steps_are_under_way_where_groups_take_turns():
    """Each of the groups along K holds a step while it waits for its next."""
    taking = [t for t in tilings.tilings(800, 9856, 0, False) if t.along > 1]
    assert taking and all(tilings.slots(t, 1, 2, None)[0] >= t.along + 2 for t in taking)


def test_steps_of_a_short_k_have_a_slot_each():
    """As few slots as are needed, since a program sets up barriers of each before it begins."""
    tiling = tilings.Tiling("groups", 32, 128, 1, 128, 1)
    steps = {
        None: (8, False),
        1: (4, True),
        4: (4, True),
        5: (8, True),
        12: (12, True),
        13: (8, False),
    }
    assert {count: tilings.slots(tiling, 2, 2, count) for count in steps} == steps
    wide = tilings.Tiling("groups", 160, 128, 1, 192, 1)
    assert tilings.slots(wide, 1, 2, 2) == (2, True) and tilings.slots(wide, 1, 2, 3) == (2, False)


def test_boxes_leave_out_many_rows_that_are_outside():
    """Those of tiles do whose only accumulator has many columns in vain: rows in front of the next tile, or behind the tensor."""
    assert all(tilings.narrow(*x) for x in ((104, 101), (240, 230), (112, 200), (208, 800)))
    assert not any(tilings.narrow(*x) for x in ((120, 118), (104, 200), (128, 100), (80, 66), (176, 160)))  # fmt: skip


def test_rows_behind_the_last_one_take_time():
    """44 rows in two tiles of 32, and in one of 48: TMA fetches 20 rows outside for the former, which take longer than the others."""
    of_two, of_one = (tilings.Tiling("groups", block, 128, 1, 64, 2) for block in (32, 48))
    sizes = 4096, 1536, 1, 0, False, 132
    times = {m: tilings.expected(of_two, m, *sizes) for m in (44, 64)}
    assert times[44] > times[64]
    assert tilings.expected(of_one, 44, *sizes) < times[44]
    assert tilings.best(44, *sizes) == of_one


def test_shares_of_tiles_cover_all_steps():
    assert tilings.shares(264, 10, 132) == (0, 0)
    assert tilings.shares(91, 50, 132) == (91, 132)  # less than two programs for a tile
    assert tilings.shares(40, 50, 132) == (40, 120)
    assert tilings.shares(140, 50, 132) == (8, 96)  # four steps for each at least


def test_tilings_are_chosen_by_their_sizes():
    """Few rows are converted within the product, many with a short K are multiplied with restored weights."""
    for rows, k, kernels in (
        (1, 8192, ("rows", "tokens", "groups")),
        (16, 8192, ("few", "groups")),
        (16384, 512, ("restored",)),
    ):
        assert tilings.best(rows, 8192, k, 2, 128, False, 132).kernel in kernels
    assert tilings.best(1, 8192, 8192, 2, 128, False, 132, hopper=False).kernel == "rows"
    for rows in (6, 16):  # 16 tiles for 132 processors
        few = tilings.best(rows, 1024, 8192, 1, 0, False, 132)
        assert few.splits * few.along > 4


def test_weights_are_restored_where_their_product_is_expected_to_end_sooner():
    """Many rows read each weight often. On an H200 199 rows took 70 us with restored weights, and 28 without."""
    many, few = (8192, 8448, 512, 2, 32, True, 132), (199, 8448, 5120, 2, 128, False, 132)
    assert tilings.best(*many).kernel == "restored"
    assert tilings.best(*few).kernel == "groups"


def test_weights_of_the_dtype_of_the_rows():
    x, weight, bias = torch.randn(3, 16), torch.randn(24, 16), torch.randn(24)
    right = torch.nn.functional.linear(x, weight, bias).relu()
    result = gluon_kernels.linear(x, weight, bias, activation="relu")
    assert error_of(result, right) < 1e-5
    assert error_of(gluon_kernels.linear(x[0], weight, bias, activation="relu"), right[0]) < 1e-5


def quantized(n=24, k=64, groups=2):
    return torch.randint(0, 256, (n, k // 2), dtype=torch.uint8), torch.rand(n, groups)


def test_results_in_memory_of_the_caller_and_more_dimensions():
    weight, scales = quantized()
    x = torch.randn(2, 3, 64).bfloat16()
    result = gluon_kernels.linear(x, weight, scales=scales)
    assert result.shape == (2, 3, 24)
    for out in (torch.empty(2, 3, 24).bfloat16(), torch.empty(2, 3, 48).bfloat16()[..., ::2]):
        assert gluon_kernels.linear(x, weight, scales=scales, out=out) is out
        assert error_of(out, result) < 1e-2


@pytest.mark.parametrize("rows", [1, 9])
def test_scales_of_any_strides(rows):
    shape = {"M": rows, "N": 72, "K": 256, "format": "int8", "group": 0}
    arguments = LINEAR.arguments(shape, "cpu")
    right = LINEAR.op(**arguments)
    apart = torch.stack([arguments["scales"], torch.zeros(72).bfloat16()], 1)
    for scales in (apart[:, 0], apart[:, :1]):
        assert torch.equal(LINEAR.op(**{**arguments, "scales": scales}), right)


@pytest.mark.parametrize(
    "rows, format, group", [(3, "int4", 64), (20, "int8", 64), (20, "e4m3", 0)]
)
def test_operands_of_any_strides(rows, format, group):
    shape = {"M": rows, "N": 72, "K": 256, "format": format, "group": group, "bias": True}
    arguments = LINEAR.arguments(shape, "cpu")
    right = LINEAR.op(**arguments)

    def apart(x):
        return torch.stack([x, torch.zeros_like(x)], -1)[..., 0]

    def transposed(x):
        return x.t().contiguous().t()

    def from_one_byte_on(x):
        bytes = torch.empty(x.numel() + 1, dtype=torch.uint8)[1:]
        return bytes.copy_(x.contiguous().view(torch.uint8).flatten()).view(x.dtype).view(x.shape)

    ways = {
        "x": [apart, transposed],
        "weight": [apart, transposed, from_one_byte_on],
        "scales": [apart],
        "bias": [apart],
    }
    for name, forms in ways.items():
        for form in forms:
            other = form(arguments[name])
            assert torch.equal(other.float(), arguments[name].float())
            assert error_of(LINEAR.op(**{**arguments, name: other}), right) < 8e-3, (name, form)


def test_one_graph_serves_all_sizes_and_autocast_casts():
    weight, scales = quantized()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    function = torch.compile(
        lambda x: gluon_kernels.linear(x.sin(), weight, scales=scales) + 1,
        backend=backend, fullgraph=True, dynamic=True,
    )  # fmt: skip
    for rows in (3, 5, 9):
        x = torch.randn(rows, 64).bfloat16()
        right = gluon_kernels.linear(x.sin(), weight, scales=scales) + 1
        assert error_of(function(x), right) < 1e-2
    assert len(graphs) == 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (
            gluon_kernels.linear(torch.randn(3, 64), weight, scales=scales).dtype is torch.bfloat16
        )


X = torch.randn(3, 64).bfloat16()
WRONG = [
    (lambda w, s: gluon_kernels.linear(X, w), ArgumentError, "scales: .*integer weights"),
    (lambda w, s: gluon_kernels.linear(X[:, :32], w, scales=s), ShapeError, "weight: .*32 / 2"),
    (lambda w, s: gluon_kernels.linear(X, w.int(), scales=s), DtypeError, "weight: .*int8"),
    (lambda w, s: gluon_kernels.linear(X.int(), w, scales=s), DtypeError, "x: "),
    (lambda w, s: gluon_kernels.linear(X, w, scales=s[:, :1].expand(24, 3)), ShapeError, "scales: "),
    (lambda w, s: gluon_kernels.linear(X, w, scales=s.expand(2, 24, 2)), ShapeError, "scales: "),
    (lambda w, s: gluon_kernels.linear(X, w, scales=s.repeat(1, 2)), ShapeError, "scales: .*multiples of 32"),
    (lambda w, s: gluon_kernels.linear(X, w, scales=s.int()), DtypeError, "scales: "),
    (lambda w, s: gluon_kernels.linear(X, w, X[0], scales=s), ShapeError, "bias: "),
    (lambda w, s: gluon_kernels.linear(X, w, scales=s, activation="gelo"), ArgumentError, "activation: .*gelu"),
    (lambda w, s: gluon_kernels.linear(X, w, scales=s, out=X.clone()), ShapeError, "out: "),
    (lambda w, s: gluon_kernels.linear(X, w, scales=s.to("meta")), ArgumentError, "scales: .*devices"),
    (lambda w, s: gluon_kernels.linear(X, X, scales=s), ArgumentError, "scales: .*no scales"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, text", WRONG)
def test_wrong_arguments_end_before_a_launch(call, error, text):
    with pytest.raises(error) as raised:
        call(*quantized())
    assert re.search(text, str(raised.value), re.S), raised.value
    assert len(layer.plans) == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["operator", "function"])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_gradients_of_gradients(activation, way, monkeypatch):
    if way == "function":  # calls with gradients on a GPU
        monkeypatch.setattr(layer, "route", route)
    weight = torch.randint(-128, 128, (48, 64), dtype=torch.int8)
    scales = torch.rand(48) / 500
    x, bias = torch.randn(5, 64, requires_grad=True), torch.randn(48, requires_grad=True)
    numbers = weight.float() * scales[:, None]
    results = []
    for call in (
        lambda: gluon_kernels.linear(x, weight, bias, scales=scales, activation=activation),
        lambda: (F.silu if activation else torch.nn.Identity())(F.linear(x, numbers, bias)),
    ):
        for total in (lambda y: y.sum(), lambda y: (y**3).sum()):
            first = torch.autograd.grad(total(call()), [x, bias], create_graph=True)
            penalty = sum((part**2).sum() for part in first)
            results.append(torch.autograd.grad(penalty, [x, bias]) if penalty.requires_grad else ())
    for mine, right in zip(results[:2], results[2:]):
        assert len(mine) == len(right)
        for one, other in zip(mine, right):
            assert error_of(one, other) < 1e-2
