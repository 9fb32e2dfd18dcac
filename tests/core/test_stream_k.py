"""Even shares of tiles, and sums of which several programs have a part."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GluonError
from gluon_core.features import ATOMIC_BARRIERS
from gluon_core.registry.load import registry
from gluon_core.testing import TRITON_VERSION
from gluon_sim.errors import SimulatorError
from tests.backends.sim.sanitizer.test_mutations import Case, mutants

pytestmark = pytest.mark.once

SIM = registry().target("sim:sm_90")
LAYOUT = gl.constexpr(gl.BlockedLayout([1, 2], [4, 8], [2, 2], [1, 0]))


@gluon.jit
def shares(out, m, n, k, MOST: gl.constexpr):
    work = gl.portable.stream_k_tiles([m, n, k], [4, 2, 8])
    for turn in range(MOST):
        row, column, first, end, slot, part, parts = work.at(turn)
        slot_of = out + (gl.program_id(0) * MOST + turn) * 8
        gl.store(slot_of + 0, row)
        gl.store(slot_of + 1, column)
        gl.store(slot_of + 2, first)
        gl.store(slot_of + 3, end)
        gl.store(slot_of + 4, slot)
        gl.store(slot_of + 5, part)
        gl.store(slot_of + 6, parts)
        gl.store(slot_of + 7, work.count())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "m, n, k, programs",
    [
        (4, 2, 8, 1),
        (9, 3, 20, 3),
        (12, 4, 64, 7),
        (4, 2, 100, 5),
        (20, 10, 17, 4),
        (3, 1, 9, 6),
        (12, 4, 8, 6),
        (12, 6, 20, 5),
    ],
)
def test_every_step_of_every_tile_is_one_programs(m, n, k, programs):
    tiles = -(-m // 4) * -(-n // 2)
    most = tiles // programs + 4
    out = np.full((programs, most, 8), -1, np.int32)
    shares[(programs,)](out, m, n, k, most, target=SIM, num_warps=1)
    seen, pieces, steps = {}, {}, []
    for program in range(programs):
        done = 0
        for turn, (row, column, first, end, slot, part, parts, turns) in enumerate(
            out[program].tolist()
        ):
            assert (first < end) == (parts > 0) == (turn < turns)
            if first < end:
                assert first % 8 == 0 and (end % 8 == 0 or end == k)
                pieces.setdefault((row, column), []).append((part, parts, slot, first, end))
                done += -(-end // 8) - first // 8
        steps.append(done)
    assert set(pieces) == {(4 * i, 2 * j) for i in range(-(-m // 4)) for j in range(-(-n // 2))}
    cut = tiles % programs <= programs * 3 // 4  # else whole tiles are better
    assert max(steps) - min(steps) <= (1 if cut else -(-k // 8)) and sum(steps) == tiles * -(
        -k // 8
    )
    for piece in pieces.values():
        piece.sort()
        assert [part for part, *_ in piece] == list(range(len(piece)))
        assert {parts for _, parts, *_ in piece} == {len(piece)}
        ends = [0, *(end for *_, end in piece)]
        assert [first for *_, first, _ in piece] == ends[:-1] and ends[-1] == k
        if len(piece) > 1:
            (slot,) = {slot for _, _, slot, *_ in piece}
            for place in range(slot, slot + len(piece)):
                assert place < 2 * programs and seen.setdefault(place, slot) == slot


@gluon.jit
def add_up(x, out, sums, counters, PARTS: gl.constexpr):
    """Rows of 8 x 16 tiles, each in PARTS pieces."""
    row = gl.arange(0, 8, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, 16, gl.SliceLayout(0, LAYOUT))
    offsets = row[:, None] * 16 + column[None, :]
    part = gl.program_id(0)
    tile = gl.program_id(1)
    value = gl.load(x + (tile * PARTS + part) * 128 + offsets)
    total, last = gl.portable.split_k_reduce(
        value, sums + tile * PARTS * 128, counters + tile, part, PARTS
    )
    if last:
        gl.store(out + tile * 128 + offsets, total)


def fresh():
    x = np.random.default_rng(0).normal(size=(2, 3, 8, 16)).astype(np.float32)
    return {
        "x": x,
        "out": np.full((2, 8, 16), np.nan, np.float32),
        "sums": np.full(x.shape, np.nan, np.float32),
        "counters": np.zeros(2, np.int32),
    }


def test_parts_are_added_in_order_for_every_last_program(monkeypatch):
    for seed in range(4):
        monkeypatch.setenv("GLUON_SIM_SCHEDULE", "random" if seed else "")
        monkeypatch.setenv("GLUON_SIM_SEED", str(seed))
        args = fresh()
        add_up[(3, 2)](*args.values(), 3, target=SIM)
        x = args["x"]
        wanted = (np.zeros((2, 8, 16), np.float32) + x[:, 0] + x[:, 1]) + x[:, 2]
        assert (args["out"] == wanted).all() and (args["counters"] == 0).all()


def test_each_barrier_and_order_within_is_needed():
    compiled = add_up[(3, 2)](*fresh().values(), 3, target=SIM)
    case = Case(
        compiled,
        (3, 2),
        fresh,
        lambda args: [*args.values(), 3],
        "out",
        lambda args: args["x"].astype(np.float64).sum(axis=1),
        1e-6,
    )
    assert case.run() is None
    program = compiled.asm["program"].program
    tried = list(mutants(program))
    assert [m.name for m in tried] == ["barrier deleted"]
    # Newer releases put barriers around an atomic of a scalar themselves.
    implied = ATOMIC_BARRIERS.held_by(TRITON_VERSION)
    assert all(isinstance(case.of(m), SimulatorError) != implied for m in tried)
    # An arrival releases the stores of its program, and the last acquires them: weaker atomics are reported.
    (atomic,) = (op for op in program.walk_ops() if op.name == "atomic_rmw")
    order = atomic.attrs["order"]
    for weaker in ("relaxed", "release", "acquire"):
        atomic.attrs["order"], atomic.orders = (weaker, *order[1:]), None
        assert isinstance(case.run(), SimulatorError), weaker
    atomic.attrs["order"], atomic.orders = order, None
    assert case.run() is None


@pytest.mark.parametrize(
    "line, words",
    [
        ("gl.portable.stream_k_tiles([8, 8], [4, 4])", "not the shape of a GEMM"),
        ("gl.portable.stream_k_tiles([8, 8, 8], [4, 4, 4], 0)", "group"),
        ("gl.portable.split_k_reduce(row, sums, counters, 0, 2)", "parts are added in float32"),
        (
            "gl.portable.split_k_reduce(row.to(gl.float32), out, counters, 0, 2)",
            "not where parts can be",
        ),
        (
            "gl.portable.split_k_reduce(row.to(gl.float32), sums + row, counters, 0, 2)",
            "scalar pointer",
        ),
    ],
)
def test_misuse_is_an_error_where_it_is(line, words):
    from benchmarks.upstream import load

    module = load(
        "shares_misuse",
        f"""
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def kernel(out, sums, counters, LAYOUT: gl.constexpr):
    row = gl.arange(0, 8, gl.SliceLayout(1, LAYOUT))
    {line}
""",
    )
    arrays = np.zeros(64, np.int32), np.zeros(64, np.float32), np.zeros(4, np.int32)
    with pytest.raises(GluonError) as caught:
        module.kernel[(1,)](*arrays, LAYOUT.value, target=SIM)
    assert words in str(caught.value) and line.split("(")[0] in str(caught.value)
