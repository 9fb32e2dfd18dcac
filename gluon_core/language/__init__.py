"""The Gluon language: what kernels call. `from gluon_core import language as gl`.

Portable names are defined here; `gl.<vendor>` and names that a plugin exports, such as its
layouts, are found through the registry.
"""

from __future__ import annotations

from typing import Any

from gluon_core._aggregate import aggregate, aggregate_replace
from gluon_core._triton import (
    base_type,
    base_value,
    block_type,
    constexpr,
    constexpr_function,
    dtype,
    pointer_type,
    tensor,
    tl,
    tuple_type,
)
from gluon_core._triton import tl_tuple as tuple
from gluon_core.builtin import builtin, open_to_kernels
from gluon_core.language import extra, fpsan
from gluon_core.language._namespaces import resolve
from gluon_core.language._standard import *  # noqa: F403
from gluon_core.language.control import *  # noqa: F403
from gluon_core.language.elementwise import *  # noqa: F403
from gluon_core.language.memory import *  # noqa: F403
from gluon_core.language.reductions import *  # noqa: F403
from gluon_core.language.target import target
from gluon_core.language.tensors import *  # noqa: F403
from gluon_core.layouts import (
    AutoLayout,
    BlockedLayout,
    CoalescedLayout,
    DistributedLinearLayout,
    DotOperandLayout,
    PaddedSharedLayout,
    SharedLinearLayout,
    SliceLayout,
    SwizzledSharedLayout,
)
from gluon_core.values import (
    CachePolicy,
    distributed_type,
    shared_memory_descriptor,
    shared_memory_descriptor_type,
)

open_to_kernels(PaddedSharedLayout)

void = tl.void
int1, int8, int16, int32, int64 = tl.int1, tl.int8, tl.int16, tl.int32, tl.int64
uint8, uint16, uint32, uint64 = tl.uint8, tl.uint16, tl.uint32, tl.uint64
float8e5, float8e5b16, float8e4nv = tl.float8e5, tl.float8e5b16, tl.float8e4nv
float8e4b8, float8e4b15 = tl.float8e4b8, tl.float8e4b15
float16, bfloat16, float32, float64 = tl.float16, tl.bfloat16, tl.float32, tl.float64


def __getattr__(name: str) -> Any:
    if name == "portable":
        from gluon_core import portable

        return portable
    return resolve(name)
