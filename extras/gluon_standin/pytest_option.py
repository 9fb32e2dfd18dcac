"""`pytest --gluon-standin sim:hopper`: a suite that was written for a GPU, run without one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

__all__ = [
    "pytest_addoption",
    "pytest_load_initial_conftests",
    "pytest_pycollect_makemodule",
    "pytest_terminal_summary",
]


def pytest_addoption(parser: Any) -> None:
    parser.getgroup("gluon", "Gluon Core").addoption(
        "--gluon-standin",
        metavar="TARGET",
        help="run a suite that was written for a GPU without one: torch and Triton answer as this "
        "simulated device, such as sim:hopper",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: Any) -> None:
    """Before any file of the suite asks torch or Triton for a device."""
    wanted = early_config.known_args_namespace.gluon_standin
    if wanted:
        from gluon_core.errors import GluonError
        from gluon_standin import stand_in

        try:
            stand_in(wanted)
        except GluonError as error:
            raise pytest.UsageError(str(error)) from error


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Answer for the device of a file that asks for one, where GLUON_TARGET names a simulated target."""
    wanted = os.environ.get("GLUON_TARGET")
    if wanted and "gluon_standin.torch_device" not in sys.modules:
        from gluon_standin import asked

        try:
            source = module_path.read_text()
        except (OSError, UnicodeDecodeError):  # for pytest to report
            return
        asked.begin(wanted, source)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if "gluon_standin.torch_device" in sys.modules:
        from gluon_standin import asked

        for line in asked.lines():
            terminalreporter.write_line(line)
