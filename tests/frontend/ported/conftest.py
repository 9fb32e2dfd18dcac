"""Programs with host code, run twice: on Triton's own Gluon as far as the module of each launch, and
on ours, where each launch must make the same module and then runs on the simulator, all checks on.

A program is a test file with `ARCH`; what its tests launch is compared in order.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget

from benchmarks import upstream
from gluon_core import _triton, testing
from gluon_core.errors import CapabilityError
from gluon_core.runtime.jit import GluonJITFunction
from tests.frontend import oracle

# Spellings that ours takes on every Triton, and upstream only before 3.9.
NEWER = {
    "async_copy.async_copy_global_to_shared": "async_copy.async_load",
    "cp.async_copy_global_to_shared": "cp.async_load",
    "tma.async_copy_global_to_shared": "tma.async_load",
    "tma.async_copy_shared_to_global": "tma.async_store",
}


@functools.lru_cache(maxsize=None)
def twin(path: str, name: str) -> Any:
    """The program on Triton's own Gluon; None where the installed one lacks a name."""
    text = upstream.to_upstream(Path(path).read_text())
    for old, new in NEWER.items() if _triton.at_least(3, 9) else ():
        text = text.replace(old, new)
    try:
        return upstream.load(f"{name}_upstream", text)
    except (ImportError, AttributeError):
        return None


def arguments(request: Any, function: Any) -> dict[str, Any]:
    """The arguments of this test, as `function` of the other module is parametrized."""
    found: dict[str, Any] = {}
    for mark in getattr(function, "pytestmark", ()):
        if mark.name == "parametrize":
            names = [name.strip() for name in mark.args[0].split(",")]
            theirs = mark.args[1][_position(request, mark.args[0], names)]
            found.update(zip(names, theirs if len(names) > 1 else [theirs]))
    return found


def _position(request: Any, argnames: str, names: list[str]) -> int:
    """Which of the values of a `parametrize` this test has."""
    given = request.node.callspec.params
    for mark in request.function.pytestmark:
        if mark.name == "parametrize" and mark.args[0] == argnames:
            for at, value in enumerate(mark.args[1]):
                row = value if len(names) > 1 else [value]
                if all(given[name] is item for name, item in zip(names, row)):
                    return at
    raise AssertionError(argnames)


def modules_of(module: Any, request: Any, target: Any) -> Any:
    """The modules that this test launches on Triton's own Gluon, in normal form."""
    from triton._filecheck import run_parser

    made: list[str] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        text = testing.normalise(run_parser(self, args, kwargs, target))
        made.append(oracle.renamed(text))
        return mock.MagicMock()

    function = getattr(module, request.function.__name__)
    with (
        mock.patch.object(triton.runtime.jit.JITFunction, "run", run),
        mock.patch.object(torch.testing, "assert_close", lambda *args, **kwargs: None),
    ):
        try:
            function(**arguments(request, function))
        except Exception:
            if _triton.at_least(3, 9):
                raise
            return None  # an older one cannot do all of it
    return made


@pytest.fixture(autouse=True)
def both(request, monkeypatch):
    arch = request.module.ARCH
    target = GPUTarget("cuda", arch, 32)
    monkeypatch.setenv("GLUON_TARGET", f"sim:sm_{arch}")
    torch.manual_seed(0)
    theirs = twin(request.module.__file__, request.module.__name__)
    wanted = None if theirs is None else modules_of(theirs, request, target)
    made: list[str] = []
    launch = GluonJITFunction.__getitem__

    def compared(self: Any, grid: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                made.append(testing.normalise(testing.run_parser(self, args, kwargs, target)))
            except CapabilityError as error:
                if "needs Triton" not in str(error):
                    raise
                made.append(str(error))
                pytest.skip(str(error))
            if wanted is not None:
                assert made[-1] == wanted[len(made) - 1]
            return launch(self, grid)(*args, **kwargs)

        return call

    monkeypatch.setattr(GluonJITFunction, "__getitem__", compared)
    yield
    assert made, "nothing was launched"
    assert wanted is None or len(made) == len(wanted)
