"""Tensors as rows: the last dimension, and how far apart the rows lie."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels.eager import check_tensors
from gluon_kernels.gemm.call import shares_memory

__all__ = [
    "FLOATS",
    "Rows",
    "check_apart",
    "check_dtype",
    "check_out",
    "check_same_device",
    "check_vector",
    "common_align",
]

FARTHEST = 1 << 23  # elements between the rows of a program, of which it has up to 256
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def as_it_is(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor."""
    return x


@dataclass(frozen=True)
class Rows:
    """A tensor whose last dimension is seen as rows. Plans keep `read` of it, not the tensor with its memory and its graph of gradients.

    Args:
        tensor: as a kernel may read it.
        copied: `tensor` is a copy, since rows do not have one stride, or elements are apart.
        stride: elements from row to row.
        align: power of two that stride and width are multiples of; 1 where the address is not divisible by 16.
    """

    tensor: torch.Tensor
    copied: bool
    count: int
    columns: int
    stride: int
    align: int

    @property
    def read(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return `f(x)`, which returns a tensor like this one as a kernel may read it."""
        return torch.Tensor.contiguous if self.copied else as_it_is

    @classmethod
    def of(cls, x: torch.Tensor) -> Rows:
        columns = x.shape[-1]
        count = math.prod(x.shape[:-1])
        stride = _row_stride(x)
        if stride is not None and count > 1 and stride > max(columns, FARTHEST):
            stride = None  # offsets within the rows of a program have 32 bits
        copied = stride is None
        if stride is None:
            x, stride = x.contiguous(), columns
        align = 1 if x.data_ptr() & 15 else _power(stride, columns)
        return cls(x, copied, count, columns, stride, align)


def _power(*numbers: int) -> int:
    """Return the largest power of two, at most 16, that divides all."""
    power = 16
    for number in numbers:
        while number % power:
            power //= 2
    return power


def common_align(*rows: Rows) -> int:
    """Return the alignment that all have."""
    return min(row.align for row in rows)


def _row_stride(x: torch.Tensor) -> Optional[int]:
    """Return the stride of rows; None where there is no single one or elements are not side by side."""
    columns = x.shape[-1]
    if columns > 1 and x.stride(-1) != 1:
        return None
    stride: Optional[int] = None
    covered = 0  # stride * rows so far
    for size, step in zip(reversed(x.shape[:-1]), reversed(x.stride()[:-1])):
        if size == 1:
            continue
        if stride is None:
            stride, covered = step, step * size
        elif step != covered:
            return None
        else:
            covered *= size
    return columns if stride is None else stride


def check_dtype(op: str, x: Any, name: str = "x") -> None:
    """Check that `x` is a tensor of floats with a last dimension.

    Raises:
        DtypeError, ShapeError: it is not.
    """
    check_tensors(op, **{name: x})
    if x.dtype not in FLOATS:
        raise DtypeError(
            f"{op} takes floating-point numbers",
            argument=name,
            expected="float16, bfloat16 or float32",
            got=str(x.dtype),
            remedy="Convert it: x.float()." if not x.is_complex() else None,
        )
    if x.ndim == 0:
        raise ShapeError(f"{op} needs at least one dimension", argument=name, got="[]")


def check_same_device(x: torch.Tensor, **others: Optional[torch.Tensor]) -> None:
    """Check that all tensors are on the device of `x`.

    Raises:
        ArgumentError: one is not.
    """
    for name, other in others.items():
        if other is not None and other.device != x.device:
            raise ArgumentError(
                "the tensors are on different devices",
                argument=name,
                expected=str(x.device),
                got=str(other.device),
            )


def check_vector(name: str, vector: Optional[torch.Tensor], columns: int) -> None:
    """Check a vector that all rows share.

    Raises:
        DtypeError, ShapeError: another dtype or size.
    """
    if vector is None:
        return
    check_dtype("a norm", vector, name)
    if tuple(vector.shape) != (columns,):
        raise ShapeError(
            "expected a vector with one element for each column",
            argument=name,
            expected=[columns],
            got=list(vector.shape),
        )


def check_out(out: torch.Tensor, shape: Any, dtype: torch.dtype, *inputs: Any) -> None:
    """Check a tensor that a result is stored to.

    Raises:
        ShapeError, DtypeError: another shape or dtype.
        ArgumentError: a gradient is wanted, or elements of it share memory.
    """
    if tuple(out.shape) != tuple(shape):
        raise ShapeError(
            "out has the wrong shape", argument="out", expected=list(shape), got=list(out.shape)
        )
    if out.dtype != dtype:
        raise DtypeError(
            "out has the wrong dtype", argument="out", expected=str(dtype), got=str(out.dtype)
        )
    if any(size > 1 and step == 0 for size, step in zip(out.shape, out.stride())):
        raise ArgumentError(
            "the elements of out share memory",
            argument="out",
            expected="a tensor that is not expanded",
            got=f"strides {list(out.stride())}",
        )
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (out, *inputs)):
        raise ArgumentError(
            "out= does not support gradients",
            argument="out",
            remedy="Drop out=, or call under torch.no_grad().",
        )


def check_apart(out: torch.Tensor, in_place: Optional[str] = None, **inputs: Any) -> None:
    """Check that a result overwrites no input, but for the one that it may be.

    Args:
        in_place: the name of an input that `out` may be, as a whole.

    Raises:
        ArgumentError: they share memory.
    """
    for name, x in inputs.items():
        if x is None or not shares_memory(out, x):
            continue
        same = out.data_ptr() == x.data_ptr() and out.stride() == x.stride()
        if name == in_place and same and out.dtype == x.dtype:
            continue
        raise ArgumentError(
            "out shares memory with an input",
            argument="out",
            expected=f"memory that {name} does not share",
            got="the same memory",
            remedy="Pass another tensor as out=, or omit it.",
        )
