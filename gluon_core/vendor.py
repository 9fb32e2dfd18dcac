"""What a plugin's code is written with: the one module beside the contract that plugins need.

`builtin` makes an op of a function, the operand checks raise before a builder can abort, `tl` and
`ir` are Triton's, and what the installed Triton has is asked here. A plugin's modules of ops import
it; the module that its entry point names does not, because this one imports Triton.
"""

from __future__ import annotations

from gluon_core._triton import (
    JITFunction,
    base_type,
    base_value,
    block_type,
    constexpr,
    constexpr_function,
    constexpr_type,
    dtype,
    gluon_ir,
    has,
    ir,
    op_builder,
    passes,
    require,
    tensor,
    tl,
    tl_core,
    tl_tuple,
    tool,
    tuple_type,
    unwrap,
)
from gluon_core._triton.capture import captured
from gluon_core.semantic.base import is_placeholder, shape_of
from gluon_core.semantic.operands import (
    check_barrier,
    check_k_width,
    check_matmul_dtypes,
    check_matmul_shapes,
    check_stored,
    compile_time_bool,
    compile_time_int,
    handle_or_absent,
    items_of,
    predicate,
    same_bits,
    scalar_int32,
    shared_memory,
    view_index,
    wrap_axis,
)
from gluon_core.semantic.views import check_view_size
from gluon_core.values.aggregate import aggregate
from gluon_core.values.builtin import (
    builtin,
    check_capabilities,
    code_generator,
    compile_time,
    semantic_layer,
    traced,
)
from gluon_core.values.tensors import describe

__all__ = [
    "captured",
    "JITFunction",
    "aggregate",
    "base_type",
    "base_value",
    "block_type",
    "builtin",
    "check_barrier",
    "check_capabilities",
    "check_k_width",
    "check_matmul_dtypes",
    "check_matmul_shapes",
    "check_stored",
    "check_view_size",
    "same_bits",
    "code_generator",
    "compile_time",
    "compile_time_bool",
    "compile_time_int",
    "constexpr",
    "constexpr_function",
    "constexpr_type",
    "describe",
    "dtype",
    "gluon_ir",
    "handle_or_absent",
    "has",
    "ir",
    "is_placeholder",
    "items_of",
    "op_builder",
    "passes",
    "predicate",
    "require",
    "scalar_int32",
    "semantic_layer",
    "shape_of",
    "shared_memory",
    "tensor",
    "tl",
    "tl_core",
    "tl_tuple",
    "tool",
    "traced",
    "tuple_type",
    "unwrap",
    "view_index",
    "wrap_axis",
]
