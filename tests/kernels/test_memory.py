"""Plans keep no tensor of the call that they were built for: neither its memory nor its graph of gradients."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from gluon_kernels.norm import problem as norm
from gluon_kernels.quant import problem as quant
from gluon_kernels.topk import problem as topk

pytestmark = [pytest.mark.once, pytest.mark.sampled(14)]

PROBLEMS = [
    *(norm.PROBLEMS + norm.WITH_GRADIENTS + topk.PROBLEMS + topk.WITH_GRADIENTS),
    quant.QUANTIZE,
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_plans_keep_no_tensors(problem, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    for shape in problem.small[:1]:
        torch.manual_seed(0)
        # No other test has this shape, so the plan is built here.
        arguments = problem.arguments({**shape, "rows": shape["rows"] + 11}, "cpu")
        tensors = [x for x in arguments.values() if isinstance(x, torch.Tensor)]
        alive = [weakref.ref(x) for x in tensors]
        result = problem.op(**arguments)
        del arguments, tensors, result
        gc.collect()
        kept = [one() for one in alive if one() is not None]
        assert not kept, [tuple(x.shape) for x in kept]
