"""The checked arguments of a product, and the shape of its result; no kernel is known here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch

from gluon_core.errors import ArgumentError, DtypeError, ShapeError, did_you_mean
from gluon_kernels.checks import (
    FLOATS,
    check_devices,
    check_dtypes,
    check_names,
    check_out,
    check_tensors,
)

__all__ = [
    "ACTIVATIONS",
    "Call",
    "checked",
    "result_dtype",
    "result_shape",
]

ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh")


@dataclass(frozen=True)
class Call:
    """A product of matrices, side by side in a batch: [batch, M, K] by [batch, K, N]."""

    a: torch.Tensor
    b: torch.Tensor
    bias: Optional[torch.Tensor]
    activation: Optional[str]
    out_dtype: torch.dtype
    batch: int
    m: int
    n: int
    k: int
    scales: tuple[Optional[torch.Tensor], Optional[torch.Tensor]] = (
        None,
        None,
    )  # of rows, of columns

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the result."""
        return (self.m, self.n) if self.a.ndim == 2 else (self.batch, self.m, self.n)

    @property
    def empty(self) -> bool:
        """Return True if there is nothing to multiply."""
        return min(self.batch, self.m, self.n, self.k) == 0


def result_shape(a: torch.Tensor, b: torch.Tensor, op: str) -> tuple[int, ...]:
    """Return the shape of `a @ b`, both with two dimensions, or both with three.

    Raises:
        ShapeError: the dimensions or sizes do not fit each other.
    """
    if a.ndim != b.ndim or a.ndim not in (2, 3):
        raise ShapeError(
            f"{op} multiplies matrices or batches of matrices",
            argument="a, b",
            expected="two or three dimensions, the same number in both",
            got=f"{list(a.shape)} and {list(b.shape)}",
        )
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            "the inner dimensions of a and b differ",
            argument="b",
            expected=f"{a.shape[-1]} rows",
            got=list(b.shape),
            remedy="Pass b.mT if b is stored as [N, K]." if a.shape[-1] == b.shape[-1] else None,
        )
    if a.ndim == 3 and a.shape[0] != b.shape[0]:
        raise ShapeError(
            "the batch sizes of a and b differ",
            argument="b",
            expected=f"{a.shape[0]} matrices",
            got=b.shape[0],
        )
    return (*a.shape[:-1], b.shape[-1])


def result_dtype(a: torch.Tensor, out_dtype: Optional[torch.dtype]) -> torch.dtype:
    """Return the dtype of a result.

    Raises:
        DtypeError: a result of `out_dtype` is not offered for these operands.
    """
    if out_dtype is None or out_dtype == a.dtype:
        return a.dtype
    if a.dtype not in FLOATS or out_dtype not in FLOATS:
        raise DtypeError(
            "these operands cannot give this dtype",
            argument="out_dtype",
            expected="float16, bfloat16 or float32",
            got=str(out_dtype),
        )
    return out_dtype


def checked(
    op: str,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: Optional[torch.Tensor],
    activation: Optional[str],
    out_dtype: Optional[torch.dtype],
    out: Optional[torch.Tensor] = None,
) -> Call:
    """Check the arguments of a product.

    Raises:
        ShapeError, DtypeError, ArgumentError: they do not fit each other, or no kernel takes them.
    """
    check_tensors(op, {"bias": bias, "out": out}, a=a, b=b)
    shape = result_shape(a, b, op)
    if a.dtype != b.dtype or a.dtype not in FLOATS:
        raise DtypeError(
            f"{op} takes two operands of the same floating-point dtype",
            argument="a, b",
            expected="float16, bfloat16 or float32",
            got=f"{a.dtype} and {b.dtype}",
            remedy="8-bit floats: matmul_fp8.",
        )
    dtype = result_dtype(a, out_dtype)
    check_bias(bias, shape[-1])
    check_activation(activation)
    check_devices(a, b=b, bias=bias, out=out)
    if out is not None:
        check_out(out, shape, dtype)
    batch = a.shape[0] if a.ndim == 3 else 1
    m, k = a.shape[-2:]
    return Call(a, b, bias, activation, dtype, batch, m, b.shape[-1], k)


def check_activation(activation: Optional[str]) -> None:
    """Check the name of an activation.

    Raises:
        ArgumentError: there is none of this name.
    """
    if activation is not None and activation not in ACTIVATIONS:
        raise ArgumentError(
            "unknown activation",
            argument="activation",
            expected=", ".join(ACTIVATIONS),
            got=repr(activation),
            remedy=did_you_mean(activation, ACTIVATIONS) or None,
        )


def check_settings(activation: Any, out_dtype: Any) -> None:
    """Check the types of arguments that are no tensors.

    Raises:
        ArgumentError: one is of another type.
    """
    check_names(activation=activation)
    check_dtypes(out_dtype=out_dtype)


def check_bias(bias: Optional[torch.Tensor], columns: int) -> None:
    """Check a bias of so many columns.

    Raises:
        ShapeError, DtypeError: it is no vector of them.
    """
    if bias is None:
        return
    if tuple(bias.shape) != (columns,):
        raise ShapeError(
            "the bias must be a vector with one element for each column",
            argument="bias",
            expected=[columns],
            got=list(bias.shape),
        )
    if bias.dtype not in FLOATS:
        raise DtypeError(
            "the bias must be floating-point",
            argument="bias",
            expected="float16, bfloat16 or float32",
            got=str(bias.dtype),
        )
