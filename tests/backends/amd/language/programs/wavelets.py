"""A step of Haar's wavelets, and where its largest coefficients are: pairs split and joined, a reduction
of values with their places, atomics that count."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.programs import Launch


@gluon.jit
def larger(one, place, other, elsewhere):
    """The first of equals."""
    stays = (one > other) | (one == other) & (place < elsewhere)
    return gl.where(stays, one, other), gl.where(stays, place, elsewhere)


@gluon.jit
def haar(
    x, gain, out, places, counts, rows, MOST: gl.constexpr, WIDTH: gl.constexpr, HIGH: gl.constexpr
):
    WHOLE: gl.constexpr = gl.BlockedLayout([1, 4], [4, 16], warps_per_cta=[4, 1], order=[1, 0])
    HALF: gl.constexpr = gl.BlockedLayout([1, 2], [4, 16], warps_per_cta=[4, 1], order=[1, 0])
    first = gl.program_id(0) * HIGH
    row = first + gl.arange(0, HIGH, layout=gl.SliceLayout(1, WHOLE))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, WHOLE))
    offsets = row[:, None] * WIDTH + column[None, :]
    here = (row < rows)[:, None]
    even, odd = gl.split(
        gl.reshape(gl.load(x + offsets, mask=here, other=0.0), [HIGH, WIDTH // 2, 2])
    )
    even = gl.convert_layout(even, HALF, assert_trivial=False)
    odd = gl.convert_layout(odd, HALF)
    gains = gl.load(gain + gl.arange(0, WIDTH // 2, layout=gl.SliceLayout(0, HALF)))[None, :]
    pairs = gl.join((even + odd) * gains, (even - odd) * gains)
    halves = gl.convert_layout(gl.reshape(pairs, [HIGH, WIDTH]), WHOLE)
    gl.store(out + offsets, halves, mask=here)
    size = gl.abs(halves)
    places += first * MOST
    every = column[None, :] + gl.zeros([HIGH, WIDTH], gl.int32, WHOLE)
    for rank in gl.static_range(MOST):
        _, place = gl.reduce((size, every), 1, larger)
        below = gl.arange(0, HIGH, layout=place.type.layout)
        gl.store(places + below * MOST + rank, place, mask=row < rows)
        gl.atomic_add(
            counts + place, gl.full_like(place, 1), mask=row < rows, sem="relaxed", scope="gpu"
        )
        size = gl.where(every == place[:, None], float("-inf"), size)


def data(rng):
    x = rng.integers(-40, 40, (20, 64)).astype(np.float32)
    gain = (1 + rng.random(32)).astype(np.float32)
    even, odd = x[:, ::2], x[:, 1::2]
    wanted = (np.stack([even + odd, even - odd], axis=2) * gain[:, None]).reshape(20, 64)
    places = np.argsort(-np.abs(wanted), axis=1, kind="stable")[:, :3]
    arguments = [x, gain, np.zeros_like(x), np.zeros((20, 3), np.int32), np.zeros(64, np.int32), 20]
    counts = np.bincount(places.ravel(), minlength=64)
    return arguments, {"out": wanted, "places": places, "counts": counts}


LAUNCHES = [
    Launch(
        haar,
        "gfx942",
        data,
        grid=(2,),
        constants={"MOST": 3, "WIDTH": 64, "HIGH": 16, "num_warps": 4},
    )
]
