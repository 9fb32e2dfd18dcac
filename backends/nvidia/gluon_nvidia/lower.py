"""Lower the portable ops to NVIDIA hardware: `cp.async`, `mma.sync`, and the fence of other units."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Union

from gluon_core.layouts import DotOperandLayout
from gluon_core.plugin.ops import tl
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.portable import requests
from gluon_nvidia.language import ampere
from gluon_nvidia.language.fence import fence_async_shared
from gluon_nvidia.layouts import NVMMADistributedLayout
from gluon_nvidia.lower_wgmma import shared_layouts

__all__ = [
    "async_copy",
    "async_copy_accepts",
    "commit",
    "fence",
    "mma",
    "mma_accepts",
    "mma_layouts",
    "wait",
]

_ROWS, _COLUMNS = 16, 8  # of one mma.sync
_CP_ASYNC_BYTES = 4  # the fewest that one thread can copy

# Operand dtype -> the accumulators that mma.sync has for it.
_ACCUMULATORS = {
    "fp16": ("fp16", "fp32"),
    "bf16": ("fp32",),
    "fp32": ("fp32",),
    "int8": ("int32",),
    "fp8e4nv": ("fp16", "fp32"),
    "fp8e5": ("fp16", "fp32"),
}


def async_copy_accepts(request: requests.AsyncCopyRequest) -> Union[bool, str]:
    if request.cache_modifier not in ("", ".ca", ".cg"):
        return f"cp.async has no cache modifier {request.cache_modifier!r}"
    copied = request.contiguous * request.dest.dtype.primitive_bitwidth // 8
    if copied < _CP_ASYNC_BYTES:
        return f"each thread copies {copied} contiguous bytes, cp.async needs {_CP_ASYNC_BYTES}"
    return True


def async_copy(request: requests.AsyncCopyRequest, _semantic: SemanticLayer) -> Any:
    pointers = _semantic.add(request.ptr, request.offsets, True)
    return ampere.async_copy.async_copy_global_to_shared(
        request.dest, pointers, request.mask, request.cache_modifier
    )


def commit(_semantic: SemanticLayer) -> Any:
    return ampere.async_copy.commit_group()


def wait(outstanding: int, _semantic: SemanticLayer) -> Any:
    ampere.async_copy.wait_group(outstanding)
    # Threads copied: units that read shared memory on their own see it behind a fence only.
    if any(_semantic.target.has(unit) for unit in ("nvidia.wgmma", "nvidia.tcgen05")):
        fence_async_shared()


def fence(_semantic: SemanticLayer) -> None:
    fence_async_shared()


def mma_accepts(request: requests.MmaRequest) -> Union[bool, str]:
    a, b, acc = (str(t) for t in (request.a_dtype, request.b_dtype, request.acc_dtype))
    if a != b or a not in _ACCUMULATORS:
        return f"mma.sync has no form for {a} times {b}"
    if acc not in _ACCUMULATORS[a]:
        return f"mma.sync does not accumulate {a} in {acc}"
    if a == "fp32" and request.input_precision != "tf32":
        return "mma.sync rounds fp32 to tf32, and input_precision is 'ieee'"
    if a.startswith("fp8") and not request.target.has("nvidia.fp8"):
        return f"{a} needs nvidia.fp8, which {request.target} lacks"
    depth = 256 // request.a_dtype.primitive_bitwidth
    if request.m < _ROWS or request.n < _COLUMNS or request.k < depth:
        tile = f"{request.m}x{request.n}x{request.k}"
        return f"the tile {tile} is smaller than one mma.sync, {_ROWS}x{_COLUMNS}x{depth}"
    layout = request.acc_layout
    if layout is None:
        return True
    if not isinstance(layout, NVMMADistributedLayout):
        return f"the accumulator's layout is {type(layout).__name__}, not NVMMADistributedLayout"
    if layout.version[0] != 2:
        return f"the accumulator's layout is of version {layout.version}, not of mma.sync"
    return True


def mma(request: requests.MmaRequest, _semantic: SemanticLayer) -> Any:
    precision = "tf32" if request.a_dtype == tl.float32 else None
    return ampere.mma_v2(request.a, request.b, request.acc, input_precision=precision)


def mma_layouts(request: requests.MmaRequest) -> requests.MmaLayouts:
    a_bits = request.a_dtype.primitive_bitwidth
    b_bits = request.b_dtype.primitive_bitwidth
    accumulator = NVMMADistributedLayout(
        version=[2, 0],
        warps_per_cta=request.split_warps(_ROWS, _COLUMNS),
        instr_shape=[_ROWS, _COLUMNS],
    )
    if request.shared and request.target.has("nvidia.tma"):
        return replace(
            shared_layouts(request, accumulator),  # those that TMA writes
            a=DotOperandLayout(0, accumulator, 32 // a_bits),
            b=DotOperandLayout(1, accumulator, 32 // b_bits),
        )
    return requests.MmaLayouts(
        accumulator=accumulator,
        a=DotOperandLayout(0, accumulator, 32 // a_bits),
        b=DotOperandLayout(1, accumulator, 32 // b_bits),
        a_shared=request.swizzled(request.k, a_bits),
        b_shared=request.swizzled(request.n, b_bits),
    )
