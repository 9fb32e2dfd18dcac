"""Values in kernels: tensors, memory descriptors, tensor descriptors, aggregates; and `builtin`."""

from __future__ import annotations

from gluon_core.values.barrier import MBarrierLayout
from gluon_core.values.cache_policy import CachePolicy
from gluon_core.values.choices import one_of
from gluon_core.values.memory import (
    memory_descriptor,
    memory_descriptor_type,
    shared_memory_descriptor,
    shared_memory_descriptor_type,
)
from gluon_core.values.tensors import (
    check_block_shape,
    distributed_type,
    handle_value,
    unwrap_shape,
)

__all__ = [
    "CachePolicy",
    "MBarrierLayout",
    "check_block_shape",
    "distributed_type",
    "handle_value",
    "memory_descriptor",
    "memory_descriptor_type",
    "one_of",
    "shared_memory_descriptor",
    "shared_memory_descriptor_type",
    "unwrap_shape",
]
