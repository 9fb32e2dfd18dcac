"""Products of small K by groups of warps that take turns with a tile each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gluon_core.registry.load import registry
from gluon_core.testing import TRITON_VERSION
from gluon_report.example import Arrays
from tests.kernels import cases

pytestmark = pytest.mark.once

SM90 = registry().target("sim:sm_90")


def module(name):
    return cases.module(name)


# One tile, one for each program, an odd number, many steps.
SIZES = [(1, 8, 8), (131, 136, 8), (640, 400, 64), (127, 200, 456)]


@pytest.mark.parametrize("sizes, columns", [*((s, 192) for s in SIZES), ((640, 400, 64), 128)])
def test_products_of_any_shape(sizes, columns):
    (example,) = module("matmul_pingpong_hopper").EXAMPLES
    args = example.arguments(Arrays(SM90), False, sizes)
    example.launch(args, example.configure(SM90, block=(128, columns, 32)), target=SM90)
    problem = example.difference(args["c"].astype(np.float32), example.reference(args))
    assert problem is None, problem


@pytest.mark.skipif(TRITON_VERSION < (3, 8), reason="needs Triton 3.8")
@pytest.mark.parametrize("sizes, columns", [((127, 200, 200), 192), ((640, 400, 64), 128)])
def test_products_of_pairs_of_blocks(sizes, columns):
    (example,) = module("matmul_pingpong_hopper").EXAMPLES
    args = example.arguments(Arrays(SM90), False, sizes)
    config = example.configure(SM90, block=(128, columns, 32), ctas=2)
    compiled = example.launch(args, config, target=SM90)
    problem = example.difference(args["c"].astype(np.float32), example.reference(args))
    assert problem is None, problem
    assert compiled.asm["source"].count("multicast") == columns // 64 - 1  # B's parts, and not A


def test_the_width_that_leaves_the_fewest_idle():
    chosen = module("matmul_pingpong_hopper").chosen_for
    assert chosen(8192, 8192, 132)["block"][1] == 192  # 21 rounds of 192 columns, or 32 of 128
    assert chosen(4096, 4096, 132)["block"][1] == 128  # 6 of 192, or 8 of 128


@pytest.mark.parametrize(
    "sizes, dtype, taken",
    [
        ((2048, 2048, 64), torch.bfloat16, True),
        ((2048, 1024, 64), torch.bfloat16, False),  # fewer tiles than processors
        ((2048, 2048, 64), torch.float32, False),
        ((2048, 2044, 64), torch.bfloat16, False),
        ((2048, 2048, 0), torch.bfloat16, False),
    ],
    ids=str,
)
def test_operands_of_the_operator(sizes, dtype, taken, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    products = module("gemm_ops")
    args = {"a": torch.empty(sizes[0], sizes[2], dtype=dtype), **dict(zip("MNK", sizes))}
    example, choices, _ = products.for_sizes("matmul", args)
    assert (example.name == "matmul, ping-pong") == taken and bool(choices) == taken
    assert products.for_sizes("matmul_small_m", args)[0].name != "matmul, ping-pong"
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_100")
    assert products.for_sizes("matmul", args)[0].name == "matmul"
