"""Every mistake about bundles of compiled kernels, one class each."""

from __future__ import annotations

from gluon_core.errors import CapabilityError, GluonError

__all__ = [
    "BundleDamagedError",
    "BundleError",
    "BundleFormatError",
    "BundleHashError",
    "BundleKernelError",
    "BundleNameError",
    "BundleTargetError",
    "BundleTruncatedError",
    "BundleUnsupportedError",
    "BundleVersionError",
]


class BundleError(GluonError):
    """A bundle of compiled kernels cannot be made, read or used."""


class BundleFormatError(BundleError, ValueError):
    """The file is no bundle, or its manifest is not what the format says."""


class BundleVersionError(BundleError):
    """The bundle has a version of the format that this release does not read."""


class BundleTruncatedError(BundleError):
    """The file begins as a bundle and ends too early."""


class BundleDamagedError(BundleError):
    """The file does not have the hash that it carries."""


class BundleHashError(BundleError):
    """A part of a bundle, or the bundle, has another hash than is stated for it."""


class BundleTargetError(BundleError, ValueError):
    """A bundle has no code for a target, or the target has no machine code."""


class BundleNameError(BundleError, ValueError):
    """Two kernels that differ have one name, in one bundle or in two that are used together."""


class BundleKernelError(BundleError, LookupError):
    """The bundle has no kernel of that name."""


class BundleUnsupportedError(BundleError, CapabilityError):
    """A kernel takes what bundles cannot hold yet."""
