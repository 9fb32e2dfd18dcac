"""Whatever a kernel does, a launch ends: with a result, with a report, or at its timeout."""

from __future__ import annotations

import time

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import mbarrier
from gluon_sim.errors import DeadlockError, TimeLimitError
from gluon_sim.settings import using
from tests import warm

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def counts_for_ever(x):
    i = 0
    while i >= 0:
        i = (i + 1) % 1000


@gluon.jit
def loops_very_long(x):
    total = gl.load(x)
    for i in range(2_000_000_000):
        total = total ^ i
    gl.store(x, total)


@gluon.jit
def loops_in_loops(x):
    o = gl.arange(0, 128, layout=L1)
    for i in range(1_000_000):
        for j in range(1_000_000):
            gl.store(x + o, o + i + j)


@gluon.jit
def step(total, i):
    return total + i


@gluon.jit
def calls_for_ever(x):
    total = 0
    while total < 10:
        total = step(total, 1) % 8


@gluon.jit
def counts_in_memory(x):
    while gl.atomic_add(x, 1) >= 0:
        gl.atomic_and(x, 255)


@gluon.jit
def passes_on(x, OTHER: gl.constexpr):
    while gl.load(x, volatile=True) >= 0:
        gl.atomic_xchg(x, OTHER)


@gluon.jit
def programs_that_answer_each_other(x):
    if gl.program_id(0) == 0:
        passes_on(x, 1)
    else:
        passes_on(x, 2)


@gluon.jit
def ping(mine, other):
    i = 0
    while i >= 0:
        mbarrier.wait(mine, i % 2)
        mbarrier.arrive(other)
        i = (i + 1) % 1000


@gluon.jit
def pong(mine, other):
    i = 0
    while i >= 0:
        mbarrier.arrive(other)
        mbarrier.wait(mine, i % 2)
        i = (i + 1) % 1000


@gluon.jit
def partitions_that_answer_each_other(x):
    first, second = mbarrier.allocate_mbarrier(), mbarrier.allocate_mbarrier()
    mbarrier.init(first, 1)
    mbarrier.init(second, 1)
    gl.warp_specialize([(ping, (first, second)), (pong, (second, first))], [4], [64])


@gluon.jit
def fills_shared_memory(x):
    o = gl.arange(0, 1024, layout=L1)
    i = 0
    while i >= 0:
        s = gl.allocate_shared_memory(gl.int32, [1024], FLAT)
        s.store(o)
        i = gl.sum(s.load(L1), 0) * 0


ENDLESS = {
    counts_for_ever: 1,
    loops_very_long: 1,
    loops_in_loops: 1,
    calls_for_ever: 3,
    counts_in_memory: 2,
    programs_that_answer_each_other: 2,
    partitions_that_answer_each_other: 1,
    fills_shared_memory: 1,
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("schedule", ["latest", "random"])
@pytest.mark.parametrize("kernel", ENDLESS, ids=lambda k: k.__name__)
def test_a_launch_without_end_ends_at_its_timeout(kernel, schedule, monkeypatch):
    monkeypatch.setenv("GLUON_SIM_TIMEOUT", "0.1")
    started = time.monotonic()
    with using(schedule=schedule), pytest.raises(TimeLimitError, match="0.1 seconds") as caught:
        kernel[(ENDLESS[kernel],)](np.zeros(128, np.int32))
    assert time.monotonic() - started < 10
    assert caught.value.span is not None and caught.value.span.file == __file__


@gluon.jit
def waits_for_a_flag(x):
    while gl.atomic_cas(x, 1, 1) == 0:
        pass


@gluon.jit
def reads_a_flag(x):
    while gl.load(x, volatile=True) == 0:
        pass


@gluon.jit
def never_leaves(x):
    i = gl.load(x)
    while i == 0:
        i = i * 2


@gluon.jit
def stores_for_ever(x):
    i = 0
    while i == 0:
        gl.store(x + gl.program_id(0), 1)


@pytest.mark.parametrize("grid", [1, 3])
@pytest.mark.parametrize(
    "kernel, message",
    [
        (waits_for_a_flag, "memory that its loop reads to change"),
        (reads_a_flag, "memory that its loop reads to change"),
        (never_leaves, "nothing that its condition depends on changes"),
        (stores_for_ever, "nothing that its condition depends on changes"),
    ],
)
def test_a_loop_in_which_nothing_can_change_is_a_deadlock(kernel, message, grid):
    with pytest.raises(DeadlockError, match=message) as caught:
        kernel[(grid,)](np.zeros(3, np.int32))
    assert "while" in caught.value.span.text


FILE = """
import numpy as np
from test_timeout import loops_very_long
loops_very_long[(1,)](np.zeros(128, np.int32))
"""


def test_the_command_ends_too(tmp_path):
    file = tmp_path / "endless.py"
    file.write_text(f"import sys\nsys.path.insert(0, {__file__.rpartition('/')[0]!r})\n{FILE}")
    run = warm.run(
        ["-m", "gluon_cli", "run", file, "-t", "sim:sm_90", "--timeout", "0.3"], timeout=60
    )
    assert (
        run.returncode == 1 and "TimeLimitError" in run.stderr and "test_timeout.py" in run.stderr
    )
