"""`gl.amd.slice`: a part of a tensor, by picking registers."""

from __future__ import annotations

from gluon_amd.features import REGISTER_SLICE
from gluon_core.errors import LayoutError, ShapeError, refuse
from gluon_core.layouts.base import DistributedLayout
from gluon_core.plugin.ops import builtin, semantic_layer, tl
from gluon_core.plugin.typing import Shape

__all__ = ["slice"]


@builtin(since=REGISTER_SLICE, name="gl.amd.slice")
def slice(source: tl.tensor, shape: Shape, offsets: Shape) -> tl.tensor:
    """Return the part of `source` of this shape at these offsets; no data moves between threads.

    Args:
        source: tensor, in a layout whose tile fits into `shape`.
        shape: compile-time, of the part.
        offsets: compile-time, of its first element.

    Returns:
        A tensor of `shape` in `source`'s layout.

    Raises:
        ShapeError: ranks differ, or the part leaves the tensor.
        LayoutError: the part's elements are not in the threads that would hold them.

    ISA: none; it names other registers.
    """
    semantic = semantic_layer()
    source = semantic.require_distributed(source, "source")
    whole = semantic.shape_of(source)
    part, start = semantic.unwrap_shape(shape), semantic.unwrap_shape(offsets, "offsets")
    if not len(whole) == len(part) == len(start):
        raise ShapeError(
            "shape and offsets must have the tensor's rank",
            expected=len(whole),
            got=f"{part} and {start}",
        )
    leaves = ShapeError(
        "the part leaves the tensor",
        argument="offsets",
        expected=f"within {whole}",
        got=f"{part} at {start}",
    )
    if any(offset + size > end for offset, size, end in zip(start, part, whole)):
        raise leaves
    layout = source.type.layout
    result = semantic.tensor_type(source.dtype, part, layout)
    if min(start) < 0:
        refuse(leaves)
    else:
        _check_held(layout, whole, part, start)
    builder = semantic.builder
    handle = builder.create_extract_slice(result.to_ir(builder), source.handle, start)
    return semantic.make_tensor(handle, result)


def _check_held(
    layout: DistributedLayout, whole: list[int], part: list[int], start: list[int]
) -> None:
    if semantic_layer().is_placeholder(layout):
        raise LayoutError("needs a layout that is known", argument="source", got=repr(layout))
    large, small = layout.to_linear(whole), layout.to_linear(part)
    same = all(large.bases.get(d, []) == small.bases.get(d, []) for d in ("lane", "warp", "block"))
    held = {(0,) * len(whole)} if same else set()
    for basis in large.bases["register"]:
        held |= {tuple(a ^ b for a, b in zip(element, basis)) for element in held}
    wanted = {tuple(start)}
    for basis in small.bases["register"]:
        wanted |= {tuple(a + b for a, b in zip(element, basis)) for element in wanted}
    if not wanted <= held:
        raise LayoutError(
            "the part's elements are not in the threads that would hold them",
            argument="shape",
            expected=f"a part of whole tiles of {layout}",
            got=f"{part} at {start} of {whole}",
        )
