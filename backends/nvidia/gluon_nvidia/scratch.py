"""Scratch memory of a launch: the global memory that kernels need besides their arguments.

Descriptors that a kernel makes itself live there. Whoever set an allocator with
`triton.set_allocator` is asked; else the memory comes from torch's caching allocator, or from the
driver where torch is not in use. It is given back when the launch is queued: the stream keeps
later users of the memory behind the kernel.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Optional

from gluon_core.plugin.triton_compiler import TritonDevice
from gluon_nvidia import driver as driver_module
from gluon_nvidia.driver import Driver

__all__ = ["allocator", "size"]

_TORCH_ALIGNMENT = 512
_OVERLAPPING = 8  # launches with launch_pdl that may be under way at once


def size(metadata: Any) -> int:
    """Return the bytes of scratch memory that each block of a kernel needs."""
    return sum(getattr(metadata, f"{kind}_scratch_size", 0) or 0 for kind in ("global", "profile"))


def allocator(
    metadata: Any, cuda: Driver, index: int
) -> Optional[Callable[[int, int], tuple[int, int, Any]]]:
    """`f(programs, stream) -> (global scratch, profile scratch, what keeps both alive)`, addresses
    or 0; None for a kernel that needs none.

    Args:
        metadata: of the compiled kernel: bytes and alignment per block.
    """
    own = _Own(cuda, index)
    wanted = []
    for kind in ("global", "profile"):
        size = getattr(metadata, f"{kind}_scratch_size", 0) or 0
        align = getattr(metadata, f"{kind}_scratch_align", 1) or 1
        wanted.append((size * metadata.num_ctas, align))
    if not any(size for size, _ in wanted):
        return None
    (global_size, global_align), (profile_size, profile_align) = wanted
    overlaps = bool(getattr(metadata, "launch_pdl", False))
    recent: deque[Any] = deque(maxlen=_OVERLAPPING)

    def allocate(programs: int, stream: int) -> tuple[int, int, Any]:
        first = second = None
        if global_size:
            give = TritonDevice.user_allocator("global") or own
            first = give(programs * global_size, global_align, stream)
        if profile_size:
            give = TritonDevice.user_allocator("profile") or own
            second = give(programs * profile_size, profile_align, stream)
        if overlaps:  # the stream lets the next kernels start before this one is through
            recent.append((first, second))
        return _address(first), _address(second), (first, second)

    return allocate


def _address(buffer: Any) -> int:
    if buffer is None or isinstance(buffer, int):
        return buffer or 0
    address: int = buffer.data_ptr()
    return address


class _Own:
    """`own(size, alignment, stream)`: memory for one launch."""

    def __init__(self, cuda: Driver, index: int):
        self.cuda = cuda
        self.index = index

    def __call__(self, size: int, align: int, stream: int) -> Any:
        torch = driver_module._torch()
        if torch is None or not torch.cuda.is_initialized():
            from gluon_runtime.driver import Block  # not needed with torch

            return Block(self.cuda, self.index, size + align, align, stream)
        if align > _TORCH_ALIGNMENT:
            size += align
        if driver_module.stream_getter()(self.index) == stream:
            buffer = torch.empty(size, dtype=torch.uint8, device=f"cuda:{self.index}")
        else:
            if stream:
                other = torch.cuda.ExternalStream(stream, self.index)
            else:
                other = torch.cuda.default_stream(self.index)
            with torch.cuda.stream(other):
                buffer = torch.empty(size, dtype=torch.uint8, device=f"cuda:{self.index}")
        return buffer if align <= _TORCH_ALIGNMENT else _Aligned(buffer, align)


class _Aligned:
    """The first aligned address in a tensor."""

    def __init__(self, tensor: Any, align: int):
        self.tensor = tensor
        self.align = align

    def data_ptr(self) -> int:
        address: int = self.tensor.data_ptr()
        return address + -address % self.align
