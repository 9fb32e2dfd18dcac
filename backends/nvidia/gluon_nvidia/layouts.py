"""Layouts of NVIDIA's matrix units: `mma.sync` and `wgmma` fragments, shared memory for them.

Pure Python: neither triton nor torch is imported. The fragment maps are those of the PTX ISA,
"Matrix Fragments for mma.m16n8k*" and "Register Fragments and Shared Memory Matrix Layouts for
wgmma"; the shared-memory layouts are those that TMA writes and matrix descriptors read.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Iterable, Optional, Protocol, Sequence

from gluon_core import errors
from gluon_core.layouts.base import (
    DistributedLayout,
    Layout,
    SharedLayout,
)
from gluon_core.layouts.dialect import follows
from gluon_core.layouts.linear import LinearLayout
from gluon_nvidia.features import NVMMA_RANK_MANGLED, OPERAND_ROWS

__all__ = ["NVMMADistributedLayout", "NVMMASharedLayout", "default_for"]

# A TMA box has at most this many elements in each dimension.
_TMA_BOX = 256
# Shared memory is read in rows of this many bytes, and swizzled in chunks of 16 bytes over 8 rows.
_ROW_BYTES = 128
_CHUNK_BYTES = 16
_SWIZZLE_ROWS = 8
_OPERAND_ROWS = 16


class ElementType(Protocol):
    """A dtype, such as `gl.float16`."""

    @property
    def primitive_bitwidth(self) -> int: ...


def _stack(pieces: Iterable[tuple[str, int, int]]) -> LinearLayout:
    """Return the product of identities, most minor first; a piece is (in-dim, tensor dimension, size)."""
    layout = LinearLayout({"register": [], "lane": [], "warp": []}, {})
    for in_dim, d, size in pieces:
        layout = layout * LinearLayout.identity_1d(size, in_dim, f"dim{d}")
    return layout


@dataclass(frozen=True)
class NVMMADistributedLayout(DistributedLayout):
    """The accumulator of `mma.sync` (version 2) and `wgmma` (version 3).

    Eight groups of four lanes hold the rows of an 8-row tile, two consecutive columns in each lane.

    Args:
        version: [2, 0] for `mma.sync`, [3, 0] for `wgmma`.
        warps_per_cta: warps along each dimension; the warps of version 3 come in groups of four
            along the rows.
        instr_shape: one instruction's tile for one warp: [16, 8] for version 2 (leading 1s for a
            batch), [16, N, K] for version 3, with N from 8 to 256 and K of 32 bytes.
        cga_layout: how the blocks of a cluster split the tensor.

    A version that no unit has is a legal layout all the same, and refused where it is used.

    Raises:
        LayoutError: a field that is not a list of numbers, or of powers of two.

    ISA: PTX `mma.sync.aligned.m16n8k*` (sm_80), `wgmma.mma_async` (sm_90a).
    """

    version: list[int]
    warps_per_cta: list[int]
    instr_shape: list[int]
    cga_layout: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        warps = self.check_ints(self.warps_per_cta, "warps_per_cta")
        self._set(
            version=self.check_ints(self.version, "version"),
            warps_per_cta=warps,
            instr_shape=self.check_ints(self.instr_shape, "instr_shape"),
            cga_layout=self.check_bases(self.cga_layout, "cga_layout", len(warps)),
        )

    def verify(self) -> None:
        if len(self.version) != 2:
            errors.refuse(
                errors.LayoutError(
                    "wrong rank", argument="version", expected="2 entries", got=self.version
                )
            )
        self.check_powers(self.warps_per_cta, "warps_per_cta")
        self.check_cga(self.cga_layout, self.rank)

    def check_unit(self) -> None:
        """Raise unless a matrix unit has this version, the only condition on its operands.

        Raises:
            LayoutError: no matrix unit has this version.
        """
        if not self.version or self.version[0] not in (2, 3):
            raise errors.LayoutError(
                "unknown matrix unit",
                argument="version",
                expected="[2, 0] for mma.sync or [3, 0] for wgmma",
                got=self.version,
                remedy="The accumulator of tcgen05 is in tensor memory: TensorMemoryLayout.",
            )

    def check_tile(self) -> None:
        """Raise unless accumulators can have this layout; operands have their own fragments.

        Raises:
            LayoutError: no tile has this version or shape.
        """
        self.check_unit()
        self.check_powers(self.instr_shape, "instr_shape")
        if self.rank < 2 or self.rank > 2 and self.version[0] == 3:
            raise errors.LayoutError(
                "an accumulator has two dimensions, and more only with mma.sync",
                argument="warps_per_cta",
                expected="2 entries",
                got=self.warps_per_cta,
            )
        instr = self.instr_shape
        sizes = instr[:2] if self.version[0] == 3 else instr
        if len(sizes) != self.rank or min(sizes[-2:]) < 8:
            v2 = [*[1] * (self.rank - 2), 16, 8]
            expected = v2 if self.version[0] == 2 else "[16, N, K]"
            raise errors.LayoutError(
                "not the tile of an instruction",
                argument="instr_shape",
                expected=expected,
                got=instr,
            )

    def check_wgmma(self) -> None:
        """Raise unless this is an accumulator of `wgmma`.

        Raises:
            LayoutError: another version, or warps or a tile that the unit does not have.
        """
        self.check_tile()
        if self.warps_per_cta[0] % 4:
            raise errors.LayoutError(
                "wgmma runs on groups of four warps, stacked along the rows",
                argument="warps_per_cta",
                expected="[4 * k, n]",
                got=self.warps_per_cta,
            )
        rows, columns = self.instr_shape[:2]
        if len(self.instr_shape) not in (2, 3) or rows != 16 or not 8 <= columns <= 256:
            raise errors.LayoutError(
                "not a tile of wgmma",
                argument="instr_shape",
                expected="[16, N, K]: N from 8 to 256, K of 32 bytes",
                got=self.instr_shape,
            )

    @property
    def rank(self) -> int:
        return len(self.warps_per_cta)

    def mangle(self) -> str:
        shape = f"{self.version}_{self.warps_per_cta}_{self.instr_shape}"
        return f"MMA_{shape}_{self.joined_bases(self.cga_layout)}_MMA"

    def _emit(self, builder: Any) -> Any:
        version = [*self.version, 0][:2]  # a missing minor version is 0
        return builder.get_mma_layout(
            version, self.warps_per_cta, self.cga_layout, self.instr_shape
        )

    def _warp_order(self) -> list[int]:
        """Return the dimensions from the fastest warp bit to the slowest: rows first in version 3."""
        *batches, rows, columns = range(self.rank)
        matrix = [rows, columns] if self.version[0] == 3 else [columns, rows]
        return [*matrix, *reversed(batches)]

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        self.check_tile()
        tile = self.instr_shape[: self.rank]
        m, n = self.rank - 2, self.rank - 1
        pieces = [("register", n, 2), ("lane", n, 4), ("lane", m, 8)]
        pieces += [("register", m, tile[m] // 8), ("register", n, tile[n] // 8)]
        pieces += [("warp", d, self.warps_per_cta[d]) for d in self._warp_order()]
        return self.combine_with_cga(_stack(pieces), self.cga_layout, shape, keep_copies=True)

    def _operand_rows(self, operand_index: int) -> int:
        """Return the rows of A's fragment, which are those of both operands' tile.

        Raises:
            LayoutError: the compiler reads the rows off the tile, which is no instruction's.
        """
        if not follows(OPERAND_ROWS):
            return _OPERAND_ROWS
        rows = self.instr_shape[self.rank - 2] if len(self.instr_shape) > self.rank - 2 else None
        if rows is None or operand_index == 0 and (rows < 8 or not self.is_power_of_two(rows)):
            raise errors.LayoutError(
                "not the tile of an instruction",
                argument="instr_shape",
                expected=f"{_OPERAND_ROWS} rows at index {self.rank - 2}",
                got=self.instr_shape,
            )
        return rows

    def dot_operand_linear(
        self, operand_index: int, k_width: int, shape: Sequence[int]
    ) -> LinearLayout:
        """See `DistributedLayout.dot_operand_linear`.

        `k_width` is 32 bits divided by the element width (1 for 64 bits); larger values let a lane
        load wider, which permutes K alike in both operands.
        """
        self.check_unit()
        shape = self.check_shape(shape, self.rank)
        operand_index = self.check_int(operand_index, "operand_index", 0, 1)
        if self.version[0] == 3 and operand_index == 1:
            raise errors.LayoutError(
                "wgmma reads its second operand from shared memory only",
                argument="operand_index",
                expected=0,
                got=1,
                remedy="Keep B in shared memory (NVMMASharedLayout).",
            )
        k_width = self.unwrap(k_width)
        if not self.is_power_of_two(k_width):
            raise errors.LayoutError(
                "not a power of two",
                argument="k_width",
                expected="32 // element bits, e.g. 2 for float16",
                got=k_width,
            )
        height = self._operand_rows(operand_index)
        rows, k = self.rank - 2 + operand_index, self.rank - 1 - operand_index
        pieces = [("register", k, k_width), ("lane", k, 4), ("lane", rows, 8)]
        if operand_index == 0:
            pieces.append(("register", rows, height // 8))
        if height != 8:  # a tile of 8 rows is that of float64
            pieces.append(("register", k, 2))
        layout = _stack(pieces)
        for d in self._warp_order():
            # Warps that differ only in the other operand's dimension hold the same elements.
            make = LinearLayout.zeros_1d if d == k else LinearLayout.identity_1d
            layout = layout * make(self.warps_per_cta[d], "warp", f"dim{d}")
        cga = [[0 if d == k else v for d, v in enumerate(basis)] for basis in self.cga_layout]
        return self.combine_with_cga(layout, cga, shape, keep_copies=True)


@dataclass(frozen=True)
class NVMMASharedLayout(SharedLayout):
    """A tile as TMA writes it and matrix descriptors (`wgmma`, `tcgen05`) read it.

    The fastest dimension is cut into strips of `swizzle_byte_width` bytes; in a strip, 16-byte
    chunks of eight consecutive rows are exchanged so that columns fall into different banks.

    Args:
        swizzle_byte_width: 0, 32, 64 or 128.
        element_bitwidth: 8, 16, 32 or 64.
        rank: of the buffer; all dimensions but the fastest count as rows.
        transposed: the first dimension is the fastest, instead of the last.
        fp4_padded: fp4 pairs, 8 bytes of data in every 16; needs 8-bit elements, 128-byte swizzle.
        cga_layout: how the blocks of a cluster split the buffer.

    Raises:
        LayoutError: an illegal field.

    ISA: PTX `cp.async.bulk.tensor` swizzle modes, `wgmma` and `tcgen05` shared memory layouts.
    """

    swizzle_byte_width: int
    element_bitwidth: int
    rank: int = 2
    transposed: bool = False
    fp4_padded: bool = False
    cga_layout: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rank = self.check_int(self.rank, "rank")
        self._set(
            swizzle_byte_width=self.check_int(self.swizzle_byte_width, "swizzle_byte_width"),
            element_bitwidth=self.check_int(self.element_bitwidth, "element_bitwidth"),
            rank=rank,
            transposed=self.check_bool(self.transposed, "transposed"),
            fp4_padded=self.check_bool(self.fp4_padded, "fp4_padded"),
            cga_layout=self.check_bases(self.cga_layout, "cga_layout", rank),
        )
        self._check_widths()

    def _check_widths(self) -> None:
        swizzle, bits = self.swizzle_byte_width, self.element_bitwidth
        if swizzle not in (0, 32, 64, 128):
            raise errors.LayoutError(
                "unsupported swizzle",
                argument="swizzle_byte_width",
                expected="0, 32, 64 or 128",
                got=swizzle,
                remedy="NVMMASharedLayout.get_default_for picks the widest that fits.",
            )
        if bits not in (8, 16, 32, 64):
            raise errors.LayoutError(
                "no such element", argument="element_bitwidth", expected="8, 16, 32 or 64", got=bits
            )

    def verify(self) -> None:
        swizzle, bits = self.swizzle_byte_width, self.element_bitwidth
        self.check_int(self.rank, "rank", 1)
        if self.rank == 1 and swizzle:
            raise errors.LayoutError(
                "a one-dimensional buffer has no rows to swizzle",
                argument="swizzle_byte_width",
                expected=0,
                got=swizzle,
            )
        if self.fp4_padded and (bits, swizzle) != (8, 128):
            raise errors.LayoutError(
                "padded fp4 exists for 8-bit elements and the 128-byte swizzle only",
                argument="fp4_padded",
                expected="element_bitwidth=8, swizzle_byte_width=128",
                got=f"element_bitwidth={bits}, swizzle_byte_width={swizzle}",
            )
        self.check_cga(self.cga_layout, self.rank)

    @staticmethod
    @Layout.in_kernels
    def get_default_for(
        block_shape: Sequence[int],
        dtype: ElementType,
        transposed: bool = False,
        fp4_padded: bool = False,
        cga_layout: Optional[Sequence[Sequence[int]]] = None,
    ) -> "NVMMASharedLayout":
        """Return the layout with the widest swizzle that a buffer of this shape can have.

        Args:
            block_shape: of the buffer, all blocks of a cluster together.
            dtype: of the elements; anything with `primitive_bitwidth`, in bits.
            transposed, fp4_padded, cga_layout: as in the class.

        Raises:
            LayoutError: no element type, or an illegal argument.
        """
        shape = Layout.check_ints(block_shape, "block_shape")
        bits = Layout.unwrap(getattr(Layout.unwrap(dtype), "primitive_bitwidth", None))
        if bits is None:
            raise errors.LayoutError("not an element type", argument="dtype", got=repr(dtype))
        transposed = Layout.check_bool(transposed, "transposed")
        fp4_padded = Layout.check_bool(fp4_padded, "fp4_padded")
        cga = Layout.check_cga(cga_layout, len(shape))
        return default_for(tuple(shape), bits, transposed, fp4_padded, Layout.freeze(cga))

    @property
    def alignment(self) -> int:
        """Bytes to which a buffer must be aligned: eight rows of the swizzle."""
        return max(_ROW_BYTES, _SWIZZLE_ROWS * self.swizzle_byte_width)

    def mangle(self) -> str:
        rank = f"{self.rank}_" if follows(NVMMA_RANK_MANGLED) else ""
        kind = f"{self.swizzle_byte_width}_{self.element_bitwidth}_{rank}{self.transposed}"
        return f"NVMMA_{kind}_{self.fp4_padded}_{self.joined_bases(self.cga_layout)}_NVMMA"

    def _emit(self, builder: Any) -> Any:
        return builder.get_nvmma_shared_layout(
            self.swizzle_byte_width,
            self.element_bitwidth,
            self.transposed,
            self.fp4_padded,
            self.cga_layout,
            self.rank,
        )

    def _infer_permute(
        self, shape: Sequence[int], order: Sequence[int]
    ) -> Optional[NVMMASharedLayout]:
        """Return a tile for a transposed tile; other permutations are only linear."""
        if list(order) != [1, 0]:
            return None
        cga = [basis[::-1] for basis in self.cga_layout]
        return replace(self, transposed=not self.transposed, cga_layout=cga)

    def _infer_reshape(
        self, shape: Sequence[int], new_shape: Sequence[int]
    ) -> Optional[NVMMASharedLayout]:
        """Cutting or merging rows of one block's tile gives a tile again."""
        fastest = 0 if self.transposed else -1
        if self.cga_layout or not new_shape or new_shape[fastest] != shape[fastest]:
            return None
        reshaped = replace(self, rank=len(new_shape))
        try:
            same = self.to_linear(shape).reshape(new_shape) == reshaped.to_linear(new_shape)
        except errors.LayoutError:
            return None
        return reshaped if same else None

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        names = self.dim_names(self.rank)
        sizes = dict(zip(names, shape))
        cga = self.shrink(self.cga_linear(self.cga_layout, self.rank), sizes)
        per_block = {name: sizes[name] // cga.out_size(name) for name in names}
        # Fastest first.
        order = names if self.transposed else names[::-1]
        if self.transposed and self.rank > 2:
            raise errors.LayoutError(
                "a transposed buffer of more than two dimensions has no matrix layout",
                argument="shape",
                got=list(shape),
                remedy="Permute a buffer that is not transposed.",
            )
        if self.rank == 1:
            tile = LinearLayout.identity_1d(per_block["dim0"], "offset", "dim0")
        elif not self.swizzle_byte_width:
            # Triton before 3.8 ignores `transposed` here; a buffer is one thing in all versions.
            tile = LinearLayout({"offset": []}, {})
            for name in order:
                size = min(per_block[name], _TMA_BOX)
                tile = tile * LinearLayout.identity_1d(size, "offset", name)
            tile = tile.transpose_outs(names[::-1])
        else:
            tile = self._swizzled_box(per_block, order).transpose_outs(names)
        tile = self.grow(tile, per_block)
        return (tile * cga.transpose_outs(list(tile.out_dims))).transpose_outs(names)

    def _swizzled_box(self, per_block: dict[str, int], order: list[str]) -> LinearLayout:
        """Return the shape that one TMA copy writes: a strip of the fastest dimension, rows of all the
        others."""
        width = self.swizzle_byte_width
        strip = width * 8 // self.element_bitwidth // (2 if self.fp4_padded else 1)
        fast, *rest = order
        rows = {name: min(per_block[name], _TMA_BOX) for name in rest}
        if per_block[fast] < strip or prod(rows.values()) < _SWIZZLE_ROWS:
            raise errors.LayoutError(
                "the buffer is too small for the swizzle",
                argument="shape",
                expected=f"in one block at least {strip} elements along {fast} and "
                f"{_SWIZZLE_ROWS} rows",
                got=f"{per_block[fast]} elements and {prod(rows.values())} rows",
                remedy="NVMMASharedLayout.get_default_for picks a swizzle that fits.",
            )
        # Columns and rows of the strip first, as plain numbers; the rows are split up at the end.
        # 16 bytes hold 8 bytes of padded fp4.
        chunk = _CHUNK_BYTES * 8 // self.element_bitwidth // (2 if self.fp4_padded else 1)
        columns = [[0, 1 << i] for i in range((strip - 1).bit_length())]
        if self.fp4_padded:
            columns.insert((chunk - 1).bit_length(), [0, 0])
        rows_per_line = _ROW_BYTES // width
        phases = width // _CHUNK_BYTES
        offsets = columns
        for bit in range((prod(rows.values()) - 1).bit_length()):
            row = 1 << bit
            offsets.append([row, row // rows_per_line % phases * chunk])
        box = LinearLayout({"offset": offsets}, {"rows": prod(rows.values()), fast: strip})
        split = LinearLayout({"rows": []}, {})
        for name in rest:
            split = split * LinearLayout.identity_1d(rows[name], "rows", name)
        return box.compose(split * LinearLayout.identity_1d(strip, fast, fast))


@functools.lru_cache(maxsize=256)  # host code asks for the same few again and again
def default_for(
    shape: tuple[int, ...],
    bits: int,
    transposed: bool = False,
    fp4_padded: bool = False,
    cga: tuple[tuple[int, ...], ...] = (),
) -> NVMMASharedLayout:
    """Return the layout with the widest swizzle that a buffer of `shape` can have; `bits` of an element."""
    bases = [list(basis) for basis in cga]
    blocks = Layout.cga_linear(bases, len(shape)).out_dims.values()
    per_block = [max(1, size // count) for size, count in zip(shape, blocks)]
    if transposed:
        per_block = per_block[::-1]
    swizzle = 0
    if len(shape) > 1 and prod(per_block[:-1]) >= _SWIZZLE_ROWS:
        row_bytes = per_block[-1] * bits * (2 if fp4_padded else 1) // 8
        swizzle = next((w for w in (128, 64, 32) if row_bytes and row_bytes % w == 0), 0)
    return NVMMASharedLayout(swizzle, bits, len(shape), transposed, fp4_padded, bases)
