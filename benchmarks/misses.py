"""Say what limits the shapes of sweeps that are slower than their rivals, with the numbers of a profiler.

    python benchmarks/sweep.py gemm --op matmul --seed 1 --out sweep.json
    python benchmarks/misses.py sweep.json --out misses.json [--below 0.9] [--limit 70] [--jobs 4]
    python benchmarks/tables.py sweep.json --misses misses.json    # the table of operators, and the reason of each miss
    python benchmarks/misses.py sweep.json --timeline      # where performance counters are not permitted
    python benchmarks/misses.py --check                    # without a GPU: a timeline of the emulator

A miss is a shape whose ratio is below `--below`: in a graph, or in eager calls alone. Operators below their goals come first. Nsight Compute (`ncu`)
profiles one call of each side of the former with warm caches: kernels, grids, clusters, durations, what they read from memory and move through the
L2 cache, and in how many of the cycles the matrix unit is busy, processors have a block, and instructions are issued; of these follows what most of the
difference is, and what limits the longest kernel of each side. `--warps` counts in further passes what its warps wait for. `torch.profiler` traces the latter:
what the host does in a call. The rival is the fastest one of the sweep. Several processes prepare calls at once, and measure by turns; `--warm`, next to
a sweep, lets them start in seconds. `--out` keeps the rows; those that it has are not measured again.

With `--timeline`, CUPTI (`torch.profiler`) gives kernels and durations, and automatic scopes
(`gluon_core.timeline`) the parts of a block's time in our last kernel: until its first product ("start"), then waits for copies, waits for the matrix
unit, barriers and all else ("issue": conversions, addresses, stores between tiles), and from its last product to the end of the launch ("end": sums of
other programs, stores, later rounds of blocks). The bound is the larger of the product's time at the peak of the matrix unit and that of its bytes,
from memory or, if they fit, from the L2 cache.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Iterator, Sequence

from miss_counters import described, environment, profiler, reason, sides_of, stalls
from ratios import Row, met, ratio, rival, rows_of, text_of

HOSTS = 12  # eager misses of one process
RESERVE = 4.0  # seconds in which profilers write what they counted
TITLE = """\
| op | shape | ratio | our kernels: read from memory, through the L2 cache, cycles of the matrix unit, active processors, issue | the rival's | bound, us | reason |
| --- | --- | ---: | --- | --- | --- | --- |"""


def misses(rows: list[Row], below: float, count: int | None = None) -> list[dict[str, Any]]:
    """Return the misses in graphs, then those of eager calls alone; operators below their goals first, and of each the `count` lowest ratios."""
    chosen: list[dict[str, Any]] = []
    for way in ("graph", "eager"):
        of_op: dict[str, list[tuple[float, int]]] = {}
        for number, row in enumerate(rows):
            value = ratio(row, way)
            if value is not None:
                of_op.setdefault(row["op"], []).append((value, number))
        low: list[tuple[bool, float, Row]] = []
        for pairs in of_op.values():
            reached = met([value for value, _ in pairs], way)
            own = sorted(pair for pair in pairs if pair[0] < below)
            if way == "eager":
                own = [pair for pair in own if (ratio(rows[pair[1]], "graph") or 0) >= below]
            low += [(reached, value, rows[number]) for value, number in own[:count]]
        for _, value, row in sorted(low, key=lambda one: one[:2]):
            keep = {name: row[name] for name in ("op", "shape", "host", "eager")}
            chosen.append({**keep, "way": way, "ratio": value, "rival": rival(row, way)})
    return chosen


def key(miss: Row) -> tuple[Any, ...]:
    return miss["op"], miss["way"], *miss["shape"].items()


class Results:
    """The rows that are finished, on disk after each one.

    Args:
        file: that keeps them; None: no file.
    """

    def __init__(self, file: Path | None):
        self._file = file
        self.rows: list[dict[str, Any]] = []
        if file is not None and file.exists():
            self.rows = json.loads(file.read_text())

    def lacks(self, miss: Row) -> bool:
        return all(key(row) != key(miss) or "reason" not in row for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        self.rows = [one for one in self.rows if key(one) != key(row)] + [row]
        cells = ["<br>".join(row.get(side, ())) for side in ("ours", "theirs")]
        least, part = row.get("bound", (0, "-"))
        again = f" (again: {row['again']:.2f})" if "again" in row else ""
        print(
            f"| {row['op']} | {text_of(row)} | {row['way']} {row['ratio']:.2f}{again} | {cells[0]} | {row['rival']}: {cells[1]} | "
            f"{least:.1f}, {part} | {row.get('reason') or row.get('failed')} |",
            flush=True,
        )
        if self._file is not None:
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(self.rows))
            new.replace(self._file)


class Job:
    """A process that measures a share of the misses.

    Args:
        folder: that it shares with the others.
        number: of the process.
        share: its misses.
        hosts: trace the host, without Nsight Compute.
        more: metrics of Nsight Compute in further passes.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        share: list[dict[str, Any]],
        hosts: bool,
        more: Sequence[str] = (),
    ):
        self.share, self._hosts, self._read = share, hosts, 0
        (folder / f"share-{number}.json").write_text(json.dumps(share))
        self._notes = folder / f"notes-{number}.jsonl"
        self._out = folder / f"out-{number}.csv"
        command = [sys.executable, "-W", "ignore", __file__, "--worker", str(folder), str(number)]
        command = [*command, "--hosts"] if hosts else profiler(command, more)
        self.process = subprocess.Popen(
            command, stdout=self._out.open("w"), stderr=subprocess.STDOUT,
            env=environment(), start_new_session=True,
        )  # fmt: skip

    def notes(self) -> list[dict[str, Any]]:
        if not self._notes.exists():
            return []
        lines = self._notes.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows that are new: of traces at once, of counters once the process has ended."""
        ended = self.process.poll() is not None
        notes = [note for note in self.notes() if note["index"] >= 0]
        if self._hosts:
            notes, self._read = notes[self._read :], len(notes)
            yield from (self._row(note) for note in notes)
        elif ended and not self._read:
            self._read = 1
            yield from self._counted(notes)

    def _counted(self, notes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        measured = [note for note in notes if "counted" in note]
        yield from (self._row(note) for note in notes if "counted" not in note)
        text = self._out.read_text()
        try:
            sides = sides_of(text)
        except (RuntimeError, ValueError, KeyError) as error:
            print(f"\n{error!r} of {len(measured)} shapes: {text[-600:]}\n", flush=True)
            return
        for note, ours, theirs in zip(measured, sides[::2], sides[1::2]):
            cells = {"ours": list(map(described, ours)), "theirs": list(map(described, theirs))}
            if ours and theirs:
                cells["reason"] = reason(ours, theirs)
            elif "failed" not in note:
                note["failed"] = "no kernel was counted"
            yield self._row({**note, **cells})

    def _row(self, note: dict[str, Any]) -> dict[str, Any]:
        facts = {name: value for name, value in note.items() if name not in ("index", "counted")}
        return {**self.share[note["index"]], **facts}

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def measure(
    todo: list[dict[str, Any]], results: Results, jobs: int, limit: float, states: bool = False
) -> int:
    """Measure the misses in so many seconds, with the states of warps if wanted, and return how many are left."""
    started = time.time()
    hosts = [miss for miss in todo if miss["way"] == "eager"]
    graphs = [miss for miss in todo if miss["way"] == "graph"]
    shares = [(graphs[i::jobs], False) for i in range(jobs)]
    parts = -(-len(hosts) // HOSTS)
    more = stalls() if states and graphs else []
    shares += [(hosts[i::parts], True) for i in range(parts)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "end").write_text(str(started + limit - RESERVE))
        running = [
            Job(folder, number, share, of_host, more)
            for number, (share, of_host) in enumerate(shares)
            if share
        ]
        stop = signal.signal(signal.SIGTERM, signal.default_int_handler)
        left = len(todo)
        every = list(running)
        try:
            while running and time.time() < started + limit:
                left -= finish(running, results)
                time.sleep(0.05)
        except KeyboardInterrupt:
            (folder / "now").write_text("0")
            (folder / "now").replace(folder / "end")
            end = time.time() + RESERVE
            while running and time.time() < end:
                left -= finish(running, results)
                time.sleep(0.05)
        finally:
            signal.signal(signal.SIGTERM, stop)
            for job in running:
                job.end()
            left -= finish(running, results)
        for number, job in enumerate(every):
            steps = [note for note in job.notes() if note["index"] < 0]
            print(f"\nprocess {number}, {len(job.share)} misses, seconds left: {steps}", end="")
        print(f"\n{time.time() - started:.1f} s")
    return left


def finish(running: list[Job], results: Results) -> int:
    """Add the rows that are new, and return their number; forget processes that have ended."""
    number = 0
    for job in list(running):
        ended = job.process.poll() is not None
        for row in job.rows():
            results.add(row)
            number += 1
        if ended:
            running.remove(job)
    return number


def timelines(todo: list[dict[str, Any]], limit: float) -> None:
    from miss_sides import problems
    from miss_timelines import TITLE, row_of
    from sweep import compiled_only

    compiled_only()
    known = problems({miss["op"] for miss in todo})
    print(TITLE)
    started = time.time()
    for number, miss in enumerate(todo):
        if time.time() - started > limit:
            print(f"\nended with {len(todo) - number} shapes left")
            break
        try:
            print(row_of(miss, known[miss["op"]]), flush=True)
        except Exception as error:
            print(
                f"| {miss['op']} | {text_of(miss)} | {type(error).__name__}: {str(error)[:200]} |"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sweeps", nargs="*", type=Path)
    parser.add_argument("--below", type=float, default=0.9, help="shapes with lower ratios")
    parser.add_argument("--count", type=int, help="the lowest of each op; all by default")
    parser.add_argument("--limit", type=float, default=600, help="seconds, then the rest is left")
    parser.add_argument("--jobs", type=int, default=4, help="processes")
    parser.add_argument("--out", type=Path, help="keep the rows; measure those that it lacks")
    parser.add_argument("--timeline", action="store_true", help="CUPTI and scopes, not counters")
    parser.add_argument("--warps", action="store_true", help="also count the states of warps")
    parser.add_argument("--warm", action="store_true", help="import only, and keep the bytecode")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--hosts", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    if chosen.worker:
        from miss_sides import Worker

        Worker(Path(chosen.worker[0]), int(chosen.worker[1])).run(chosen.hosts)
        return 0
    if chosen.warm:
        command = [sys.executable, str(Path(__file__).with_name("miss_sides.py"))]
        return subprocess.run(command, env=environment()).returncode
    if chosen.check:
        from miss_timelines import check

        return check()
    todo = misses(rows_of(chosen.sweeps), chosen.below, chosen.count)
    if chosen.timeline:
        timelines([miss for miss in todo if miss["way"] == "graph"], chosen.limit)
        return 0 if todo else 3
    results = Results(chosen.out)
    rest = [miss for miss in todo if results.lacks(miss)]
    print(f"{len(todo)} misses, {len(rest)} to measure\n\n{TITLE}")
    left = measure(rest, results, chosen.jobs, chosen.limit, chosen.warps) if rest else 0
    print(f"{len(rest) - left} measured, {left} left")
    return 0 if todo else 3


if __name__ == "__main__":
    raise SystemExit(main())
