"""The errors of `gluon_runtime`, which reads and launches bundles, become ours."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

from gluon_bundle import errors
from gluon_runtime import errors as theirs

__all__ = ["translated"]


@contextmanager
def translated() -> Iterator[None]:
    """Convert the errors of `gluon_runtime` to the classes of the same name in
    `gluon_bundle.errors`."""
    try:
        yield
    except theirs.BundleError as error:
        cause: Any = error
        ours = getattr(errors, type(cause).__name__, errors.BundleError)
        raise ours(
            cause.message,
            argument=cause.argument,
            expected=cause.expected,
            got=cause.got,
            remedy=cause.remedy,
        ) from None
