"""Kernels of gl.nvidia.ampere down to PTX: the instructions that their builtins stand for."""

from __future__ import annotations

import re

import pytest

from gluon_core.compiler import compile
from gluon_core.testing import MockTensor, bind
from tests.frontend import oracle

SOURCE = """
from gluon_core.language.nvidia.ampere import async_copy, mbarrier, mma_v2
L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
S = gl.constexpr(gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
ACC = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8]))
A = gl.constexpr(gl.DotOperandLayout(0, ACC, 2))
B = gl.constexpr(gl.DotOperandLayout(1, ACC, 2))
@gluon.jit
def kernel(a, b, c):
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    offsets = rows[:, None] * 64 + columns[None, :]
    x = gl.allocate_shared_memory(gl.float16, [64, 64], S)
    y = gl.allocate_shared_memory(gl.float16, [64, 64], S)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    async_copy.async_load(x, a + offsets, mask=rows[:, None] < 60)
    async_copy.async_load(y, b + offsets, cache_modifier=".ca")
    async_copy.commit_group()
    async_copy.wait_group(0)
    async_copy.mbarrier_arrive(bar, increment_count=False)
    mbarrier.arrive(bar)
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)
    acc = mma_v2(x.load(A), y.load(B), gl.full([64, 64], 0, gl.float32, layout=ACC))
    gl.store(c + offsets, gl.convert_layout(acc, L))
"""
INSTRUCTIONS = [
    r"cp\.async\.cg\.shared\.global .*0x10",
    r"cp\.async\.commit_group",
    r"cp\.async\.wait_group",
    r"cp\.async\.mbarrier\.arrive\.noinc",
    r"mbarrier\.init\.shared::cta\.b64",
    r"mbarrier\.arrive",
    r"mbarrier\.(test|try)_wait",
    r"mbarrier\.inval",
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32",
]


@pytest.mark.once
@pytest.mark.parametrize("target", ["nvidia:sm_80", "nvidia:sm_90"])
def test_instructions(target):
    import torch

    module = oracle.load(SOURCE, oracle.OURS)
    halves, floats = MockTensor(torch.float16), MockTensor(torch.float32)
    source, _ = bind(module.kernel, (halves, halves, floats), {})
    ptx = compile(source, target=target).asm["ptx"]
    missing = [pattern for pattern in INSTRUCTIONS if not re.search(pattern, ptx)]
    assert not missing, ptx
