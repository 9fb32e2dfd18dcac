"""Tensors as rows: the last dimension, and how far apart the rows lie."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Optional

import torch

from gluon_core.errors import ShapeError
from gluon_kernels.checks import check_dtype

__all__ = [
    "Rows",
    "check_vector",
    "common_align",
]

FARTHEST = 1 << 23  # elements between the rows of a program, of which it has up to 256


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
