"""Annotations of the operands of ops: values that kernels may pass, by when they must be known."""

from __future__ import annotations

from typing import Any, Callable, Sequence, TypeVar, Union

from gluon_core._triton import constexpr, dtype, tensor, tl_tuple
from gluon_core.layouts.base import DistributedLayout, SharedLayout

__all__ = [
    "BufferLayout", "Const", "Dtype", "KernelFunction", "Operand", "RegisterLayout", "Scalar",
    "Shape", "Values",
]  # fmt: skip

T = TypeVar("T")

# Known while the kernel is traced.
Const = Union[T, constexpr]  # such as `Const[int]`
Dtype = Const[dtype]
Shape = Union[Sequence[Const[int]], tl_tuple, constexpr]
RegisterLayout = Const[DistributedLayout]  # of a tensor
BufferLayout = Const[SharedLayout]  # of shared memory
KernelFunction = Callable[..., Any]  # decorated with @gluon.jit

# Known when it runs, or before.
Scalar = Union[
    T, constexpr, tensor
]  # one number, such as `Scalar[int]`; a predicate is a `Scalar[bool]`
Operand = Union[tensor, int, float, bool, constexpr]  # a tensor, or a number that becomes one
Values = Union[Sequence[Any], tl_tuple]  # several values, in a Python sequence or a kernel's tuple
