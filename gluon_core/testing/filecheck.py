"""FileCheck lines inside kernels; the tool ships in the Triton wheel."""

from __future__ import annotations

import functools
import inspect
import os
import subprocess
import tempfile
from types import MappingProxyType
from typing import Any, Callable, Mapping, Sequence

from gluon_core import _triton
from gluon_core.compiler.source import jit_function
from gluon_core.errors import ArgumentError, GluonError
from gluon_core.testing.parser import run_parser

__all__ = ["MatchError", "filecheck_test", "run_filecheck", "run_filecheck_test"]


class MatchError(GluonError, ValueError):
    """The text does not match its FileCheck lines. `report` is the output of FileCheck."""

    def __init__(self, message: str, *, report: str = "", **fields: Any):
        super().__init__(message, **fields)
        self.report = report

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.report}"


def run_filecheck(name: str, module_str: str, check_template: str) -> None:
    """Check `module_str` against the `CHECK` lines of `check_template`.

    Raises:
        MatchError: a line has no match; with FileCheck's report.
        ArgumentError: the installed Triton has no FileCheck.
    """
    tool = _triton.tool("FileCheck")
    if tool is None:
        raise ArgumentError("the installed Triton ships no FileCheck", got=_triton.VERSION_TEXT)
    with tempfile.TemporaryDirectory() as folder:
        module, expected = os.path.join(folder, "module"), os.path.join(folder, "expected")
        for path, text in ((module, module_str), (expected, check_template)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        result = subprocess.run(
            [tool, expected, "--input-file", module, "--dump-input-context=50"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if result.returncode:
        report = result.stdout.decode("utf-8", "replace")
        raise MatchError(f"{name} does not match its CHECK lines", report=report)


def run_filecheck_test(
    kernel_fn: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    target: Any = None,
) -> None:
    """Parse a kernel and check the module against the `CHECK` lines in the kernel's own source.

    Take the arguments of `run_parser` and raise the errors of `run_filecheck`.
    """
    fn = jit_function(kernel_fn)
    module = run_parser(fn, args, kwargs, target)
    run_filecheck(fn.__name__, module.str_nodebug(), inspect.getsource(fn.fn))


def filecheck_test(fn: Any) -> Callable[[], None]:
    """Decorate a kernel without arguments: a test that checks its `CHECK` lines.

    An object that is no kernel is reported when the test runs, so that the rest of a file loads.

    @filecheck_test
    @gluon.jit
    def test_num_warps():
        # CHECK: arith.constant 4 : i32
        anchor(gl.num_warps())
    """
    shown = fn
    while hasattr(shown, "fn"):
        shown = shown.fn

    @functools.wraps(shown)
    def test() -> None:
        run_filecheck_test(fn)

    del test.__wrapped__  # pytest would take the kernel's parameters for fixtures
    return test
