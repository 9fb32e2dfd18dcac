"""Mistakes in release, acquire and scope between blocks: the simulator and the emulator of PTX report each."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.features import ATOMIC_BARRIERS
from gluon_core.testing import TRITON_VERSION
from gluon_emu.errors import OrderError
from gluon_emu.settings import using
from gluon_sim.errors import RaceError

pytestmark = pytest.mark.once
L = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
# Where the compiler lets the threads wait for each other before a release, no barrier is missing.
BARRIERS = ATOMIC_BARRIERS.held_by(TRITON_VERSION)


@gluon.jit
def flag(data, out, word, SEM_W: gl.constexpr, SCOPE_W: gl.constexpr, SEM_R: gl.constexpr, SCOPE_R: gl.constexpr,
         BARRIER: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """Block 0 fills `data` and sets a flag; block 1 waits for it and copies."""
    i = gl.arange(0, 128, L)
    if gl.program_id(0) == 0:
        gl.store(data + i, i + 7)
        if BARRIER:
            gl.thread_barrier()
        if MASKED:
            gl.atomic_add(word + i * 0, 1, mask=i == 0, sem=SEM_W, scope=SCOPE_W)
        else:
            gl.atomic_xchg(word, 1, sem=SEM_W, scope=SCOPE_W)
    else:
        seen = gl.atomic_add(word, 0, sem=SEM_R, scope=SCOPE_R)
        while seen == 0:
            seen = gl.atomic_add(word, 0, sem=SEM_R, scope=SCOPE_R)
        gl.store(out + i, gl.load(data + i))


@gluon.jit
def last_block(
    partial, out, word, n, SEM: gl.constexpr, SCOPE: gl.constexpr, BARRIER: gl.constexpr
):
    """The block that comes last to a counter adds the parts of all, as split-K does."""
    i = gl.arange(0, 128, L)
    pid = gl.program_id(0)
    gl.store(partial + pid * 128 + i, i * (pid + 1))
    if BARRIER:
        gl.thread_barrier()
    if gl.atomic_add(word, 1, sem=SEM, scope=SCOPE) == n - 1:
        total = gl.zeros([128], gl.int32, L)
        for k in range(n):
            total += gl.load(partial + k * 128 + i)
        gl.store(out + i, total)


@gluon.jit
def histogram(bins, out, word, n, SEM: gl.constexpr, BARRIER: gl.constexpr):
    """All blocks count by relaxed atomics; the block that comes last to a counter copies the bins."""
    i = gl.arange(0, 128, L)
    gl.atomic_add(bins + i * 7 % 32, 1, sem="relaxed")
    if BARRIER:
        gl.thread_barrier()
    if gl.atomic_add(word, 1, sem=SEM) == n - 1:
        gl.store(out + i, gl.load(bins + i, mask=i < 32))


@gluon.jit
def turns(out, word, SEM_W: gl.constexpr, SCOPE_W: gl.constexpr, SEM_R: gl.constexpr, SCOPE_R: gl.constexpr,
          BARRIER: gl.constexpr):  # fmt: skip
    """The blocks add to the same elements one after the other."""
    i = gl.arange(0, 128, L)
    pid = gl.program_id(0)
    turn = gl.atomic_add(word, 0, sem=SEM_R, scope=SCOPE_R)
    while turn != pid:
        turn = gl.atomic_add(word, 0, sem=SEM_R, scope=SCOPE_R)
    gl.store(out + i, gl.load(out + i) + i * (pid + 1))
    if BARRIER:
        gl.thread_barrier()
    gl.atomic_add(word, 1, sem=SEM_W, scope=SCOPE_W)


@gluon.jit
def fenced(data, out, word, FENCE: gl.constexpr):
    """Block 0 sets the flag by a relaxed atomic behind a fence of PTX."""
    i = gl.arange(0, 128, L)
    if gl.program_id(0) == 0:
        gl.store(data + i, i + 7)
        gl.thread_barrier()
        text: gl.constexpr = (
            "{ .reg .b32 t; " + FENCE + " atom.relaxed.gpu.global.add.u32 $0, [$1], 1; }"
        )
        gl.inline_asm_elementwise(
            text, "=r,l", [word + gl.program_id(0)], dtype=gl.int32, is_pure=False, pack=1
        )
    else:
        seen = gl.atomic_add(word, 0, sem="acquire", scope="gpu")
        while seen == 0:
            seen = gl.atomic_add(word, 0, sem="acquire", scope="gpu")
        gl.store(out + i, gl.load(data + i))


RIGHT = {
    "SEM_W": "release",
    "SCOPE_W": "gpu",
    "SEM_R": "acquire",
    "SCOPE_R": "gpu",
    "BARRIER": True,
}
BOTH = [{"SEM_W": "relaxed"}, {"SCOPE_W": "cta"}, {"SEM_R": "relaxed"}, {"SCOPE_R": "cta"}, {"BARRIER": False}]  # fmt: skip
CASES = {
    "flag": (flag, (128, 128, 1), (), 2, {**RIGHT, "MASKED": False},
             [*BOTH, {"SEM_W": "acquire"}, {"SEM_R": "release"}]),
    "flag by one lane": (flag, (128, 128, 1), (), 2, {**RIGHT, "MASKED": True}, BOTH),
    "last block": (last_block, (512, 128, 1), (4,), 4, {"SEM": "acq_rel", "SCOPE": "gpu", "BARRIER": True},
                   [{"SEM": "relaxed"}, {"SEM": "release"}, {"SEM": "acquire"}, {"SCOPE": "cta"}, {"BARRIER": False}]),
    "histogram": (histogram, (32, 128, 1), (4,), 4, {"SEM": "acq_rel", "BARRIER": True},
                  [{"SEM": "relaxed"}, {"SEM": "release"}, {"BARRIER": False}]),
    "turns": (turns, (128, 1), (), 3, RIGHT, BOTH),
    "fence": (fenced, (128, 128, 1), (), 2, {"FENCE": "fence.acq_rel.gpu;"},
              [{"FENCE": ""}, {"FENCE": "fence.acq_rel.cta;"}]),
}  # fmt: skip
MISTAKES = [(name, mistake) for name, case in CASES.items() for mistake in case[-1]]


def run(name, changed, machine):
    kernel, sizes, scalars, programs, constants, _ = CASES[name]
    arrays = [np.zeros(size, np.int32) for size in sizes]
    with using(search=True, timeout=60):
        kernel[(programs,)](
            *arrays, *scalars, **{**constants, **changed}, target=f"{machine}:sm_90"
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("machine", ["sim", "emu"])
@pytest.mark.parametrize("name", CASES)
def test_the_right_order(name, machine):
    run(name, {}, machine)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "mistake"), MISTAKES, ids=[f"{n}-{m}" for n, m in MISTAKES])
def test_a_mistake(name, mistake):
    if BARRIERS and mistake == {"BARRIER": False}:
        pytest.skip("the compiler puts a barrier before each release")
    for machine, error in (("sim", RaceError), ("emu", OrderError)):
        with pytest.raises(error, match="no order"):
            run(name, mistake, machine)
