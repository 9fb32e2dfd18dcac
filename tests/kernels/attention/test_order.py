"""The order in which programs of attention on Hopper take their tiles: each once, and all get equal work."""

from __future__ import annotations

import heapq
from functools import partial

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.registry.load import registry
from gluon_kernels.attention import order, packed
from gluon_kernels.attention.tiles import rounds, work_at


@gluon.jit
def visit(out, heads, length, code, SETTINGS: gl.constexpr):
    sizes = (heads, length, length, heads, code, 1)
    for round in range(rounds(sizes, SETTINGS)):
        row, head, _, _, count = work_at(round, sizes, SETTINGS)
        if head < heads:
            place = out + (head * length + row) * 2
            gl.atomic_add(place, count)
            gl.atomic_add(place + 1, gl.program_id(0) + 1)


@pytest.mark.once
@pytest.mark.parametrize(
    "heads, length, block, form, programs, most",
    [
        (32, 64, (2, 2), (8, True, True), 13, 1.02),
        (32, 63, (3, 2), (8, True, True), 13, 1.06),
        (7, 20, (3, 2), (3, True, True), 5, 1.2),
        (7, 20, (3, 2), (3, False, True), 5, 1.2),
        (9, 20, (2, 2), (4, True, False), 11, 2),
        (5, 9, (2, 2), (8, False, False), 3, 2),
    ],
)
def test_programs_get_the_work_that_the_host_counts(heads, length, block, form, programs, most):
    out = np.zeros((heads, length, 2), np.int32)
    target = registry().target("sim:sm_90")
    settings = (*block, True, 1, False)
    visit[(programs,)](out, heads, length, order.code(*form), settings, target=target)
    counts, owners = out[:, :: block[0], 0], out[:, :: block[0], 1] - 1
    ends = np.minimum(np.arange(1, counts.shape[1] + 1) * block[0], length)
    np.testing.assert_array_equal(counts, np.tile(-(-ends // block[1]), (heads, 1)))
    assert out.sum() == counts.sum() + (owners + 1).sum()  # nothing at other rows
    work = np.bincount(owners.ravel(), counts.ravel(), minlength=programs)
    assert work.max() <= most * work.mean(), work
    counted = torch.from_numpy(counts[0].astype(np.float64))
    assert order._busiest(counted, heads, programs, form) == work.max()


def test_an_order_is_found_for_any_number_of_tiles():
    """Tiles and programs in step give some programs all the long tiles, in one order or another."""
    for heads, length, rows, most in (
        (96, 3072, 192, 1.03),
        (24, 1469, 192, 1.01),
        (48, 423, 128, 1.16),
        (32, 966, 192, 1.08),
        (64, 2964, 192, 1.04),
        (1, 16384, 128, 1.01),
        (256, 16384, 128, 1.01),
    ):
        tiles = -(-length // rows)
        ends = np.minimum(np.arange(1, tiles + 1) * rows, length)
        work = -(-ends // order.KEYS) + order.OVERHEAD
        least = max(work.sum() * heads / 132, work.max())
        code, busiest = order.order_of(length, length, heads, rows, 132, 256 * length)
        assert code % 2 == 1 and least <= busiest <= most * least, (heads, length)


def test_heads_that_fill_the_cache_are_walked_by_fours():
    for length, size in ((4096, 8), (16384, 4)):
        code, _ = order.order_of(length, length, 16, 128, 132, 1024 * length)
        assert code // 8 == size, length


def test_few_tiles_have_few_rows():
    """Tiles of 64 rows are taken unless programs take more rounds of them."""
    for heads, length, width, causal, rows in (
        (12, 700, 64, True, 64),
        (8, 700, 128, True, 64),
        (16, 500, 128, False, 64),
        (16, 1024, 128, False, 128),
        (32, 4096, 128, True, 128),
        (64, 2048, 64, False, 192),
    ):
        of_head = 4 * width * length
        taken, code = order.rows_of(length, length, heads, width, causal, 132, of_head)
        assert taken == rows, (heads, length)
        assert code % 2 == 1


def test_tiles_of_few_keys_where_many_are_unseen():
    keys = partial(order.keys_of, rows=192, width=128, rounds=1.0)
    assert keys(187, 187, causal=False) == keys(704, 704, causal=True) == 64
    assert keys(640, 640, causal=False) == keys(4096, 4096, causal=True) == 128
    assert keys(1000, 3274, causal=False) == 128


def test_few_steps_of_narrow_heads_have_tiles_of_few_keys():
    keys = partial(order.keys_of, rows=192, width=64)
    assert (
        keys(381, 381, causal=False, rounds=1.0) == keys(512, 512, causal=False, rounds=2.0) == 64
    )
    assert (
        keys(381, 381, causal=False, rounds=2.1) == keys(640, 640, causal=False, rounds=1.0) == 128
    )
    assert keys(4096, 4096, causal=True, rounds=1.0) == 128


def test_parts_fill_the_last_round():
    """The tiles past the last full round; few tiles or none at all may be whole."""
    assert order.tiles_in_parts(192, 26, 192 * 64, 132)[:2] == (132, 2)
    assert order.tiles_in_parts(20, 26, 192 * 64, 132)[0] == 0
    assert order.tiles_in_parts(264, 26, 192 * 64, 132)[:2] == (264, 1)
    assert order.tiles_in_parts(100, 4, 192 * 64, 132)[:2] == (100, 1)
    for tiles in (1, 3, 60, 133, 200, 395, 700):
        for keys in range(1, 160, 7):
            whole, parts, spent = order.tiles_in_parts(tiles, keys, 128 * 128, 132)
            plain = -(-tiles // 132) * (keys + order.OVERHEAD)
            assert (whole, parts, spent) == (tiles, 1, plain) or spent < plain
            assert parts == 1 or (whole == tiles // 132 * 132 and 2 * parts <= keys)


@gluon.jit
def visit_parts(out, numbers, heads, length, keys, code, splits, SETTINGS: gl.constexpr):
    sizes = (heads, length, keys, heads, code, splits)
    for round in range(rounds(sizes, SETTINGS)):
        row, head, part, start, stop = work_at(round, sizes, SETTINGS)
        if head < heads:
            place = out + (head * gl.cdiv(length, SETTINGS[0]) + row // SETTINGS[0]) * keys
            for tile in range(start, stop):
                gl.atomic_add(place + tile, 1)
            gl.atomic_add(numbers + part + 1, 1)


@pytest.mark.once
@pytest.mark.parametrize("whole, splits, programs", [(5, 3, 5), (0, 4, 7), (20, 2, 10)])
def test_parts_see_each_key_once(whole, splits, programs):
    heads, tiles, keys = 3, 7, 9
    out = np.zeros((heads * tiles, keys), np.int32)
    numbers = np.zeros((heads * tiles - whole) * splits + 1, np.int32)
    settings, code = (2, 1, False, 1, True), order.code_of_parts(whole)
    target = registry().target("sim:sm_90")
    visit_parts[(programs,)](
        out, numbers, heads, 2 * tiles - 1, keys, code, splits, settings, target=target
    )
    assert (out == 1).all()
    assert numbers[0] == whole and (numbers[1:] == 1).all()


@gluon.jit
def visit_packed(out, of_queries, of_keys, count, heads, together, tokens, WINDOW: gl.constexpr):
    SETTINGS: gl.constexpr = ((2, 2), WINDOW, False, 16, 0)
    lists = (of_queries, of_keys, count)
    known = packed.sequences(lists, 4, SETTINGS)
    tiles = packed.tiles_of_head(known)
    for number in range(gl.program_id(0), tiles * heads, gl.num_programs(0)):
        head, first, row, end, first_key, length, _, start, stop = packed.work_at(
            number, tiles, lists, known, (heads, together), SETTINGS
        )
        place = out + (head * tokens + first + row) * 5
        gl.atomic_add(place, stop - start)
        gl.atomic_add(place + 1, number + 1)
        gl.atomic_add(place + 2, end)
        gl.atomic_add(place + 3, first_key)
        gl.atomic_add(place + 4, length)


LENGTHS = [
    ([16, 16, 16], None, 12, 1.05),
    ([33], None, 12, 1.06),
    ([3, 60, 0, 7, 33, 1, 8, 8, 20], None, 6, 1.01),
    ([40, 2, 2, 2, 2], None, 5, 1.06),
    ([30, 0, 25, 7], [50, 9, 25, 40], 12, 1.03),
    ([9, 4], [2, 0], 12, 1.3),  # queries without keys
]


@pytest.mark.once
@pytest.mark.sampled(8)
@pytest.mark.parametrize("lengths, keys, together, most", LENGTHS)
@pytest.mark.parametrize("window", [(None, 0), (None, None), (3, 2)])
def test_programs_that_take_packed_tiles_in_turn_end_together(
    lengths, keys, together, most, window
):
    """Each tile has a number; those with much work come first, of the heads that are walked together."""
    heads, programs, block, keys = 12, 11, (2, 2), keys or lengths  # the kernel's blocks
    ends = [np.cumsum([0, *each]).astype(np.int32) for each in (lengths, keys)]
    tokens = int(ends[0][-1])
    out = np.zeros((heads, tokens, 5), np.int32)
    target = registry().target("sim:sm_90")
    visit_packed[(3,)](out, *ends, len(lengths), heads, together, tokens, window, target=target)
    wanted = np.zeros((tokens, 4), np.int32)
    for index, count in enumerate(lengths):
        (begin, end), (first, last) = (each[index : index + 2].tolist() for each in ends)
        for row in range(0, count, block[0]):
            place = row + last - first - count
            low = 0 if window[0] is None else max(place - window[0], 0) // block[1]
            high = last - first
            if window[1] is not None:
                high = min(place + block[0] + window[1], high)
            wanted[begin + row] = max(-(-high // block[1]) - low, 1), end, first, last - first
    np.testing.assert_array_equal(out[:, :, [0, 2, 3, 4]], np.tile(wanted, (heads, 1, 1)))
    there = wanted[:, 0] > 0
    numbers, work = out[:, there, 1] - 1, out[:, there, 0]
    tiles = there.sum()
    assert sorted(numbers.ravel()) == list(range(heads * tiles))
    assert (numbers // (tiles * together) == np.arange(heads)[:, None] // together).all()
    free = [0] * programs
    for steps in work.ravel()[np.argsort(numbers.ravel())]:
        heapq.heapreplace(free, free[0] + int(steps))
    assert max(free) <= most * work.sum() / programs + 2, free


@pytest.mark.once
def test_longest_tiles_of_packed_sequences_come_first():
    ends = np.cumsum([0, 5, 16, 1, 8]).astype(np.int32)
    out = np.zeros((1, 30, 5), np.int32)
    target = registry().target("sim:sm_90")
    visit_packed[(1,)](out, ends, ends, 4, 1, 1, 30, (None, 0), target=target)
    by_number = {int(n): int(count) for count, n in out[0, :, :2] if n}
    counts = [by_number[n] for n in sorted(by_number)]
    assert counts == sorted(counts, reverse=True) and counts[0] == 8 and len(counts) == 16


def test_heads_of_a_program_keep_the_processors_busy():
    long, short = tuple(range(64, 0, -2)), (8,) * 4
    assert order.heads_of(long, 16, 4, 132, 1 << 22, 1.0) == (4, 8)  # nothing is added up later
    assert order.heads_of(long, 16, 4, 132, 1 << 22, 1.5)[0] == 1  # steps that take longer
    assert order.heads_of(short, 2, 8, 132, 1 << 20, 1.0)[0] == 1  # programs of all heads are few
    assert order.heads_of(short, 2, 1, 132, 1 << 20, 1.0) == (1, 1)
    assert order.heads_of(long, 4, 1, 132, 1 << 30, 1.0) == (1, 1)  # heads larger than the cache
    assert order.heads_of((16, 12, 8, 4), 8, 6, 132, 1 << 20, 1.0)[0] in (1, 2, 3)


def test_steps_of_few_tiles_of_keys_are_shared():
    """Programs that would be idle take some, until all processors have one or parts are short."""
    causal = (11, 9, 7, 5, 3, 1)
    assert order.steps_of_part(causal, 8, 128, 132, False) == 3
    assert order.steps_of_part((6,) * 6, 8, 64, 132, False) == 3
    assert order.steps_of_part((8,) * 8, 16, 64, 132, False) == 0  # 128 programs
    assert order.steps_of_part(causal, 32, 128, 132, False) == 0
    assert order.steps_of_part((2, 1), 8, 64, 132, False) == 0
    for groups in range(1, 40):
        most = order.steps_of_part(causal, groups, 128, 132, groups % 2 == 0)
        assert most == 0 or sum(-(-n // most) for n in causal) * groups <= 132


def test_programs_of_gradients_end_together():
    """A last block of few heads begins with their long tiles: 16 heads of 200 steps are walked by fours, not by threes."""
    for length, heads, width, size, most in (
        (12736, 16, 128, 4, 1.01),
        (6144, 32, 128, 7, 1.03),
        (8192, 24, 128, 6, 1.01),
    ):
        step = 128 * 64 // width
        steps = -(-length // step)
        tiles = tuple(steps - i * 128 // step for i in range(-(-length // 128)))
        assert order.heads_of(tiles, heads, 1, 132, 8 * length * width, 1.0) == (1, size)
        even = sum(n + order.START for n in tiles) * heads / 132
        assert order._longest(tiles, heads, size, 1.0, 132) <= most * even


def test_short_heads_are_walked_together_so_that_short_tiles_come_last():
    tiles = (18, 16, 14, 12, 10, 8, 6, 4)
    _, size = order.heads_of(tiles, 32, 1, 132, 1 << 20, 1.0)
    least = 32 * sum(n + order.START for n in tiles) / 132
    assert size > 8 and order._longest(tiles, 32, size, 1.0, 132) < 1.15 * least
    assert order._longest(tiles, 32, 8, 1.0, 132) > 1.2 * least
    assert order.heads_of(tiles, 32, 1, 132, 1 << 23, 1.0)[1] < 8  # no more fit the cache
