"""`gluon judge --on-gpu`: here on a simulated device, whose times mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gluon_judge import Judge
from gluon_judge.confine import PLANS
from gluon_judge.errors import JudgeError
from gluon_judge.gpu import ROUNDS, confidence, late, orders
from gluon_judge.messages import Sample
from tests.judge.candidates import CORPUS

pytestmark = [pytest.mark.once, pytest.mark.sampled(3)]


@pytest.fixture(scope="module")
def script_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("script")


@pytest.fixture(scope="module")
def judge(script_folder):
    """Return a judge that a script in a folder of its own calls."""
    with pytest.MonkeyPatch.context() as patch, Judge("hopper") as one:
        patch.syspath_prepend(str(script_folder))
        one.gpu_target = str(one.target)
        yield one


@pytest.fixture
def judged(judge):
    def judged(path, **options):
        folder = CORPUS / "masked"
        return judge.judge(
            path,
            folder / "reference.py",
            options.pop("problem", folder / "problem.toml"),
            on_gpu=True,
            **{"patience": 8.0, **options},
        )

    return judged


def test_rates_are_ratios_with_an_interval(judged):
    report = judged(CORPUS / "masked" / "honest_rows.py")
    (rates,) = report.measured["rates"]
    low, high = rates["speedup_interval"]
    assert low <= rates["speedup"] <= high and rates["rounds"] == ROUNDS
    assert rates["confidence"] == 0.95 and rates["roofline_seconds"] > 0
    assert "gpu" in [one.name for one in report.evidence]


def test_the_folder_of_the_script_is_no_business_of_the_candidate(judged, script_folder, tmp_path):
    text = (CORPUS / "masked" / "honest_rows.py").read_text()
    path = tmp_path / "candidate.py"
    path.write_text(
        text.replace("\nimport gluon_core", "\nimport colorsys\n\nimport gluon_core", 1)
    )
    assert "colorsys" in path.read_text()
    judged(path, within=0.1)  # the host is there
    (script_folder / "new.py").touch()  # imports list the folder anew
    report = judged(path, within=0.1)
    assert "reads.files" not in [one.code for one in report.findings], report


def test_a_result_that_is_wrong_on_the_gpu_is_rejected(judged):
    report = judged(CORPUS / "masked" / "cheat_ignores_mask.py")
    assert any(one.text.startswith("on the GPU: ") for one in report.findings)


def test_a_hang_on_the_gpu_is_killed(judged, tmp_path):
    text = (CORPUS / "masked" / "honest_torch.py").read_text()
    path = tmp_path / "candidate.py"
    path.write_text(
        text.replace("def run(x, keep):", "def run(x, keep):\n    while True:\n        pass")
    )
    report = judged(path, patience=2.0)
    assert "call.hang" in report.codes


def test_a_wait_that_is_late_names_its_stage(judged, judge, monkeypatch):
    examine = judge.examine

    def late_once(method, *values, **options):
        if method == "agree":
            raise JudgeError("the examiner took too long and was ended")
        return examine(method, *values, **options)

    monkeypatch.setattr(judge, "examine", late_once)
    report = judged(CORPUS / "masked" / "honest_rows.py")
    (gpu,) = [one for one in report.evidence if one.name == "gpu"]
    assert gpu.status == "failed" and gpu.text.startswith("gpu comparison: the examiner took")
    assert report.verdict == "not enough evidence" and report.stages["gpu inputs"] > 0


def test_rates_that_the_time_does_not_allow_are_reported(judged, tmp_path):
    problem = (CORPUS / "masked" / "problem.toml").read_text()
    path = tmp_path / "problem.toml"
    path.write_text(problem + "".join(f"\n[[timed]]\nM = {rows}\nN = 64\n" for rows in (8, 16)))
    report = judged(CORPUS / "masked" / "honest_rows.py", problem=path, within=0.0)
    (gpu,) = [one for one in report.evidence if one.name == "gpu"]
    assert gpu.status == "skipped" and gpu.text.startswith("2 cases, but within the time 1 cases")


def test_the_interval_holds_the_median_of_most_samples():
    assert confidence(range(15)) == (7, 3, 11)
    assert confidence([1.0]) == (1.0, 1.0, 1.0)
    middle, low, high = confidence([3.0, 1.0, 2.0])
    assert (middle, low, high) == (2.0, 1.0, 3.0)


def test_rounds_come_in_random_order():
    rounds = orders(0)
    assert len(rounds) == ROUNDS and all(
        sorted(one) == ["candidate", "reference"] for one in rounds
    )
    assert len({tuple(one) for one in rounds}) == 2 and rounds == orders(0)


def test_work_after_the_clock_is_seen():
    fine = [Sample(1e-3, 1e-5, False)] * 5
    assert late(fine) is None
    assert late([*fine, Sample(1e-3, 1e-3, False)]) is None  # once is an accident
    assert "worked on" in late([Sample(1e-3, 2e-3, False)] * 5)
    assert "changed" in late([*fine, Sample(1e-3, 1e-5, True)])


@pytest.mark.parametrize("order", PLANS, ids=" ".join)
def test_a_driver_that_starts_late_gets_the_layers_that_it_tolerates(order, tmp_path):
    """The layers that come before the device in `order` are those that the driver starts in."""
    script = tmp_path / "script.py"
    script.write_text(CONFINED.format(order=order))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=ENVIRONMENT
    )
    held = json.loads(done.stdout)
    assert held == {name: name in order for name in ("resources", "network", "files")}, done.stderr


CONFINED = """
import json
from gluon_judge.confine import Confinement, confine
calls = []
layers = confine(Confinement(("/usr", "/lib"), ("/tmp",), memory=None), {order}, lambda: calls.append(1))
assert calls == [1]
print(json.dumps({{one.name: one.holds for one in layers}}))
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
