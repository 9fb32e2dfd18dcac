"""Contents of the wheels: typed packages, entry points, and dependencies without torch."""

from __future__ import annotations

import ast
import configparser
import email
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "gluon_core": ROOT,
    "gluon_nvidia": ROOT / "backends" / "nvidia",
    "gluon_amd": ROOT / "backends" / "amd",
    "gluon_sim": ROOT / "backends" / "sim",
    "gluon_emu": ROOT / "backends" / "emu",
    "gluon_runtime": ROOT / "runtime",
    "gluon_extras": ROOT / "extras",
    "gluon_kernels": ROOT / "kernels",
}
EXTRAS = {path.name for path in (ROOT / "extras").glob("gluon_*")}


# As `pip wheel` does, which starts three processes for each.
BUILD_ALL = """
import os, sys
from hatchling.build import build_wheel

for project in sys.argv[2:]:
    os.chdir(project)
    build_wheel(sys.argv[1])
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """`built[package]`: the path of its wheel; one command builds all."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-c", BUILD_ALL, str(folder), *map(str, PACKAGES.values())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    paths = {}
    for package in PACKAGES:
        (paths[package],) = folder.glob(f"{package}-*.whl")
    return paths


@pytest.fixture(scope="module", params=PACKAGES)
def wheel(request, built):
    """(package, names in its wheel, reader of one of them)."""
    with zipfile.ZipFile(built[request.param]) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    return request.param, files


def metadata(files, name):
    return next(data.decode() for path, data in files.items() if path.endswith(f"dist-info/{name}"))


def test_a_wheel_holds_the_whole_package_and_nothing_else(wheel):
    package, files = wheel
    packages = EXTRAS if package == "gluon_extras" else {package}
    for name in packages:
        source = PACKAGES[package] / name
        expected = {str(path.relative_to(source.parent)) for path in source.rglob("*.py")}
        assert expected | {f"{name}/py.typed"} <= set(files)
    packages = packages | ({"gluon_examples"} if package == "gluon_core" else set())
    assert {name.split("/")[0] for name in files if "dist-info" not in name} == packages
    assert any(name.endswith("licenses/LICENSE") for name in files)


def test_dependencies_leave_torch_to_the_user(wheel):
    package, files = wheel
    header = email.message_from_string(metadata(files, "METADATA"))
    needed = [r for r in header.get_all("Requires-Dist", []) if "extra ==" not in r]
    assert not [r for r in needed if r.startswith("torch")]
    if package == "gluon_core":
        names = {"gluon-runtime", "triton", "pluggy", "numpy"}
        assert {re.split(r"[ <>=]", r)[0] for r in needed} == names
        assert any(r.startswith("triton<3.10,>=3.6") for r in needed), needed
    elif package == "gluon_runtime":
        assert not needed and "gluon_runtime/c/gluon_bundle.h" in files
    else:
        assert any(r.startswith("gluon-core<") for r in needed), needed
    assert header["License-Expression"] == "MIT"
    assert header["Requires-Python"] == "<3.14,>=3.10"


def test_entry_points(wheel):
    package, files = wheel
    if package in ("gluon_runtime", "gluon_kernels"):
        assert not any(name.endswith("entry_points.txt") for name in files)
        return
    entry = configparser.ConfigParser()
    entry.read_string(metadata(files, "entry_points.txt"))
    if package == "gluon_extras":
        assert entry["console_scripts"]["gluon"] == "gluon_cli:main"
        plugins = {path.parent.name for path in (ROOT / "extras").glob("*/plugin.py")}
        assert set(entry["gluon_core.extras"].values()) == {f"{name}.plugin" for name in plugins}
    elif package == "gluon_core":
        assert "console_scripts" not in entry
    else:
        vendor = package.removeprefix("gluon_")
        assert entry["gluon_core.backends"][vendor] == f"{package}.plugin"


def extras(text):
    """Return extra -> its requirements, from metadata."""
    header = email.message_from_string(text)
    requirements = {extra: [] for extra in header.get_all("Provides-Extra")}
    for line in header.get_all("Requires-Dist"):
        needed, marker, extra = line.partition("; extra == ")
        if marker:
            requirements[extra.strip("'\"")].append(needed.strip())
    return requirements


PLUGINS = {package.removeprefix("gluon_"): path for package, path in PACKAGES.items()}
del PLUGINS["core"], PLUGINS["extras"], PLUGINS["kernels"]
# Extra of gluon-core -> that of gluon-extras.
SURROUNDING = {
    "bundle": "",
    "certify": "[certify]",
    "cli": "",
    "distributed": "[torch]",
    "judge": "[judge]",
    "pictures": "",
    "prove": "[prove]",
    "report": "",
    "standin": "",
    "torch": "[torch]",
    "tune": "[tune]",
}


def test_extras_of_a_checkout_are_its_folders(built):
    with zipfile.ZipFile(built["gluon_core"]) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    requirements = extras(metadata(files, "METADATA"))
    assert {*PLUGINS, *SURROUNDING, "all"} <= set(requirements)
    for name, folder in PLUGINS.items():
        (needed,) = requirements[name]
        assert needed.replace(" ", "") == f"gluon-{name}@{folder.as_uri()}"
        assert name == "runtime" or needed in requirements["all"]
    for extra, inner in SURROUNDING.items():
        needed = f"gluon-extras{inner}@{PACKAGES['gluon_extras'].as_uri()}"
        assert needed in {line.replace(" ", "") for line in requirements[extra]}
    assert not any("[torch]" in line for line in requirements["all"])
    with zipfile.ZipFile(built["gluon_extras"]) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    behind = extras(metadata(files, "METADATA"))
    libraries = {
        "tune": "optuna",
        "prove": "z3-solver",
        "torch": "torch",
    }
    for extra, library in libraries.items():
        assert any(line.startswith(library) for line in behind[extra])


BUILD = """
import sys
from hatchling.build import build_sdist, build_wheel
print((build_sdist if sys.argv[1] == "sdist" else build_wheel)(sys.argv[2]))
"""


def build(kind, root, folder, **environment):
    """Return a distribution of the project in `root`, as a front end of PEP 517 builds it."""
    command = [sys.executable, "-c", BUILD, kind, str(folder)]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


def test_published_metadata_names_the_plugins(tmp_path):
    """A source distribution, the wheel that is built from it, and one that is built for a release."""
    source = build("sdist", ROOT, tmp_path)
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / source.name.removesuffix(".tar.gz")
    assert not (unpacked / "backends").exists() and not (unpacked / "runtime").exists()
    texts = [(unpacked / "PKG-INFO").read_text()]
    for root, environment in ((unpacked, {}), (ROOT, {"GLUON_RELEASE": "1"})):
        folder = tmp_path / f"wheel{len(texts)}"
        folder.mkdir()
        with zipfile.ZipFile(build("wheel", root, folder, **environment)) as archive:
            texts.append(metadata({n: archive.read(n) for n in archive.namelist()}, "METADATA"))
    for text in texts:
        requirements = extras(text)
        assert "file:" not in text and "@" not in "".join(sum(requirements.values(), []))
        for name in PLUGINS:
            (needed,) = requirements[name]
            assert sorted(re.findall(r"[<>]=?[\d.]+", needed)) == ["<0.2", ">=0.1"]
            assert needed.startswith(f"gluon-{name}")
            assert name == "runtime" or needed in requirements["all"]  # the core needs it
        for extra, inner in SURROUNDING.items():
            assert any(line.startswith(f"gluon-extras{inner}") for line in requirements[extra])


SMOKE = """
import importlib.metadata, sys
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.registry.load import registry

assert gluon.__file__.startswith(sys.prefix), gluon.__file__
assert gluon.__version__ == importlib.metadata.version("gluon-core")
assert set(registry().backends) == {"nvidia", "amd", "sim", "emu"}, registry().problems()
assert not registry().failures

@gluon.jit
def double(x, n, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=LAYOUT)
    gl.store(x + i, gl.load(x + i, mask=i < n) * 2, mask=i < n)

layout = {32: gl.BlockedLayout([1], [32], [4], [0]), 64: gl.BlockedLayout([1], [64], [4], [0])}
for target, suffix in (("sim:sm_90", None), ("sm_90", "cubin"), ("gfx942", "hsaco")):
    if suffix is None:
        x = np.ones(300, np.float32)
        double[(2,)](x, 300, 256, layout[32], target=target)
        assert (x == 2).all()
    else:
        warp = registry().target(target).warp_size
        compiled = gluon.compile(double, target, signature={"x": "*fp32", "n": "i32"},
                             constexprs={"BLOCK": 256, "LAYOUT": layout[warp]})
        assert compiled.asm[suffix][:4] == b"\\x7fELF"
from gluon_bundle import Bundle
import gluon_runtime

bundle = Bundle()
for target, warp in (("sm_90", 32), ("gfx942", 64)):
    bundle.add(double, {"x": "*fp32", "n": "i32"}, {"BLOCK": 256, "LAYOUT": layout[warp]}, target=target)
bundle.write("double.glb")
assert list(gluon_runtime.open_bundle("double.glb")) == ["double"]
assert (gluon_runtime.c_sources() / "gluon_bundle.h").is_file()
print("well")
"""


def test_the_wheels_work_where_nothing_else_of_ours_is(built, tmp_path):
    """Installed into an empty environment, which only borrows the dependencies of this one."""
    wheels = [str(path) for path in built.values()]
    clean = tmp_path / "clean"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(clean)
    python = clean / "bin" / "python"
    (site,) = clean.glob("lib/python*/site-packages")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"]
    command += ["--no-index", "--no-deps", "--target", str(site)]
    done = subprocess.run([*command, *wheels], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # A path in a .pth file: what is installed there can be imported, links to checkouts do not count.
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "GLUON_TARGET")}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    file = tmp_path / "smoke.py"
    file.write_text(SMOKE)
    run = functools.partial(
        subprocess.run, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    done = run([str(python), "-W", "ignore", str(file)])
    assert done.stdout == "well\n", done.stderr
    done = run([str(python), "-m", "gluon_core", "info", "--json"])
    report = json.loads(done.stdout)
    assert {plugin["name"] for plugin in report["plugins"]} == {
        *("nvidia", "amd", "sim", "emu"),
        *(
            "bundle",
            "certify",
            "distributed",
            "judge",
            "pictures",
            "prove",
            "report",
            "standin",
            "timeline",
            "torch",
            "tune",
            "write",
        ),
    }
    assert report["versions"]["gluon-core"] == "0.1.0"


@pytest.mark.parametrize("commands, needed", [((), ["ziglang"]), (("gcc",), []), (("clang",), [])])
def test_a_build_brings_a_compiler_where_there_is_none(tmp_path, commands, needed):
    for command in commands:
        (tmp_path / command).write_text("#!/bin/sh\n")
        (tmp_path / command).chmod(0o755)
    script = "from hatchling.build import *; print(get_requires_for_build_wheel(), get_requires_for_build_editable())"
    environment = {name: value for name, value in os.environ.items() if name != "CC"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT / "runtime",
        env={**environment, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    lists = ast.literal_eval(done.stdout.replace("] [", "], ["))
    assert all([need for need in each if need == "ziglang"] == needed for each in lists), (
        done.stderr
    )


@pytest.mark.parametrize("version, reason", [(None, "cannot be imported"), (1, "has version 1")])
def test_an_engine_that_is_missing_or_old_is_an_error_with_a_remedy(tmp_path, version, reason):
    package = tmp_path / "gluon_runtime"
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "runtime" / "gluon_runtime", package, ignore=ignored)
    if version is not None:
        (package / "_engine.py").write_text(f"VERSION = {version}\n")
    done = subprocess.run(
        [sys.executable, "-c", "import gluon_runtime.calls"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: the launch engine") and reason in last
    assert "pip install -e runtime" in last
