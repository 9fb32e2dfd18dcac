"""Kernels with few rows and much to read: paged attention of one token, products with K split."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from gluon_core.cli.demo import examples_package
from gluon_core.cli.example import Arrays
from gluon_core.contract.registry import registry

SM90 = registry().target("sim:sm_90")


def module(name):
    return importlib.import_module(f"{examples_package().__name__}.{name}")


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


def test_where_pages_lie_makes_no_difference():
    paged = module("attention_paged")
    args = paged.arguments(Arrays(SM90), False)
    got = paged.decode(args, paged.config(32), target=SM90)
    order = np.random.default_rng(1).permutation(len(args["k_cache"]))
    moved = {**args, "table": np.argsort(order).astype(np.int32)[args["table"]]}
    moved.update(k_cache=args["k_cache"][order], v_cache=args["v_cache"][order])
    assert (paged.decode(moved, paged.config(32), target=SM90) == got).all()


def product(sizes, splits, block=(64, 128, 32), target=SM90):
    skinny = module("matmul_skinny")
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
    skinny = module("matmul_skinny")
    (example,) = skinny.EXAMPLES
    args = product((70, 136, 200), 3)
    alone = skinny.arguments(Arrays(SM90), False, (1, 136, 200), (64, 128), 3)
    alone.update(a=args["a"][66:67], b=args["b"])
    example.launch(alone, example.configure(SM90), target=SM90)
    assert (alone["c"][0] == args["c"][66]).all()
