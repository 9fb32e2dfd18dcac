"""A pytest plugin: launches of tests on the simulator, once more on the GPU, and compared.

    python -m pytest tests/backends/sim -p tests.kernels.twice
    python -m pytest tests/backends/sim -p tests.kernels.twice --collect-only   # without a GPU, too

Each launch that the simulator took without a report, with all its checks on, is repeated on the
device that is plugged in with the same arguments. A table of the differences comes at the end, and the
run fails where a kernel of exact ops differs. `--gluon-twice TARGET` repeats on another target.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Callable, Iterator

import numpy as np
import pytest

from gluon_core.errors import CapabilityError, GluonError, LayoutError, LimitError
from gluon_core.plugin.paths import load_path
from gluon_core.registry.load import registry
from gluon_report.differential import compare, from_target, on_target
from gluon_report.example import device_target
from tests.kernels.differential import Outcome

# Ops of recorded programs whose results a GPU rounds otherwise.
INEXACT = (
    "fdiv", "div", "sqrt", "exp", "log", "sin", "cos", "erf", "tanh", "rsqrt", "reduce", "scan", "dot",
    "mma", "extern", "fadd",
)  # fmt: skip


class Twice:
    """The launches of one test run.

    Args:
        device: where to repeat them.
    """

    def __init__(self, device: Any):
        self.device = device
        self.found: list[Outcome] = []
        self.test = ""
        self._simulator: Any = registry().simulator()
        self._models = self._reference()
        self._again = False

    def _reference(self) -> dict[str, Any]:
        """The reference models by name: a test that replaces one simulates no hardware."""
        name = registry().backend(self.device.architecture.backend).language.reference
        return dict(vars(importlib.import_module(name))) if name else {}

    def _usual(self) -> bool:
        with load_path(self._simulator.simulation.settings)() as settings:
            fields = dataclasses.fields(settings)
            checked = all(getattr(settings, f.name) for f in fields if f.default is True)
        return checked and self._reference() == self._models

    def launcher(self, make: Callable[..., Any], compiled: Any) -> Callable[..., Any]:
        """Wrap the simulator's `launcher` so that each launch is repeated."""
        launch = make(compiled)
        same = compiled.target.architecture.backend == self.device.architecture.backend
        own = getattr(compiled.metadata, "simulation", None) or {}  # settings of the launch
        if not same or any(value is False for value in own.values()):
            return launch

        def run(grid: Any, stream: Any, *arguments: Any) -> None:
            if self._again or not self._usual():
                launch(grid, stream, *arguments)
                return
            before = [numpy_of(a) for a in arguments]
            launch(grid, stream, *arguments)
            after = [numpy_of(a) for a in arguments]
            self._again = True
            try:
                self._repeat(compiled, grid, arguments, before, after)
            finally:
                self._again = False

        return run

    def _repeat(self, compiled: Any, grid: Any, arguments: Any, before: Any, after: Any) -> None:
        name = f"{self.test}: {compiled.name}"
        restored = [
            value if array is None else on_target(array, self.device)
            for value, array in zip(arguments, before)
        ]
        options = {"num_warps": compiled.metadata.num_warps, "target": self.device}
        try:
            compiled.src.fn[tuple(grid)](*restored, **options)
            ends = [
                None if array is None else from_target(value, array)
                for value, array in zip(restored, before)
            ]
        except (CapabilityError, LayoutError, LimitError) as error:
            self.found.append(Outcome(name, "unable", str(error).splitlines()[0]))
            return
        except (GluonError, RuntimeError) as error:
            text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            self.found.append(Outcome(name, "failed", text))
            return
        parameters = compiled.src.fn.arg_names
        differences = [
            compare(parameter, mine, end)
            for parameter, mine, end in zip(parameters, after, ends)
            if mine is not None
        ]
        bad = [d for d in differences if not d.exact]
        if not bad:
            self.found.append(Outcome(name, "same"))
            return
        ops = compiled.report().instruction_mix
        exact = not any(op.startswith(INEXACT) or "mma" in op for op in ops)
        fine = not exact and all(d.within(relative=1e-2 if d.scale else 0, ulps=64) for d in bad)
        self.found.append(Outcome(name, "near" if fine else "differs", "; ".join(map(str, bad))))


def numpy_of(value: Any) -> Any:
    """A copy of an array or a CPU tensor as NumPy's, None for anything else."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if not hasattr(value, "untyped_storage") or not value.is_contiguous():
        return None
    import ml_dtypes
    import torch

    name = str(value.dtype).rpartition(".")[2]
    kind = np.dtype(getattr(ml_dtypes, name, None) or name)
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[kind.itemsize]
    return value.view(whole).numpy().copy().view(kind)


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--gluon-twice", metavar="TARGET", help="where to repeat simulated launches")


def pytest_configure(config: Any) -> None:
    option = config.getoption("--gluon-twice")
    device = registry().target(option) if option else device_target()
    if device is None and config.option.collectonly:
        device = registry().target("sim")
    if device is None:
        raise pytest.UsageError("there is no GPU to repeat launches on; see --gluon-twice")
    config._gluon_twice = Twice(device)


@pytest.fixture(autouse=True)
def _gluon_repeated(request: Any, monkeypatch: Any) -> Iterator[None]:
    twice = request.config._gluon_twice
    twice.test = request.node.name
    kind = type(registry().simulator().device)
    make = kind.launcher
    monkeypatch.setattr(
        kind, "launcher", lambda self, compiled: twice.launcher(lambda c: make(self, c), compiled)
    )
    yield


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    from tests.kernels.test_sim_vs_gpu import table

    twice = config._gluon_twice
    terminalreporter.section(f"on the simulator and on {twice.device}")
    terminalreporter.write_line(table(twice.found))


def pytest_sessionfinish(session: Any) -> None:
    wrong = [o for o in session.config._gluon_twice.found if o.kind in ("failed", "differs")]
    if wrong and session.exitstatus == 0:
        session.exitstatus = 1
