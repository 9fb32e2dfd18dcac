"""Bugs of compilers, seen in their machine code: docs/known-compiler-bugs.md. Fails when a bug is gone."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import _triton
from gluon_core import language as gl
from gluon_core.errors import KernelWarning
from gluon_core.features import MADE_BARRIERS_FENCED
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.registry.load import registry
from gluon_core.testing import triton_at_least
from gluon_nvidia.inspect import instructions_of
from gluon_nvidia.undefined import reads_undefined


@gluon.jit
def largest(a, out):
    v = gl.load(a + gl.arange(0, 512, gl.BlockedLayout([1], [32], [4], [0])))
    gl.store(out, gl.max(v - v * 2, 0))


@pytest.mark.once
@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_a_maximum_of_three_forgets_a_sign(target):
    compiled = gluon.compile(largest, target, signature={"a": "*i32:16", "out": "*i32:16"})
    assert len(re.findall(r"neg\.s32", compiled.asm["ptx"])) == 4
    before = compiled.asm["sass"].split("SHFL")[0]
    negated = len(re.findall(r"-R\d+", before))
    wrong = target != "sm_80" and not triton_at_least(3, 9)
    assert negated == (3 if wrong else 4), before
    assert ("VIMNMX3" in before) == (target != "sm_80")


SWIZZLED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))


@gluon.jit
def beside_a_spare_barrier(boxes, INVALIDATED: gl.constexpr):
    spare = mbarrier.allocate_mbarrier()
    mbarrier.init(spare, 1)
    tile = gl.allocate_shared_memory(gl.float16, [64, 64], SWIZZLED)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, 64 * 64 * 2)
    tma.async_load(boxes, [0, 0], bar, tile)
    mbarrier.wait(bar, 0)
    if INVALIDATED:
        mbarrier.invalidate(spare)


@pytest.mark.once
@pytest.mark.parametrize("invalidated", [False, True])
def test_an_unused_barrier_is_where_a_copy_goes(invalidated):
    boxes = TensorDescriptor.from_tensor(np.zeros((64, 64), np.float16), [64, 64], SWIZZLED.value)
    compiled = gluon.compile(
        beside_a_spare_barrier,
        "sm_90",
        signature={"boxes": boxes},
        constexprs={"INVALIDATED": invalidated},
    )
    ptx = compiled.asm["ptx"]
    match = re.search(r"mbarrier\.init\S+ \[(%r\d+)\]", ptx)[1]
    copied = re.search(r"cp\.async\.bulk\.tensor\S+ \[(%r\d+)\]", ptx)[1]
    assert (match == copied) == (not invalidated)
    between = ptx[ptx.index("mbarrier.init") : ptx.index("cp.async.bulk.tensor")]
    fenced = _triton.has(MADE_BARRIERS_FENCED) and not invalidated
    assert ("fence.proxy.async" in between) == fenced


@gluon.jit
def across_blocks(x, GATHERS: gl.constexpr, layout: gl.constexpr):
    offsets = gl.arange(0, 256, layout)
    value = gl.load(x + offsets)
    if GATHERS:
        gl.store(x + offsets, gl.gather(value, 255 - offsets, 0))
    else:
        gl.store(x + offsets, gl.histogram(value, 256, layout=layout))


@pytest.mark.once
@pytest.mark.parametrize("gathers", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_blocks_of_a_cluster_gather_and_count_by_themselves(
    gathers, shared, recwarn, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # warnings come while tracing
    layout = gl.BlockedLayout([1], [32], [4], [0], cga_layout=[(int(shared),)])
    constants = {"GATHERS": gathers, "layout": layout}
    compiled = gluon.compile(
        across_blocks, "sm_90", {"num_ctas": 2}, signature={"x": "*i32"}, constexprs=constants
    )
    added_up = not gathers and triton_at_least(3, 9)
    assert ("mapa" in compiled.asm["ptx"]) == (shared and added_up)
    messages = [str(w.message) for w in recwarn if w.category is KernelWarning]
    assert len(messages) == (shared and not added_up)
    assert all("blocks of a cluster share" in text for text in messages)


SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))


@gluon.jit
def in_two_loops(out, first, last, slot, SCALE: gl.constexpr):
    tiles = gl.allocate_shared_memory(gl.float16, [2, 64, 64], SWIZZLED)
    other = gl.allocate_shared_memory(gl.float16, [64, 64], SWIZZLED)
    zeros = gl.zeros([64, 64], gl.float32, layout=SUMS)
    total, tile = zeros, tiles.index(slot)
    for i in range(first):
        total += warpgroup_mma(tile, other, zeros, use_acc=False)
    for i in range(first, last):
        total += warpgroup_mma(tile, other, zeros, use_acc=False) * (i * SCALE)
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, SUMS)) * 64
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, SUMS))
    gl.store(out + rows[:, None] + columns[None, :], total)


@pytest.mark.once
def test_a_descriptor_is_left_in_front_of_a_loop_without_steps(monkeypatch):
    """The assembler's own code reads registers that nothing wrote; the kernel is assembled again, and reads none."""
    signature = {"out": "*fp32:16", "first": "i32", "last": "i32", "slot": "i32"}

    def undefined(scale):
        compiled = gluon.compile(
            in_two_loops, "sm_90", signature=signature, constexprs={"SCALE": scale}
        )
        return reads_undefined(instructions_of(compiled.asm["cubin"]))

    assert not undefined(2)
    monkeypatch.setattr("gluon_nvidia.backend.complete", lambda run: run)
    assert undefined(3) == (not triton_at_least(3, 8))


def _has_wgmma():
    target = registry().backend("nvidia").device.target()
    return target is not None and target.has("nvidia.wgmma")


FIRST = gl.constexpr(gl.DotOperandLayout(0, SUMS, 2))


@gluon.jit
def in_all_steps(x, y, out, steps, masked, SCALE: gl.constexpr):
    tiles = gl.allocate_shared_memory(gl.float16, [2, 64, 64], SWIZZLED)
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, SUMS))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, SUMS))
    values = gl.load(y + rows[:, None] * 64 + columns[None, :])
    tiles.index(0).store(values)
    tiles.index(1).store(values)
    fence_async_shared()
    gl.barrier()
    first_rows = gl.arange(0, 64, layout=gl.SliceLayout(1, FIRST))
    first_columns = gl.arange(0, 64, layout=gl.SliceLayout(0, FIRST))
    first = gl.load(x + first_rows[:, None] * 64 + first_columns[None, :])
    zeros = gl.zeros([64, 64], gl.float32, layout=SUMS)
    total = zeros
    for step in range(steps):
        tile = tiles.index(step % 2)
        weight = warpgroup_mma(first, tile.permute((1, 0)), zeros, use_acc=False, is_async=True)
        weight = warpgroup_mma_wait(0, deps=[weight]) * SCALE
        if step > masked:
            weight = gl.where(rows[:, None] < columns[None, :] + step, weight, 0.0)
        operand = gl.convert_layout(weight.to(gl.float16), FIRST)
        total = warpgroup_mma_wait(0, deps=[warpgroup_mma(operand, tile, total, is_async=True)])
    gl.store(out + rows[:, None] * 64 + columns[None, :], total)


@pytest.mark.gpu
@pytest.mark.skipif(not _has_wgmma(), reason="no Hopper GPU")
def test_a_loop_multiplies_an_operand_in_all_steps():
    import torch

    x, y = (torch.randn(64, 64, device="cuda", dtype=torch.float16) / 4 for _ in range(2))
    out = torch.empty(64, 64, device="cuda")
    in_all_steps[(1,)](x, y, out, 5, 1, 0.5)
    index = torch.arange(64, device="cuda")
    seen = sum((index[:, None] < index + step) | (step <= 1) for step in range(5))
    expected = (x.float() @ y.float().T / 2 * seen) @ y.float()
    assert torch.allclose(out, expected, atol=1e-2)


@pytest.mark.once
def test_registers_of_an_operand_are_given_to_other_values(monkeypatch):
    """The assembler's own code keeps an operand of all steps where it puts that of another product."""
    signature = {"x": "*fp16:16", "y": "*fp16:16", "out": "*fp32:16"}
    signature |= {"steps": "i32", "masked": "i32"}

    def overwritten(scale):
        compiled = gluon.compile(
            in_all_steps, "sm_90", signature=signature, constexprs={"SCALE": scale}
        )
        code = instructions_of(compiled.asm["cubin"])
        loop = re.search(r"^\.(L_x_\d+):.*HGMMA.*BRA `\(\.\1\)", code, re.M | re.S)[0]
        before, kept, behind = re.split(r"HGMMA\S* R\d+, (R\d+), ", loop, maxsplit=1)
        write = rf"[\w.]+ {kept}, "  # at the begin of a step, a copy of the operand
        return not re.search(write, before) and re.search(write, behind) is not None

    assert not overwritten(2.0)
    monkeypatch.setattr("gluon_nvidia.backend.held", lambda run: run)
    assert overwritten(3.0) == (not triton_at_least(3, 9))
