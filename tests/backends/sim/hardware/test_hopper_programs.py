"""A persistent, warp-specialized product for Hopper, and the same with one synchronization less."""

from __future__ import annotations

import numpy as np
import pytest

from gluon_core.errors import GluonError
from gluon_sim.errors import BarrierError, DeadlockError, RaceError, UninitialisedError
from gluon_sim.settings import using
from tests.backends.nvidia.language.hopper_programs import GEMM
from tests.frontend import oracle

SCHEDULES = [("latest", 0), ("eager", 0), ("random", 0), ("random", 1)]


def operands(m=320, k=192):
    random = np.random.default_rng(0)
    a = random.normal(size=(m, k)).astype(np.float16)
    b = random.normal(size=(k, 64)).astype(np.float16)
    return a, b, np.zeros((m, 64), np.float16)


def kernel(old="", new=""):
    assert old in GEMM
    return oracle.load(GEMM.replace(old, new, 1).replace("GLUON", "gluon_core"), oracle.OURS).kernel


@pytest.mark.sampled(4)
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("schedule", [*SCHEDULES, ("random", 2), ("random", 3)])
def test_the_program(schedule, stages):
    a, b, c = operands()
    with using(schedule=schedule[0], seed=schedule[1]):
        kernel()[(2,)](a, b, c, *a.shape, stages)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=2e-3, atol=0.02)


# The old text, the new one; the error, and its message.
MUTANTS = {
    "no fence before the store": ("        fence_async_shared()\n", "", RaceError, "fence"),
    "no wait for a filled buffer": (
        "mbarrier.wait(ring.full.index(slot), step // ring.stages & 1)", "pass",
        (RaceError, UninitialisedError), "",
    ),
    "no wait for an empty buffer": (
        "mbarrier.wait(ring.empty.index(slot), phase ^ 1)", "pass", (RaceError, BarrierError), "",
    ),
    "the wrong phase": (
        "phase ^ 1", "phase", DeadlockError, r"partition 1 of the kernel +\d+ +phase 0",
    ),
    "a buffer given back too early": (
        "ring.empty.index((step - 1) % ring.stages), count=1)\n            step",
        "ring.empty.index(step % ring.stages), count=1)\n            step",
        (RaceError, DeadlockError), "",
    ),
    "the last buffer kept": (
        "        mbarrier.arrive(ring.empty.index((step - 1) % ring.stages), count=1)\n"
        "        tma", "        tma", DeadlockError, r"partition 1 of the kernel +\d+ ",
    ),
    "too many arrivals": ("ring.stages), count=1)", "ring.stages), count=2)", BarrierError, "more"),
    "too few arrivals": (
        "mbarrier.init(empty.index(i), count=1)", "mbarrier.init(empty.index(i), count=2)",
        DeadlockError, r"1 of \d arrivals and 0 bytes missing",
    ),
    "too many bytes expected": ("2 * 64 * 64 * 2", "2 * 64 * 64 * 4", DeadlockError, "16384 bytes"),
    "too few bytes expected": ("2 * 64 * 64 * 2", "64 * 64 * 2", (BarrierError, RaceError),
                               "more bytes|no order"),
    "no wait for the product": (
        "warpgroup_mma_wait(num_outstanding=0", "warpgroup_mma_wait(num_outstanding=1", RaceError,
        "may still be writing",
    ),
    "two products in flight": (
        "warpgroup_mma_wait(num_outstanding=1", "warpgroup_mma_wait(num_outstanding=2", RaceError, "",
    ),
    "a buffer stored before it was read": (
        "        tma.store_wait(pendings=0)\n        out", "        out", RaceError, "",
    ),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("no_implied_fences")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_synchronization_less_is_reported(name):
    old, new, error, match = MUTANTS[name]
    mutant = kernel(old, new)
    for schedule, seed in SCHEDULES:
        a, b, c = operands()
        with (
            using(schedule=schedule, seed=seed),
            pytest.raises(GluonError, match=match or None) as raised,
        ):
            mutant[(2,)](a, b, c, *a.shape, 2)
        assert isinstance(raised.value, error), (schedule, seed, raised.value)
