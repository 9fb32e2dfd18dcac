"""Which registers `tcgen05.ld` fills and `tcgen05.st` reads: register layouts for tensor memory.

A warp reaches the 32 rows of tensor memory that its place in its group of four gives it (PTX ISA
9.7.16.8.1, access restrictions). An instruction moves a tile of 32 or 16 rows by 32 to 256 bits;
its fragment says which lane and register has which row and column of the tile. With the layout of
the buffer after the fragment, one has the layout of the tensor. Pure Python.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NoReturn, Optional, Sequence

from gluon_core import errors, features
from gluon_core.layouts import DistributedLinearLayout
from gluon_core.layouts.base import Layout
from gluon_core.layouts.dialect import follows
from gluon_nvidia.features import TMEM_CLUSTERS, TMEM_LONE_ELEMENTS, TMEM_SLICE_BLOCKS
from gluon_nvidia.tensor_memory import COLUMN_BITS, TensorMemoryBase, block_shape

__all__ = ["VARIANTS", "register_layout"]

Bases = list[list[int]]

_SPLIT = "32x32b_splitn"
# Bits of the buffer that the bits of a register and of a lane walk in one instruction: ("r", i) is bit
# i of the row,
# ("c", i) bit i of the 32-bit column (PTX ISA 9.7.16.2.3, matrix fragments).
_FRAGMENTS: dict[str, tuple[list[tuple[str, int]], list[tuple[str, int]]]] = {
    "32x32b": ([], [("r", 0), ("r", 1), ("r", 2), ("r", 3), ("r", 4)]),
    "16x64b": ([], [("r", 3), ("c", 0), ("r", 0), ("r", 1), ("r", 2)]),
    "16x128b": ([("r", 3)], [("c", 0), ("c", 1), ("r", 0), ("r", 1), ("r", 2)]),
    "16x256b": ([("c", 0), ("r", 3)], [("c", 1), ("c", 2), ("r", 0), ("r", 1), ("r", 2)]),
}
VARIANTS = (*_FRAGMENTS, _SPLIT)
_HALF_WARP, _WARP_ROWS = 4, (5, 6)
_NEIGHBOUR = [0, 1]


def register_layout(
    layout: TensorMemoryBase,
    shape: Sequence[int],
    bitwidth: int,
    num_warps: int,
    variant: str = "32x32b",
    cga_layout: Optional[Sequence[Sequence[int]]] = None,
    alloc_shape: Optional[Sequence[int]] = None,
) -> DistributedLinearLayout:
    """Return the layout of a tensor that `tcgen05.ld` and `tcgen05.st` move in tiles of `variant`.

    Args:
        layout: of the buffer in tensor memory.
        shape: of the buffer, two dimensions.
        bitwidth: of an element: 8, 16 or 32.
        num_warps: 4 or more, a power of two; groups beyond the first take other columns.
        variant: "32x32b", "16x64b", "16x128b", "16x256b", or "32x32b_splitn": like "32x32b" with
            the halves of the columns in different registers of one lane.
        cga_layout: how the blocks of a cluster split the tensor, if not as the buffer.
        alloc_shape: of the allocation that the buffer is a slice of.

    Raises:
        LayoutError: an unknown variant, a number of warps that cannot reach tensor memory, or a
            buffer that has no such tile.

    ISA: PTX 9.7.16.8, tcgen05.ld and tcgen05.st.
    """
    variant = Layout.unwrap(variant)
    if variant not in VARIANTS:
        raise errors.LayoutError(
            "unsupported instruction",
            argument="instr_variant",
            expected=", ".join(map(repr, VARIANTS)),
            got=repr(variant),
        )
    num_warps = Layout.unwrap(num_warps)
    if not Layout.is_power_of_two(num_warps) or num_warps < 4:
        raise errors.LayoutError(
            "tensor memory is reached by groups of four warps",
            argument="num_warps",
            expected="4, 8, 16 or 32",
            got=num_warps,
        )
    cga = None if not Layout.unwrap(cga_layout) else Layout.freeze(Layout.check_cga(cga_layout, 2))
    if alloc_shape is not None and layout.cga_layout and follows(TMEM_SLICE_BLOCKS):
        layout = _of_slice(layout, shape, list(alloc_shape)[-2:])
    copies = not follows(features.DROPS_REGISTER_COPIES)
    return _make(layout, tuple(shape), bitwidth, num_warps, variant, cga, copies)


def _of_slice(
    layout: TensorMemoryBase, shape: Sequence[int], alloc_shape: Sequence[int]
) -> TensorMemoryBase:
    """From Triton 3.9 a slice keeps the blocks of its allocation, those outside it as copies."""
    per_block = block_shape(layout, alloc_shape)
    kept = [
        [unit if unit * size < limit else 0 for unit, size, limit in zip(row, per_block, shape)]
        for row in layout.cga_layout
    ]
    return layout if kept == layout.cga_layout else layout.with_cluster(kept)


@lru_cache(maxsize=4096)
def _make(
    layout: TensorMemoryBase,
    shape: tuple[int, ...],
    bitwidth: int,
    num_warps: int,
    variant: str,
    cga: Any,
    copies: bool,
) -> DistributedLinearLayout:
    bases = layout.to_linear(shape).bases
    blocks = bases["block"]
    if cga is not None:
        per_block = block_shape(layout, shape)
        blocks = [[unit * size for unit, size in zip(row, per_block)] for row in cga]
    regs, cols = _packed(bases["col"], bitwidth, layout, shape)
    while cols and not copies and not any(cols[-1]):
        cols.pop()
    atom = "32x32b" if variant == _SPLIT else variant
    regs, lanes, warps = _tile(atom, bases["row"], regs, cols, num_warps, layout, shape)
    if variant == _SPLIT:
        _split_columns(regs, lanes, warps, shape[1], bitwidth, layout)
    return DistributedLinearLayout(regs, lanes, warps, blocks, list(shape)).check()


def _packed(
    cols: list[list[int]], bitwidth: int, layout: TensorMemoryBase, shape: Sequence[int]
) -> tuple[Bases, Bases]:
    """Return the elements that share a 32-bit column, and the bits of the 32-bit columns."""
    if bitwidth not in (8, 16, 32):
        raise errors.LayoutError(
            "not an element type of tensor memory",
            argument="element_ty",
            expected="8, 16 or 32 bits",
            got=f"{bitwidth} bits",
        )
    bits = (COLUMN_BITS // bitwidth).bit_length() - 1
    low = cols[:bits]
    packed = [row for row in low if any(row)]
    # Either the elements fill the column from below, or a column holds one alone.
    stride = getattr(layout, "col_stride", 1)
    lone = not any(map(any, cols)) and follows(TMEM_LONE_ELEMENTS)
    if low[: len(packed)] != packed or stride not in (1, 1 << bits) and not lone:
        raise errors.LayoutError(
            "elements are neither packed into 32-bit columns nor one to a column",
            argument="layout",
            expected=f"col_stride=1 or {1 << bits} for elements of {bitwidth} bits",
            got=f"{layout} of shape {list(shape)}",
        )
    cols = cols[bits:]
    others = any(row[0] for row in packed) or len(packed) < bits and any(map(any, cols))
    if stride == 1 and others:
        raise errors.LayoutError(
            "a block's row fills a part of a 32-bit column, and others follow it",
            argument="layout",
            expected=f"blocks of at least {COLUMN_BITS // bitwidth} columns, or col_stride={1 << bits}",
            got=f"{layout} of shape {list(shape)}",
        )
    if bitwidth == 16 and not packed and cols[:1] == [_NEIGHBOUR]:
        # The instruction packs the halves of two columns into one register, or unpacks them.
        packed, cols = cols[:1], cols[1:]
    return packed, cols


def _tile(
    atom: str,
    rows: list[list[int]],
    packed: list[list[int]],
    cols: list[list[int]],
    num_warps: int,
    layout: TensorMemoryBase,
    shape: Sequence[int],
) -> tuple[Bases, Bases, Bases]:
    in_register, in_lane = _FRAGMENTS[atom]
    width = sum(kind == "c" for kind, _ in (*in_register, *in_lane))
    if len(cols) < width or not all(map(any, cols[:width])):
        _refuse(atom, layout, shape, num_warps)
    bits = {"r": rows, "c": cols}
    regs = packed + [bits[kind][i] for kind, i in in_register]
    lanes = [bits[kind][i] for kind, i in in_lane]
    warps = [rows[i] for i in _WARP_ROWS]
    rest = cols[width:]
    groups = (num_warps // 4).bit_length() - 1
    half = rows[_HALF_WARP]
    second: list[list[int]] = []
    if atom != "32x32b" and any(half):
        # The other 16 rows of the warp are another instruction, or another group's.
        if groups:
            warps.append(half)
            groups -= 1
        else:
            second = [half]
    taken = rest[len(rest) - groups :] if groups <= len(rest) else rest
    rest = rest[: len(rest) - len(taken)]
    warps += taken + [[0, 0]] * (groups - len(taken))
    if atom == "32x32b" and not any(half) and rest:
        # Rows 16 to 31 are empty: the upper lanes take the upper half of the columns.
        lanes[_HALF_WARP] = rest.pop()
    return regs + rest + second, lanes, warps


def _split_columns(
    regs: Bases, lanes: Bases, warps: Bases, width: int, bitwidth: int, layout: TensorMemoryBase
) -> None:
    """Exchange the last register's bit for the one that tells the halves of the columns apart."""
    wanted = [0, width // 2]
    if regs and regs[-1] == wanted:
        return
    if not regs:  # a register that repeats the first makes room
        regs.append([0, 0])
        if width == 1:
            return
    elif any(regs[-1]) and 1 << len(regs) <= COLUMN_BITS // bitwidth:
        raise errors.LayoutError(
            "too few registers to split",
            argument="instr_variant",
            expected=f"more than {COLUMN_BITS // bitwidth} registers of {bitwidth} bits in a lane",
            got=1 << len(regs),
            remedy="Load with '32x32b' and use gl.convert_layout before the split.",
        )
    alone = not any(regs[-1])
    for bases in (lanes,) if alone else (lanes, warps):
        if wanted in bases and (bases is lanes or bases.index(wanted) >= 2):
            bases[bases.index(wanted)], regs[-1] = regs[-1], wanted
            return
    raise errors.LayoutError(
        "no lane or warp tells the halves of the columns apart",
        argument="instr_variant",
        expected=f"a basis {wanted} in lanes, in warps from 4 on, or in the last register",
        got=repr(layout),
        remedy="Load with '32x32b' and use gl.convert_layout before the split.",
    )


def _refuse(atom: str, layout: TensorMemoryBase, shape: Sequence[int], num_warps: int) -> NoReturn:
    raise errors.LayoutError(
        "the buffer is too narrow for the instruction",
        argument="instr_variant",
        expected="'32x32b', which every buffer has",
        got=f"{atom!r} for shape {list(shape)} with {layout} and {num_warps} warps",
    )


def fits_registers(
    layout: TensorMemoryBase,
    shape: Sequence[int],
    bitwidth: int,
    registers: Any,
    alloc_shape: Optional[Sequence[int]] = None,
) -> bool:
    """Return True if some instruction moves between the buffer and a tensor with layout `registers`.

    Lanes and the warps of a group must be as in a tile; the order of the registers is free, and so are
    the elements of further groups of warps.
    """
    mine = registers.to_linear(list(shape)).bases
    num_warps = 1 << len(mine["warp"])
    held = [row for row in mine["register"] if any(row)]
    half = layout.to_linear(list(shape)).bases["row"][_HALF_WARP]
    for variant in _FRAGMENTS:
        try:
            tile = register_layout(
                layout, shape, bitwidth, num_warps, variant, alloc_shape=alloc_shape
            )
        except errors.LayoutError:
            continue
        if follows(TMEM_CLUSTERS) and mine["block"] != tile.block_bases:
            continue
        if mine["warp"][:2] != tile.warp_bases[:2]:
            continue
        # The upper lanes may take other columns of the lower rows, 16x32bx2: where the upper rows
        # are empty, or are another register's or group's.
        apart = not any(half) or half != mine["lane"][-1] and half in held + mine["warp"][2:]
        free_lane = variant == "32x32b" and apart
        lanes = (
            mine["lane"][:-1] == tile.lane_bases[:-1]
            if free_lane
            else (mine["lane"] == tile.lane_bases)
        )
        needed = tile.reg_bases[: _fixed(variant, layout, bitwidth)]
        if lanes and all(row in held for row in needed if any(row)):
            return True
    return False


def _fixed(variant: str, layout: TensorMemoryBase, bitwidth: int) -> int:
    """Return the number of register bits that a tile fixes; pairs of columns need not be packed into
    one."""
    stride = getattr(layout, "col_stride", 1)
    packed = (COLUMN_BITS // bitwidth).bit_length() - 1 if stride == 1 else 0
    return packed + len(_FRAGMENTS[variant][0])
