"""Slices and other views of shared memory: views that the compiler refuses are refused at their line, the same
for the simulator, which has no compiler to ask."""

from __future__ import annotations

import pytest

from gluon_core import errors as E
from gluon_core.semantic import shared
from gluon_core.testing import triton_at_least
from tests.frontend import oracle

pytestmark = pytest.mark.once

KERNEL = """
S = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
SWIZZLED = gl.constexpr(gl.SwizzledSharedLayout(1, 4, 8, [1, 0]))
N = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
SPLIT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0], cga_layout=[[1, 0]]))
SHARED = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0], cga_layout=[[0, 0]]))
APART = gl.constexpr(gl.amd.gfx1250.PartitionedSharedLayout(2, 2, 0, S) if {apart} else None)
G64 = gl.constexpr(gl.PaddedSharedLayout.with_identity_for([[64, 8]], [64, 64], [1, 0]))
G32 = gl.constexpr(gl.PaddedSharedLayout.with_identity_for([[64, 8]], [32, 64], [1, 0]))
G32_WORDS = gl.constexpr(gl.PaddedSharedLayout.with_identity_for([[32, 4]], [64, 32], [1, 0]))

@gluon.jit
def kernel(p):
    b = gl.allocate_shared_memory(gl.float16, {shape}, {layout})
    {view}
    gl.store(p, 1)

ARGS, KWARGS = (ptr(gl.int32),), dict(num_ctas={blocks})
if {apart}:
    TARGET = GPUTarget("hip", "gfx1250", 32)
"""
# name: (shape, layout, view, error, its message); blocks of a cluster where the layout has some
CASES = {
    "rows": ([64, 64], "S", "b.slice(16, 16).reinterpret(gl.float16, [32, 32], S)", None, ""),
    "columns": (
        [64, 64], "S", "b.slice(16, 16, 1).reinterpret(gl.float16, [64, 16], S)",
        E.ShapeError, "32 bytes, which the slice [64, 16]",
    ),
    "a part of a row": (
        [64, 64], "S", "b.slice(16, 16, 1).reinterpret(gl.int8, [1, 32], S)", None, "",
    ),
    "transposed": (
        [64, 64], "S", "b.permute((1, 0)).slice(0, 16).reinterpret(gl.float16, [16, 64], S)",
        E.ShapeError, "32 bytes",
    ),
    "tiles": ([64, 128], "N", "b.slice(64, 64, 1).reinterpret(gl.float16, [64, 64], S)", None, ""),
    "gaps": ([64, 64], "G64", "b.reinterpret(gl.int32, [64, 32], G32_WORDS)", None, ""),
    "gaps in none": ([64, 64], "S", "b.reinterpret(gl.float16, [64, 64], G64)", E.LayoutError, "padding"),
    "gaps in a slice": (
        [64, 64], "G64", "b.slice(0, 32).reinterpret(gl.float16, [32, 64], G32)",
        E.LayoutError, "slice with gaps",
    ),
    "a share": (
        [64, 64], "SPLIT", "b.slice(0, 32).reinterpret(gl.float16, [32, 64], SPLIT)",
        E.LayoutError, "across the blocks",
    ),
    "partitions": (
        [64, 64], "APART", "b.reinterpret(gl.float16, [64, 64], S)", E.LayoutError, "in partitions",
    ),
    "shares": (
        [64, 64], "SPLIT", "b.reinterpret(gl.float16, [64, 64], SHARED)", E.ShapeError, "4096 bytes",
    ),
}  # fmt: skip
SLICES = {
    "swizzled rows": ([32, 32], "SWIZZLED", "b.slice(8, 8)", E.LayoutError, "cuts the layout's swizzle"),
    "swizzled columns": ([32, 64], "SWIZZLED", "b.slice(32, 32, 1)", None, ""),
    "across blocks": (
        [64, 64], "SPLIT", "b.slice(0, 32)",
        None if triton_at_least(3, 9) else E.LayoutError, "blocks of a cluster",
    ),
    "next to blocks": (
        [64, 64], "SPLIT", "b.slice(0, 32, 1)",
        None if triton_at_least(3, 8) else E.LayoutError, "blocks of a cluster",
    ),
}  # fmt: skip


def traced(case):
    shape, layout, view, *_ = case
    blocks = 2 if layout == "SPLIT" else 1
    oracle.ours(
        KERNEL.format(shape=shape, layout=layout, view=view, blocks=blocks, apart=layout == "APART")
    )


@pytest.mark.parametrize(
    "case",
    [*SLICES.values(), *(CASES.values() if triton_at_least(3, 9) else ())],
    ids=[*SLICES, *(CASES if triton_at_least(3, 9) else ())],
)
def test_the_compiler_refuses_the_same(case, monkeypatch):
    *_, error, message = case
    if error is None:
        traced(case)
        return
    with pytest.raises(error) as caught:
        traced(case)
    assert message in str(caught.value) and "b." in caught.value.span.text
    monkeypatch.setattr(shared, "check_slice", lambda *args: None)
    monkeypatch.setattr(shared, "check_view_place", lambda *args: None)
    with pytest.raises(E.StageError):
        traced(case)
