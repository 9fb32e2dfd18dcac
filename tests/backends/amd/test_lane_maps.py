"""Which element each lane and register of a matrix fragment holds, by the formulas of the ISA
documents ("Matrix fragments", CDNA3/CDNA4 7.1, RDNA3/RDNA4 7.9), against the layouts."""

from __future__ import annotations

import numpy as np
import pytest

from gluon_core import language as gl

pytestmark = pytest.mark.once


def held(layout, shape):
    """(rows, columns) of the element in each [register, lane] of the first warp."""
    linear = layout.to_linear(shape)
    lanes = np.arange(linear.in_size("lane"))[None, :]
    registers = np.arange(linear.in_size("register"))[:, None]
    coordinates = linear.apply_arrays(register=registers, lane=lanes, warp=0, block=0)
    both = [np.broadcast_to(coordinates[d], (registers.size, lanes.size)) for d in ("dim0", "dim1")]
    return both, registers, lanes


def check(layout, shape, wanted):
    (rows, columns), i, lane = held(layout, shape)
    want_rows, want_columns = (np.broadcast_to(x, rows.shape) for x in wanted(i, lane))
    np.testing.assert_array_equal(rows, want_rows)
    np.testing.assert_array_equal(columns, want_columns)


MFMA = [(3, 32, 8), (3, 16, 16), (4, 32, 16), (4, 16, 32), (4, 16, 128), (4, 32, 64), (3, 16, 32)]


@pytest.mark.parametrize("version, size, depth", MFMA)
def test_accumulators_of_mfma(version, size, depth):
    """Four rows in each lane, then the next group of lanes, then the next four."""

    def down(i, lane):
        return 4 * (lane // size) + i % 4 + (4 * 64 // size) * (i // 4), lane % size

    shape = [size, size]
    layout = gl.amd.AMDMFMALayout(version, [size, size, depth], False, [1, 1])
    check(layout, shape, down)
    transposed_layout = gl.amd.AMDMFMALayout(version, [size, size, depth], True, [1, 1])
    check(transposed_layout, shape, lambda i, lane: down(i, lane)[::-1])


def test_accumulators_of_mfma_in_float64():
    """Two registers for one number: a row of each group of lanes, four rows apart."""
    layout = gl.amd.AMDMFMALayout(3, [16, 16, 4], False, [1, 1], 64)
    check(layout, [16, 16], lambda i, lane: (lane // 16 + 4 * i, lane % 16))


@pytest.mark.parametrize("version, size, depth", MFMA)
@pytest.mark.parametrize("width", [4, 8, 16])
def test_operands_of_mfma(version, size, depth, width):
    """A lane has a row, and `width` elements along K next to those of the lanes before."""
    layout = gl.amd.AMDMFMALayout(version, [size, size, depth], True, [1, 1])
    covered = width * 64 // size

    def along(i, lane):
        return lane % size, lane // size * width + i % width + covered * (i // width)

    k = 2 * covered
    check(gl.DotOperandLayout(0, layout, width), [size, k], along)
    check(gl.DotOperandLayout(1, layout, width), [k, size], lambda i, lane: along(i, lane)[::-1])


@pytest.mark.parametrize("version", [1, 2])
def test_fragments_of_wmma(version):
    """RDNA3 deals rows to the two halves of a wave in turns and gives both all of the operands;
    RDNA4 gives each half eight rows, and half of K."""
    layout = gl.amd.AMDWMMALayout(version, False, warps_per_cta=[1, 1])

    def result(i, lane):
        row = 2 * i + lane // 16 if version == 1 else i + 8 * (lane // 16)
        return row, lane % 16

    check(layout, [16, 16], result)
    width = 16 if version == 1 else 8

    def along(i, lane):
        return lane % 16, i if version == 1 else i + 8 * (lane // 16)

    check(gl.DotOperandLayout(0, layout, width), [16, 16], along)
    check(gl.DotOperandLayout(1, layout, width), [16, 16], lambda i, lane: along(i, lane)[::-1])
