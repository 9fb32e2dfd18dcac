"""Candidates of the segment that a moment falls into, blended by their weights: a search with `while`,
scalars that branch, sums over all of a tensor, CDNA4's buffer loads with a mask of their own shape."""

from functools import partial

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import cdna4
from tests.programs import Launch


@gluon.jit
def segment_of(starts, moment, count, EVERY: gl.constexpr, GAPS: gl.constexpr):
    """The last segment that starts at `moment` or before; with `GAPS`, `EVERY` later each."""
    low: gl.int32 = 0
    high = count
    while high - low > 1:
        middle = low + (high - low) // 2
        start = gl.load(starts + middle)
        start = start + middle * EVERY if GAPS else start
        if start > moment:
            high = middle
        else:
            low = middle
    return low


@gluon.jit
def blend(
    starts,
    candidates,
    weights,
    counts,
    out,
    segments,
    MOST: gl.constexpr,
    USED: gl.constexpr,
    WIDTH: gl.constexpr,
    GAPS: gl.constexpr,
):
    """Weights are in powers of two; each counts as often as `counts` says."""
    TILE: gl.constexpr = gl.BlockedLayout([1, 4], [4, 16], warps_per_cta=[4, 1], order=[1, 0])
    moment = gl.program_id(0)
    segment = segment_of(starts, moment, segments, 1, GAPS)
    which = gl.arange(0, MOST, layout=gl.SliceLayout(1, TILE))
    across = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, TILE))
    used = which < USED
    power = gl.load(weights + segment * MOST + which, mask=used, other=float("-inf"))
    share = gl.exp2(power - gl.max(power, axis=0))
    share = share * gl.load(counts + segment * MOST + which, mask=used, other=0.0)
    total = gl.sum(share)
    each = cdna4.buffer_load(
        candidates,
        (segment.to(gl.int32) * MOST + which)[:, None] * WIDTH + across[None, :],
        mask=used[:, None],
        other=0.0,
    )
    mixed = gl.sum(each * share[:, None], axis=0)
    mixed = gl.where(total == 0.0, 0.0, mixed / total)
    gl.store(out + moment * WIDTH + across, mixed + segment)


def data(gaps, rng):
    starts = np.array([0, 3, 4, 9, 12], np.int32)
    candidates = rng.standard_normal((5, 16, 64)).astype(np.float32)
    candidates[:, 15] = np.nan  # nobody may read it
    weights = rng.standard_normal((5, 16)).astype(np.float32)
    counts = rng.integers(0, 4, (5, 16)).astype(np.float32)
    counts[2] = 0
    segment = np.searchsorted(starts + gaps * np.arange(5), np.arange(14), "right") - 1
    share = np.exp2(weights[:, :15].astype(float)) * counts[:, :15]
    share /= np.maximum(share.sum(1, keepdims=True), 1e-30)
    mixed = (candidates[:, :15] * share[:, :, None]).sum(1) + np.arange(5)[:, None]
    arguments = [starts, candidates, weights, counts, np.zeros((14, 64), np.float32), 5]
    return arguments, {"out": mixed[segment]}


LAUNCHES = [
    Launch(
        blend,
        "gfx950",
        partial(data, gaps),
        grid=(14,),
        constants={"MOST": 16, "USED": 15, "WIDTH": 64, "GAPS": gaps, "num_warps": 4},
        tolerance=1e-6,
    )
    for gaps in (False, True)
]
