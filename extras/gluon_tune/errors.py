"""Every mistake about searches for configurations, one class each."""

from __future__ import annotations

from gluon_core.errors import GluonError

__all__ = [
    "NotTunedError",
    "TuneError",
    "TuneSpaceError",
    "TuneStoreError",
    "TuneStoreVersionError",
    "TuneWorkerError",
]


class TuneError(GluonError):
    """Configurations cannot be searched as asked."""

    exit_code = 2  # of a command: it is wrong


class TuneSpaceError(TuneError, ValueError):
    """The argument is no space, or holds no configuration."""


class TuneStoreError(TuneError, OSError):
    """The store of results cannot be opened, read or written."""

    exit_code = 3  # the command is right, and this machine cannot do it


class TuneStoreVersionError(TuneStoreError):
    """Another release wrote the store of results."""


class TuneWorkerError(TuneError, RuntimeError):
    """A process or machine that works for the search was lost, or is not like this one."""

    exit_code = 3


class NotTunedError(TuneError, LookupError):
    """A launch asks for a configuration that nobody has searched for."""
