"""Tensors, arrays and scalars of other libraries: how kernels get at their memory, and which have none."""

from __future__ import annotations

import functools
import sys
from typing import Any

from gluon_core.errors import ArgumentError, TensorError

__all__ = ["check_array", "check_memory", "number", "through_dlpack"]


def number(value: Any) -> Any:
    """Return a scalar of NumPy, or of ml_dtypes, as Python's number of the same value; all else as it is."""
    if type(value).__module__ not in ("numpy", "ml_dtypes") or getattr(value, "ndim", None) != 0:
        return value
    if hasattr(value, "__array_finalize__"):  # an array of no dimensions is memory
        return value
    own = float if type(value).__module__ == "ml_dtypes" else None
    convert = {"b": bool, "i": int, "u": int, "f": float}.get(value.dtype.kind, own)
    return value if convert is None else convert(value)


_CPU = 1  # DLPack's number for the memory of the host


def through_dlpack(value: Any) -> Any:
    """Return an object that offers DLPack as a tensor of torch, or an array of NumPy without torch; without a copy."""
    if not hasattr(value, "__dlpack__"):
        return value
    try:
        try:
            import torch
        except ImportError:
            if value.__dlpack_device__()[0] != _CPU:
                raise
            import numpy

            return numpy.from_dlpack(value)
        return torch.from_dlpack(value)
    except Exception as error:  # of the library that owns it
        raise ArgumentError(
            "the array cannot be taken through DLPack",
            expected="an array that torch.from_dlpack accepts",
            got=f"{type(value).__module__}.{type(value).__name__}: {error}",
            remedy="Pass a torch tensor, or an object with data_ptr() and dtype.",
        ) from error


def check_array(value: Any) -> None:
    flags, dtype = value.flags, value.dtype
    if not (flags.c_contiguous and flags.writeable and dtype.byteorder in ("=", "|", "<")):
        raise ArgumentError(
            "NumPy arrays must be C-contiguous, writable and in native byte order",
            got=f"strides {value.strides} for shape {value.shape}, {dtype.str}, writeable={flags.writeable}",
            remedy='Pass a copy, numpy.array(x, x.dtype.newbyteorder("="), order="C"), or a torch tensor with its strides.',
        )


_OP = 'launch from a function under @gluon_core.torch.op("library::name", mutates_args=...)'


@functools.cache
def _is_traced(cls: Any) -> bool:
    """Return whether tensors of a class have a shape and no memory."""
    return any(base.__name__ in ("FakeTensor", "FunctionalTensor") for base in cls.__mro__)


def check_memory(value: Any) -> None:
    """Check that a tensor of torch has an address.

    Raises:
        TensorError: it stands for others, or its elements are not strided.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return
    cls: Any = type(value)
    if _is_traced(cls):
        raise TensorError(
            # Dynamo shows this sentence alone.
            "torch is tracing, and the tensor has a shape but no memory: launch in an op, and there with "
            "gluon_core.torch.launch(kernel, grid, ...), or give the op fake= or shape=",
            got=type(value).__name__,
            remedy=f"For torch.compile, torch.export and make_fx, {_OP}.",
        )
    if value.layout is not torch.strided:
        raise TensorError(
            "kernels take strided tensors",
            expected="torch.strided",
            got=str(value.layout),
            remedy="Pass its parts, such as x.values() and x.indices(), or x.to_dense().",
        )
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        raise TensorError(
            "torch.func (vmap, grad) is at work, and the tensor stands for others",
            remedy=f"For vmap and grad, {_OP} with vmap= and backward=.",
        )
    if hasattr(cls, "__tensor_flatten__"):
        raise TensorError(
            "the tensor is composed of others and has no memory of its own",
            got=type(value).__name__,
            remedy="Pass the tensors that it is made of; of a DTensor x.to_local(), or launch in an op with a sharding strategy.",
        )
