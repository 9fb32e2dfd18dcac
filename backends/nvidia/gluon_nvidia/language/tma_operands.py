"""Checks of TMA's operands; each raises before the builder can abort."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence

from gluon_core import errors
from gluon_core.layouts.base import DistributedLayout
from gluon_core.plugin.ops import semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Scalar
from gluon_core.values import CachePolicy as PlainCachePolicy
from gluon_core.values import shared_memory_descriptor
from gluon_nvidia.features import COPIES_VERIFIED, OPEN_ROWS
from gluon_nvidia.language.cache import CacheHint, CachePolicy
from gluon_nvidia.language.descriptor import (
    check_blocks,
    tensor_descriptor,
    tensor_descriptor_im2col,
)
from gluon_nvidia.layouts import NVMMASharedLayout

__all__ = [
    "box_buffer",
    "box_start",
    "cache_policy_operands",
    "coordinates",
    "first_column",
    "im2col_offsets",
    "require_descriptor",
    "rows_of",
    "scattered_buffer",
    "source_buffer",
]

_MESSAGE_EXTENT = 256
_LEAST_ROWS = 8
_MOST_PIXELS = 1024
_HELD_ROWS = 4  # that one instruction takes
_START_BITS = 128  # boxes start at multiples of these bits, along the innermost dimension


def require_descriptor(semantic: SemanticLayer, value: object, im2col: bool) -> tensor_descriptor:
    """`value` if it is a descriptor of that mode, for the blocks of this kernel."""
    wanted = tensor_descriptor_im2col if im2col else tensor_descriptor
    if not isinstance(value, tensor_descriptor) or type(value) is not wanted:
        raise errors.DtypeError(
            "not a descriptor of this mode"
            if isinstance(value, tensor_descriptor)
            else "not a descriptor",
            argument="tensor_desc",
            expected=f"a {wanted.__name__}",
            got=semantic.describe(value),
            remedy=None
            if im2col
            else "Pass a gluon_core.nvidia.hopper.TensorDescriptor to the kernel, or call "
            "make_tensor_descriptor.",
        )
    check_blocks(semantic, value.type)
    if value.layout.transposed:
        errors.refuse(
            errors.LayoutError(
                "TMA keeps rows in the tensor's order",
                argument="tensor_desc",
                expected="a layout with transposed=False",
                got=repr(value.layout),
                remedy="Copy without, and use result.permute([1, 0]).",
            )
        )
    if im2col and (len(value.block_shape) != 2 or not 3 <= len(value.shape) <= 5):
        raise errors.ShapeError(
            "im2col mode copies [pixels, channels] of a tensor of rank 3 to 5 (PTX 5.5.4)",
            argument="tensor_desc",
            got=f"a box of rank {len(value.block_shape)} of a tensor of rank {len(value.shape)}",
        )
    if im2col and int(unwrap(value.block_shape[0])) > _MOST_PIXELS:
        raise errors.ShapeError(
            "too many pixels for one copy (PTX 5.5.4)",
            argument="tensor_desc",
            expected=f"at most {_MOST_PIXELS}",
            got=value.block_shape[0],
        )
    return value


def _check_elements(
    desc: tensor_descriptor, buffer: shared_memory_descriptor, argument: str
) -> None:
    ours, theirs = buffer.dtype, desc.dtype
    verified = semantic_layer().has(COPIES_VERIFIED)
    same = ours.primitive_bitwidth == theirs.primitive_bitwidth
    if ours != theirs and not (same and (not verified or ours.is_int() and theirs.is_int())):
        errors.refuse(
            errors.DtypeError(
                "the elements are not the descriptor's",
                argument=argument,
                expected=theirs,
                got=ours,
            )
        )


def _check_layout(desc: tensor_descriptor, buffer: shared_memory_descriptor, argument: str) -> None:
    """Return the same layout; where only the ranks differ, as far as it can be the same."""
    ours, theirs = buffer.layout, desc.layout
    if ours == theirs:
        return
    fields = ("swizzle_byte_width", "element_bitwidth", "transposed", "fp4_padded")
    if (
        isinstance(ours, NVMMASharedLayout)
        and ours.rank != theirs.rank
        and len(ours.cga_layout) == len(theirs.cga_layout)
        and all(getattr(ours, name) == getattr(theirs, name) for name in fields)
    ):
        return
    raise errors.LayoutError(
        "the layout is not the descriptor's",
        argument=argument,
        expected=repr(theirs),
        got=repr(ours),
        remedy="Allocate with layout=tensor_desc.layout.",
    )


def box_buffer(
    desc: tensor_descriptor, buffer: shared_memory_descriptor, argument: str
) -> shared_memory_descriptor:
    """`buffer` if it is shared memory for one box.

    It may have another rank than the box, as [rows, columns] for a box [1, rows, columns], or
    its tiles of one instruction in another order, and before Triton 3.7 more or fewer of them.
    """
    buffer = semantic_layer().shared_memory(buffer, argument)
    _check_elements(desc, buffer, argument)
    block = [int(unwrap(size)) for size in desc.block_shape]
    shape = list(buffer.shape)
    other = math.prod(shape) != math.prod(block) and semantic_layer().has(COPIES_VERIFIED)
    unlike = _without_ones(shape) != _without_ones(block)
    if unlike and (other or _message(desc, shape) != _message(desc, block)):
        error = errors.ShapeError(
            "the shape is not that of the descriptor's box",
            argument=argument,
            expected=block,
            got=shape,
            remedy="Allocate with shape=tensor_desc.block_shape; pick one of several with .index(i).",
        )
        if other:  # compilers refuse or abort on it
            raise error
        errors.refuse(error)
    _check_layout(desc, buffer, argument)
    return buffer


def _message(desc: tensor_descriptor, shape: list[int]) -> Optional[list[int]]:
    """Return the part of a tile that one instruction moves; None in clusters."""
    layout = desc.layout
    if layout.cga_layout:
        return None if shape != [int(unwrap(size)) for size in desc.block_shape] else shape
    box = [min(size, _MESSAGE_EXTENT) for size in shape]
    if layout.swizzle_byte_width:
        box[-1] = min(box[-1], layout.swizzle_byte_width * 8 // layout.element_bitwidth)
    return box


def source_buffer(
    desc: tensor_descriptor, buffer: shared_memory_descriptor
) -> shared_memory_descriptor:
    """`buffer` if it is shared memory that can be stored as one box."""
    _refuse_padded(desc)
    return box_buffer(desc, buffer, "src")


def _refuse_padded(desc: tensor_descriptor) -> None:
    if desc.layout.fp4_padded:
        raise errors.LayoutError(
            "TMA stores no padded fp4 (PTX 5.5.1)",
            argument="tensor_desc",
            expected="a layout with fp4_padded=False",
            got=repr(desc.layout),
        )


def _without_ones(shape: list[int]) -> list[int]:
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def rows_of(semantic: SemanticLayer, desc: tensor_descriptor, x_offsets: object) -> tl.tensor:
    """Return the row indices of a gather or scatter."""
    block = [int(unwrap(size)) for size in desc.block_shape]
    if len(block) != 2 or block[0] != 1 or len(desc.shape) != 2:
        errors.refuse(
            errors.ShapeError(
                "rows of a matrix are chosen with a box of one row (PTX 5.5.3.2)",
                argument="tensor_desc",
                expected="block_shape [1, columns]",
                got=block,
            )
        )
    bits = desc.dtype.primitive_bitwidth
    least = 32 // bits * 8
    if block[1] < least:
        raise errors.ShapeError(
            "too few columns",
            argument="tensor_desc",
            expected=f"at least {least} x {desc.dtype}",
            got=block,
        )
    rows = semantic.require_distributed(x_offsets, "x_offsets")
    if rows.dtype not in (tl.int32, tl.uint32):
        raise errors.DtypeError(
            "must be 32-bit integers",
            argument="x_offsets",
            expected="int32",
            got=rows.dtype,
            remedy="Cast them with x_offsets.to(gl.int32).",
        )
    shape = semantic.shape_of(rows)
    if len(shape) != 1 or shape[0] < _LEAST_ROWS:
        raise errors.ShapeError(
            "not a list of rows",
            argument="x_offsets",
            expected=f"a tensor of rank 1, at least {_LEAST_ROWS} rows",
            got=shape,
        )
    layout = rows.type.layout
    if not semantic.is_placeholder(layout):
        problem = _spread(layout, shape)
    else:
        problem = None if semantic.has(OPEN_ROWS) else "the compiler needs a known layout"
    if problem is not None:
        warps = semantic.num_warps
        raise errors.LayoutError(
            problem,
            argument="x_offsets",
            expected=f"SliceLayout(0, BlockedLayout([1, 4], [32, 1], [1, {warps}], [1, 0]))",
            got=repr(layout),
        )
    return rows


def _spread(layout: DistributedLayout, shape: list[int]) -> Optional[str]:
    """Return the mistake in a layout's spread of the rows over threads; None without one."""
    bases = layout.to_linear(shape).bases
    held = 1
    for basis in bases["register"]:
        if list(basis) != [held]:
            break
        held *= 2
    if held < _HELD_ROWS:
        return f"a thread must hold {_HELD_ROWS} consecutive rows, which one instruction takes"
    if any(any(basis) for basis in bases["lane"]):
        return "the threads of a warp must hold the same rows: one of them issues the instruction"
    return None


def scattered_buffer(
    desc: tensor_descriptor, rows: tl.tensor, buffer: shared_memory_descriptor, argument: str
) -> shared_memory_descriptor:
    """`buffer` if it is shared memory for the chosen rows."""
    semantic = semantic_layer()
    if argument == "src":
        _refuse_padded(desc)
    buffer = semantic.shared_memory(buffer, argument)
    _check_elements(desc, buffer, argument)
    wanted = [semantic.shape_of(rows)[0], int(unwrap(desc.block_shape[1]))]
    if list(buffer.shape) != wanted:
        raise errors.ShapeError(
            "not [rows, columns] of the copied tensor",
            argument=argument,
            expected=wanted,
            got=list(buffer.shape),
        )
    _check_layout(desc, buffer, argument)
    return buffer


def coordinates(
    semantic: SemanticLayer, coord: Sequence[Scalar[int]], rank: int, argument: str = "coord"
) -> list[Any]:
    """Return handles of int32 scalars, one for each dimension of the tensor."""
    return _integers(semantic, coord, rank, argument, tl.int32)


def box_start(
    semantic: SemanticLayer,
    desc: tensor_descriptor,
    coord: Sequence[Scalar[int]],
    written: bool = False,
) -> list[Any]:
    """`coordinates` of a box, which starts where TMA can begin."""
    handles = coordinates(semantic, coord, len(desc.shape))
    _check_start(desc, unwrap(coord)[-1], "coord")
    if written:
        _warn_before(semantic, unwrap(coord), "coord")
    return handles


def first_column(
    semantic: SemanticLayer,
    desc: tensor_descriptor,
    column: Scalar[int],
    written: bool = False,
) -> Any:
    """Return the handle of the column at which chosen rows start."""
    (handle,) = coordinates(semantic, [column], 1, "y_offset")
    _check_start(desc, column, "y_offset")
    if written:
        _warn_before(semantic, [column], "y_offset")
    return handle


def _warn_before(semantic: SemanticLayer, place: Sequence[Scalar[int]], argument: str) -> None:
    """Warn of a constant before the tensor, where nothing can be written: the op may be one that no
    launch reaches, so it is no error; other coordinates are known when the kernel runs."""
    for value in map(unwrap, place):
        if isinstance(value, int) and value < 0:
            semantic.warn(
                f"{argument}: {value} is before the tensor; a store or reduction of the TMA that "
                "begins there is an illegal instruction, as seen on sm_90. Begin inside, and write "
                "the elements before through pointers with a mask."
            )


def _check_start(desc: tensor_descriptor, column: Scalar[int], argument: str) -> None:
    """Refuse a constant that is no multiple of 16 bytes; others are known when the kernel runs."""
    column = unwrap(column)
    bits = desc.dtype.primitive_bitwidth
    if isinstance(column, int) and column * bits % _START_BITS:
        raise errors.ArgumentError(
            "the box does not start where TMA can begin (an illegal instruction on sm_90)",
            argument=argument,
            expected=f"the last coordinate a multiple of {_START_BITS // bits} x {desc.dtype}, "
            "which is 16 bytes",
            got=column,
            remedy="Start at the multiple below, and ignore the elements before.",
        )


def im2col_offsets(
    semantic: SemanticLayer, offsets: Optional[Sequence[Scalar[int]]], rank: int
) -> list[Any]:
    """Return handles of int16 scalars, one for each spatial dimension of the tensor."""
    return _integers(semantic, offsets, rank - 2, "offsets", tl.int16)


def _integers(
    semantic: SemanticLayer, values: object, count: int, argument: str, dtype: tl.dtype
) -> list[Any]:
    values = unwrap(values)
    if not isinstance(values, (list, tuple, tl.tuple)) or len(values) != count:
        description = (
            len(values)
            if isinstance(values, (list, tuple, tl.tuple))
            else semantic.describe(values)
        )
        raise errors.ShapeError(
            "needs one for each dimension",
            argument=argument,
            expected=f"{count} integers",
            got=description,
        )
    return [_integer(semantic, value, argument, dtype).handle for value in values]


def _integer(semantic: SemanticLayer, value: object, argument: str, dtype: tl.dtype) -> tl.tensor:
    value = unwrap(value)
    bits = dtype.primitive_bitwidth
    if isinstance(value, int) and not isinstance(value, bool):
        if -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            return semantic.scalar_constant(value, dtype)
        errors.refuse(
            errors.ArgumentError(
                "out of range", argument=argument, expected=f"a value of {dtype}", got=value
            )
        )
        low = value & ((1 << bits) - 1)
        return semantic.scalar_constant(low - (low >> (bits - 1) << bits), dtype)
    if isinstance(value, tl.tensor) and value.type.is_block():
        raise errors.ShapeError("must be scalars", argument=argument, got=semantic.describe(value))
    wanted = (dtype, tl.uint32) if dtype == tl.int32 else (dtype,)
    if not isinstance(value, tl.tensor) or value.dtype not in wanted:
        raise errors.DtypeError(
            f"must be {dtype} (PTX 9.7.9.27.1)",
            argument=argument,
            expected=dtype,
            got=semantic.describe(value),
            remedy=f"Cast it with .to(gl.{dtype.name}).",
        )
    checked: tl.tensor = value
    return checked


def cache_policy_operands(
    builder: Any, policy: Optional[CacheHint], public: str
) -> tuple[Any, ...]:
    """Return the builder's operand for a cache policy; none where there is none."""
    policy = unwrap(policy)
    if policy is None:
        return ()
    semantic_layer().require(CachePolicy.since, f"{public}(cache_policy=...)")
    if not isinstance(policy, (CachePolicy, PlainCachePolicy)):
        raise errors.ArgumentError(
            "not a cache policy",
            argument="cache_policy",
            expected="CachePolicy(l2=FractionalEvictionPolicy(...))",
            got=semantic_layer().describe(policy),
        )
    refused = {
        "cache_modifier": policy.cache_modifier not in (None, "none"),
        "l1": getattr(policy, "l1", None) is not None,
        "l2_prefetch_size": getattr(policy, "l2_prefetch_size", None) is not None,
    }
    for field, value in refused.items():
        if value:
            raise errors.ArgumentError(
                "copies of the TMA go through L2 alone (PTX 9.7.9.27.1)",
                argument="cache_policy",
                expected="a policy with l2 alone",
                got=f"{field}={getattr(policy, field)!r}",
            )
    return (policy._to_ir(builder),)
