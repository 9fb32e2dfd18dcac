"""`gl.assume` in a kernel: the prover relies on it, says so, and the simulator checks it."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import mbarrier
from gluon_core.language.nvidia.hopper.tma import async_load
from gluon_sim.errors import DeviceAssertionError
from tests.prove.proofs import LAYOUT, describe, judged

pytest.importorskip("z3", reason="gluon-core[prove] is not installed")


@gluon.jit
def first_of(src, dst, tiles, ASSUMES: gl.constexpr, layout: gl.constexpr):
    """Wait for the first tile, which is copied where there is one."""
    if ASSUMES == "always":
        gl.assume(tiles > 0)
    buffer = gl.allocate_shared_memory(src.dtype, src.block_type.shape, src.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    if tiles > 0:
        if ASSUMES == "within a condition":
            gl.assume(tiles > 0)
        mbarrier.expect(ready, src.block_type.nbytes)
        async_load(src, [0, 0], ready, buffer)
    mbarrier.wait(ready, 0)
    rows = gl.arange(0, 8, layout=gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, 32, layout=gl.SliceLayout(0, layout))[None, :]
    gl.store(dst + rows * 32 + columns, buffer.load(layout))


def verdict(assumes, tiles=3):
    src, dst = np.ones((8, 32), np.float32), np.zeros((8, 32), np.float32)
    arguments = describe(src), dst, tiles, assumes, LAYOUT
    return judged(first_of, (1,), *arguments, target="sim:sm_90")


def test_a_condition_that_the_kernel_states_is_relied_on_and_listed():
    proof, error = verdict("always")
    assert proof.verdict == "proved" and error is None, proof
    line = first_of.fn.__code__.co_firstlineno + 4
    assert f"assumed, too: `gl.assume` of the kernel (line {line})" in proof.lines


@pytest.mark.parametrize("assumes", ["never", "within a condition"])
def test_a_condition_that_not_every_program_states_is_not_relied_on(assumes):
    proof, error = verdict(assumes)
    assert proof.verdict == "counterexample" and error.report == "deadlock.tasks", proof


def test_the_simulator_reports_a_false_assumption():
    src, dst = np.ones((8, 32), np.float32), np.zeros((8, 32), np.float32)
    with pytest.raises(DeviceAssertionError, match=r"`gl\.assume` is false in program \(0, 0, 0\)"):
        first_of[(1,)](describe(src), dst, 0, "always", LAYOUT, target="sim:sm_90")
