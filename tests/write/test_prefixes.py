"""Three groups of warps share the tiles of a step where blocks have the steps of those before them, and more."""

import numpy as np
import pytest

import gluon_core as gluon
import gluon_write.walk
from gluon_core import language as gl
from gluon_sim.settings import using

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]


@gluon.jit
def attend(acc, total, largest, query, k_tiles, v_tiles, first, low, high, rows, BN: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    for start in range(low, high, BN):
        key = gl.portable.load(k_tiles, [first + start, 0])
        score = gl.portable.mma(query, key.T, gl.zeros([query.shape[0], BN], gl.float32))
        if MASKED:
            score = gl.where(rows[:, None] >= (start + gl.arange(0, BN))[None, :], score, -1e30)
        higher = gl.maximum(largest, gl.max(score, 1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(weight, 1)
        value = gl.portable.load(v_tiles, [first + start, 0])
        acc = gl.portable.mma(weight.to(value.dtype), value, acc * kept[:, None])
        largest = higher
    return acc, total, largest


@gluon.jit(layouts="auto")
def attention(q, k, v, out, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, MASKED: gl.constexpr, MORE: gl.constexpr):  # fmt: skip
    """Attention to the keys up to the end of a block of rows, or with MASKED to those up to the row; MORE keys behind it."""
    block, head = gl.program_id(0), gl.program_id(1)
    heads = gl.num_programs(1)
    q_tiles = gl.portable.descriptor(q, [heads * length, D], [D, 1], [BM, D])
    k_tiles = gl.portable.descriptor(k, [heads * length, D], [D, 1], [BN, D])
    v_tiles = gl.portable.descriptor(v, [heads * length, D], [D, 1], [BN, D])
    out_tiles = gl.portable.descriptor(out, [heads * length, D], [D, 1], [BM, D])
    first = head * length
    row = block * BM + gl.arange(0, BM)
    acc = gl.zeros([BM, D], gl.float32)
    total = gl.zeros([BM], gl.float32)
    largest = gl.full([BM], -1e30, gl.float32)
    query = gl.portable.load(q_tiles, [first + block * BM, 0])
    end = (block + 1) * BM
    if MASKED:
        begin = block * BM
        acc, total, largest = attend(
            acc, total, largest, query, k_tiles, v_tiles, first, 0, begin, row, BN, False
        )
        acc, total, largest = attend(
            acc, total, largest, query, k_tiles, v_tiles, first, begin, end, row, BN, True
        )
    else:
        acc, total, largest = attend(
            acc, total, largest, query, k_tiles, v_tiles, first, 0, end + MORE, row, BN, False
        )
    result = acc / total[:, None]
    gl.portable.store(out_tiles, [first + block * BM, 0], result.to(out.dtype.element_ty))


@gluon.jit(layouts="auto")
def windows(q, k, v, out, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    """Attention to the keys from the begin of a block of rows on, of which no two blocks have the first."""
    block, head = gl.program_id(0), gl.program_id(1)
    heads = gl.num_programs(1)
    q_tiles = gl.portable.descriptor(q, [heads * length, D], [D, 1], [BM, D])
    k_tiles = gl.portable.descriptor(k, [heads * length, D], [D, 1], [BN, D])
    v_tiles = gl.portable.descriptor(v, [heads * length, D], [D, 1], [BN, D])
    out_tiles = gl.portable.descriptor(out, [heads * length, D], [D, 1], [BM, D])
    first = head * length
    row = block * BM + gl.arange(0, BM)
    acc = gl.zeros([BM, D], gl.float32)
    total = gl.zeros([BM], gl.float32)
    largest = gl.full([BM], -1e30, gl.float32)
    query = gl.portable.load(q_tiles, [first + block * BM, 0])
    acc, total, largest = attend(
        acc, total, largest, query, k_tiles, v_tiles, first, block * BM, length, row, BN, False
    )
    result = acc / total[:, None]
    gl.portable.store(out_tiles, [first + block * BM, 0], result.to(out.dtype.element_ty))


def right(kernel, seen, blocks, heads, *last, warps=4, schedule="latest"):
    """Return True if outputs are those of NumPy.

    Args:
        seen: of rows and columns, gives the keys that rows see.
    """
    length, D = blocks * 128, 64
    q, k, v = (
        np.random.default_rng(s).standard_normal((heads, length, D)).astype(np.float16) * 0.3
        for s in range(3)
    )
    out = np.zeros_like(q)
    with using(schedule=schedule):
        kernel[(blocks, heads)](
            q, k, v, out, length, D, 128, 128, *last,
            num_warps=warps, num_stages=2, target="sim:hopper",
        )  # fmt: skip
    score = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1)
    score = np.where(seen(*np.indices((length, length))), score, -1e30)
    weight = np.exp2(score - score.max(-1, keepdims=True))
    wanted = weight @ v.astype(np.float64) / weight.sum(-1)[..., None]
    return np.abs(out - wanted).max() < 5e-3


@pytest.fixture
def sources(chosen_sources):
    """Collect the sources of the kernels that get layouts."""
    return chosen_sources


@pytest.mark.parametrize("masked, warps, units", [(True, 4, 1), (True, 8, 3), (False, 4, 2)])
def test_groups_let_steps_of_others_pass(sources, monkeypatch, masked, warps, units):
    """A group of the first of two blocks has a step less than the others."""
    monkeypatch.setattr(gluon_write.walk, "_UNITS", str(units))

    def seen(row, column):
        return column <= (row if masked else row // 128 * 128 + 127)

    for blocks, heads, schedule in ((3, 2, "eager"), (1, 2, "latest"), (5, 3, "latest")):
        run = {"warps": warps, "schedule": schedule}
        assert right(attention, seen, blocks, heads, masked, 0, **run)
    assert "consumers=3" in sources[0] and "for rest in range(" in sources[0]


@pytest.mark.parametrize("kernel, last", [(windows, ()), (attention, (False, -64))])
def test_other_steps_are_not_shared(sources, monkeypatch, kernel, last):
    """The steps of a block begin elsewhere, or its last tile is cut off."""
    monkeypatch.setattr(gluon_write.walk, "_UNITS", "1")

    def seen(row, column):
        block = row // 128 * 128
        return column >= block if kernel is windows else column < block + 128

    assert right(kernel, seen, 3, 1, *last)
    assert "consumers=2" in sources[0]
