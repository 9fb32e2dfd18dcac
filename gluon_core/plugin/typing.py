"""How the operands of ops are annotated: what kernels may pass, by when it must be known."""

from __future__ import annotations

from typing import Any, Callable, Sequence, Union

from gluon_core._triton import constexpr, dtype, tensor, tl_tuple
from gluon_core.layouts.base import DistributedLayout, SharedLayout

__all__ = [
    "BufferLayout",
    "ConstBool",
    "ConstFloat",
    "ConstInt",
    "ConstStr",
    "Dtype",
    "Int",
    "KernelFunction",
    "Operand",
    "Predicate",
    "RegisterLayout",
    "Scalar",
    "Shape",
    "Values",
]

# Known while the kernel is traced.
ConstInt = Union[int, constexpr]
ConstBool = Union[bool, constexpr]
ConstStr = Union[str, constexpr]
ConstFloat = Union[float, constexpr]
Dtype = Union[dtype, constexpr]
Shape = Union[Sequence[ConstInt], tl_tuple, constexpr]
RegisterLayout = Union[DistributedLayout, constexpr]  # of a tensor
BufferLayout = Union[SharedLayout, constexpr]  # of shared memory
KernelFunction = Callable[..., Any]  # decorated with @gluon.jit

# Known when it runs, or before.
Int = Union[int, constexpr, tensor]  # one integer
Predicate = Union[bool, constexpr, tensor]  # one boolean
Scalar = Union[bool, int, float, constexpr, tensor]  # one number
Operand = Union[tensor, int, float, bool, constexpr]  # a tensor, or a number that becomes one
Values = Union[Sequence[Any], tl_tuple]  # several values, in a Python sequence or a kernel's tuple
