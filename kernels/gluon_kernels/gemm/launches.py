"""The launches of a product on Hopper: operands made fit for TMA, scratch memory, and the kernel that a tiling names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, NamedTuple, Optional

import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import LimitError
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_kernels.gemm.call import Call
from gluon_kernels.gemm.hopper import DTYPES, gemm, widths
from gluon_kernels.gemm.hopper_small_m import gemm_split_k
from gluon_kernels.gemm.hopper_stream_k import gemm_stream_k
from gluon_kernels.gemm.pad import Padding, pad
from gluon_kernels.gemm.tilings import Size, Tiling, choose, ranked
from gluon_kernels.plans import Counters, allocator, multiprocessors

__all__ = ["plan", "takes"]

Run = Callable[..., Any]
EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2)
_ROW = 16  # bytes that addresses and strides of TMA are multiples of


class Operand(NamedTuple):
    """A tensor as TMA reads it.

    Args:
        shape, strides: of [batch, rows, columns], columns contiguous.
        transposed: the rows are the columns of the matrix.
        padding: how it is copied first; None where TMA reads the tensor itself.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    transposed: bool
    padding: Optional[Padding] = None


def takes(call: Call) -> bool:
    """Return True if these kernels multiply such operands."""
    return call.a.dtype in (torch.float16, torch.bfloat16, *EIGHT)


def operand(matrix: torch.Tensor) -> Operand:
    """Return how TMA reads [rows, columns] or [batch, rows, columns]: as it is, transposed, or from a padded copy."""
    wide = matrix if matrix.ndim == 3 else matrix.unsqueeze(0)
    views = ((False, wide), (True, wide.mT))
    for transposed, view in views:
        strides = _strides(view)
        if strides is not None:
            return Operand(tuple(view.shape), strides, transposed)
    for transposed, view in views:
        if view.shape[2] == 1 or view.stride(2) == 1:
            padding = Padding(view)
            _, rows, pitch = padding.shape
            return Operand(tuple(view.shape), (rows * pitch, pitch, 1), transposed, padding)
    raise LookupError("columns or rows are contiguous")


def _strides(view: torch.Tensor) -> Optional[tuple[int, ...]]:
    """Return strides that TMA takes for `view`; None where it cannot read it."""
    batch, rows, columns = view.shape
    unit = _ROW // view.element_size()
    if view.data_ptr() % _ROW or (columns > 1 and view.stride(2) != 1):
        return None
    least = -(-columns // unit) * unit
    of_rows = view.stride(1) if rows > 1 else least
    of_batch = view.stride(0) if batch > 1 else rows * of_rows
    if of_rows % unit or of_batch % unit or of_rows < columns or of_batch <= 0:
        return None
    return of_batch, of_rows, 1


def has_contiguous_side(matrix: torch.Tensor) -> bool:
    return any(
        stride == 1 or size == 1 for stride, size in zip(matrix.stride()[-2:], matrix.shape[-2:])
    )


def _descriptor(base: torch.Tensor, of: Operand, block: tuple[int, int]) -> Any:
    layout = gl.NVMMASharedLayout.get_default_for(
        [1, *block], DTYPES[str(base.dtype).rpartition(".")[2]]
    )
    return TensorDescriptor(base, list(of.shape), list(of.strides), [1, *block], layout)


def plan(call: Call, out: Optional[torch.Tensor], tiling: Optional[Tiling] = None) -> Run:
    """Return `run(a, b, bias, out) -> result`, which allocates the result where `out` is None.

    Args:
        call: the product that the plan is for, and others with tensors of the same form.
        out: a result of this form; None for a new one.
        tiling: of TILINGS; the chosen one by default.
    """
    if not (has_contiguous_side(call.a) and has_contiguous_side(call.b)):
        return _contiguous(call, out, tiling)
    left, right = operand(call.a), operand(call.b)
    size = Size(
        call.batch, call.m, call.n, call.k, call.a.element_size() * 8,
        call.out_dtype.itemsize * 8, (left.transposed, right.transposed), multiprocessors(call.a),
    )  # fmt: skip
    if tiling is None:
        return _first_that_fits(call, out, size)
    empty = allocator(call.shape, call.out_dtype, call.a.device)
    result = empty() if out is None else out
    if (
        result.stride(-1) != 1
        and call.n > 1
        and (result.stride(-2) != 1 or tiling.kernel == "split_k")
    ):
        return _through(plan(call, None, tiling))
    paddings = (left.padding, right.padding)
    a, b, padded = call.a, call.b, None
    if paddings != (None, None):
        padded = pad(a, b, paddings)
        a, b = padded(a, b)
    if tiling.kernel == "split_k":
        launch = _split_k(call, tiling, (a, b, result), (left, right))
    else:
        launch = _persistent(call, tiling, size, (a, b, result), (left, right))

    def run(
        a: torch.Tensor, b: torch.Tensor, bias: Any, out: Any, *scales: torch.Tensor
    ) -> torch.Tensor:
        result: torch.Tensor = empty() if out is None else out
        launch(a, b, bias, result, *scales)
        return result

    if padded is None:
        return run
    both = padded

    def run_padded(
        a: torch.Tensor, b: torch.Tensor, bias: Any, out: Any, *scales: torch.Tensor
    ) -> torch.Tensor:
        a, b = both(a, b)
        return run(a, b, bias, out, *scales)

    return run_padded


def _first_that_fits(call: Call, out: Optional[torch.Tensor], size: Size) -> Run:
    """Return the plan of the best tiling whose compiled kernel has enough shared memory."""
    tilings = _of_eight_bits(size) if size.bits == 8 else [choose(size), *ranked(size)[1:]]
    for tiling in tilings[:-1]:
        try:
            return plan(call, out, tiling)
        except LimitError:  # conversions of layouts take what the compiler decides
            continue
    return plan(call, out, tilings[-1])


def _of_eight_bits(size: Size) -> list[Tiling]:
    """Return the tilings of half as many elements of 16 bits along K, which are as many bytes."""
    half = replace(size, k=gluon.cdiv(size.k, 2), bits=16)
    blocks = ((tiling, tiling.block) for tiling in ranked(half, persistent=True))
    return [replace(tiling, block=(m, n, 2 * k)) for tiling, (m, n, k) in blocks]


def _through(run: Run) -> Run:
    """Return a plan that stores a contiguous result and copies it into the one of the call."""

    def through(a: torch.Tensor, b: torch.Tensor, bias: Optional[torch.Tensor], out: torch.Tensor) -> Any:  # fmt: skip
        return out.copy_(run(a, b, bias, None))

    return through


def _contiguous(call: Call, out: Optional[torch.Tensor], tiling: Optional[Tiling]) -> Run:
    """Return a plan that copies operands of which neither rows nor columns are contiguous."""
    plain = [has_contiguous_side(x) for x in (call.a, call.b)]
    a, b = (x if good else x.contiguous() for x, good in zip((call.a, call.b), plain))
    run = plan(replace(call, a=a, b=b), out, tiling)

    def copied(a: torch.Tensor, b: torch.Tensor, bias: Any, out: Any) -> Any:
        a, b = (x if good else x.contiguous() for x, good in zip((a, b), plain))
        return run(a, b, bias, out)

    return copied


def _vector(c: torch.Tensor, *extents: int) -> int:
    """Return how many elements of the result one store can take: a divisor of `extents`."""
    for vector in (8, 4, 2):
        if c.data_ptr() % min(_ROW, vector * c.element_size()) == 0:
            if not any(extent % vector for extent in extents):
                return vector
    return 1


Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _persistent(
    call: Call, tiling: Tiling, size: Size, tensors: Tensors, operands: tuple[Operand, Operand]
) -> Callable[..., None]:
    a, b, c = tensors
    left, right = operands
    rows, columns = call.m, call.n
    by_rows = c.stride(-1) == 1 or call.n == 1
    if tiling.swapped:  # B transposed by A transposed
        a, b, left, right, rows, columns = b, a, right, left, columns, rows
    flipped = (left.transposed != tiling.swapped, right.transposed != tiling.swapped)
    m, n, k = tiling.block
    share = m // max(1, tiling.groups)
    stored = "rows" if by_rows != tiling.swapped else "columns"
    strides = c.stride() if c.ndim == 3 else (0, *c.stride())
    along = strides[1] if by_rows else strides[2]
    across = call.n if by_rows else call.m
    unit = _ROW // c.element_size()
    vector = _vector(c, across, along, strides[0] if call.batch > 1 else 0)
    descriptors: tuple[Any, ...] = ()
    fitting = strides[1] % unit == strides[0] % unit == 0 and c.data_ptr() % _ROW == 0
    if stored == "rows" and by_rows and fitting and (call.m == 1 or strides[1] >= call.n):
        stored = "tma"
        shape = (call.batch, call.m, call.n)
        of_rows = strides[1] if call.m > 1 else -(-call.n // unit) * unit
        of_batch = strides[0] if call.batch > 1 else call.m * of_rows
        of_c = Operand(shape, (of_batch, of_rows, 1), False)
        box = tiling.box(size) // c.element_size()
        descriptors = tuple(_descriptor(c, of_c, (share, min(box, w))) for w in widths(n))
    scales = call.scales if by_rows else call.scales[::-1]  # of the contiguous side last
    forms = (stored, vector, flipped, call.activation)
    arguments: tuple[Any, ...] = (
        _descriptor(a, left, (k, share) if flipped[0] else (share, k)),
        tuple(_descriptor(b, right, (w, k) if flipped[1] else (k, w)) for w in widths(n)),
        c, descriptors, strides[0] if call.batch > 1 else 0, along, call.bias, scales,
        call.batch, rows, columns, call.k,
    )  # fmt: skip
    tensors = (b, a, c) if tiling.swapped else (a, b, c)
    tensors = (*tensors[:2], call.bias, c, *_given(call.scales))
    if tiling.kernel == "stream_k":
        return _stream_k(arguments, tensors, tiling, size, forms)
    arguments += (m, n, k, tiling.stages, tiling.walk, tiling.groups, *forms)
    grid = (min(tiling.tiles(size), size.processors),)
    launch: Callable[..., None] = gluon.torch.prepare(gemm, grid, arguments, tensors, num_warps=4)
    return launch


def _stream_k(
    arguments: tuple[Any, ...], tensors: tuple[Any, ...], tiling: Tiling, size: Size, forms: tuple[Any, ...]
) -> Callable[..., None]:  # fmt: skip
    m, n, k = tiling.block
    programs = min(size.processors, tiling.tiles(size) * gluon.cdiv(size.k, k))
    shape, device = (programs, m, n), tensors[0].device
    empty, counters = allocator(shape, torch.float32, device), Counters(2 * programs)
    parts, signals = empty(), counters(device)
    arguments += (parts, signals, tiling.shared_tiles(size), m, n, k, tiling.stages, tiling.walk)
    launch = gluon.torch.prepare(
        gemm_stream_k, (programs,), (*arguments, *forms), (*tensors, parts, signals), num_warps=4
    )
    return lambda *tensors: launch(*tensors, empty(), counters(device))


def _given(scales: tuple[Optional[torch.Tensor], ...]) -> tuple[torch.Tensor, ...]:
    return tuple(scale for scale in scales if scale is not None)


def _split_k(
    call: Call, tiling: Tiling, tensors: Tensors, operands: tuple[Operand, Operand]
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
    vector = _vector(c, call.n, strides[1], strides[0])
    arguments = (
        _descriptor(a, left, (k, m) if left.transposed else (m, k)),
        _descriptor(b, right, (n, k) if right.transposed else (k, n)),
        c, sums, count, call.bias,
        call.m, call.n, call.k, strides[0], strides[1], across,
        m, n, k, tiling.stages, splits, vector, (left.transposed, right.transposed), call.activation,
    )  # fmt: skip
    launch = gluon.torch.prepare(
        gemm_split_k, (splits, tiles, call.batch), arguments, (a, b, call.bias, c, sums, count),
        num_warps=4,
    )  # fmt: skip
    device = c.device
    if splits == 1:
        return lambda a, b, bias, out: launch(a, b, bias, out, sums, count)

    empty = allocator(shape, torch.float32, device)

    def parts(a: torch.Tensor, b: torch.Tensor, bias: Any, out: torch.Tensor) -> None:
        launch(a, b, bias, out, empty(), counters(device))

    return parts
