"""Layouts: how tensors lie in registers and buffers in shared memory. Pure Python."""

from __future__ import annotations

from .base import DistributedLayout, Layout, SharedLayout, set_type_factory
from .linear import LinearLayout

__all__ = ["DistributedLayout", "Layout", "LinearLayout", "SharedLayout", "set_type_factory"]
