"""Layouts: how tensors lie in registers and buffers in shared memory. Pure Python."""

from __future__ import annotations

from gluon_core.layouts import infer
from gluon_core.layouts.base import DistributedLayout, Layout, SharedLayout, set_type_factory
from gluon_core.layouts.cost import (
    ConversionCost,
    bank_conflicts,
    conversion,
    equal,
    explain,
    owner,
    vector_elements,
)
from gluon_core.layouts.dialect import compiler_version, set_compiler_version
from gluon_core.layouts.distributed import (
    AutoLayout,
    BlockedLayout,
    CoalescedLayout,
    DistributedLinearLayout,
    DotOperandLayout,
    SliceLayout,
)
from gluon_core.layouts.dump import dump
from gluon_core.layouts.infer import as_linear
from gluon_core.layouts.linear import LinearLayout
from gluon_core.layouts.shared import PaddedSharedLayout, SharedLinearLayout, SwizzledSharedLayout
from gluon_pictures.draw import Picture
from gluon_pictures.draw_pair import compare
from gluon_pictures.render import explain_layout, hardware_view, tensor_view

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
    "Picture",
    "SharedLayout",
    "SharedLinearLayout",
    "SliceLayout",
    "SwizzledSharedLayout",
    "as_linear",
    "bank_conflicts",
    "compare",
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


def __dir__() -> list[str]:
    return sorted(__all__)
