"""A timeline of tasks, barriers and asynchronous work, in the trace format of Chrome and Perfetto.

Time is logical: one microsecond per op of a task. A task that waited goes on no earlier than the event it waited for: an arrival at its barrier, or else the last op of any task before it woke. Each batch
of programs is a process, each task of it (the kernel's own, partitions) a thread.
"""

from __future__ import annotations

import linecache
from typing import Any, Optional, Sequence
from weakref import WeakKeyDictionary

from gluon_sim.executor.batch import Batch
from gluon_sim.executor.compile import Step
from gluon_sim.executor.task import Task
from gluon_sim.memory.shared import SharedView
from gluon_sim.memory.turns import Wait
from gluon_sim.tools.watcher import Launch, Watcher
from gluon_sim.tracing.ir import Op

__all__ = ["Tracer"]

LIMIT = 500_000

Event = dict[str, Any]  # of Chrome's trace format


class _Row:
    """One task's line in the trace."""

    def __init__(self, pid: int, tid: int):
        self.pid = pid
        self.tid = tid
        self.now = 0
        self.span: Optional[Event] = None
        self.wait: Optional[Event] = None
        self.scopes: list[Event] = []


class Tracer(Watcher):
    """Collects the events of all watched launches, up to `limit` of them."""

    def __init__(self, limit: int = LIMIT):
        self.events: list[Event] = []
        self.limit = limit
        self.dropped = 0
        self._rows: WeakKeyDictionary[Task, _Row] = WeakKeyDictionary()
        self._processes: WeakKeyDictionary[Batch, int] = WeakKeyDictionary()
        self._threads: dict[int, int] = {}
        self._count = 0
        self._flows = 0
        self._signals: dict[tuple[int, int], tuple[_Row, int]] = {}
        self._asyncs: dict[int, Event] = {}
        self._clock = 0
        self._origin = 0

    def document(self) -> dict[str, Any]:
        """Return the whole trace, ready for JSON."""
        return {
            "traceEvents": self.events,
            "displayTimeUnit": "ns",
            "otherData": {"time": "1 us = 1 op of a task", "dropped_events": self.dropped},
        }

    # ---- tasks and time ---------------------------------------------------------------------------

    def begin(self, launch: Launch) -> None:
        self._origin = self._clock
        self._signals = {}

    def end(self, launch: Launch) -> None:
        self._asyncs = {}

    def _put(self, event: Event) -> Event:
        if len(self.events) < self.limit:
            self.events.append(event)
        else:
            self.dropped += 1
        return event

    def _row(self, launch: Launch, task: Task) -> _Row:
        row = self._rows.get(task)
        if row is not None:
            return row
        pid = self._processes.get(task.batch)
        if pid is None:
            self._count += 1
            pid = self._processes[task.batch] = self._count
            kernel = launch.program.program.kernel.name
            self._meta("process_name", pid, 0, f"{kernel}: {_programs(task.batch)}")
        tid = self._threads[pid] = self._threads.get(pid, 0) + 1
        row = self._rows[task] = _Row(pid, tid)
        # A partition starts when its kernel has got there.
        row.now = self._clock if tid > 1 else self._origin
        self._meta("thread_name", pid, tid, task.name)
        return row

    def _meta(self, name: str, pid: int, tid: int, text: str) -> None:
        self.events.append(
            {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": text}}
        )

    # ---- ops ----------------------------------------------------------------------------------------

    def before(self, launch: Launch, task: Task, step: Step) -> None:
        if launch.in_region(task):
            return
        row = self._row(launch, task)
        if step.op.name == "scope":
            self._scope(row, *step.op.args)
            return
        loc = launch.line(task, step.op)
        span = row.span
        if span is None or span["args"]["line"] != loc.line or span["args"]["file"] != loc.file:
            text = linecache.getline(loc.file, loc.line).strip() or step.op.name
            row.span = self._put(
                {
                    "ph": "X", "cat": "op", "name": text, "pid": row.pid, "tid": row.tid,
                    "ts": row.now, "dur": 0,
                    "args": {"line": loc.line, "file": loc.file, "ops": []},
                }
            )  # fmt: skip
        assert row.span is not None
        row.span["dur"] += 1
        row.span["args"]["ops"].append(step.op.name)
        row.now += 1
        self._clock = max(self._clock, row.now)

    def _scope(self, row: _Row, name: str, begins: bool, line: int) -> None:
        """Begin or end a span of `gl.scope`, which encloses the spans of its lines."""
        row.span = None
        if begins:
            row.scopes.append(
                self._put(
                    {
                        "ph": "X", "cat": "scope", "name": name, "pid": row.pid, "tid": row.tid,
                        "ts": row.now, "dur": 0, "args": {"line": line},
                    }
                )
            )  # fmt: skip
        elif row.scopes:
            scope = row.scopes.pop()
            scope["dur"] = row.now - scope["ts"]

    def waits(self, launch: Launch, task: Task, step: Step, wait: Wait) -> None:
        row = self._row(launch, task)
        row.span = None
        row.wait = {
            "ph": "X", "cat": "wait", "name": f"wait: {step.op.called}", "pid": row.pid,
            "tid": row.tid, "ts": row.now, "dur": 0,
            "args": {
                "for": wait.describe(),
                "line": launch.line(task, step.op).line,
            },
        }  # fmt: skip

    def resumes(self, launch: Launch, task: Task, step: Step) -> None:
        row = self._row(launch, task)
        signal = None
        for value in task.frame.resolve(list(step.plan)) if step.op.name != "call" else ():
            if isinstance(value, SharedView):
                signal = signal or self._signals.get(_place(value))
        if row.wait is not None:
            end = max(row.now, signal[1] if signal is not None else self._clock)
            row.wait["dur"] = end - row.now
            if row.wait["dur"]:
                self._put(row.wait)
            row.now, row.wait = end, None
            self._clock = max(self._clock, end)
        if signal is not None and signal[0] is not row:
            self._flows += 1
            flow = {"cat": "barrier", "name": "signal", "id": self._flows}
            other, time = signal
            self._put({"ph": "s", "pid": other.pid, "tid": other.tid, "ts": time - 1, **flow})
            self._put({"ph": "f", "bp": "e", "pid": row.pid, "tid": row.tid, "ts": row.now, **flow})

    # ---- requests of models ----------------------------------------------------------------------

    def event(self, launch: Launch, task: Task, op: Op, method: str, *details: Any) -> None:
        row = self._row(launch, task)
        line = launch.line(task, op).line
        if method == "issue":
            queue, token = details
            event = {
                "cat": "async", "name": f"{op.called} (line {line})", "id": len(self.events),
                "pid": row.pid, "tid": row.tid,
            }  # fmt: skip
            self._asyncs[id(token)] = {**event, "token": token}
            self._put({"ph": "b", "ts": row.now, **event, "args": {"line": line, "queue": queue}})
        elif method == "performed":
            begun = self._asyncs.pop(id(details[1]), None)
            if begun is not None:
                begun.pop("token")
                moved = {"args": {"bytes": details[2]}} if len(details) > 2 else {}
                self._put({"ph": "e", "ts": max(row.now, self._clock), **begun, **moved})
        elif method.startswith("barrier_") and isinstance(details[0], SharedView):
            view = details[0]
            if method in ("barrier_arrive", "barrier_complete"):
                self._signals[_place(view)] = (row, row.now)
            if method not in ("barrier_wait", "barrier_passed"):
                self._instant(row, method.replace("_", " "), line, view, details[1:])
        elif method in ("commit", "wait_groups"):
            self._instant(row, method.replace("_", " "), line, None, details)

    def _instant(
        self, row: _Row, name: str, line: int, view: Optional[SharedView], details: Sequence[Any]
    ) -> None:
        args: dict[str, Any] = {"line": line}
        if view is not None:
            args["barrier"] = view.buffer.name.at(_place(view)[1])
        args["values"] = [str(d) for d in details if isinstance(d, (int, str))]
        self._put(
            {"ph": "i", "s": "t", "cat": "sync", "name": name, "pid": row.pid, "tid": row.tid,
             "ts": max(0, row.now - 1), "args": args}
        )  # fmt: skip


def _place(view: SharedView) -> tuple[int, int]:
    return id(view.buffer), int(view.base.flat[0]) + int(view.table.min())


def _programs(batch: Batch) -> str:
    ids = [tuple(int(i[k]) for i in batch.ids) for k in (0, -1)]
    if ids[0] == ids[1]:
        return f"program {ids[0]}"
    return f"programs {ids[0]} to {ids[1]}"
