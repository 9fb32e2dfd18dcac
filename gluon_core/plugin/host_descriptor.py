"""Descriptors on the host: the arguments of a launch for a kernel's descriptor parameters.

A vendor subclasses `HostDescriptor` with its own fields and checks and offers the class in its host
namespace. Kernels take any subclass as an argument, alone or inside a tuple: the core derives the
signature and the specialization from it, a launcher encodes it for its hardware.
Importing this file imports neither Triton nor torch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Mapping, Optional, Protocol, Sequence

from gluon_core.errors import ArgumentError, DtypeError, GluonError, LayoutError, ShapeError
from gluon_core.features import Feature
from gluon_core.layouts.base import SharedLayout, is_int, is_power_of_two

__all__ = ["HostDescriptor", "HostTensor"]

_MOST_EXTENT = 2**31 - 1  # kernels get the shape as int32
_THEIRS = "Layouts of Triton's own Gluon are other classes: take those of gluon_core."
_ADDRESSLESS = ("FakeTensor", "FunctionalTensor")  # torch's tensors without memory


class HostTensor(Protocol):
    """A tensor that a descriptor describes: torch's, a NumPy array, or a stand-in for one."""

    @property
    def dtype(self) -> Any: ...

    @property
    def shape(self) -> Sequence[int]: ...


@dataclass(eq=False, repr=False)
class HostDescriptor:
    """A tensor in global memory and the box of it that one copy moves.

    Fields may be assigned after construction, as tuning hooks do; they are checked again when a
    launch meets them for the first time. Descriptors compare and hash by identity.

    Args:
        base: tensor (or NumPy array, on the simulator) that holds the elements.
        shape: of the tensor, one to `most_rank` positive integers.
        strides: of the tensor, in elements; the last is 1.
        block_shape: of the box, powers of two.
        layout: shared layout of the box.
        padding: of elements outside the tensor that loads bring: "zero", or "nan" for floats.

    Raises:
        ArgumentError: not a tensor, or no such padding.
        ShapeError: ranks that differ, or an illegal extent, stride or box.
        LayoutError: not a layout for such a box.
        DtypeError: the dtype has no NaN to pad with.
    """

    base: HostTensor
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    layout: SharedLayout
    padding: str = "zero"

    head: ClassVar[str] = "tensordesc"  # in a signature, see gluon_core.values.descriptors
    since: ClassVar[Optional[Feature]] = None  # the Triton that has this kind
    most_rank: ClassVar[int] = 5

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise unless the fields are legal together; vendors extend this."""
        rank, refuse = len(self.shape), self._refuse
        if not hasattr(self.base, "dtype") or not hasattr(self.base, "shape"):
            tensor, got = "a torch tensor, or a NumPy array", type(self.base).__name__
            refuse(ArgumentError, "base", "not a tensor", expected=tensor, got=got)
        if not 1 <= rank <= self.most_rank:
            most, got = f"1 to {self.most_rank}", f"{rank}: {tuple(self.shape)}"
            message = "no descriptor has that many dimensions"
            refuse(ShapeError, "shape", message, expected=most, got=got)
        self._check_lengths(rank)
        if not all(is_int(extent) and 0 < extent <= _MOST_EXTENT for extent in self.shape):
            most = f"integers from 1 to {_MOST_EXTENT}"
            refuse(ShapeError, "shape", "an illegal extent", expected=most, got=[*self.shape])
        strides = [*self.strides]
        if not all(is_int(stride) and stride >= 0 for stride in self.strides):
            legal = "non-negative integers, in elements"
            refuse(ShapeError, "strides", "an illegal stride", expected=legal, got=strides)
        if self.strides[-1] != 1:
            message = "the elements of the last dimension must be contiguous"
            about = {"expected": "1 at the end", "got": strides}
            remedy = "Describe the transposed tensor, or copy it with .contiguous()."
            refuse(ShapeError, "strides", message, **about, remedy=remedy)
        if not all(map(is_power_of_two, self.block_shape)):
            message = "the box has an extent that is not a power of two"
            refuse(ShapeError, "block_shape", message, got=[*self.block_shape])
        if not isinstance(self.layout, SharedLayout):
            kind, remedy = type(self.layout), None
            if kind.__module__.startswith("triton."):
                remedy = _THEIRS
            message = "not a layout for shared memory"
            refuse(LayoutError, "layout", message, got=kind.__name__, remedy=remedy)
        own, box = self.layout._rank_or_none(), [*self.block_shape]
        if own is not None and own != len(box):
            message, wanted = (
                "the rank of the layout is not that of the box",
                f"rank {len(box)} for {box}",
            )
            refuse(LayoutError, "layout", message, expected=wanted, got=f"rank {own}")
        if self.padding not in ("zero", "nan"):
            about = {"expected": '"zero" or "nan"', "got": repr(self.padding)}
            refuse(ArgumentError, "padding", "unsupported padding", **about)
        if self.padding == "nan" and not self.is_floating:
            message = 'the padding "nan" is for floating-point elements'
            refuse(DtypeError, "padding", message, got=str(self.base.dtype))

    def check_launch(self) -> None:
        """Raise unless copies can be made with it as it is now: `check`, and the rules of a box that a
        tuning hook may still replace; vendors extend this."""
        self.check()

    def _check_lengths(self, rank: int) -> None:
        expected = f"{rank} entries, as in shape {tuple(self.shape)}"
        for name in ("strides", "block_shape"):
            if len(getattr(self, name)) != rank:
                got = [*getattr(self, name)]
                self._refuse(ShapeError, name, "the ranks differ", expected=expected, got=got)

    def _refuse(self, error: type[GluonError], field: str, message: str, **about: Any) -> None:
        raise error(message, argument=self._field(field), **about)

    @classmethod
    def _field(cls, name: str) -> str:
        return f"{cls.__name__}.{name}"

    # -- the tensor ----------------------------------------------------------------------------------

    @property
    def element_bits(self) -> int:
        """Return the width of an element."""
        return 8 * int(self.base.dtype.itemsize)

    @property
    def is_floating(self) -> bool:
        """Return True if elements can be NaN."""
        dtype = self.base.dtype
        if hasattr(dtype, "is_floating_point"):  # torch
            return bool(dtype.is_floating_point)
        if hasattr(dtype, "is_floating"):  # the language's, in stand-ins of tensors
            return bool(dtype.is_floating())
        return "float" in dtype.name  # NumPy, ml_dtypes

    def address(self) -> Optional[int]:
        """Return the address of the first element in bytes; None where the tensor has no memory."""
        if type(self.base).__name__ in _ADDRESSLESS:
            return None
        data_ptr = getattr(self.base, "data_ptr", None)
        if data_ptr is not None:
            return int(data_ptr())
        interface = getattr(self.base, "ctypes", None)
        return None if interface is None else int(interface.data)

    @property
    def extra(self) -> Mapping[str, Any]:
        """Return the fields that only this vendor's kind of descriptor has."""
        common = (*HostDescriptor.__dataclass_fields__, "round_f32_to_tf32")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in common}

    @property
    def input_rank(self) -> Optional[int]:
        """Return the rank of the tensor for the signature, None where it is that of the box."""
        rank = len(self.shape)
        return None if rank == len(self.block_shape) else rank

    @staticmethod
    def strides_of(tensor: HostTensor) -> tuple[int, ...]:
        """Return the strides of a tensor or NumPy array in elements.

        Raises:
            ShapeError: strides that are no whole elements.
        """
        stride = getattr(tensor, "stride", None)
        if callable(stride):
            return tuple(stride())
        array: Any = tensor
        strides, size = array.strides, array.dtype.itemsize
        if any(step % size for step in strides):
            raise ShapeError("the strides are not whole elements", argument="tensor", got=strides)
        return tuple(step // size for step in strides)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={value!r}" for name, value in vars(self).items() if name != "base"
        )
        tensor = f"<{getattr(self.base, 'dtype', type(self.base).__name__)}>"
        return f"{type(self).__name__}(base={tensor}, {shown})"
