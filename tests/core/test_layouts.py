"""The layout classes: values, validation, linear forms, emission."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest

from gluon_core import layouts as L
from gluon_core.errors import LayoutError
from gluon_core.layouts import (
    AutoLayout,
    BlockedLayout,
    CoalescedLayout,
    DistributedLinearLayout,
    DotOperandLayout,
    PaddedSharedLayout,
    SharedLinearLayout,
    SliceLayout,
    SwizzledSharedLayout,
)

pytestmark = pytest.mark.once  # layouts know no Triton

BLOCKED = BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])
CLUSTERED = BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0], [[1, 0], [0, 1]])
LINEAR = DistributedLinearLayout([[1]], [[2], [4]], [[0]], [[8]], [16])
PADDED = PaddedSharedLayout([[128, 8]], [[0, 1], [0, 2], [1, 0]], [[1, 0]], [4, 4])
SHARED_LINEAR = SharedLinearLayout([[0, 1], [1, 1]], [[2, 0]], 32)
ALL = [
    AutoLayout(),
    CoalescedLayout(),
    BLOCKED,
    CLUSTERED,
    SliceLayout(0, BLOCKED),
    SliceLayout(1, BLOCKED),
    DotOperandLayout(0, BLOCKED, 0),
    DotOperandLayout(1, BLOCKED, 0),
    LINEAR,
    SwizzledSharedLayout(4, 2, 8, [1, 0]),
    PADDED,
    SHARED_LINEAR,
]


@pytest.mark.parametrize("layout", ALL, ids=lambda x: type(x).__name__)
def test_layouts_are_values(layout):
    for again in (eval(repr(layout)), pickle.loads(pickle.dumps(layout)), copy.deepcopy(layout)):
        assert again == layout and hash(again) == hash(layout)
        assert again.mangle() == layout.mangle()
    assert layout != "layout"
    with pytest.raises(AttributeError):
        layout.rank_of_something = 1


def test_a_hash_stays_in_its_process():
    hash(BLOCKED)
    program = (
        "import pickle, sys; layout = pickle.loads(sys.stdin.buffer.read());"
        "assert hash(layout) == hash(eval(repr(layout), vars(sys.modules[layout.__module__])))"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(BLOCKED),
        env={**os.environ, "PYTHONHASHSEED": "77"},
        check=True,
    )


def test_layouts_differ_from_each_other():
    assert len(set(ALL)) == len({layout.mangle() for layout in ALL}) == len(ALL)
    assert SliceLayout(0, BLOCKED) != SliceLayout(0, CLUSTERED)


def test_fields_stay_lists():
    assert BLOCKED.size_per_thread + [4] == [1, 2, 4] and len(BLOCKED.order) == 2
    assert BlockedLayout((1, 2), (4, 8), (4, 1), (1, 0)) == BLOCKED
    assert type(BlockedLayout((1, 2), (4, 8), (4, 1), (1, 0)).order) is list
    assert BLOCKED.cga_layout == []


def test_constexpr_values_are_unwrapped():
    class constexpr:
        def __init__(self, value):
            self.value = value

    wrapped = BlockedLayout(
        constexpr([1, constexpr(2)]), [constexpr(4), 8], (4, 1), constexpr((1, 0)), constexpr([])
    )
    assert wrapped == BLOCKED and repr(wrapped) == repr(BLOCKED)
    assert SliceLayout(constexpr(0), constexpr(BLOCKED)) == SliceLayout(0, BLOCKED)
    assert SwizzledSharedLayout(constexpr(np.int64(4)), 2, 8, [1, 0]).vec == 4
    assert DotOperandLayout(constexpr(1), constexpr(BLOCKED), constexpr(0)).operand_index == 1


def test_rank_and_cluster():
    assert [x.rank for x in (BLOCKED, SliceLayout(0, BLOCKED), LINEAR, PADDED)] == [2, 1, 1, 2]
    assert SliceLayout(0, CLUSTERED).cga_layout == [[0], [1]]
    assert DotOperandLayout(0, CLUSTERED, 0).cga_layout == [[1, 0], [0, 0]]
    assert DotOperandLayout(1, CLUSTERED, 0).cga_layout == [[0, 0], [0, 1]]
    assert LINEAR.cga_layout == [[1]]
    assert SHARED_LINEAR.shape == [4, 2]
    for layout in (AutoLayout(), CoalescedLayout()):
        with pytest.raises(LayoutError, match="rank"):
            layout.rank  # noqa: B018
        with pytest.raises(LayoutError):
            layout.to_linear([4])


def test_type_comes_from_the_core():
    from gluon_core.layouts import base

    before = base._type_factory
    try:
        L.set_type_factory(lambda layout: ("constexpr of", layout))
        assert BLOCKED.type == ("constexpr of", BLOCKED)
        L.set_type_factory(None)
        with pytest.raises(LayoutError, match="gluon_core"):
            BLOCKED.type  # noqa: B018
    finally:
        L.set_type_factory(before)


def test_vendor_layouts_may_name_fields_rank_and_cga_layout():
    @dataclass(frozen=True)
    class Mine(L.SharedLayout):
        width: list
        rank: int = 2
        cga_layout: list = field(default_factory=list)

    @dataclass(frozen=True)
    class Other(L.DistributedLayout):
        width: list
        cga_layout: list = field(default_factory=list)

    assert Mine([1]) == Mine([1]) and hash(Mine([1])) == hash(Mine([1])) and Mine([1]).rank == 2
    assert Mine([1]) != Mine([2]) and Mine([1]) != Other([1])
    assert Other([1]).cga_layout == [] and Other([1], [[1]]).cga_layout == [[1]]
    with pytest.raises(LayoutError, match="dot operands"):
        DotOperandLayout(0, Other([1]), 0)
    with pytest.raises(LayoutError, match="Mine has no linear form"):
        Mine([1]).to_linear([4, 4])


def test_a_builder_that_takes_layouts_gets_them_as_they_are():
    class Recorder:
        def get_layout(self, layout):
            return ("recorded", layout)

    assert SliceLayout(0, BLOCKED)._to_ir(Recorder()) == ("recorded", SliceLayout(0, BLOCKED))


def test_blocked_repeats_and_wraps():
    tall = BLOCKED.to_linear([32, 16])
    assert tall.bases == {
        "register": [[0, 1], [16, 0]],
        "lane": [[0, 2], [0, 4], [0, 8], [1, 0], [2, 0]],
        "warp": [[4, 0], [8, 0]],
        "block": [],
    }
    small = BLOCKED.to_linear([2, 4])
    assert small.bases["lane"] == [[0, 2], [0, 0], [0, 0], [1, 0], [0, 0]]
    assert small.bases["warp"] == [[0, 0], [0, 0]]


def test_swizzle_permutes_vectors_by_phase():
    table = SwizzledSharedLayout(2, 2, 4, [1, 0]).to_linear([8, 8]).table()
    for row in range(8):
        for column in range(8):
            vector = (column // 2) ^ (row // 2 % 4)
            offset = row * 8 + vector * 2 + column % 2
            assert (table["dim0"][offset, 0], table["dim1"][offset, 0]) == (row, column)


def test_padded_layouts_in_both_spellings():
    elements = PaddedSharedLayout(
        [[128, 8]], [[0, 1], [0, 2], [1, 0]], block_bases=[[2, 0]], shape=[4, 4]
    )
    positional = PaddedSharedLayout([[128, 8]], [[0, 1], [0, 2], [1, 0]], [[2, 0]], [4, 4])
    assert elements == positional == PADDED
    assert PADDED.block_bases == [[2, 0]] and PADDED.cga_layout == [[1, 0]]
    assert PaddedSharedLayout.with_identity_for([[128, 8]], [4, 4], [1, 0], [[1, 0]]) == PADDED
    with pytest.raises(LayoutError, match="block_bases"):
        PaddedSharedLayout([[128, 8]], [[1]], [[1]], [4], block_bases=[[2]])


def test_padding_leaves_gaps():
    layout = PaddedSharedLayout.with_identity_for([[4, 2], [8, 1]], [16], [0])
    assert [layout.pad(i) for i in (0, 3, 4, 7, 8, 15)] == [0, 3, 6, 9, 13, 22]
    assert list(layout.pad(np.arange(3, 6))) == [3, 6, 7]
    assert layout.padded_size() == 23
    order = PaddedSharedLayout.with_identity_for([[4, 2]], [4, 8], [0, 1]).offset_bases
    assert order == [[1, 0], [2, 0], [0, 1], [0, 2], [0, 4]]


BAD = {
    "ranks": lambda: BlockedLayout([1, 2], [4], [4, 1], [1, 0]),
    "three": lambda: BlockedLayout([1, 3], [4, 8], [4, 1], [1, 0]),
    "zero": lambda: BlockedLayout([1, 0], [4, 8], [4, 1], [1, 0]),
    "order": lambda: BlockedLayout([1, 2], [4, 8], [4, 1], [1, 1]),
    "order rank": lambda: BlockedLayout([1, 2], [4, 8], [4, 1], [0]),
    "empty": lambda: BlockedLayout([], [], [], []),
    "text": lambda: BlockedLayout("12", [4, 8], [4, 1], [1, 0]),
    "float": lambda: BlockedLayout([1.0, 2.0], [4, 8], [4, 1], [1, 0]),
    "cga rank": lambda: BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0], [[1]]),
    "cga diagonal": lambda: BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0], [[1, 1]]),
    "cga twice": lambda: BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0], [[1, 0], [1, 0]]),
    "cga gap": lambda: BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0], [[2, 0]]),
    "slice dim": lambda: SliceLayout(2, BLOCKED),
    "slice rank 1": lambda: SliceLayout(0, LINEAR),
    "slice auto": lambda: SliceLayout(0, AutoLayout()),
    "slice shared": lambda: SliceLayout(0, SwizzledSharedLayout(1, 1, 1, [1, 0])),
    "slice number": lambda: SliceLayout(0, 4),
    "dot index": lambda: DotOperandLayout(2, BLOCKED, 0),
    "dot width": lambda: DotOperandLayout(0, BLOCKED, 4),
    "dot parent": lambda: DotOperandLayout(0, SliceLayout(0, BLOCKED), 0),
    "dot rank": lambda: DotOperandLayout(0, BlockedLayout([1], [32], [4], [0]), 0),
    "linear twice": lambda: DistributedLinearLayout([[1]], [[1]], [], [], [2]),
    "linear mixed": lambda: DistributedLinearLayout([[3]], [[3]], [], [], [4]),
    "linear diagonal": lambda: DistributedLinearLayout([[1, 1]], [[0, 1]], [], [], [2, 2]),
    "linear short": lambda: DistributedLinearLayout([[1]], [], [], [], [4]),
    "linear outside": lambda: DistributedLinearLayout([[4]], [[1], [2]], [], [], [4]),
    "linear rank": lambda: DistributedLinearLayout([[1]], [[2, 0]], [], [], [4]),
    "linear shape": lambda: DistributedLinearLayout([[1]], [[2]], [], [], [6]),
    "swizzle vec": lambda: SwizzledSharedLayout(0, 1, 1, [1, 0]),
    "swizzle phase": lambda: SwizzledSharedLayout(1, 0, 1, [1, 0]),
    "swizzle order": lambda: SwizzledSharedLayout(1, 1, 1, [1, 2]),
    "padded none": lambda: PaddedSharedLayout([], [[1]], [], [2]),
    "padded pair": lambda: PaddedSharedLayout([[8]], [[1]], [], [2]),
    "padded six": lambda: PaddedSharedLayout([[8, 6]], [[1]], [], [2]),
    "padded interval": lambda: PaddedSharedLayout([[6, 8]], [[1]], [], [2]),
    "padded twice": lambda: PaddedSharedLayout([[8, 8], [8, 4]], [[1]], [], [2]),
    "padded shape": lambda: PaddedSharedLayout([[8, 8]], [[1]], [], [4]),
    "padded no shape": lambda: PaddedSharedLayout([[8, 8]], [[1]], []),
    "padded zero": lambda: PaddedSharedLayout([[8, 8]], [[1], [0]], [], [2]),
    "padded blocks": lambda: PaddedSharedLayout([[8, 8]], [[1], [2]], [[8]], [8]),
    "padded cluster": lambda: PaddedSharedLayout.with_identity_for([[8, 8]], [1], [0], [[1]]),
    "shared linear twice": lambda: SharedLinearLayout([[1], [1]]),
    "shared linear gap": lambda: SharedLinearLayout([[1], [4]]),
    "shared linear empty": lambda: SharedLinearLayout([]),
    "shared linear align": lambda: SharedLinearLayout([[1]], [], 12),
    "shared linear rank": lambda: SharedLinearLayout([[1]], [[2, 0]]),
    "wrong rank shape": lambda: BLOCKED.to_linear([4]),
    "odd shape": lambda: BLOCKED.to_linear([4, 6]),
    "padded other shape": lambda: PADDED.to_linear([8, 4]),
    "shared linear other shape": lambda: SHARED_LINEAR.to_linear([8, 2]),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_layout_errors(name):
    with pytest.raises(LayoutError) as caught:
        BAD[name]().check()
    assert caught.value.argument


def test_an_error_names_the_remedy():
    with pytest.raises(LayoutError) as caught:
        BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0], [[2, 0]]).check()
    text = str(caught.value)
    assert "cga_layout" in text and "expected [1]" in text and "got [2]" in text


def test_conventions_follow_the_version():
    wide = BlockedLayout([8], [32], [1], [0])
    try:
        L.set_compiler_version((3, 6))
        assert wide.to_linear([2]).bases["register"] == [[1], [0], [0]]
        L.set_compiler_version((3, 9))
        assert wide.to_linear([2]).bases["register"] == [[1]]
    finally:
        L.set_compiler_version(None)
    assert L.compiler_version() >= (3, 6)


def test_layouts_import_no_compiler():
    import subprocess
    import sys

    code = (
        "import sys, types; p = types.ModuleType('gluon_core'); p.__path__ = [sys.argv[1]];"
        "sys.modules['gluon_core'] = p; import gluon_core.layouts;"
        "bad = {'triton', 'torch'} & set(sys.modules); assert not bad, bad"
    )
    import gluon_core.layouts as package

    root = package.__path__[0].rsplit("layouts", 1)[0]
    subprocess.run([sys.executable, "-c", code, root], check=True)
