"""Layouts: how tensors lie in registers and buffers in shared memory. Pure Python."""

from __future__ import annotations

from .base import DistributedLayout, Layout, SharedLayout, set_type_factory
from .distributed import (
    AutoLayout,
    BlockedLayout,
    CoalescedLayout,
    DistributedLinearLayout,
    DotOperandLayout,
    SliceLayout,
)
from .linear import LinearLayout
from .shared import PaddedSharedLayout, SharedLinearLayout, SwizzledSharedLayout

__all__ = [
    "AutoLayout",
    "BlockedLayout",
    "CoalescedLayout",
    "DistributedLayout",
    "DistributedLinearLayout",
    "DotOperandLayout",
    "Layout",
    "LinearLayout",
    "PaddedSharedLayout",
    "SharedLayout",
    "SharedLinearLayout",
    "SliceLayout",
    "SwizzledSharedLayout",
    "set_type_factory",
]
