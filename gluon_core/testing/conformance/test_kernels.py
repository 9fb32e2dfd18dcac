"""Portable kernels traced, compiled, inspected and run."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import numpy as np
import pytest

from gluon_core.compiler import compile
from gluon_core.compiler.driver import trace_source
from gluon_core.compiler.source import GluonASTSource
from gluon_core.errors import BackendError, CapabilityError, LayoutError
from gluon_core.plugin.compiler import Report
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.registry.verify import checked
from gluon_core.testing.conformance.conftest import targets_of
from gluon_core.testing.conformance.kernels import COLS, KERNELS, ROWS, Portable

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def _source(name: str, target: Target) -> GluonASTSource:
    chosen = KERNELS[name]
    return GluonASTSource(chosen.kernel, chosen.signature(), {"lanes": target.warp_size}, {})


def _where(backend: Any, target: Target) -> tuple[Any, Target]:
    """Return the backend and target that kernels for `target` are traced with: those of the simulator
    where the vendor has no compiler."""
    if backend.compiles:
        return backend, target
    simulator = registry().simulator()
    if simulator is None:
        pytest.skip(f"{backend.name} has no compiler, and no simulator is installed")
    return simulator, Target(simulator.name, target.architecture)


@pytest.mark.parametrize("name", KERNELS)
def test_trace(backend: Any, target: Target, name: str) -> None:
    backend, target = _where(backend, target)
    module = trace_source(
        _source(name, target), target, backend.compiler.options(target, {"num_warps": 4})
    )
    assert name in module.str_nodebug()


def test_mistakes_are_ours(backend: Any, target: Target) -> None:
    backend, target = _where(backend, target)
    chosen = KERNELS["copy"]
    source = GluonASTSource(chosen.kernel, chosen.signature(), {"lanes": 2 * target.warp_size}, {})
    with pytest.raises(LayoutError, match="threads per warp") as caught:
        trace_source(source, target, backend.compiler.options(target, {"num_warps": 4}))
    assert caught.value.span is not None


def test_pipeline(backend: Any, target: Target) -> None:
    if not backend.compiles:
        with pytest.raises(CapabilityError):
            compile(_source("copy", target), target, {"num_warps": 4})
        return
    stages = checked(
        backend,
        "pipeline",
        backend.compiler.pipeline(target, backend.compiler.options(target, {"num_warps": 4})),
    )
    names = [stage.name for stage in stages]
    compiled = compile(_source("copy", target), target, {"num_warps": 4})
    for name in names:
        assert name in compiled.asm
    assert isinstance(compiled.asm[names[-1]], bytes) and compiled.asm[names[-1]]
    assert compiled.metadata.name
    try:
        report = backend.compiler.inspect(compiled)
    except BackendError as error:
        pytest.skip(f"compiled, but no tool here reads the machine code: {error}")
    assert isinstance(report, Report) and report.instruction_count > 0
    assert sum(report.instruction_mix.values()) <= report.instruction_count


def _runs_here(backend: Any) -> tuple[Any, str]:
    """Return the target that this machine can run, or why there is none."""
    if backend.simulates:
        known = targets_of(backend)
        chosen = [t for t in known if t.architecture.default] or known
        return chosen[0], ""
    if not backend.compiles:
        return _where(backend, Target(backend.name, backend.architectures[0]))[1], ""
    device = backend.device.target()
    return (
        device,
        "" if device else backend.device.problem() or f"{backend.name} has no device here",
    )


def _arrays(backend: Any, chosen: Portable) -> list[Any]:
    """Return inputs and output where `backend` runs kernels."""
    arrays = [*chosen.arrays(), np.zeros(ROWS * COLS, chosen.output)]
    if backend.device.tensor_device in (None, "cpu"):
        return arrays
    import torch

    return [torch.from_numpy(a).to(backend.device.tensor_device) for a in arrays]


def _numpy(array: Any) -> Any:
    return array.cpu().numpy() if hasattr(array, "cpu") else array


@pytest.mark.parametrize("name", KERNELS)
def test_numerics(backend: Any, name: str) -> None:
    target, why = _runs_here(backend)
    if target is None:
        pytest.skip(why)
    chosen = KERNELS[name]
    expected = chosen.meaning(*chosen.arrays())
    arrays = _arrays(backend, chosen)
    chosen.kernel[(1,)](*arrays, ROWS * COLS, target.warp_size, target=target, num_warps=4)
    np.testing.assert_allclose(_numpy(arrays[-1]), expected, rtol=2e-5, atol=1e-6)


def test_every_form_of_a_launch(backend: Any) -> None:
    """Compare prepared launches: on another grid, by keyword, and again, as far as a launcher offers
    them."""
    target, why = _runs_here(backend)
    if target is None:
        pytest.skip(why)
    chosen = KERNELS["copy"]
    (source, out), count = _arrays(backend, chosen), ROWS * COLS
    options = {"target": target, "num_warps": 4}
    kernel, lanes = chosen.kernel, target.warp_size
    ready = kernel.prepare(source, out, count, lanes, grid=(1,), **options)
    launches: Sequence[Callable[[], Any]] = (
        lambda: kernel[(1,)](source, out, count, lanes, **options),
        lambda: kernel[(1,)](source, out, n=count, lanes=lanes, **options),
        lambda: kernel[lambda names: (names["n"] // count,)](source, out, count, lanes, **options),
        lambda: ready(source, out, count, lanes),
        lambda: ready(source, out, n=count, lanes=lanes),
        lambda: ready(source, out, count, lanes, grid=(1, 1, 1)),
    )
    for number, launch in enumerate(launches):
        out[:] = 0
        launch()
        np.testing.assert_array_equal(_numpy(out), _numpy(source), err_msg=f"launch {number}")
