"""The order in which programs take the tiles of packed sequences for the gradients."""

from __future__ import annotations

import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.attention.hopper_varlen_gradients import own_tile, place_of_program
from tests.kernels.launched import on_target

pytestmark = [pytest.mark.once]

SIZE, STEP = gl.constexpr(128), gl.constexpr(64)
MASKS = [(None, None), (0, None), (None, 0), (300, None), (None, 200), (150, 100)]
LISTS = [
    ((300, 212, 4096, 0, 512), None),
    ((40,), None),
    ((512, 300, 0, 700), (100, 900, 50, 0)),
    (tuple(range(1, 1100, 29)), None),
]


@gluon.jit
def tiles_of_programs(out, own, others, count, WINDOW: gl.constexpr, MOST: gl.constexpr):
    """Store the sequence, the first row, and the first and last step of each program."""
    SETTINGS: gl.constexpr = ((SIZE, STEP), WINDOW, False, MOST, True, 1)
    (sequence, row), _, _, (start, stop) = own_tile((own, others, count), 1, SETTINGS)
    nth, head = place_of_program()
    to = out + (head * gl.num_programs(0) + nth) * 4
    gl.store(to, sequence)
    gl.store(to + 1, row)
    gl.store(to + 2, start)
    gl.store(to + 3, stop)


def firsts(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("window", MASKS)
@pytest.mark.parametrize("own, others", LISTS)
def test_long_tiles_of_all_sequences_come_first(own, others, window, heads):
    others = others or own
    count = len(own)
    tiles = sum(-(-n // SIZE) for n in own)
    out = torch.full((heads, tiles + 3, 4), -1, dtype=torch.int32)
    most = 32 if count <= 32 else 64
    lists = firsts(own), firsts(others)
    with on_target("sim:sm_90"):
        tiles_of_programs[(tiles + 3, heads)](out, *lists, count, window, most, num_warps=1)
    assert (out == out[0]).all()
    out = out[0]
    assert (out[tiles:, 0] >= count).all()
    rows = {(s, r) for s, r, _, _ in out[:tiles].tolist()}
    assert rows == {(s, r) for s, n in enumerate(own) for r in range(0, n, SIZE)}
    work = (out[:tiles, 3] - out[:tiles, 2]).tolist()
    for (s, row, start, stop), steps in zip(out[:tiles].tolist(), work):
        assert steps == stop - start == steps_of(own[s], others[s], row, window)
    if window in MASKS[:3] and own is others:
        # Tiles that are walked together differ by less than so many tiles' steps.
        most = (16 if heads == 1 else 4) * SIZE.value // STEP.value
        assert all(after < before + most for before, after in zip(work, work[1:]))
        assert work[0] > max(work) - most


def steps_of(own, others, row, window):
    low = row + others - own
    first = 0 if window[0] is None else max(low - window[0], 0) // STEP
    end = others if window[1] is None else min(low + SIZE + window[1], others)
    return max(-(-end // STEP) - first, 0)
