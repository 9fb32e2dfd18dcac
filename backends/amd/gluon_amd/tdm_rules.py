"""Check the boxes of the tensor data mover, TDM (gfx1250). Pure Python: host and kernels ask here."""

from __future__ import annotations

from typing import Callable, Optional, Sequence, Union

from gluon_amd.layouts import PartitionedSharedLayout
from gluon_core.errors import DtypeError, LayoutError, ShapeError, refuse
from gluon_core.layouts import PaddedSharedLayout, SharedLinearLayout, SwizzledSharedLayout
from gluon_core.layouts.base import SharedLayout

__all__ = ["check_box", "padding_of"]

_MAX_RANK = 5
_MAX_EXTENT = (1 << 16) - 1  # a dimension of the box has 16 bits in the descriptor
# Limits by the bits of the descriptor, in dwords (4 bytes).
_INTERVALS = (2, 256)
_PADDINGS = (1, 128)


def padding_of(layout: SharedLayout) -> Optional[tuple[int, int]]:
    """(interval, padding) in elements of a shared layout; None where it has no gaps."""
    if isinstance(layout, PartitionedSharedLayout):
        layout = layout.partition_layout
    if not isinstance(layout, PaddedSharedLayout):
        return None
    interval, padding = layout.interval_padding_pairs[0]
    return interval, padding


def check_box(
    block_shape: Sequence[int], bits: int, layout: SharedLayout, name: Callable[[str], str] = str
) -> None:
    """Refuse a box or a layout that TDM cannot move.

    Args:
        block_shape: of the box.
        bits: of an element.
        layout: of the box in LDS.
        name: names of `base`, `block_shape` and `layout` in errors.

    Raises:
        ShapeError: more than 5 dimensions, or an extent above 65535.
        DtypeError: elements that are not whole bytes.
        LayoutError: a swizzle, or gaps that the hardware does not make.
    """
    if not 1 <= len(block_shape) <= _MAX_RANK:
        raise ShapeError(
            "TDM moves boxes of 1 to 5 dimensions",
            argument=name("block_shape"),
            expected=f"1 to {_MAX_RANK} dimensions",
            got=list(block_shape),
        )
    for dim, size in enumerate(block_shape):
        if size > _MAX_EXTENT:
            raise ShapeError(
                f"dimension {dim} of the box is too long",
                argument=name("block_shape"),
                expected=f"at most {_MAX_EXTENT}",
                got=list(block_shape),
            )
    if bits not in (8, 16, 32, 64):
        raise DtypeError(
            "TDM moves elements of 1, 2, 4 or 8 bytes", argument=name("base"), got=f"{bits} bits"
        )
    inner = layout
    if isinstance(layout, PartitionedSharedLayout):
        inner = layout.partition_layout
    if isinstance(inner, SwizzledSharedLayout):
        if inner.max_phase != 1:
            raise LayoutError(
                "TDM does not swizzle",
                argument=name("layout"),
                expected="max_phase=1",
                got=repr(layout),
                remedy="PaddedSharedLayout avoids bank conflicts here.",
            )
    elif isinstance(inner, PaddedSharedLayout):
        _check_padding(inner, bits, name)
    elif not isinstance(inner, SharedLinearLayout):
        raise LayoutError(
            "TDM does not write this layout",
            argument=name("layout"),
            expected="PaddedSharedLayout, or SwizzledSharedLayout with max_phase=1",
            got=repr(layout),
        )
    if not _by_rows(inner, block_shape):
        refuse(
            LayoutError(
                "TDM writes the last dimension first, then the one before it, and so on",
                argument=name("layout"),
                expected=f"order {list(range(len(block_shape)))[::-1]}",
                got=repr(layout),
                remedy="Keep that order in LDS, and permute the view that is loaded.",
            )
        )


def _by_rows(
    layout: Union[PaddedSharedLayout, SharedLinearLayout, SwizzledSharedLayout],
    shape: Sequence[int],
) -> bool:
    """Do elements follow each other as in C order, gaps aside?"""
    if isinstance(layout, SwizzledSharedLayout):
        long = [d for d in layout.order if d < len(shape) and shape[d] > 1]
        return long == sorted(long, reverse=True)
    rows = layout.offset_bases
    return rows == sorted(rows) and all(sum(map(bool, r)) == 1 for r in rows)


def _check_padding(layout: PaddedSharedLayout, bits: int, name: Callable[[str], str]) -> None:
    pairs = layout.interval_padding_pairs
    if len(pairs) != 1:
        raise LayoutError(
            "TDM supports one interval of padding",
            argument=name("layout"),
            expected="one [interval, padding] pair",
            got=pairs,
        )
    for part, value, (low, high) in zip(("interval", "padding"), pairs[0], (_INTERVALS, _PADDINGS)):
        if not low * 32 <= value * bits <= high * 32:
            refuse(
                LayoutError(
                    f"the {part} is not one that TDM has",
                    argument=name("layout"),
                    expected=f"{low * 32 // bits or 1} to {high * 32 // bits} elements of {bits} bits "
                    f"({low} to {high} dwords)",
                    got=f"{value} in {pairs}",
                )
            )
