"""Traces of other tools, drawn below ours."""

import gzip
import json
import random
from pathlib import Path

import pytest

from gluon_core.errors import ArgumentError
from gluon_timeline.decode import Launch, Span
from gluon_timeline.imports import processes
from gluon_timeline.perfetto import events, unpacked

TREE = [
    {
        "frame": {"name": "ROOT", "type": "function"},
        "metrics": {"count": 0, "time (ns)": 0},
        "children": [
            {
                "frame": {"name": "step", "type": "function"},
                "metrics": {},
                "children": [
                    {
                        "frame": {"name": "add", "type": "function"},
                        "metrics": {"time (ns)": 300, "count": 3},
                        "children": [],
                    },
                    {
                        "frame": {"name": "gemv", "type": "function"},
                        "metrics": {"time (ns)": 500, "count": 1},
                        "children": [],
                    },
                    {"frame": {"name": "empty", "type": "function"}, "metrics": {}, "children": []},
                ],
            }
        ],
    },
    {"CUDA": {"0": {"arch": "90", "clock_rate": 1980000}}},
]


def bars(process):
    """Return (lane, name, begin, end, depth) of each span."""
    return [(lane, s[0], s[1], s[2], s[8]) for lane, spans in process["lanes"] for s in spans]


def test_proton_trees_are_laid_out_by_their_times():
    (process,) = processes(TREE)
    assert bars(process) == [
        ("scopes", "step", 0, 800, 0),
        ("scopes", "add", 0, 300, 1),
        ("scopes", "gemv", 300, 800, 1),
    ]


def proton(name):
    """Return the processes of a file that Proton of Triton 3.6 wrote on an H200, of three launches of a kernel and a product of torch."""
    return processes(json.loads((Path(__file__).parent / "proton" / name).read_text()))


def test_a_tree_of_proton():
    (process,) = proton("tree.hatchet")
    spans = bars(process)
    assert [(name[:6], end - begin, depth) for _, name, begin, end, depth in spans] == [
        ("step", 1792 + 1376 + 4831, 0), ("_Z10do", 1792, 1), ("_Z20re", 1376, 1), ("add", 4831, 1),
    ]  # fmt: skip


def test_a_trace_of_proton():
    (process,) = proton("trace.chrome_trace")
    assert process["name"] == "trace"  # events name no process
    ((lane, spans),) = process["lanes"]
    assert lane == "7" and [span[0][:6] for span in spans] == [
        "add",
        "add",
        "add",
        "_Z10do",
        "_Z20re",
    ]
    assert spans[1][1:3] == [32017.856, 32017.856 + 1.6]


def test_scopes_of_proton_inside_a_kernel():
    """The file is trimmed to two warps of two blocks of the first launch: four rounds of two scopes each."""
    blocks = proton("inside.chrome_trace")
    assert {block["name"] for block in blocks} == {"add Core124 CTA2", "add Core128 CTA0"}
    for block in blocks:
        assert [lane for lane, _ in block["lanes"]] == ["warp 0 (line 0)", "warp 1 (line 0)"]
        for _, spans in block["lanes"]:
            spans = sorted(spans, key=lambda span: span[1])
            assert [span[0] for span in spans] == ["load", "add and store"] * 4
            assert all(a[2] <= b[1] + 1e-3 for a, b in zip(spans, spans[1:]))


def test_begins_and_ends_of_chrome_pair_and_nest():
    events = [
        {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "SM 3"}},
        {"ph": "M", "pid": 1, "tid": 4, "name": "thread_name", "args": {"name": "warp 4"}},
        {"ph": "B", "pid": 1, "tid": 4, "name": "outer", "ts": 1},
        {"ph": "B", "pid": 1, "tid": 4, "name": "inner", "ts": 2},
        {"ph": "E", "pid": 1, "tid": 4, "ts": 3},
        {"ph": "E", "pid": 1, "tid": 4, "ts": 9},
        {"ph": "X", "pid": 1, "tid": 5, "name": "whole", "ts": 2, "dur": 5, "cat": "copy"},
        {"ph": "E", "pid": 1, "tid": 5, "ts": 10},
    ]
    for content in (events, {"traceEvents": events, "displayTimeUnit": "ns"}):
        (process,) = processes(content)
        assert process["name"] == "SM 3"
        assert bars(process) == [
            ("warp 4", "inner", 2, 3, 1),
            ("warp 4", "outer", 1, 9, 0),
            ("5", "whole", 2, 7, 0),
        ]


@pytest.mark.parametrize(
    "records",
    [
        [{"name": "load", "start_ns": 64, "end_ns": 96, "sm": 0, "warp": 4}],
        [{"Name": "load", "ts": 64, "duration": 32, "SM": 0, "warp_id": 4}],
        [{"region": "load", "start_cycle": "64", "end_cycle": "96", "sm_id": 0, "warp_id": 4}],
    ],
)
def test_records_of_other_tools_choose_lanes_by_their_keys(records):
    (process,) = processes({"version": 1, "data": {"events": records}})
    assert bars(process) == [("sm 0, warp 4", "load", 64, 96, 0)]


@pytest.mark.parametrize(
    "content, words",
    [
        ([{"a": 1}], "a list of objects with a"),
        ({"traceEvents": []}, "an object with traceEvents"),
        ({}, "an object with nothing"),
        (3, "int of 1"),
        ([{"frame": {"name": "ROOT"}, "metrics": {}, "children": []}], "frame"),
    ],
)
def test_files_of_no_known_form_are_refused(content, words):
    with pytest.raises(ArgumentError, match=words):
        processes(content)


def test_the_command_draws_a_tree_below(tmp_path):
    from typer.testing import CliRunner

    from gluon_cli.app import app

    launch = {
        "kernel": "k", "nanoseconds": 10.0, "warps": 1, "dropped": 0, "unpaired": 0, "left_out": 0, "scopes": [["a", 1, "", ""]],
        "blocks": [{"block": 0, "sm": 0, "lanes": {"warp 0": [[0, 0.0, 10.0, 0]]}}], "shares": [], "roles": [], "limits": [],
    }  # fmt: skip
    ours, tree, page = (tmp_path / name for name in ("ours.json", "proton.hatchet", "page.html"))
    ours.write_text(json.dumps({"traceEvents": [], "gluon": [launch]}))
    tree.write_text(json.dumps(TREE))
    result = CliRunner().invoke(
        app, ["timeline", str(ours), "--below", str(tree), "--html", str(page)]
    )
    assert result.exit_code == 0, result.output
    assert "gemv" in page.read_text()
    tree.write_text("[1, 2]")
    result = CliRunner().invoke(
        app, ["timeline", str(ours), "--below", str(tree), "--html", str(page)]
    )
    assert result.exit_code == 2 and "Proton's tree" in " ".join(result.output.split())


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(*fields):
    """Return a message of Protocol Buffers: numbers as they are, bytes and text with their length."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def packet(*fields):
    return message((1, message(*fields)))


def slice_event(time, kind, *fields):
    return packet((8, time), (10, 7), (11, message((9, kind), *fields)))


TRACE = b"".join(
    (
        packet((60, message((1, 10), (2, "gemm")))),
        packet((60, message((1, 11), (2, "block 0"), (5, 10)))),
        packet((60, message((1, 12), (5, 11), (4, message((1, 1), (2, 3), (5, "wave 3")))))),
        # Interned names and the track of a sequence's events.
        packet((10, 7), (12, message((2, message((1, 1), (2, "load A"))))), (59, message((11, message((11, 12)))))),
        slice_event(1000, 1, (10, 1)),
        slice_event(1500, 1, (23, "wait"), (11, 12)),
        slice_event(1700, 2),
        slice_event(2000, 3, (23, "an instant")),
        slice_event(3000, 2),
        slice_event(9000, 1, (23, "without an end")),
    )
)  # fmt: skip


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_binary_traces_of_perfetto(packed):
    (process,) = processes({"traceEvents": events(unpacked(packed(TRACE)))})
    assert process["name"] == "gemm"
    ((lane, spans),) = process["lanes"]
    assert lane == "block 0, wave 3"
    assert [(s[0], s[1], s[2], s[8]) for s in spans] == [("load A", 1.0, 3.0, 0), ("wait", 1.5, 1.7, 1)]  # fmt: skip


@pytest.mark.parametrize(
    "content, words",
    [
        (b"hello", "not a Perfetto trace"),
        (TRACE[:-3], "ends within a field"),
        (b"\x0a\x80", "ends within a number"),
        (gzip.compress(TRACE)[:-9], "compression is damaged"),
    ],
)
def test_damaged_binary_traces(content, words):
    with pytest.raises(ValueError, match=words):
        events(unpacked(content))


@pytest.mark.once
def test_any_bytes_are_read_or_refused():
    chance = random.Random(29)
    for _ in range(3000):
        content = bytearray(TRACE)
        for _ in range(chance.randrange(1, 4)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        try:
            events(bytes(content[: chance.randrange(len(content))]))
        except ValueError:
            pass


def test_a_binary_trace_below_lanes(tmp_path):
    from typer.testing import CliRunner

    from gluon_cli.app import app
    from gluon_timeline.page import launch_data

    trace, recorded, shown = (tmp_path / name for name in ("t.pftrace.gz", "r.json", "p.html"))
    trace.write_bytes(gzip.compress(TRACE))
    launch = Launch("kernel", (Span(0, 0, 0, "a", 1, 0.0, 5.0, 0),), 5.0, 0, 0, 1)
    recorded.write_text(json.dumps({"gluon": [launch_data(launch)]}))
    command = ["timeline", str(recorded), "--below", str(trace), "--html", str(shown)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "block 0, wave 3" in shown.read_text()
    trace.write_bytes(b"hello")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2 and "not a Perfetto trace" in " ".join(result.output.split())
