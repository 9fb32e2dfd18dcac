"""Define tensor descriptors, which kernels hand to the engines that copy boxes of a tensor.

A descriptor says where a tensor is in global memory (base, shape, strides) and which box of it
one copy moves (`block_shape`, and the shared layout that the box has on chip). Kernels get one as
an argument, or make one. The classes here know no vendor; a vendor subclasses them where its
engine wants more.

**In IR** a descriptor is 1 + 2 * rank values: the descriptor itself, the shape as int32, the
strides in elements as int64. A descriptor parameter of a kernel becomes these parameters in order.

**In a signature** it is text, which `parse_descriptor` reads and `descriptor_text` writes:

    tensordesc<fp16[128, 64],NVMMASharedLayout(swizzle_byte_width=128, ...)>
    tensordesc_im2col<fp16[128, 64],input_rank=4,NVMMASharedLayout(...)>

that is `HEAD<ELEMENT[BLOCK SHAPE],LAYOUT>`, with Triton's short name of the element type and the
layout as Python prints it. `input_rank` gives the rank of the tensor where the box has another one.
`Language.descriptors` maps each head to the class of type that stands for it.

**In a simulator** the value is a `gluon_core.plugin.reference.Descriptor`.
"""

from __future__ import annotations

import ast
import math
import re
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from gluon_core import _triton
from gluon_core._triton import base_type, base_value, block_type, tl, tl_tuple, tuple_type, unwrap
from gluon_core.errors import DtypeError, LayoutError, TraceError
from gluon_core.features import Feature
from gluon_core.layouts.base import Layout, SharedLayout

__all__ = [
    "DescriptorText",
    "descriptor_text",
    "parse_descriptor",
    "split_descriptor",
    "tensor_descriptor",
    "tensor_descriptor_type",
]


class tensor_descriptor_type(base_type):
    """Type of a descriptor.

    Args:
        block_type: dtype and shape of the box that one copy moves.
        shape_type: a tuple type, an int32 for each dimension of the tensor.
        strides_type: a tuple type, an int64 for each dimension of the tensor.
        layout: shared layout of the box.

    Raises:
        LayoutError: not a layout for shared memory, or of another rank than the box.
    """

    _name = "tensor_descriptor"
    _prefix = "TD"
    requires: tuple[str, ...] = ()  # capabilities of the engine that takes it
    since: Optional[Feature] = None  # the releases of Triton that have it, None for all

    def __init__(self, block_type: Any, shape_type: Any, strides_type: Any, layout: Any):
        self.block_type = unwrap(block_type)
        self.shape_type = shape_type
        self.strides_type = strides_type
        self.layout = unwrap(layout)
        rank = len(self.block_type.shape)
        if not isinstance(self.layout, SharedLayout):
            raise LayoutError(
                "not a layout for shared memory",
                argument="layout",
                expected="a shared layout",
                got=repr(self.layout),
            )
        own = self.layout._rank_or_none()
        if own is not None and own != rank:
            raise LayoutError(
                "the rank of the layout is not that of the box",
                argument="layout",
                expected=f"rank {rank} for {_dims(self.block_type.shape)}",
                got=f"rank {own}: {self.layout}",
            )

    @property
    def nbytes_per_cta(self) -> int:
        """Return the bytes of one block's part of the box: those of one copy at a barrier."""
        bases = getattr(self.layout, "cga_layout", None) or []
        parts = 2 ** sum(any(basis) for basis in bases)  # the other blocks have the same
        bits = (
            math.prod(_dims(self.block_type.shape)) * self.block_type.element_ty.primitive_bitwidth
        )
        result: int = bits // 8 // parts
        return result

    def check_release(self) -> None:
        """Raise CapabilityError where the installed Triton has no such type."""
        if self.since is not None:
            _triton.require(self.since, self._name)

    def make(self, handle: Any, shape: Any, strides: Any) -> Any:
        """Return the value of this type."""
        return tensor_descriptor(handle, shape, strides, self.block_type, self.layout)

    def _to_ir(self, builder: Any) -> Any:
        """Return the IR type of the descriptor alone."""
        signed = self.block_type.element_ty.is_int_signed()
        return builder.get_tensor_descriptor_layout_type(
            self.block_type.to_ir(builder), signed, self.layout._to_ir(builder)
        )

    to_ir = _to_ir

    def _flatten_ir_types(self, builder: Any, out: list[Any]) -> None:
        out.append(self._to_ir(builder))
        self.shape_type._flatten_ir_types(builder, out)
        self.strides_type._flatten_ir_types(builder, out)

    def _unflatten_ir(self, handles: Sequence[Any], cursor: int) -> tuple[Any, int]:
        handle = handles[cursor]
        shape, cursor = self.shape_type._unflatten_ir(handles, cursor + 1)
        strides, cursor = self.strides_type._unflatten_ir(handles, cursor)
        return self.make(handle, shape, strides), cursor

    def __str__(self) -> str:
        return f"{self._name}<{self.block_type}, {self.layout}>"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return (
            type(self) is type(other)
            and isinstance(other, tensor_descriptor_type)
            and self.block_type == other.block_type
            and self.shape_type == other.shape_type
            and self.strides_type == other.strides_type
            and self.layout == other.layout
        )

    def __hash__(self) -> int:
        return hash((type(self), str(self.block_type), self.layout))

    def mangle(self) -> str:
        return f"{self._prefix}{self.block_type.mangle()}_{self.layout.mangle()}{self._prefix}"


class tensor_descriptor(base_value):
    """A descriptor inside a kernel.

    Args:
        handle: the IR value.
        shape: of the tensor, int32 scalars.
        strides: of the tensor in elements, int64 scalars.
        block_type: dtype and shape of the box that one copy moves.
        layout: shared layout of the box.
    """

    type_class: Callable[..., Any] = tensor_descriptor_type

    def __init__(self, handle: Any, shape: Any, strides: Any, block_type: Any, layout: Any):
        self.handle = handle
        self.shape = shape if isinstance(shape, tl_tuple) else tl_tuple(list(shape))
        self.strides = strides if isinstance(strides, tl_tuple) else tl_tuple(list(strides))
        self.type = type(self).type_class(block_type, self.shape.type, self.strides.type, layout)

    def _flatten_ir(self, handles: list[Any]) -> None:
        handles.append(self.handle)
        self.shape._flatten_ir(handles)
        self.strides._flatten_ir(handles)

    def _set_name(self, builder: Any, name: str) -> None:
        self.handle.set_loc(builder.create_name_loc(name, self.handle.get_loc()))

    @property
    def dtype(self) -> Any:
        """dtype of the elements."""
        return self.type.block_type.element_ty

    @property
    def block_type(self) -> Any:
        """dtype and shape of the box."""
        return self.type.block_type

    @property
    def block_shape(self) -> Any:
        """Shape of the box that one copy moves."""
        return self.type.block_type.shape

    @property
    def layout(self) -> Any:
        """Shared layout of the box."""
        return self.type.layout

    @property
    def nbytes_per_cta(self) -> int:
        """Return the bytes of one block's part of the box: those of one copy at a barrier."""
        result: int = self.type.nbytes_per_cta
        return result

    def __str__(self) -> str:
        return str(self.type)


def _dims(shape: Any) -> list[int]:
    return [int(unwrap(size)) for size in shape]


# ---------------------------------------------------------------------------------------------
# Signatures
# ---------------------------------------------------------------------------------------------

_TEXT = re.compile(
    r"(?P<head>tensordesc\w*)<(?P<element>\w+)\[(?P<block>[\d, ]+)\]"
    r"(?:,\s*input_rank=(?P<rank>\d+))?(?:,\s*(?P<layout>\w+\(.*\)))?>"
)


class DescriptorText(NamedTuple):
    """A descriptor in a signature, taken apart.

    Attributes:
        head: `tensordesc`, or that of another mode.
        element: Triton's short name of the element type.
        block_shape: of the box.
        rank: of the tensor: 1 + 2 * rank values stand for the descriptor.
        layout: text of the layout.
    """

    head: str
    element: str
    block_shape: tuple[int, ...]
    rank: int
    layout: str


def descriptor_text(
    element: str,
    block_shape: Sequence[int],
    layout: Any,
    head: str = "tensordesc",
    input_rank: Optional[int] = None,
) -> str:
    """Return a descriptor's entry in a signature.

    Args:
        element: Triton's short name of the element type, such as `fp16`.
        input_rank: rank of the tensor, where it is not that of the box.
    """
    block = ", ".join(str(int(size)) for size in block_shape)
    rank = "" if input_rank is None else f"input_rank={int(input_rank)},"
    return f"{head}<{element}[{block}],{rank}{layout!r}>"


def split_descriptor(text: Any) -> Optional[DescriptorText]:
    """Take an entry of a signature apart; return None for one that is no descriptor.

    Those of plain Triton kernels have no layout, "" here.

    Raises:
        DtypeError: it begins as a descriptor, and is none.
    """
    if not isinstance(text, str) or not text.startswith("tensordesc"):
        return None
    match = _TEXT.fullmatch(text)
    if match is None:
        raise _no_descriptor(text)
    block = tuple(int(size) for size in match["block"].split(","))
    rank = int(match["rank"]) if match["rank"] else len(block)
    return DescriptorText(match["head"], match["element"], block, rank, match["layout"] or "")


def _no_descriptor(text: str) -> DtypeError:
    return DtypeError(
        "not a descriptor",
        argument="signature",
        expected="e.g. 'tensordesc<fp16[128, 64],NVMMASharedLayout(...)>'",
        got=repr(text),
    )


def parse_descriptor(text: str, element: Any, types: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the type that a descriptor's entry in a signature names.

    Args:
        element: `f(short name) -> dtype`.
        types: head -> class of type, see `Language.descriptors`.

    Raises:
        DtypeError: no such head, or malformed text.
        LayoutError: an unknown layout, or one that is not for shared memory.
    """
    parts = split_descriptor(text)
    if parts is not None and not parts.layout:
        raise _no_descriptor(text)
    cls = types.get(parts.head) if parts is not None else None
    if parts is None or cls is None:
        raise DtypeError(
            f"the target has no descriptors of kind {parts.head if parts else text!r}",
            argument="signature",
            expected=", ".join(map(repr, types)) or "no descriptors at all",
            got=repr(text),
        )
    block = block_type(element(parts.element), list(parts.block_shape))
    shape = tuple_type([tl.int32] * parts.rank)
    strides = tuple_type([tl.int64] * parts.rank)
    return cls(block, shape, strides, parse_layout(parts.layout))


def parse_layout(text: str) -> Layout:
    """Return the layout that prints as `text`: a class of those imported, with literal arguments.

    Raises:
        LayoutError: it names no layout.
    """
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("not a call")
        cls = layout_class(call.func.id)
        if cls is None:
            raise ValueError("no such layout")
        args = [ast.literal_eval(arg) for arg in call.args]
        named = {str(item.arg): ast.literal_eval(item.value) for item in call.keywords}
    except (ValueError, SyntaxError) as error:
        raise LayoutError(
            "not a layout", argument="signature", expected="as Python prints it", got=text
        ) from error
    result: Layout = cls(*args, **named)
    return result


def layout_class(name: str) -> Optional[type]:
    """Return the (vendor's) layout class of that name, among those that have been imported."""
    pending: list[type] = [Layout]
    while pending:
        cls = pending.pop()
        if cls.__name__ == name:
            return cls
        pending.extend(cls.__subclasses__())
    return None


def translate_layout(layout: Any) -> Layout:
    """Our class for a layout that the builder answers with.

    Triton's builder answers with classes of its own Gluon package; they are recognised by class
    name and read field by field. A recorder answers with our classes.
    """
    if isinstance(layout, Layout):
        return layout
    name = type(layout).__name__
    cls = layout_class(name)
    if cls is None:
        raise TraceError(f"the builder answered with an unknown layout {name}", got=repr(layout))
    values = {}
    for key in getattr(layout, "__dataclass_fields__", ()):
        value = unwrap(getattr(layout, key))
        values[key] = translate_layout(value) if type(value).__name__.endswith("Layout") else value
    built: Layout = cls(**values)
    return built


def is_layout(value: Any) -> bool:
    """Return True if `value` is a layout of ours."""
    return isinstance(value, Layout)
