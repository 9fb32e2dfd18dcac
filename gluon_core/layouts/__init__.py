"""Layouts: how tensors lie in registers and buffers in shared memory. Pure Python."""

from __future__ import annotations

from . import infer
from .base import DistributedLayout, Layout, SharedLayout, set_type_factory
from .cost import (
    ConversionCost,
    bank_conflicts,
    conversion,
    equal,
    explain,
    owner,
    vector_elements,
)
from .dialect import compiler_version, set_compiler_version
from .distributed import (
    AutoLayout,
    BlockedLayout,
    CoalescedLayout,
    DistributedLinearLayout,
    DotOperandLayout,
    SliceLayout,
)
from .dump import dump
from .infer import as_linear
from .linear import LinearLayout
from .render import explain_layout, hardware_view, tensor_view
from .shared import PaddedSharedLayout, SharedLinearLayout, SwizzledSharedLayout

__all__ = [
    "AutoLayout",
    "BlockedLayout",
    "CoalescedLayout",
    "ConversionCost",
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
    "as_linear",
    "bank_conflicts",
    "compiler_version",
    "conversion",
    "dump",
    "equal",
    "explain",
    "explain_layout",
    "hardware_view",
    "infer",
    "owner",
    "set_compiler_version",
    "set_type_factory",
    "tensor_view",
    "vector_elements",
]
