"""Bank conflicts against counting by hand, equality, holders, conversions, and the views."""

from __future__ import annotations

import itertools
import os
import random
import re
import sys

import pytest

from gluon_core import layouts as L
from gluon_core.errors import ArgumentError, LayoutError
from gluon_core.layouts import (
    AutoLayout,
    BlockedLayout,
    DistributedLinearLayout,
    PaddedSharedLayout,
    SharedLinearLayout,
    SliceLayout,
    SwizzledSharedLayout,
)

pytestmark = pytest.mark.once  # layouts know no Triton

sys.path.insert(0, os.path.dirname(__file__))
import layouts_random as make  # noqa: E402

ROWS = BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
COLUMNS = BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1])
PLAIN = SwizzledSharedLayout(1, 1, 1, [1, 0])


def test_a_column_of_a_plain_buffer_conflicts():
    assert L.bank_conflicts(ROWS, PLAIN, [32, 32], 32) == 0
    assert L.bank_conflicts(COLUMNS, PLAIN, [32, 32], 32) == 31
    assert L.bank_conflicts(COLUMNS, SwizzledSharedLayout(1, 1, 32, [1, 0]), [32, 32], 32) == 0
    padded = PaddedSharedLayout.with_identity_for([[32, 1]], [32, 32], [1, 0])
    assert L.bank_conflicts(COLUMNS, padded, [32, 32], 32) == 0
    assert L.bank_conflicts(ROWS, padded, [32, 32], 32) == 0


def test_lanes_that_share_a_word_do_not_conflict():
    same = DistributedLinearLayout([[1, 0]], [[0, 0]] * 5, [[0, 1]], [], [2, 2])
    assert L.bank_conflicts(same, PLAIN, [2, 2], 32) == 0


def test_64_lanes_and_64_banks():
    rows = BlockedLayout([1, 1], [1, 64], [1, 1], [1, 0])
    columns = BlockedLayout([1, 1], [64, 1], [1, 1], [0, 1])
    assert L.bank_conflicts(rows, PLAIN, [64, 64], 32, banks=32) == 0
    assert L.bank_conflicts(rows, PLAIN, [64, 64], 32, banks=64) == 0
    for shape, banks, extra in (([64, 64], 32, 31), ([64, 64], 64, 63), ([64, 32], 64, 31)):
        conflicts = L.bank_conflicts(columns, PLAIN, shape, 32, banks=banks, max_vector_bits=32)
        assert conflicts == extra


def count_by_hand(register, shared, shape, bits, banks):
    """Walk all accesses of a group of lanes and count words per bank."""
    linear, buffer = register.to_linear(shape), shared.to_linear(shape)
    offset_of = {}
    for offset in range(buffer.in_size("offset")):
        coord = tuple(buffer.apply(offset=offset, block=0).values())
        pad = getattr(shared, "pad", lambda x: x)
        offset_of.setdefault(coord, pad(offset))
    vector = L.vector_elements(register, shared, shape, bits)
    together = max(1, min(linear.in_size("lane"), banks * 32 // max(32, vector * bits)))
    worst = 1
    kept = linear.without_zero_bases("register")
    for reg, warp in itertools.product(
        range(kept.in_size("register")), range(kept.in_size("warp"))
    ):
        for first in range(0, kept.in_size("lane"), together):
            words = set()
            for lane in range(first, first + together):
                coord = tuple(kept.apply(register=reg, lane=lane, warp=warp, block=0).values())
                start = offset_of[coord] // vector * vector if vector > 1 else offset_of[coord]
                words |= {(start + i) * bits // 32 for i in range(vector)}
            per_bank = [0] * banks
            for word in words:
                per_bank[word % banks] += 1
            worst = max(worst, *per_bank)
    return worst - 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["swizzled", "padded", "linear"])
@pytest.mark.parametrize("banks", [32, 64])
def test_conflicts_against_counting(kind, banks):
    rng = random.Random(7)
    seen = set()
    for _ in range(30):
        shape = make.shape(rng, 2, most=9)
        register = make.blocked(rng, 2, 0)
        if kind == "padded":
            shared = make.padded(rng, shape, 0)
        elif kind == "swizzled":
            shared = make.swizzled(rng, 2, 0)
        else:
            shared = make.shared_linear(rng, shape, 0)
        vector = L.vector_elements(register, shared, shape, 32)
        if kind == "padded" and any(
            padding % vector for _, padding in shared.interval_padding_pairs
        ):
            continue  # such an access would be split further
        ours = L.bank_conflicts(register, shared, shape, 32, banks=banks)
        assert ours == count_by_hand(register, shared, shape, 32, banks), (register, shared, shape)
        seen.add(ours)
    assert len(seen) > 2


def test_vectors():
    wide = BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0])
    assert L.vector_elements(wide, PLAIN, [16, 64], 16) == 8
    assert L.vector_elements(wide, PLAIN, [16, 64], 32) == 4
    assert L.vector_elements(wide, PLAIN, [16, 64], 32, max_vector_bits=64) == 2
    assert L.vector_elements(COLUMNS, PLAIN, [32, 32], 32) == 1
    assert L.vector_elements(wide, SwizzledSharedLayout(2, 1, 4, [1, 0]), [16, 64], 16) == 2


def test_bad_widths_and_banks():
    with pytest.raises(ArgumentError):
        L.bank_conflicts(ROWS, PLAIN, [32, 32], 24)
    with pytest.raises(ArgumentError):
        L.bank_conflicts(ROWS, PLAIN, [32, 32], 32, banks=48)


def test_equality_however_spelled():
    blocked = BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])
    linear = DistributedLinearLayout.from_linear(blocked.to_linear([16, 16]))
    assert L.equal(blocked, linear, [16, 16])
    assert not L.equal(blocked, BlockedLayout([2, 1], [4, 8], [4, 1], [1, 0]), [16, 16])
    # Beyond the shape the tile only repeats: one element per lane or two is the same.
    assert L.equal(BlockedLayout([1], [32], [1], [0]), BlockedLayout([2], [32], [1], [0]), [1])
    shared = SharedLinearLayout.from_linear(PLAIN.to_linear([4, 8]))
    assert L.equal(PLAIN, shared, [4, 8]) and not L.equal(PLAIN, blocked, [4, 8])
    padded = PaddedSharedLayout.with_identity_for([[8, 4]], [4, 8], [1, 0])
    assert L.equal(padded, padded, [4, 8]) and not L.equal(PLAIN, padded, [4, 8])
    assert not L.equal(AutoLayout(), blocked, [4, 8]) and L.equal(AutoLayout(), AutoLayout(), [4])


def test_owner_finds_all_holders():
    rng = random.Random(3)
    for _ in range(15):
        shape = make.shape(rng, 2, most=6)
        layout = make.distributed(rng, shape)
        linear = layout.to_linear(shape)
        names = list(linear.in_dims)
        coord = tuple(rng.randrange(size) for size in shape)
        holders = []
        for values in itertools.product(*(range(size) for size in linear.in_dims.values())):
            indices = dict(zip(names, values))
            if tuple(linear.apply(**indices).values()) == coord:
                holders.append(
                    (indices["block"], indices["warp"], indices["lane"], indices["register"])
                )
        assert L.owner(layout, shape, coord) == sorted(holders)
    with pytest.raises(LayoutError):
        L.owner(ROWS, [4, 4], [4, 0])
    with pytest.raises(LayoutError):
        L.owner(ROWS, [4, 4], [0])


def test_conversion_kinds():
    rows = BlockedLayout([2, 2], [4, 8], [4, 1], [1, 0])
    assert L.conversion(rows, rows, [32, 32], 16).kind == "none"
    registers = L.conversion(rows, BlockedLayout([2, 2], [4, 8], [4, 1], [1, 0]), [32, 32], 16)
    assert registers.kind == "none"
    swapped = rows.to_linear([32, 32]).bases
    swapped["register"].reverse()
    other = DistributedLinearLayout(
        *(swapped[d] for d in ("register", "lane", "warp", "block")), [32, 32]
    )
    assert L.conversion(rows, other, [32, 32], 16).kind == "registers"
    within = L.conversion(
        BlockedLayout([2, 1], [4, 8], [2, 1], [0, 1]),
        BlockedLayout([2, 1], [4, 8], [2, 1], [1, 0]),
        [16, 16],
        16,
    )
    assert (within.kind, within.shuffles) == ("shuffle", 2)
    across = L.conversion(ROWS, COLUMNS, [32, 32], 32)
    assert across.kind == "shared" and across.shared_bytes == 4096
    assert (across.store_conflicts, across.load_conflicts) == (0, 31)
    first = BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0], [[1, 0]])
    second = BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0], [[0, 1]])
    cluster = L.conversion(first, second, [64, 64], 32)
    assert cluster.kind == "cluster" and cluster.shared_bytes == 8192


def test_explanations():
    text = L.explain(ROWS, COLUMNS, [32, 32])
    assert "4096 bytes of shared memory" in text and "31 extra passes" in text
    assert "no data moves" in L.explain(ROWS, ROWS, [32, 32], 16)
    text = L.explain_layout(SliceLayout(0, ROWS), [32])
    assert (
        "lane (32): 1 -> (1)" in text and "held 4 times" in text and "warp (4): 1 -> copy" in text
    )


def test_views():
    layout = BlockedLayout([1, 2], [2, 1], [1, 1], [1, 0])
    assert layout.format_tensor_view([2, 2]) == "[[T0:0, T0:1],\n [T1:0, T1:1]]"
    assert layout.format_hardware_view([2, 2]) == "Warp 0:\n(0,0), (1,0)\n(0,1), (1,1)"
    padded = PaddedSharedLayout.with_identity_for([[2, 2]], [2, 2], [1, 0])
    assert padded.format_tensor_view([2, 2]) == "[[0, 1],\n [4, 5]]"
    assert "Offset 4 -> (1,0)" in padded.format_hardware_view([2, 2])
    with pytest.raises(LayoutError):
        AutoLayout().format_tensor_view([2])


def test_views_agree_with_the_oracle():
    triton = pytest.importorskip("triton")
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9):
        pytest.skip("the oracle has views from 3.7 on, and drops copies in registers from 3.9 on")
    gl = pytest.importorskip("triton.experimental.gluon.language")
    names = {**{n: getattr(L, n) for n in L.__all__}, "L": L}
    for text, shape in [
        ("BlockedLayout([1, 2], [4, 8], [2, 2], [1, 0])", [16, 32]),
        ("BlockedLayout([1, 2], [4, 8], [2, 2], [0, 1], [[1, 0]])", [8, 16]),
        ("SliceLayout(1, BlockedLayout([2, 1], [4, 8], [2, 2], [1, 0]))", [32]),
    ]:
        ours, theirs = eval(text, names), eval(text, vars(gl))
        assert repr(ours) == repr(theirs)
        holders = re.compile(r"[BT\d:|]+")
        holders_found, wanted = (
            [set(cell.split("|")) for cell in holders.findall(re.sub(r"\s*\|\s*", "|", view))]
            for view in (ours.format_tensor_view(shape), theirs.format_tensor_view(shape))
        )
        assert holders_found == wanted
        coords = re.compile(r"\([\d,]+\)")
        holders_found, wanted = (
            coords.findall(view.replace(" ", ""))
            for view in (ours.format_hardware_view(shape), theirs.format_hardware_view(shape))
        )
        assert holders_found == wanted
