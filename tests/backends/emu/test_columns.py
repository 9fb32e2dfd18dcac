"""`warpgroup_mma(columns=...)` in machine code: the first columns are products, of both orientations of B."""

from __future__ import annotations

import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

pytestmark = [pytest.mark.once]

LOAD = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))


@gluon.jit
def loaded(x, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LOAD))
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LOAD))
    return gl.load(x + rows[:, None] * COLUMNS + columns[None, :])


@gluon.jit
def product(a, b, c, BY_COLUMNS: gl.constexpr, NEEDED: gl.constexpr, IN_REGISTERS: gl.constexpr):
    dtype: gl.constexpr = a.dtype.element_ty
    left = gl.allocate_shared_memory(dtype, [64, 64], TILE, loaded(a, 64, 64))
    if BY_COLUMNS:
        right = gl.allocate_shared_memory(dtype, [128, 64], TILE, loaded(b, 128, 64))
        right = right.permute((1, 0))
    else:
        right = gl.allocate_shared_memory(dtype, [64, 128], TILE, loaded(b, 64, 128))
    fence_async_shared()
    acc = warpgroup_mma_init(gl.zeros([64, 128], gl.float32, ACC))
    if IN_REGISTERS:
        x = left.load(gl.DotOperandLayout(0, ACC, 2))
        acc = warpgroup_mma(x, right, acc, columns=NEEDED, is_async=True)
    else:
        acc = warpgroup_mma(left, right, acc, columns=NEEDED, is_async=True)
    result = warpgroup_mma_wait(0, deps=[acc])
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, ACC))
    columns = gl.arange(0, 128, layout=gl.SliceLayout(0, ACC))
    gl.store(c + rows[:, None] * 128 + columns[None, :], result)


@pytest.mark.parametrize("needed, by_columns, in_registers", [(112, False, False), (72, True, True)])  # fmt: skip
def test_the_first_columns_are_multiplied(needed, by_columns, in_registers, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "emu:sm_90")
    a, b = torch.randn(64, 64).bfloat16(), torch.randn(64, 128).bfloat16()
    c = torch.empty(64, 128)
    product[(1,)](
        a, b.mT.contiguous() if by_columns else b, c, by_columns, needed, in_registers, num_warps=4
    )
    right = a.float() @ b.float()
    torch.testing.assert_close(c[:, :needed], right[:, :needed])
    assert not c[:, needed:].any()  # not multiplied
