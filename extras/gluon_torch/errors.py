"""Every mistake about ops of PyTorch, one class each."""

from __future__ import annotations

from gluon_core.errors import ArgumentError, GluonError

__all__ = [
    "FakeResultError",
    "MissingGradientError",
    "MutationError",
    "NondeterministicError",
    "OpNameError",
    "OpSchemaError",
    "TangentError",
]


class OpNameError(ArgumentError):
    """The name of an op of torch that is no name, is taken, or that nothing was registered under."""


class OpSchemaError(ArgumentError):
    """The schema of an op of torch disagrees with the function it is made of."""


class MutationError(GluonError, RuntimeError):
    """An op of torch wrote an argument that it does not declare to write."""


class FakeResultError(GluonError, RuntimeError):
    """An op of torch declares shapes, strides, dtypes or devices that its results do not have."""


class MissingGradientError(GluonError, RuntimeError):
    """A gradient was wanted of an op of torch that has none."""


class NondeterministicError(GluonError, RuntimeError):
    """An op whose result depends on timing, while torch was asked for deterministic ones."""


class TangentError(ArgumentError):
    """A tensor with a tangent came to an op by a way that has no forward mode."""
