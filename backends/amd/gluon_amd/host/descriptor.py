"""Host-side descriptors for the tensor data mover, TDM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from gluon_amd.tdm_rules import check_box
from gluon_core.errors import ArgumentError
from gluon_core.layouts.base import SharedLayout
from gluon_core.plugin.host_descriptor import HostDescriptor, HostTensor

__all__ = ["TensorDescriptor"]


@dataclass(eq=False, repr=False)
class TensorDescriptor(HostDescriptor):
    """A tensor in global memory for TDM copies of boxes of it.

    Args:
        base: tensor that holds the elements, of 1, 2, 4 or 8 bytes.
        shape: of the tensor, one to five positive integers.
        strides: of the tensor, in elements; the last is 1.
        block_shape: of the box that one copy moves, powers of two.
        layout: of the box in LDS: PaddedSharedLayout, or SwizzledSharedLayout with max_phase=1;
            PartitionedSharedLayout of one of these.
        padding: value of loads outside the tensor; the hardware has "zero" only.

    Raises:
        ArgumentError, ShapeError, LayoutError, DtypeError: TDM cannot copy such boxes.

    ISA: gfx1250, D# groups of tensor_load_to_lds.
    """

    def check(self) -> None:
        super().check()
        if self.padding != "zero":
            raise ArgumentError(
                "TDM fills elements outside the tensor with zero",
                argument=self._field("padding"),
                expected='"zero"',
                got=repr(self.padding),
            )
        check_box(self.block_shape, self.element_bits, self.layout, self._field)

    @classmethod
    def from_tensor(
        cls, tensor: HostTensor, block_shape: Sequence[int], layout: SharedLayout
    ) -> "TensorDescriptor":
        """Return the descriptor of a whole tensor.

        Args:
            tensor: a torch tensor or NumPy array whose last stride is 1.
            block_shape: of the box.
            layout: of the box in LDS.

        Raises:
            As the class.
        """
        return cls(
            tensor,
            list(tensor.shape),
            list(HostDescriptor.strides_of(tensor)),
            list(block_shape),
            layout,
        )
