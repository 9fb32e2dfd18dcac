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
    """What `gluon_runtime` raises inside comes out as the class of the same name in
    `gluon_bundle.errors`."""
    theirs = runtime("errors").BundleError
    try:
        yield
    except theirs as error:
        found: Any = error
        ours = getattr(errors, type(found).__name__, errors.BundleError)
        raise ours(
            found.message,
            argument=found.argument,
            expected=found.expected,
            got=found.got,
            remedy=found.remedy,
        ) from None
