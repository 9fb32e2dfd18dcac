"""Candidates that attack the judge itself: its pipes, its observers, its process, its clock."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from gluon_judge.cases import permuted
from gluon_judge.interpreted import Plain
from gluon_judge.messages import Event, Outcome, Packed
from gluon_judge.operations import Operations, traced
from gluon_judge.problem import Input, Problem, read
from gluon_judge.source import signs
from gluon_judge.wire import Malformed, loads, plain, restored
from tests.judge.candidates import CORPUS

pytestmark = [pytest.mark.once, pytest.mark.sampled(3)]


# -- messages --------------------------------------------------------------------------------------------


class Runs:
    def __reduce__(self):
        return os.system, ("touch judge_was_here",)


def test_an_answer_loads_no_class():
    with pytest.raises(Malformed, match="system"):
        loads(pickle.dumps(("done", Runs())))
    assert loads(pickle.dumps(("done", {"a": [1, (2.0, b"x")]}))) == (
        "done",
        {"a": [1, (2.0, b"x")]},
    )


def test_messages_survive_the_wire():
    outcome = Outcome(
        results=[Packed("float32", (2,), (1,), 0, b"12345678")],
        events=[Event("reads.clock", "x", "f.py", 3)], launches=[("k", "sim:sm_90", "", 2)],
        operations={"mm": 1}, caught=[("k", "e", True)], proofs=[("proved", "k", ("a",))],
        compiled=[("k", {"registers": 3})],
    )  # fmt: skip
    assert restored(loads(pickle.dumps(plain(outcome)))) == outcome


@pytest.mark.parametrize(
    "change",
    [
        {"results": [3]}, {"events": [["\0message", "Event", {}]]}, {"flops": "many"}, {"operations": {"mm": "x"}},
        {"error": {"class": 3}}, {"launches": [("k",)]}, {"unknown": 1},
        {"events": [plain(Event("no.such.code", "x"))]}, {"elements": None},
    ],
)  # fmt: skip
def test_a_malformed_answer_is_refused(change):
    mark, kind, named = plain(Outcome())
    with pytest.raises(Malformed):
        restored([mark, kind, {**named, **change}])
    with pytest.raises(Malformed):
        restored([mark, "Spec", {}])


def test_a_pickle_in_the_pipe_runs_nothing(judged_corpus):
    report = judged_corpus("softmax/cheat_pickle_in_pipe")
    assert report.verdict == "rejected" and report.codes == ["call.crashed"], report
    assert not os.path.exists("/tmp/judge_was_here")


@pytest.fixture
def judged_corpus(gluon_judge):
    def judged(name):
        path = CORPUS / f"{name}.py"
        files = path.parent / "reference.py", path.parent / "problem.toml"
        return gluon_judge(path, *files, target="hopper", patience=8.0)

    return judged


# -- what a candidate prints -----------------------------------------------------------------------------


def test_output_of_the_candidate_is_not_the_report(tmp_path):
    (tmp_path / "candidate.py").write_text(
        "import json, os, sys\n\n\ndef run(x):\n"
        "    text = json.dumps({'verdict': 'accepted', 'exit': 0})\n"
        "    print(text); print(text, file=sys.stderr); os.write(1, text.encode())\n    return x\n"
    )
    (tmp_path / "reference.py").write_text("def run(x):\n    return x * 2.0\n")
    (tmp_path / "problem.toml").write_text('[inputs.x]\nshape = ["N"]\n[[shapes]]\nN = 30\n')
    command = [
        sys.executable,
        "-m",
        "gluon_core",
        "judge",
        "candidate.py",
        "-r",
        "reference.py",
        "-p",
        "problem.toml",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*command, "--target", "hopper", "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["verdict"] == "rejected" and done.returncode == report["exit"] == 1


# -- operations of torch ---------------------------------------------------------------------------------


@torch.library.custom_op("test_judge::product", mutates_args=())
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b)


def excluded(a):
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Python)):
        return a @ a


@pytest.mark.parametrize("function", [lambda a: product(a, a), excluded])
def test_an_operation_that_no_mode_sees_is_recorded(function):
    from collections import Counter

    hidden, operations = Counter(), Operations(0xFF)
    with traced(hidden, operations), operations:
        function(torch.ones(4, 4))
    assert hidden == {"mm": 1} and not operations.names


def test_an_operation_that_changes_an_input_is_seen_even_if_it_is_undone():
    x = torch.ones(8)
    before = {x.untyped_storage().data_ptr(): ("x", x.numpy().tobytes())}
    operations = Operations(0xFF, before)
    with operations:
        x.mul_(2.0)
        x.mul_(0.5)
    assert list(operations.written) == ["x"]
    untouched = Operations(0xFF, before)
    with untouched:
        x.copy_(torch.ones(8))  # the same bytes
    assert not untouched.written


def test_signs_in_code_that_is_put_together():
    codes = {one.code for one in signs("f = getattr(x, '__subclasses__')", "")}
    assert codes == {"reads.harness"}
    assert {one.code for one in signs("import datetime as d\nd.datetime.now()", "")} == {
        "reads.clock"
    }
    assert not signs("import torch\n\n\ndef run(x):\n    return x.t().contiguous()", "")


# -- plain Triton kernels --------------------------------------------------------------------------------


def _launch(*accesses, sizes=(64,)):
    """Return the codes for accesses (program, kind, elements) of floats in one launch."""
    notes = []
    plain_kernel = Plain(lambda code, text: notes.append(code))
    tensors = [torch.zeros(size) for size in sizes]
    plain_kernel.begins(tensors)
    base = tensors[0].data_ptr()
    for program, kind, elements in accesses:
        plain_kernel.enters(program)
        plain_kernel.accesses(base + 4 * np.array(elements), None, 4, kind)
    plain_kernel.ends()
    return notes


def test_programs_without_an_order_race():
    assert _launch((0, "writes", [3]), (1, "reads", [3])) == ["sync.race"]
    assert _launch((0, "reads", [3]), (1, "writes", [3])) == ["sync.race"]
    assert _launch((0, "writes", [3, 4]), (1, "writes", [4, 5])) == ["sync.race"]
    assert _launch((0, "reads", [3]), (1, "reads", [3]), (1, "writes", [7])) == []
    assert _launch((0, "writes", [3]), (0, "reads", [3]), (1, "writes", [4])) == []


def test_atomics_order_programs():
    released = (0, "writes", [3]), (0, "updates", [9]), (1, "updates", [9]), (1, "reads", [3])
    assert _launch(*released) == []
    too_early = (0, "writes", [3]), (0, "updates", [9]), (1, "reads", [3]), (1, "updates", [9])
    assert _launch(*too_early) == ["sync.race"]


def test_an_address_outside_of_all_tensors_is_out_of_bounds():
    assert _launch((0, "reads", [63])) == []
    assert _launch((0, "reads", [60, 64])) == ["memory.bounds"]


# -- inputs ----------------------------------------------------------------------------------------------


def test_new_values_keep_constants_and_meaningful_orders():
    problem = Problem(
        {
            "x": Input(("N",)), "weight": Input(("N",)), "ends": Input(("N",), "int32", "offsets", 0, 9),
            "index": Input(("N",), "int64", "integers", 0, 99),
        },
        constants=("weight",),
    )  # fmt: skip
    values = [torch.arange(50.0), torch.arange(50.0), torch.arange(50), torch.arange(50)]
    changed = permuted(problem, values, 1)
    assert not torch.equal(changed[0], values[0]) and torch.equal(
        changed[0].sort().values, values[0]
    )
    assert torch.equal(changed[1], values[1]) and torch.equal(changed[2], values[2])
    assert not torch.equal(changed[3], values[3])


def test_every_judgement_has_inputs_of_its_own(gluon_judge, tmp_path):
    (tmp_path / "candidate.py").write_text("def run(x):\n    return x + 1.0\n")
    (tmp_path / "reference.py").write_text("def run(x):\n    return x * 2.0\n")
    (tmp_path / "problem.toml").write_text('[inputs.x]\nshape = ["N"]\n[[shapes]]\nN = 30\n')
    files = [tmp_path / name for name in ("candidate.py", "reference.py", "problem.toml")]
    one, other, same, again = (
        gluon_judge(*files, target="hopper", seed=seed) for seed in (None, None, 7, 7)
    )
    cases = [
        [finding.case for finding in report.findings][0] for report in (one, other, same, again)
    ]
    assert cases[0] != cases[1] and cases[2] == cases[3] and "seed 7" in cases[2]


def test_a_constant_must_be_an_input(tmp_path):
    (tmp_path / "problem.toml").write_text('constants = ["w"]\n[inputs.x]\nshape = [3]\n')
    with pytest.raises(Exception, match="is not an input"):
        read(tmp_path / "problem.toml")
