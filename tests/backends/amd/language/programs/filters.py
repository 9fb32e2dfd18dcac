"""A convolution over time, every tap a matrix: CDNA4's buffer loads to LDS into a ring of slots, waits
that count groups, relaxed loads."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import cdna4
from gluon_core.language.amd.cdna4 import async_copy as copies
from tests.programs import Launch


@gluon.jit
def request(
    tap, signal, taps, signal_at, taps_at, windows, weights, IN: gl.constexpr, OUT: gl.constexpr
):
    """Start copying what tap number `tap` multiplies: the signal so many samples on, and its matrix."""
    slot = tap % windows.shape[0]
    copies.buffer_load_to_shared(windows.index(slot), signal, signal_at + tap * IN)
    copies.buffer_load_to_shared(weights.index(slot), taps, taps_at + tap * (IN * OUT))
    copies.commit_group()


@gluon.jit
def apply(tap, windows, weights, acc):
    MATRIX: gl.constexpr = acc.type.layout
    slot = tap % windows.shape[0]
    window = copies.load_shared_relaxed(windows.index(slot), gl.DotOperandLayout(0, MATRIX, 8))
    weight = copies.load_shared_relaxed(weights.index(slot), gl.DotOperandLayout(1, MATRIX, 8))
    return cdna4.mfma(window, weight, acc)


@gluon.jit
def filtered(
    signal,
    taps,
    out,
    count,
    SAMPLES: gl.constexpr,
    IN: gl.constexpr,
    OUT: gl.constexpr,
    BLOCK: gl.constexpr,
    SLOTS: gl.constexpr,
):
    first = gl.program_id(0) * SAMPLES
    left = gl.program_id(1) * BLOCK
    MATRIX: gl.constexpr = gl.amd.AMDMFMALayout(4, [16, 16, 32], True, [2, 2])
    ALONG: gl.constexpr = gl.BlockedLayout([1, 8], [8, 8], warps_per_cta=[4, 1], order=[1, 0])
    DOWN: gl.constexpr = gl.BlockedLayout([8, 1], [8, 8], warps_per_cta=[1, 4], order=[0, 1])
    windows = gl.allocate_shared_memory(
        signal.dtype.element_ty, [SLOTS, SAMPLES, IN], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    )
    weights = gl.allocate_shared_memory(
        taps.dtype.element_ty, [SLOTS, IN, BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0, 1])
    )
    moments = first + gl.arange(0, SAMPLES, gl.SliceLayout(1, ALONG))
    signal_at = moments[:, None] * IN + gl.arange(0, IN, gl.SliceLayout(0, ALONG))[None, :]
    outputs = left + gl.arange(0, BLOCK, gl.SliceLayout(0, DOWN))  # a tap is stored by outputs
    taps_at = outputs[None, :] * IN + gl.arange(0, IN, gl.SliceLayout(1, DOWN))[:, None]

    acc = gl.zeros([SAMPLES, BLOCK], gl.float32, MATRIX)
    for tap in gl.static_range(SLOTS - 1):
        request(tap, signal, taps, signal_at, taps_at, windows, weights, IN, OUT)
    for tap in range(count - SLOTS + 1):
        copies.wait_group(SLOTS - 2)
        acc = apply(tap, windows, weights, acc)
        request(tap + SLOTS - 1, signal, taps, signal_at, taps_at, windows, weights, IN, OUT)
    for left_over in gl.static_range(SLOTS - 2, -1, -1):
        copies.wait_group(left_over)
        acc = apply(count - 1 - left_over, windows, weights, acc)
    when = first + gl.arange(0, SAMPLES, gl.SliceLayout(1, MATRIX))
    channel = left + gl.arange(0, BLOCK, gl.SliceLayout(0, MATRIX))
    cdna4.buffer_store(acc.to(out.dtype.element_ty), out, when[:, None] * OUT + channel[None, :])


def data(rng):
    signal = rng.standard_normal((128 + 5, 64)).astype(np.float16)
    taps = rng.standard_normal((6, 128, 64)).astype(np.float16)
    wanted = sum(
        signal[tap : tap + 128].astype(np.float64) @ taps[tap].T.astype(np.float64)
        for tap in range(6)
    )
    return [signal, taps, np.zeros((128, 128), np.float16), 6], {"out": wanted}


LAUNCHES = [
    Launch(
        filtered,
        "gfx950",
        data,
        grid=(2, 2),
        constants={"SAMPLES": 64, "IN": 64, "OUT": 128, "BLOCK": 64, "SLOTS": 3, "num_warps": 4},
        tolerance=1e-3,
    )
]
