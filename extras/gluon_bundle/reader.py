"""The door to `gluon_runtime`, which reads and launches bundles, and whose errors become ours."""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Iterator

from gluon_bundle import errors

__all__ = ["runtime", "translated"]


def runtime(module: str) -> ModuleType:
    """`gluon_runtime.<module>`; it is imported on demand, because few programs have to do with bundles.

    Raises:
        BundleError: it is not installed.
    """
    try:
        return importlib.import_module(f"gluon_runtime.{module}")
    except ImportError as error:
        raise errors.BundleError(
            "gluon-runtime, which reads bundles, is not installed",
            remedy="pip install gluon-runtime",
        ) from error


@contextmanager
def translated() -> Iterator[None]:
    """Convert the errors of `gluon_runtime` to the classes of the same name in
    `gluon_bundle.errors`."""
    theirs = runtime("errors").BundleError
    try:
        yield
    except theirs as error:
        cause: Any = error
        ours = getattr(errors, type(cause).__name__, errors.BundleError)
        raise ours(
            cause.message,
            argument=cause.argument,
            expected=cause.expected,
            got=cause.got,
            remedy=cause.remedy,
        ) from None
