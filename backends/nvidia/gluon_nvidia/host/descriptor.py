"""Host-side descriptors for the Tensor Memory Accelerator (TMA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Optional, Sequence

from gluon_core import errors, features
from gluon_core.layouts.base import Layout
from gluon_core.layouts.dialect import follows
from gluon_core.plugin.host_descriptor import HostDescriptor, HostTensor
from gluon_nvidia.features import DESCRIPTOR_ROWS_CHECKED, IM2COL
from gluon_nvidia.layouts import NVMMASharedLayout, default_for
from gluon_runtime import native

__all__ = ["TensorDescriptor", "TensorDescriptorIm2Col"]

_ALIGNMENT = 16  # bytes, of the base, of strides and of a row of the box
_FP4_ALIGNMENT = 32
_ELEMENT_BITS = (8, 16, 32, 64)
_FLOAT32 = ("float32", "fp32")

# Rank of the tensor -> range of a corner of the pixel box.
_CORNERS = {3: (-(2**15), 2**15 - 1), 4: (-128, 127), 5: (-16, 15)}
_MOST_ELEMENT_STRIDE = 8

# Descriptions that were legal before, all but the address -> the layout. Programs describe the same
# tensors again and again.
_checked: dict[tuple[object, ...], NVMMASharedLayout] = {}
_MOST_CHECKED = 1024


@dataclass(eq=False, repr=False)
class TensorDescriptor(HostDescriptor):
    """A tensor in global memory for TMA copies of boxes of it.

    A descriptor is encoded once for an address, shape, strides and box; launches with it, or with
    another one for the same tensor, take the encoded form from a cache.

    Args:
        base: tensor that holds the elements, aligned to 16 bytes.
        shape: of the tensor, one to five positive integers.
        strides: of the tensor, in elements; multiples of 16 bytes, the last is 1.
        block_shape: of the box that one copy moves, powers of two.
        layout: `NVMMASharedLayout` of the box.
        padding: value of loads outside the tensor: "zero", or "nan" for floats.
        round_f32_to_tf32: loads round float32 to the precision of tf32.

    Raises:
        ArgumentError, ShapeError, LayoutError, DtypeError: TMA cannot copy such boxes.

    ISA: PTX `cp.async.bulk.tensor`, tensor map in tiled mode.
    """

    layout: NVMMASharedLayout
    round_f32_to_tf32: bool = False

    def __post_init__(self) -> None:
        layout = self.layout
        base: Any = self.base
        key: tuple[object, ...] = ()
        known = False
        try:
            key = (
                base.dtype,
                tuple(self.shape),
                tuple(self.strides),
                tuple(self.block_shape),
                id(layout),
                self.padding,
                self.round_f32_to_tf32,
                self.__class__,
            )
            known = _checked.get(key) is layout and not base.data_ptr() & 15
        except (AttributeError, TypeError):
            pass  # check() reports the mistake
        if known:
            return
        self.check()
        if key:
            if len(_checked) >= _MOST_CHECKED:
                _checked.clear()
            _checked[key] = layout

    def check(self) -> None:
        super().check()
        if not isinstance(self.layout, NVMMASharedLayout):
            raise errors.LayoutError(
                "TMA writes a different layout",
                argument=self._field("layout"),
                expected="NVMMASharedLayout",
                got=type(self.layout).__name__,
            )
        self._check_elements()
        self._check_alignment()
        if follows(DESCRIPTOR_ROWS_CHECKED):
            self._check_row(self.layout.swizzle_byte_width)

    def check_launch(self) -> None:
        super().check_launch()
        self._check_row(max(self.layout.swizzle_byte_width, _ALIGNMENT))

    def _check_elements(self) -> None:
        bits = self.element_bits
        dtype = str(self.base.dtype)
        if bits not in _ELEMENT_BITS or dtype.endswith("bool"):
            raise errors.DtypeError(
                "TMA does not support this element type",
                argument=self._field("base"),
                expected="numbers of 8, 16, 32 or 64 bits",
                got=dtype,
                remedy="View the tensor as another dtype, such as x.view(torch.uint8).",
            )
        if self.layout.element_bitwidth != bits:
            raise errors.LayoutError(
                "the layout is for elements of a different width",
                argument=self._field("layout"),
                expected=f"element_bitwidth={bits} for {dtype}",
                got=f"element_bitwidth={self.layout.element_bitwidth}",
            )
        if self.round_f32_to_tf32 and dtype.rpartition(".")[2] not in _FLOAT32:
            raise errors.DtypeError(
                "only float32 can be rounded to tf32",
                argument=self._field("round_f32_to_tf32"),
                got=dtype,
            )

    def _check_alignment(self) -> None:
        bound = _FP4_ALIGNMENT if self.layout.fp4_padded else _ALIGNMENT
        padded = " for padded fp4" if self.layout.fp4_padded else ""
        address = self.address()
        if address is not None and address % _ALIGNMENT:
            raise errors.ArgumentError(
                f"the tensor is not aligned to {_ALIGNMENT} bytes",
                argument=self._field("base"),
                got=f"address {address:#x}",
                remedy="A view that starts inside a tensor may not be: copy it with .clone().",
            )
        size = self.element_bits // 8
        for stride in self.strides[:-1]:
            if stride * size % bound:
                raise errors.ShapeError(
                    f"a stride is no multiple of {bound} bytes{padded}",
                    argument=self._field("strides"),
                    expected=f"multiples of {bound // size} elements of {size} bytes, then 1",
                    got=list(self.strides),
                    remedy="Pad the rows of the tensor.",
                )

    def _check_row(self, width: int) -> None:
        """Check that a row of one block's box has `width` bytes."""
        size = self.element_bits // 8
        pieces = 1 << sum(1 for basis in self.layout.cga_layout if basis[-1])
        row = self.block_shape[-1] // pieces
        least = width // size // (2 if self.layout.fp4_padded else 1)
        if row < least:
            raise errors.ShapeError(
                "a row of the box is shorter than one copy writes"
                + (" in one block" if pieces > 1 else ""),
                argument=self._field("block_shape"),
                expected=f"at least {least} elements of {size} bytes along the last dimension, "
                f"for swizzle_byte_width={self.layout.swizzle_byte_width}",
                got=f"{row} of {list(self.block_shape)}",
                remedy="NVMMASharedLayout.get_default_for picks a swizzle that fits.",
            )

    @staticmethod
    def from_tensor(
        tensor: HostTensor,
        block_shape: Sequence[int],
        layout: Optional[NVMMASharedLayout] = None,
        padding: str = "zero",
        round_f32_to_tf32: bool = False,
    ) -> TensorDescriptor:
        """Return the descriptor of all of `tensor`.

        Args:
            tensor: a torch tensor or NumPy array, aligned to 16 bytes, whose last stride is 1 and
                whose other strides are multiples of 16 bytes.
            block_shape: of the box that one copy moves, powers of two.
            layout: of the box; that of `NVMMASharedLayout.get_default_for` by default.
            padding, round_f32_to_tf32: as in the class.

        Raises:
            ArgumentError, ShapeError, LayoutError, DtypeError: TMA cannot copy such boxes.
        """
        if layout is None:
            layout = default_for(tuple(block_shape), 8 * tensor.dtype.itemsize)
        known = _known(tensor, block_shape, layout, padding, round_f32_to_tf32)
        if known is not None:
            return known
        descriptor = TensorDescriptor(
            tensor,
            tensor.shape,
            HostDescriptor.strides_of(tensor),
            block_shape,
            layout,
            padding,
            round_f32_to_tf32,
        )
        return _learn(descriptor, tensor, block_shape, layout, padding, round_f32_to_tf32)

    @property
    def mode(self) -> str:
        """Return the addressing of copies: "tiled"."""
        return "tiled"


def _unknown(*arguments: Any) -> None:
    """Before any descriptor was made: none is known."""


_known: Callable[..., Optional[TensorDescriptor]] = _unknown  # earlier descriptors, in C


def _learn(descriptor: TensorDescriptor, *facts: Any) -> TensorDescriptor:
    """Have tensors like this one described without checking again; return `descriptor`.

    Args:
        facts: the arguments of `from_tensor` that it was made of.
    """
    global _known
    native.teach()
    if native.engine.learn_descriptor(descriptor, *facts):
        _known = native.engine.describe
    return descriptor


@dataclass(eq=False, repr=False)
class TensorDescriptorIm2Col(TensorDescriptor):
    """A tensor of images for TMA copies that gather the pixels a convolution needs.

    The tensor is NWC, NHWC or NDHWC. A copy brings `block_shape[0]` pixels with `block_shape[1]`
    channels each; it walks through the box of pixels that the two corners leave of each image.

    Args:
        base, strides, layout, padding, round_f32_to_tf32: as in `TensorDescriptor`.
        shape: of the tensor, three to five positive integers.
        block_shape: pixels and channels of one copy, powers of two.
        element_strides: step from pixel to pixel, for each dimension of the tensor, 1 to 8;
            None for 1 everywhere.
        pixel_box_lower_corner: for each spatial dimension, where the box begins, counted from the
            first pixel; negative inside the padding.
        pixel_box_upper_corner: where it ends, counted from the last pixel.

    Raises:
        ArgumentError, ShapeError, LayoutError, DtypeError: TMA cannot copy such boxes.

    ISA: PTX `cp.async.bulk.tensor` with `.im2col`, tensor map in im2col mode.
    """

    element_strides: Optional[Sequence[int]] = None
    pixel_box_lower_corner: Optional[Sequence[int]] = None
    pixel_box_upper_corner: Optional[Sequence[int]] = None

    head: ClassVar[str] = "tensordesc_im2col"
    since: ClassVar[Optional[features.Feature]] = IM2COL

    def __post_init__(self) -> None:
        self.check()

    def _check_lengths(self, rank: int) -> None:
        if rank not in _CORNERS:
            raise errors.ShapeError(
                "im2col is for tensors of images",
                argument=self._field("shape"),
                expected="3 to 5 dimensions: NWC, NHWC or NDHWC",
                got=list(self.shape),
            )
        for name, length in (("strides", rank), ("block_shape", 2)):
            if len(getattr(self, name)) != length:
                raise errors.ShapeError(
                    "the wrong number of entries",
                    argument=self._field(name),
                    expected=f"{length}" + (": pixels and channels" if length == 2 else ""),
                    got=list(getattr(self, name)),
                )
        self._check_corners(rank)

    def _check_corners(self, rank: int) -> None:
        low, high = _CORNERS[rank]
        for name in ("pixel_box_lower_corner", "pixel_box_upper_corner"):
            corner = getattr(self, name)
            if (
                corner is None
                or len(corner) != rank - 2
                or not all(Layout.is_int(c) and low <= c <= high for c in corner)
            ):
                raise errors.ArgumentError(
                    "not a corner of a box of pixels",
                    argument=self._field(name),
                    expected=f"{rank - 2} integers from {low} to {high}",
                    got=corner,
                )
        steps = self.element_strides
        if steps is not None and (
            len(steps) != rank
            or not all(Layout.is_int(s) and 1 <= s <= _MOST_ELEMENT_STRIDE for s in steps)
        ):
            raise errors.ArgumentError(
                "not the steps between pixels",
                argument=self._field("element_strides"),
                expected=f"{rank} integers from 1 to {_MOST_ELEMENT_STRIDE}, or None",
                got=steps,
            )

    @property
    def input_rank(self) -> Optional[int]:
        return len(self.shape)

    @staticmethod
    def from_tensor(
        tensor: HostTensor,
        block_shape: Sequence[int],
        layout: Optional[NVMMASharedLayout] = None,
        padding: str = "zero",
        round_f32_to_tf32: bool = False,
        element_strides: Optional[Sequence[int]] = None,
        pixel_box_lower_corner: Optional[Sequence[int]] = None,
        pixel_box_upper_corner: Optional[Sequence[int]] = None,
    ) -> TensorDescriptorIm2Col:
        """Return the descriptor of all of `tensor`.

        Args:
            tensor: a torch tensor or NumPy array of images, as in `TensorDescriptor.from_tensor`.
            block_shape: pixels and channels of one copy, powers of two.
            layout: of the box; that of `NVMMASharedLayout.get_default_for` by default.
            padding, round_f32_to_tf32, element_strides, pixel_box_lower_corner,
                pixel_box_upper_corner: as in the class.

        Raises:
            ArgumentError, ShapeError, LayoutError, DtypeError: TMA cannot copy such boxes.
        """
        return TensorDescriptorIm2Col(
            tensor,
            tensor.shape,
            HostDescriptor.strides_of(tensor),
            block_shape,
            layout or default_for(tuple(block_shape), 8 * tensor.dtype.itemsize),
            padding,
            round_f32_to_tf32,
            element_strides,
            pixel_box_lower_corner,
            pixel_box_upper_corner,
        )

    @property
    def mode(self) -> str:
        """Return the addressing of copies: "im2col"."""
        return "im2col"
