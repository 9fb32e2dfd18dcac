"""Layouts that the ops infer, in examples; test_layouts_properties.py asks the compiler."""

from __future__ import annotations

import pytest

from gluon_core import layouts as L
from gluon_core.errors import LayoutError, ShapeError
from gluon_core.layouts import (
    AutoLayout,
    BlockedLayout,
    DistributedLinearLayout,
    PaddedSharedLayout,
    SharedLinearLayout,
    SliceLayout,
    SwizzledSharedLayout,
    infer,
)

pytestmark = pytest.mark.once  # layouts know no Triton

BLOCKED = BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])


@pytest.fixture(params=[(3, 6), (3, 9)], ids=["3.6", "3.9"])
def version(request):
    L.set_compiler_version(request.param)
    yield request.param
    L.set_compiler_version(None)


def test_expand_dims_undoes_reduce():
    for axis in (0, 1):
        assert infer.reduce(BLOCKED, axis) == SliceLayout(axis, BLOCKED)
        assert infer.expand_dims(SliceLayout(axis, BLOCKED), axis) == BLOCKED


def test_expand_dims_needs_the_right_slice():
    with pytest.raises(LayoutError, match="SliceLayout") as caught:
        infer.expand_dims(BLOCKED, 0)
    assert "convert_layout" in str(caught.value)
    with pytest.raises(LayoutError, match="another dimension"):
        infer.expand_dims(SliceLayout(0, BLOCKED), 1)
    with pytest.raises(LayoutError):
        infer.reduce(BLOCKED, 2)


def test_permute_keeps_blocked_and_makes_others_linear():
    assert infer.permute(BLOCKED, [32, 16], [1, 0]) == BlockedLayout([2, 1], [8, 4], [1, 4], [0, 1])
    three = BlockedLayout([1, 1, 1], [2, 4, 4], [1, 1, 1], [2, 1, 0])
    part = SliceLayout(0, three)
    moved = infer.permute(part, [8, 4], [1, 0])
    assert isinstance(moved, DistributedLinearLayout) and moved.shape == [4, 8]
    assert infer.permute(part, [8, 4], [0, 1]) is part
    with pytest.raises(ShapeError, match="permutation"):
        infer.permute(BLOCKED, [32, 16], [0, 0])


def test_reshape_keeps_tiles_blocked(version):
    one = BlockedLayout([4], [32], [4], [0])
    assert infer.reshape(one, [512], [16, 32]) == BlockedLayout(
        [1, 4], [4, 8], [4, 1], order=[1, 0]
    )
    tall = BlockedLayout([2, 1], [32, 1], [1, 4], [0, 1])
    linear = infer.reshape(tall, [64, 4], [256])
    assert isinstance(linear, DistributedLinearLayout)
    assert linear.to_linear([256]).apply(register=1, lane=0, warp=0) == {"dim0": 4}
    with pytest.raises(ShapeError, match="elements"):
        infer.reshape(one, [512], [16, 16])


def test_reshape_by_a_dimension_of_one_follows_the_version(version):
    layout = BlockedLayout([1, 2, 1], [2, 16, 1], [4, 1, 1], [2, 1, 0])
    reshaped = infer.reshape(layout, [32, 32, 1], [32, 32])
    if version >= (3, 9):
        assert reshaped == SliceLayout(2, layout)
        assert infer.reshape(reshaped, [32, 32], [32, 32, 1]) == layout
    else:
        assert not isinstance(reshaped, SliceLayout)
    linear = reshaped.to_linear([32, 32])
    assert linear == layout.to_linear([32, 32, 1]).reshape([32, 32])


def test_join_and_split():
    joined = infer.join(BLOCKED, [32, 16])
    assert joined == BlockedLayout([1, 2, 2], [4, 8, 1], [4, 1, 1], [2, 1, 0])
    half = infer.split(joined, [32, 16, 2])
    assert half == SliceLayout(2, joined)
    assert L.equal(half, BLOCKED, [32, 16])
    assert infer.join(half, [32, 16]) == joined
    with pytest.raises(LayoutError, match="both elements"):
        infer.split(BlockedLayout([1, 1], [16, 2], [1, 1], [1, 0]), [16, 2])
    with pytest.raises(ShapeError, match="size 2"):
        infer.split(BLOCKED, [16, 4])


def test_unresolved_layouts_stay():
    auto = AutoLayout()
    assert infer.expand_dims(auto, 0) is auto and infer.reduce(auto, 1) is auto
    assert infer.permute(auto, [4, 4], [1, 0]) is auto and infer.reshape(auto, [4], [2, 2]) is auto
    assert infer.join(auto, [4]) is auto and infer.split(auto, [4, 2]) is auto
    assert infer.broadcast(BLOCKED) is BLOCKED


def test_buffers():
    swizzled = SwizzledSharedLayout(4, 2, 8, [1, 0])
    assert infer.memdesc_permute(swizzled, [16, 32], [1, 0]) == SwizzledSharedLayout(
        4, 2, 8, [0, 1]
    )
    assert infer.memdesc_index(swizzled, [3, 16, 32]) == swizzled
    padded = PaddedSharedLayout.with_identity_for([[64, 8]], [16, 32], [1, 0])
    assert infer.memdesc_permute(padded, [16, 32], [1, 0]).shape == [32, 16]
    again = infer.memdesc_reshape(padded, [16, 32], [512])
    assert again == PaddedSharedLayout.with_identity_for([[64, 8]], [512], [0])
    linear = infer.memdesc_reshape(swizzled, [16, 32], [4, 4, 32])
    assert isinstance(linear, SharedLinearLayout) and linear.shape == [4, 4, 32]
    with pytest.raises(ShapeError):
        infer.memdesc_reshape(swizzled, [16, 32], [16])
    with pytest.raises(LayoutError, match="rank"):
        infer.memdesc_permute(swizzled, [3, 16, 32], [0, 2, 1])
    with pytest.raises(LayoutError, match="rank 1"):
        infer.memdesc_index(swizzled, [16, 32])
    with pytest.raises(ShapeError):
        infer.memdesc_index(swizzled, [16])


def test_reinterpret_checks_size_and_rank():
    layout = SwizzledSharedLayout(1, 1, 1, [1, 0])
    assert infer.memdesc_reinterpret(16, [64, 64], 32, [64, 32], layout) is layout
    with pytest.raises(ShapeError, match="larger"):
        infer.memdesc_reinterpret(16, [64, 64], 32, [64, 64], layout)
    with pytest.raises(LayoutError, match="fit"):
        infer.memdesc_reinterpret(16, [64, 64], 16, [4096], layout)


def test_a_vendor_layout_may_answer_for_itself():
    class Mine(L.SharedLayout):
        rank = 2

        def _infer_permute(self, shape, order):
            return "mine", shape, order

        def _infer_reshape(self, shape, new_shape):
            return "mine", new_shape

    assert infer.memdesc_permute(Mine(), [4, 8], [1, 0]) == ("mine", [4, 8], [1, 0])
    assert infer.memdesc_reshape(Mine(), [4, 8], [32]) == ("mine", [32])


def test_as_linear_spells_a_layout_by_its_bases():
    linear = L.as_linear(BLOCKED, [32, 16])
    assert isinstance(linear, DistributedLinearLayout) and L.equal(linear, BLOCKED, [32, 16])
    swizzled = SwizzledSharedLayout(2, 1, 4, [1, 0])
    shared = L.as_linear(swizzled, [8, 8])
    assert isinstance(shared, SharedLinearLayout) and L.equal(shared, swizzled, [8, 8])
    with pytest.raises(LayoutError, match="padded"):
        L.as_linear(PaddedSharedLayout.with_identity_for([[8, 8]], [8, 8], [1, 0]), [8, 8])
    with pytest.raises(LayoutError):
        L.as_linear(AutoLayout(), [8])


def test_nvidia_tiles_stay_tiles():
    layouts = pytest.importorskip("gluon_nvidia.layouts")
    tile = layouts.NVMMASharedLayout(128, 16)
    flipped = layouts.NVMMASharedLayout(128, 16, transposed=True)
    assert infer.memdesc_permute(tile, [64, 64], [1, 0]) == flipped
    assert infer.memdesc_permute(flipped, [64, 64], [1, 0]) == tile
    deep = layouts.NVMMASharedLayout(128, 16, rank=3)
    assert infer.memdesc_reshape(tile, [64, 64], [2, 32, 64]) == deep
    assert infer.memdesc_reshape(deep, [2, 32, 64], [64, 64]) == tile
    assert isinstance(infer.memdesc_reshape(tile, [64, 64], [4096]), SharedLinearLayout)
    assert isinstance(infer.memdesc_permute(deep, [2, 32, 64], [0, 2, 1]), SharedLinearLayout)
