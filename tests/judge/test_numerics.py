"""The comparison of results with the reference, whatever their size."""

from __future__ import annotations

import pytest
import torch

from gluon_judge.numerics import Expected, difference

SIZE = 200_003  # several pieces, the last one not full


@pytest.fixture
def values():
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(1))


def codes(mine, same, exact=None, fill="drawn", tolerance={}, strict=False, reached=None):
    expected = Expected(same, exact, reached)
    return [(one.code, one.text) for one in difference(mine, expected, fill, tolerance, strict)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_equal_results_pass(values, dtype):
    assert not codes(values.to(dtype), values.to(dtype), values.double())


@pytest.mark.parametrize("index", [0, 70_000, SIZE - 1])
def test_one_wrong_element_is_named(values, index):
    mine = values.clone()
    mine[index] += 1.0
    ((code, text),) = codes(mine, values, values.double())
    assert code == "result.wrong" and text.startswith(f"element [{index}] is ")


@pytest.mark.parametrize("index", [3, 70_000, SIZE - 1])
def test_generated_nan_is_counted_over_all_pieces(values, index):
    mine = values.clone()
    mine[index] = mine[-1] = float("nan")
    code, text = codes(mine, values)[0]
    assert code == "result.wrong" and f"[{index}], is nan" in text
    assert ("2 elements differ" in text) == (index != SIZE - 1)


def test_an_error_beyond_elements_that_do_not_count_is_named(values):
    same, mine = values.clone(), values.clone()
    same[100::2] = mine[100::2] = float("inf")
    mine[70_001] += 1.0
    ((code, text),) = codes(mine, same)
    assert code == "result.wrong" and text.startswith("element [70001] is ")


def test_free_elements_may_be_anything(values):
    same, mine = values.clone(), values.clone()
    reached = torch.zeros(SIZE, dtype=torch.bool)
    reached[150_000] = True
    same[150_000], mine[150_000] = float("nan"), 7.0
    assert [code for code, _ in codes(mine, same, fill="nan", reached=reached)] == [
        "special.hidden"
    ]
    mine[149_999] = 7.0
    named = dict(codes(mine, same, fill="nan", reached=reached))
    assert named["result.wrong"].startswith("element [149999] is 7")


def test_an_error_everywhere_is_one_of_precision(values):
    mine = values.bfloat16().float()
    ((code, _),) = codes(mine, values, values.double())
    assert code == "precision.dropped"


def test_a_tolerance_of_the_problem_holds_in_every_piece(values):
    mine = values.clone()
    mine[180_000] += 1e-3
    assert codes(mine, values) and not codes(mine, values, tolerance={"absolute": 2e-3})
