"""Warps of a partition in shared memory: whom the compilers let wait, read off the PTX.

The simulator lets the warps of a partition go in step there. That is right because between an access
and whatever may get in its way there is a barrier of the partition, in every release.
"""

from __future__ import annotations

import re

import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)

pytestmark = pytest.mark.once

L = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
B_TRANSPOSED = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))
PLANE = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))


@gluon.jit
def exchanged(a, out):
    o = gl.arange(0, 512, L)
    s = gl.allocate_shared_memory(gl.int32, [512], FLAT, gl.load(a + o))
    gl.store(out + gl.arange(0, 512, B_TRANSPOSED), s.load(B_TRANSPOSED))


@gluon.jit
def overwritten(a, out):
    o = gl.arange(0, 512, L)
    s = gl.allocate_shared_memory(gl.int32, [512], FLAT, gl.load(a + o))
    values = s.load(B_TRANSPOSED)
    s.store(gl.load(a + o + 512))
    gl.store(out + gl.arange(0, 512, B_TRANSPOSED), values + s.load(B_TRANSPOSED))


@gluon.jit
def copied(a, out):
    s = gl.allocate_shared_memory(gl.int32, [512], FLAT)
    async_copy.async_load(s, a + gl.arange(0, 512, B_TRANSPOSED))
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.store(out + gl.arange(0, 512, L), s.load(L))


@gluon.jit
def viewed(a, out, i, j):
    o = gl.arange(0, 512, L)
    s = gl.allocate_shared_memory(gl.int32, [4, 512], FLAT)
    s.index(i).store(gl.load(a + o))
    gl.store(out + gl.arange(0, 512, B_TRANSPOSED), s.index(j).load(B_TRANSPOSED))


@gluon.jit
def filled(a, s, bar):
    s.store(gl.load(a + gl.arange(0, 512, L)))
    mbarrier.arrive(bar)


@gluon.jit
def emptied(out, s, bar):
    values = s.load(L)
    mbarrier.arrive(bar)
    gl.store(out + gl.arange(0, 512, L), values)


@gluon.jit
def idle(a):
    pass


@gluon.jit
def partitioned(a, out, FILL: gl.constexpr):
    s = gl.allocate_shared_memory(gl.int32, [512], FLAT)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    if FILL:
        gl.warp_specialize([(idle, (a,)), (filled, (a, s, bar))], [4], [48])
    else:
        gl.warp_specialize([(idle, (a,)), (emptied, (out, s, bar))], [4], [48])


@gluon.jit
def refilled(a, out):
    d = tma.make_tensor_descriptor(a, [64, 64], [64, 1], [64, 64], TILE)
    s = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    for i in gl.static_range(2):
        mbarrier.expect(bar, 8192)
        tma.async_load(d, [0, 0], bar, s)
        mbarrier.wait(bar, i)
        rows = gl.arange(0, 64, gl.SliceLayout(1, PLANE))[:, None]
        columns = gl.arange(0, 64, gl.SliceLayout(0, PLANE))[None, :]
        gl.store(out + rows * 64 + columns, s.load(PLANE))


@gluon.jit
def sent(a, out):
    rows = gl.arange(0, 64, gl.SliceLayout(1, PLANE))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, PLANE))[None, :]
    d = tma.make_tensor_descriptor(out, [64, 64], [64, 1], [64, 64], TILE)
    s = gl.allocate_shared_memory(gl.float16, [64, 64], TILE, gl.load(a + rows * 64 + columns))
    fence_async_shared()
    tma.async_store(d, [0, 0], s)
    tma.store_wait(0)


@gluon.jit
def multiplied(a, out):
    rows = gl.arange(0, 64, gl.SliceLayout(1, PLANE))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, PLANE))[None, :]
    s = gl.allocate_shared_memory(gl.float16, [64, 64], TILE, gl.load(a + rows * 64 + columns))
    fence_async_shared()
    acc = warpgroup_mma(s, s, gl.zeros([64, 64], gl.float32, ACC))
    gl.store(out + gl.arange(0, 64, gl.SliceLayout(1, ACC)), gl.sum(acc, 1).to(gl.float16))


# kernel: (arguments, constants, the access, the conflicting one)
STORE, LOAD = r"st\.shared|stmatrix|cp\.async\.ca|cp\.async\.cg", r"ld\.shared|ldmatrix"
CASES = {
    "store, load": (exchanged, "i32", {}, STORE, LOAD),
    "load, store": (overwritten, "i32", {}, LOAD, STORE),
    "copy, load": (copied, "i32", {}, r"cp\.async\.wait", LOAD),
    "store, load by another index": (viewed, "i32", {}, STORE, LOAD),
    "store, arrive": (partitioned, "i32", {"FILL": True}, STORE, r"mbarrier\.arrive\."),
    "load, arrive": (partitioned, "i32", {"FILL": False}, LOAD, r"mbarrier\.arrive\."),
    "load, copy by the TMA": (refilled, "fp16", {}, LOAD, r"cp\.async\.bulk\.tensor"),
    "store, copy by the TMA": (sent, "fp16", {}, STORE, r"cp\.async\.bulk\.tensor"),
    "store, warpgroup_mma": (multiplied, "fp16", {}, STORE, r"wgmma\.mma_async"),
}
BARRIER = r"bar\.sync|barrier\.sync|bar\.warp"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_a_barrier_orders_both_sides(name):
    kernel, dtype, constants, access, later = CASES[name]
    signature = {"a": f"*{dtype}:16", "out": f"*{dtype}:16"}
    if kernel is viewed:
        signature |= {"i": "i32", "j": "i32"}
    compiled = gluon.compile(kernel, "sm_90", signature=signature, constexprs=constants)
    text = "\n".join(
        line for line in compiled.asm["ptx"].splitlines() if not line.strip().startswith("//")
    )
    events = re.findall(f"(?P<access>{access})|(?P<barrier>{BARRIER})|(?P<later>{later})", text)
    kinds = ["abl"[[bool(access) for access in event].index(True)] for event in events]
    order = "".join(kinds)
    assert "a" in order and "l" in order, order
    assert re.search("ab+l", order), order
    assert not re.search("al", order), order
