"""Places of tiles by reciprocals, next to those by divisions."""

import random

import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.gemm.places import place_of, quotient, reciprocals

MOST = 2**31 - 1
numbers = random.Random(7)


@gluon.jit(do_not_specialize=["M", "N", "of_matrix", "of_group", "of_last", "shifts"])
def both_places(out, M, N, of_matrix, of_group, of_last, shifts, GROUP: gl.constexpr):
    tile = gl.program_id(0)
    tiles = gl.portable.swizzled_tiles([M, N], [64, 32], GROUP)
    walk = (gl.cdiv(M, 64), gl.cdiv(N, 32), of_matrix, of_group, of_last, shifts)
    matrix, row, column = place_of(tile, tiles, walk, GROUP)
    other_row, other_column = tiles.at(tile % tiles.count())
    gl.store(out + tile * 6, matrix)
    gl.store(out + tile * 6 + 1, row)
    gl.store(out + tile * 6 + 2, column)
    gl.store(out + tile * 6 + 3, tile // tiles.count())
    gl.store(out + tile * 6 + 4, other_row)
    gl.store(out + tile * 6 + 5, other_column)


@gluon.jit(do_not_specialize=["reciprocal", "shift"])
def quotients(out, x, reciprocal, shift, SIZE: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    places = gl.arange(0, SIZE, layout)
    gl.store(out + places, quotient(gl.load(x + places), reciprocal, shift))


@pytest.mark.once
@pytest.mark.parametrize(
    "rows, columns, group, batch", [(11, 3, 8, 2), (1, 1, 8, 3), (8, 5, 8, 1), (7, 2, 4, 2)]
)
def test_places_are_those_of_the_order(rows, columns, group, batch, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    count = rows * columns * batch
    out = torch.zeros(count, 6, dtype=torch.int32)
    sizes = rows * 64 - 5, columns * 32 - 3
    both_places[(count,)](out, *sizes, *reciprocals(rows, columns, group), group)
    assert out[:, :3].tolist() == out[:, 3:].tolist()
    assert len(set(map(tuple, out[:, :3].tolist()))) == count


@pytest.mark.parametrize("divisor", [1, 2, 3, 65537, 2**30, MOST, numbers.randint(1, MOST)])
def test_quotients_are_exact_for_31_bits(divisor, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    near = (divisor * numbers.randint(0, MOST // divisor) + more for more in (-1, 0, 1) * 30)
    some = [0, MOST, *near, *(numbers.randint(0, MOST) for _ in range(38))]
    x = torch.tensor([min(max(n, 0), MOST) for n in some], dtype=torch.int32)[:128]
    x = torch.cat([x, x.new_zeros(128 - len(x))])
    numbers_of = reciprocals(1, divisor, 1)
    out = torch.zeros_like(x)
    quotients[(1,)](out, x, numbers_of.matrix, numbers_of.shifts & 255, 128)
    assert out.tolist() == (x // divisor).tolist()
