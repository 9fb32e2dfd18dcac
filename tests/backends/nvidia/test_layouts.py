"""NVIDIA layouts against the compiler's own linear layouts, and their checks."""

from __future__ import annotations

import random

import pytest

from gluon_core.errors import LayoutError
from gluon_core.testing import TRITON_VERSION
from gluon_nvidia.layouts import NVMMADistributedLayout, NVMMASharedLayout
from tests.core.layouts_random import bases_of_blocks, powers, split_of

pytestmark = pytest.mark.sampled(2)


def blocks_of(cga, d):
    return 2 * max((basis[d] for basis in cga), default=0) or 1


def random_accumulator(rng):
    if rng.random() < 0.4:
        warps = [rng.choice([4, 8]), rng.choice([1, 2])]
        instr = [16, rng.choice(powers(8, 256)), rng.choice([8, 16, 32])]
        return NVMMADistributedLayout([3, 0], warps, instr, bases_of_blocks(rng, 2, 0.6))
    rank = rng.choice([2, 2, 2, 3])
    warps = split_of(rng, rng.choice([1, 2, 4, 8]), rank)
    batch = [rng.choice([1, 1, 2, 16]) for _ in range(rank - 2)]
    tile = rng.choice([[16, 8], [16, 8], [8, 8], [16, 32]])
    return NVMMADistributedLayout([2, 0], warps, batch + tile, bases_of_blocks(rng, rank, 0.6))


def random_parent(rng):
    """Return a parent layout of operands: any rank, any tile of 8 rows or more for the installed compiler."""
    rank = rng.choice([2, 3, 3, 4])
    warps = split_of(rng, rng.choice([4, 8]), rank)
    tile = [*[rng.choice([1, 16]) for _ in range(rank - 2)], rng.choice([8, 16, 32])]
    tile += [rng.choice([1, 8, 24, 64]) for _ in range(rng.choice([0, 1, 2]))]
    return NVMMADistributedLayout(
        rng.choice([[3, 0], [2, 0]]), warps, tile, bases_of_blocks(rng, rank, 0.6)
    )


def random_shape(rng, rank, high=256):
    shape = [rng.choice(powers(4, high)) for _ in range(rank)]
    for d in range(rank - 2):
        shape[d] = rng.choice([1, 2, 8])
    return shape


def compare(cases, answers):
    wrong = []
    for (name, linear), answer in zip(cases, answers):
        assert "abort" not in answer and "error" not in answer, (name, answer)
        if {k: answer[k] for k in linear.bases} != linear.bases:
            wrong.append((name, linear.bases, answer))
    assert not wrong, f"{len(wrong)} of {len(cases)} differ, first: {wrong[0]}"


def test_accumulators_match_the_compiler(oracle):
    rng = random.Random(0)
    cases = []
    for _ in range(300):
        layout = random_accumulator(rng)
        shape = random_shape(rng, layout.rank)
        oracle.layout(layout, shape)
        cases.append(((layout, shape), layout.to_linear(shape)))
    compare(cases, oracle.answers())


def test_dot_operands_match_the_compiler(oracle):
    rng = random.Random(1)
    cases = []
    for number in range(300):
        layout = random_accumulator(rng) if number % 2 else random_parent(rng)
        index = 0 if layout.version[0] == 3 else rng.choice([0, 1])
        k_width = rng.choice([1, 2, 4, 8])
        shape = random_shape(rng, layout.rank)
        oracle.dot_operand(index, layout, k_width, shape)
        linear = layout.dot_operand_linear(index, k_width, shape)
        cases.append(((index, layout, k_width, shape), linear))
    compare(cases, oracle.answers())


def random_shared(rng):
    """A layout and a shape that fits it."""
    rank = rng.choice([1, 2, 2, 2, 3, 4])
    bits = rng.choice([8, 16, 32, 64])
    swizzle = rng.choice([0, 32, 64, 128]) if rank > 1 else 0
    padded = (bits, swizzle) == (8, 128) and rng.random() < 0.5
    transposed = rank <= 2 and rng.random() < 0.4
    if TRITON_VERSION == (3, 7) and not swizzle:
        transposed = False  # 3.7 ignores it there; 3.8 and later do as we do
    cga = bases_of_blocks(rng, rank, 0.6)
    layout = NVMMASharedLayout(swizzle, bits, rank, transposed, padded, cga)
    fast = 0 if transposed else rank - 1
    rows = [d for d in range(rank) if d != fast]
    shape = [1] * rank
    shape[fast] = rng.choice(powers(max(1, swizzle * 8 // bits), 1024 if not swizzle else 512))
    for d in rows:
        shape[d] = rng.choice(powers(1, 1024 if rank == 2 else 16))
    if swizzle:
        shape[rows[-1]] = max(shape[rows[-1]], 8)
    shape[fast] = max(shape[fast], 2)
    return layout, [n * blocks_of(cga, d) for d, n in enumerate(shape)]


@pytest.mark.once
def test_shared_layouts_match_the_compiler(oracle):
    if TRITON_VERSION < (3, 7):
        pytest.skip("this Triton makes no linear layout of a shared one")
    rng = random.Random(2)
    cases = []
    for _ in range(300):
        layout, shape = random_shared(rng)
        oracle.layout(layout, shape)
        cases.append(((layout, shape), layout.to_linear(shape)))
    # Several TMA boxes along both dimensions.
    for swizzle in (0, 32, 128):
        for transposed in (False, True)[: 1 if TRITON_VERSION == (3, 7) else 2]:
            layout = NVMMASharedLayout(swizzle, 16, 2, transposed)
            oracle.layout(layout, [1024, 512])
            cases.append(((layout, [1024, 512]), layout.to_linear([1024, 512])))
    compare(cases, oracle.answers())


SAME_AS = [  # what a Python-level Triton 3.9 gives for the same arguments
    (([64, 64], 16), {}, 128),
    (([64, 64], 16), {"cga_layout": [[0, 1]]}, 64),
    (([64, 64], 16), {"cga_layout": [[1, 0]]}, 128),
    (([64, 32], 16), {"transposed": True}, 128),
    (([64, 48], 16), {}, 32),
    (([64, 8], 16), {}, 0),
    (([4, 64], 16), {}, 0),
    (([8, 128], 32), {"transposed": True}, 32),
    (([2, 4, 64], 16), {}, 128),
    (([2, 2, 64], 16), {}, 0),
    (([256], 16), {}, 0),
    (([64, 64], 8), {"fp4_padded": True}, 128),
]


class Dtype:
    def __init__(self, bits):
        self.primitive_bitwidth = bits


@pytest.mark.parametrize("arguments, options, swizzle", SAME_AS)
def test_default_shared_layout(arguments, options, swizzle):
    shape, bits = arguments
    layout = NVMMASharedLayout.get_default_for(shape, Dtype(bits), **options)
    assert (layout.swizzle_byte_width, layout.element_bitwidth) == (swizzle, bits)
    assert layout.rank == len(shape)


def test_every_default_fits_its_buffer():
    for rows in powers(1, 512):
        for columns in powers(2, 512):
            for bits in (8, 16, 32, 64):
                for transposed in (False, True):
                    layout = NVMMASharedLayout.get_default_for(
                        [rows, columns], Dtype(bits), transposed
                    )
                    linear = layout.to_linear([rows, columns])
                    assert linear.is_invertible(), (layout, rows, columns)


def test_swizzle_spreads_a_column_over_all_banks():
    # 8 rows of one 16-byte column are one phase of a load: they must cover all 128 bytes.
    linear = NVMMASharedLayout(128, 16).to_linear([64, 64])
    place = linear.inverse()
    for column in range(0, 64, 8):
        offsets = [place.apply(dim0=row, dim1=column)["offset"] for row in range(8)]
        assert sorted(offset * 2 % 128 for offset in offsets) == list(range(0, 128, 16))


ILLEGAL = [
    (lambda: NVMMADistributedLayout([1, 0], [4, 1], [16, 8]).to_linear([64, 64]), "version"),
    (lambda: NVMMADistributedLayout([5, 0], [4, 1], [16, 8]).to_linear([64, 64]), "version"),
    (lambda: NVMMADistributedLayout([2, 0], [4], [8]).to_linear([64]), "warps_per_cta"),
    (lambda: NVMMADistributedLayout([2, 0], [3, 1], [16, 8]), "warps_per_cta"),
    (
        lambda: NVMMADistributedLayout([2, 0], [4, 1], [16, 8, 16]).to_linear([64, 64]),
        "instr_shape",
    ),
    (
        lambda: NVMMADistributedLayout([3, 0], [1, 4, 1], [1, 16, 64]).to_linear([2, 64, 64]),
        "warps_per_cta",
    ),
    (lambda: NVMMADistributedLayout([3, 0], [2, 2], [16, 64, 16]).check_wgmma(), "warps_per_cta"),
    (lambda: NVMMADistributedLayout([3, 0], [4, 1], [64, 64, 16]).check_wgmma(), "instr_shape"),
    (lambda: NVMMADistributedLayout([3, 0], [4, 1], [16, 512, 16]).check_wgmma(), "instr_shape"),
    (
        lambda: NVMMADistributedLayout([3, 0], [4, 1], [16, 4, 16]).to_linear([64, 64]),
        "instr_shape",
    ),
    (lambda: NVMMADistributedLayout([2, 0], [4, 1], [16, 8], [[1, 0, 0]]), "cga_layout[0]"),
    (lambda: NVMMASharedLayout(16, 16), "swizzle_byte_width"),
    (lambda: NVMMASharedLayout(128, 12), "element_bitwidth"),
    (lambda: NVMMASharedLayout(128, 16, 1), "swizzle_byte_width"),
    (lambda: NVMMASharedLayout(128, 16, fp4_padded=True), "fp4_padded"),
    (lambda: NVMMASharedLayout(128, 16, 2, cga_layout=[[1, 0, 0]]), "cga_layout[0]"),
    (lambda: NVMMASharedLayout(128, 16).to_linear([64, 32]), "shape"),
    (lambda: NVMMASharedLayout(128, 16).to_linear([4, 64]), "shape"),
    (lambda: NVMMASharedLayout(0, 16, 3, True).to_linear([4, 8, 8]), "shape"),
    (lambda: NVMMASharedLayout.get_default_for([64, 64], 16), "dtype"),
    (lambda: WGMMA.dot_operand_linear(1, 2, [64, 64]), "operand_index"),
    (lambda: WGMMA.dot_operand_linear(2, 2, [64, 64]), "operand_index"),
    (lambda: WGMMA.dot_operand_linear(0, 3, [64, 64]), "k_width"),
    (lambda: WGMMA.dot_operand_linear(0, 0, [64, 64]), "k_width"),
]
WGMMA = NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])


@pytest.mark.parametrize("make, argument", ILLEGAL)
def test_illegal_fields_are_named(make, argument):
    with pytest.raises(LayoutError) as caught:
        make().check()
    assert caught.value.argument == argument


def test_layouts_are_values():
    one = NVMMADistributedLayout([2, 0], (4, 1), [16, 8])
    two = NVMMADistributedLayout((2, 0), [4, 1], (16, 8), [])
    assert one == two and hash(one) == hash(two)
    assert one != NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
    assert one.warps_per_cta == [4, 1] and one.cga_layout == []
    shared = NVMMASharedLayout(128, 16)
    assert shared == NVMMASharedLayout(128, 16, 2, False, False, [])
    assert shared.mangle() != NVMMASharedLayout(64, 16).mangle()
