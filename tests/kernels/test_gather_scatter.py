"""Products of groups whose rows are read where they stand and written where they belong: at the edges."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gluon_core.registry.load import registry
from gluon_report.example import Arrays
from tests.kernels import cases

pytestmark = pytest.mark.once

COUNTS = [(0, 0), (1,), (7, 0, 129), (0, 133, 0), (3, 65, 1, 0, 59)]
FORMS = [
    ("matmul_gather_scatter_hopper", "sim:sm_90"),
    ("matmul_gather_scatter", "sim:sm_90"),
    ("matmul_gather_scatter", "sim:gfx942"),
]


def example_of(file):
    return cases.module(file).EXAMPLES[0]


def product(file, spec, counts, gathered, scattered, n=72, k=40, **choices):
    """Multiply rows of a larger A into rows of a larger C, compared wherever something is written, and elsewhere."""
    target, draw = registry().target(spec), np.random.default_rng(0)
    example, new = example_of(file), Arrays(registry().target(spec))
    rows, groups = sum(counts), len(counts)
    most = max(2 * rows, 1)
    starts = np.cumsum(counts) - np.asarray(counts)
    args = {
        "a": new.random((most, k), "bfloat16"),
        "b": new.random((groups, k, n), "bfloat16"),
        "c": new.empty((most, n), "bfloat16"),
        "starts": starts.astype(np.int32),
        "counts": np.asarray(counts, np.int32),
        "sources": draw.integers(0, most, rows or 1).astype(np.int32) if gathered else None,
        "targets": draw.permutation(most)[: rows or 1].astype(np.int32) if scattered else None,
        "weights": draw.random(rows or 1).astype(np.float32) if scattered else None,
        "groups": groups,
        "N": n,
        "K": k,
    }
    read = args["sources"] if gathered else np.arange(rows)
    unread = np.setdiff1d(np.arange(most), read[:rows])
    args["a"][unread] = np.nan
    wanted = example.reference({**args, "c": np.full((most, n), np.nan)})
    example.launch(args, example.configure(target, **choices), target=target)
    got = args["c"].astype(np.float64)
    assert np.isnan(wanted).sum() == (most - rows) * n
    if rows:
        limit = 4e-3 * np.nanmax(np.abs(wanted))
        np.testing.assert_allclose(got, wanted, atol=limit, rtol=0)
    return args


@pytest.mark.sampled(4)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("gathered, scattered", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("file, spec", FORMS)
def test_rows_anywhere(file, spec, counts, gathered, scattered):
    product(file, spec, counts, gathered, scattered)


@pytest.mark.parametrize("file, spec", FORMS[:2])
def test_k_and_n_that_no_block_divides(file, spec):
    """Elements behind a group's matrix and behind a row are not multiplied."""
    product(file, spec, (5, 70), True, True, n=8, k=8)


def test_both_forms_agree():
    """The rows of a token that goes to two experts, before they are summed."""
    results = [product(*form, (40, 0, 24), True, True) for form in FORMS]
    for other in results[1:]:
        for name in ("a", "b"):
            assert (results[0][name].view(np.int16) == other[name].view(np.int16)).all()
        near = [x["c"].astype(np.float64) for x in (results[0], other)]
        np.testing.assert_allclose(*near, atol=2e-2 * np.nanmax(np.abs(near[0])))


def test_weights_in_the_order_of_the_list():
    module = cases.module("matmul_gather_scatter")
    arguments = module.arguments(True)(Arrays(registry().target("sim:sm_90")), False, [6, 2], 8, 8)
    assert (
        arguments["targets"].tolist() != list(range(8))
        and arguments["c"].dtype == ml_dtypes.bfloat16
    )
    with pytest.raises(ValueError, match="rows in groups"):
        module.routed(None, [3, 2], 2, 2)
