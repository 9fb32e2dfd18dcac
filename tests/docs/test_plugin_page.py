"""The plugins that docs/plugins.md writes: installed by pip, run, and held to the contract."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.docs import test_docs
from tests.docs.test_docs import ROOT, SAME, check, command_line, run

pytestmark = pytest.mark.once

PAGE = ROOT / "docs" / "plugins.md"
ACME = ROOT / "tests" / "plugin_acme"
NAMED = re.compile(r"^```(?:toml|py|python)\n# (\S+\.(?:py|toml))\n(.*?)^```", re.M | re.S)
COMMANDS = re.compile(r"^```console\n(.*?)^```", re.M | re.S)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A folder with every file of the page, and the environment in which its plugins are installed."""
    folder = tmp_path_factory.mktemp("plugins") / "page"
    shutil.copytree(ACME, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in NAMED.findall(PAGE.read_text()):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if file.parent.name == "gluon_faster":
            (file.parent / "__init__.py").touch()
    site = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(site), str(folder), str(folder / "faster")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path = os.pathsep.join(filter(None, (str(site), str(ROOT), os.environ.get("PYTHONPATH"))))
    common = {k: v for k, v in os.environ.items() if k != "GLUON_TARGET"}
    return folder, {**common, "PYTHONPATH": path}


def test_it_shows_all_of_the_vendor():
    shown = dict(NAMED.findall(PAGE.read_text()))
    files = [file for kind in ("*.py", "*.toml") for file in ACME.rglob(kind)]
    for file in files:
        name, text = file.relative_to(ACME).as_posix(), file.read_text()
        assert shown.get(name) == text or text.count("\n") == 1, f"{name} differs on the page"


def commands(environment):
    for block in COMMANDS.findall(PAGE.read_text()):
        for line, shown in test_docs.commands(block):
            mine = {**environment, **SAME}
            yield line, shown, command_line(line[2:], mine), mine


@pytest.mark.campaign
def test_its_commands_run(page):
    folder, environment = page
    outputs = {}
    for line, shown, command, mine in commands(environment):
        code, outputs[line] = run(command, folder, mine)
        assert code == 0, f"{line}\n{outputs[line]}"
        assert shown, line
        check(shown, outputs[line], line)
    explained = next(text for line, text in outputs.items() if "explain" in line)
    assert "acme_load" in explained and "global_load" in explained
    (tested,) = (text for line, text in outputs.items() if "conformance" in line)
    # Without a device nothing is launched, and it is no simulator that knows schedules.
    assert re.search(r"\b2\d passed, 9 skipped in", tested), tested


def test_its_second_plugin_passes_as_well(page):
    folder, environment = page
    suite = ["--pyargs", "gluon_core.testing.conformance", "-k", "small_copy or acme_load"]
    code, output = run(["-m", "pytest", "-q", *suite], folder, environment)
    assert code == 0 and "2 passed" in output, output


COPY = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.compiler import GluonASTSource
from gluon_core.compiler.driver import trace_source
from gluon_core.registry.load import registry

@gluon.jit
def copied(x, out, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], gl.float32)
    at = gl.arange(0, BLOCK, layout)
    buffer = gl.allocate_shared_memory(gl.float32, [BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    gl.portable.async_copy(buffer, x, at)
    gl.portable.commit()
    gl.portable.wait(0)
    gl.portable.store(out, at, buffer.load(layout))

x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
kernel = copied[(1,)](x, out, 128, target="sim:acme1")
assert (x == out).all() and kernel.n_regs is None and "ptx" not in kernel.asm
target, sessions = registry().target("sim:acme1"), []
source = GluonASTSource(copied, {"x": "*fp32", "out": "*fp32"}, {"BLOCK": 128})
options = registry().backend("sim").compiler.options(target, {})
trace_source(source, target, options, on_session=sessions.append)
print([s.chosen.name for s in sessions[0].selections])
assert not registry().clashes and not registry().failures
"""


def test_its_lowerings_are_taken(page):
    folder, environment = page
    (folder / "copied.py").write_text(COPY)
    code, output = run(["copied.py"], folder, environment)
    assert code == 0 and "['small_copy', 'global_store']" in output, output
