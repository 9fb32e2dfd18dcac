"""Every mistake that reading or launching a bundle reports, one class each.

A message says what is wrong, which argument, the expected and the actual value, and the remedy.
"""

from __future__ import annotations

from typing import Any, Optional

__all__ = [
    "BundleAmbiguousError",
    "BundleArgumentError",
    "BundleDamagedError",
    "BundleDeviceError",
    "BundleDriverError",
    "BundleError",
    "BundleFormatError",
    "BundleGridError",
    "BundleHashError",
    "BundleKernelError",
    "BundleMissingError",
    "BundleNameError",
    "BundleTargetError",
    "BundleTruncatedError",
    "BundleVersionError",
]


class BundleError(Exception):
    """Base of all of them.

    Args:
        message: the mistake, in one sentence.
        argument: the argument or file at fault.
        expected: the accepted values.
        got: the actual value.
        remedy: a way out.
    """

    def __init__(
        self,
        message: str,
        *,
        argument: Optional[str] = None,
        expected: Any = None,
        got: Any = None,
        remedy: Optional[str] = None,
    ):
        self.message = message
        self.argument = argument
        self.expected = expected
        self.got = got
        self.remedy = remedy
        super().__init__(message)

    def __str__(self) -> str:
        text = self.message if self.argument is None else f"{self.argument}: {self.message}"
        if self.expected is not None:
            text += f"; expected {self.expected}"
        if self.got is not None:
            text += f", got {self.got}" if self.expected is not None else f"; got {self.got}"
        return f"{text.rstrip('.')}. {self.remedy}" if self.remedy else text


class BundleFormatError(BundleError, ValueError):
    """The file is no bundle, or its manifest is not as the format says."""


class BundleVersionError(BundleError):
    """The bundle has a version of the format that this release does not read."""


class BundleTruncatedError(BundleError):
    """The file begins as a bundle and ends too early."""


class BundleDamagedError(BundleError):
    """The file does not have the hash that it carries."""


class BundleHashError(BundleError):
    """A code object, the index or the bundle has another hash than is stated for it."""


class BundleTargetError(BundleError):
    """The bundle has no code for the device's architecture."""


class BundleNameError(BundleError):
    """Two bundles have kernels of one name that differ."""


class BundleKernelError(BundleError, KeyError):
    """The bundle has no kernel of that name."""

    __str__ = BundleError.__str__


class BundleArgumentError(BundleError, TypeError):
    """An argument of a launch is missing, unknown, or of a kind that kernels cannot take."""


class BundleGridError(BundleError, ValueError):
    """The grid of a launch is no grid."""


class BundleMissingError(BundleError, LookupError):
    """No compiled form of the kernel fits the arguments of a launch."""


class BundleAmbiguousError(BundleError, LookupError):
    """Several compiled forms fit the arguments of a launch, and nothing says which is meant."""


class BundleDeviceError(BundleError):
    """No device or driver, or tensors that are elsewhere."""


class BundleDriverError(BundleError, RuntimeError):
    """The driver refused to load or to launch a kernel."""
