"""`gluon run --timeline`, GLUON_TIMELINE, `gluon timeline`, and scopes in the simulator's trace."""

import json
import os
import re

import pytest

from tests import warm

pytestmark = pytest.mark.once

FILE = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def add_one(x, n, layout: gl.constexpr):
    i = gl.arange(0, 128, layout=layout)
    for _ in range(n):
        with gl.scope("load <x>"):
            value = gl.load(x + i)
        gl.barrier()
        gl.store(x + i, value + 1)

x = np.zeros(128, np.float32)
add_one[(1,)](x, 3, gl.BlockedLayout([1], [32], [4], [0]))
assert (x == 3).all()
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(FILE)
    return path


def run(*command, **environment):
    done = warm.run(command, env={**os.environ, **environment})
    return done.returncode, done.stdout + done.stderr


def launches(page):
    data = re.search(
        r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.S
    )
    return json.loads(data[1])


def test_a_page_of_a_run_below_it_the_trace_of_the_simulator(file, tmp_path):
    recorded, trace, page = (tmp_path / name for name in ("r.json", "t.json", "p.html"))
    gluon = ("-m", "gluon_cli")
    code, output = run(
        *gluon, "run", file, "--target", "emu:sm_90", "--timeline", recorded, "--timeline-auto"
    )
    assert code == 0 and "ui.perfetto.dev" in output
    code, output = run(*gluon, "run", file, "--target", "sim:sm_90", "--trace", trace)
    assert code == 0, output
    scopes = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("cat") == "scope"]
    assert [(e["name"], e["args"]["line"]) for e in scopes] == [("load <x>", 10)] * 3
    assert all(e["dur"] > 0 for e in scopes)
    code, output = run(*gluon, "timeline", recorded, "--below", trace, "--html", page)
    assert code == 0, output
    data = launches(page)
    (launch,) = data["launches"]
    assert ["load <x>", 10, str(file), 'with gl.scope("load <x>"):'] in launch["scopes"]
    assert {cause for cause, _ in launch["limits"]} == {"barrier", "issue and everything else"}
    assert launch["roles"][0][0] == "warps 0 to 3"
    assert data["below"][0]["lanes"]


def test_the_simulator_predicts_less_than_was_measured(file, tmp_path):
    measured, predicted, page, wrong = (
        tmp_path / name for name in ("m.json", "p.json", "p.html", "w.json")
    )
    gluon = ("-m", "gluon_cli")
    code, output = run(*gluon, "run", file, "--target", "emu:sm_90", "--timeline", measured)
    assert code == 0, output
    code, output = run(*gluon, "run", file, "--target", "sim:sm_90", "--timeline", predicted)
    assert code == 0 and "us predicted for NVIDIA H200" in output and "memory" in output
    code, output = run(*gluon, "timeline", measured, "--predicted", predicted, "--html", page)
    assert code == 0, output
    (launch,) = launches(page)["launches"]
    model = launch["predicted"]
    assert launch["blocks"] and model["nanoseconds"] > 1000 and model["block"] == 0
    names = [name for name, _ in model["lanes"]]
    assert names[0] == "warps 0 to 3: the kernel" and "loads" in names
    spans = model["lanes"][0][1]
    assert [s[0] for s in spans if s[3] == "scope"] == ["load <x>"] * 3
    assert {"wait", "compute", "issue"} <= {s[3] for s in spans}
    # A wait is joined to the load that it waited for.
    assert any(
        names[a] == "loads" and names[b].startswith("warps") for a, _, b, _ in model["flows"]
    )
    assert model["path"] and sum(part for *_, part in model["path"]) == pytest.approx(1)
    wrong.write_text(json.dumps({"gluon": [{**launch, "kernel": "other"}]}))
    code, output = run(*gluon, "timeline", measured, "--predicted", wrong, "--html", page)
    assert code == 2 and "predicts other kernels" in output and "add_one" in output


def test_a_process_writes_a_page_at_its_end(file, tmp_path):
    code, output = run(
        file, GLUON_TARGET="emu:sm_90", GLUON_TIMELINE="1", GLUON_TIMELINE_DIR=str(tmp_path)
    )
    assert code == 0, output
    (page,) = tmp_path.glob("timeline-*.html")
    assert [one["kernel"] for one in launches(page)["launches"]] == ["add_one"]


def test_auto_writes_a_page_with_automatic_scopes(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output = run("-m", "gluon_cli", "run", file, "-t", "emu:sm_90", "--timeline=auto")
    assert code == 0, output
    (launch,) = launches(tmp_path / "timeline.html")["launches"]
    assert {name for name, *_ in launch["scopes"]} == {"load <x>", "barrier"}


@pytest.mark.parametrize(
    "options, words",
    [
        (["--timeline", "t.txt", "-t", "emu:sm_90"], "FILE.html, FILE.json or auto"),
        (["--timeline", "t.html", "-t", "sim:gfx1201"], "no model of time is known"),
        (["--timeline-auto"], "belongs to --timeline"),
        (["--timeline", "t.html", "--targets", "emu:sm_90"], "takes one target"),
        (["--timeline", "no/such/t.html", "-t", "emu:sm_90"], "folder does not exist"),
    ],
)
def test_wrong_options(file, options, words):
    from typer.testing import CliRunner

    from gluon_cli.app import app

    result = CliRunner().invoke(app, ["run", str(file), *options])
    assert result.exit_code and words in " ".join(result.output.split()), result.output
