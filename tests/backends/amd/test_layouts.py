"""AMD layouts against the compiler's own linear layouts, and their checks."""

from __future__ import annotations

import random

import pytest

from gluon_amd.layouts import AMDMFMALayout, AMDWMMALayout, PartitionedSharedLayout, wmma
from gluon_core.errors import CapabilityError, LayoutError
from gluon_core.layouts.dialect import set_compiler_version
from gluon_core.layouts.shared import SwizzledSharedLayout
from gluon_core.testing import TRITON_VERSION
from tests.core.layouts_random import bases_of_blocks, powers, split_of, unit_bases

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]


def random_shape(rng, layout):
    # Triton 3.6 and 3.7 refuse WMMA on less than a tile.
    small = 16 if isinstance(layout, AMDWMMALayout) and TRITON_VERSION < (3, 8) else 4
    shape = [rng.choice(powers(small, 256)) for _ in range(layout.rank)]
    if layout.rank == 3:
        shape[0] = rng.choice([1, 2, 8])
    return shape


def random_mfma(rng):
    rank = rng.choice([2, 2, 2, 3])
    version = rng.choice([1, 2, 3, 4])
    tile = rng.choice([[32, 32], [16, 16], [64, 4], [4, 64]])
    batch = [rng.choice([1, 1, 2]) for _ in range(rank - 2)]
    return AMDMFMALayout(
        version,
        tile + [rng.choice([4, 8, 16, 32])],
        tile == [64, 4] or rng.random() < 0.5,
        split_of(rng, rng.choice([1, 2, 4, 8]), rank),
        rng.choice([None, 32, 64]),
        batch + split_of(rng, rng.choice([1, 1, 2, 4]), 2),
        bases_of_blocks(rng, rank, 0.7),
    )


def random_wmma(rng):
    rank = rng.choice([2, 2, 2, 3])
    version = rng.choice([1, 2, 3])
    shapes = wmma._WMMA_SHAPES[version]
    if TRITON_VERSION < (3, 8):
        shapes = [s for s in shapes if s[0] == 16]
    instr = rng.choice(shapes)
    transposed = rng.random() < 0.5
    cga = bases_of_blocks(rng, rank, 0.7)
    if TRITON_VERSION < (3, 7) or rng.random() < 0.5:
        warps = split_of(rng, rng.choice([1, 2, 4, 8]), rank)
        batch = [rng.choice([1, 2]) if TRITON_VERSION < (3, 7) else 1 for _ in range(rank - 2)]
        tiles = batch + split_of(rng, rng.choice([1, 1, 2, 4]), 2)
        return AMDWMMALayout(version, transposed, warps, instr, tiles, cga)
    bases = unit_bases(split_of(rng, rng.choice([2, 4, 8, 16]), rank), rank)
    # Low bits to registers or warps, in any order.
    rng.shuffle(bases)
    cut = rng.randrange(len(bases) + 1)
    warp_bases = bases[:cut]
    if rng.random() < 0.2:
        warp_bases.insert(rng.randrange(cut + 1), [0] * rank)
    return AMDWMMALayout(version, transposed, warp_bases, bases[cut:], instr, cga, rank)


def compare(cases, answers):
    wrong = []
    for (name, linear), answer in zip(cases, answers):
        assert "abort" not in answer and "error" not in answer, (name, answer)
        expected = {k: rows for k, rows in linear.bases.items() if k in answer}
        if {k: answer[k] for k in expected} != expected:
            wrong.append((name, linear.bases, answer))
    assert not wrong, f"{len(wrong)} of {len(cases)} differ, first: {wrong[0]}"


@pytest.mark.parametrize("make", [random_mfma, random_wmma])
def test_accumulators_match_the_compiler(oracle, make):
    rng = random.Random(0)
    cases = []
    for _ in range(300):
        layout = make(rng)
        shape = random_shape(rng, layout)
        oracle.layout(layout, shape)
        cases.append(((layout, shape), layout.to_linear(shape)))
    compare(cases, oracle.answers())


@pytest.mark.parametrize("make", [random_mfma, random_wmma])
def test_dot_operands_match_the_compiler(oracle, make):
    rng = random.Random(1)
    cases = []
    for _ in range(300):
        layout = make(rng)
        index = rng.choice([0, 1])
        k_width = rng.choice([4, 8, 16])
        if isinstance(layout, AMDWMMALayout):
            k_width = {1: 16, 2: 8, 3: max(2, min(16, layout.instr_shape[2] // 2))}[layout.version]
        shape = random_shape(rng, layout)
        oracle.dot_operand(index, layout, k_width, shape)
        linear = layout.dot_operand_linear(index, k_width, shape)
        cases.append(((index, layout, k_width, shape), linear))
    compare(cases, oracle.answers())


DIAGONAL = [
    ([[2, 1], [1, 0]], [[2, 0]]),
    ([[2, 1], [1, 0], [2, 0]], []),
    ([[4, 4], [2, 0]], [[0, 1], [0, 2], [1, 0], [4, 0]]),
    ([[4, 2], [2, 0], [4, 0]], [[0, 1], [1, 0]]),
    ([[1, 1], [0, 0]], [[1, 0]]),
]


@pytest.mark.parametrize("warps, tiles", DIAGONAL)
def test_warps_that_move_along_both_dimensions(oracle, warps, tiles):
    """Those of partitioned LDS; the compiler has no other form of them to compare with."""
    layout = AMDWMMALayout(3, True, warps, tiles, [16, 16, 32])
    if TRITON_VERSION < (3, 8):
        with pytest.raises(CapabilityError, match="3.8"):
            layout._emit(oracle.recorder)
        return
    linear = layout.to_linear([256, 256])
    assert linear.is_surjective()
    assert linear.bases["warp"] == [[16 * row, 16 * column] for row, column in warps]
    for index, depth in ((0, [256, 64]), (1, [64, 256])):
        operand = layout.dot_operand_linear(index, 8, depth)
        assert operand.is_surjective()
        moves = [[16 * v if d == index else 0 for d, v in enumerate(basis)] for basis in warps]
        assert operand.bases["warp"] == moves


def test_partitioned_shared_matches_the_compiler(oracle):
    if TRITON_VERSION < (3, 8):
        pytest.skip("this Triton has no partitioned layout")
    rng = random.Random(2)
    cases = []
    for _ in range(100):
        inner = SwizzledSharedLayout(4, rng.choice([1, 2]), rng.choice([1, 4]), [1, 0], [])
        counts = rng.choice([2, 4]), rng.choice([1, 2, 4])
        layout = PartitionedSharedLayout(*counts, rng.choice([0, 1]), inner)
        shape = [rng.choice(powers(32, 128)), rng.choice(powers(32, 128))]
        oracle.layout(layout, shape)
        cases.append(((layout, shape), layout.to_linear(shape)))
    compare(cases, oracle.answers())
    # The compiler's answer leaves out which partition; with it the whole buffer is covered.
    for _, linear in cases:
        assert linear.is_invertible()


def test_both_spellings_of_wmma_are_one_value():
    new = AMDWMMALayout(3, True, [[0, 2], [2, 0]], [[0, 1], [1, 0]], [16, 16, 32])
    old = AMDWMMALayout(3, True, [2, 2], [16, 16, 32], [2, 2])
    named = AMDWMMALayout(
        3, True, warps_per_cta=[2, 2], instr_shape=[16, 16, 32], tiles_per_warp=[2, 2]
    )
    assert new == old == named and hash(new) == hash(old) == hash(named)
    assert new.warps_per_cta == [2, 2] and new.tiles_per_warp == [2, 2]
    # In a version of its own the same order of tiles has another name.
    other = AMDWMMALayout(3, True, [[2, 0], [0, 2]], [[0, 1], [1, 0]], [16, 16, 32])
    assert other != new and other.warps_per_cta is None and other.tiles_per_warp is None
    assert AMDWMMALayout(1, False, [2, 1, 2]).rank == 3
    assert AMDWMMALayout(1, False, [4, 1], None, [1, 2]).tiles_per_warp == [1, 2]
    assert AMDWMMALayout(2, False, []).rank == 2
    assert AMDWMMALayout(2, False, [], rank=3).rank == 3


def test_emission_follows_the_compiler_version(oracle):
    layout = AMDWMMALayout(3, True, [[2, 0], [0, 1]], [[1, 0]], [16, 16, 32])
    tall = AMDWMMALayout(3, True, [[0, 1]], None, [32, 16, 64])
    try:
        set_compiler_version((3, 6))
        with pytest.raises(CapabilityError, match="3.7"):
            layout._emit(oracle.recorder)
        assert len(AMDWMMALayout(2, True, [2, 2])._emit(oracle.recorder)["args"]) == 6
        set_compiler_version((3, 7))
        assert len(layout._emit(oracle.recorder)["args"]) == 7
        with pytest.raises(CapabilityError, match="3.8"):
            tall._emit(oracle.recorder)
        with pytest.raises(CapabilityError, match="3.8"):
            PartitionedSharedLayout(2, 1, 0, SWIZZLED)._emit(oracle.recorder)
        with pytest.raises(LayoutError):
            AMDWMMALayout(1, True, [2, 2]).to_linear([8, 64])
    finally:
        set_compiler_version(None)


SWIZZLED = SwizzledSharedLayout(1, 1, 1, [1, 0])
MFMA = AMDMFMALayout(3, [32, 32, 8], True, [4, 1])
ILLEGAL = [
    (lambda: AMDMFMALayout(5, [32, 32, 8], True, [4, 1]), "version"),
    (lambda: AMDMFMALayout(3, [32], True, [4, 1]), "instr_shape"),
    (lambda: AMDMFMALayout(3, [32, 16, 8], True, [4, 1]), "instr_shape"),
    (lambda: AMDMFMALayout(3, [4, 4, 4], True, [4, 1]), "instr_shape"),
    (lambda: AMDMFMALayout(3, [64, 4, 4], False, [4, 1]), "transposed"),
    (lambda: AMDMFMALayout(3, [32, 32, 8], True, [3, 1]), "warps_per_cta"),
    (lambda: AMDMFMALayout(3, [32, 32, 8], True, [4]), "warps_per_cta"),
    (lambda: AMDMFMALayout(3, [32, 32, 8], True, [4, 1], 16), "element_bitwidth"),
    (lambda: AMDMFMALayout(3, [32, 32, 8], True, [4, 1], None, [2]), "tiles_per_warp"),
    (lambda: AMDMFMALayout(3, [32, 32, 8], True, [4, 1], None, [3, 1]), "tiles_per_warp"),
    (lambda: MFMA.dot_operand_linear(0, 3, [64, 64]), "k_width"),
    (lambda: MFMA.dot_operand_linear(2, 4, [64, 64]), "operand_index"),
    (lambda: AMDWMMALayout(4, True, [[0, 1]]), "version"),
    (lambda: AMDWMMALayout(3, True, [[1, 1], [2, 2]]), "warp_bases and reg_bases"),
    (lambda: AMDWMMALayout(3, True, [[1, 1]], [[1, 0], [0, 1]]), "warp_bases and reg_bases"),
    (lambda: AMDWMMALayout(1, True, [[0, 1]], None, [16, 16, 32]), "instr_shape"),
    (lambda: AMDWMMALayout(3, True, [[0, 1]], None, [16, 16, 16]), "instr_shape"),
    (lambda: AMDWMMALayout(1, True, [[0, 2]]), "warp_bases and reg_bases"),
    (lambda: AMDWMMALayout(1, True, [[0, 1], [0, 1]]), "warp_bases and reg_bases[1]"),
    (lambda: AMDWMMALayout(1, True, [[0, 3]]), "warp_bases and reg_bases[0]"),
    (lambda: AMDWMMALayout(1, True, [[0, 1]], rank=3), "warp_bases[0]"),
    (lambda: AMDWMMALayout(1, True, [[0, 1]], tiles_per_warp=[1, 1]), "warps_per_cta"),
    (lambda: PartitionedSharedLayout(3, 1, 0, SWIZZLED), "num_partitions"),
    (lambda: PartitionedSharedLayout(1, 1, 0, SWIZZLED), "num_partitions"),
    (lambda: PartitionedSharedLayout(2, 3, 0, SWIZZLED), "num_groups"),
    (lambda: PartitionedSharedLayout(2, 1, 5, SWIZZLED), "partition_dim"),
    (lambda: PartitionedSharedLayout(2, 1, 0, MFMA), "partition_layout"),
    (lambda: PartitionedSharedLayout(4, 4, 0, SWIZZLED).to_linear([8, 64]), "shape"),
]


@pytest.mark.parametrize("make, argument", ILLEGAL)
def test_illegal_fields_are_named(make, argument):
    with pytest.raises(LayoutError) as caught:
        make().check()
    assert caught.value.argument == argument


def test_layouts_are_values():
    one = AMDMFMALayout(3, (32, 32, 8), True, (4, 1))
    two = AMDMFMALayout(3, [32, 32, 8], True, [4, 1], 32, [1, 1], [])
    assert one == two and hash(one) == hash(two)
    assert one.tiles_per_warp == [1, 1] and one.element_bitwidth == 32
    assert one.mangle() != AMDMFMALayout(4, [32, 32, 8], True, [4, 1]).mangle()
    wmma = AMDWMMALayout(1, True, [[0, 1]])
    assert eval(repr(wmma)) == wmma
