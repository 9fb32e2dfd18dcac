"""Every kernel of the project on the simulator and on the GPU: the same bits where arithmetic is exact.

    pytest tests/kernels/test_sim_vs_gpu.py -s

Cases run in several processes, for each has to be compiled; a table of the differences, and by how
much, comes at the end. Without a GPU another simulated architecture stands in for it, on a few.
"""

from __future__ import annotations

import collections
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gluon_core.registry.load import registry
from gluon_report.example import device_target
from tests import warm
from tests.frontend import snippets
from tests.kernels import cases as kernel_cases
from tests.kernels import differential, explained
from tests.kernels.differential import Outcome, names, outcome_of

pytestmark = [pytest.mark.once, pytest.mark.timeout(900)]

DEVICE = device_target()
ROOT = Path(__file__).parents[2]
SILENT = 60  # seconds that a case may take
BUSY = 40  # cases of one process


def run_all(cases: list[str], one: str, other: str, processes: int) -> list[Outcome]:
    """The outcome of each case; one that ends or blocks its process is "failed"."""
    chunks = [cases[i : i + BUSY] for i in range(0, len(cases), BUSY)]
    with ThreadPoolExecutor(processes) as pool:
        return list(itertools.chain(*pool.map(lambda chunk: run_some(chunk, one, other), chunks)))


def run_some(cases: list[str], one: str, other: str) -> list[Outcome]:
    """Cases in a process of their own, and in another after one that did not survive."""
    outcomes: list[Outcome] = []
    while len(outcomes) < len(cases):
        left = cases[len(outcomes) :]
        run = subprocess.Popen(
            [sys.executable, "-m", "tests.kernels.differential", one, other, *left],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        before = len(outcomes)
        while True:
            patience = threading.Timer(SILENT, run.kill)
            patience.start()
            line = run.stdout.readline()
            patience.cancel()
            if not line:
                break
            if line.startswith("{"):
                outcomes.append(Outcome(**json.loads(line)))
        code = run.wait()
        run.stdout.close()
        if code and len(outcomes) < len(cases):
            name = cases[len(outcomes)]
            outcomes.append(Outcome(name, "failed", f"its process ended with {code}"))
        elif len(outcomes) == before:
            raise RuntimeError(f"no outcome of {left[0]}")
    return outcomes


def table(outcomes: list[Outcome]) -> str:
    counts = collections.Counter(o.kind for o in outcomes)
    lines = [", ".join(f"{count} {kind}" for kind, count in counts.most_common())]
    order = ("failed", "differs", "near", "reported", "unable")
    for kind in order:
        lines += [f"{o.kind:9} {o.name:32} {o.text}{why(o)}" for o in outcomes if o.kind == kind]
    return "\n".join(lines)


def why(outcome: Outcome) -> str:
    """Return the explanation of an outcome, if a table has one."""
    known = explained.known(outcome.name) if outcome.kind == "differs" else None
    if outcome.kind == "reported":
        known = explained.reported(outcome.name)
    return f" [{known}]" if known else ""


def unexplained(outcomes: list[Outcome]) -> list[Outcome]:
    """Return the failures, and cases that differ, are reported or cannot run for no known reason."""
    return [o for o in outcomes if o.kind not in ("same", "near", "refused") and not why(o)]


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE is None, reason="no GPU")
def test_the_gpu_agrees_with_the_simulator():
    simulated = f"sim:{DEVICE.architecture.name}"
    processes = max(1, min(12, (os.cpu_count() or 2) - 1))
    targets = registry().target(simulated), DEVICE
    outcomes = run_all(names(*targets), simulated, str(DEVICE), processes)
    print("\n" + table(outcomes))
    wrong = unexplained(outcomes)
    assert not wrong, table(wrong)
    assert sum(o.kind in ("same", "near") for o in outcomes) > 0.8 * len(outcomes)
    for kind in ("example", "conformance", "product"):
        mine = [o for o in outcomes if o.name.startswith(kind)]
        assert mine and all(o.kind in ("same", "near") for o in mine), table(mine)


# ---- the comparison itself, without a GPU -------------------------------------------------------

TARGETS = ("sim:sm_90", "sim:sm_89")


@pytest.fixture
def targets():
    return [registry().target(name) for name in TARGETS]


@pytest.mark.parametrize(
    "name",
    [
        "example:matmul",
        "conformance:softmax_like",
        "product:bf16",
        "product:i8",
        "snippet:arange-0",
    ],
)
def test_a_case_agrees_with_itself(name, targets):
    assert outcome_of(name, *targets) == Outcome(name, "same")


def test_results_of_snippets_are_kept(targets):
    case = differential.case_of("snippet:arange-0", targets[0])
    seen = {name: value for name, value in case.arguments.items()}
    case.launch(seen, targets[0])
    np.testing.assert_array_equal(seen["ints"][:128], np.arange(128))
    assert not seen["ints"][128:].any() and not seen["single"].any()


def test_a_difference_is_reported(targets, monkeypatch):
    from gluon_report import differential as extra

    compared = extra.compare
    monkeypatch.setattr(
        extra, "compare", lambda name, a, b: compared(name, a, b + np.asarray(1).astype(b.dtype))
    )
    outcome = outcome_of("snippet:arange-0", *targets)
    assert outcome.kind == "differs" and "elements differ" in outcome.text
    assert "differs   snippet:arange-0" in table([outcome])


def test_explained_names_exist():
    known = {f"snippet:{name}" for name in snippets.CASES}
    known |= {f"example:{e.name}" for e in kernel_cases.load_cases().values()}
    for table_ in (explained.LEFT_OUT, explained.REPORTED, explained.KNOWN, explained.TOLERANCE):
        for pattern in table_:
            assert any(re.fullmatch(pattern, name) for name in known), pattern
    for pattern in explained.INPUTS:
        assert any(re.fullmatch(f"snippet:{pattern}", name) for name in known), pattern


def test_an_outcome_without_a_reason_is_wrong(targets):
    good = [outcome_of(name, *targets) for name in ("snippet:load-22", "snippet:full-5")]
    assert [o.kind for o in good] == ["reported", "refused"] and not unexplained(good)
    bad = [Outcome("snippet:load-1", kind) for kind in ("reported", "differs", "failed", "unable")]
    assert unexplained(good + bad) == bad
    assert "[three elements before the array]" in table(good)


def test_cases_in_other_processes():
    some = ["snippet:arange-0", "snippet:load-22", "dies", "snippet:no such"]
    same, reported, dead, unable = run_all(some, *TARGETS, 1)
    assert same.kind == "same" and unable.kind == "unable"
    assert reported.kind == "reported" and "OutOfBoundsError" in reported.text
    assert dead.kind == "failed" and "ended with 7" in dead.text


def test_nearly_all_cases_run(targets):
    outcomes = [outcome_of(name, *targets) for name in names(*targets)[::40]]
    assert sum(o.kind == "same" for o in outcomes) >= 0.85 * len(outcomes), table(outcomes)
    assert not [o for o in outcomes if o.kind in ("failed", "differs", "near")], table(outcomes)


TWICE = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim.settings import using

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))

@gluon.jit
def asks(out):
    value = 1 + ({error} if gl.target.has("nvidia.wgmma") else 0)
    gl.store(out + gl.arange(0, 128, layout=L1), value)

def test_asks(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_80")
    out = np.zeros(128, np.int32)
    asks[(1,)](out)
    asks[(1,)](out)
    assert (out == 1).all()
    with using(bounds=False):
        asks[(1,)](np.zeros(64, np.int32))  # nothing for a GPU
    asks[(1,)](np.zeros(64, np.int32), bounds=False)
"""


@pytest.mark.skipif(DEVICE is not None, reason="there is a GPU")
@pytest.mark.parametrize("more, code", [(["--collect-only"], 0), ([], 4)])
def test_without_a_gpu_tests_are_collected_alone(more, code):
    done = warm.run(
        ["-m", "pytest", "-q", "tests/backends/sim/hardware/test_clc.py", "-p",
         "tests.kernels.twice", "-p", "no:cacheprovider", *more],
        cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert ("tests collected" in done.stdout) == (code == 0)
    assert ("there is no GPU to repeat launches on" in done.stderr) == (code != 0)


@pytest.mark.parametrize("error", [pytest.param(0, marks=pytest.mark.campaign), 1])
def test_launches_of_other_tests_are_repeated(error, tmp_path):
    file = tmp_path / "test_twice.py"
    file.write_text(TWICE.format(error=error))
    done = warm.run(
        ["-m", "pytest", "-q", "-p", "tests.kernels.twice", "--gluon-twice", "sim:sm_90",
         "-p", "no:cacheprovider", file],
        cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == error, done.stdout + done.stderr
    assert "on the simulator and on sim:sm_90" in done.stdout
    if error:
        assert "2 differs" in done.stdout and "differs   test_asks: asks" in done.stdout
    else:
        assert "2 same" in done.stdout
