"""Who may import whom: the contracts hold, and say so when they are broken."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("importlinter")
pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
PARTS = ("pyproject.toml", "gluon_core", "backends", "docs/architecture.md", ".ci")


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of what the contracts speak of."""
    copy = tmp_path_factory.mktemp("house")
    for part in PARTS:
        source, target = ROOT / part, copy / part
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so", "build", "dist")
            shutil.copytree(source, target, ignore=ignored)
        else:
            shutil.copy(source, target)
    return copy


def run(house, *command):
    paths = [house, *sorted((house / "backends").iterdir())]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=house,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def lint(house):
    return run(
        house, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"
    )


def map_of(house):
    return run(house, ".ci/map.py", "--check")


def test_the_house_as_it_is(house):
    assert lint(house)[0] == 0, lint(house)[1]
    code, said = map_of(house)
    assert code == 0, said
    assert "gluon_core: " in said and " 0 against the order" in said


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "file, line, contract",
    [
        ("gluon_core/layouts/tiling.py", "import gluon_core.values", "The rooms of the core"),
        ("gluon_core/values/tensors.py", "import gluon_core.launch.jit", "The rooms of the core"),
        ("gluon_core/portable/tiles.py", "import gluon_nvidia", "never names a vendor"),
        ("gluon_core/plugin/isa.py", "import triton", "One door to Triton"),
        ("gluon_core/plugin/isa.py", "import gluon_core._triton", "does not need Triton"),
        ("backends/amd/gluon_amd/arch.py", "import gluon_core._triton", "Plugins import public"),
        (
            "backends/sim/gluon_sim/tracing/ir.py",
            "import gluon_sim.executor",
            "rooms of the simulator",
        ),
        (
            "backends/sim/gluon_sim/executor/ops.py",
            "import gluon_amd",
            "Plugins do not know each other",
        ),
    ],
)
def test_a_broken_contract_is_named(house, file, line, contract):
    path = house / file
    old = path.read_text()
    path.write_text(old + f"\n\ndef broken():\n    {line}\n")
    try:
        code, said = lint(house)
    finally:
        path.write_text(old)
    assert code == 1
    named = re.search(re.escape(contract) + "((?!KEPT).)*BROKEN", " ".join(said.split()))
    assert named is not None, said


def test_the_map_says_what_is_wrong(house):
    path = house / "gluon_core/layouts/linear.py"
    old = path.read_text()
    path.write_text(old + "\n\ndef circle():\n    import gluon_pictures.render\n")
    try:
        code, said = map_of(house)
    finally:
        path.write_text(old)
    assert code == 1 and "circle" in said and "gluon_pictures.render" in said

    page = house / "docs/architecture.md"
    old = page.read_text()
    page.write_text(old.replace("| `errors` |", "| `mistakes` |", 1))
    try:
        code, said = map_of(house)
    finally:
        page.write_text(old)
    assert code == 1 and "stale" in said


def test_defining_a_kernel_does_not_import_what_compiles(tmp_path):
    """Triton's code generator brings its own Gluon as a whole, which costs as much as all the rest."""
    file = tmp_path / "kernels.py"
    file.write_text("""
import sys
import gluon_core as gluon
from gluon_core import language as gl

LAYOUT = gl.BlockedLayout([1], [32], [4], [0])

@gluon.jit
def kernel(x, LAYOUT: gl.constexpr):
    gl.store(x + gl.arange(0, 128, LAYOUT), 0.0)

heavy = ("triton.compiler.code_generator", "gluon_core.frontend", "gluon_core.compiler.driver",
         "gluon_core.registry.load", "pluggy", "numpy", "rich", "typer")
print([name for name in heavy if name in sys.modules])
""")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
