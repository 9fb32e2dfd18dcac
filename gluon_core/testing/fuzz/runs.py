"""One kernel through the simulator and the compilers, and the smallest that fails alike."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, Optional, Sequence

import numpy as np

from gluon_core.compiler import compile
from gluon_core.contract.registry import registry
from gluon_core.contract.targets import Target
from gluon_core.errors import GluonError
from gluon_core.testing.fuzz.program import PROGRAMS, Program

__all__ = ["outcome", "reduced"]

_SIGNATURE = {"a": "*i32", "out": "*i32", "bins": "*i32", "product": "*fp32"}


def outcome(program: Program, targets: Sequence[Target], compiles: bool = True) -> str:
    """ "same", or what went wrong first: where, and how.

    Args:
        targets: to simulate; also compiled for, with `compiles`.
    """
    with tempfile.TemporaryDirectory(prefix="gluon-fuzz-") as folder:
        module = _module(program, Path(folder))
        wanted = program.meaning()
        for target in targets:
            found = _simulated(module, program, target, wanted)
            if found is None and compiles:
                found = _compiled(module, target)
            if found is not None:
                return found
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
    try:
        simulated = registry().target(f"sim:{target.architecture.name}")
        module.kernel[(PROGRAMS,)](*args.values(), target.warp_size, target=simulated)
    except GluonError as error:
        return f"sim:{target.architecture.name}: {_kind(error)}"
    for name, array in args.items():
        if not np.array_equal(array, wanted[name]):
            return f"sim:{target.architecture.name}: {name} differs"
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


def reduced(program: Program, targets: Sequence[Target], compiles: bool = True) -> Program:
    """The smallest program found that ends like `program`, by leaving out statements."""
    wanted = _alike(outcome(program, targets, compiles))
    step = max(1, len(program.statements) // 2)
    while step:
        at = 0
        while at < len(program.statements):
            fewer = program.without(range(at, at + step))
            if _alike(outcome(fewer, targets, compiles)) == wanted:
                program = fewer
            else:
                at += step
        step //= 2
    return program


def _alike(found: str) -> str:
    return ":".join(found.split(":")[:3])
