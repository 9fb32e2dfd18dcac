"""Timelines: one microsecond per op, waits that end after their events, pairs of events."""

from __future__ import annotations

import json
import sys

import numpy as np
from typer.testing import CliRunner

import gluon_core as gluon
from gluon_cli.app import app
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_core.language.nvidia.ampere import mbarrier
from gluon_sim.tools.trace import Tracer
from gluon_sim.tools.watcher import watching

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


def traced(kernel, grid, *args, **options):
    tracer = Tracer()
    with watching(tracer):
        kernel[grid](*args, **options)
    document = tracer.document()
    json.dumps(document)
    return document["traceEvents"]


def spans(events, category, word=""):
    return [e for e in events if e.get("cat") == category and word in e["name"] and "dur" in e]


@gluon.jit
def straight(a):
    i = gl.arange(0, 128, layout=L1)
    gl.store(a + i, i)


def test_time_is_the_count_of_ops():
    events = traced(straight, (1,), np.zeros(128, np.int32))
    first, second = spans(events, "op")
    assert (first["name"], first["ts"], first["dur"]) == (
        "i = gl.arange(0, 128, layout=L1)", 0, 1,
    )  # fmt: skip
    # splat of the pointer, addptr, store
    assert (second["ts"], second["dur"]) == (1, 3)
    assert second["args"]["ops"] == ["splat", "addptr", "store"]
    assert second["args"]["line"] == first["args"]["line"] + 1


@gluon.jit
def producer(a, ready, s):
    i = gl.arange(0, 128, layout=L1)
    x = gl.load(a + i)
    s.store(x)
    mbarrier.arrive(ready)


@gluon.jit
def consumer(out, ready, s):
    mbarrier.wait(ready, 0)
    gl.store(out + gl.arange(0, 128, layout=L1), s.load(L1))


@gluon.jit
def parts(a, out):
    s = gl.allocate_shared_memory(gl.int32, [128], PLAIN)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, 1)
    gl.warp_specialize([(consumer, (out, ready, s)), (producer, (a, ready, s))], [4], [64])
    mbarrier.invalidate(ready)


def test_a_wait_ends_after_the_arrival_that_ends_it():
    events = traced(parts, (1,), np.arange(128, dtype=np.int32), np.zeros(128, np.int32))
    names = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    assert sorted(names.values()) == ["partition 1 of the kernel", "the kernel"]
    (wait,) = spans(events, "wait", "mbarrier.wait")
    assert names[wait["tid"]] == "the kernel" and "phase 0" in wait["args"]["for"]
    (arrival,) = (e for e in events if e["name"] == "barrier arrive")
    assert names[arrival["tid"]] == "partition 1 of the kernel"
    assert wait["ts"] + wait["dur"] >= arrival["ts"]
    (load,) = spans(events, "op", "s.load(L1)")
    assert load["ts"] >= wait["ts"] + wait["dur"]
    # An arrow from the arrival to where the wait ends.
    start, end = (next(e for e in events if e["ph"] == ph) for ph in "sf")
    assert start["id"] == end["id"] and (start["tid"], end["tid"]) == (
        arrival["tid"], wait["tid"],
    )  # fmt: skip


@gluon.jit
def copied(a, out):
    i = gl.arange(0, 128, layout=L1)
    s = gl.allocate_shared_memory(gl.float32, [128], PLAIN)
    cp.async_copy_global_to_shared(s, a + i)
    cp.commit_group()
    x = i * 2
    cp.wait_group(0)
    gl.store(out + i, s.load(L1) + x)


def test_a_copy_lasts_from_its_issue_to_its_wait():
    events = traced(copied, (1,), np.zeros(128, np.float32), np.zeros(128, np.float32))
    (begin,) = (e for e in events if e["ph"] == "b")
    (end,) = (e for e in events if e["ph"] == "e")
    assert begin["id"] == end["id"] and begin["args"]["queue"] == "cp.async"
    (between,) = spans(events, "op", "x = i * 2")
    (wait,) = spans(events, "op", "wait_group")
    assert begin["ts"] < between["ts"] < end["ts"] <= wait["ts"] + wait["dur"]


def test_programs_are_processes_and_launches_follow_each_other():
    tracer = Tracer()
    with watching(tracer):
        straight[(1,)](np.zeros(128, np.int32))
        straight[(1,)](np.zeros(128, np.int32))
    events = tracer.document()["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        "straight: program (0, 0, 0)"
    }
    assert [e["ts"] for e in spans(events, "op")] == [0, 1, 4, 5]
    assert len({e["pid"] for e in spans(events, "op")}) == 2


def test_long_traces_are_cut_and_say_so():
    tracer = Tracer(limit=3)
    with watching(tracer):
        straight[(1,)](np.zeros(128, np.int32))
        straight[(1,)](np.zeros(128, np.int32))
    assert tracer.document()["otherData"]["dropped_events"] > 0
    assert len(spans(tracer.document()["traceEvents"], "op")) <= 3


def test_gluon_run_trace(tmp_path, monkeypatch):
    file, out = tmp_path / "f.py", tmp_path / "trace.json"
    file.write_text(
        "import numpy as np\nimport gluon_core as gluon\nfrom gluon_core import language as gl\n"
        "@gluon.jit\ndef one(a):\n    gl.store(a, 1)\n"
        "one[(2,)](np.zeros(1, np.int32))\n"
    )
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("GLUON_SIM_RACES", "0")
    result = CliRunner().invoke(app, ["run", str(file), "-t", "sim:sm_90", "--trace", str(out)])
    assert result.exit_code == 0, (result.stdout, result.stderr)
    events = json.loads(out.read_text())["traceEvents"]
    assert any(e["name"] == "gl.store(a, 1)" and e["args"]["line"] == 6 for e in events)
    assert "ui.perfetto.dev" in result.stderr
