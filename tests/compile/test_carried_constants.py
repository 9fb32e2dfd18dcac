"""A constant that a loop assigns to a carried value around an inner loop: Triton before 3.8 loses it when it inlines."""

from __future__ import annotations

import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def count(out, n, NEXT: gl.constexpr):
    first = gl.minimum(n, 2)
    number = n
    for _ in range(n):
        for j in range(first, n):
            gl.store(out + j, number)
            number = number + 1
        first = NEXT


@pytest.mark.once
@pytest.mark.parametrize("following", [0, 3])
@pytest.mark.parametrize("target", ["emu:sm_90", "emu:gfx942"])
def test_next_round_begins_at_the_constant(target, following):
    out = torch.zeros(5, dtype=torch.int32)
    count[(1,)](out, 5, following, target=target, num_warps=1)
    right, number, first = [0] * 5, 5, 2
    for _ in range(5):
        for j in range(first, 5):
            right[j], number = number, number + 1
        first = following
    assert out.tolist() == right
