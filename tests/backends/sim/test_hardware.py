"""The machine code that a simulated kernel reports: that of the architecture, compiled when asked."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.compiler import driver

LAYOUT = gl.BlockedLayout([1], [32], [4], [0])
WIDE = gl.BlockedLayout([1], [64], [4], [0])
SPLIT = gl.BlockedLayout([1], [32], [4], [0], cga_layout=[[1]])
SPLIT_SHARED = gl.SwizzledSharedLayout(1, 1, 1, [0], cga_layout=[[1]])


@gluon.jit
def double(x, out, LAYOUT: gl.constexpr):
    index = gl.arange(0, 256, layout=LAYOUT)
    gl.store(out + index, gl.load(x + index) * 2)


@gluon.jit
def through_shared(x, out, N: gl.constexpr, LAYOUT: gl.constexpr, SHARED: gl.constexpr):
    index = gl.arange(0, N, layout=LAYOUT)
    buffer = gl.allocate_shared_memory(gl.float32, [N], SHARED)
    buffer.store(gl.load(x + index))
    gl.store(out + index, buffer.load(LAYOUT))


@pytest.fixture
def compiled_stages(monkeypatch):
    """The stages that ran, by target."""
    ran = []
    inner = driver.run_stages

    def run(stages, module, metadata, **more):
        ran.append((metadata["target"], tuple(stage.name for stage in stages)))
        return inner(stages, module, metadata, **more)

    monkeypatch.setattr(driver, "run_stages", run)
    return ran


def launch(target, layout, **options):
    x = np.arange(256, dtype=np.float32)
    out = np.zeros_like(x)
    kernel = double[(1,)](x, out, layout, target=target, **options)
    assert (out == 2 * x).all()
    return kernel


@pytest.mark.parametrize(
    "arch, layout, text, binary",
    [("sm_90", LAYOUT, "ptx", "cubin"), ("gfx942", WIDE, "amdgcn", "hsaco")],
)
def test_asm_is_that_of_the_architecture(arch, layout, text, binary):
    kernel = launch(f"sim:{arch}", layout, schedule="eager", num_warps=4)
    real = gluon.compile(
        double,
        target=arch,
        signature={"x": "*fp32:16", "out": "*fp32:16"},
        constexprs={"LAYOUT": layout},
    )
    assert list(kernel.asm) == ["program"]
    for name in ("ttgir", "llir", text, binary):
        assert name in kernel.asm
        assert kernel.asm[name] == real.asm[name]
    assert kernel.n_regs == real.n_regs and kernel.n_spills == real.n_spills
    assert kernel.metadata.num_warps == 4
    assert kernel.metadata.target.arch == real.metadata.target.arch
    with pytest.raises(KeyError):
        kernel.asm["no such stage"]
    assert kernel.asm.get("no such stage") is None
    with pytest.raises(AttributeError):
        kernel.metadata.no_such_field  # noqa: B018


def test_a_disassembly_is_derived():
    assert "EXIT" in launch("sim:sm_90", LAYOUT).asm["sass"]


def test_no_stage_runs_that_was_not_asked_for(compiled_stages):
    kernel = launch("sim:sm_80", LAYOUT, num_warps=8 // 2)
    assert [stages for _, stages in compiled_stages] == [("program",)]
    assert "ptx" in kernel.asm and len(compiled_stages) == 1
    assert "ttg.target" in kernel.asm["ttgir"]
    assert compiled_stages[1:] == [("nvidia:sm_80", ("ttgir",))]


def test_shared_memory_of_a_cluster_is_counted_per_block():
    n = 32768  # 128 KiB: half of it in each block
    x = np.arange(n, dtype=np.float32)
    out = np.zeros_like(x)
    kernel = through_shared[(1,)](x, out, n, SPLIT, SPLIT_SHARED, num_ctas=2, target="sim:sm_90")
    assert (out == x).all()
    assert kernel.metadata.shared == n * 4 // 2
    with pytest.raises(gluon.errors.LimitError):  # more than a block has
        x, out = np.zeros(2 * n * 2, np.float32), np.zeros(2 * n * 2, np.float32)
        through_shared[(1,)](x, out, 4 * n, SPLIT, SPLIT_SHARED, num_ctas=2, target="sim:sm_90")
