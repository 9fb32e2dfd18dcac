"""`gl.portable.mma` by `wgmma` (sm_90a): operands in shared memory, accumulators in registers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional, Sequence, Union

from gluon_core.layouts import DotOperandLayout
from gluon_core.plugin.ops import tl
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.portable import requests
from gluon_nvidia.language import wgmma
from gluon_nvidia.layouts import NVMMADistributedLayout, NVMMASharedLayout

__all__ = [
    "accepts",
    "accumulator",
    "layouts",
    "mma",
    "mma_wait",
    "read",
    "shared_refusal",
]

_WARPGROUP, _ROWS, _COLUMNS, _MOST_COLUMNS = 4, 64, 8, 256
_MOST_OF_INTEGERS = 128  # PTX has 256, Triton's lowering no power of two above 128
# Operand dtype -> the accumulators that wgmma has for it (PTX 9.7.15.2).
_ACCUMULATORS = {
    "fp16": ("fp32", "fp16"),
    "bf16": ("fp32",),
    "fp32": ("fp32",),
    "int8": ("int32",),
    "fp8e4nv": ("fp32", "fp16"),
    "fp8e5": ("fp32", "fp16"),
}


def shared_refusal(request: requests.MmaRequest, unit: str) -> Optional[str]:
    """Return the reason why a unit cannot read the operands in place, None where it can."""
    if not request.shared:
        return f"{unit} reads shared memory, and the operands are in registers"
    if request.a is None:
        return None
    for name, layout in (("a", request.a_layout), ("b", request.b_layout)):
        if not isinstance(layout, NVMMASharedLayout):
            return f"{unit} reads NVMMASharedLayout, not {type(layout).__name__} of {name}"
    return None


def accepts(request: requests.MmaRequest) -> Union[bool, str]:
    refusal = shared_refusal(request, "wgmma")
    if refusal is not None:
        return refusal
    a, b, acc = (str(t) for t in (request.a_dtype, request.b_dtype, request.acc_dtype))
    both_fp8 = a.startswith("fp8") and b.startswith("fp8")
    if a not in _ACCUMULATORS or b not in _ACCUMULATORS or (a != b and not both_fp8):
        return f"wgmma has no form for {a} times {b}"
    if acc not in _ACCUMULATORS[a]:
        return f"wgmma does not accumulate {a} in {acc}"
    if a == "fp32" and request.input_precision != "tf32":
        return "wgmma rounds fp32 to tf32, and input_precision is 'ieee'"
    transposed = request.b_transposed if request.b is None else request.b_layout.transposed
    if request.a_dtype.primitive_bitwidth != 16 and not transposed:
        return f"wgmma reads {b} along K only, and b is not transposed"
    if request.num_warps % _WARPGROUP:
        return f"wgmma runs on groups of {_WARPGROUP} warps, and there are {request.num_warps}"
    depth = 256 // request.a_dtype.primitive_bitwidth
    _, across = _warpgroups(request)
    if request.m < _ROWS or request.n // across < _COLUMNS or request.k < depth:
        tile = f"{request.m}x{request.n}x{request.k}"
        return (
            f"the tile {tile} gives {request.num_warps} warps less than one wgmma each, "
            f"{_ROWS}x{_COLUMNS}x{depth}"
        )
    layout = request.acc_layout
    if layout is None or (isinstance(layout, NVMMADistributedLayout) and layout.version[0] == 3):
        return True
    return "the accumulator's layout is not one of wgmma"


def _warpgroups(request: requests.MmaRequest) -> tuple[int, int]:
    """Warpgroups along M and N: as many as there are rows for, the others along N."""
    groups = request.num_warps // _WARPGROUP
    down = max(1, min(groups, request.m // _ROWS))
    return down, groups // down


def layouts(request: requests.MmaRequest) -> requests.MmaLayouts:
    down, across = _warpgroups(request)
    bits = request.a_dtype.primitive_bitwidth
    most = _MOST_OF_INTEGERS if str(request.a_dtype) == "int8" else _MOST_COLUMNS
    columns = min(most, request.n // across)
    accumulator = NVMMADistributedLayout(
        version=[3, 0],
        warps_per_cta=[down * _WARPGROUP, across],
        instr_shape=[16, columns, 256 // bits],
    )
    width = 32 // bits
    return replace(
        shared_layouts(request, accumulator),
        a=DotOperandLayout(0, accumulator, width),
        b=DotOperandLayout(1, accumulator, width),
    )


def shared_layouts(request: requests.MmaRequest, accumulator: Any) -> requests.MmaLayouts:
    """For a unit that takes no operands in registers."""
    default = NVMMASharedLayout.get_default_for
    b_shape = [request.n, request.k] if request.b_transposed else [request.k, request.n]
    return requests.MmaLayouts(
        accumulator=accumulator,
        a=None,
        b=None,
        a_shared=default([request.m, request.k], request.a_dtype),
        b_shared=default(b_shape, request.b_dtype),
    )


def accumulator(
    layouts: requests.MmaLayouts, start: Any, _semantic: SemanticLayer
) -> Sequence[Any]:
    if start is None:
        start = _semantic.full(list(layouts.shape), 0, layouts.acc_dtype, layouts.accumulator)
    return (wgmma.warpgroup_mma_init(start),)


def mma(request: requests.MmaRequest, _semantic: SemanticLayer) -> Sequence[Any]:
    result = wgmma.warpgroup_mma(
        request.a,
        request.b,
        request.acc.values[0],
        precision="tf32" if request.a_dtype == tl.float32 else None,
        is_async=request.is_async,
    )
    return (wgmma.warpgroup_mma_init(result),)


def mma_wait(
    parts: Any, pending: int, deps: Sequence[Any], _semantic: SemanticLayer
) -> Sequence[Any]:
    results = wgmma.warpgroup_mma_wait(pending, deps=[parts.values[0], *deps])
    value = results.values[0] if deps else results
    return (wgmma.warpgroup_mma_init(value),)


def read(parts: Any, _semantic: SemanticLayer) -> Any:
    return wgmma.warpgroup_mma_wait(0, deps=[parts.values[0]])
