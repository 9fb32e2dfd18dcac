"""The scripts that explain the misses of sweeps, as commands, with another program in the place of Nsight Compute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.once

# It notes and counts the shapes of its share, a call of 3 us of ours for one of 2 us; with HANG it never ends, with PAST in the midst of a line.
# Metrics that it is asked for in addition are 2 for warps that wait for the matrix unit and 1 for others.
PROFILER = """\
#!{python}
import csv, json, os, sys, time
from pathlib import Path
state = "smsp__average_warps_issue_stalled_{{}}_per_issue_active"
if "--query-metrics" in sys.argv:
    print(*map(state.format, ("gmma", "membar", "selected")), "smsp__other  # another", sep="\\n")
    sys.exit()
folder, number = Path(sys.argv[-2]), sys.argv[-1]
if os.environ.get("HANG") == number:
    time.sleep(600)
share = json.loads((folder / f"share-{{number}}.json").read_text())
names = sys.argv[sys.argv.index("--metrics") + 1].split(",")
print("==PROF== Connected")
rows = csv.writer(sys.stdout, quoting=csv.QUOTE_ALL)
limits = ["launch__waves_per_multiprocessor", *(f"launch__occupancy_limit_{{x}}" for x in ("registers", "warps"))]
rows.writerow(["ID", "Kernel Name", "Grid Size", *limits, *names])
rows.writerow(["", "", "", "", "block", "block", "ns", "byte", "byte", "%", "cycle", "cycle", "%", "", *["inst"] * (len(names) - 8)])
with (folder / f"notes-{{number}}.jsonl").open("w") as notes:
    for index, miss in enumerate(share):
        if miss["shape"]["M"] == "13":
            print(json.dumps({{"index": index, "failed": "ValueError: no"}}), file=notes)
            continue
        print(json.dumps({{"index": index, "bound": [1.5, "L2"], "counted": True}}), file=notes)
        for name, ns in (("void at::native::(anonymous namespace)::ours<int>(x)", "3,000"), ("theirs", "2,000")):
            counts = [ns, "5,000,000", "9,000,000", "30", "90", "100", "20", "1"]
            counts += ["2" if "gmma" in one else "1" for one in names[8:]]
            rows.writerow([0, name, "(2, 3, 1)", "0.5", "2", "4", *counts])
            rows.writerow([0, "spin_kernel(long)", "(1, 1, 1)", "1", "1", "1", *["1"] * len(names)])
sys.stdout.flush()
if os.environ.get("PAST") == number:
    print('"9","theirs","(2', end="", flush=True)
    time.sleep(600)
"""


def row(op: str, m: int, graph: float, eager: float = 1.0) -> dict[str, object]:
    times = {
        way: {"ours": 1e-5, "torch": 1e-5 * value, "slow": 1.0}
        for way, value in (("graph", graph), ("eager", eager), ("host", 1.0))
    }
    return {"op": op, "shape": {"M": str(m), "dtype": "bfloat16"}, **times}


# `bmm` meets the goals of graphs with one miss among many; `matmul` does not.
ROWS = [
    row("matmul", 1, 0.5),
    row("matmul", 2, 0.85),
    row("matmul", 13, 0.7),
    *(row("bmm", m, 1.5) for m in range(40)),
    row("bmm", 99, 0.89),
]


def script(
    folder: Path, name: str, *words: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    profiler = folder / "ncu"
    profiler.write_text(textwrap.dedent(PROFILER).format(python=sys.executable))
    profiler.chmod(0o755)
    command = [sys.executable, str(ROOT / "benchmarks" / name), *words]
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PATH": path, **environ}
    )


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps(ROWS))
    return file


def kept(file: Path) -> list[tuple[str, str]]:
    return [(one["op"], one["shape"]["M"]) for one in json.loads(file.read_text())]


def test_misses_of_ops_below_their_goals_come_first_and_are_not_measured_again(sweep: Path) -> None:
    out = sweep.with_name("misses.json")
    words = (str(sweep), "--out", str(out), "--jobs", "1", "--limit", "30")
    first = script(sweep.parent, "misses.py", *words)
    assert first.returncode == 0, first.stderr
    assert "4 misses, 4 to measure" in first.stdout
    measured = [place for place in kept(out) if place[1] != "13"]
    assert measured == [("matmul", "1"), ("matmul", "2"), ("bmm", "99")]
    rows = {one["shape"]["M"]: one for one in json.loads(out.read_text())}
    assert rows["1"]["ours"] == ["native::ours [2x3x1] 3.0 us: 5 MB, 9 MB, 30 %, 90 %, 20 %"]
    side = "0.5 waves, registers for 2 blocks a processor, processors with a block 90 %, memory {} %, L2 {} %, matrix unit 30 %, issue 18 %"
    assert rows["1"]["reason"] == (
        "3.0 us, theirs 2.0; +0.6 of +1.0: waits between products, 1.8 us, theirs 1.2; "
        f"ours native::ours [2x3x1] by latency (3.0 us, {side.format(37, 35)}); "
        f"theirs theirs [2x3x1] by memory (2.0 us, {side.format(56, 52)})"
    )
    assert (rows["1"]["rival"], rows["1"]["way"]) == ("torch", "graph")
    assert "reason" not in rows["13"]
    again = script(sweep.parent, "misses.py", *words)
    assert "4 misses, 1 to measure" in again.stdout  # the one that failed


@pytest.mark.parametrize("where", ("HANG", "PAST"))
def test_a_process_that_does_not_end_leaves_the_rows_of_the_others(sweep: Path, where: str) -> None:
    out = sweep.with_name("misses.json")
    words = ("--out", str(out), "--jobs", "4", "--limit", "1")
    result = script(sweep.parent, "misses.py", str(sweep), *words, **{where: "0"})
    assert ("matmul", "2") in kept(out), result.stdout
    # Whole lines that it wrote before its end count, too.
    assert (("matmul", "1") in kept(out)) == (where == "PAST")


def test_files_that_are_missing_or_broken_are_named_and_the_others_read(sweep: Path) -> None:
    absent, broken = (sweep.with_name(f"{word}.json") for word in ("absent", "broken"))
    broken.write_text('[{"op":')
    files = [str(file) for file in (absent, sweep, broken)]
    measured = script(sweep.parent, "misses.py", *files, "--jobs", "1", "--limit", "30")
    table = script(sweep.parent, "tables.py", *files, "--misses", str(absent))
    assert "4 misses, 4 to measure" in measured.stdout
    assert "All 44 results agreed" in table.stdout
    for result in (measured, table):
        assert result.returncode == 0 and "Traceback" not in result.stderr
        for file in (absent, broken):
            assert f"{file} is left out: " in result.stderr


def test_the_table_names_goals_and_reasons_or_their_absence(sweep: Path) -> None:
    out = sweep.with_name("misses.json")
    script(sweep.parent, "misses.py", str(sweep), "--out", str(out), "--jobs", "1")
    known = [one for one in json.loads(out.read_text()) if one["shape"]["M"] != "2"]
    out.write_text(json.dumps(known))
    sweep.write_text(json.dumps([*ROWS, row("topk", 5, 1.2, 0.6)]))
    words = ("--misses", str(out), "--seed", "7", "--commit", "abcd", "--command", "python sweep")
    lines = script(sweep.parent, "tables.py", str(sweep), *words).stdout.splitlines()
    table = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in lines}
    assert table["matmul"][1] == "**0.668**, **0.500**, **0.500**"
    assert table["bmm"][1] == "1.481, 1.500, 0.890"
    assert table["matmul"][-1].startswith("1 bfloat16 (torch)")
    assert table["matmul 1 bfloat16"][-1].startswith("3.0 us, theirs 2.0; +0.6 of +1.0: waits")
    assert table["matmul 2 bfloat16"][-1].startswith("none: the profiler did not get to it")
    assert table["matmul 13 bfloat16"][-1].startswith("none: ValueError: no")
    assert table["topk 5 bfloat16"][0] == "0.600"
    assert "abcd" in "".join(lines) and "    python sweep" in lines
    assert "All 45 results agreed with their references." in "".join(lines)


def test_states_of_warps_are_counted_where_they_are_asked_for(sweep: Path) -> None:
    out = sweep.with_name("misses.json")
    script(sweep.parent, "misses.py", str(sweep), "--out", str(out), "--jobs", "1", "--warps")
    rows = {one["shape"]["M"]: one for one in json.loads(out.read_text())}
    words = "; warps: wait for the matrix unit 50 %, membar 25 %"
    assert rows["1"]["reason"].count(words) == 2
