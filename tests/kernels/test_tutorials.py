"""The ladder of tutorials: right under every order of things, compiled, and reported when broken."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from gluon_core._triton import has
from gluon_core.errors import GluonError
from gluon_nvidia.features import FENCES_READS

pytestmark = pytest.mark.once

FOLDER = Path(__file__).parents[2] / "examples" / "tutorials"
STEPS = sorted(path.stem for path in FOLDER.glob("step*.py"))
PRODUCTS = [name for name in STEPS if name >= "step05"]
UNIT = {"step06": "mma.sync", "step07": "cp.async", "step08": "wgmma", "step10": "setmaxnreg"}


@pytest.fixture(autouse=True)
def ladder(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in [n for n in sys.modules if n.startswith("step")]:
        del sys.modules[name]


def test_there_are_ten_steps_with_a_new_idea_each():
    assert [name[:6] for name in STEPS] == [f"step{i:02}" for i in range(1, 11)]
    for name in STEPS:
        text = (FOLDER / f"{name}.py").read_text()
        assert text.startswith(f'"""Step {int(name[4:6])}: ') and "\nNew: " in text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_runs_and_says_so(name, capsys):
    step = importlib.import_module(name)
    if "launch" in vars(step) and name in PRODUCTS[1:]:
        step.main(step.launch, name)
    else:
        step.main()
    output = capsys.readouterr().out
    assert output and "False" not in output
    if name in PRODUCTS:
        assert float(output.split()[-4]) < 1e-3, output


@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", ["eager", "random"])
@pytest.mark.parametrize("name", PRODUCTS[2:])
def test_a_step_is_right_whenever_copies_land(name, schedule):
    step = importlib.import_module(name)
    a, b, c = importlib.import_module("step05_matmul").operands()
    step.launch(a, b, c, target="sim:hopper", schedule=schedule, seed=3)
    assert np.abs(c - a.astype(np.float32) @ b.astype(np.float32)).max() < 0.1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*PRODUCTS[1:3], PRODUCTS[-1]])
def test_a_step_compiles_for_hopper(name):
    step = importlib.import_module(name)
    a, b, c = importlib.import_module("step05_matmul").operands()
    kernel = step.launch(a, b, c, target="sim:hopper")
    assert UNIT.get(name[:6], "fma.rn") in kernel.asm["ptx"]
    assert kernel.n_spills == 0


# Each line takes out what keeps things in order; the report names the mistake.
BROKEN = [
    ("step07_async", "async_copy.wait_group(1)  # all", "async_copy.wait_group(2)  # all", "Race"),
    ("step08_tma_wgmma", "gl.nvidia.hopper.fence_async_shared()", "pass", "Race"),
    ("step08_tma_wgmma", "mbarrier.wait(arrived, step & 1)", "mbarrier.wait(arrived, 1)", "Race"),
    ("step09_pipeline", "warpgroup_mma_wait(1,", "warpgroup_mma_wait(2,", "Race"),
    ("step10_warp_specialized", "pred=step > 0", "pred=step > 1", "Deadlock"),
]


@pytest.mark.parametrize("name, old, new, report", BROKEN, ids=[f"{b[0]}-{b[2]}" for b in BROKEN])
def test_a_broken_step_is_reported(name, old, new, report, tmp_path, monkeypatch):
    if "fence_async_shared" in old and has(FENCES_READS):
        pytest.skip(f"{FENCES_READS.title} comes from the compiler itself")
    text = (FOLDER / f"{name}.py").read_text()
    assert old in text
    (tmp_path / f"{name}_broken.py").write_text(text.replace(old, new))
    monkeypatch.syspath_prepend(str(tmp_path))
    step = importlib.import_module(f"{name}_broken")
    operands = importlib.import_module("step05_matmul").operands(128, 128, 512)
    with pytest.raises(GluonError) as caught:
        step.launch(*operands, target="sim:hopper")
    assert report in type(caught.value).__name__, caught.value
    assert caught.value.span is not None
