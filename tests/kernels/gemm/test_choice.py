"""The tilings of products that are larger than the measured ones."""

import pytest

pytest.importorskip("torch")

from gluon_kernels.gemm import choice, tilings

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    "sides", [(8192, 8192, 8192), (6144, 3072, 5120), (16384, 16384, 4096), (5000, 8192, 8192)]
)
def test_large_products_take_tiles_that_reach_the_rate_of_the_library(sides):
    large = choice.choose(tilings.Size(1, *sides))
    assert large.blocks == 1 and {128, 256} == set(large.block[:2])
