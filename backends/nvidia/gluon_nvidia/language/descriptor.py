"""Tensor descriptors of NVIDIA's TMA inside kernels (sm_90)."""

from __future__ import annotations

from typing import Any, Sequence, Union

from gluon_core import errors
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Scalar, Shape
from gluon_core.values import check_block_shape
from gluon_core.values import descriptors as core
from gluon_nvidia.features import IM2COL
from gluon_nvidia.layouts import NVMMASharedLayout

__all__ = [
    "make_tensor_descriptor",
    "tensor_descriptor",
    "tensor_descriptor_im2col",
    "tensor_descriptor_im2col_type",
    "tensor_descriptor_type",
]

_Sizes = Union[Sequence[Any], tl.tuple]  # of a tensor, scalars
_PADDINGS = ("zero", "nan")
_MOST_RANK = 5
_LEAST_BYTES = 16
_MOST_EXTENT = (1 << 31) - 1
_MOST_STRIDE_BYTES = 1 << 40


class tensor_descriptor_type(core.tensor_descriptor_type):
    """Type of a descriptor of a tiled tensor: one copy moves a box of `block_type`'s shape.

    Args:
        block_type: dtype and shape of the box.
        shape_type: tuple type, an int32 for each dimension.
        strides_type: tuple type, an int64 for each dimension.
        layout: NVMMASharedLayout of the box.

    Raises:
        LayoutError: another layout, or one for another rank or element size.
        ShapeError: a rank beyond 5, extents that are no powers of two, or rows of less than 16
            bytes.
        DtypeError: elements that TMA does not copy.
    """

    requires = ("nvidia.tma",)

    def __init__(
        self,
        block_type: tl.block_type,
        shape_type: tl.tuple_type,
        strides_type: tl.tuple_type,
        layout: NVMMASharedLayout,
    ):
        super().__init__(block_type, shape_type, strides_type, layout)
        if not isinstance(self.layout, NVMMASharedLayout):
            raise errors.LayoutError(
                "TMA writes shared memory in its own layouts only",
                argument="layout",
                expected="NVMMASharedLayout",
                got=repr(self.layout),
                remedy="NVMMASharedLayout.get_default_for(block_shape, dtype) makes one.",
            )
        check_box(
            self.block_type.element_ty, [int(unwrap(n)) for n in self.block_type.shape], self.layout
        )

    def make(self, handle: Any, shape: _Sizes, strides: _Sizes) -> "tensor_descriptor":
        return tensor_descriptor(handle, shape, strides, self.block_type, self.layout)


class tensor_descriptor(core.tensor_descriptor):
    """A descriptor of a tiled tensor: a kernel's argument, or the result of `make_tensor_descriptor`.

    Args:
        handle: the IR value.
        shape: of the tensor, int32 scalars.
        strides: of the tensor in elements, int64 scalars.
        block_type: dtype and shape of the box that one copy moves.
        layout: NVMMASharedLayout of the box.

    ISA: PTX 5.5, tensors.
    """

    type_class = tensor_descriptor_type


class tensor_descriptor_im2col_type(tensor_descriptor_type):
    """Type of a descriptor in im2col mode (Triton 3.8): one copy moves `block_type` = [pixels,
    channels] of a tensor of rank 3 to 5, of which `shape_type` and `strides_type` speak."""

    _name = "tensor_descriptor_im2col"
    _prefix = "TDI"
    since = IM2COL

    def _to_ir(self, builder: Any) -> Any:
        self.check_release()
        element = self.block_type.element_ty
        return builder.get_tensor_descriptor_im2col_layout_type(
            self.block_type.to_ir(builder), element.is_int_signed(), self.layout._to_ir(builder)
        )

    to_ir = _to_ir

    def make(self, handle: Any, shape: _Sizes, strides: _Sizes) -> "tensor_descriptor_im2col":
        return tensor_descriptor_im2col(handle, shape, strides, self.block_type, self.layout)


class tensor_descriptor_im2col(tensor_descriptor):
    """A descriptor in im2col mode: an argument of a kernel, with Triton 3.8 and newer.

    ISA: PTX 5.5.4, im2col mode.
    """

    type_class = tensor_descriptor_im2col_type


@builtin(requires=("nvidia.tma",), name="gl.nvidia.hopper.tma.make_tensor_descriptor")
def make_tensor_descriptor(
    base: tl.tensor,
    shape: Sequence[Scalar[int]],
    strides: Sequence[Scalar[int]],
    block_shape: Shape,
    layout: Union[NVMMASharedLayout, tl.constexpr],
    padding_option: Const[str] = "zero",
) -> tensor_descriptor:
    """Make a descriptor inside the kernel, from values that may differ between programs.

    The descriptor lives in global memory that the launch provides, so it costs more than one
    passed as an argument: make it once, not in a loop.

    Args:
        base: scalar pointer to the tensor's first element, 16-byte aligned.
        shape: of the tensor, 1 to 5 integers, kept as int32.
        strides: in elements, kept as int64; the last is the constant 1, the others are multiples
            of 16 bytes.
        block_shape: of the box that one copy moves: compile-time powers of two, at least 16 bytes
            in the last dimension.
        layout: NVMMASharedLayout of the box.
        padding_option: value of loads outside the tensor: "zero", or "nan" for
            floats.

    Returns:
        A tensor_descriptor of `base`'s element type.

    Raises:
        DtypeError: `base` is no scalar pointer, or a size is no integer scalar.
        ShapeError: ranks that differ, or an illegal extent, stride or box.
        LayoutError: another layout, or one that is not for such a box.
        ArgumentError: no such padding.

    ISA: PTX 5.5.8, tensor-map; 9.7.9.28, tensormap.replace.
    """
    semantic = semantic_layer()
    base = _pointer(semantic, base)
    element = base.dtype.element_ty
    block = semantic.unwrap_shape(block_shape, "block_shape")
    sizes, steps = _listed(shape, "shape"), _listed(strides, "strides")
    for argument, values in (("strides", steps), ("block_shape", block)):
        if len(values) != len(sizes):
            raise errors.ShapeError(
                "needs one for each dimension of the tensor",
                argument=argument,
                expected=f"{len(sizes)} as in shape",
                got=len(values),
            )
    padding = _padding(padding_option, element)
    _check_sizes(sizes, steps, element)
    semantic.check_block_shape(block, "the box of a descriptor")
    box = tl.block_type(element, block)
    sizes = [_scalar(semantic, size, tl.int32, "shape") for size in sizes]
    steps = [_scalar(semantic, step, tl.int64, "strides") for step in steps]
    kind = tensor_descriptor_type(
        box, tl.tuple_type([tl.int32] * len(sizes)), tl.tuple_type([tl.int64] * len(steps)), layout
    )
    check_blocks(semantic, kind)
    handle = semantic.builder.create_make_tensor_descriptor(
        kind.to_ir(semantic.builder),
        base.handle,
        [size.handle for size in sizes],
        [step.handle for step in steps],
        semantic.enum("PADDING_OPTION", f"PAD_{padding.upper()}"),
    )
    return kind.make(handle, tl.tuple(sizes), tl.tuple(steps))


def check_blocks(semantic: SemanticLayer, kind: tensor_descriptor_type) -> None:
    """Raise unless the descriptor's layout is for the blocks that the cluster has."""
    ctas = 1 << len(kind.layout.cga_layout)
    if ctas != semantic.num_ctas:
        raise errors.LayoutError(
            "the layout's blocks are not those of the cluster",
            argument="layout",
            expected=f"num_ctas={semantic.num_ctas}",
            got=f"{ctas}: {kind.layout}",
            remedy="Give the layout a cga_layout for the cluster.",
        )


def check_box(element: tl.dtype, block: list[int], layout: NVMMASharedLayout) -> None:
    """Raise unless TMA moves boxes like this."""
    bits = element.primitive_bitwidth
    if element.is_ptr() or bits not in (8, 16, 32, 64):
        raise errors.DtypeError(
            "TMA does not copy such elements (PTX 5.5.1)",
            argument="base",
            expected="numbers of 8, 16, 32 or 64 bits",
            got=element,
        )
    if not 1 <= len(block) <= _MOST_RANK:
        raise errors.ShapeError(
            "tensors have 1 to 5 dimensions (PTX 5.5)", argument="block_shape", got=block
        )
    check_block_shape(block, "the box of a descriptor")
    if block[-1] * bits < 8 * _LEAST_BYTES:
        raise errors.ShapeError(
            "a row of the box is a multiple of 16 bytes (PTX 5.5.3.1)",
            argument="block_shape",
            expected=f"at least {8 * _LEAST_BYTES // bits} x {element} in the last dimension",
            got=f"{block}: {block[-1] * bits // 8} bytes",
        )
    if layout.element_bitwidth != bits:
        raise errors.LayoutError(
            "the layout is for elements of a different size",
            argument="layout",
            expected=f"element_bitwidth={bits} for {element}",
            got=repr(layout),
        )


def _pointer(semantic: SemanticLayer, base: Any) -> Any:
    base = unwrap(base)
    if not isinstance(base, tl.tensor) or base.type.is_block() or not base.dtype.is_ptr():
        raise errors.DtypeError(
            "not a scalar pointer",
            argument="base",
            expected="a pointer",
            got=semantic.describe(base),
        )
    return base


def _listed(values: Any, argument: str) -> list[Any]:
    """Return the entries of a sequence, compile-time ones as Python values."""
    values = unwrap(values)
    if not isinstance(values, (list, tuple, tl.tuple)):
        raise errors.ShapeError(
            "not a sequence",
            argument=argument,
            expected="one entry for each dimension",
            got=semantic_layer().describe(values),
        )
    return [unwrap(value) for value in values]


def _scalar(semantic: SemanticLayer, value: Any, dtype: Any, argument: str) -> Any:
    """Return an integer scalar as `dtype`."""
    if isinstance(value, tl.tensor):
        if value.type.is_block():
            raise errors.ShapeError(
                "must be scalars", argument=argument, got=semantic.describe(value)
            )
        if value.dtype.is_int() and value.dtype != tl.int1:
            return semantic.cast(value, dtype)
    elif isinstance(value, int):
        return semantic.scalar_constant(int(value), dtype)
    raise errors.DtypeError(
        "must be integers", argument=argument, expected=dtype, got=semantic.describe(value)
    )


def _padding(option: Const[str], element: tl.dtype) -> str:
    padding: str = unwrap(option)
    if padding not in _PADDINGS:
        raise errors.ArgumentError(
            "unsupported padding",
            argument="padding_option",
            expected=", ".join(map(repr, _PADDINGS)),
            got=repr(padding),
        )
    if padding == "nan" and not element.is_floating():
        raise errors.ArgumentError(
            "only floats can be padded with NaN",
            argument="padding_option",
            expected="'zero'",
            got=f"'nan' for {element}",
        )
    return padding


def _check_sizes(sizes: list[Any], steps: list[Any], element: tl.dtype) -> None:
    """Check the facts of the tensor that are known while compiling; the simulator checks the rest."""
    if not 1 <= len(sizes) <= _MOST_RANK:
        raise errors.ShapeError(
            "tensors have 1 to 5 dimensions (PTX 5.5)", argument="shape", got=len(sizes)
        )
    for size in sizes:
        if isinstance(size, int) and not 0 < size <= _MOST_EXTENT:
            raise errors.ShapeError(
                "an illegal extent",
                argument="shape",
                expected=f"1 to {_MOST_EXTENT}, which int32 holds",
                got=size,
            )
    last = steps[-1]
    if isinstance(last, (bool, tl.tensor)) or last != 1:
        raise errors.ShapeError(
            "the elements of the last dimension must be contiguous (PTX 5.5.3)",
            argument="strides",
            expected="the constant 1 at the end",
            got=semantic_layer().describe(last),
            remedy="Describe the transposed tensor.",
        )
    for size, step in zip(sizes, steps[:-1]):
        if isinstance(size, int) and size == 1:
            continue  # there is no second row
        nbytes = step * element.primitive_bitwidth // 8 if isinstance(step, int) else 0
        if nbytes % _LEAST_BYTES or not 0 <= nbytes < _MOST_STRIDE_BYTES:
            raise errors.ShapeError(
                "an illegal stride",
                argument="strides",
                expected="a multiple of 16 bytes below 2**40 (PTX 5.5.8)",
                got=f"{step} x {element}: {nbytes} bytes",
            )
