"""One instruction for the copies of all ranks: loads that add them up, stores to all (sm_90).

    everywhere = group.multicast(x)                        # on the host, of a symmetric tensor
    ...
    total = multimem.load_reduce(everywhere, offsets)      # the sum of all ranks' elements
    multimem.store(everywhere, offsets, total)             # to all ranks

The switch between the devices does it, so a sum moves each element once.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

from gluon_core import errors
from gluon_core.layouts import BlockedLayout
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.typing import Const, Operand, Scalar
from gluon_nvidia.builder import MultimemOperands

__all__ = ["load_reduce", "reduce", "store"]

_REQUIRES = ("nvidia.multimem",)
_NAME = "gl.nvidia.hopper.multimem."

_INTEGERS = (tl.int32, tl.uint32)
_KINDS = {
    **dict.fromkeys((tl.float16, tl.bfloat16), ("add", "min", "max")),
    tl.float32: ("add",),
    **dict.fromkeys(_INTEGERS, ("add", "min", "max", "and", "or", "xor")),
}


@builtin(requires=_REQUIRES, name=_NAME + "load_reduce")
def load_reduce(
    x: Sequence[Any],
    offsets: tl.tensor,
    mask: Optional[Scalar[bool]] = None,
    op: Const[str] = "add",
    width: Optional[Const[int]] = None,
) -> tl.tensor:
    """Return the sum over all ranks' copies of `x` at `offsets`; 16-bit floats are summed in float32,
    and rounded once.

    Args:
        x: result of `group.multicast` for a symmetric tensor.
        offsets: integer tensor in a BlockedLayout, elements from where `x` begins.
        mask: int1; where false, nothing is loaded and the result is 0.
        op: "add"; of 16-bit floats also "min" and "max", of 32-bit integers also "and", "or", "xor".
        width: how many neighbouring elements of a thread one instruction takes. They have to be
            neighbours in memory, the first at a multiple of their size, and to have one mask. By
            default as many as the layout gives a thread, at most 16 bytes; 1 of integers.

    Raises:
        ArgumentError: no such tensor or `op`.
        DtypeError: other elements than float16, bfloat16, float32, int32, uint32.
        LayoutError: `offsets` has another layout, or one that gives a thread fewer neighbours.

    ISA: PTX 9.7.9.14, multimem.ld_reduce.
    """
    access = _Access(x, offsets, mask, width, "load_reduce")
    kind = access.kind(op)
    semantic, type = access.semantic, access.type
    handle = semantic.builder.create_multimem_load_reduce(
        type.to_ir(semantic.builder),
        access.copies(),
        access.mask_handle,
        kind,
        *access.shape,
        access.instruction,
    )
    return semantic.make_tensor(handle, type)


@builtin(requires=_REQUIRES, name=_NAME + "store")
def store(
    x: Sequence[Any],
    offsets: tl.tensor,
    value: Operand,
    mask: Optional[Scalar[bool]] = None,
    width: Optional[Const[int]] = None,
) -> None:
    """Store `value` to all ranks' copies of `x`.

    Args:
        x, offsets, width: as for `load_reduce`.
        value: of the offsets' shape and layout; converted to the type of the elements.
        mask: int1; where false, nothing is stored.

    Raises:
        ArgumentError, DtypeError, LayoutError: as for `load_reduce`.

    ISA: PTX 9.7.9.14, multimem.st.
    """
    access = _Access(x, offsets, mask, width, "store")
    stored = access.operand(value)
    access.semantic.builder.create_multimem_store(
        access.copies(), stored.handle, access.mask_handle, *access.shape, access.instruction
    )


@builtin(requires=_REQUIRES, name=_NAME + "reduce")
def reduce(
    x: Sequence[Any],
    offsets: tl.tensor,
    value: Operand,
    mask: Optional[Scalar[bool]] = None,
    op: Const[str] = "add",
    width: Optional[Const[int]] = None,
) -> None:
    """Add `value` to all ranks' copies of `x`, each element atomically.

    Args:
        x, offsets, width, op: as for `load_reduce`.
        value, mask: as for `store`.

    Raises:
        ArgumentError, DtypeError, LayoutError: as for `load_reduce`.

    ISA: PTX 9.7.9.14, multimem.red.
    """
    access = _Access(x, offsets, mask, width, "reduce")
    kind, stored = access.kind(op), access.operand(value)
    access.semantic.builder.create_multimem_reduce(
        access.copies(),
        stored.handle,
        access.mask_handle,
        kind,
        "relaxed",
        "sys",
        *access.shape,
        access.instruction,
    )


class _Access:
    """Elements of all ranks' copies, checked, and the parts of their instruction."""

    def __init__(self, x: Any, offsets: Any, mask: Any, width: Any, name: str):
        self.semantic = semantic_layer()
        self.peers, address = _copies(x)
        self.element = address.type.element_ty
        if self.element not in _KINDS:
            raise errors.DtypeError(
                f"multimem.{name} has no form for these elements",
                argument="x",
                expected=", ".join(map(str, _KINDS)),
                got=self.element,
            )
        self.offsets = self.semantic.require_distributed(offsets, "offsets")
        if not self.offsets.dtype.is_int():
            raise errors.DtypeError(
                "must be integers", argument="offsets", got=self.semantic.describe(self.offsets)
            )
        layout = self.offsets.type.layout
        if not isinstance(layout, BlockedLayout):
            raise errors.LayoutError(
                "does not tell which elements are neighbours",
                argument="offsets",
                expected="a BlockedLayout",
                got=layout,
                remedy="gl.convert_layout(offsets, gl.portable.blocked_layout(...))",
            )
        self.axis = layout.order[0]
        self.width = self._width(layout.size_per_thread[self.axis], width)
        self.pointers = self.semantic.add(address, self.offsets, True)
        self.type = self.semantic.tensor_type(
            self.element, self.semantic.shape_of(self.offsets), layout
        )
        checked = self.semantic.check_mask(self.pointers, mask)
        self.mask = checked and self.semantic.broadcast_impl_value(self.pointers, checked)[1]
        self.shape = (self.width, self.axis)

    @property
    def instruction(self) -> MultimemOperands:
        """Machine code has the one address that reaches all copies, and the mask as an integer."""
        semantic = self.semantic
        nothing = self.type.with_element_ty(tl.int32).to_ir(semantic.builder)
        return MultimemOperands(
            str(self.element),
            semantic.cast(self.pointers, tl.int64).handle,
            None if self.mask is None else semantic.cast(self.mask, tl.int32).handle,
            nothing,
        )

    def _width(self, held: int, width: Any) -> int:
        size = self.element.primitive_bitwidth // 8
        most = 1 if self.element in _INTEGERS else 16 // size
        least = 1 if size == 4 else 2
        count = self.semantic.compile_time_int(
            min(held, most) if unwrap(width) is None else width, "width", 1
        )
        if count & (count - 1) or count > most or count < least or held % count:
            raise errors.LayoutError(
                "a thread has fewer neighbouring elements",
                argument="width",
                expected=f"a power of two from {least} to {most} that divides {held}, which a thread has",
                got=count,
            )
        return count

    def kind(self, op: Any) -> str:
        return str(self.semantic.one_of("op", unwrap(op), _KINDS[self.element]))

    def operand(self, value: Any) -> Any:
        stored = self.semantic.cast(self.semantic.to_tensor(unwrap(value)), self.element)
        return self.semantic.broadcast_impl_value(self.pointers, stored)[1]

    def copies(self) -> list[Any]:
        return [self.semantic.add(peer, self.offsets, True).handle for peer in self.peers]

    @property
    def mask_handle(self) -> Any:
        return None if self.mask is None else self.mask.handle


def _copies(x: Any) -> tuple[list[Any], Any]:
    """Return the pointers of all ranks, and the one to all copies."""
    try:
        peers, address = x.peers, x.address
    except (AttributeError, ValueError, TypeError):
        raise errors.ArgumentError(
            "not all copies of a tensor",
            argument="x",
            expected="the result of group.multicast for a symmetric tensor",
            got=semantic_layer().describe(x),
        ) from None
    return list(peers), address
