"""Operands of TDM's ops; each check raises before the builder can abort."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from gluon_amd.features import TDM_ROWS_CLUSTERED
from gluon_amd.language.descriptor import tensor_descriptor
from gluon_amd.language.mbarrier import check_mbarrier
from gluon_amd.layouts import PartitionedSharedLayout
from gluon_amd.tdm_rules import padding_of
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError, refuse
from gluon_core.features import Feature
from gluon_core.layouts.base import SharedLayout
from gluon_core.plugin.ops import semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Scalar
from gluon_core.values import shared_memory_descriptor

__all__ = [
    "check_descriptor",
    "check_gather_padding",
    "check_row_op",
    "check_row_padding",
    "handles",
    "int32",
    "kept",
    "memory_of_box",
    "optional_barrier",
    "pred_int32",
    "row_indices",
    "sequence",
    "stride",
    "updated",
    "vector",
    "warp_hint",
    "zeros",
]

INT32 = (tl.int32, tl.uint32)


def check_descriptor(value: object, argument: str) -> tensor_descriptor:
    value = unwrap(value)
    if not isinstance(value, tensor_descriptor):
        raise DtypeError(
            "not a TDM descriptor",
            argument=argument,
            expected="a result of tdm.make_tensor_descriptor, or a TensorDescriptor argument",
            got=semantic_layer().describe(value),
        )
    return value


def sequence(value: object, argument: str) -> list[Any]:
    value = unwrap(value)
    if not isinstance(value, (list, tuple, tl.tuple)):
        raise ArgumentError(
            "not a sequence",
            argument=argument,
            expected="a list or tuple",
            got=semantic_layer().describe(value),
        )
    return list(value)


def vector(
    semantic: SemanticLayer, desc: tensor_descriptor, values: object, argument: str
) -> list[tl.tensor]:
    """Return an int32 for each dimension of the descriptor; [] for None."""
    if unwrap(values) is None:
        return []
    items = sequence(values, argument)
    rank = len(desc.shape)
    if len(items) != rank:
        refuse(
            ShapeError(
                "one value for each dimension of the tensor",
                argument=argument,
                expected=f"{rank} values",
                got=len(items),
            )
        )
    return [int32(semantic, item, argument) for item in items]


def kept(sizes: Sequence[Any]) -> tl.tuple:
    """Return sizes as a tuple of the kernel, in which compile-time values stay so."""
    return tl.tuple([tl.constexpr(v) if isinstance(v, int) else v for v in map(unwrap, sizes)])


def zeros(semantic: SemanticLayer, desc: tensor_descriptor) -> list[tl.tensor]:
    return [semantic.to_tensor(0) for _ in desc.shape]


def handles(values: Sequence[tl.tensor]) -> list[Any]:
    return [value.handle for value in values]


def int32(semantic: SemanticLayer, value: object, argument: str) -> tl.tensor:
    number = _integer(semantic, value, argument)
    if number.dtype.primitive_bitwidth > 32:
        raise DtypeError(
            "must fit into 32 bits",
            argument=argument,
            expected="int32",
            got=number.dtype,
            remedy="Convert it with .to(gl.int32).",
        )
    return number if number.dtype in INT32 else semantic.cast(number, tl.int32)


def stride(semantic: SemanticLayer, value: object) -> tl.tensor:
    plain = unwrap(value)
    if isinstance(plain, int) and not isinstance(plain, bool):
        return semantic.make_scalar(plain, tl.int64)
    return semantic.cast(_integer(semantic, value, "strides"), tl.int64)


def _integer(semantic: SemanticLayer, value: Any, argument: str) -> tl.tensor:
    value = unwrap(value)
    if isinstance(value, bool) or not isinstance(value, (int, tl.tensor)):
        raise DtypeError("not an integer", argument=argument, got=semantic.describe(value))
    value = semantic.to_tensor(value)
    if value.type.is_block():
        raise ShapeError("must be a scalar", argument=argument, got=semantic.describe(value))
    if not value.dtype.is_int() or value.dtype == tl.int1:
        raise DtypeError("must be an integer", argument=argument, expected="int32", got=value.dtype)
    checked: tl.tensor = value
    return checked


def optional_barrier(
    value: Optional[shared_memory_descriptor],
) -> Optional[shared_memory_descriptor]:
    return None if value is None or unwrap(value) is None else check_mbarrier(value)


def warp_hint(
    semantic: SemanticLayer,
    value: Optional[Const[int]],
    layout: SharedLayout,
    argument: str = "warp_used_hint",
) -> Optional[int]:
    """Return a bit mask of the warps that share a copy into `layout`, or None."""
    if unwrap(value) is None:
        return None
    hint = semantic.compile_time_int(value, argument, 1, (1 << semantic.num_warps) - 1)
    warps = [warp for warp in range(semantic.num_warps) if hint >> warp & 1]
    differing = 0
    for warp in warps:
        differing |= warp ^ warps[0]
    if len(warps) != 1 << bin(differing).count("1"):
        raise ArgumentError(
            "the warps are not those that agree in some bits of their number",
            argument=argument,
            expected="such as 0b0001, 0b0011, 0b1100, 0b0101 or 0b1111",
            got=bin(hint),
        )
    if isinstance(layout, PartitionedSharedLayout):
        pieces = layout.num_partitions * layout.num_groups
        if len(warps) % pieces:
            raise ArgumentError(
                "each slice of a partitioned buffer is a warp's own",
                argument=argument,
                expected=f"a multiple of {pieces} warps",
                got=bin(hint),
            )
    return hint


def memory_of_box(desc: tensor_descriptor, memory: Any, argument: str) -> shared_memory_descriptor:
    """`memory` if it is a view that holds one box of `desc`."""
    if unwrap(memory) is None:
        raise ArgumentError("missing", argument=argument, expected="a shared_memory_descriptor")
    view: shared_memory_descriptor = semantic_layer().shared_memory(memory, argument)
    block = [int(unwrap(size)) for size in desc.block_shape]
    if view.dtype != desc.dtype:
        refuse(
            DtypeError(
                "the dtype is not the descriptor's",
                argument=argument,
                expected=desc.dtype,
                got=view.dtype,
            )
        )
    if list(view.shape) != block:
        raise ShapeError(
            "the shape is not that of the descriptor's box",
            argument=argument,
            expected=block,
            got=list(view.shape),
        )
    if not _same_layout(view.layout, desc.layout, block):
        refuse(
            LayoutError(
                "laid out differently than the descriptor says",
                argument=argument,
                expected=repr(desc.layout),
                got=repr(view.layout),
                remedy="Allocate it with desc.block_shape and desc.layout.",
            )
        )
    return view


def _same_layout(a: SharedLayout, b: SharedLayout, shape: list[int]) -> bool:
    if a == b:
        return True
    if padding_of(a) != padding_of(b):
        return False
    try:
        return a.to_linear(shape) == b.to_linear(shape)
    except LayoutError:
        return False


def check_row_padding(desc: tensor_descriptor, op: str, since: Feature) -> None:
    """Check that stores step over gaps between rows, and over no others."""
    gaps = padding_of(desc.layout)
    if gaps is None:
        return
    row = int(unwrap(desc.block_shape[-1]))
    if not semantic_layer().has(since):
        raise LayoutError(
            f"the installed Triton {op}s from buffers without gaps only",
            argument="layout",
            got=repr(desc.layout),
            remedy=f"Use SwizzledSharedLayout(1, 1, 1, [1, 0]), or {since.releases}.",
        )
    if gaps[0] != row:
        raise LayoutError(
            f"a {op} steps over gaps between the rows of the box only",
            argument="layout",
            expected=f"interval {row}",
            got=f"interval {gaps[0]}",
        )


def check_gather_padding(desc: tensor_descriptor) -> None:
    gaps = padding_of(desc.layout)
    row = int(unwrap(desc.block_shape[-1]))
    if gaps is not None and row % gaps[0]:
        raise LayoutError(
            "each row starts a new interval in a gather",
            argument="layout",
            expected=f"an interval that divides {row}",
            got=f"interval {gaps[0]}",
        )


def row_indices(semantic: SemanticLayer, rows: tl.tensor, count: int, op: str) -> tl.tensor:
    name = "src_row_indices" if op == "gather" else "dst_row_indices"
    rows = semantic.require_distributed(rows, name)
    if rows.dtype not in (tl.int16, tl.uint16, *INT32):
        raise DtypeError(
            "row indices have 16 or 32 bits",
            argument=name,
            expected="int16 or int32",
            got=rows.dtype,
        )
    own = semantic.shape_of(rows)
    if len(own) != 1 or own[0] > count:  # fewer move the first rows of the buffer
        refuse(
            ShapeError(
                "one index for each row of the box",
                argument=name,
                expected=[count],
                got=own,
            )
        )
    layout = rows.type.layout
    if semantic.is_placeholder(layout):
        raise LayoutError(
            "the compiler needs a known layout of the rows",
            argument=name,
            expected="a tensor with a layout",
            got=repr(layout),
        )
    lanes = layout.to_linear(own).bases.get("lane", [])
    if any(any(basis) for basis in lanes):
        warps = semantic.num_warps
        refuse(
            LayoutError(
                "a warp moves rows as one, and its lanes hold different indices",
                argument=name,
                expected="the same indices in every lane",
                got=repr(layout),
                remedy=f"gl.SliceLayout(1, gl.BlockedLayout([{count}, 1], [1, 32], [1, {warps}], [1, 0]))"
                " gives them to every lane.",
            )
        )
    return rows


def check_row_op(
    semantic: SemanticLayer, desc: tensor_descriptor, rows: tl.tensor, op: str
) -> None:
    """Check the cluster for gathers and scatters of rows."""
    block = [int(unwrap(size)) for size in desc.block_shape]
    if semantic.num_ctas < 2:
        return
    if op == "scatter" or not semantic.has(TDM_ROWS_CLUSTERED):
        raise ArgumentError(
            f"the installed Triton {op}s rows for a single workgroup only",
            argument="num_ctas",
            expected=1,
            got=semantic.num_ctas,
        )
    layout = rows.type.layout
    own = [any(basis) for basis in layout.to_linear(block[:1]).bases.get("block", [])]
    wanted = [basis[0] > 0 for basis in desc.layout.cga_layout]
    if not semantic.is_placeholder(layout) and own != wanted:
        raise LayoutError(
            "the workgroups of the cluster do not split the indices as they split the rows",
            argument="src_row_indices",
            expected=f"a cga_layout that goes with {desc.layout.cga_layout}",
            got=repr(layout),
        )


def updated(
    semantic: SemanticLayer,
    desc: tensor_descriptor,
    offsets: Sequence[tl.tensor],
    bounds: Sequence[tl.tensor],
    pred: Optional[Scalar[int]],
    clamp: bool,
) -> Any:
    """Return the handle of a descriptor that was changed; `pred` is None, a number or a scalar."""
    switch = None if pred is None else pred_int32(semantic, pred)
    return semantic.builder.create_update_tensor_descriptor(
        desc.handle,
        handles(offsets),
        handles(bounds),
        semantic.handle_or_absent(switch),
        clamp,
    )


def pred_int32(semantic: SemanticLayer, pred: Scalar[int]) -> tl.tensor:
    """Return a predicate as newer Tritons take it."""
    pred = unwrap(pred)
    if isinstance(pred, int):
        return semantic.to_tensor(int(pred))
    if isinstance(pred, tl.tensor) and not pred.type.is_block() and pred.dtype in INT32:
        result: tl.tensor = pred
        return result
    return semantic.cast(semantic.predicate(pred), tl.int32)
