"""`gl.portable.mma` by `tcgen05` (sm_100): accumulators in tensor memory.

An accumulator is its buffer, a ring of barriers at which the last multiplications arrive, and the
number of those issued: the first one starts from nothing, and all others add.
"""

from __future__ import annotations

from typing import Any, Sequence, Union

from gluon_core.plugin.ops import tl
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.portable import requests
from gluon_nvidia.language import mbarrier, tcgen05
from gluon_nvidia.language.tensor_memory import allocate_tensor_memory
from gluon_nvidia.lower_wgmma import shared_layouts, shared_refusal
from gluon_nvidia.tensor_memory import COLUMNS, TensorMemoryLayout
from gluon_nvidia.tensor_memory_registers import register_layout

__all__ = ["accepts", "accumulator", "layouts", "mma", "mma_wait", "read"]

_RING = 4  # a power of two, more than may be pending
_MOST_COLUMNS = 256  # of one instruction
# Operand dtype -> the accumulators that are packed one to a column.
_KINDS = ("fp16", "bf16", "fp32", "fp8e4nv", "fp8e5")


def accepts(request: requests.MmaRequest) -> Union[bool, str]:
    refusal = shared_refusal(request, "tcgen05")
    if refusal is not None:
        return refusal
    a, b, acc = (str(t) for t in (request.a_dtype, request.b_dtype, request.acc_dtype))
    both_fp8 = a.startswith("fp8") and b.startswith("fp8")
    if a not in _KINDS or b not in _KINDS or (a != b and not both_fp8):
        return f"tcgen05 has no form for {a} times {b}"
    if acc != "fp32":
        return f"accumulators in tensor memory are fp32 here, not {acc}"
    if a == "fp32" and request.input_precision != "tf32":
        return "tcgen05 rounds fp32 to tf32, and input_precision is 'ieee'"
    transposed = request.b_transposed if request.b is None else request.b_layout.transposed
    if a == "fp32" and not transposed:
        return "tcgen05 reads fp32 along K only, and b is not transposed"
    if request.num_warps % 4:
        return f"groups of 4 warps reach tensor memory, and there are {request.num_warps}"
    depth = 256 // request.a_dtype.primitive_bitwidth
    if request.m < 64 or request.n < 16 or request.k < depth:
        tile = f"{request.m}x{request.n}x{request.k}"
        return f"the tile {tile} is smaller than one tcgen05.mma, 64x16x{depth}"
    columns = max(1, request.m // 128) * request.n
    if columns > COLUMNS:
        return f"the accumulator takes {columns} columns of tensor memory, which has {COLUMNS}"
    return True


def _memory_layout(shape: Sequence[int]) -> TensorMemoryLayout:
    m, n = shape
    return TensorMemoryLayout([min(m, 128), min(n, _MOST_COLUMNS)], col_stride=1)


def layouts(request: requests.MmaRequest) -> requests.MmaLayouts:
    shape = [request.m, request.n]
    registers = register_layout(_memory_layout(shape), shape, 32, request.num_warps)
    return shared_layouts(request, registers)


def accumulator(
    layouts: requests.MmaLayouts, start: Any, _semantic: SemanticLayer
) -> Sequence[Any]:
    shape = list(layouts.shape)
    memory = allocate_tensor_memory(layouts.acc_dtype, shape, _memory_layout(shape))
    barriers = mbarrier.allocate_mbarrier(batch=_RING)
    for i in range(_RING):
        mbarrier.init(_semantic.memdesc_index(barriers, i), 1)
    if start is None:
        return memory, barriers, _semantic.scalar_constant(0, tl.int32)
    memory.store(start)
    _semantic.barrier()  # one thread multiplies for all
    # As if one multiplication were over: those that come add.
    tcgen05.tcgen05_commit(_semantic.memdesc_index(barriers, 0))
    return memory, barriers, _semantic.scalar_constant(1, tl.int32)


def mma(request: requests.MmaRequest, _semantic: SemanticLayer) -> Sequence[Any]:
    memory, barriers, issued = request.acc.values
    # A barrier is used again: nobody may be left that has not seen its phase before.
    _wait_for(barriers, _plus(_semantic, issued, -_RING), (), _semantic)
    zero = _semantic.scalar_constant(0, tl.int32)
    tcgen05.tcgen05_mma(request.a, request.b, memory, use_acc=_semantic.greater_than(issued, zero))
    tcgen05.tcgen05_commit(_slot(barriers, issued, _semantic))
    parts = memory, barriers, _plus(_semantic, issued, 1)
    if not request.is_async:
        _wait_for(barriers, issued, [request.a, request.b], _semantic)
    return parts


def mma_wait(
    parts: Any, pending: int, deps: Sequence[Any], _semantic: SemanticLayer
) -> Sequence[Any]:
    memory, barriers, issued = parts.values
    _wait_for(barriers, _plus(_semantic, issued, -1 - pending), deps, _semantic)
    return memory, barriers, issued


def read(parts: Any, _semantic: SemanticLayer) -> Any:
    memory, barriers, issued = parts.values
    _wait_for(barriers, _plus(_semantic, issued, -1), (), _semantic)
    value = memory.load()
    for i in range(_RING):
        mbarrier.invalidate(_semantic.memdesc_index(barriers, i))
    return value


def _plus(semantic: SemanticLayer, value: Any, constant: int) -> Any:
    return semantic.add(value, semantic.scalar_constant(constant, tl.int32), True)


def _slot(barriers: Any, number: Any, semantic: SemanticLayer) -> Any:
    mask = semantic.scalar_constant(_RING - 1, tl.int32)
    return semantic.memdesc_index(barriers, semantic.and_(number, mask))


def _wait_for(barriers: Any, number: Any, deps: Sequence[Any], semantic: SemanticLayer) -> None:
    """Wait for the end of multiplication `number`, if there is one."""
    zero, shift = (semantic.scalar_constant(v, tl.int32) for v in (0, _RING.bit_length() - 1))
    phase = semantic.and_(semantic.lshr(number, shift), semantic.scalar_constant(1, tl.int32))
    exists = semantic.greater_equal(number, zero)
    barrier = _slot(barriers, number, semantic)
    mbarrier.wait(barrier, phase, exists, list(deps))
