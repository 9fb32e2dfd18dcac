"""The sums over ranks of examples/ranks, right and with anything of their order taken out."""

import numpy as np
import pytest

import gluon_core as gluon
import gluon_distributed as distributed
from examples.ranks import all_reduce
from gluon_core import language as gl
from gluon_core.features import ATOMIC_BARRIERS
from gluon_core.layouts.dialect import follows
from gluon_sim.errors import SimulatorError
from tests.ranks import mutants

pytestmark = pytest.mark.once

FILE = "examples/ranks/all_reduce.py"
SIM = "sim:hopper"


def reduced(module, size=600, rounds=2):
    """Host code of a rank: the examples on `rounds` times some numbers."""

    def body(group):
        x, y = group.empty(size, np.float32), group.empty(size, np.float32)
        inbox = module.Inbox(group, size, np.float32)
        results = []
        for turn in range(rounds):
            data = np.arange(size, dtype=np.float32) * (turn + 1) + group.rank
            outs = [np.zeros(size, np.float32) for _ in range(2)]
            x.local[:] = y.local[:] = data
            group.barrier()
            module.all_reduce_one_shot(x, outs[0], size, block=256, most=2)
            inbox.all_reduce(data, outs[1], size, block=256)
            module.all_reduce_two_shot(y, size, block=256, most=2)
            results.append((data, *outs, y.local.copy()))
            group.barrier()
        return results

    return body


@pytest.mark.parametrize("world", [2, 4, 8])
def test_all_ranks_get_the_sum(world):
    size = 600 if world < 4 else 200
    simulation = distributed.simulate(reduced(all_reduce, size, 2 if world < 4 else 1), world, SIM)
    for turn in zip(*simulation):
        want = sum(x for x, *_ in turn)
        for _, *outs in turn:
            for out in outs:
                np.testing.assert_array_equal(out, want)


def test_on_a_target_with_wider_warps():
    simulation = distributed.simulate(reduced(all_reduce, rounds=1), 2, "sim:cdna3")
    np.testing.assert_array_equal(simulation[0][0][1], simulation[0][0][0] + simulation[1][0][0])


MUTANTS = list(mutants.of_example(FILE))


@gluon.jit
def fill(x, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], gl.float32)
    offsets = gl.arange(0, BLOCK, layout=layout)
    gl.store(
        gl.portable.peer(x.peers, x.rank) + offsets,
        (offsets + x.rank).to(gl.float32),
        mask=offsets < n,
    )


def back_to_back(module, size=200):
    """Nothing but the kernels orders the ranks here: no host meets another."""

    def body(group):
        x = group.empty(size, np.float32)
        inbox = module.Inbox(group, size, np.float32)
        out = np.zeros(size, np.float32)
        data = np.full(size, group.rank, np.float32)
        for _ in range(3):
            inbox.all_reduce(data, out, size, block=256)
        for _ in range(2):
            fill[(1,)](x, size, BLOCK=256)
            module.all_reduce_one_shot(x, out, size, block=256)
            fill[(1,)](x, size, BLOCK=256)
            module.all_reduce_two_shot(x, size, block=256)

    return body


def test_nothing_is_reported_of_right_kernels():
    distributed.simulate(back_to_back(all_reduce), 2, SIM)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("label, text", MUTANTS, ids=[label for label, _ in MUTANTS])
def test_a_missing_signal_is_reported(label, text, tmp_path, world=2):
    module = mutants.load(text, tmp_path)
    with pytest.raises(SimulatorError):
        distributed.simulate(back_to_back(module), world, SIM)


@pytest.mark.campaign
@pytest.mark.parametrize("world", [4, 8])
@pytest.mark.parametrize("label, text", MUTANTS, ids=[label for label, _ in MUTANTS])
def test_more_ranks_report_it_too(label, text, tmp_path, world):
    test_a_missing_signal_is_reported(label, text, tmp_path, world)


# Compilers of other releases put a barrier of threads around atomics anyway.
LIBRARY = [
    (label, text)
    for label, text in mutants.of_library()
    if label.startswith(("wait_signal,", "rank_barrier,"))
    and ("_gather_threads" not in label or not follows(ATOMIC_BARRIERS))
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("label, text", LIBRARY, ids=[label for label, _ in LIBRARY])
def test_the_library_is_needed(label, text, tmp_path, monkeypatch):
    mutants.use(mutants.load(text, tmp_path, "signals"), monkeypatch)
    fresh = mutants.load((mutants.ROOT / FILE).read_text(), tmp_path, "fresh")
    with pytest.raises(SimulatorError):
        distributed.simulate(back_to_back(fresh), 2, SIM)
