"""Errors of the judge, which `gluon_core.errors` offers as well."""

from __future__ import annotations

from gluon_core.errors import GluonError

__all__ = ["JudgeError", "ProblemError"]


class JudgeError(GluonError, RuntimeError):
    """The judge cannot judge: the reference fails, or a process of the judge is gone."""

    exit_code = 3


class ProblemError(GluonError, ValueError):
    """A problem says nothing that inputs can be made from."""

    exit_code = 2
