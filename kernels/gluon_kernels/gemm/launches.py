"""The launches of a product on Hopper: operands made fit for TMA, scratch memory, and the kernel that a tiling names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Iterator, NamedTuple, Optional

import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import CapabilityError, GluonError, LimitError
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_kernels.dependent import overlapping
from gluon_kernels.gemm.call import Call
from gluon_kernels.gemm.choice import choose, ranked
from gluon_kernels.gemm.epilogue import shared_columns
from gluon_kernels.gemm.hopper import DTYPES, boxes, gemm, widths
from gluon_kernels.gemm.hopper import split as cga
from gluon_kernels.gemm.hopper_cooperative_k import gemm_cooperative_k
from gluon_kernels.gemm.hopper_direct import gemm_direct
from gluon_kernels.gemm.hopper_small_m import gemm_split_k
from gluon_kernels.gemm.hopper_stream_k import gemm_stream_k
from gluon_kernels.gemm.pad import SECTOR, Padding, pad
from gluon_kernels.gemm.places import reciprocals
from gluon_kernels.gemm.tilings import IN_PARTS, Size, Tiling
from gluon_kernels.plans import Counters, Scratch, allocator, multiprocessors

__all__ = ["Operand", "describe", "operand", "plan", "split_scales", "takes", "vector_of"]

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


def operand(matrix: torch.Tensor, stored: tuple[bool, ...] = (False, True)) -> Operand:
    """Return how TMA reads [rows, columns] or [batch, rows, columns]: as it is, transposed, or from a padded copy.

    Args:
        stored: the forms that the matrix unit takes, transposed or not, the preferred one first.
    """
    wide = matrix if matrix.ndim == 3 else matrix.unsqueeze(0)
    views = [(transposed, wide.mT if transposed else wide) for transposed in stored]
    for transposed, view in views:
        strides = _strides(view)
        if strides is not None:
            return Operand(tuple(view.shape), strides, transposed)
    for transposed, view in views:
        if view.shape[2] == 1 or view.stride(2) == 1:
            return _padded(view, transposed)
    raise LookupError("columns or rows are contiguous")


def _padded(view: torch.Tensor, transposed: bool) -> Operand:
    padding = Padding(view)
    _, rows, pitch = padding.shape
    return Operand(tuple(view.shape), (rows * pitch, pitch, 1), transposed, padding)


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


Cluster = tuple[int, int]  # blocks, and how many of them divide the columns


def describe(
    base: torch.Tensor, of: Operand, block: tuple[int, int], cluster: Cluster = (1, 1),
    rows: Optional[int] = None, columns: Optional[int] = None,
) -> Any:  # fmt: skip
    """Return the descriptor of an operand for tiles of `block`, of which blocks of a cluster have parts along the dimensions, 0 or 1, that are the `rows` and the
    `columns` of the result."""
    dims = (None if dim is None else dim + 1 for dim in (rows, columns))
    layout = gl.NVMMASharedLayout.get_default_for(
        [1, *block], DTYPES[str(base.dtype).rpartition(".")[2]], cga_layout=cga(*cluster, *dims)
    )
    return TensorDescriptor(base, list(of.shape), list(of.strides), [1, *block], layout)


Operands = tuple[Operand, Operand]


def plan(
    call: Call, out: Optional[torch.Tensor], tiling: Optional[Tiling] = None, operands: Optional[Operands] = None
) -> Run:  # fmt: skip
    """Return `run(a, b, bias, out) -> result`, which allocates the result where `out` is None.

    Args:
        call: the product that the plan is for, and others with tensors of the same form.
        out: a result of this form; None for a new one.
        tiling: of TILINGS; the chosen one by default.
        operands: how they are read; as they are by default, or from copies if TMA cannot read them.
    """
    if not (has_contiguous_side(call.a) and has_contiguous_side(call.b)):
        return _contiguous(call, out, tiling)
    along_k = call.a.dtype in EIGHT  # the matrix unit reads 8-bit operands along K only
    left, right = operands or (
        operand(call.a, (False,) if along_k else (False, True)),
        operand(call.b, (True,) if along_k else (False, True)),
    )
    size = _size(call, (left, right))
    if tiling is None:
        return _first_that_fits(call, out, (left, right))
    empty = allocator(call.shape, call.out_dtype, call.a.device)
    result = empty() if out is None else out
    if (
        result.stride(-1) != 1
        and call.n > 1
        and (result.stride(-2) != 1 or tiling.kernel in IN_PARTS)
    ):
        return _through(plan(call, None, tiling, operands))
    paddings = (left.padding, right.padding)
    a, b, padded = call.a, call.b, None
    if paddings != (None, None) and tiling.kernel != "direct":
        padded = pad(a, b, paddings)
        a, b = padded(a, b)
    options = overlapping(size.memory)
    if tiling.kernel == "direct":
        launch = _direct(call, tiling, size, result, options)
    elif tiling.kernel == "split_k":
        launch = _split_k(call, tiling, (a, b, result), (left, right), options)
    elif tiling.kernel == "cooperative_k":
        launch = _cooperative_k(call, tiling, (a, b, result), (left, right), options)
    else:
        launch = _persistent(call, tiling, size, (a, b, result), (left, right), options)

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


def _size(call: Call, operands: Operands) -> Size:
    left, right = operands
    bits = call.a.element_size() * 8
    pairs = ((call.a, left), (call.b, right))
    return Size(
        call.batch, call.m, call.n, call.k, bits, call.out_dtype.itemsize * 8,
        (left.transposed, right.transposed), multiprocessors(call.a),
        (own_vector(call.a, left.transposed), own_vector(call.b, right.transposed)),
        sum(x.numel() * x.element_size() for x, of in pairs if of.padding is not None),
        (left.strides[1] * bits // 8 % SECTOR, right.strides[1] * bits // 8 % SECTOR),
    )  # fmt: skip


def _first_that_fits(call: Call, out: Optional[torch.Tensor], operands: Operands) -> Run:
    """Return the plan of the best tiling that compiles, and has enough shared memory."""
    lacking: Optional[GluonError] = None
    for tiling in _tilings_for(_size(call, operands)):
        try:
            return plan(call, out, tiling, operands)
        except (LimitError, CapabilityError) as error:
            # Conversions of layouts take what the compiler decides, and Triton 3.7 has no pairs.
            lacking = error
    raise lacking or LookupError("no tiling")


def _tilings_for(size: Size) -> Iterator[Tiling]:
    """Yield the tilings for a product, the chosen one first."""
    if size.bits == 8:
        yield from _of_eight_bits(size)
    else:
        yield choose(size)
        yield from ranked(size)[1:]


def _half(size: Size) -> Size:
    """Return the size of half as many elements of 16 bits along K, which are as many bytes."""
    return replace(size, k=gluon.cdiv(size.k, 2), bits=16, eight=True)


def _of_eight_bits(size: Size) -> Iterator[Tiling]:
    """Yield the tilings of half as many elements of 16 bits along K, which are as many bytes."""
    return (of_eight(tiling) for tiling in ranked(_half(size)) if tiling.kernel != "direct")


def of_eight(tiling: Tiling) -> Tiling:
    """Return the tiling of 8-bit operands with as many bytes along K."""
    m, n, k = tiling.block
    return replace(tiling, block=(m, n, 2 * k))


def _through(run: Run) -> Run:
    """Return a plan that stores a contiguous result and copies it into the one of the call."""

    def through(
        a: torch.Tensor, b: torch.Tensor, bias: Any, out: torch.Tensor, *scales: torch.Tensor
    ) -> Any:
        return out.copy_(run(a, b, bias, None, *scales))

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


def vector_of(c: torch.Tensor, *extents: int) -> int:
    """Return how many elements of the result one store can take: a divisor of `extents`."""
    for vector in (8, 4, 2):
        if c.data_ptr() % min(_ROW, vector * c.element_size()) == 0:
            if not any(extent % vector for extent in extents):
                return vector
    return 1


Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _persistent(
    call: Call, tiling: Tiling, size: Size, tensors: Tensors, operands: Operands, options: dict[str, Any]
) -> Callable[..., None]:  # fmt: skip
    a, b, c = tensors
    left, right = operands
    rows, columns = call.m, call.n
    by_rows = c.stride(-1) == 1 or call.n == 1
    if tiling.swapped:  # B transposed by A transposed
        a, b, left, right, rows, columns = b, a, right, left, columns, rows
    flipped = (left.transposed != tiling.swapped, right.transposed != tiling.swapped)
    m, n, k = tiling.block
    share, cluster = m // max(1, tiling.groups), (tiling.blocks, tiling.abreast)
    stored = "rows" if by_rows != tiling.swapped else "columns"
    strides = c.stride() if c.ndim == 3 else (0, *c.stride())
    along = strides[1] if by_rows else strides[2]
    across = call.n if by_rows else call.m
    unit = _ROW // c.element_size()
    vector = vector_of(c, across, along, strides[0] if call.batch > 1 else 0)
    descriptors: tuple[Any, ...] = ()
    fitting = strides[1] % unit == strides[0] % unit == 0 and c.data_ptr() % _ROW == 0
    if by_rows and fitting and (call.m == 1 or strides[1] >= call.n) and tiling.by_tma(size):
        stored = "tma columns" if tiling.swapped else "tma"
        shape = (call.batch, call.m, call.n)
        of_rows = strides[1] if call.m > 1 else -(-call.n // unit) * unit
        of_batch = strides[0] if call.batch > 1 else call.m * of_rows
        of_c = Operand(shape, (of_batch, of_rows, 1), False)
        box = int(tiling.box(size)) // c.element_size() if tiling.abreast == 1 else n
        if tiling.swapped:
            descriptors = tuple(describe(c, of_c, (w, share), cluster, 1, 0) for w in widths(n))
        else:
            descriptors = tuple(describe(c, of_c, (share, min(box, w)), cluster, 0, 1) for w in widths(n))  # fmt: skip
    if stored == "tma" and vector == unit:
        torn = any(stride * c.element_size() % SECTOR for stride in strides[:2])
        if tiling.streams(size, torn):
            stored, descriptors = "sectors" if torn else "streamed", ()
    extents = (call.m, call.n)
    scales = split_scales(call.scales if by_rows else call.scales[::-1], extents if by_rows else extents[::-1])  # fmt: skip
    forms = (stored, vector, flipped, call.activation)
    shared = shared_columns(stored, vector)
    tiles = gluon.cdiv(rows, m), gluon.cdiv(max(columns - shared, 1), n - shared)
    arguments: tuple[Any, ...] = (
        describe(a, left, (k, share) if flipped[0] else (share, k), cluster, rows=int(flipped[0])),
        tuple(describe(b, right, (w, k) if flipped[1] else (k, w), cluster, columns=int(not flipped[1])) for w, _ in boxes(n, tiling.abreast)),
        c, descriptors, strides[0] if call.batch > 1 else 0, along, call.bias, scales,
        call.batch, rows, columns, call.k, *reciprocals(*tiles, tiling.walk),
    )  # fmt: skip
    tensors = (b, a, c) if tiling.swapped else (a, b, c)
    tensors = (*tensors[:2], call.bias, c, *_present(call.scales))
    if tiling.kernel == "stream_k":
        return _stream_k(arguments, tensors, tiling, size, forms, options)
    arguments += (
        m,
        n,
        k,
        tiling.stages,
        tiling.walk,
        tiling.groups,
        tiling.whole,
        *forms,
        tiling.abreast,
    )
    grid = (int(tiling.programs(size)),)
    launch: Callable[..., None] = gluon.torch.prepare(
        gemm, grid, arguments, tensors, num_warps=4, num_ctas=tiling.blocks, **options
    )
    return launch


def _stream_k(
    arguments: tuple[Any, ...], tensors: tuple[Any, ...], tiling: Tiling, size: Size, forms: tuple[Any, ...],
    options: dict[str, Any],
) -> Callable[..., None]:  # fmt: skip
    m, n, k = tiling.block
    programs = int(tiling.programs(size))
    device = tensors[0].device
    scratch, counters = Scratch(programs * m * n, device), Counters(2 * programs)
    parts, signals = scratch(), counters(device)
    shares = (int(tiling.shared_tiles(size)), int(tiling.sharers(size)))
    arguments += (parts, signals, *shares, m, n, k, tiling.stages, tiling.walk)
    launch = gluon.torch.prepare(
        gemm_stream_k,
        (programs,),
        (*arguments, *forms),
        (*tensors, parts, signals),
        num_warps=4,
        **options,
    )
    return lambda *tensors: launch(*tensors, scratch(), counters(device))


Scales = tuple[Optional[torch.Tensor], Optional[torch.Tensor], tuple[torch.Tensor, ...]]


def split_scales(scales: tuple[Optional[torch.Tensor], ...], extents: tuple[int, int]) -> Scales:
    """Return the scales of rows, of columns, and those of a whole operand."""
    vectors = [s if s is not None and tuple(s.shape) == (e,) else None for s, e in zip(scales, extents)]  # fmt: skip
    numbers = tuple(s for s, v in zip(scales, vectors) if s is not None and v is None)
    return vectors[0], vectors[1], numbers


def _present(scales: tuple[Optional[torch.Tensor], ...]) -> tuple[torch.Tensor, ...]:
    return tuple(scale for scale in scales if scale is not None)


def _rows(matrix: torch.Tensor, transposed: bool) -> torch.Tensor:
    """Return [batch, rows, columns] as it is stored, columns contiguous."""
    wide = matrix if matrix.ndim == 3 else matrix.unsqueeze(0)
    return wide.mT if transposed else wide


def _row_strides(stored: torch.Tensor) -> tuple[int, int]:
    of_batch, of_row = (s if n > 1 else 0 for s, n in zip(stored.stride(), stored.shape[:2]))
    return of_batch, of_row


def own_vector(matrix: torch.Tensor, transposed: bool) -> int:
    """Return how many elements of an operand one load takes."""
    stored = _rows(matrix, transposed)
    if stored.data_ptr() % _ROW:
        return 1
    return vector_of(stored, stored.shape[2], *_row_strides(stored))


def _direct(call: Call, tiling: Tiling, size: Size, c: torch.Tensor, options: dict[str, Any]) -> Callable[..., None]:  # fmt: skip
    stored = [_rows(x, t) for x, t in zip((call.a, call.b), size.transposed)]
    first = (call.a, call.b)
    rest = (*_row_strides(stored[0]), *_row_strides(stored[1]))
    forms = (size.vectors, size.transposed, call.activation)
    m, n, k = tiling.block
    across = gluon.cdiv(call.n, n)
    strides = (0, *c.stride()) if c.ndim == 2 else c.stride()
    vector = vector_of(c, call.n, strides[1], strides[0])

    def arguments(sums: torch.Tensor, count: torch.Tensor) -> tuple[Any, ...]:
        return (
            *first, c, sums, count, call.bias, call.m, call.n, call.k, *rest, strides[0], strides[1],
            across, m, n, k, tiling.stages, tiling.splits, vector, *forms,
        )  # fmt: skip

    return _in_parts(gemm_direct, call, tiling, (*first, call.bias, c), arguments, options)


def _split_k(
    call: Call, tiling: Tiling, tensors: Tensors, operands: Operands, options: dict[str, Any]
) -> Callable[..., None]:
    (a, b, c), (left, right) = tensors, operands
    m, n, k = tiling.block
    strides = (0, *c.stride()) if c.ndim == 2 else c.stride()
    vector = vector_of(c, call.n, strides[1], strides[0])
    transposed = (left.transposed, right.transposed)
    scales = split_scales(call.scales, (call.m, call.n))

    def arguments(sums: torch.Tensor, count: torch.Tensor) -> tuple[Any, ...]:
        return (
            describe(a, left, (k, m) if left.transposed else (m, k)),
            describe(b, right, (n, k) if right.transposed else (k, n)),
            c, sums, count, call.bias, scales,
            call.m, call.n, call.k, strides[0], strides[1], gluon.cdiv(call.n, n),
            m, n, k, tiling.stages, tiling.splits, vector, transposed, call.activation,
        )  # fmt: skip

    tensors = (a, b, call.bias, c, *_present(call.scales))
    return _in_parts(gemm_split_k, call, tiling, tensors, arguments, options)


def _cooperative_k(
    call: Call, tiling: Tiling, tensors: Tensors, operands: Operands, options: dict[str, Any]
) -> Callable[..., None]:
    (a, b, c), (left, right) = tensors, operands
    if tiling.swapped:  # B transposed by A transposed
        a, b, left, right = b, a, right, left
    flipped = (left.transposed != tiling.swapped, right.transposed != tiling.swapped)
    m, n, k = tiling.block
    share = m // tiling.groups
    strides = (0, *c.stride()) if c.ndim == 2 else c.stride()
    vector = vector_of(c, call.n, strides[1], strides[0])
    scales = split_scales(call.scales, (call.m, call.n))

    def arguments(sums: torch.Tensor, count: torch.Tensor) -> tuple[Any, ...]:
        return (
            describe(a, left, (k, share) if flipped[0] else (share, k)),
            tuple(describe(b, right, (w, k) if flipped[1] else (k, w)) for w, _ in boxes(n)),
            c, sums, count, call.bias, scales,
            call.m, call.n, call.k, strides[0], strides[1], gluon.cdiv(call.m if tiling.swapped else call.n, n),
            m, n, k, tiling.stages, tiling.splits, vector, flipped, tiling.swapped, call.activation,
        )  # fmt: skip

    tensors = (b, a, c) if tiling.swapped else (a, b, c)
    tensors = (*tensors[:2], call.bias, c, *_present(call.scales))
    return _in_parts(gemm_cooperative_k, call, tiling, tensors, arguments, options)


def _in_parts(
    kernel: Any, call: Call, tiling: Tiling, tensors: tuple[Any, ...],
    arguments: Callable[[torch.Tensor, torch.Tensor], tuple[Any, ...]], options: dict[str, Any],
) -> Callable[..., None]:  # fmt: skip
    """Return the launch of a kernel whose programs have a tile, or a part of its K."""
    m, n, _ = tiling.block
    rows, columns = (call.n, call.m) if tiling.swapped else (call.m, call.n)
    tiles, splits = gluon.cdiv(rows, m) * gluon.cdiv(columns, n), tiling.splits
    device, number = call.a.device, call.batch * tiles if splits > 1 else 1
    scratch = Scratch(number * splits * m * n if splits > 1 else 1, device)
    counters = Counters(number * max(1, tiling.groups))
    sums, count = scratch(), counters(device)
    launch = gluon.torch.prepare(
        kernel, (splits, tiles, call.batch), arguments(sums, count), (*tensors, sums, count),
        num_warps=int(tiling.warps), **options,
    )  # fmt: skip
    if splits == 1:
        return lambda *tensors: launch(*tensors, sums, count)

    def parts(*tensors: Any) -> None:
        launch(*tensors, scratch(), counters(device))

    return parts
