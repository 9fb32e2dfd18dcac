"""Building blocks for layouts that tile a tensor: per-dimension identities, clusters, fitting."""

from __future__ import annotations

from typing import Mapping, Optional, Sequence

from gluon_core.errors import LayoutError
from gluon_core.features import DROPS_REGISTER_COPIES
from gluon_core.layouts.dialect import follows
from gluon_core.layouts.linear import LinearLayout

__all__ = ["combine_with_cga", "dim_names", "fit", "grow", "identity_nd", "shrink"]


def dim_names(rank: int) -> list[str]:
    """["dim0", "dim1", ...]: the out-dims of every layout."""
    return [f"dim{i}" for i in range(rank)]


def identity_nd(in_dim: str, sizes: Sequence[int], order: Sequence[int]) -> LinearLayout:
    """Return a tile of `sizes`, walked by `in_dim` along `order` (the fastest dimension first).

    The out-dims stand in `order` too; `combine_with_cga` sorts them.
    """
    layout = LinearLayout({in_dim: []}, {})
    for d in order:
        layout = layout * LinearLayout.identity_1d(sizes[d], in_dim, f"dim{d}")
    return layout


def cga_linear(cga_layout: Sequence[Sequence[int]], rank: int) -> LinearLayout:
    """Return the block part of a layout, one unit per block tile."""
    return LinearLayout({"block": cga_layout}, dim_names(rank))


def shrink(
    layout: LinearLayout, sizes: Mapping[str, int], drop_registers: bool = False
) -> LinearLayout:
    """Cut the layout to `sizes`: the rest wraps onto element zero (it broadcasts).

    With `drop_registers`, registers that only reached beyond are dropped instead.
    """
    bases = layout.bases
    cut: set[int] = set()
    outs = layout.out_dims
    for index, (dim, actual) in enumerate(layout.out_dims.items()):
        wanted = sizes[dim]
        if actual <= wanted:
            continue
        hot = [
            (row[index], name, i)
            for name, rows in bases.items()
            for i, row in enumerate(rows)
            if row[index]
        ]
        if wanted > 1 and any(value & (value - 1) for value, _, _ in hot):
            raise LayoutError(
                "a layout whose bases mix bits cannot be cut to a smaller shape",
                argument="shape",
                expected=f"at least {actual} in {dim}",
                got=wanted,
            )
        for value, name, i in hot:
            if value >= wanted:
                bases[name][i][index] = 0
                if name == "register":
                    cut.add(i)
        outs[dim] = wanted
    if drop_registers:
        bases["register"] = [row for i, row in enumerate(bases["register"]) if i not in cut]
    return LinearLayout(bases, outs)


def grow(layout: LinearLayout, sizes: Mapping[str, int]) -> LinearLayout:
    """Repeat the layout along its first in-dim (registers, offsets) until it covers `sizes`."""
    first = next(iter(layout.in_dims))
    for dim, actual in layout.out_dims.items():
        if sizes[dim] > actual:
            layout = layout * LinearLayout.identity_1d(sizes[dim] // actual, first, dim)
    return layout


def fit(
    layout: LinearLayout, sizes: Mapping[str, int], drop_registers: bool = False
) -> LinearLayout:
    """Grow, then shrink, to exactly `sizes`."""
    return shrink(grow(layout, sizes), sizes, drop_registers)


def combine_with_cga(
    cta: LinearLayout,
    cga_layout: Sequence[Sequence[int]],
    shape: Sequence[int],
    keep_copies: Optional[bool] = None,
) -> LinearLayout:
    """Return the layout of one block (`cta`, any size) spread over a cluster to cover `shape`.

    Registers that reach beyond a small shape stay as copies where `keep_copies`; None follows the
    compiler in use for blocked layouts.
    """
    names = dim_names(len(shape))
    sizes = dict(zip(names, shape))
    cga = shrink(cga_linear(cga_layout, len(shape)), sizes)
    cga = cga.transpose_outs(list(cta.out_dims))
    per_block = {dim: max(1, sizes[dim] // cga.out_size(dim)) for dim in cta.out_dims}
    if keep_copies is None:
        keep_copies = not follows(DROPS_REGISTER_COPIES)
    drop = "register" in cta.in_dims and not keep_copies
    return (fit(cta, per_block, drop) * cga).transpose_outs(names)
