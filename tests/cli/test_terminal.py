"""Output on a terminal: tables on 80 columns, closed streams, interruptions, machines without plugins."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gluon_cli.app import app

pytestmark = [pytest.mark.once, pytest.mark.sampled(3)]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def gluon(*arguments, code=0, columns=80):
    words = [str(a) for a in arguments]
    result = CliRunner().invoke(app, words, env={"COLUMNS": str(columns)})
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def process(*arguments, **more):
    command = [sys.executable, "-m", "gluon_core", *map(str, arguments)]
    return subprocess.run(command, text=True, timeout=100, **{"capture_output": True, **more})


def fits(text, *words):
    """No line is longer than a screen, and none of these names is broken."""
    assert max(map(len, text.splitlines())) <= 80
    for word in words:
        assert re.search(rf"(?<![\w.:]){re.escape(word)}(?![\w.])", text), word


def test_info_fits():
    out = gluon("info").stdout
    document = json.loads(gluon("info", "--json").stdout)
    names = [
        name for arch in document["architectures"] for name in (arch["name"], *arch["aliases"])
    ]
    fits(out, *names, *document["capabilities"])
    out = gluon("info", "hopper").stdout
    fits(out, "nvidia.mbarrier_tx")
    assert "227 KiB (232448 B) per block" in out and "255 per thread" in out


def test_reports_fit_and_have_units():
    out = gluon("compile", EXAMPLES / "reductions" / "softmax.py", "-t", "sm_90").stdout
    fits(out, "nvidia:sm_90")
    for text in (" B per block", "per thread", "warps per multiprocessor"):
        assert text in out


def test_explain_fits(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # a file elsewhere is called by its name
    out = gluon("explain", EXAMPLES / "gemm" / "portable.py", "-t", "sm_90").stdout
    fits(out, "tile_store", "tma_store", "NVMMADistributedLayout")
    assert re.search(r"(?<!/)portable\.py:\d+", out) and str(EXAMPLES) not in out


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("targets", [["nvidia:sm_100"], [f"nvidia:sm_{n}" for n in range(80, 110)]])
def test_the_demo_fits(width, targets):
    from gluon_report import demo
    from gluon_report.demo_table import DemoTable

    package = demo.examples_package()
    names = [*package.SHOWN, *package.MORE]
    columns = [("simulate", ""), *(("compile", t) for t in targets), ("run", "nvidia:sm_90")]
    table = DemoTable(columns, names, width)
    lines = table.header()
    for name in names:
        rows = [demo.Row(name, "sim:gfx1250", "simulate", "passed", seconds=12.3)]
        rows += [demo.Row(name, t, "compile", "passed", registers=255, spills=9) for t in targets]
        rows.append(demo.Row(name, "nvidia:sm_90", "run", "passed", seconds=1.5))
        lines += table.lines(rows)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for word in ("gfx1250 12.3 s", "1.5 s", *(t.partition(":")[2] for t in targets)):
        assert word in text, word
    assert text.count("255+9") == len(names) * len(targets)
    reason = "TypeError: " + "a word " * 60
    failed = table.lines([demo.Row(names[0], targets[0], "compile", "failed", reason)])
    assert max(map(len, failed)) <= width and "FAILED on" in "".join(failed)


def test_help_in_short_and_as_a_module():
    assert gluon("-h").stdout == gluon("--help").stdout
    done = process("info", "hopper")
    assert done.returncode == 0 and "sm_90" in done.stdout


@pytest.mark.parametrize("closed", ["info hopper >&-", "run FILE >&- 2>&-"])
def test_closed_streams(closed, tmp_path):
    file = tmp_path / "prints.py"
    file.write_text("print('nobody hears this')\n")
    command = f"{shlex.quote(sys.executable)} -m gluon_core {closed.replace('FILE', shlex.quote(str(file)))}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


def test_an_ordinary_exception_shows_the_file_alone(tmp_path):
    file = tmp_path / "divides.py"
    file.write_text("def f(x):\n    return 1 / x\n\nf(0)\n")
    done = gluon("run", file, code=1)
    assert "ZeroDivisionError" in done.stderr and done.stderr.count("File ") == 2
    error = json.loads(gluon("run", file, "--json", code=1).stdout)["error"]
    assert error == {
        "class": "ZeroDivisionError",
        "message": "division by zero",
        "file": str(file),
        "line": 4,
    }
    file.write_text("x = (\n")
    assert json.loads(gluon("run", file, "--json", code=1).stdout)["error"]["line"] == 1


def test_json_holds_no_addresses(tmp_path):
    file = tmp_path / "calls.py"
    file.write_text(
        "import gluon_core as gluon\nfrom gluon_core import language as gl\n"
        "@gluon.jit\ndef calls(out):\n    gl.store(out, gl.full([object()], 0, gl.int32))\n"
    )
    output = process("compile", file, "-t", "sm_90", "-s", "*i32", "--json")
    error = json.loads(output.stdout)["error"]
    assert error["line"] == 5 and "0x" not in output.stdout


BARE = """
import importlib.machinery as machinery, importlib.metadata as metadata, sys
finds, entries = machinery.PathFinder.find_spec, metadata.entry_points
hidden = ("gluon_nvidia", "gluon_amd", "gluon_sim", "gluon_emu")
machinery.PathFinder.find_spec = lambda name, *more: None if name in hidden else finds(name, *more)
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in repr(f).lower()]
shown = lambda entry: entry.value.split(".")[0] not in hidden
metadata.entry_points = lambda **k: list(filter(shown, entries(**k))) if k else entries()
from gluon_cli import main
main()
"""


@pytest.mark.parametrize(
    "command", ["demo", "info hopper", "run FILE --check", "run FILE -t hopper"]
)
def test_without_plugins_the_packages_are_named(command, tmp_path):
    file = tmp_path / "empty.py"
    file.write_text("")
    words = [str(file) if word == "FILE" else word for word in command.split()]
    done = subprocess.run(
        [sys.executable, "-c", BARE, *words], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 3, done.stderr
    errors = done.stderr.replace("\n", " ")
    assert "pip install" in errors and "backends/sim" in errors and "backends/nvidia" in errors
    assert "passed" not in done.stdout


def test_ctrl_c_keeps_finished_rows(tmp_path):
    """The rows that are finished are shown, and how many are not."""
    command = [sys.executable, "-m", "gluon_core", "demo", "-t", "sm_90", "-j", "1"]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "COLUMNS": "80"}
    path = tmp_path / "output"
    with path.open("w") as out:
        child = subprocess.Popen(
            [*command[:1], "-c", HEARS, *command[3:]],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        for line in child.stderr:
            if "advanced" in line:
                break
        os.killpg(child.pid, signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    shown = path.read_text()
    assert "interrupted: " in shown and "0 failed" in shown and "Traceback" not in errors
    assert "basics/vector_add" in shown and "sm_90 " in shown
    for _ in range(50):
        if not alive(child.pid):
            return
        time.sleep(0.1)
    raise AssertionError(f"processes of the demo are left: {alive(child.pid)}")


def alive(group):
    """The processes of a group, but for those that nobody has asked how they ended."""
    collected = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, members = path.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(members) == group and state != "Z":
            collected.append(path.parent.name)
    return collected


# A background job of a shell ignores Ctrl-C, and so do its children; this one hears it.
HEARS = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from gluon_cli import main
from gluon_report import demo
own = demo._in_processes
def in_processes(work, processes, done):
    def announce(job, row):
        done(job, row)
        print("advanced", file=sys.stderr, flush=True)
    own(work, processes, announce)
demo._in_processes = in_processes
if __name__ == "__main__":
    main()
"""
