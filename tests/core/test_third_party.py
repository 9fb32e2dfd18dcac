"""A vendor nobody here knows: installed from its own pyproject, removed, and broken.

Each situation is a process that has imported nothing of Gluon Core, as it is for a user; the
distribution is installed once, into a folder of its own, by pip.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "plugin_acme"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the plugin as pip installs it."""
    work = tmp_path_factory.mktemp("acme")
    source = work / "source"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__", "build"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(work / "site"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return work / "site"


@pytest.fixture
def broken(installed, tmp_path):
    """The same, with a backend that needs a library which is not there."""
    site = tmp_path / "site"
    shutil.copytree(installed, site)
    device = site / "gluon_acme" / "device.py"
    device.write_text(device.read_text() + "import acme_driver_library\n")
    return site


def seen_from(site):
    """Return the folders in which a process that sees `site` finds modules."""
    return [
        *([site] if site else []),
        ROOT,
        *(ROOT / "backends" / v for v in ("nvidia", "amd", "sim")),
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`run(script, site)` returns the JSON that a script prints in a process that sees `site`."""
    path = tmp_path_factory.mktemp("scripts") / "script.py"

    def ran(script, site=None, **environment):
        path.write_text(script)
        done = warm.run([path], env={**os.environ, **environment}, path=seen_from(site))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return ran


@pytest.fixture(scope="module")
def without(run):
    """The report of a process that sees no other plugin."""
    return run(REPORT)


def test_it_is_written_against_the_contract_alone():
    imported = set()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
    ours = {".".join(name.split(".")[:2]) for name in imported if name.startswith("gluon_core")}
    assert ours == {"gluon_core.plugin", "gluon_core.values"}  # the latter for descriptors
    vendor = [f for f in SOURCE.rglob("*.*") if f.suffix in (".py", ".toml") and f.stem != "tiles"]
    assert sum(len(file.read_text().splitlines()) for file in vendor) < 250


REPORT = """
import json
from gluon_core.registry.load import registry
r = registry()
print(json.dumps({
    "backends": sorted(r.backends), "failures": sorted(r.failures),
    "loads": [low.name for low in r.lowerings("load")],
    "architectures": sorted(a.name for a in r.architectures()),
}))
"""


def test_it_is_found_and_leaves_the_others_unchanged(run, without, installed):
    with_it = run(REPORT, installed)
    assert "acme" not in without["backends"] and "acme" in with_it["backends"]
    assert set(with_it["backends"]) - set(without["backends"]) == {"acme"}
    assert set(with_it["architectures"]) - set(without["architectures"]) == {"acme1"}
    assert set(with_it["loads"]) - set(without["loads"]) == {"acme_load"}


def test_broken_it_is_remembered_and_the_others_work(run, without, broken):
    with_it = run(REPORT, broken)
    assert with_it["failures"] == sorted([*without["failures"], "acme"])
    assert {**with_it, "failures": 0} == {**without, "failures": 0}


def test_gluon_plugins_leaves_it_out(run, without, installed):
    names = ",".join(without["backends"])
    assert "acme" not in run(REPORT, installed, GLUON_PLUGINS=names)["backends"]


NAMES = """
import json, sys
from gluon_core import language as gl
import gluon_core.language.acme.anvil as spelled_out
from gluon_core.language.acme.anvil import add_clamped
from gluon_core.language.acme import anvil as from_import
from gluon_core.acme.anvil import ClampRange
import gluon_core.acme
import gluon_acme.language.anvil as own
import gluon_acme.host.anvil as host
import importlib, inspect, pickle
assert gl.acme.anvil is spelled_out is from_import is own
assert sys.modules["gluon_core.language.acme.anvil"] is sys.modules["gluon_acme.language.anvil"]
assert gl.acme is sys.modules["gluon_acme.language"]
assert own.__name__ == own.__spec__.name == "gluon_acme.language.anvil"
assert own.__spec__.origin == own.__file__ and own.__package__ == "gluon_acme.language"
assert add_clamped is own.add_clamped and inspect.getmodule(add_clamped) is own
assert ClampRange is host.ClampRange and gluon_core.acme.anvil is host
assert pickle.loads(pickle.dumps(ClampRange(0, 1))) == ClampRange(0, 1)
assert importlib.import_module("gluon_core.language.acme.anvil") is own
print(json.dumps(sum(getattr(m, "__file__", None) == own.__file__ for m in set(sys.modules.values()))))
"""


def test_every_spelling_of_its_namespaces_is_one_module(run, installed):
    assert run(NAMES, installed) == 1


MISSING = """
import json
from gluon_core import language as gl
names_and_errors = {}
def note(key, action):
    try:
        action()
    except Exception as error:
        names = [c.__name__ for c in type(error).__mro__]
        names_and_errors[key] = [names, str(error)]
def host(): import gluon_core.acme
def deep(): from gluon_core.language.acme.anvil import add_clamped
def typo(): import gluon_core.language.acme.anvill
def vendor(): import gluon_core.language.acne
note("attribute", lambda: gl.acme)
note("host", host); note("deep", deep); note("typo", typo); note("vendor", vendor)
note("near", lambda: gl.acne); note("dunder", lambda: gl.__nothing__)
print(json.dumps(names_and_errors))
"""


def test_when_broken_each_spelling_says_why(run, broken):
    output = run(MISSING, broken)
    for key in ("attribute", "host", "deep"):
        names, text = output[key]
        assert "PluginError" in names and "ImportError" in names
        assert "acme_driver_library" in text and "gluon-acme 0.1.0" in text


def test_when_removed_each_spelling_names_the_installed_backends(run):
    output = run(MISSING)
    assert "AttributeError" in output["attribute"][0]
    for key in ("host", "deep", "vendor"):
        assert "ModuleNotFoundError" in output[key][0] and "Installed backends:" in output[key][1]


def test_a_typo_gets_a_suggestion(run, installed):
    output = run(MISSING, installed)
    assert "Did you mean 'anvil'" in output["typo"][1]
    assert (
        "Did you mean 'acme'" in output["vendor"][1] and "Did you mean 'acme'" in output["near"][1]
    )
    assert "attribute" not in output and "AttributeError" in output["dunder"][0]


KERNEL = """
import json, sys, tempfile, pathlib
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.acme import anvil

@gluon.jit
def clamped(x, y, out, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], gl.float32)
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    a = gl.portable.load(x, at, at < n)
    b = gl.portable.load(y, at, at < n)
    gl.portable.store(out, at, anvil.add_clamped(a, b, -1.0, 1.0), at < n)
"""

RUN = """
rng = np.random.default_rng(0)
x, y = (rng.standard_normal(300).astype(np.float32) for _ in range(2))
out = np.zeros_like(x)
clamped[(3,)](x, y, out, 300, BLOCK=128)
print(json.dumps(bool(np.array_equal(out, np.clip(x + y, -1, 1)))))
"""

COMPILE = """
signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}
compiled = gluon.compile(clamped, target=TARGET, signature=signature, constexprs={"BLOCK": 128})
assert isinstance(compiled.asm["anvil"], bytes)
print(json.dumps([compiled.asm["anvil"].decode().splitlines()[0], compiled.asm["anvil"].decode().count("acme_add_clamped")]))
"""


def write(tmp_path, text):
    path = tmp_path / "kernel_of_acme.py"
    path.write_text(text)
    return f"import runpy; runpy.run_path({str(path)!r})"


def test_its_kernel_runs_on_the_simulator_through_its_reference_model(run, installed, tmp_path):
    script = write(tmp_path, KERNEL + RUN)
    assert run(script, installed, GLUON_TARGET="sim:acme1") is True


PORTABLE = """
import json, sys
sys.path.insert(0, {root!r})
from gluon_core.registry.load import registry
from tests.kernels.cases.matmul import EXAMPLES
problem = EXAMPLES[0].check(registry().target("sim:acme1")).problem
print(json.dumps(problem))
"""


def test_the_portable_matmul_runs_on_it(run, installed):
    assert run(PORTABLE.format(root=str(ROOT)), installed) is None


COPIES = """
import json
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GluonError
from gluon_core.language.acme import anvil

@gluon.jit
def copies(x, out, BLOCK: gl.constexpr, WAITS: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], gl.float32)
    at = gl.arange(0, BLOCK, layout)
    buffer = gl.allocate_shared_memory(gl.float32, [BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    anvil.start_copy(buffer, x + at)
    if WAITS:
        anvil.finish_copies()
    gl.store(out + at, buffer.load(layout))
    anvil.finish_copies()

x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
copies[(1,)](x, out, 128, True)
answers = [bool((x == out).all())]
try:
    copies[(1,)](x, out, 128, False)
except GluonError as error:
    answers += [type(error).__name__, error.span.line, str(error)]
print(json.dumps(answers))
"""


def test_its_asynchronous_op_is_checked_like_any_other(run, installed, tmp_path):
    environment = {"GLUON_TARGET": "sim:acme1", "GLUON_SIM_UNINITIALISED": "0"}
    script = write(tmp_path, COPIES)
    right, kind, line, text = run(script, installed, **environment)
    assert (right, kind) == (True, "RaceError")
    assert COPIES.splitlines()[line - 1].strip().startswith("anvil.start_copy")
    assert "`anvil.start_copy`" in text and "`buffer.load`" in text


TILES = """
import json
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.acme.anvil import TileMap
from gluon_core.errors import GluonError
from gluon_core.language.acme import anvil

@gluon.jit
def tiles(source, out, n, WAITS: gl.constexpr, ROWS: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([16, 32], gl.float32)
    buffer = gl.allocate_shared_memory(gl.float32, [ROWS, 32], source.layout)
    anvil.start_tile(buffer, source, gl.program_id(0) * 16, 32)
    if WAITS:
        anvil.finish_copies()
    rows = gl.arange(0, 16, gl.SliceLayout(1, layout))
    columns = gl.arange(0, 32, gl.SliceLayout(0, layout))
    at = (gl.program_id(0) * 16 + rows)[:, None] * 32 + columns[None, :]
    gl.store(out + at, buffer.load(layout), (at < n * 32) & (source.shape[0] == n))
    anvil.finish_copies()

x = np.arange(40 * 50, dtype=np.float32).reshape(40, 50)
wanted = np.pad(x, ((0, 0), (0, 14)))[:, 32:64]
out = np.zeros((40, 32), np.float32)
source = TileMap(x, x.shape, (50, 1), (16, 32), gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
tiles[(3,)](source, out, 40, True, 16)
answers = [bool((out == wanted).all())]
for waits, rows, target in ((False, 16, None), (True, 8, None), (True, 16, "sim:sm_90")):
    try:
        tiles[(3,)](source, out, 40, waits, rows, **({"target": target} if target else {}))
        answers.append(["no error", ""])
    except GluonError as error:
        answers.append([type(error).__name__, str(error)])
try:
    TileMap(x.reshape(40, 25, 2), (40, 25, 2), (50, 2, 1), (8, 8, 2), source.layout)
except GluonError as error:
    answers.append([type(error).__name__, str(error)])
print(json.dumps(answers))
"""


def test_its_own_descriptors_are_arguments_like_any_other(run, installed, tmp_path):
    environment = {"GLUON_TARGET": "sim:acme1", "GLUON_SIM_UNINITIALISED": "0"}
    right, race, shape, elsewhere, rank = run(write(tmp_path, TILES), installed, **environment)
    assert right is True
    assert race[0] == "RaceError" and "anvil.start_tile" in race[1]
    assert shape[0] == "ShapeError" and "not of the shape of a tile" in shape[1]
    assert elsewhere[0] == "DtypeError" and "tensordesc_acme" in elsewhere[1]
    assert rank[0] == "ShapeError" and "TileMap.shape" in rank[1]


def test_its_kernel_compiles_to_its_own_instructions(run, installed, tmp_path):
    script = write(tmp_path, KERNEL + COMPILE.replace("TARGET", "'anvil'"))
    cache = {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    assert run(script, installed, **cache) == ["kernel clamped", 1]
    assert run(script, installed, **cache) == ["kernel clamped", 1]  # from the cache


def test_its_op_is_refused_on_other_hardware(run, installed, tmp_path):
    ending = """
try:
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}
    gluon.compile(clamped, target="sm_80", signature=signature, constexprs={"BLOCK": 128})
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
    name, text = run(write(tmp_path, KERNEL + ending), installed)
    assert name == "CapabilityError"
    assert "gl.acme.anvil.add_clamped needs acme.clamp (acme1)" in text
    assert "kernel_of_acme.py" in text and "gl.clamp" in text


FORGE = """
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.hookspec import hookimpl
from gluon_core.plugin.targets import Architecture, Limits

ARCHITECTURES = (
    Architecture("forge1", "forge", ("hopper", "amboss"), arch="f1", triton_backend=None, warp_size=32, limits=Limits(65536)),
    Architecture("sm_80", "forge", (), arch="f2", triton_backend=None, warp_size=32, limits=Limits(65536)),
)

@hookimpl
def gluon_backends():
    return [Backend("forge", ARCHITECTURES)]
"""


@pytest.fixture
def forged(tmp_path):
    """A plugin that loads before all others and takes names of theirs."""
    site = tmp_path / "forged"
    info = site / "gluon_forge-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gluon-forge\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gluon_core.backends]\na_forge = gluon_forge\n")
    (site / "gluon_forge.py").write_text(FORGE)
    return site


CLASHES = """
import json
from gluon_core.registry.load import registry
r = registry()
targets = {}
SPECS = (
    "hopper", "sim:hopper", "sm_80", "nvidia:hopper", "h100", "forge:hopper", "amboss",
    "sim:forge:hopper", "forge:sm_80", "nvidia:sm_80"
)
for spec in SPECS:
    try:
        targets[spec] = str(r.target(spec))
    except Exception as error:
        targets[spec] = f"{type(error).__name__}: {error}"
print(json.dumps([targets, sorted(c.name for c in r.clashes), sorted(r.backends), list(r.failures)]))
"""


def test_a_name_of_two_plugins_is_an_error_and_everything_else_works(run, without, forged):
    targets, names, backends, failures = run(CLASHES, forged)
    assert backends == sorted([*without["backends"], "forge"]) and not failures
    assert names == ["hopper", "sm_80"]
    for word, mine, theirs in (
        ("hopper", "forge:hopper", "nvidia:hopper"),
        ("sim:hopper", "sim:forge:hopper", "sim:nvidia:hopper"),
        ("sm_80", "forge:sm_80", "nvidia:sm_80"),
    ):
        text = targets.pop(word)
        assert "claimed twice" in text and "(gluon-forge 1.0)" in text and "(gluon-nvidia" in text
        assert f"Say '{mine}' or '{theirs}'" in text and "GLUON_PLUGINS" in text
    assert targets == {
        "nvidia:hopper": "nvidia:sm_90",
        "h100": "nvidia:sm_90",
        "forge:hopper": "forge:forge1",
        "amboss": "forge:forge1",
        "sim:forge:hopper": "sim:forge1",
        "forge:sm_80": "forge:sm_80",
        "nvidia:sm_80": "nvidia:sm_80",
    }


def command(*words, site):
    done = warm.run(["-m", "gluon_cli", *words], path=seen_from(site))
    return done.returncode, done.stdout, done.stderr


def test_every_command_says_in_one_line_that_something_is_wrong(forged, broken, installed):
    layout = ("layout", "BlockedLayout([4], [32], [4], [0])", "--shape", "512")
    code, out, notice = command(*layout, site=forged)
    assert code == 0 and notice.count("\n") == 1
    assert notice.startswith("gluon: 2 problems of plugins, the first: the spelling 'hopper' is")
    assert "'a_forge'" in notice and notice.endswith("See `gluon info`.\n")
    code, out, notice = command(*layout, site=broken)
    assert (
        code == 0 and notice.count("\n") == 1 and "'acme' (gluon-acme 0.1.0) did not load" in notice
    )
    assert command(*layout, site=installed)[2] == ""
    assert command("--help", site=broken)[2] == ""

    code, out, notice = command("info", site=forged)
    assert code == 0 and notice == "" and out.count("is claimed twice") == 2
    code, out, notice = command("info", "--json", site=forged)
    clashes = json.loads(out)["clashes"]
    assert [(c["name"], c["plugins"]) for c in clashes] == [
        ("hopper", ["a_forge", "nvidia"]),
        ("sm_80", ["a_forge", "nvidia"]),
    ]
