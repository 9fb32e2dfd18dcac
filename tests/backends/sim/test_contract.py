"""The core uses of a recorded program, its blocks and its values only names that the contract declares."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GluonError
from gluon_core.plugin import builder as contract
from gluon_core.simulation.recorder import Recorder
from gluon_core.testing.conformance.kernels import KERNELS
from gluon_core.testing.declared import members, methods_of
from gluon_sim.tracing import ir
from gluon_sim.tracing.builder import SimBuilder
from gluon_sim.tracing.program import Program
from tests.core import recording


@pytest.fixture
def guarded(monkeypatch):
    """Values of the builder answer the core nothing else."""
    monkeypatch.setenv("GLUON_TARGET", "sim")
    recording.ASKED.clear()
    recording.guard(monkeypatch, SimBuilder, members(contract.Builder), members(Recorder))
    recording.guard(monkeypatch, Program, methods_of("module"))
    recording.guard(monkeypatch, ir.Function, methods_of("function"))
    recording.guard(monkeypatch, ir.Region, methods_of("region"))
    recording.guard(monkeypatch, ir.Block, methods_of("block"))
    recording.guard(monkeypatch, ir.Op, methods_of("operation"))
    recording.guard(monkeypatch, ir.Value, members(contract.Value))
    return recording.ASKED


@gluon.jit
def early(x, scale: gl.constexpr):
    if scale > 2:
        return x * scale
    return x


@gluon.jit
def square(x, y):
    return x * x, y + y


@gluon.jit
def fill(buffer, layout: gl.constexpr):
    buffer.store(gl.full([128], 3.0, gl.float32, layout))


@gluon.jit
def idle():
    gl.barrier()


@gluon.jit
def structures(x, out, n):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    index = gl.max_constancy(gl.multiple_of(gl.arange(0, 128, layout), 1), 1)
    value = gl.load(x + index)
    total = gl.sum(value, 0)
    count = 0
    for i in range(0, n, 2):
        count += i
        if count > 40:
            total = total + 1.0
        while count > 90:
            count = count // 2
    buffer = gl.allocate_shared_memory(gl.float32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    gl.warp_specialize([(idle, ()), (fill, (buffer, layout))], [4], [24])
    gl.barrier()
    total += early(total, 4)
    first, second = gl.map_elementwise(square, value, value)
    gl.device_assert(n > 0)
    gl.store(out + index, first + second + total + buffer.load(layout))


def launch():
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    structures[(1,)](x, out, 10, num_warps=4)
    return x, out


def test_structures(guarded):
    x, out = launch()
    np.testing.assert_allclose(out, x * x + 2 * x + 5 * x.sum() + 3)
    asked = {name for name, _ in guarded}
    assert asked >= {"SimBuilder", "Program", "Function", "Region", "Block", "Op", "Value"}
    assert ("SimBuilder", "bind_name") in guarded and ("Value", "set_attr") in guarded


@pytest.mark.parametrize("name", KERNELS)
def test_portable_kernels(guarded, name):
    chosen = KERNELS[name]
    arrays = [*chosen.arrays(), np.zeros(32 * 64, chosen.output)]
    chosen.kernel.forget()
    chosen.kernel[(1,)](*arrays, 32 * 64, 32, num_warps=4)
    np.testing.assert_allclose(arrays[-1], chosen.meaning(*arrays[:-1]), rtol=2e-5, atol=1e-6)


def test_the_guard_is_needed(guarded, monkeypatch):
    recording.guard(monkeypatch, ir.Value, methods_of("region"))
    structures.forget()
    with pytest.raises(GluonError, match="asks Value for '.*Undeclared"):
        launch()
