"""GEMM, written once: `gl.portable` picks the matrix unit, the copies and the layouts of the target.

Matrices of a batch are a dimension more of the tensors, of which a tile covers one: what is behind the end of a matrix is
zero, not the next matrix. Each program walks over many tiles. While one step is multiplied, tiles for the next ones
are under way, across the border between two tiles and between two matrices, too.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.plugin.targets import Target
from gluon_kernels.gemm.call import Call
from gluon_kernels.gemm.epilogue import of_columns
from gluon_kernels.plans import allocator, current_target

__all__ = ["gemm", "plan"]


@gluon.constexpr_function
def deep(layout):
    """Return the layout of a tile in shared memory with a dimension of 1 in front."""
    if isinstance(layout, gl.SwizzledSharedLayout):
        order = [dim + 1 for dim in layout.order] + [0]
        return gl.SwizzledSharedLayout(layout.vec, layout.per_phase, layout.max_phase, order)
    return None  # the one that the unit that copies takes by itself


@gluon.jit
def place_of(tile, tiles, most):
    """Return the matrix of a tile, and the row and column at which the tile begins; the last matrix where none is left."""
    row, column = tiles.at(tile % tiles.count())
    return gl.minimum(tile // tiles.count(), most - 1), row, column


@gluon.jit
def gemm(
    a, b, c, bias, batch, M, N, K, a_strides, b_strides, c_strides,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Multiply matrices: `a` is [batch, M, K], `b` [batch, K, N], `c` [batch, M, N], each with strides of matrices and of rows."""
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    a_tiles = gl.portable.descriptor(
        a, [batch, M, K], [a_strides[0], a_strides[1], 1], [1, BLOCK_M, BLOCK_K],
        deep(layouts.a_shared),
    )  # fmt: skip
    b_tiles = gl.portable.descriptor(
        b, [batch, K, N], [b_strides[0], b_strides[1], 1], [1, BLOCK_K, BLOCK_N],
        deep(layouts.b_shared),
    )  # fmt: skip
    c_tiles = gl.portable.descriptor(
        c, [batch, M, N], [c_strides[0], c_strides[1], 1], [1, BLOCK_M, BLOCK_N // 4]
    )
    end = of_columns(M, N, bias, ACTIVATION)
    ring = gl.portable.pipeline([a_tiles, b_tiles], STAGES)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], GROUP)
    count = tiles.count() * batch
    programs = gl.num_programs(0)
    coming = gl.program_id(0)
    matrix, row, column = place_of(coming, tiles, batch)
    k = 0
    for i in gl.static_range(STAGES - 1):
        ring.fetch(i, [[matrix, row, k], [matrix, k, column]], pred=coming < count)
        k += BLOCK_K
        if k >= K:
            k = 0
            coming += programs
            matrix, row, column = place_of(coming, tiles, batch)
    step = 0
    for tile in range(gl.program_id(0), count, programs):
        acc = gl.portable.accumulator(layouts)
        for _ in range(0, K, BLOCK_K):
            a_tile, b_tile = ring.wait(step)
            a_tile = a_tile.reshape([BLOCK_M, BLOCK_K])
            acc = gl.portable.mma(a_tile, b_tile.reshape([BLOCK_K, BLOCK_N]), acc, is_async=True)
            # The step before is over: its buffers are free for the tiles that come next.
            acc = gl.portable.mma_wait(acc, pending=1)
            ahead = step + STAGES - 1
            ring.fetch(ahead, [[matrix, row, k], [matrix, k, column]], pred=coming < count)
            k += BLOCK_K
            if k >= K:
                k = 0
                coming += programs
                matrix, row, column = place_of(coming, tiles, batch)
            step += 1
        here, top, left = place_of(tile, tiles, batch)
        result = end.apply(gl.portable.read(acc), [top, left])
        gl.portable.store(c_tiles, [here, top, left], result.reshape([1, BLOCK_M, BLOCK_N]))
    ring.close()


def configuration(target: Target, dtype: torch.dtype, rows: int, columns: int) -> dict[str, Any]:
    """Return tile, stages and warps for a result of `rows` by `columns`.

    Units that read shared memory on their own, or are fast, want large tiles. Those of NVIDIA without `wgmma` take smaller ones, or more
    warps, where a matrix does not fill its tiles: the masks of the copies take registers.
    """
    block, stages, warps = (128, 128, 32), 3, 4
    if dtype == torch.float32:  # twice the bytes, and no matrix unit of full precision
        block, stages, warps = (64, 64, 16), 3, 4
    elif target.has("nvidia.wgmma"):
        block, stages, warps = (128, 256, 64), 4, 8
    elif target.has("nvidia.tcgen05"):
        block, stages, warps = (256, 128, 64), 4, 8
        if rows % 256 or columns % 128:
            block = (128, 128, 32)
    elif target.has("amd.mfma_double_rate"):
        block, stages, warps = (256, 128, 64), 2, 8
    elif target.has("amd.wmma_v3"):
        block, stages = (128, 128, 64), 2
    elif target.has("amd.wmma_v1") or target.has("amd.wmma_v2"):  # of 256 registers
        warps = 8
    elif target.has("nvidia.mma_v2") and rows <= 32:
        block = (32, 128, 32)
    elif target.has("nvidia.mma_v2") and (rows % 128 or columns % 128):
        warps = 8
    m, n, k = block
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "STAGES": stages, "num_warps": warps}


def plan(call: Call, out: Optional[torch.Tensor]) -> Callable[..., Any]:
    """Return `run(a, b, bias, out) -> result`, which allocates the result where `out` is None."""
    target = current_target()
    aligned = 16 if target.has("nvidia.tma") else 1
    config = configuration(target, call.a.dtype, call.m, call.n)
    warps = config.pop("num_warps")
    a, b = _fitting(call.a, aligned), _fitting(call.b, aligned)
    copied = a is not call.a, b is not call.b
    result = call.a.new_empty(call.shape, dtype=call.out_dtype) if out is None else out
    own = _fitting(result, aligned)
    through = own is not result
    arguments = (
        a, b, own, call.bias, call.batch, call.m, call.n, call.k,
        *(_strides(tensor) for tensor in (a, b, own)), *config.values(), 8, call.activation,
    )  # fmt: skip
    tiles = gluon.cdiv(call.m, config["BLOCK_M"]) * gluon.cdiv(call.n, config["BLOCK_N"])
    tiles *= call.batch
    here = gluon.multiprocessors(a)
    programs = min(tiles, here * max(1, 8 // warps) if here else max(3, tiles // 4))
    launch = gluon.torch.prepare(
        gemm, (programs,), arguments, (a, b, call.bias, own), num_warps=warps
    )
    empty = allocator(call.shape, call.out_dtype, call.a.device)

    def run(
        a: torch.Tensor, b: torch.Tensor, bias: Optional[torch.Tensor], out: Optional[torch.Tensor]
    ) -> torch.Tensor:
        if out is None:
            out = empty()
        if copied[0]:
            a = _fitting(a, aligned)
        if copied[1]:
            b = _fitting(b, aligned)
        if not through:
            launch(a, b, bias, out)
            return out
        own = _padded(out, aligned)
        launch(a, b, bias, own)
        out.copy_(own)
        return out

    return run


def _strides(tensor: torch.Tensor) -> tuple[int, int]:
    of_batch = tensor.stride(0) if tensor.ndim == 3 else tensor.shape[0] * tensor.stride(0)
    return of_batch, tensor.stride(-2)


def _fitting(tensor: torch.Tensor, aligned: int) -> torch.Tensor:
    """Return the tensor, or a copy whose rows are contiguous and begin at multiples of `aligned` bytes."""
    size = tensor.element_size()
    strides = tensor.stride()[:-1]
    if tensor.stride(-1) == 1 and not any(s * size % aligned or s <= 0 for s in strides):
        if tensor.data_ptr() % aligned == 0:
            return tensor
    return _padded(tensor, aligned).copy_(tensor)


def _padded(like: torch.Tensor, aligned: int) -> torch.Tensor:
    unit = max(1, aligned // like.element_size())
    columns = like.shape[-1]
    pitch = -(-columns // unit) * unit
    whole = torch.empty((*like.shape[:-1], pitch), dtype=like.dtype, device=like.device)
    return whole[..., :columns]
