"""Inline PTX in which the threads of a warp see each other's registers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gluon_core.errors import ArgumentError
from gluon_emu.ptx import assemble

pytestmark = pytest.mark.once
WARPS, EACH = 2, 3  # and runs of each thread
RUNS = WARPS * 32 * EACH
rng = np.random.default_rng(0)
# (warps, lanes, runs of each thread), as they come
A = rng.integers(0, 1 << 32, (WARPS, 32, EACH), dtype=np.uint64).astype(np.uint32)
FEW = rng.integers(0, 5, (WARPS, 32, EACH)).astype(np.uint32)
FAR = rng.integers(0, 40, (WARPS, 32, EACH)).astype(np.uint32)
HALVES = np.broadcast_to(
    np.where(np.arange(32) < 16, 0xFFFF, 0xFFFF0000).astype(np.uint32)[:, None], A.shape
)


def run(text, constraints, *words):
    """The results, shaped alike."""
    threads = np.repeat(np.arange(WARPS * 32), EACH)[None]
    inputs = [w.reshape(1, -1) for w in words]
    block = SimpleNamespace(num_warps=WARPS, first_warp=0)
    results = assemble(text, constraints)(block, inputs, lambda: threads)
    return [np.broadcast_to(f, (1, RUNS)).reshape(A.shape) for f in results]


def by_lanes(fn, *words):
    """`fn(lane, words of all lanes)` for each lane of each warp and run."""
    output = np.zeros(A.shape, np.uint64)
    for warp in range(WARPS):
        for i in range(EACH):
            lanes = [[int(x) for x in w[warp, :, i]] for w in words]
            output[warp, :, i] = [fn(lane, *lanes) for lane in range(32)]
    return output


def source(mode, lane, far, c):
    """As the ISA writes it: the lane, and whether it is in range."""
    far, clamp, segment = far & 31, c & 31, c >> 8 & 31
    most = (lane & segment) | (clamp & ~segment)
    if mode == "up":
        j, fits = lane - far, lane - far >= most
    else:
        j = {"down": lane + far, "bfly": lane ^ far, "idx": (lane & segment) | (far & ~segment)}[
            mode
        ]
        fits = j <= most
    return (j if fits else lane), fits


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("c", [0, 31, 0x1C1F, 0x1800, 0x100F])
def test_shuffles_take_the_lane_that_the_isa_says(mode, c):
    text = f"{{ .reg .pred p; shfl.sync.{mode}.b32 $0|p, $2, $3, {c}, -1; selp.b32 $1, 1, 0, p; }}"
    values, fits = run(text, "=&r,=r,r,r", A, FAR)
    want = by_lanes(lambda lane, a, far: a[source(mode, lane, far[lane], c)[0]], A, FAR)
    np.testing.assert_array_equal(values, want)
    want = by_lanes(lambda lane, far: source(mode, lane, far[lane], c)[1], FAR)
    np.testing.assert_array_equal(fits, want)


def members(mask):
    return [j for j in range(32) if mask >> j & 1]


def bits(lanes):
    return sum(1 << j for j in lanes)


@pytest.mark.parametrize("masks", [np.full_like(A, 0xFFFFFFFF), HALVES], ids=["all", "halves"])
def test_votes_and_matches_are_of_the_lanes_of_the_mask(masks):
    truth = (FEW != 3).astype(np.uint32)
    truth[0, :16] = 1
    vote = (
        "{ .reg .pred p; setp.ne.u32 p, $1, 0; vote.sync.%s.pred p, p, $2; selp.b32 $0, 1, 0, p; }"
    )
    for mode, fn in (
        ("all", all), ("any", any), ("uni", lambda votes: len({*votes}) == 1),
    ):  # fmt: skip
        (result,) = run(vote % mode, "=r,r,r", truth, masks)
        want = by_lanes(lambda n, t, m, fn=fn: fn([t[j] for j in members(m[n])]), truth, masks)
        np.testing.assert_array_equal(result, want)
    (result,) = run(
        "{ .reg .pred p; setp.eq.u32 p, $1, 0; vote.sync.ballot.b32 $0, !p, $2; }",
        "=r,r,r", truth, masks,
    )  # fmt: skip
    want = by_lanes(lambda n, t, m: bits(j for j in members(m[n]) if t[j]), truth, masks)
    np.testing.assert_array_equal(result, want)
    (result,) = run("match.any.sync.b32 $0, $1, $2;", "=r,r,r", FEW, masks)
    want = by_lanes(lambda n, a, m: bits(j for j in members(m[n]) if a[j] == a[n]), FEW, masks)
    np.testing.assert_array_equal(result, want)
    text = "{ .reg .pred p; .reg .b64 w; mov.b64 w, {$2, 7}; match.all.sync.b64 $0|p, w, $3; selp.b32 $1, 1, 0, p; }"
    result, same = run(text, "=&r,=r,r,r", truth, masks)
    want = by_lanes(lambda n, t, m: len({t[j] for j in members(m[n])}) == 1, truth, masks)
    np.testing.assert_array_equal(same, want)
    np.testing.assert_array_equal(result, np.where(want, masks, 0))


@pytest.mark.parametrize("masks", [np.full_like(A, 0xFFFFFFFF), HALVES], ids=["all", "halves"])
def test_reductions_are_of_the_lanes_of_the_mask(masks):
    signed = lambda x: x - (1 << 32) * (x >> 31)  # noqa: E731
    M32 = (1 << 32) - 1
    for kind, fn in {
        "add.s32": lambda v: sum(v) & M32, "min.u32": min, "max.u32": max,
        "min.s32": lambda v: min(map(signed, v)) & M32, "max.s32": lambda v: max(map(signed, v)) & M32,
        "and.b32": np.bitwise_and.reduce, "or.b32": np.bitwise_or.reduce, "xor.b32": np.bitwise_xor.reduce,
    }.items():  # fmt: skip
        for words in (A, A | np.uint32(1 << 31)):
            (result,) = run(f"redux.sync.{kind} $0, $1, $2;", "=r,r,r", words, masks)
            want = by_lanes(
                lambda n, a, m, fn=fn: int(fn([a[j] for j in members(m[n])])), words, masks
            )
            np.testing.assert_array_equal(result, want, err_msg=kind)


def test_active_and_elected_lanes():
    text = """{ .reg .pred p, q; .reg .b32 m; setp.lt.u32 p, $2, 3; activemask.b32 m; mov.b32 $0, m; mov.b32 $1, 0;
        @p activemask.b32 m; @p match.any.sync.b32 $0, $2, m; @p elect.sync m|q, m; @p selp.b32 $1, 1, 0, q; }"""
    active, elected = run(text, "=&r,=&r,r", FEW)
    want = by_lanes(
        lambda n, a: bits(j for j in range(32) if a[j] == a[n]) if a[n] < 3 else (1 << 32) - 1, FEW
    )
    np.testing.assert_array_equal(active, want)
    first = by_lanes(lambda n, a: n == next(j for j in range(32) if a[j] < 3), FEW)
    np.testing.assert_array_equal(elected, first)


def test_constants_and_guards():
    (result,) = run("shfl.sync.idx.b32 $0, $1, 3, 31, -1;", "=r,r", A)
    np.testing.assert_array_equal(result, np.broadcast_to(A[:, 3:4], A.shape))
    # The lower half alone; beyond it lanes keep their values.
    text = """{ .reg .pred p; .reg .u32 n; mov.u32 n, %laneid; setp.lt.u32 p, n, 16; mov.b32 $0, 5;
        @p redux.sync.max.u32 $0, n, 0xffff; @p bar.warp.sync 0xffff; }"""
    (result,) = run(text, "=&r,r", A)
    np.testing.assert_array_equal(result, by_lanes(lambda n: 15 if n < 16 else 5))
    # Lanes outside of the mask hold anything.
    (result,) = run("shfl.sync.bfly.b32 $0, $1, 16, 31, $2;", "=r,r,r", A, HALVES)
    assert (result == 0xFFFFFFFF).all()


@pytest.mark.parametrize(
    "text, words",
    [
        ("{ .reg .pred p; setp.lt.u32 p, $1, 3; mov.b32 $0, 0; @p shfl.sync.bfly.b32 $0, $1, 1, 31, -1; }",
         "lane . does not run it with that mask"),
        ("redux.sync.or.b32 $0, $1, 0xffff;", "lane 16 runs `redux.sync.or.b32 .* 0xffff, and has not itself"),
    ],
)  # fmt: skip
def test_missing_lanes_are_reported(text, words):
    with pytest.raises(ArgumentError, match=words):
        run(text, "=&r,r", FEW)
