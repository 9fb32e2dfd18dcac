"""Layouts of tensor memory: where `tcgen05` keeps accumulators, operands and scales.

Pure Python: neither triton nor torch is imported. Tensor memory of a block has 128 rows (the ISA's
lanes) and 512 columns of 32 bits (PTX ISA 9.7.16.1, Tensor Memory). A layout sends "row", "col"
(in elements, so several of them share a 32-bit column) and "block" to the tensor's element; a zero
basis is a place that holds a copy or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional, Sequence, TypeVar, Union

from gluon_core import errors
from gluon_core.layouts.base import (
    Layout,
)
from gluon_core.layouts.dialect import follows
from gluon_core.layouts.linear import LinearLayout
from gluon_nvidia.features import (
    TMEM_CLUSTERS,
    TMEM_LINEAR_MANGLED,
    TMEM_NARROW_SLICES,
    TMEM_PADDED_FP4,
    TMEM_PAIRS_OF_64,
)

__all__ = [
    "COLUMNS",
    "RubinTensorMemoryScalesLayout",
    "TensorMemoryLayout",
    "TensorMemoryScalesLayout",
    "_TensorMemoryLinearLayout",
    "block_shape",
    "columns_of",
    "rows_of",
]

ROWS, COLUMNS, COLUMN_BITS = 128, 512, 32
# The hardware hands out columns in powers of two, at least this many (PTX ISA 9.7.16.7.1).
_SCALE_ROWS = 32
_SCALES_PER_COLUMN = 4
_REP_ORDERS = ("mnThenK", "kThenMn")


def _bits(values: range, dim: int) -> list[list[int]]:
    """Return the bases of one dimension for the powers of two in [start, stop)."""
    out, value = [], values.start
    while value < values.stop:
        out.append([value, 0] if dim == 0 else [0, value])
        value *= 2
    return out


def _split_bases(split: Sequence[int]) -> list[list[int]]:
    return _bits(range(1, split[0]), 0) + _bits(range(1, split[1]), 1)


def _cluster(cga_layout: Any, cta_split_num: Any) -> list[list[int]]:
    """Return the bases of either spelling: `cga_layout`, or how often each dimension is split."""
    bases_or_split = Layout.unwrap(cga_layout)
    split = Layout.unwrap(cta_split_num)
    if (
        isinstance(bases_or_split, list)
        and bases_or_split
        and not any(isinstance(row, list) for row in bases_or_split)
    ):
        bases_or_split, split = (
            None,
            bases_or_split,
        )  # positionally, where older versions have the split
    if split is None:
        return Layout.check_bases(bases_or_split, "cga_layout", 2)
    split = Layout.check_ints(split, "cta_split_num", 2)
    if not all(Layout.is_power_of_two(count) for count in split):
        raise errors.LayoutError(
            "not powers of two", argument="cta_split_num", expected="e.g. [2, 1]", got=split
        )
    bases = _split_bases(split)
    if bases_or_split and Layout.check_bases(bases_or_split, "cga_layout", 2) != bases:
        raise errors.LayoutError(
            "cta_split_num and cga_layout disagree",
            argument="cta_split_num",
            expected=f"only one of them, or cga_layout={bases}",
            got=f"{split} and {bases_or_split}",
        )
    return bases


def _split_of(cga_layout: list[list[int]]) -> list[int]:
    return [1 << sum(bool(row[d]) for row in cga_layout) for d in range(2)]


def _emitted_split(cga_layout: list[list[int]]) -> list[int]:
    """Return the split for builders before Triton 3.8, which know one order of the blocks only."""
    split = _split_of(cga_layout)
    if [row for row in cga_layout if any(row)] != _split_bases(split):
        raise errors.LayoutError(
            f"without {TMEM_CLUSTERS.releases} the blocks of a cluster go along the rows first",
            argument="cga_layout",
            expected=_split_bases(split),
            got=cga_layout,
        )
    return split


def block_shape(layout: TensorMemoryBase, shape: Sequence[int]) -> list[int]:
    """Return the shape of one block's part of a buffer of `layout` and `shape` [M, N]."""
    names = Layout.dim_names(2)
    cga = Layout.shrink(Layout.cga_linear(layout.cga_layout, 2), dict(zip(names, shape)))
    return [max(1, size // cga.out_size(name)) for name, size in zip(names, shape)]


def _with_blocks(
    rows: list[list[int]],
    cols: list[list[int]],
    layout: TensorMemoryBase,
    per_block: Sequence[int],
    shape: Sequence[int],
) -> LinearLayout:
    blocks = [
        [
            value * size if value * size < whole else 0
            for value, size, whole in zip(row, per_block, shape)
        ]
        for row in layout.cga_layout
    ]
    outs = dict(zip(Layout.dim_names(2), shape))
    return LinearLayout({"row": rows, "col": cols, "block": blocks}, outs)


T = TypeVar("T", bound="TensorMemoryBase")


class TensorMemoryBase(Layout):
    """Share the methods of the layouts of tensor memory."""

    requires = ("nvidia.tcgen05",)
    cga_layout: list[list[int]]

    def verify(self) -> None:
        self.check_cga(self.cga_layout, self.rank)

    @property
    def rank(self) -> int:
        return 2

    @property
    def cta_split_num(self) -> Optional[list[int]]:
        """Return the number of parts per dimension in the cluster; None for one block."""
        return _split_of(self.cga_layout) if self.cga_layout else None

    def linear_layout(self, shape: Sequence[int]) -> "_TensorMemoryLinearLayout":
        """Return the result of `gl.to_linear_layout`: one block's part, with the whole shape."""
        bases = self.to_linear(shape).bases
        return _TensorMemoryLinearLayout(bases["row"], bases["col"], list(shape))

    def with_cluster(self: T, cga_layout: Sequence[Sequence[int]]) -> T:
        """Return this layout with other blocks of the cluster."""
        fields = dict(self._fields())
        fields["cga_layout"] = [list(row) for row in cga_layout]
        return type(self)(**fields)

    def _cluster_text(self) -> str:
        """Return the cluster as an identifier part."""
        if follows(TMEM_CLUSTERS):
            return self.joined_bases(self.cga_layout)
        split = self.cta_split_num
        return f"CS{split[0]}x{split[1]}" if split else ""


@dataclass(frozen=True, init=False)
class TensorMemoryLayout(TensorMemoryBase):
    """Matrices in tensor memory: the accumulator of `tcgen05.mma`, or its first operand.

    A buffer is cut into blocks of [64 or 128, N]. A block of 128 rows takes the rows of tensor
    memory one to one. A block of 64 takes 16 rows of every 32; a second block, below or else to the
    right, takes the others. Further blocks follow in further columns.

    Args:
        block: [M, N] of one block: M is 64 or 128, N a power of two up to 512.
        col_stride: one element for so many columns of its own width: 1, 2 or 4.
        cga_layout: how the blocks of a cluster split the buffer; [] for one block. As in Triton
            before 3.8, this place also takes the `cta_split_num`.
        two_ctas: the accumulator of a pair of blocks, whose bit of `cga_layout` is the first,
            [1, 0].
        fp4_padded: each fp4 pair has two bytes; Triton 3.8.
        cta_split_num: instead of `cga_layout`, how often each dimension is split, rows first.

    Raises:
        LayoutError: an illegal field.

    ISA: PTX 9.7.16.10.5, data path layout organization.
    """

    block: list[int]
    col_stride: int
    cga_layout: list[list[int]] = field(default_factory=list)
    two_ctas: bool = False
    fp4_padded: bool = False

    def __init__(
        self,
        block: Sequence[int],
        col_stride: int,
        cga_layout: Optional[Union[Sequence[Sequence[int]], Sequence[int]]] = None,
        two_ctas: bool = False,
        fp4_padded: bool = False,
        cta_split_num: Optional[Sequence[int]] = None,
    ):
        block = self.check_ints(block, "block", 2)
        self._set(
            block=block,
            col_stride=self.check_int(col_stride, "col_stride"),
            cga_layout=_cluster(cga_layout, cta_split_num),
            two_ctas=self.check_bool(two_ctas, "two_ctas"),
            fp4_padded=self.check_bool(fp4_padded, "fp4_padded"),
        )
        if not self.is_power_of_two(self.col_stride):
            raise self._no_stride()

    def _no_stride(self) -> errors.LayoutError:
        return errors.LayoutError(
            "not a stride within a 32-bit column",
            argument="col_stride",
            expected="1, 2 or 4",
            got=self.col_stride,
        )

    def verify(self) -> None:
        super().verify()
        block, stride = self.block, self.col_stride
        if block[0] not in (64, 128) or not self.is_power_of_two(block[1]) or block[1] > COLUMNS:
            raise errors.LayoutError(
                "no such block of tensor memory",
                argument="block",
                expected=f"[64 or 128, a power of two up to {COLUMNS}]",
                got=block,
            )
        if stride not in (1, 2, 4):
            raise self._no_stride()
        if self.fp4_padded and stride != 1:
            raise errors.LayoutError(
                "padded fp4 has a stride of its own", argument="col_stride", expected=1, got=stride
            )

    def mangle(self) -> str:
        pairs = "2CT" if self.two_ctas else ""
        padded = "FP4P" if self.fp4_padded else ""
        m, n = self.block
        return f"TL{m}x{n}C{self.col_stride}{self._cluster_text()}{pairs}{padded}TL"

    def _emit(self, builder: Any) -> Any:
        self.check_pairs()
        if follows(TMEM_CLUSTERS):
            return builder.get_tensor_memory_layout(
                self.block, self.col_stride, self.cga_layout, self.two_ctas, self.fp4_padded
            )
        if self.fp4_padded:
            raise errors.LayoutError(
                f"fp4_padded needs {TMEM_PADDED_FP4.releases}", argument="fp4_padded", got=True
            )
        split = _emitted_split(self.cga_layout)
        return builder.get_tensor_memory_layout(self.block, self.col_stride, split, self.two_ctas)

    def check_pairs(self) -> None:
        """Refuse pairs of blocks that do not stand one above the other.

        Raises:
            LayoutError: `two_ctas`, but the first bit of the cluster is not [1, 0].
        """
        if self.two_ctas and self.cga_layout[:1] != [[1, 0]]:
            raise errors.LayoutError(
                "a pair of blocks splits the rows, by the lowest bit of the block index",
                argument="cga_layout",
                expected="[[1, 0], ...] with two_ctas",
                got=self.cga_layout,
            )

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        self.check_pairs()
        height, width = per_block = block_shape(self, shape)
        m, n = self.block
        # A slice may be narrower than the block, but not in a cluster that splits the columns.
        whole = width == shape[1] and follows(TMEM_NARROW_SLICES)
        if height < m or (width < n and not whole):
            raise errors.LayoutError(
                "the buffer is smaller than a block of its layout",
                argument="shape",
                expected=f"at least {self.block} in one block of the cluster",
                got=f"{per_block} of {list(shape)}",
            )
        n = min(n, width)
        holes = (self.col_stride * (2 if self.fp4_padded else 1)).bit_length() - 1
        done = [m, n]
        if m == ROWS:
            rows = _bits(range(1, ROWS), 0)
        elif self.two_ctas:
            # Each of the pair has 64 rows; the right half of the columns is below the left one.
            self._check_old_pairs(per_block)
            if n < 2:
                raise errors.LayoutError(
                    "a pair of 64 rows splits the columns in two",
                    argument="block",
                    expected="N >= 2",
                    got=self.block,
                )
            n //= 2
            rows = _bits(range(1, 64), 0) + [[0, n]]
        else:
            second = [0, 0]
            if height > m:
                second = [m, 0]
                done[0] *= 2
            elif width > n:
                second = [0, n]
                done[1] *= 2
            rows = _bits(range(1, 16), 0) + [second] + _bits(range(16, 64), 0)
        cols = [[0, 0]] * holes + _bits(range(1, n), 1)
        cols += _bits(range(done[0], height), 0) + _bits(range(done[1], width), 1)
        return _with_blocks(rows, cols, self, per_block, shape)

    def _check_old_pairs(self, per_block: Sequence[int]) -> None:
        """Before Triton 3.8 pairs of 64 rows are laid out for one block of tensor memory only."""
        pairs = sum(bool(row[0]) for row in self.cga_layout)
        if not follows(TMEM_PAIRS_OF_64) and (list(per_block) != self.block or pairs != 1):
            errors.refuse(
                errors.LayoutError(
                    f"without {TMEM_PAIRS_OF_64.releases} a pair of blocks of 64 rows has one block of "
                    "tensor memory each",
                    argument="shape",
                    expected=f"{self.block} in each of two blocks of the cluster",
                    got=list(per_block),
                )
            )


@dataclass(frozen=True, init=False)
class TensorMemoryScalesLayout(TensorMemoryBase):
    """Scales of `tcgen05_mma_scaled` in tensor memory: 8 bits each, one for 16 or 32 of K.

    Four scales of a row share a 32-bit column; 32 rows of tensor memory hold 32 rows of scales,
    the next ones follow in the next columns. All four warps' rows hold the same.

    Args:
        cga_layout: how the blocks of a cluster split the scales; [] for one block. This place also
            takes the `cta_split_num` of Triton before 3.8.
        cta_split_num: instead of `cga_layout`, how often each dimension is split, rows first.

    Raises:
        LayoutError: an illegal field.

    ISA: PTX 9.7.16.10.7, block scaling.
    """

    cga_layout: list[list[int]] = field(default_factory=list)

    def __init__(
        self,
        cga_layout: Optional[Union[Sequence[Sequence[int]], Sequence[int]]] = None,
        cta_split_num: Optional[Sequence[int]] = None,
    ):
        self._set(cga_layout=_cluster(cga_layout, cta_split_num))

    @property
    def _order(self) -> str:
        return _REP_ORDERS[0]

    def mangle(self) -> str:
        return f"TLS{self._cluster_text()}TLS"

    def _emit(self, builder: Any) -> Any:
        if follows(TMEM_CLUSTERS):
            return builder.get_tensor_memory_scales_layout(self.cga_layout, self._order)
        return builder.get_tensor_memory_scales_layout(_emitted_split(self.cga_layout))

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        m, k = per_block = block_shape(self, shape)
        rows = _bits(range(1, min(m, _SCALE_ROWS)), 0)
        rows += [[0, 0]] * (ROWS.bit_length() - 1 - len(rows))
        cols = _bits(range(1, min(k, _SCALES_PER_COLUMN)), 1)
        cols += [[0, 0]] * (2 - len(cols))
        # 64 rows are the least that the hardware copies; 128 make one chunk.
        cols += _bits(range(_SCALE_ROWS, min(m, ROWS)), 0) or [[0, 0]]
        below, across = _bits(range(ROWS, m), 0), _bits(range(_SCALES_PER_COLUMN, k), 1)
        cols += below + across if self._order == _REP_ORDERS[0] else across + below
        return _with_blocks(rows, cols, self, per_block, shape)


@dataclass(frozen=True, init=False)
class RubinTensorMemoryScalesLayout(TensorMemoryScalesLayout):
    """`TensorMemoryScalesLayout` with a choice of the successor of a chunk of 128 rows by four scales.

    Args:
        cga_layout, cta_split_num: as in `TensorMemoryScalesLayout`.
        block_rep_order: "mnThenK": the next rows, then the next of K; "kThenMn": the reverse.
            Triton 3.8.

    Raises:
        LayoutError: an illegal field.
    """

    block_rep_order: str = _REP_ORDERS[0]

    def __init__(
        self,
        cga_layout: Optional[Union[Sequence[Sequence[int]], Sequence[int]]] = None,
        block_rep_order: str = _REP_ORDERS[0],
        cta_split_num: Optional[Sequence[int]] = None,
    ):
        order = self.unwrap(block_rep_order)
        if order not in _REP_ORDERS:
            raise errors.LayoutError(
                "no such order",
                argument="block_rep_order",
                expected=" or ".join(map(repr, _REP_ORDERS)),
                got=repr(order),
            )
        self._set(cga_layout=_cluster(cga_layout, cta_split_num), block_rep_order=order)

    @property
    def _order(self) -> str:
        return self.block_rep_order

    def mangle(self) -> str:
        return f"TLS{self.block_rep_order}_{self._cluster_text()}TLS"


@dataclass(frozen=True)
class _TensorMemoryLinearLayout(TensorMemoryBase):
    """The linear form of a layout of tensor memory, of one block: the result of `to_linear_layout`.

    It describes; buffers are allocated with the other layouts.

    Args:
        rows, cols: where each bit of the row and of the column moves.
        shape: of the buffer.
    """

    rows: list[list[int]]
    cols: list[list[int]]
    shape: list[int]

    def __post_init__(self) -> None:
        shape = list(self.check_shape(self.shape, None))
        self._set(
            rows=self.check_bases(self.rows, "rows", len(shape)),
            cols=self.check_bases(self.cols, "cols", len(shape)),
            shape=shape,
        )

    @property
    def cga_layout(self) -> list[list[int]]:  # type: ignore[override]
        return []

    @property
    def rank(self) -> int:
        return len(self.shape)

    def mangle(self) -> str:
        if not follows(TMEM_LINEAR_MANGLED):
            return f"TMLL_{self.shape}_TMLL"
        return (
            f"TMLL_{self.joined_bases(self.rows)}_{self.joined_bases(self.cols)}_{self.shape}_TMLL"
        )

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        if list(shape) != self.shape:
            raise errors.LayoutError(
                "a linear layout of tensor memory has one shape",
                argument="shape",
                expected=self.shape,
                got=list(shape),
            )
        outs = dict(zip(self.dim_names(len(shape)), shape))
        return LinearLayout({"row": self.rows, "col": self.cols, "block": []}, outs)


def columns_of(layout: TensorMemoryBase, shape: Sequence[int], bitwidth: int) -> int:
    """32-bit columns of tensor memory that a buffer takes in one block.

    Args:
        layout: of the buffer.
        shape: [M, N] or [copies, M, N], of all blocks of a cluster.
        bitwidth: of an element, in bits.

    Raises:
        LayoutError: no such buffer has this layout.
    """
    *copies, height, width = shape
    count: int = layout.to_linear([height, width]).in_size("col")
    for size in copies:
        count *= size
    return max(1, -(-count * bitwidth // COLUMN_BITS))


def rows_of(layout: TensorMemoryBase, shape: Sequence[int]) -> int:
    """Rows of tensor memory that a buffer has elements in, [M, N] or [copies, M, N]."""
    if not isinstance(layout, TensorMemoryLayout):
        return ROWS  # of scales: each warp has them all
    return 1 << sum(map(any, layout.to_linear(list(shape[-2:])).bases["row"]))
