"""Kernels over rows at the edges: one element, odd widths, rows apart in memory, many steps, empty."""

from __future__ import annotations

import importlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gluon_core.errors import CapabilityError
from gluon_core.registry.load import registry
from gluon_core.testing import TRITON_VERSION
from gluon_report.example import Arrays, Placeholders
from tests.kernels import cases

SHAPES = ((1, 1), (1, 8), (3, 127), (5, 1024), (2, 1025), (9, 33))
# (file, index of the example for whole rows, of the one for rows of any width)
PAIRS = {
    "softmax": ("row_softmax", 0, 1),
    "softmax backward": ("row_softmax", 2, 3),
    "cross entropy": ("row_cross_entropy", 0, 1),
    "cross entropy backward": ("row_cross_entropy", 2, None),
    "layer norm": ("row_norm", 0, 4),
    "RMS norm": ("row_norm", 1, 5),
    "RMS norm of a sum": ("row_norm", 2, 6),
    "norm backward": ("row_norm_backward", 0, 1),
    "quantize": ("row_quantize", 0, 1),
    "quantize to fp8": ("row_quantize", 2, 3),
    "running sum": ("row_cumsum", 0, None),
    "SwiGLU": ("rows", 0, None),
    "SwiGLU backward": ("rows", 1, None),
}


def examples_of(file):
    module = cases.module(file)
    return [*module.EXAMPLES, *getattr(module, "MORE", ())]


def checked(example, target, shape, **choices):
    """Run at `shape`; all results against the reference."""
    args = example.arguments(Arrays(target), False, shape)
    config = example.configure(target, False, columns=shape[1], **choices)
    example.launch(args, config, target=target)
    wanted = example.reference(args)
    problem = example.difference(args[example.output].astype(np.float32), wanted)
    assert problem is None, (example.name, shape, problem)
    return args


@pytest.mark.sampled(8)
@pytest.mark.once
@pytest.mark.parametrize("spec", ["sim:sm_90", "sim:gfx942"])
@pytest.mark.parametrize("name", PAIRS)
def test_edges(name, spec):
    target = registry().target(spec)
    file, whole, walks = PAIRS[name]
    whole, examples = examples_of(file)[whole], examples_of(file)
    for shape in SHAPES:
        checked(whole, target, shape)
    if walks is not None:  # several parts, and one that is not full
        checked(examples[walks], target, (2, 1), num_warps=1)
        checked(examples[walks], target, (2, 2 * 8 * 64 * 4 + 11), num_warps=1, depth=2, kept=2)


@pytest.mark.parametrize(
    "columns, dtype, spec",
    [
        (1, "bfloat16", "sim:sm_90"),
        (5, "float32", "sim:gfx942"),
        (40, "float16", "sim:sm_80"),
        (1024, "bfloat16", "sim:gfx942"),
        (2503, "bfloat16", "sim:sm_90"),
        (1301, "float32", "sim:sm_90"),
        (70001, "bfloat16", "sim:sm_90"),  # a column needs more than 16 bits
    ],
)
def test_the_largest_and_where_they_are(columns, dtype, spec):
    """Infinities, NaN, zeros of both signs and many that are equal; all by value, then by column."""
    target, (half, single) = registry().target(spec), examples_of("row_topk_bitonic")
    example = single if dtype == "float32" else half
    module = importlib.import_module(example.arguments.__module__)
    args = module.arguments(Arrays(target), False, (5, columns), dtype)
    src = args["src"]
    src[:] = np.round(src.astype(np.float32) * 4) / 4
    src[1, 3:], src[2, 5::50], src[2, 33:34], src[3] = -np.inf, np.nan, -np.nan, 0
    src[3, ::3] = -0.0
    src[4, ::256], src[0, -1] = 9, 11  # all in one thread; the last column
    example.launch(args, example.configure(target, False, columns=columns), target=target)
    x = src.astype(np.float64)
    order = np.argsort(np.where(np.isnan(x), -np.inf, -x) - np.isnan(x), axis=1, kind="stable")
    first = order[:, : args["count"]]
    assert (args["indices"] == first).all()
    wanted = np.take_along_axis(x, first, 1)
    assert np.array_equal(args["values"].astype(np.float64), wanted, equal_nan=True)
    assert not np.signbit(args["values"][3].astype(np.float64)).any()


def test_sums_of_columns_of_what_does_not_divide():
    target = registry().target("sim:sm_90")
    sums = examples_of("row_norm_backward")[2]
    assert sums.check(target).problem is None


MORE = [example for file in cases.FILES for example in getattr(cases.module(file), "MORE", ())]


@pytest.mark.campaign
@pytest.mark.parametrize("spec", cases.TARGETS)
@pytest.mark.parametrize("further", MORE, ids=lambda example: example.name.replace(" ", "_"))
def test_kernels_outside_the_demo_compile(further, spec):
    target = registry().target(spec)
    fp8 = "fp8" in further.name and not (target.has("nvidia.fp8") or spec == "gfx950")
    if further.lacks(target) or fp8:
        pytest.skip("not for this target")
    assert further.compile(target).report().spills <= 32


def test_a_running_sum_over_many_blocks():
    target = registry().target("sim:sm_90")
    checked(examples_of("row_cumsum")[0], target, (3, 1000), most=64, rows=2, num_warps=1)


@pytest.mark.parametrize("file, index", [("row_softmax", 0), ("row_softmax", 1)])
def test_softmax_of_what_overflows_and_of_rows_apart(file, index):
    target = registry().target("sim:sm_90")
    example = examples_of(file)[index]
    columns, stride = 300, 320
    src = np.random.default_rng(0).normal(0, 3e4, (4, stride)).astype(ml_dtypes.bfloat16)
    src[1, : columns - 1] = -np.inf  # one element is all of its row
    src[2, :columns] = 3e38
    dst = np.full((4, stride), 7, ml_dtypes.bfloat16)
    config = example.configure(target, False, columns=columns)
    example.kernel[(1 if "ROWS" in config else 4,)](
        src, dst, 4, columns, stride, **config, target=target
    )
    wanted = example.reference({"src": src[:, :columns]})
    assert example.difference(dst[:, :columns].astype(np.float32), wanted) is None
    assert (dst[:, columns:] == 7).all()


def test_cross_entropy_of_labels_that_do_not_count():
    """Their loss and gradient are 0, and nothing is read at them."""
    target = registry().target("sim:sm_90")
    forward, wide, backward = (examples_of("row_cross_entropy")[i] for i in (0, 1, 2))
    for example in (forward, wide):
        args = example.arguments(Arrays(target), False, (6, 50))
        args.update(ignored=-100)
        args["labels"][::2] = -100
        example.launch(args, example.configure(target, False, columns=50), target=target)
        assert (args["loss"][::2] == 0).all() and (args["loss"][1::2] > 0).all()
    arguments = backward.arguments(Arrays(target), False, (6, 50))
    arguments.update(ignored=-100, labels=args["labels"], logsum=args["logsum"])
    backward.launch(arguments, backward.configure(target, False, columns=50), target=target)
    assert (arguments["dst"][::2] == 0).all()
    # The saved values of the forward pass make probabilities, less one at the label.
    assert np.abs(arguments["dst"][1::2].astype(np.float64).sum(axis=1)).max() < 0.02


def test_gradients_are_the_functions_differences():
    """The change of the norm along a direction is that of the gradients."""
    target = registry().target("sim:sm_90")
    norm, back = examples_of("row_norm")[0], examples_of("row_norm_backward")[0]
    args = norm.arguments(Arrays(target), False, (6, 200))
    config = norm.configure(target, False, columns=200)
    norm.launch(args, config, target=target)
    arguments = back.arguments(Arrays(target), False, (6, 200))
    arguments.update(x=args["src"], **{name: args[name] for name in ("weight", "mean", "scale")})
    back.launch(arguments, back.configure(target, False, columns=200), target=target)

    grad = arguments["grad"].astype(np.float64)
    exact = {name: args[name].astype(np.float64) for name in ("src", "weight", "bias")}
    along = {n: np.random.default_rng(1).normal(size=v.shape) for n, v in exact.items()}

    def value(step):
        moved = {n: v + step * along[n] for n, v in exact.items()}
        return (norm.reference({**args, **moved}) * grad).sum()

    wanted = (value(1e-5) - value(-1e-5)) / 2e-5
    gradients = {
        "src": arguments["dst"],
        "weight": arguments["to_weight"].sum(0),
        "bias": arguments["to_bias"].sum(0),
    }
    got = sum((gradients[n].astype(np.float64) * along[n]).sum() for n in along)
    assert abs(got - wanted) < 1e-2 * abs(wanted)


@pytest.mark.parametrize(
    "spec, dtype, limit",
    [("sim:sm_90", "float8_e5m2", 57344.0), ("sim:gfx942", "float8_e4m3fnuz", 240.0)],
)
def test_quantize_to_other_types(spec, dtype, limit):
    target = registry().target(spec)
    example = examples_of("row_quantize")[0]
    args = examples_of("row_quantize")[0].arguments(Arrays(target), False, (4, 100))
    args["dst"] = np.zeros((4, 100), getattr(ml_dtypes, dtype))
    args["src"][2] = 0
    config = {**example.configure(target, False, columns=100), "LIMIT": limit}
    example.launch(args, config, target=target)
    back = args["dst"].astype(np.float64) * args["scales"][:, None]
    src = args["src"].astype(np.float64)
    assert (np.abs(back - src) <= np.abs(src).max(axis=1, keepdims=True) / 14).all()
    assert np.abs(args["dst"].astype(np.float64)).max(axis=1).tolist() == [limit, limit, 0, limit]


def test_turning_back():
    target = registry().target("sim:sm_90")
    (example,) = examples_of("rotary")
    args = example.arguments(Arrays(target), False, (6, 3, 64))
    angle = np.random.default_rng(0).uniform(0, 7, args["cosines"].shape)
    args["cosines"][:], args["sines"][:] = np.cos(angle), np.sin(angle)
    example.launch(args, example.configure(target, False, heads=3), target=target)
    there = {**args, "src": args["dst"], "dst": np.zeros_like(args["dst"])}
    example.launch(there, example.configure(target, False, heads=3, inverse=True), target=target)
    difference = there["dst"].astype(np.float64) - args["src"].astype(np.float64)
    assert np.abs(difference).max() < 0.02


def test_nothing_is_launched_for_no_rows():
    target = registry().target("sim:sm_90")
    example = examples_of("row_softmax")[0]
    args = example.arguments(Arrays(target), False, (0, 64))
    assert example.grid(args, example.configure(target, False, columns=64)) == (0,)
    example.launch(args, example.configure(target, False, columns=64), target=target)


CLUSTERS = TRITON_VERSION >= (3, 8)


@pytest.mark.once
def test_rows_too_long_for_a_block_are_a_clusters(monkeypatch):
    """The benchmark's choices: from Triton 3.8 on four blocks hold a row of 131072 in registers."""
    folder = str(Path(__file__).parents[2] / "benchmarks")
    monkeypatch.syspath_prepend(folder)
    case = importlib.import_module("row_kernels").CASES[0]
    chosen = [choice for index, choice in case.candidates(131072) if index == case.whole]
    assert {choice["num_ctas"] for choice in chosen} == ({4, 8, 16} if CLUSTERS else set())
    target, example = registry().target("sim:sm_90"), examples_of("row_softmax")[0]
    if CLUSTERS:
        checked(example, target, (2, 1000), rows=1, num_warps=1, num_ctas=4)
        return
    with pytest.raises(CapabilityError, match="needs Triton >= 3.8"):
        checked(example, target, (2, 1000), rows=1, num_warps=1, num_ctas=4)


@pytest.mark.once
@pytest.mark.skipif(not CLUSTERS, reason="Triton 3.8 reduces across a cluster")
@pytest.mark.parametrize("file, index", [("row_softmax", 0), ("row_norm", 1)])
def test_a_cluster_holds_a_row_without_spills(file, index):
    target, example = registry().target("sm_90"), examples_of(file)[index]
    choice = {"columns": 131072, "rows": 1, "num_warps": 32, "num_ctas": 4}
    values = example.arguments(Placeholders(), True, (1024, 131072)).values()
    config = example.configure(target, True, **choice)
    compiled = example.kernel.warmup(*values, **config, grid=(1024,), target=target)
    assert compiled.report().spills == 0 and compiled.metadata.num_ctas == 4
