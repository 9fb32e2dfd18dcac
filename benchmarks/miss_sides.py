"""Calls of both sides of misses, in processes of which many prepare their calls at once, and one measures at a time."""

from __future__ import annotations

import fcntl
import importlib
import json
import signal
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "benchmarks")]

import torch  # noqa: E402
from miss_counters import CACHE, L2, MEMORY, PEAK  # noqa: E402
from miss_hosts import device_time, host_parts, host_reason, in_words, traced  # noqa: E402
from ratios import Row, shape_of  # noqa: E402
from sweep import compiled_only, eager, medians, problems_of, rough  # noqa: E402

from gluon_kernels.problem import Problem, Shape  # noqa: E402

FAMILIES = ("gemm", "moe", "quant", "norm", "attention", "topk", "linear_attention")
FREE = 24e9  # bytes of the device that calls in advance leave
RIVALS = (
    "flash_attn.cute.interface",
    "quack.cross_entropy",
    "quack.rmsnorm",
    "quack.softmax",
    "quack.topk",
)
PREPARED = 0.5  # of the time that is left, in which calls are prepared
GOAL = 0.9  # of eager calls
LAST = 1.5  # seconds of a shape that is measured

Call = Callable[[], Any]


class Late(BaseException):
    """The time is over."""


class Prepared(NamedTuple):
    """A miss with both sides' calls, made once."""

    index: int
    miss: Row
    problem: Problem
    shape: Shape
    sides: tuple[Call, Call]


def problems(ops: set[str]) -> dict[str, Problem]:
    """Return the problems of these names; families without one are not imported."""
    known: dict[str, Problem] = {}
    for family in FAMILIES:
        if ops <= set(known):
            break
        for gradients in (False, True):
            known.update((p.name, p) for p in problems_of(family, None, gradients))
    return known


def sides_of_miss(miss: Row, problem: Problem, device: str = "cuda") -> tuple[Call, Call]:
    """Return our call, and that of the fastest rival."""
    arguments = problem.arguments(shape_of(miss), device)
    return partial(problem.op, **arguments), partial(problem.rivals[miss["rival"]], **arguments)


def bound(problem: Problem, shape: Shape) -> tuple[float, str]:
    """Return the microseconds that no kernel beats, and the part of the machine."""
    bits = 8 if problem.name in ("matmul_fp8", "attention_fp8") else 16
    size = problem.bytes(shape)
    rate, part = (L2, "L2") if size < CACHE else (MEMORY, "memory")
    times = ((problem.flops(shape) / PEAK[bits] * 1e6, "matrix unit"), (size / rate * 1e6, part))
    return max(times)


class Worker:
    """A process with a share of the misses. It writes a line of JSON to its notes for each shape that was measured, or failed.

    Args:
        folder: of the share, the notes, the lock and the file with the time of the end.
        number: of the process.
    """

    def __init__(self, folder: Path, number: int):
        self._folder, self._number = folder, number
        self._lock = (folder / "lock").open("a")
        share = folder / f"share-{number}.json"
        self._share: list[dict[str, Any]] = json.loads(share.read_text())
        self._notes = (folder / f"notes-{number}.jsonl").open("a")
        signal.signal(signal.SIGALRM, self._late)

    def run(self, hosts: bool) -> None:
        """Prepare and measure the share, in several rounds if the device's memory asks for that."""
        self._note(-1, started=round(self._left(), 1))
        compiled_only()
        known = problems({one["op"] for one in self._share})
        if hosts:
            with self._holding(fcntl.LOCK_SH):
                traced(lambda: torch.zeros(1, device="cuda"))  # the first trace takes seconds
        todo = list(enumerate(self._share))
        self._note(-1, imported=round(self._left(), 1))
        while todo and self._left() > LAST:
            prepared = self._prepare(todo, known, time.time() + PREPARED * self._left())
            self._note(-1, prepared=len(prepared), left=round(self._left(), 1))
            self._measure(prepared, self._hosts if hosts else self._counted)
            prepared.clear()
            torch.cuda.empty_cache()
        self._note(-1, ended=round(self._left(), 1))

    def _prepare(
        self, todo: list[tuple[int, dict[str, Any]]], known: dict[str, Problem], until: float
    ) -> list[Prepared]:
        """Take from the list the misses whose calls the time and the memory allow; call each side once."""
        prepared: list[Prepared] = []
        with self._holding(fcntl.LOCK_SH):
            while todo:
                if prepared and torch.cuda.mem_get_info()[0] < FREE:
                    break
                index, miss = todo.pop(0)
                try:
                    signal.setitimer(signal.ITIMER_REAL, max(until - time.time(), 1e-3))
                    problem = known[miss["op"]]
                    sides = sides_of_miss(miss, problem)
                    for side in sides:
                        side()
                    torch.cuda.synchronize()
                except Late:
                    if prepared:
                        todo.insert(0, (index, miss))
                    else:
                        self._note(index, failed="its calls were not prepared in time")
                    break
                except torch.OutOfMemoryError:
                    if prepared:
                        todo.insert(0, (index, miss))
                        break
                    self._note(index, failed="does not fit the memory")
                except Exception as error:
                    self._note(index, failed=f"{type(error).__name__}: {str(error)[:200]}")
                else:
                    prepared.append(Prepared(index, miss, problem, shape_of(miss), sides))
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        return prepared

    def _measure(self, prepared: list[Prepared], each: Callable[[Prepared], None]) -> None:
        """Measure all at a stretch: the first one takes two seconds, in which the profiler begins."""
        with self._holding(fcntl.LOCK_EX):
            self._note(-1, begun=round(self._left(), 1))
            for one in prepared:
                if self._left() > LAST:
                    each(one)

    def _counted(self, one: Prepared) -> None:
        """Call each side within the range that the profiler counts."""
        failed = {}
        for side in one.sides:
            side()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        for side in one.sides:
            try:
                side()
            except Exception as error:
                failed["failed"] = f"{type(error).__name__}: {str(error)[:200]}"
            torch.cuda._sleep(100)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
        self._note(one.index, bound=bound(one.problem, one.shape), counted=True, **failed)

    def _hosts(self, one: Prepared) -> None:
        """Trace calls of each side, and measure eager calls once more."""
        try:
            ours, theirs = one.sides
            loops = {"ours": eager(ours, rough(ours)), "theirs": eager(theirs, rough(theirs))}
            times = medians(loops)
            events = [traced(side) for side in one.sides]
        except Exception as error:
            self._note(one.index, failed=f"{type(error).__name__}: {str(error)[:200]}")
            return
        again = times["theirs"] / times["ours"]
        parts = [host_parts(side) for side in events]
        device = (device_time(events[0]), device_time(events[1]))
        names = ("ours", one.miss["rival"])
        calls, host = (
            tuple(one.miss[way][name] * 1e6 for name in names) for way in ("eager", "host")
        )
        reason = host_reason(parts[0], parts[1], device, host)
        reason = f"a call takes {calls[0]:.1f} us, theirs {calls[1]:.1f}: {reason}"
        if again >= GOAL:
            reason = f"not below {GOAL} when it is measured again ({again:.2f}); {reason}"
        self._note(
            one.index, again=again, ours=[in_words(parts[0])], theirs=[in_words(parts[1])],
            bound=bound(one.problem, one.shape), reason=reason,
        )  # fmt: skip

    def _left(self) -> float:
        """Return the seconds until the end."""
        return float((self._folder / "end").read_text()) - time.time()

    def _note(self, index: int, **facts: Any) -> None:
        print(json.dumps({"index": index, **facts}), file=self._notes, flush=True)

    @contextmanager
    def _holding(self, kind: int) -> Iterator[None]:
        fcntl.flock(self._lock, kind)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    @staticmethod
    def _late(*_: Any) -> None:
        raise Late


def imported() -> None:
    """Import what the processes import, rivals included."""
    problems({"every family"})
    compiled_only()
    for name in RIVALS:
        with suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    imported()
