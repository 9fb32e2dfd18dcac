"""Layouts: how tensors lie in registers and buffers in shared memory. Pure Python."""

from __future__ import annotations

from typing import Any

from gluon_core.layouts import infer
from gluon_core.layouts.base import DistributedLayout, Layout, SharedLayout, set_type_factory
from gluon_core.layouts.cost import (
    ConversionCost,
    bank_conflicts,
    conversion,
    equal,
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
from gluon_core.layouts.infer import as_linear
from gluon_core.layouts.linear import LinearLayout
from gluon_core.layouts.pictures import Picture
from gluon_core.layouts.pictures import pictures as _pictures
from gluon_core.layouts.shared import PaddedSharedLayout, SharedLinearLayout, SwizzledSharedLayout

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


def __getattr__(name: str) -> Any:
    if name in __all__:  # all else is defined above: a plugin draws
        return getattr(_pictures(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
