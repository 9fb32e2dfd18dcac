"""Portable kernels traced, compiled, inspected and run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gluon_core.backend import Report
from gluon_core.compiler import compile
from gluon_core.compiler.driver import trace_source
from gluon_core.compiler.source import GluonASTSource
from gluon_core.errors import BackendError, LayoutError
from gluon_core.plugins import registry
from gluon_core.targets import Target
from gluon_core.testing.conformance.kernels import COLS, KERNELS, ROWS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def _source(name: str, target: Target) -> GluonASTSource:
    chosen = KERNELS[name]
    return GluonASTSource(chosen.kernel, chosen.signature(), {"lanes": target.warp_size}, {})


@pytest.mark.parametrize("name", KERNELS)
def test_trace(backend: Any, target: Target, name: str) -> None:
    module = trace_source(_source(name, target), target, backend.options(target, {"num_warps": 4}))
    assert name in module.str_nodebug()


def test_mistakes_are_ours(backend: Any, target: Target) -> None:
    chosen = KERNELS["copy"]
    source = GluonASTSource(chosen.kernel, chosen.signature(), {"lanes": 2 * target.warp_size}, {})
    with pytest.raises(LayoutError, match="threads per warp") as caught:
        trace_source(source, target, backend.options(target, {"num_warps": 4}))
    assert caught.value.span is not None


def test_pipeline(backend: Any, target: Target) -> None:
    stages = backend.pipeline(target, backend.options(target, {"num_warps": 4}))
    names = [stage.name for stage in stages]
    assert names and len(names) == len(set(names))
    compiled = compile(_source("copy", target), target, {"num_warps": 4})
    for name in names:
        assert name in compiled.asm
    assert isinstance(compiled.asm[names[-1]], bytes) and compiled.asm[names[-1]]
    assert compiled.metadata.name
    try:
        report = backend.inspect(compiled)
    except BackendError as error:
        pytest.skip(f"compiled, but no tool here reads the machine code: {error}")
    assert isinstance(report, Report) and report.instruction_count > 0
    assert sum(report.instruction_mix.values()) <= report.instruction_count


def _runs_here(backend: Any) -> tuple[Any, str]:
    """The target that this machine can run, or why there is none."""
    if backend.simulates:
        return Target(backend.name, registry().default_architecture()), ""
    found = backend.device()
    return found, "" if found else backend.device_problem() or f"{backend.name} has no device here"


@pytest.mark.parametrize("name", KERNELS)
def test_numerics(backend: Any, name: str) -> None:
    target, why = _runs_here(backend)
    if target is None:
        pytest.skip(why)
    chosen = KERNELS[name]
    inputs = chosen.arrays()
    expected = chosen.meaning(*inputs)
    arrays = [*inputs, np.zeros(ROWS * COLS, chosen.output)]
    if backend.tensor_device not in (None, "cpu"):
        import torch

        arrays = [torch.from_numpy(a).to(backend.tensor_device) for a in arrays]
    chosen.kernel[(1,)](*arrays, ROWS * COLS, target.warp_size, target=target, num_warps=4)
    result = arrays[-1].cpu().numpy() if hasattr(arrays[-1], "cpu") else arrays[-1]
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)
