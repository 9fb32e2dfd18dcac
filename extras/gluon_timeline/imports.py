"""Read the traces of other tools, to draw them below ours.

These forms are read, whoever wrote them; `perfetto` makes the first of the binary traces of Perfetto, which FlyDSL's KTRACE writes:

- events in the JSON format of Chrome, as an object with `traceEvents` or as a list: complete events ("X"), begins and ends ("B" and
  "E", "b" and "e"), names of processes and threads ("M"), arrows ("s" and "f"). `gluon run --trace`, Proton
  (`data="trace"`) and IKET write it, as most tools do whose traces open in Perfetto;
- Proton's tree (`data="tree"`, `.hatchet`): scopes and kernels with inclusive times, which have no begin. Each is drawn
  behind its elder siblings, within its parent;
- records: a list of objects, or the first such list in an object, each with a name, a begin, and an end or a duration, as tools for
  time inside kernels write them besides. Keys that name a unit, a block and a warp choose the lane.

Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional, Sequence

from gluon_core.errors import ArgumentError

__all__ = ["processes"]

_MOST = 20_000  # that are read
_TIME = "time (ns)"
_NAMES = ("name", "scope", "event", "label", "region")
_BEGINS = (
    "begin",
    "start",
    "ts",
    "start_ns",
    "begin_ns",
    "start_time",
    "begin_time",
    "start_cycle",
    "t0",
)
_ENDS = ("end", "stop", "end_ns", "stop_ns", "end_time", "stop_time", "end_cycle", "t1")
_LENGTHS = ("dur", "duration", "duration_ns", "cycles", "elapsed")
_PROCESSES = ("kernel", "gpu", "device")
_LANES = (
    "xcc",
    "se",
    "cu",
    "sm",
    "cluster",
    "block",
    "cta",
    "workgroup",
    "wg",
    "wave",
    "warp",
    "lane",
    "role",
    "track",
)

_Process = dict[str, Any]


def processes(content: Any) -> list[_Process]:
    """Return the processes of a trace as the page draws them: lanes of spans, and arrows between them.

    Args:
        content: a file's JSON.

    Raises:
        ArgumentError: it has none of the known forms, or no span.
    """
    if isinstance(content, list) and content and _is_tree(content[0]):
        read = _tree(content)
    elif isinstance(content, Mapping) and isinstance(content.get("traceEvents"), list):
        read = _events(content["traceEvents"])
    elif isinstance(content, list) and any(
        isinstance(e, Mapping) and "ph" in e for e in content[:100]
    ):
        read = _events(content)
    else:
        read = _records(_list_of(content))
    if not read:
        raise ArgumentError(
            "holds no span",
            argument="TRACE",
            expected="events of Chrome's format, Proton's tree, or records with a name, a begin and an end",
            got=_described(content),
        )
    return read


def _described(content: Any) -> str:
    if isinstance(content, Mapping):
        return f"an object with {', '.join(sorted(map(str, content))[:8]) or 'nothing'}"
    if isinstance(content, list) and content and isinstance(content[0], Mapping):
        return f"a list of objects with {', '.join(sorted(map(str, content[0]))[:8])}"
    return f"{type(content).__name__} of {len(content) if isinstance(content, list) else 1}"


# -- events of Chrome -------------------------------------------------------------------------------


def _events(events: Iterable[Any]) -> list[_Process]:
    names: dict[tuple[Any, Any, str], str] = {}
    traces: dict[Any, _Process] = {}
    started: dict[Any, Mapping[str, Any]] = {}
    begun: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    count = 0
    for event in events:
        if not isinstance(event, Mapping):
            continue
        pid, tid, kind = event.get("pid", "trace"), event.get("tid", 0), event.get("ph")
        if kind == "M":
            names[pid, tid, str(event.get("name"))] = str((event.get("args") or {}).get("name", ""))
            continue
        process = traces.setdefault(pid, {"lanes": {}, "flows": []})
        place = (pid, tid, event.get("id") if kind in ("b", "e") else None)
        span = None
        if kind == "X":
            begin = float(event["ts"])
            span = _span(event, begin, begin + float(event.get("dur", 0)))
        elif kind in ("B", "b"):
            begun.setdefault(place, []).append(event)
        elif kind in ("E", "e") and begun.get(place):
            first = begun[place].pop()
            span = _span(first, float(first["ts"]), float(event["ts"]))
        elif kind == "s":
            started[event.get("id")] = event
        elif kind == "f" and event.get("id") in started:
            source = started[event["id"]]
            if source.get("pid") == pid:
                process["flows"].append([source["tid"], source["ts"], tid, event["ts"]])
        if span is not None and count < _MOST:
            count += 1
            process["lanes"].setdefault(tid, []).append(span)
    return [
        _process(
            names.get((pid, 0, "process_name"), str(pid)),
            {tid: names.get((pid, tid, "thread_name"), str(tid)) for tid in process["lanes"]},
            process,
        )
        for pid, process in traces.items()
        if process["lanes"]
    ]


def _span(event: Mapping[str, Any], begin: float, end: float) -> list[Any]:
    more = event.get("args") or {}
    kind = str(event.get("cat", ""))
    return [
        str(event.get("name", "")),
        begin,
        end,
        kind,
        more.get("line"),
        str(more.get("for", "")),
        "",
        "",
        0,
    ]


def _process(name: str, lanes: Mapping[Any, str], process: _Process) -> _Process:
    for spans in process["lanes"].values():
        _nest(spans)
    order = {key: i for i, key in enumerate(lanes)}
    return {
        "name": name,
        "lanes": [[title, process["lanes"][key]] for key, title in lanes.items()],
        "flows": [
            [order[a], start, order[b], to]
            for a, start, b, to in process["flows"]
            if a in order and b in order
        ],
    }


# -- Proton's tree ----------------------------------------------------------------------------------


def _is_tree(node: Any) -> bool:
    return isinstance(node, Mapping) and "frame" in node and "children" in node


def _tree(nodes: Sequence[Any]) -> list[_Process]:
    spans: list[list[Any]] = []
    begin = 0.0
    for node in nodes:
        if _is_tree(node):
            begin = _placed(node, begin, 0, spans)
    if not spans:
        return []
    return [
        {"name": "Proton's tree: times without begins", "lanes": [["scopes", spans]], "flows": []}
    ]


def _placed(node: Mapping[str, Any], begin: float, depth: int, spans: list[list[Any]]) -> float:
    """Append the spans of a node and of those in it, and return where it ends."""
    if len(spans) >= _MOST:
        return begin
    name = str(node["frame"].get("name", ""))
    metrics = node.get("metrics") or {}
    row: list[Any] = [name, begin, begin, "scope", None, "", "", "", depth]
    if name != "ROOT":
        spans.append(row)
        depth += 1
    end = begin
    for child in node["children"]:
        if _is_tree(child):
            end = _placed(child, end, depth, spans)
    row[2] = max(end, begin + float(metrics.get(_TIME, 0) or 0))
    if row[2] == begin and name != "ROOT":
        spans.remove(row)  # it has no time, like Proton's own scopes
    return float(row[2])


# -- records ----------------------------------------------------------------------------------------


def _list_of(content: Any) -> list[Mapping[str, Any]]:
    """Return the first list of records in a file, at most three objects deep."""
    waiting: list[tuple[Any, int]] = [(content, 0)]
    while waiting:
        value, depth = waiting.pop(0)
        if isinstance(value, list) and any(_times(record) for record in value[:100]):
            return [record for record in value if isinstance(record, Mapping)]
        if isinstance(value, Mapping) and depth < 3:
            waiting += [(inner, depth + 1) for inner in value.values()]
    return []


def _key(record: Mapping[str, Any], names: Sequence[str]) -> Optional[str]:
    known = {str(key).lower(): str(key) for key in record}
    return next((known[name] for name in names if name in known), None)


def _times(record: Any) -> Optional[tuple[float, float]]:
    """Return begin and end of a record; None if it has no such numbers."""
    if not isinstance(record, Mapping):
        return None
    begin, end, length = (_key(record, names) for names in (_BEGINS, _ENDS, _LENGTHS))
    try:
        if begin is None or (end is None and length is None):
            return None
        start = float(record[begin])
        return start, float(record[end]) if end is not None else start + float(record[str(length)])
    except (TypeError, ValueError):
        return None


def _records(records: Sequence[Mapping[str, Any]]) -> list[_Process]:
    traces: dict[str, _Process] = {}
    for record in records[:_MOST]:
        times = _times(record)
        if times is None:
            continue
        known = {
            str(key).lower().removesuffix("_id").removesuffix("_idx"): value
            for key, value in record.items()
        }
        title = ", ".join(f"{key} {known[key]}" for key in _PROCESSES if key in known) or "records"
        lane = ", ".join(f"{key} {known[key]}" for key in _LANES if key in known) or "all"
        name = _key(record, _NAMES)
        process = traces.setdefault(title, {"lanes": {}, "flows": []})
        row = [
            str(record[name]) if name is not None else "",
            *times,
            "",
            known.get("line"),
            "",
            "",
            "",
            0,
        ]
        process["lanes"].setdefault(lane, []).append(row)
    return [
        _process(title, {lane: lane for lane in process["lanes"]}, process)
        for title, process in traces.items()
    ]


def _nest(spans: list[list[Any]]) -> None:
    """Set the depth of each span: how many of its lane are around it."""
    around: list[float] = []
    for span in sorted(spans, key=lambda row: (row[1], -row[2])):
        while around and around[-1] < span[2]:
            around.pop()
        span[8] = len(around)
        around.append(span[2])
