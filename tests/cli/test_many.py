"""`gluon run` for several targets at once, and again when a file changes; `new` and `doctor`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from gluon_cli.app import app
from gluon_report import doctor
from tests import warm

pytestmark = [pytest.mark.once, pytest.mark.sampled(6)]

ASKS = """
import sys
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def scale(x, out, n, B: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([B], gl.float32)
    o = gl.program_id(0) * B + gl.arange(0, B, layout=layout)
    gl.store(out + o, 2 * gl.load(x + o, mask=o < n), mask=o < n)

@gluon.jit
def matrices(x):
    gl.target.require("nvidia.wgmma")
    gl.store(x, 1)

x = np.ones(1000, np.float32)
out = x.copy()
for _ in range(3):
    scale[(2,)](x, out, 1000, 512)
scale[(2,)](x.astype(np.float16), out, 1000, 512, num_warps=8)
print("scaled")
if "matrices" in sys.argv:
    matrices[(1,)](x)
"""


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_80")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "asks.py"
    path.write_text(ASKS)
    return path


def gluon(*arguments, code=0):
    words = list(map(str, arguments))
    result = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def process(*arguments):
    return warm.run(["-m", "gluon_core", *arguments], timeout=100)


class TestCompileFor:
    def test_types_come_from_the_launches(self, file):
        document = json.loads(gluon("run", file, "--compile-for", "sm_90", "--json").stdout)
        rows = {row["signature"]: row for row in document["kernels"]}
        assert set(rows) == {"*fp32:16, *fp32:16, i32", "*fp16:16, *fp32:16, i32"}  # once each
        assert all(row["registers"] > 0 for row in rows.values())
        assert {row["target"] for row in rows.values()} == {"nvidia:sm_90"}

    def test_each_kernel_for_each_target(self, file):
        done = process("run", file, "--compile-for", "sm_90,gfx942", "--", "matrices")
        assert done.returncode == 1, done.stderr
        shown = done.stdout[done.stdout.index("scale(*fp32") :]
        rows = [line for line in shown.splitlines() if ":sm_90" in line or ":gfx942" in line]
        assert "nvidia:sm_90" in rows[0] and "compiled" in rows[0]
        assert "amd:gfx942" in rows[1] and "compiled" in rows[1]
        assert "CapabilityError" in done.stdout and "matrices" in done.stdout
        assert done.stderr.count("scaled") == 1  # the output of the file comes once

    def test_nothing_to_compile(self, file):
        file.write_text("print('launches nothing')\n")
        assert (
            "no kernel was launched" in gluon("run", file, "--compile-for", "sm_90", code=3).stderr
        )

    def test_combinations_that_are_refused(self, file):
        gluon("run", file, "--compile-for", "sm_90", "-t", "sm_90", code=2)
        gluon("run", file, "--compile-for", "sm_90", "--check", code=2)
        gluon("run", file, "--targets", "sim:sm_90,nonsense", code=2)


def test_targets(file):
    done = process("run", file, "--targets", "sim:sm_90,sim:gfx942", "--", "matrices")
    assert done.returncode == 3, done.stderr  # one of them cannot
    assert done.stdout.count("scaled") == 2
    assert "sim:gfx942" in done.stdout and "cannot run there" in done.stdout
    document = json.loads(process("run", file, "--targets", "sim:sm_90", "--json").stdout)
    assert document["exit"] == 0
    assert [t["launches"][0]["target"] for t in document["targets"]] == ["sim:sm_90"]


def test_watch(tmp_path):
    file = tmp_path / "changes.py"
    file.write_text("print('first')\n")
    command = [sys.executable, "-u", "-m", "gluon_core", "run", str(file), "--watch"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from gluon_cli import main\nmain()"
    command = [sys.executable, "-u", "-c", code, *command[4:]]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    timer = threading.Timer(60, child.kill)
    timer.start()
    try:
        for line in child.stderr:
            if "exit code 0" in line:
                break
        file.write_text("print('second')\nraise SystemExit(7)\n")
        os.utime(file, (1, 1))
        for line in child.stderr:
            if "exit code 7" in line:
                break
        child.send_signal(2)
        out, _ = child.communicate()
    finally:
        timer.cancel()
    assert out == "first\nsecond\n" and child.returncode == 0


class TestNew:
    def test_written_files_pass(self, tmp_path):
        output = gluon("new", "row_twice", "--to", tmp_path).stdout
        assert "gluon run" in output and "pytest" in output
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["bench_row_twice.py", "row_twice.py", "test_row_twice.py"]
        done = process("run", tmp_path / "row_twice.py", "--check", "--schedules", "2")
        assert done.returncode == 0 and "no mistake" in done.stdout, done.stderr
        plugins = ["-p", "no:cacheprovider"]
        done = warm.run(["-m", "pytest", *plugins, "-q", tmp_path], timeout=100)
        assert done.returncode == 0 and "failed" not in done.stdout, done.stdout
        done = warm.run([tmp_path / "bench_row_twice.py"], timeout=100)
        assert done.returncode == 0 and "elements" in done.stdout, done.stderr

    def test_nothing_is_overwritten(self, tmp_path):
        (tmp_path / "test_mine.py").write_text("precious")
        assert "already exists" in gluon("new", "mine", "--to", tmp_path, code=2).stderr
        assert [p.name for p in tmp_path.iterdir()] == ["test_mine.py"]

    @pytest.mark.parametrize("name", ["3d", "a-b", "class", "../up"])
    def test_names_that_python_cannot_import(self, tmp_path, name):
        assert "a name" in gluon("new", name, "--to", tmp_path, code=2).stderr
        assert not list(tmp_path.iterdir())


class TestDoctor:
    def findings(self, code=0):
        document = json.loads(gluon("doctor", "--json", code=code).stdout)
        assert document["exit"] == code
        return {one["subject"]: one for one in document["findings"]}

    def test_a_good_installation(self):
        findings = self.findings()
        assert findings["triton"]["state"] == findings["plugin sim"]["state"] == "ok"
        assert "machine code" in findings["compiler of nvidia"]["text"]
        assert findings["simulator"]["text"] == "ran a kernel"
        assert "all checks passed" in gluon("doctor").stdout

    def test_torch_and_triton_that_do_not_fit(self, monkeypatch):
        own = doctor._requirements
        pin = ['triton==3.1.0; platform_system == "Linux"']
        monkeypatch.setattr(doctor, "_requirements", lambda n: pin if n == "torch" else own(n))
        finding = self.findings(code=3)["torch"]
        assert finding["state"] == "failed" and finding["remedy"] == "pip install triton==3.1.0"

    def test_a_cache_that_cannot_be_written(self, monkeypatch, tmp_path):
        (tmp_path / "file").write_text("no folder")
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
        monkeypatch.setattr(doctor, "_trials", tuple)
        finding = self.findings(code=3)["cache"]
        assert "cannot be written" in finding["text"] and "TRITON_CACHE_DIR" in finding["remedy"]

    def test_plugins_that_are_missing_or_broken(self, monkeypatch):
        from gluon_core.registry.load import registry

        monkeypatch.setattr(doctor, "absent", lambda: {"gluon-x": "./backends/x"})
        monkeypatch.setattr(doctor, "_trials", tuple)
        finding = self.findings()["packages"]  # others are there
        assert (finding["state"], finding["remedy"]) == ("note", "pip install ./backends/x")
        known = registry()
        without = {n: b for n, b in known.backends.items() if not b.simulates}
        monkeypatch.setattr(known, "backends", without)
        finding = self.findings(code=3)["packages"]
        assert finding["state"] == "failed" and "there is no simulator" in finding["text"]

    def test_a_driver_that_does_not_answer(self, monkeypatch):
        from gluon_core.registry.load import registry

        backend = registry().backend("nvidia")
        monkeypatch.setattr(type(backend.device), "problem", lambda self: "the driver is too old")
        monkeypatch.setattr(doctor, "_trials", tuple)
        finding = self.findings(code=3)["GPU of nvidia"]
        assert "too old" in finding["text"] and "sim:" in finding["remedy"]

    def test_a_compiler_that_fails(self, monkeypatch):
        from gluon_core.errors import StageError
        from gluon_report import trial

        def fails(architecture):
            raise StageError("ptxas is not there")

        monkeypatch.setattr(trial, "source", fails)
        finding = self.findings(code=3)["compiler of nvidia"]
        assert "ptxas is not there" in finding["text"] and "pip install" in finding["remedy"]


def test_completion_knows_the_commands():
    environment = {"_GLUON_COMPLETE": "complete_bash", "COMP_WORDS": "gluon do", "COMP_CWORD": "1"}
    result = CliRunner().invoke(app, [], env=environment, prog_name="gluon")
    assert result.stdout.split() == ["doctor"]


class TestCompileWithoutASignature:
    def test_the_types_are_those_of_the_launches(self, file):
        shown = gluon("compile", f"{file}:scale", "-t", "sm_90").stdout
        assert "*fp32:16, *fp32:16, i32" in shown and "*fp16:16, *fp32:16, i32" in shown
        assert "scaled" not in shown.replace("scaled.py", "")  # the file's output goes elsewhere

    def test_a_text_is_that_of_the_first(self, file):
        done = gluon("compile", f"{file}:scale", "-t", "sm_90", "--emit", "ttgir")
        assert "tt.func public @scale" in done.stdout
        assert "launched with 2 signatures" in done.stderr

    def test_explain_does_so_too(self, file):
        printed = json.loads(gluon("explain", f"{file}:scale", "-t", "sm_90", "--json").stdout)
        assert printed["kernel"] == "scale" and printed["lines"]

    def test_launches_before_an_error_count(self, file):
        file.write_text(ASKS.replace('print("scaled")', "raise KeyError(1)"))
        done = gluon("compile", f"{file}:scale", "-t", "sm_90", "--emit", "ttgir")
        assert "tt.func public @scale" in done.stdout and "ended with KeyError" in done.stderr

    def test_a_file_that_launches_nothing_names_the_remedy(self, tmp_path):
        file = tmp_path / "quiet.py"
        file.write_text(ASKS.split("x = np.ones")[0])
        done = gluon("compile", f"{file}:scale", "-t", "sm_90", code=2)
        assert "--compile-for" in done.stderr and "x, out, n" in done.stderr


def test_one_run_serves_several_targets(file):
    done = gluon("run", file, "-t", "sim:sm_90", "--compile-for", "sm_90,sm_80", "--json")
    rows = json.loads(done.stdout)["kernels"]
    assert {row["target"] for row in rows} == {"nvidia:sm_90", "nvidia:sm_80"}
    assert done.stderr.count("scaled") == 1


def test_a_failed_run_has_a_row_that_says_so(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(ASKS.split("for _ in")[0] + "scale[(2,)](x, out, 1000, 500)\n")
    shown = gluon("run", file, "--compile-for", "sm_90", code=1).stdout
    assert "the run of the file" in shown and "()" not in shown


def test_descriptors_are_short_in_headings():
    from gluon_cli.compile_for import _short

    tile = "tensordesc<fp16[64, 64],NVMMASharedLayout(128, 16, 2)>"
    assert _short(f"{tile}, *fp16, ({tile}, i32)") == (
        "tensordesc<fp16[64, 64]>, *fp16, (tensordesc<fp16[64, 64]>, i32)"
    )


def test_a_kernel_that_is_too_large_is_reported(tmp_path):
    file = tmp_path / "large.py"
    file.write_text(
        """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def large(x):
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    gl.allocate_shared_memory(gl.float32, [1 << 20], plain)
    gl.store(x, 1.0)

large[(1,)](np.zeros(1, np.float32))
"""
    )
    gluon("run", file, "-t", "emu:gfx942", code=3)
    printed = json.loads(process("run", str(file), "--targets", "sim:sm_90", "--json").stdout)
    assert printed["exit"] == 3 and printed["targets"][0]["outcome"] == "too large"


def test_output_is_o_and_sass_warns_of_nothing(file, tmp_path):
    out = tmp_path / "scale.sass"
    done = process("compile", f"{file}:scale", "-t", "sm_90", "-e", "sass", "-o", str(out))
    assert "LDG" in out.read_text() and "nvdisasm" not in done.stderr
