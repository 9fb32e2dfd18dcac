"""Result types of the ops that change a tensor's shape: the layout follows the shape."""

from __future__ import annotations

from typing import Any, Sequence

from gluon_sim.tracing.types import MemDescType, TensorType, Type

__all__ = [
    "expand_dims",
    "join",
    "memdesc_reshape",
    "memdesc_trans",
    "reduce",
    "reshape",
    "split",
    "stays_in_threads",
    "trans",
    "unpacked",
]  # fmt: skip


def _infer(rule: str, layout: Any, *args: Any) -> Any:
    """`gluon_core.layouts.infer.<what>`; a tensor without a layout keeps none."""
    if layout is None:
        return None
    from gluon_core.layouts import infer

    return getattr(infer, rule)(layout, *args)


def expand_dims(type: Type, axis: int) -> Type:
    assert isinstance(type, TensorType)
    shape = (*type.shape[:axis], 1, *type.shape[axis:])
    return TensorType(type.elem, shape, _infer("expand_dims", type.layout, axis))


def reshape(type: Type, shape: Sequence[int]) -> Type:
    shape = tuple(int(s) for s in shape)
    layout = getattr(type, "layout", None)
    return TensorType(type.element, shape, _infer("reshape", layout, type.dims, shape))


def trans(type: Type, order: Sequence[int]) -> Type:
    assert isinstance(type, TensorType)
    shape = tuple(type.shape[i] for i in order)
    return TensorType(type.elem, shape, _infer("permute", type.layout, type.shape, order))


def join(type: Type) -> Type:
    layout = getattr(type, "layout", None)
    return TensorType(type.element, (*type.dims, 2), _infer("join", layout, type.dims))


def split(type: Type) -> Type:
    assert isinstance(type, TensorType)
    shape = type.shape[:-1]
    if not shape:
        return type.elem
    return TensorType(type.elem, shape, _infer("split", type.layout, type.shape))


def reduce(type: Type, axis: int) -> Type:
    assert isinstance(type, TensorType)
    shape = tuple(s for i, s in enumerate(type.shape) if i != axis)
    if not shape:
        return type.elem
    return TensorType(type.elem, shape, _infer("reduce", type.layout, axis))


def unpacked(type: Type, element: Type, axis: int) -> Type:
    """Return the type with two elements for each one along `axis`, both in its thread."""
    assert isinstance(type, TensorType)
    shape = tuple(s * 2 if d == axis else s for d, s in enumerate(type.shape))
    return TensorType(element, shape, _doubled(type.layout, type.shape, shape, axis))


def _doubled(layout: Any, shape: Sequence[int], doubled: Sequence[int], axis: int) -> Any:
    from gluon_core.layouts import BlockedLayout, DistributedLinearLayout
    from gluon_core.layouts.base import DistributedLayout

    if isinstance(layout, BlockedLayout):
        sizes = [s * 2 if d == axis else s for d, s in enumerate(layout.size_per_thread)]
        return BlockedLayout(
            sizes, layout.threads_per_warp, layout.warps_per_cta, layout.order, layout.cga_layout
        )
    if not isinstance(layout, DistributedLayout) or layout._rank_or_none() is None:
        return layout
    bases = layout.to_linear(shape).bases
    first = [1 if d == axis else 0 for d in range(len(shape))]

    def widen(rows: list[list[int]]) -> list[list[int]]:
        return [[v * 2 if d == axis else v for d, v in enumerate(row)] for row in rows]

    return DistributedLinearLayout(
        [first, *widen(bases.get("register", []))],
        widen(bases.get("lane", [])),
        widen(bases.get("warp", [])),
        widen(bases.get("block", [])),
        list(doubled),
    )


def memdesc_trans(type: Type, order: Sequence[int]) -> Type:
    assert isinstance(type, MemDescType)
    shape = tuple(type.shape[i] for i in order)
    rank = len(type.shape)
    lead, tail = type.alloc_shape[:-rank], type.alloc_shape[-rank:]
    alloc = (*lead, *(tail[i] for i in order))
    layout = _infer("memdesc_permute", type.layout, type.shape, order)
    return MemDescType(type.elem, shape, layout, alloc, type.space)


def memdesc_reshape(type: Type, shape: Sequence[int]) -> Type:
    assert isinstance(type, MemDescType)
    shape = tuple(int(s) for s in shape)
    rank = len(type.shape)
    layout = _infer("memdesc_reshape", type.layout, type.shape, shape)
    return MemDescType(type.elem, shape, layout, (*type.alloc_shape[:-rank], *shape), type.space)


def stays_in_threads(source: Any, result: Any, shape: Sequence[int]) -> bool:
    """Return whether a conversion moves no element to another thread."""
    from gluon_core.errors import LayoutError
    from gluon_core.layouts import conversion

    if source == result:
        return True
    try:
        return conversion(source, result, shape, 32).kind in ("none", "registers")
    except LayoutError:  # a layout that is left open has no linear form
        return False
