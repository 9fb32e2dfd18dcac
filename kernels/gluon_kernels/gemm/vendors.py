"""Products on Blackwell, CDNA, RDNA4 and gfx1250: the plans of the kernels that name their units.

They take plain products of 16-bit operands: on Blackwell [M, K] by [K, N], both stored by rows, on AMD [M, K] by [N, K]
transposed, as a linear layer stores its weight. `portable` has all others.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

import gluon_core as gluon
from gluon_core.plugin.targets import Target
from gluon_kernels.gemm.call import Call
from gluon_kernels.plans import allocator, multiprocessors

__all__ = ["plan"]

Plan = Callable[..., torch.Tensor]
_HALF = (torch.float16, torch.bfloat16)
_MOST = 1 << 31  # bytes that an offset of a buffer reaches


def plan(call: Call, out: Optional[torch.Tensor], target: Target) -> Optional[Plan]:
    """Return `run(a, b, bias, out) -> result`; None where no kernel of the target takes the product."""
    plain = call.a.ndim == 2 and call.a.dtype in _HALF and call.out_dtype in _HALF
    if (
        not plain
        or call.bias is not None
        or call.activation is not None
        or call.scales != (None, None)
    ):
        return None
    if out is not None and not out.is_contiguous():
        return None
    if target.has("nvidia.tcgen05") and target.has("nvidia.tma"):
        launch = _blackwell(call, out)
    else:
        launch = _amd(call, out, target)
    if launch is None:
        return None
    run, empty = launch, allocator(call.shape, call.out_dtype, call.a.device)

    def product(a: torch.Tensor, b: torch.Tensor, bias: Any, out: Optional[torch.Tensor]) -> torch.Tensor:  # fmt: skip
        result = empty() if out is None else out
        run(a, b, result)
        return result

    return product


def _result(call: Call, out: Optional[torch.Tensor]) -> torch.Tensor:
    return call.a.new_empty(call.shape, dtype=call.out_dtype) if out is None else out


def _blackwell(call: Call, out: Optional[torch.Tensor]) -> Optional[Callable[..., None]]:
    a, b, m, n, k = call.a, call.b, call.m, call.n, call.k
    c = _result(call, out)
    by_rows = a.is_contiguous() and b.is_contiguous() and c.dtype == a.dtype
    if not by_rows or n % 8 or k % 8 or any(t.data_ptr() % 16 for t in (a, b, c)):
        return None
    from gluon_core.nvidia.blackwell import TensorDescriptor
    from gluon_kernels.gemm.blackwell import matmul_blackwell

    block = (128, 256 if n > 128 else 128, 64)
    dtype = getattr(gluon.language, str(a.dtype).removeprefix("torch."))

    def described(tensor: torch.Tensor, box: list[int]) -> Any:
        layout = gluon.language.NVMMASharedLayout.get_default_for(box, dtype)
        return TensorDescriptor.from_tensor(tensor, box, layout)

    arguments = (
        described(a, [block[0], block[2]]), described(b, [block[2], block[1]]),
        described(c, [block[0], block[1] // 4]), m, n, k, *block, 4, 8, 1,
    )  # fmt: skip
    tiles = gluon.cdiv(m, block[0]) * gluon.cdiv(n, block[1])
    grid = (min(tiles, multiprocessors(a)),)
    launch: Callable[..., None] = gluon.torch.prepare(
        matmul_blackwell, grid, arguments, (a, b, c), num_warps=4
    )
    return launch


def _amd(call: Call, out: Optional[torch.Tensor], target: Target) -> Optional[Callable[..., None]]:
    a, b, m, n, k = call.a, call.b.mT, call.m, call.n, call.k
    size = a.element_size()
    fitting = a.is_contiguous() and b.is_contiguous() and k % 16 == 0
    if not fitting or size * max(m * k, n * k, m * n) >= _MOST:
        return None
    large = m * n >= 512 * 512
    block = (128, 128, 64) if large else (64, 64, 64)
    warps, by_tiles, more = 4, True, ()
    kernel: Any
    if target.has("amd.tdm"):
        from gluon_kernels.gemm.amd_tdm import matmul_tdm as kernel

        block, warps = ((256, 256, 64), 8) if large else (block, 4)
        more, by_tiles = (2, (2, warps // 2)), False
    elif target.has("amd.wmma_v2"):
        from gluon_kernels.gemm.amd_wmma import matmul_rdna4 as kernel

        warps, by_tiles = 8 if large else 4, False
    elif target.has("amd.direct_to_lds_128"):
        from gluon_kernels.gemm.amd import matmul_cdna4 as kernel

        block, warps = ((256, 128, 64), 8) if large else (block, 4)
        more = (32, 8, False)
    elif target.has("amd.mfma") and target.has("amd.mfma_fp8"):
        from gluon_kernels.gemm.amd import matmul_cdna3 as kernel

        more = (8, 8, False)
    else:
        return None
    c = _result(call, out)
    across = gluon.cdiv(m, block[0]), gluon.cdiv(n, block[1])
    grid = (across[0] * across[1],) if by_tiles else across
    arguments = (a, b, c, m, n, k, *block, *more)
    launch = gluon.torch.prepare(kernel, grid, arguments, (a, b, c), num_warps=warps)
    return lambda a, b, out: launch(a, b.mT, out)
