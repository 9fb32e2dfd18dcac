"""Kernels with few rows and much to read: paged attention of one token, products with K split."""

from __future__ import annotations

import numpy as np
import pytest

from gluon_core.compiler import compile
from gluon_core.registry.load import registry
from gluon_core.testing import bind
from gluon_report.example import Arrays, Placeholders
from tests.kernels import cases

SM90 = registry().target("sim:sm_90")


def module(name):
    return cases.module(name)


# sequences, heads of keys, queries that share one, width, page, longest; parts, keys at a time
PAGED = [
    ((1, 1, 1, 16, 16, 1), 1, 16),
    ((2, 1, 16, 32, 1, 33), 4, 16),
    ((3, 3, 8, 64, 64, 130), 2, 32),
    ((2, 2, 5, 128, 8, 70), 8, 16),
]


@pytest.mark.once
@pytest.mark.parametrize("spec", ["sim:sm_90", "sim:gfx942"])
@pytest.mark.parametrize("shape, splits, block", PAGED)
def test_paged_attention_of_any_shape(shape, splits, block, spec):
    target, paged = registry().target(spec), module("attention_paged")
    args = paged.arguments(Arrays(target), False, shape, splits)
    args["lengths"][-1] = shape[-1]
    _, _, shared, width, page, _ = shape
    config = paged.config(target.warp_size, shared, width, page, block, 2, splits)
    got = paged.decode(args, config, target=target)
    wanted = paged.attention(args)
    assert np.abs(got.astype(np.float64) - wanted).max() < 1e-2 * np.abs(wanted).max()


def test_a_sequence_without_keys_is_zero_and_no_other_matters():
    paged = module("attention_paged")
    args = paged.arguments(Arrays(SM90), False)
    args["lengths"][:] = [0, 40, 150]
    config = paged.config(32)
    got = paged.decode(args, config, target=SM90)
    assert (got[0] == 0).all() and np.isfinite(got.astype(np.float32)).all()
    # Whatever the pages hold that the table does not name, or past the length.
    args["table"][0] = args["table"][1]
    args["k_cache"][args["table"][1][3]] = np.nan
    args["v_cache"][args["table"][1][3]] = np.nan
    assert (paged.decode(args, config, target=SM90)[1:] == got[1:]).all()


def test_the_place_of_pages_makes_no_difference():
    paged = module("attention_paged")
    args = paged.arguments(Arrays(SM90), False)
    got = paged.decode(args, paged.config(32), target=SM90)
    order = np.random.default_rng(1).permutation(len(args["k_cache"]))
    moved = {**args, "table": np.argsort(order).astype(np.int32)[args["table"]]}
    moved.update(k_cache=args["k_cache"][order], v_cache=args["v_cache"][order])
    assert (paged.decode(moved, paged.config(32), target=SM90) == got).all()


def product(sizes, splits, block=(64, 128, 32), target=SM90):
    skinny = module("matmul_split_k")
    (example,) = skinny.EXAMPLES
    args = skinny.arguments(Arrays(target), False, sizes, block[:2], splits)
    example.launch(args, example.configure(target, block=block, splits=splits), target=target)
    assert (args["counters"] == 0).all()
    problem = example.difference(args["c"].astype(np.float32), example.reference(args))
    assert problem is None, problem
    return args


@pytest.mark.once
@pytest.mark.parametrize("spec", ["sim:sm_90", "sim:gfx942"])
@pytest.mark.parametrize(
    "sizes, splits", [((1, 8, 8), 1), ((1, 136, 40), 2), ((65, 128, 96), 4), ((7, 40, 320), 16)]
)
def test_products_of_few_rows(sizes, splits, spec):
    product(sizes, splits, target=registry().target(spec))


def test_a_row_does_not_depend_on_the_others():
    """The same bits, whatever the number of rows."""
    skinny = module("matmul_split_k")
    (example,) = skinny.EXAMPLES
    args = product((70, 136, 200), 3)
    alone = skinny.arguments(Arrays(SM90), False, (1, 136, 200), (64, 128), 3)
    alone.update(a=args["a"][66:67], b=args["b"])
    example.launch(alone, example.configure(SM90), target=SM90)
    assert (alone["c"][0] == args["c"][66]).all()


@pytest.mark.once
@pytest.mark.parametrize(
    "sizes, choices",
    [
        ((1, 8, 8), {}),
        ((7, 40, 320), {"block": (16, 64, 64), "splits": 8}),
        ((65, 136, 200), {"block": (64, 64, 64), "splits": 4, "num_warps": 4}),
        ((130, 136, 328), {"block": (128, 64, 64), "splits": 1, "num_warps": 8}),
    ],
)
def test_products_of_few_rows_in_one_stream(sizes, choices):
    """More than once, as in a graph, and with counters that overflow."""
    skinny = module("matmul_small_m_hopper")
    (example,) = skinny.EXAMPLES
    config = example.configure(SM90, **choices)
    block = config["BLOCK_M"], config["BLOCK_N"]
    args = skinny.arguments(Arrays(SM90), False, sizes, block, config["SPLITS"])
    args["counters"][:] = 2**31 - config["SPLITS"]
    for _ in range(2):
        args["c"][:] = np.nan
        example.launch(args, config, target=SM90)
        problem = example.difference(args["c"].astype(np.float32), example.reference(args))
        assert problem is None, problem


def test_the_choice_for_small_m():
    """All processors have something to do, and no row is left out."""
    skinny = module("matmul_small_m_hopper")
    for m in (1, 5, 64, 100, 128, 1000):
        for n in (64, 200, 4096, 8192):
            config = skinny.config(32, **skinny.chosen_for(m, n))
            assert config["BLOCK_M"] >= min(m, 128) and config["BLOCK_M"] % config["SPLITS"] == 0
            blocks = -(-m // config["BLOCK_M"]) * -(-n // 64)
            assert blocks * config["SPLITS"] <= max(132, blocks)
            assert blocks * config["SPLITS"] > 66 or config["SPLITS"] == 8


# One that helps and several, with steps and without; the last tile and step partial; rows that overlap, that
# are missing, and all.
HELPED = [
    ((65, 136, 264), {"help": (1, 0)}),
    ((127, 200, 328), {"help": (1, 1), "stages": 2}),
    ((128, 72, 328), {"help": (4, 0), "overlap": False}),
    ((66, 64, 8), {"help": (2, 0), "overlap": False}),
    ((5, 200, 200), {"help": (1, 0), "block": (8, 128, 64)}),
    ((1, 8, 8), {"help": (1, 2), "block": (8, 64, 64), "overlap": False}),
]


def in_roles(sizes, choices):
    roles = module("matmul_small_m_warp_specialized_hopper")
    (example,) = roles.EXAMPLES
    config = example.configure(SM90, **choices)
    return example, config, roles.arguments(Arrays(SM90), False, sizes, config)


@pytest.mark.once
@pytest.mark.sampled(2)
@pytest.mark.parametrize("sizes, choices", HELPED)
def test_products_of_few_rows_with_helpers(sizes, choices):
    """More than once, as in a graph: what is counted by is 0 again, and bits are the same."""
    example, config, args = in_roles(sizes, choices)
    results = []
    for _ in range(2):
        args["c"][:] = np.nan
        example.launch(args, config, target=SM90)
        problem = example.difference(args["c"].astype(np.float32), example.reference(args))
        assert problem is None, problem
        assert (args["counters"] == 0).all()
        results.append(args["c"].copy())
    assert (results[0] == results[1]).all()


def test_helpers_keep_their_sums_in_registers():
    target = registry().target("sm_90")
    roles = module("matmul_small_m_warp_specialized_hopper")
    (example,) = roles.EXAMPLES
    config = example.configure(target, True, **roles.chosen_for(100, 4096, 8192))
    assert config["PARTS"] == 1
    args = roles.arguments(Placeholders(), True, (100, 4096, 8192), config)
    source, options = bind(example.kernel, example.values(args, config), config)
    assert compile(source, target, options).report().spills == 0


def test_rows_that_helpers_cannot_have():
    for sizes, choices, words in (
        ((129, 64, 64), {"overlap": False}, "BLOCK_M must be at least M, got 128 for 129 rows"),
        ((64, 64, 64), {}, "OVERLAP is for 65 to 128 rows, got 64"),
    ):
        example, config, args = in_roles(sizes, choices)
        with pytest.raises(ValueError, match=words):
            example.launch(args, config, target=SM90)


def test_the_choice_of_helpers():
    """Nobody helps where nothing is gained; else as many as there are processors for, each tile as many."""
    roles = module("matmul_small_m_warp_specialized_hopper")
    for m in (1, 5, 64, 65, 100, 128):
        for n in (64, 200, 4096, 7168, 8192, 65536):
            for k in (8, 512, 8192):
                config = roles.config(32, **roles.chosen_for(m, n, k))
                parts, tiles = config["PARTS"], -(-n // 64)
                assert config["BLOCK_M"] >= m
                assert config["OVERLAP"] == (config["BLOCK_M"] // 2 < m < config["BLOCK_M"])
                assert parts == 0 or tiles * (1 + parts) <= 132
                if k == 8192:
                    assert tiles * (2 + parts) > 132 or parts == roles.MOST_PARTS
                share = -(-k // 64) // (parts + 1) - config["LEAD"]
                assert parts == 0 or share >= roles.FEWEST_STEPS


@pytest.mark.once
def test_operands_of_the_operator_for_small_m(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    products = module("gemm_ops")

    def taken(*sizes, dtype=torch.bfloat16):
        args = {"a": torch.empty(sizes[0], sizes[2], dtype=dtype), **dict(zip("MNK", sizes))}
        return products.for_sizes("matmul_small_m", args)[0].name

    few, roles, portable = (
        "matmul, small M, Hopper",
        "matmul, small M, warp-specialized",
        "matmul, split-K",
    )
    assert taken(1, 64, 64) == taken(64, 64, 64) == few
    assert taken(65, 64, 64) == taken(128, 4096, 4096) == roles
    for sizes in ((129, 64, 64), (64, 60, 64), (64, 64, 4), (0, 64, 64)):
        assert taken(*sizes) == portable
    assert taken(100, 64, 64, dtype=torch.float32) == portable
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_80")
    assert taken(100, 64, 64) == portable
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    a, b = torch.randn(70, 264).bfloat16(), torch.randn(264, 8).bfloat16()
    got, wanted = products.plain["matmul_small_m"](a, b).double(), a.double() @ b.double()
    assert (got - wanted).norm() < 4e-3 * wanted.norm()
