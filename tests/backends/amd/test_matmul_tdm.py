"""The matmul of gfx1250 in the examples: right on the simulator, each wait needed, and its ISA."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import upstream
from gluon_core import language as gl
from gluon_core.layouts import bank_conflicts
from gluon_core.registry.load import registry
from gluon_sim.errors import RaceError, UninitialisedError
from gluon_sim.settings import using

pytestmark = pytest.mark.once

SOURCE = upstream.source_of("matmul_tdm")
EXAMPLE = upstream.load("tdm", SOURCE).EXAMPLES[0]
TARGET = registry().target("sim:gfx1250")


@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
def test_right_under_every_schedule(schedule):
    with using(schedule=schedule, seed=11):
        assert EXAMPLE.check(TARGET).problem is None


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("sizes", [(16, 16, 8), (130, 70, 64), (64, 64, 300)])
def test_any_size(on, sizes, stages):
    m, n, k = sizes
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((n, k))
    a, b, c = a.astype(np.float16), b.astype(np.float16), np.zeros((m, n), np.float16)
    args = {"a": a, "b": b, "c": c, "M": m, "N": n, "K": k}
    config = {**EXAMPLE.config(32), "STAGES": stages}
    EXAMPLE.launch(args, config, target=registry().target(on("gfx1250")))
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(c, wanted, rtol=2e-3, atol=2e-3 * np.abs(wanted).max())


WAIT = "        tdm.async_wait(2 * (STAGES - 1))"
MUTANTS = {
    "no wait": (WAIT, "        pass", RaceError),
    "a wait for too little": (WAIT, "        tdm.async_wait(2 * STAGES)", RaceError),
    "a wait for one of two": (WAIT, "        tdm.async_wait(2 * STAGES - 1)", RaceError),
    "too few buffers": ("slot = ahead % STAGES", "slot = i % STAGES", RaceError),
    "no prologue": ("for i in gl.static_range(STAGES - 1)", "for i in gl.static_range(0)", None),
}


@pytest.mark.parametrize("name", list(MUTANTS))
def test_omissions_are_reported(name):
    old, new, error = MUTANTS[name]
    assert SOURCE.count(old) == 1
    mutant = upstream.load(f"tdm_{name.replace(' ', '_')}", SOURCE.replace(old, new))
    with pytest.raises(error or (RaceError, UninitialisedError)):
        mutant.EXAMPLES[0].check(TARGET)


def test_isa():
    """As many WMMA as the tile implies, 16-byte reads of LDS without conflicts, nothing spilled."""
    compiled = EXAMPLE.compile(registry().target("gfx1250"))
    report, text = compiled.report(), compiled.asm["amdgcn"]
    assert report.spills == 0 and report.shared_memory < 320 * 1024
    config = EXAMPLE.large_config(32)
    m, n, k = (config[f"BLOCK_{d}"] for d in "MNK")
    assert (
        text.count("v_wmma_f32_16x16x32_f16") == m * n * k // (16 * 16 * 32) // config["num_warps"]
    )
    assert text.count("tensor_load_to_lds") == 4  # two before the loop, two in it
    assert "ds_load_b128" in text
    assert not any(f"ds_load_{wide}" in text for wide in ("u16", "b32", "b64"))
    assert "scratch_" not in text


def test_reads_of_lds_have_no_conflicts():
    acc = gl.amd.AMDWMMALayout(3, True, warps_per_cta=[2, 4], instr_shape=[16, 16, 32])
    padded = gl.PaddedSharedLayout.with_identity_for([[64, 8]], [256, 64], [1, 0])
    plain = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    operand = gl.DotOperandLayout(0, acc, 8)
    conflicts = [
        bank_conflicts(operand, shared, [256, 64], 16, banks=TARGET.architecture.banks)
        for shared in (padded, plain)
    ]
    assert conflicts == [0, 7]
