"""The launches of a product on Hopper: operands made fit for TMA, scratch memory, and the kernel that a tiling names."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_kernels.gemm.call import Call
from gluon_kernels.gemm.hopper import DTYPES, gemm, split, widths
from gluon_kernels.gemm.hopper_small_m import gemm_split_k
from gluon_kernels.gemm.tilings import Size, Tiling, choose
from gluon_kernels.plans import Counters, Launch, multiprocessors

__all__ = ["plan", "takes"]

Run = Callable[..., Any]
_ROW = 16  # bytes that addresses and strides of TMA are multiples of


class Operand(NamedTuple):
    """A tensor as TMA reads it.

    Args:
        shape, strides: of [batch, rows, columns], columns contiguous.
        transposed: the rows are the columns of the matrix.
        copy: makes such a tensor of the operand of a call; None where it is one.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    transposed: bool
    copy: Optional[Callable[[torch.Tensor], torch.Tensor]] = None


def takes(call: Call) -> bool:
    """Return True if these kernels multiply such operands."""
    return call.a.dtype in (torch.float16, torch.bfloat16)


def operand(matrix: torch.Tensor) -> Operand:
    """Return how TMA reads [rows, columns] or [batch, rows, columns]: as it is, transposed, or from a padded copy."""
    wide = matrix if matrix.ndim == 3 else matrix.unsqueeze(0)
    for transposed in (False, True):
        view = wide.mT if transposed else wide
        strides = _strides(view)
        if strides is not None:
            return Operand(tuple(view.shape), strides, transposed)
    batch, rows, columns = wide.shape
    unit = _ROW // matrix.element_size()
    pitch = -(-columns // unit) * unit

    def copy(given: torch.Tensor) -> torch.Tensor:
        padded = torch.empty((batch, rows, pitch), dtype=given.dtype, device=given.device)
        fitting = padded[:, :, :columns]
        fitting.copy_(given if given.ndim == 3 else given.unsqueeze(0))
        return fitting

    return Operand(tuple(wide.shape), (rows * pitch, pitch, 1), False, copy)


def _strides(view: torch.Tensor) -> Optional[tuple[int, ...]]:
    """Return strides that TMA takes for `view`; None where it cannot read it."""
    batch, rows, columns = view.shape
    unit = _ROW // view.element_size()
    if view.data_ptr() % _ROW or (columns > 1 and view.stride(2) != 1):
        return None
    least = -(-columns // unit) * unit
    of_rows = view.stride(1) if rows > 1 else least
    of_batch = view.stride(0) if batch > 1 else rows * of_rows
    if of_rows % unit or of_batch % unit or of_rows < least or of_batch <= 0:
        return None
    return of_batch, of_rows, 1


def _descriptor(
    base: torch.Tensor,
    of: Operand,
    block: tuple[int, int],
    ctas: int = 1,
    dim: Optional[int] = None,
) -> Any:
    layout = gl.NVMMASharedLayout.get_default_for(
        [1, *block], DTYPES[str(base.dtype).rpartition(".")[2]], cga_layout=split(ctas, dim)
    )
    return TensorDescriptor(base, list(of.shape), list(of.strides), [1, *block], layout)


def plan(call: Call, out: Optional[torch.Tensor], tiling: Optional[Tiling] = None) -> Run:
    """Return `run(a, b, bias, out) -> result`, which allocates the result where `out` is None.

    Args:
        call: the product that the plan is for, and others with tensors of the same form.
        out: a result of this form; None for a new one.
        tiling: of TILINGS; the chosen one by default.
    """
    left, right = operand(call.a), operand(call.b)
    size = Size(
        call.batch, call.m, call.n, call.k, call.a.element_size() * 8,
        call.out_dtype.itemsize * 8, (left.transposed, right.transposed), multiprocessors(call.a),
    )  # fmt: skip
    tiling = tiling or choose(size)
    build = _split_k if tiling.kernel == "split_k" else _persistent
    result = call.a.new_empty(call.shape, dtype=call.out_dtype) if out is None else out
    a = call.a if left.copy is None else left.copy(call.a)
    b = call.b if right.copy is None else right.copy(call.b)
    launch = build(call, tiling, (a, b, result), (left, right), size.processors)
    copies = (left.copy, right.copy)
    shape, dtype, device = call.shape, call.out_dtype, call.a.device
    empty = torch.empty
    if copies == (None, None):

        def run(
            a: torch.Tensor,
            b: torch.Tensor,
            bias: Optional[torch.Tensor],
            out: Optional[torch.Tensor],
        ) -> torch.Tensor:
            if out is None:
                out = empty(shape, dtype=dtype, device=device)
            launch(a, b, bias, out)
            return out

        return run

    def copied(
        a: torch.Tensor, b: torch.Tensor, bias: Optional[torch.Tensor], out: Optional[torch.Tensor]
    ) -> torch.Tensor:
        if out is None:
            out = empty(shape, dtype=dtype, device=device)
        a = a if copies[0] is None else copies[0](a)
        b = b if copies[1] is None else copies[1](b)
        launch(a, b, bias, out)
        return out

    return copied


Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _persistent(
    call: Call, tiling: Tiling, tensors: Tensors, operands: tuple[Operand, Operand], processors: int
) -> Callable[..., None]:
    (a, b, c), (left, right) = tensors, operands
    m, n, k = tiling.block
    pingpong = tiling.kernel == "pingpong"
    tiles = gluon.cdiv(call.m, m) * gluon.cdiv(call.n, n) * call.batch
    result = operand(c)
    through = result.copy is not None or result.transposed  # the result is stored elsewhere first
    if through:
        unit = _ROW // c.element_size()
        pitch = -(-call.n // unit) * unit
        base = c.new_empty((call.batch, call.m, pitch))
        strides = (call.m * pitch, pitch, 1)
        result = Operand((call.batch, call.m, call.n), strides, False)
    else:
        base = c
    box = 128 // c.element_size()
    columns = [
        _descriptor(b, right, (width, k) if right.transposed else (k, width)) for width in widths(n)
    ]
    arguments = (
        _descriptor(a, left, (k, m) if left.transposed else (m, k)),
        tuple(columns),
        _descriptor(base, result, (m if pingpong else m // 2, box)),
        call.bias,
        call.batch, call.m, call.n, call.k,
        m, n, k, tiling.stages, tiling.group, 1, pingpong,
        (left.transposed, right.transposed), call.activation,
    )  # fmt: skip
    grid = (min(tiles, processors),)
    launch = Launch(gemm, grid, arguments, (a, b, call.bias, base), num_warps=4)
    if not through:
        return launch
    shape, dtype, device = tuple(base.shape), base.dtype, base.device
    wanted, n_columns = tuple(c.shape), call.n

    def padded(
        a: torch.Tensor, b: torch.Tensor, bias: Optional[torch.Tensor], out: torch.Tensor
    ) -> None:
        own = torch.empty(shape, dtype=dtype, device=device)
        launch(a, b, bias, own)
        out.copy_(own[:, :, :n_columns].reshape(wanted))

    return padded


def _split_k(
    call: Call, tiling: Tiling, tensors: Tensors, operands: tuple[Operand, Operand], processors: int
) -> Callable[..., None]:
    (a, b, c), (left, right) = tensors, operands
    m, n, k = tiling.block
    across = gluon.cdiv(call.n, n)
    tiles = across * gluon.cdiv(call.m, m)
    splits = tiling.splits
    shape = (call.batch * tiles, splits, m, n) if splits > 1 else (1,)
    sums = torch.empty(shape, dtype=torch.float32, device=c.device)
    counters = Counters(call.batch * tiles if splits > 1 else 1)
    count = counters(c.device)
    strides = (0, *c.stride()) if c.ndim == 2 else c.stride()
    through = call.n > 1 and strides[2] != 1
    if through:
        strides = (call.m * call.n, call.n, 1)
    aligned = call.n % 8 == strides[1] % 8 == 0
    arguments = (
        _descriptor(a, left, (k, m) if left.transposed else (m, k)),
        _descriptor(b, right, (n, k) if right.transposed else (k, n)),
        c, sums, count, call.bias,
        call.m, call.n, call.k, strides[0], strides[1], across,
        m, n, k, tiling.stages, splits, aligned, (left.transposed, right.transposed), call.activation,
    )  # fmt: skip
    launch = Launch(
        gemm_split_k, (splits, tiles, call.batch), arguments, (a, b, call.bias, c, sums, count),
        num_warps=tiling.num_warps,
    )  # fmt: skip
    device = c.device
    if splits == 1 and not through:

        def whole(
            a: torch.Tensor, b: torch.Tensor, bias: Optional[torch.Tensor], out: torch.Tensor
        ) -> None:
            launch(a, b, bias, out, sums, count)

        return whole

    def parts(
        a: torch.Tensor, b: torch.Tensor, bias: Optional[torch.Tensor], out: torch.Tensor
    ) -> None:
        own = torch.empty(out.shape, dtype=out.dtype, device=device) if through else out
        left = torch.empty(shape, dtype=torch.float32, device=device)
        launch(a, b, bias, own, left, counters(device))
        if through:
            out.copy_(own)

    return parts
