"""One kernel through the simulator, the compilers and a GPU, and the smallest that fails alike."""

from __future__ import annotations

import importlib.util
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Optional, Sequence

import numpy as np

from gluon_core.compiler import compile
from gluon_core.errors import GluonError
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from tests.fuzz.program import PROGRAMS, Program

__all__ = ["DEVICE_LOST", "Ways", "outcome", "reduced"]

_SIGNATURE = {"a": "*i32", "out": "*i32", "bins": "*i32", "product": "*fp32", "tiles": "*i32"}
_SECONDS = 60  # of a simulated launch
DEVICE_LOST = "the device failed"  # and does nothing more for this process


@dataclass(frozen=True)
class Ways:
    """The steps that a kernel goes through.

    Args:
        simulates: it runs on the simulator of each target.
        compiles: it is compiled for each target.
        device: it runs on the GPU of this machine, on tensors of torch.
    """

    simulates: bool = True
    compiles: bool = True
    device: bool = False


def outcome(program: Program, targets: Sequence[Target], ways: Ways = Ways()) -> str:
    """ "same", or the first failure: where, and how."""
    with tempfile.TemporaryDirectory(prefix="gluon-fuzz-") as folder:
        module = _module(program, Path(folder))
        wanted = program.meaning()
        for target in targets:
            outcome_found = _simulated(module, program, target, wanted) if ways.simulates else None
            if outcome_found is None and ways.device:
                outcome_found = _on_device(module, program, target, wanted)
            elif outcome_found is None and ways.compiles:
                outcome_found = _compiled(module, target)
            if outcome_found is not None:
                return outcome_found
    return "same"


def _module(program: Program, folder: Path) -> ModuleType:
    path = folder / f"kernel_{program.seed}.py"
    path.write_text(program.source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _simulated(
    module: ModuleType, program: Program, target: Target, wanted: dict[str, np.ndarray]
) -> Optional[str]:
    args = program.arguments()
    where = f"sim:{target.architecture.name}"
    try:
        simulated = registry().target(where)
        module.kernel[(PROGRAMS,)](
            *args.values(), target.warp_size, target=simulated, timeout=_SECONDS, workers=1
        )
    except GluonError as error:
        return f"{where}: {_kind(error)}"
    return _differs(where, args, wanted)


def _on_device(
    module: ModuleType, program: Program, target: Target, wanted: dict[str, np.ndarray]
) -> Optional[str]:
    import torch

    args = {name: torch.from_numpy(value).cuda() for name, value in program.arguments().items()}
    where = f"GPU, {target.architecture.name}"
    try:
        module.kernel[(PROGRAMS,)](*args.values(), target.warp_size)
        results = {name: value.cpu().numpy() for name, value in args.items()}
    except GluonError as error:
        return f"{where}: {_kind(error)}"
    except RuntimeError as error:  # torch's: what a kernel did before shows when one waits for it
        return f"{where}: {DEVICE_LOST}: {str(error).splitlines()[0]}"
    return _differs(where, results, wanted)


def _differs(where: str, results: dict[str, Any], wanted: dict[str, np.ndarray]) -> Optional[str]:
    for name, array in results.items():
        if not np.array_equal(array, wanted[name]):
            return f"{where}: {name} differs"
    return None


def _compiled(module: ModuleType, target: Target) -> Optional[str]:
    try:
        compile(module.kernel, target, signature=_SIGNATURE, constexprs={"WARP": target.warp_size})
    except GluonError as error:
        return f"{target.architecture.name}: {_kind(error)}"
    return None


def _kind(error: Any) -> str:
    """An error without the numbers in it, so that two of a kind look alike."""
    return f"{type(error).__name__}: {str(error.message)[:100]}".split(";")[0]


def reduced(program: Program, targets: Sequence[Target], ways: Ways = Ways()) -> Program:
    """The smallest program found that ends like `program`, by leaving out statements."""
    wanted = _alike(outcome(program, targets, ways))
    step = max(1, len(program.all) // 2)
    while step:
        start = 0
        while start < len(program.all):
            fewer = program.without(range(start, start + step))
            if _alike(outcome(fewer, targets, ways)) == wanted:
                program = fewer
            else:
                start += step
        step //= 2
    return program


def _alike(text: str) -> str:
    return ":".join(text.split(":")[:3])
