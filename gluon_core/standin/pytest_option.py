"""`pytest --gluon-standin sim:hopper`: a suite that was written for a GPU, run without one."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["pytest_addoption", "pytest_load_initial_conftests"]


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
        from gluon_core.standin import stand_in

        try:
            stand_in(wanted)
        except GluonError as error:
            raise pytest.UsageError(str(error)) from error
