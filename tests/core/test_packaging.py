"""What the wheels hold: typed packages, entry points, and dependencies without torch."""

from __future__ import annotations

import configparser
import email
import subprocess
import sys
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
}


@pytest.fixture(scope="module", params=PACKAGES)
def wheel(request, tmp_path_factory):
    """(package, names in its wheel, reader of one of them)."""
    folder = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(folder), str(PACKAGES[request.param])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    return request.param, files


def metadata(files, name):
    return next(data.decode() for path, data in files.items() if path.endswith(f"dist-info/{name}"))


def test_a_wheel_holds_the_whole_package_and_nothing_else(wheel):
    package, files = wheel
    source = PACKAGES[package] / package
    expected = {str(path.relative_to(source.parent)) for path in source.rglob("*.py")} | {
        f"{package}/py.typed"
    }
    assert expected <= set(files)
    packages = {package} | ({"gluon_examples"} if package == "gluon_core" else set())
    assert {name.split("/")[0] for name in files if "dist-info" not in name} == packages
    assert any(name.endswith("licenses/LICENSE") for name in files)


def test_dependencies_leave_torch_to_the_user(wheel):
    package, files = wheel
    header = email.message_from_string(metadata(files, "METADATA"))
    needed = [r for r in header.get_all("Requires-Dist", []) if "extra ==" not in r]
    assert not [r for r in needed if r.startswith("torch")]
    if package == "gluon_core":
        assert any(r.startswith("triton<3.10,>=3.6") for r in needed), needed
    elif package == "gluon_runtime":
        assert not needed and "gluon_runtime/c/gluon_bundle.h" in files
    else:
        assert any(r.startswith("gluon-core<") for r in needed), needed
    assert header["License-Expression"] == "MIT"
    assert header["Requires-Python"] == "<3.14,>=3.10"


def test_entry_points(wheel):
    package, files = wheel
    if package == "gluon_runtime":
        assert not any(name.endswith("entry_points.txt") for name in files)
        return
    entry = configparser.ConfigParser()
    entry.read_string(metadata(files, "entry_points.txt"))
    if package == "gluon_core":
        assert entry["console_scripts"]["gluon"] == "gluon_core.cli:main"
    else:
        vendor = package.removeprefix("gluon_")
        assert entry["gluon_core.backends"][vendor] == f"{package}.plugin"
