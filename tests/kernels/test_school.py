"""The short examples: each runs alone, checks itself, and holds one idea in fewer than 80 lines."""

from __future__ import annotations

import ast
import contextlib
import io
import runpy
from pathlib import Path

import pytest

from gluon_core.errors import CapabilityError
from gluon_core.launch.device import device_target
from gluon_core.registry.load import registry
from gluon_emu.settings import using as emulated
from gluon_report.demo import examples_package, file_of, run_one
from tests import warm

ROOT = Path(__file__).parents[2] / "examples"
NAMES = (*examples_package().SHOWN, *examples_package().MORE)
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx1250")
# Folders whose examples run on every architecture; of `patterns` those that name no vendor's unit.
PORTABLE = ("basics/", "reductions/", "gemm/", "attention/", "patterns/persistent")

pytestmark = [pytest.mark.once, pytest.mark.sampled(10)]


def run(name, spec, monkeypatch):
    """Run an example as a program on a target; the line that it prints."""
    monkeypatch.setenv("GLUON_TARGET", spec)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(file_of(name)), run_name="__main__")
    return printed.getvalue()


def test_the_demo_has_every_file():
    folders = [
        f
        for f in ROOT.iterdir()
        if f.is_dir() and f.name not in ("ranks", "tutorials", "written", "__pycache__")
    ]
    on_disk = {f"{folder.name}/{file.stem}" for folder in folders for file in folder.glob("*.py")}
    assert on_disk == set(NAMES) and len(NAMES) == len(set(NAMES)) and 20 <= len(NAMES) <= 32
    assert not [file.name for file in ROOT.glob("*.py") if file.name != "__init__.py"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_short_and_needs_no_harness(name):
    text = file_of(name).read_text()
    assert len(text.splitlines()) < 80
    assert f"python examples/{name}.py" in text
    modules = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    allowed = ("numpy", "ml_dtypes", "torch", "triton", "gluon_core", "gluon_sim", "os")
    assert all(module.partition(".")[0] in allowed for module in modules), modules


@pytest.mark.sampled(40)
@pytest.mark.parametrize("spec", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_simulated(name, spec, monkeypatch):
    try:
        line = run(name, f"sim:{spec}", monkeypatch)
    except CapabilityError as error:
        assert not name.startswith(PORTABLE), error
        return
    assert name == "patterns/find_a_race" or f"sim:{spec}" in line


@pytest.mark.sampled(384)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("spec", ["sm_80", "sm_90", "gfx942", "gfx950", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("name", [n for n in NAMES if n != "patterns/find_a_race"])
def test_machine_code(name, spec, monkeypatch):
    """The example checks the numbers that its machine code computes."""
    try:
        with emulated(timeout=60):
            run(name, f"emu:{spec}", monkeypatch)
    except CapabilityError as error:
        assert not name.startswith(PORTABLE), error


@pytest.mark.sampled(40)
@pytest.mark.parametrize(
    "name", [n for n in NAMES if n not in ("patterns/find_a_race", "basics/autotune")]
)
@pytest.mark.gluon_schedules(5, checks=True)
def test_under_schedules(name, monkeypatch):
    monkeypatch.delenv("GLUON_TARGET", raising=False)
    row = run_one("simulate", name, "")
    assert row.result == "passed", row


@pytest.mark.sampled(96)
@pytest.mark.parametrize("spec", examples_package().TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_compiled(name, spec):
    row = run_one("compile", name, str(registry().target(spec)))
    if row.result == "skipped":
        assert not name.startswith(PORTABLE), row.reason
        return
    assert row.result == "passed", row.reason
    assert row.instruction_count == sum(row.instruction_mix.values()) > 5
    assert row.spills <= (2 if name == "attention/forward" else 0)


WRONG = {
    "basics/vector_add": (" + gl.load(y + i", " - gl.load(y + i"),
    "reductions/softmax": ("/ gl.sum(powers, 1)", "/ gl.max(powers, 1)"),
    "gemm/portable": ("for i in range(steps)", "for i in range(steps - 1)"),
    "gemm/grouped": ("b + group * K * N", "b"),
    "attention/forward": ("acc * gl.convert_layout(kept,", "acc * gl.convert_layout(kept * 0 + 1,"),
    "blackwell/block_scaled": ("acc, s, t,", "acc, t, s,"),
    "amd/mfma_gemm": ("mask=along < K - ahead", "mask=along < K"),
}


@pytest.mark.filterwarnings("ignore::gluon_sim.errors.SimulatorWarning")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_fails(name, tmp_path, monkeypatch):
    old, new = WRONG[name]
    text = file_of(name).read_text()
    assert old in text
    (tmp_path / "wrong.py").write_text(text.replace(old, new))
    monkeypatch.delenv("GLUON_TARGET", raising=False)
    with pytest.raises(Exception) as caught, contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(tmp_path / "wrong.py"), run_name="__main__")
    assert not isinstance(caught.value, (SyntaxError, CapabilityError))


@pytest.mark.parametrize("name", ["basics/vector_add", "amd/wmma_gemm"])
def test_an_example_is_a_program(name):
    done = warm.run([file_of(name)])
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1 and "on sim:" in done.stdout


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_the_gpu(name, monkeypatch):
    target = device_target()
    if target is None:
        pytest.skip("no GPU")
    try:
        run(name, str(target), monkeypatch)
    except CapabilityError as error:
        assert not name.startswith(PORTABLE), error
        pytest.skip(str(error).splitlines()[0])
