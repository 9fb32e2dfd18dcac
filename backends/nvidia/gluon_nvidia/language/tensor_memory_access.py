"""Check the warps and layouts of loads and stores of tensor memory (PTX 9.7.16.8)."""

from __future__ import annotations

from typing import Any, Optional, Union

from gluon_core import errors
from gluon_core.layouts.base import DistributedLayout
from gluon_core.plugin.ops import tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const
from gluon_core.values import distributed_type
from gluon_nvidia.tensor_memory import TensorMemoryLayout
from gluon_nvidia.tensor_memory_registers import fits_registers

__all__ = [
    "check_reach",
    "check_warps",
    "load_reduced",
    "loaded_type",
    "multiplies",
    "stored_value",
    "warn_in_flight",
]


def check_warps(semantic: SemanticLayer) -> None:
    if semantic.num_warps % 4:
        raise errors.LayoutError(
            "tensor memory is reached by groups of four warps",
            argument="num_warps",
            expected="a multiple of 4",
            got=semantic.num_warps,
        )


def check_reach(kind: Any, layout: DistributedLayout, semantic: SemanticLayer) -> None:
    """Raise where a warp would hold elements that it cannot reach."""
    bits = kind.element_ty.primitive_bitwidth
    if not fits_registers(kind.layout, kind.shape, bits, layout, kind.alloc_shape):
        raise errors.LayoutError(
            "no instruction moves tensor memory to and from this layout",
            argument="layout",
            expected=f"e.g. {kind.get_reg_layout(semantic.num_warps)}",
            got=repr(layout),
            remedy="Take the layout from get_reg_layout(), then gl.convert_layout.",
        )


def loaded_type(
    semantic: SemanticLayer, memory: Any, layout: Optional[Union[DistributedLayout, tl.constexpr]]
) -> distributed_type:
    memory.type.check_matrix()
    if not isinstance(memory.layout, TensorMemoryLayout):
        raise errors.LayoutError(
            "Triton does not load scales",
            argument="self",
            expected="a view with TensorMemoryLayout",
            got=str(memory.type),
        )
    check_warps(semantic)
    layout = unwrap(layout)
    if layout is None:
        layout = memory.type.get_reg_layout(semantic.num_warps)
    layout = semantic.check_layout(layout, memory.shape)
    if semantic.is_placeholder(layout):
        raise errors.LayoutError(
            "the layout of the loaded tensor must be known",
            argument="layout",
            expected="none, or one of get_reg_layout()",
            got=repr(layout),
        )
    check_reach(memory.type, layout, semantic)
    return distributed_type(memory.dtype, memory.shape, layout)


def stored_value(
    semantic: SemanticLayer, kind: Any, value: object, first: bool = False
) -> tl.tensor:
    """Return `value`, checked for a buffer of type `kind`; `first` as in `check_stored`."""
    check_warps(semantic)
    held: tl.tensor = unwrap(value)
    semantic.check_stored(kind, held, first)
    layout = held.type.layout
    if semantic.is_placeholder(layout):
        raise errors.LayoutError(
            "the layout of the stored tensor must be known",
            argument="value",
            got=repr(layout),
            remedy="Use gl.convert_layout or gl.set_auto_layout first.",
        )
    check_reach(kind, layout, semantic)
    return held


def multiplies(semantic: SemanticLayer, memory: Any, pred: Any) -> None:
    """Remember that a multiplication began to write an accumulator, in any case."""
    if unwrap(pred) is True:
        began: list[Any] = semantic.notes.setdefault("tcgen05", [])
        began.append((memory.handle, semantic.passed, semantic.place()[1]))


def warn_in_flight(semantic: SemanticLayer, memory: Any) -> None:
    """Warn of an accumulator that is read with nothing behind its multiplication that could wait."""
    for handle, passed, line in reversed(semantic.notes.get("tcgen05", ())):
        if handle is memory.handle and passed == semantic.passed:
            semantic.warn(
                f"the accumulator is read while the multiplication of line {line} writes it. Let that "
                "one name a barrier, tcgen05_commit(bar) or mbarriers=[bar], and wait for it before."
            )
            return


def load_reduced(
    semantic: SemanticLayer,
    memory: Any,
    layout: Optional[Union[DistributedLayout, tl.constexpr]],
    op: str,
    absolute: Const[bool],
    propagate_nan: Optional[Union[tl.PropagateNan, tl.constexpr]],
) -> tuple[tl.tensor, tl.tensor]:
    warn_in_flight(semantic, memory)
    result = loaded_type(semantic, memory, layout)
    absolute = semantic.compile_time_bool(absolute, "abs")
    nan = unwrap(propagate_nan)
    nan = tl.PropagateNan.NONE if nan is None else nan
    if not isinstance(nan, tl.PropagateNan):
        raise errors.ArgumentError(
            "unknown choice",
            argument="propagate_nan",
            expected="triton.language.PropagateNan.NONE or PropagateNan.ALL",
            got=semantic.describe(nan),
        )
    if memory.dtype != tl.float32:
        raise errors.DtypeError(
            "tcgen05.ld.red compares float32",
            argument="self",
            expected="float32",
            got=memory.dtype,
            remedy="Load, then gl.max or gl.min.",
        )
    bases = result.layout.to_linear(memory.shape).bases
    spread = [name for name in ("lane", "warp") if any(row[1] for row in bases[name])]
    if spread or any(row[0] for row in bases["register"]):
        raise errors.LayoutError(
            "a lane must hold one row, and all of it",
            argument="layout",
            expected="get_reg_layout() of a [128, N] block with four warps",
            got=repr(result.layout),
        )
    subject = f"tensor_memory_descriptor.load_{op.lower()}"
    semantic.check_assembler(subject, "nvidia.tcgen05_ld_red", f"load(), then gl.{op.lower()}")
    kind = semantic.enum("TMEM_LOAD_REDUCE_MODIFIER", op)
    # Triton's builder adds the layout of the second.
    values, reduced, *_ = semantic.builder.create_tmem_load(
        result.to_ir(semantic.builder), memory.handle, kind, absolute, nan
    )
    rows = semantic.wrap_inferred(reduced, memory.dtype, memory.shape[:1])
    return semantic.make_tensor(values, result), rows
