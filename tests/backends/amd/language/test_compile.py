"""Kernels of gl.amd down to the ISA: the instructions that their builtins stand for."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gluon_core.compiler import compile
from gluon_core.testing import TRITON_VERSION, MockTensor, bind
from tests.frontend import oracle

SOURCE = """
from gluon_core.language.amd import cdna3, rdna3, rdna4
ACC = gl.constexpr({acc})
A = gl.constexpr(gl.DotOperandLayout(0, ACC, {width}))
B = gl.constexpr(gl.DotOperandLayout(1, ACC, {width}))
@gluon.jit
def tile(L: gl.constexpr):
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    return rows[:, None] * 64 + columns[None, :]
@gluon.jit
def kernel(a, b, c, n, counts):
    x = cdna3.buffer_load(a, tile(A), mask=tile(A) < n, other=0)
    y = cdna3.buffer_load(b, tile(B))
    acc = {unit}(x, y, gl.full([64, 64], 0, gl.float32, layout=ACC))
    cdna3.buffer_store(acc, c, tile(ACC), mask=tile(ACC) < n)
    cdna3.buffer_atomic_add(c, tile(ACC), acc)
    cdna3.buffer_atomic_or(counts, tile(ACC), 1)
    cdna3.buffer_atomic_max(counts, tile(ACC).to(gl.uint32), tile(ACC).to(gl.uint32))
"""
WARPS = "[2, 2]" if TRITON_VERSION < (3, 7) else "[[0, 1], [1, 0]]"
UNITS = {
    "gfx942": ("gl.amd.AMDMFMALayout(3, [32, 32, 8], True, [2, 2])", 4, "cdna3.mfma",
               "v_mfma_f32_32x32x8_f16"),
    "gfx950": ("gl.amd.AMDMFMALayout(4, [16, 16, 32], True, [2, 2])", 8, "cdna3.mfma",
               "v_mfma_f32_16x16x32_f16"),
    "gfx1100": (f"gl.amd.AMDWMMALayout(1, True, {WARPS})", 16, "rdna3.wmma",
                "v_wmma_f32_16x16x16_f16"),
    "gfx1200": (f"gl.amd.AMDWMMALayout(2, True, {WARPS})", 8, "rdna4.wmma",
                "v_wmma_f32_16x16x16_f16"),
}  # fmt: skip
INSTRUCTIONS = [
    r"buffer_load_\w+",
    r"buffer_store_\w+",
    r"buffer_atomic_add_f32",
    r"buffer_atomic_or\w*",
    r"buffer_atomic_(umax|max_u32)",
]


@pytest.mark.once
@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", list(UNITS))
def test_instructions(target):
    import torch

    acc, width, unit, instruction = UNITS[target]
    module = oracle.load(SOURCE.format(acc=acc, width=width, unit=unit), oracle.OURS)
    halves, floats = MockTensor(torch.float16), MockTensor(torch.float32)
    arguments = (halves, halves, floats, 4000, MockTensor(torch.uint32))
    source, _ = bind(module.kernel, arguments, {})
    isa = compile(source, target=target).asm["amdgcn"]
    missing = [pattern for pattern in [*INSTRUCTIONS, instruction] if not re.search(pattern, isa)]
    assert not missing, isa[:2000]


@pytest.mark.once
@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", list(UNITS))
def test_results(on, target):
    acc, width, unit, _ = UNITS[target]
    module = oracle.load(SOURCE.format(acc=acc, width=width, unit=unit), oracle.OURS)
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (2, 64, 64)).astype(np.float16)
    c, counts = np.zeros(4096, np.float32), np.zeros(4096, np.uint32)
    module.kernel[(1,)](a, b, c, 4000, counts, target=on(target))
    cut = a.copy().reshape(-1)
    cut[4000:] = 0
    product = (cut.reshape(64, 64).astype(np.float64) @ b.astype(np.float64)).reshape(-1)
    wanted = np.where(np.arange(4096) < 4000, 2 * product, product)
    np.testing.assert_allclose(c, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(counts, np.maximum(np.arange(4096), 1))
