"""`gluon run --check`: every check, many schedules, and the GPU where there is one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gluon_cli import check
from gluon_cli.app import app
from gluon_core.registry.load import registry

pytestmark = [pytest.mark.once, pytest.mark.sampled(3)]

EXAMPLES = Path(__file__).parents[2] / "examples"
RACE = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))

@gluon.jit
def overlaps(out):
    gl.store(out + gl.program_id(0) * 64 + gl.arange(0, 128, layout=L1), 1)

if __name__ == "__main__":
    overlaps[(2,)](np.zeros(256, np.int32))
    print("done")
"""
ASKS = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))

@gluon.jit
def asks(out):
    value = 1.0 + ({error} if gl.target.has("nvidia.wgmma") else 0.0)
    gl.store(out + gl.arange(0, 128, layout=L1), gl.full([128], value, gl.float32, L1))

def run():
    out = np.zeros(128, np.float32)
    asks[(1,)](out)
    assert out[0] {wanted}

EXAMPLES = [Example("asks", asks, lambda new, large: {{"out": new.empty(128)}}, lambda *_: (1,),
                    lambda warp_size: {{}}, lambda args: args["out"], "out", tolerance=1e-6)]
{examples}
if __name__ == "__main__":
    run()
"""


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_80")


@pytest.fixture
def device(monkeypatch):
    """A device that is not there: another simulated architecture stands in for it."""
    monkeypatch.setattr(check, "device_target", lambda: registry().target("sim:sm_90"))


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setattr(check, "device_target", lambda: None)


def gluon(*arguments, code=0):
    result = CliRunner().invoke(app, ["run", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def test_a_right_file(alone):
    done = gluon(EXAMPLES / "reductions" / "softmax.py", "--check", "--target", "hopper")
    assert "no mistake under 10 schedules on sim:sm_90, with every check on" in done.stdout
    assert "there is none on this machine" in done.stdout
    done = gluon(EXAMPLES / "reductions" / "softmax.py", "--check", "--schedules", "3", "--json")
    document = json.loads(done.stdout)
    assert document["exit"] == 0 and document["schedules"] == 3 and document["device"] is None


def test_every_check_is_on(tmp_path, monkeypatch, alone):
    file = tmp_path / "race.py"
    file.write_text(RACE)
    monkeypatch.setenv("GLUON_SIM_CHECKS", "0")
    assert gluon(file).stdout == "done\n"
    done = gluon(file, "--check", code=1)
    assert "RaceError" in done.stderr and "run 1 of 10 failed" in done.stderr
    assert "no mistake" not in done.stdout


@pytest.mark.parametrize("error, allowed", [(0.0, True), (1e-7, True), (1e-3, False)])
def test_examples_are_compared_with_the_device(tmp_path, device, error, allowed):
    file = tmp_path / "asks.py"
    file.write_text(ASKS.format(error=error, wanted="> 0", examples=""))
    done = gluon(file, "--check", "-t", "sim:sm_80", code=0 if allowed else 1)
    assert "no mistake under 10 schedules on sim:sm_80" in done.stdout
    message = (
        "asks: as on the simulator on sim:sm_90" if allowed else "asks: not as on the simulator"
    )
    assert message in done.stdout
    document = json.loads(gluon(file, "--check", "--json", code=0 if allowed else 1).stdout)
    assert document["device"] == "sim:sm_90" and document["failed"] is not allowed


@pytest.mark.parametrize("wanted, right", [("> 0", True), ("< 2", False)])
def test_a_file_without_examples_runs_on_the_device(tmp_path, device, wanted, right):
    file = tmp_path / "asks.py"
    file.write_text(ASKS.format(error=1.0, wanted=wanted, examples="EXAMPLES = []"))
    done = gluon(file, "--check", "-t", "sim:sm_80", code=0 if right else 1)
    message = "right on sim:sm_90" if right else "wrong on sim:sm_90: AssertionError"
    assert message in done.stdout


def test_a_target_is_simulated():
    assert str(check.simulated_twin("gfx942")) == "sim:gfx942"
    assert str(check.simulated_twin("sim:sm_80")) == "sim:sm_80"
    assert check.simulated_twin(None).simulated


def test_a_target_that_can_run_none_of_it_is_no_success():
    """Nothing was checked, so nothing is said to be without mistake."""
    file = EXAMPLES / "amd" / "mfma_gemm.py"
    result = CliRunner().invoke(app, ["run", str(file), "--target", "sim:sm_90", "--check"])
    assert result.exit_code == 3
    assert (
        "has no amd.mfma" in str(result.exception) + result.output
        and "no mistake" not in result.stdout
    )
    assert "failed; repeat" not in result.stderr


def test_an_example_without_its_device_is_unavailable():
    from gluon_report.example import device_target

    if device_target() is not None:
        pytest.skip("there is a device")
    file = EXAMPLES / "basics" / "copy_2d.py"
    result = CliRunner().invoke(app, ["run", str(file), "--target", "sm_90"])
    assert result.exit_code == 3 and "Try sim:sm_90" in result.stderr


class TestEvidence:
    """The output and the exit code of `--check` describe the launches."""

    def file(self, tmp_path, *calls):
        path = tmp_path / "calls.py"
        path.write_text(CALLS + "".join(f"{call}\n" for call in calls))
        return path

    def line(self, path, call):
        return f"{path}:{path.read_text().splitlines().index(call) + 1}"

    def test_no_launch_is_no_success(self, tmp_path, alone):
        file = self.file(tmp_path)
        done = gluon(file, "--check", "-t", "sim:sm_90", code=3)
        assert "nothing was checked: no kernel was launched" in done.stdout
        assert "no mistake" not in done.stdout
        assert gluon(file, "--schedules", "2", code=3).stdout == ""
        document = json.loads(gluon(file, "--check", "--json", code=3).stdout)
        assert document["exit"] == 3 and document["launches"] == []

    def test_launched_kernels_are_listed(self, tmp_path, alone):
        call = "fine[(2,)](x)"
        file = self.file(tmp_path, call)
        done = gluon(file, "--check", "--schedules", "4", "-t", "sim:sm_90")
        assert f"fine on sim:sm_90: 4 launches at {self.line(file, call)}" in done.stdout
        document = json.loads(gluon(file, "--check", "--schedules", "4", "--json").stdout)
        (row,) = document["launches"]
        assert (row["kernel"], row["target"], row["count"]) == ("fine", "sim:sm_90", 4)

    def test_launches_that_name_another_target(self, tmp_path, alone):
        call = 'fine[(2,)](x, target="sim:sm_90")'
        file = self.file(tmp_path, call)
        done = gluon(file, "--check", "-t", "sim:gfx942", code=3)
        assert "nothing was checked on sim:gfx942" in done.stdout
        assert f"leave it out at {self.line(file, call)}" in done.stdout
        done = gluon(file, "-t", "sim:gfx942", code=3)
        assert "nothing ran on sim:gfx942" in done.stderr
        # Where nobody asks for a target, any is as good.
        assert "no mistake under 10 schedules on sim:sm_90" in gluon(file, "--check").stdout

    def test_some_of_them_are_reported(self, tmp_path, alone):
        calls = ("fine[(2,)](x)", 'fine[(2,)](x, target="sim:sm_90")')
        file = self.file(tmp_path, *calls)
        done = gluon(file, "-t", "sim:sm_80")
        assert f"not on sim:sm_80: fine on sim:sm_90: 1 launch at {self.line(file, calls[1])}" in (
            done.stderr
        )

    @pytest.mark.parametrize(
        "off", ["overlaps[(2,)](x, races=False)", "with using(races=False): overlaps[(2,)](x)"]
    )
    def test_checks_that_the_file_switches_off_are_on(self, tmp_path, alone, off):
        file = self.file(tmp_path, off)
        assert gluon(file, "-t", "sim:sm_80").stdout == ""
        assert "RaceError" in gluon(file, "-t", "sim:sm_80", "--check", code=1).stderr
        call = off.replace("overlaps", "fine")
        file = self.file(tmp_path, call)
        message = f"races: on again, which the file switches off at {self.line(file, call)}"
        assert message in gluon(file, "-t", "sim:sm_80", "--check").stdout

    def test_other_threads_are_checked_as_well(self, tmp_path, alone):
        call = "threading.Thread(target=lambda: fine[(2,)](x, races=False)).start()"
        file = self.file(tmp_path, "import threading", call)
        output = gluon(file, "-t", "sim:sm_80", "--check").stdout
        assert "races: on again" in output and "fine on sim:sm_80: 10 launches" in output

    def test_a_report_that_the_file_catches_is_none_the_less_one(self, tmp_path, alone):
        file = self.file(tmp_path, "try:", "    overlaps[(2,)](x)", "except Exception: pass")
        done = gluon(file, "--check", "-t", "sim:sm_80", code=1)
        assert "the file went on" in done.stdout and "RaceError" in done.stdout
        assert "no mistake" not in done.stdout
        document = json.loads(gluon(file, "--check", "--json", code=1).stdout)
        assert document["exit"] == 1 and {c["kind"] for c in document["caught"]} == {"report"}

    def test_a_refusal_of_a_target_is_no_report(self, tmp_path, alone):
        calls = ("try:", "    cannot[(1,)](x)", "except Exception: pass", "fine[(2,)](x)")
        done = gluon(self.file(tmp_path, *calls), "--check", "-t", "sim:sm_80")
        assert "no mistake" in done.stdout and "refused, and the file went on" in done.stdout


CALLS = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim.settings import using

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))

@gluon.jit
def fine(out):
    gl.store(out + gl.program_id(0) * 128 + gl.arange(0, 128, layout=L1), 1)

@gluon.jit
def overlaps(out):
    gl.store(out + gl.program_id(0) * 64 + gl.arange(0, 128, layout=L1), 1)

@gluon.jit
def cannot(out):
    gl.store(out, gl.arange(0, 3, layout=L1))

x = np.zeros(256, np.int32)
"""
