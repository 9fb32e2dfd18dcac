"""Checks of operators' arguments: each raises the error that names the argument, what it takes and what it got."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor

from gluon_core.errors import ArgumentError, DtypeError, ShapeError

__all__ = [
    "FLOATS",
    "HALVES",
    "check_apart",
    "check_contiguous",
    "check_devices",
    "check_dtype",
    "check_dtypes",
    "check_entries",
    "check_flags",
    "check_floats",
    "check_integers",
    "check_names",
    "check_no_gradients",
    "check_numbers",
    "check_one_dtype",
    "check_out",
    "check_pages",
    "check_query_heads",
    "check_tensors",
    "shares_memory",
]

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)


def _listed(dtypes: Sequence[torch.dtype]) -> str:
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def check_tensors(op: str, optional: Optional[dict[str, Any]] = None, /, **tensors: Any) -> None:
    """Check that arguments are dense tensors; those of `optional` may be None.

    Raises:
        DtypeError: one is no tensor.
        ArgumentError: one is sparse, nested, or of another layout without strides.
    """
    present = {name: x for name, x in (optional or {}).items() if x is not None}
    for name, x in {**tensors, **present}.items():
        if not isinstance(x, Tensor):
            raise DtypeError(
                f"{op} takes tensors",
                argument=name,
                expected="a torch.Tensor",
                got=type(x).__name__,
            )
        if x.layout is not torch.strided or x.is_nested:
            raise ArgumentError(
                f"{op} takes dense tensors",
                argument=name,
                expected="layout torch.strided",
                got="a nested tensor" if x.is_nested else f"layout {x.layout}",
                remedy=f"Pad it: torch.nested.to_padded_tensor({name}, 0)." if x.is_nested else f"Convert it: {name}.to_dense().",
            )  # fmt: skip


def _check_kinds(expected: str, kinds: tuple[type, ...], values: dict[str, Any]) -> None:
    for name, value in values.items():
        if not isinstance(value, kinds):
            raise ArgumentError(
                "the argument has the wrong type",
                argument=name,
                expected=expected,
                got=f"{value!r} ({type(value).__name__})",
            )


def check_numbers(**values: Any) -> None:
    """Check that arguments are real numbers, or tensors of one.

    Raises:
        ArgumentError: one is not.
    """
    _check_kinds("a number", (Real, torch.SymInt, torch.SymFloat, Tensor), values)


def check_integers(**values: Any) -> None:
    """Check that arguments are integers.

    Raises:
        ArgumentError: one is not.
    """
    _check_kinds("an integer", (Integral, torch.SymInt), values)


def check_flags(**values: Any) -> None:
    """Check that arguments are True or False.

    Raises:
        ArgumentError: one is not.
    """
    _check_kinds("True or False", (int, torch.SymBool, torch.SymInt), values)


def check_names(**values: Any) -> None:
    """Check that arguments are strings or None.

    Raises:
        ArgumentError: one is not.
    """
    _check_kinds("a string", (str, type(None)), values)


def check_dtypes(**values: Any) -> None:
    """Check that arguments are dtypes or None.

    Raises:
        ArgumentError: one is not.
    """
    _check_kinds("a torch.dtype", (torch.dtype, type(None)), values)


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
            expected=_listed(FLOATS),
            got=str(x.dtype),
            remedy="Convert it: x.float()." if not x.is_complex() else None,
        )
    if x.ndim == 0:
        raise ShapeError(
            f"{op} needs at least one dimension", argument=name, expected="[..., columns]", got="[]"
        )


def check_floats(message: str, **tensors: Optional[Tensor]) -> None:
    """Check that tensors have floating-point numbers of at most 32 bits.

    Raises:
        DtypeError: one has not; it says `message`.
    """
    for name, x in tensors.items():
        if x is not None and x.dtype not in FLOATS:
            raise DtypeError(message, argument=name, expected=_listed(FLOATS), got=str(x.dtype))


def check_one_dtype(op: str, dtypes: Sequence[torch.dtype], **tensors: Tensor) -> None:
    """Check that tensors have one dtype, of these.

    Raises:
        DtypeError: they have not.
    """
    (name, first), *rest = tensors.items()
    expected = _listed(dtypes)
    if first.dtype in dtypes:
        expected = f"{first.dtype} as {name} has".removeprefix("torch.")
        rest = [(other, x) for other, x in rest if x.dtype != first.dtype]
        if not rest:
            return
        name, first = rest[0]
    kind = "16-bit" if dtypes == HALVES else "floating-point"
    raise DtypeError(
        f"{op} takes tensors of one {kind} dtype",
        argument=name,
        expected=expected,
        got=str(first.dtype),
        remedy="Convert them: q.bfloat16().",
    )


def check_devices(first: Tensor, **others: Optional[Tensor]) -> None:
    """Check that tensors are on the device of the first.

    Raises:
        ArgumentError: one is not.
    """
    for name, other in others.items():
        if other is not None and other.device != first.device:
            raise ArgumentError(
                "the tensors are on different devices",
                argument=name,
                expected=str(first.device),
                got=str(other.device),
            )


def check_contiguous(**tensors: Tensor) -> None:
    """Check that tensors are dense, with their last dimension innermost.

    Raises:
        ArgumentError: one is not.
    """
    for name, x in tensors.items():
        if not x.is_contiguous():
            raise ArgumentError(
                "the tensor is read in place and must be contiguous",
                argument=name,
                expected="a contiguous tensor",
                got=f"strides {list(x.stride())}",
                remedy=f"Pass {name}.contiguous().",
            )


def check_query_heads(queries: int, keys: int) -> None:
    """Check that each head of keys `k` serves as many heads of queries.

    Raises:
        ShapeError: it does not.
    """
    if not keys or queries % keys:
        raise ShapeError(
            "the number of query heads must be a multiple of the number of key heads",
            argument="k",
            expected=f"a divisor of {queries} heads",
            got=keys,
        )


def check_entries(sequences: int, **tensors: tuple[Tensor, int]) -> None:
    """Check tensors of int32 with an entry for each sequence, and as many dimensions as come with them.

    Raises:
        DtypeError, ShapeError: they are something else.
    """
    for name, (x, rank) in tensors.items():
        if x.dtype != torch.int32:
            raise DtypeError(
                "expected int32 indices", argument=name, expected="int32", got=str(x.dtype)
            )
        if x.ndim != rank or x.shape[0] != sequences:
            raise ShapeError(
                "expected one entry for each sequence",
                argument=name,
                expected=[sequences, "pages"][:rank],
                got=list(x.shape),
            )


def check_pages(table: Tensor, lengths: Tensor, page: int, pages: Optional[int]) -> None:
    """Check the pages of sequences, where the host can read their numbers.

    Args:
        page: tokens of a page.
        pages: of the cache, None to check lengths alone.

    Raises:
        ArgumentError: a sequence is longer than its pages, or one of them is not in the cache.
    """
    if not lengths.is_cpu:
        return
    capacity = table.shape[1] * page
    longest = int(lengths.max()) if len(lengths) else 0
    if longest > capacity:
        raise ArgumentError(
            "a sequence is longer than its pages",
            argument="lengths",
            expected=f"at most {capacity}, {table.shape[1]} pages of {page} tokens",
            got=longest,
        )
    if pages is not None:
        used = torch.arange(table.shape[1]) * page < lengths[:, None]
        wrong = table[used & ((table < 0) | (table >= pages))]
        if len(wrong):
            raise ArgumentError(
                "the cache has no such page",
                argument="page_table",
                expected=f"0 to {pages - 1} for pages with tokens",
                got=int(wrong[0]),
            )


def check_out(out: Tensor, shape: Sequence[int], dtype: torch.dtype, *inputs: Any) -> None:
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
    check_no_gradients(out, *inputs)


def check_no_gradients(*tensors: Optional[Tensor]) -> None:
    """Check that a call with `out=` wants no gradient.

    Raises:
        ArgumentError: it does.
    """
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        raise ArgumentError(
            "out= does not support gradients",
            argument="out",
            remedy="Drop out=, or call under torch.no_grad().",
        )


def check_apart(out: Tensor, in_place: Optional[str] = None, **inputs: Optional[Tensor]) -> None:
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


_is_alias_of: Callable[[Tensor, Tensor], bool] = getattr(torch._C, "_is_alias_of", lambda one, other: True)  # fmt: skip


def shares_memory(one: Tensor, other: Tensor) -> bool:
    """Return True if tensors share elements; disjoint columns of one matrix do not."""
    if not _is_alias_of(one, other) or not one.numel() or not other.numel():
        return False
    (begin, end), (start, stop) = _span(one), _span(other)
    if end <= start or stop <= begin:
        return False
    pitch = one.stride(0) * one.element_size()
    if one.ndim == other.ndim == 2 and pitch == other.stride(0) * other.element_size() > 0:
        aside = one.stride(1) == other.stride(1) == 1
        widths = [x.shape[1] * x.element_size() for x in (one, other)]
        offset = (start - begin) % pitch
        return not (aside and widths[0] <= offset and offset + widths[1] <= pitch)
    return True


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor, and the one behind its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size()
