"""Import contracts: they hold, and say so when they are broken."""

from __future__ import annotations

import contextlib
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
PARTS = (
    "pyproject.toml",
    "gluon_core",
    "runtime",
    "backends",
    "extras",
    "kernels",
    "docs/architecture.md",
    ".ci",
)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of the packages in the contracts."""
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
    paths = [
        house,
        house / "runtime",
        house / "extras",
        house / "kernels",
        *sorted((house / "backends").iterdir()),
    ]
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


@pytest.mark.campaign  # `tox -e layering` runs both commands on the house itself
def test_the_house_as_it_is(house):
    assert lint(house)[0] == 0, lint(house)[1]
    code, output = map_of(house)
    assert code == 0, output


@contextlib.contextmanager
def appended(house, file, text):
    path = house / file
    old = path.read_text()
    path.write_text(old + text)
    try:
        yield
    finally:
        path.write_text(old)


@pytest.mark.campaign
def test_a_miss_is_a_short_walk_for_its_reader():
    code = """
import sys; sys.path.insert(0, ".ci")
import report, walks
walk = walks.measured("launch")["(b) launch, miss"]
figures = {"stays": len(walk.stays), "returns": len(walk.stays) - walk.files}
print(report.beyond({f"{name} of (b) launch, miss": n for name, n in figures.items()}), figures)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("[] "), done.stdout + done.stderr


def test_a_walk_through_packages_of_another_place_is_an_error():
    code = """
import sys; sys.path.insert(0, ".ci")
import json, walks
with walks.Tracer("json") as tracer:
    json.dumps([])
print(tracer.walk)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "nothing was traced: json is /" in done.stderr


BROKEN = [
    ("gluon_core/layouts/tiling.py", "import gluon_core.values", "The rooms of the core"),
    ("gluon_core/values/tensors.py", "import gluon_core.launch.jit", "The rooms of the core"),
    ("gluon_core/portable/tiles.py", "import gluon_nvidia", "core names no plugin"),
    ("gluon_core/portable/tiles.py", "import gluon_cli", "core names no plugin"),
    ("gluon_core/plugin/machine_code.py", "import triton", "One door to Triton"),
    ("gluon_core/plugin/machine_code.py", "import gluon_core._triton", "does not need Triton"),
    ("backends/amd/gluon_amd/arch.py", "import gluon_core._triton", "Plugins import public"),
    ("backends/amd/gluon_amd/arch.py", "import gluon_tune", "Plugins import no extra"),
    ("backends/amd/gluon_amd/peaks.py", "import gluon_amd.backend", "rooms of AMD's plugin"),
    ("backends/nvidia/gluon_nvidia/peaks.py", "import gluon_nvidia.backend", "rooms of NVIDIA's"),
    ("backends/sim/gluon_sim/settings.py", "import gluon_sim.tools", "rooms of the simulator"),
    ("backends/emu/gluon_emu/settings.py", "import gluon_emu.amdgcn", "rooms of the emulator"),
    ("backends/sim/gluon_sim/tools/watcher.py", "import gluon_amd", "do not know each other"),
    ("runtime/gluon_runtime/conditions.py", "import gluon_core.errors", "runtime needs nothing else"),
    ("runtime/gluon_runtime/errors.py", "import gluon_runtime.kernel", "rooms of the runtime"),
]  # fmt: skip


@pytest.fixture(scope="module")
def broken(house):
    """The report of the linter on a house in which all of these contracts are broken at once."""
    with contextlib.ExitStack() as stack:
        for number, (file, line, _) in enumerate(BROKEN):
            stack.enter_context(appended(house, file, f"\n\ndef broken_{number}():\n    {line}\n"))
        return lint(house)


@pytest.mark.parametrize("file, line, contract", BROKEN)
def test_a_broken_contract_is_named(broken, file, line, contract):
    code, output = broken
    assert code == 1
    kept, _, reasons = output.partition("Broken contracts")
    named = re.search(re.escape(contract) + "((?!KEPT).)*BROKEN", " ".join(kept.split()))
    assert named is not None, output
    parts = file.removesuffix(".py").split("/")
    module = ".".join(parts[next(i for i, p in enumerate(parts) if p.startswith("gluon_")) :])
    chain = rf"{re.escape(module)} ->\s+{re.escape(line.split()[1])}\b"
    assert re.search(chain, reasons), output


MISTAKES = [
    (  # a circle that a function closes
        "gluon_core/layouts/f2.py",
        "\n\ndef circle():\n    import gluon_core.layouts.linear\n",
        "2 files import each other in a circle: gluon_core.layouts.f2 -> gluon_core.layouts.linear",
    ),
    (  # a circle for type checkers alone
        "backends/amd/gluon_amd/peaks.py",
        "\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gluon_amd.backend import AmdBackend\n",
        "gluon_amd: peaks imports backend, which is above it",
    ),
    (  # a string that is imported, with an attribute
        "gluon_core/layouts/cost.py",
        '\n\nLATER = "gluon_core.launch.jit:jit"\n',
        "gluon_core: layouts imports launch, which is above it",
    ),
    (  # a package of another distribution
        "gluon_core/layouts/cost.py",
        '\n\ndef load():\n    import importlib\n    importlib.import_module("gluon_tune")\n',
        "The core names no plugin and no extra: gluon_core.layouts.cost imports gluon_tune",
    ),
    (  # the rooms of a room
        "backends/emu/gluon_emu/amdgcn/decode/data.py",
        '\n\nUP = "gluon_emu.amdgcn.launcher"\n',
        "gluon_emu.amdgcn.decode.data imports gluon_emu.amdgcn.launcher",
    ),
    (  # another plugin, by a string
        "backends/amd/gluon_amd/peaks.py",
        '\n\nOTHER = "gluon_nvidia.peaks"\n',
        "Plugins do not know each other: gluon_amd.peaks imports gluon_nvidia.peaks",
    ),
]


NAMES = "".join(f"from gluon_core.plugin.ops import name_{i}\n" for i in range(20))
BEYOND = [
    ("gluon_core/plugin/typing.py", "\n" * 99 + "#\n", "lines of gluon_core.plugin"),
    ("gluon_core/registry/load.py", "\n" * 99 + "#\n", "lines of gluon_core.registry"),
    ("backends/nvidia/gluon_nvidia/peaks.py", NAMES, "names that gluon_nvidia takes from the core"),
]


@pytest.fixture(scope="module")
def mistaken(house):
    """The report of the map on a house with all of these mistakes at once."""
    with contextlib.ExitStack() as stack:
        for file, text, _ in MISTAKES + BEYOND:
            stack.enter_context(appended(house, file, text))
        return map_of(house)


@pytest.mark.parametrize(
    "problem",
    [problem for _, _, problem in MISTAKES],
    ids=["in-a-function", "type-only", "string", "package", "sub-rooms", "plugins"],
)
def test_the_map_names_the_mistake(mistaken, problem):
    code, output = mistaken
    assert code == 1 and problem in output, output


@pytest.mark.parametrize("figure", [figure for _, _, figure in BEYOND])
def test_figures_beyond_their_limits_fail(mistaken, figure):
    code, output = mistaken
    assert code == 1 and re.search(f"{figure}: .*, at most", output), output


def test_a_page_is_stale_and_docstrings_and_the_names_of_a_module_itself_are_no_imports(house):
    text = '\n\ndef f():\n    "gluon_core.launch.jit"\n    return "gluon_core.layouts.f2"\n'
    page = house / "docs/architecture.md"
    current = page.read_text()
    page.write_text(current.replace("| `errors` |", "| `mistakes` |", 1))
    with appended(house, "gluon_core/layouts/f2.py", text):
        code, output = map_of(house)
    page.write_text(current)
    assert code == 1 and output == "docs/architecture.md is stale: run python .ci/map.py\n"


def test_defining_a_kernel_does_not_import_the_compiler(tmp_path):
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
