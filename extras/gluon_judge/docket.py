"""The docket of one candidate: its process, its calls, their comparison with the reference, and what was found."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Iterator, Mapping, Optional, Protocol, Sequence

from gluon_core.plugin.targets import Target
from gluon_judge import host, source
from gluon_judge.codes import of_report
from gluon_judge.confine import NOT_GUARANTEED, Confinement
from gluon_judge.messages import Call, Case, Difference, Outcome, Spec
from gluon_judge.problem import Problem
from gluon_judge.report import Evidence, Finding, Report

__all__ = ["Docket", "Files", "Limits", "Processes", "Stopped", "first_line", "size_of"]


class Processes(Protocol):
    """The processes of a judge."""

    target: Target

    def examine(self, method: str, *values: Any, limit: float = ...) -> Any:
        """Return the answer of the examiner."""

    def at_host(self, method: str, *values: Any, limit: float = ...) -> Any:
        """Return the answer of the host of candidates."""

    def at_gpu(self, method: str, *values: Any, limit: float = ...) -> Any:
        """Return the answer of the host of processes on the GPU."""

    def forget(self, session: int, on_gpu: bool = False) -> None:
        """End the process of a candidate."""


_LOAD = 10.0  # seconds for imports
_OWN = 30.0  # seconds for the judge's own work within a call
_MOST_SCALARS = 64  # values of tensors that one call may read on the host


@dataclass
class Counts:
    """Counts over all calls of one candidate."""

    calls: int = 0
    launches: Counter[tuple[str, str]] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    schedules: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Files:
    """The files of one judgement; `function` is the candidate's."""

    candidate: str
    function: str
    reference: str
    problem: str


@dataclass(frozen=True)
class Limits:
    """Limits of one judgement: see `Judge.judge`; `deadline` is of the monotonic clock."""

    deadline: float
    within: float
    claim: Optional[float]
    patience: float


@dataclass(frozen=True)
class _Series:
    """Calls that a process makes one after the other: of which cases, and the seconds for all."""

    session: int
    cases: Sequence[int]
    calls: Sequence[Call]
    limit: float


class Stopped(Exception):
    """The candidate's process is gone, or time is over."""


class Docket:
    """One candidate before the judge."""

    def __init__(self, judge: Processes, files: Files, about: Mapping[str, Any], limits: Limits):
        self._judge, self._limits = judge, limits
        self._path, self._function = files.candidate, files.function
        self._problem: Problem = about["problem"]
        self._cases: Sequence[Case] = about["cases"]
        self._secrets = (files.reference, files.problem)
        self.report = Report(files.candidate, files.reference, str(judge.target))
        self._counts = Counts()
        self._sessions: list[int] = []
        self._bits: dict[int, list[bytes]] = {}  # of right results, by case
        self._seen: set[tuple[Any, ...]] = set()
        self._series: Optional[_Series] = None  # of a new process
        self._at_work_on = "start"

    def _find(
        self, code: str, text: str, evidence: str = "", case: str = "", severity: str = "",
        file: str = "", line: int = 0,
    ) -> None:  # fmt: skip
        where = os.path.join(os.path.dirname(self._path), file) if file else self._path
        key = (
            code,
            text if code.startswith(("reads", "patched")) or text.startswith("on the GPU") else "",
            line,
            severity,
        )
        if key in self._seen:
            return
        self._seen.add(key)
        self.report.findings.append(Finding(code, text, evidence, where, line, case, severity))

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Add the seconds of a part of the work to the report."""
        started, outer = time.monotonic(), self._at_work_on
        self._at_work_on = name
        try:
            yield
        finally:  # an error keeps the name of its stage
            stages = self.report.stages
            stages[name] = round(stages.get(name, 0.0) + time.monotonic() - started, 3)
        self._at_work_on = outer

    def _evidence(self, name: str, status: str, text: str, needed: bool = True) -> None:
        self.report.evidence.append(Evidence(name, status, text, needed))

    def _graded(self, name: str, before: int, text: str) -> None:
        """Add evidence that passed if no error or doubt came since there were `before` findings."""
        grave = [one for one in self.report.findings[before:] if one.severity in ("error", "doubt")]
        self._evidence(name, "failed" if grave else "passed", text)

    def _open(self) -> int:
        texts = source.members(self._path, self._secrets)
        folder = host.folder()
        limits = Confinement(host.libraries(), (folder, "/dev/null"))
        main = os.path.basename(self._path)
        secrets = tuple(os.path.basename(one) for one in self._secrets if one)
        names = list(self._problem.inputs)
        mutable = tuple(names.index(name) for name in self._problem.mutates)
        constant = tuple(names.index(name) for name in self._problem.constants)
        spec = Spec(
            texts, main, self._function, folder, limits, secrets, len(names), mutable, constant
        )
        number: int = self._judge.at_host("open", spec)
        self._sessions.append(number)
        return number

    def _begin(self, session: int, cases: Sequence[int], **last: Any) -> _Series:
        """Let a process load the file and make several calls, while others work.

        Args:
            last: options of one more call, of the last case.
        """
        asked = [self._asked(case) for case in cases]
        asked.append(self._asked(cases[-1], **last))
        limit = self._limits.patience + _LOAD + sum(one for _, one in asked)
        calls = [call for call, _ in asked]
        self._judge.at_host("ask", session, limit, "several", calls)
        return _Series(session, [*cases, cases[-1]], calls, limit)

    def _finish(self, series: _Series) -> list[Outcome]:
        """Return the outcomes of calls that were begun.

        Raises:
            Stopped: there are none.
        """
        answer = self._judge.at_host("answer", series.session, limit=series.limit + 60.0)
        first, *outcomes = self._answer(*answer)
        self._admit(first)
        if len(outcomes) != len(series.calls):
            self._find("call.crashed", "the candidate's process answers something else")
            raise Stopped
        return [self._counted(*one) for one in zip(outcomes, series.cases, series.calls)]

    def _ask(self, session: int, method: str, *values: Any, limit: float = 120.0) -> Any:
        """Return the answer of the candidate's process.

        Raises:
            Stopped: there is none.
        """
        return self._answer(
            *self._judge.at_host("call", session, limit, method, *values, limit=limit + 60.0)
        )

    def _answer(self, kind: str, value: Any) -> Any:
        if kind == "done":
            return value
        if kind == "ended":
            how, hung, output = value
            last = "\n".join(output.strip().splitlines()[-3:])
            self._find("call.hang" if hung else "call.crashed", str(how), last)
        else:
            self._find("call.crashed", f"the candidate's process answers: {value}")
        raise Stopped

    def _loaded(self, session: int, first: bool) -> None:
        if first:
            layers = self._ask(session, "layers")
            self.report.isolation += [f"{one.name}: {one.text}" for one in layers]
            self.report.isolation += [f"not guaranteed: {text}" for text in NOT_GUARANTEED]
            open_layers = [one.name for one in layers if not one.holds]
            held = ", ".join(one.name for one in layers if one.holds)
            if open_layers:
                self._evidence("isolation", "failed", f"without {', '.join(open_layers)}")
            else:
                self._evidence("isolation", "passed", held)
        self._admit(self._ask(session, "load", limit=self._limits.patience + _LOAD))

    def _admit(self, outcome: Outcome) -> None:
        """Add what loading the file showed.

        Raises:
            Stopped: it does not load.
        """
        self._events(outcome, "")
        if outcome.error is not None:
            error = outcome.error
            self._find(
                "call.failed", f"the file cannot be loaded: {error['class']}: {first_line(error['text'])}",
                file=error["file"], line=error["line"],
            )  # fmt: skip
            raise Stopped

    def _call(self, session: int, case: int, variant: int = 0, **options: Any) -> Outcome:
        call, limit = self._asked(case, variant, **options)
        return self._counted(self._ask(session, "call", call, limit=limit), case, call)

    def _asked(self, case: int, variant: int = 0, **options: Any) -> tuple[Call, float]:
        """Return a call with the inputs of a case, and the seconds that it may take."""
        values = self._judge.examine("inputs", case, variant)
        left = max(5.0, self._limits.deadline + 30.0 - time.monotonic())
        limit = min(self._limits.patience, left)
        call = Call(values, timeout=0.8 * limit, **options)
        # A compiler, a proof, a profile and repeated calls take time that is not the candidate's.
        limit += 2.0 * call.prove + _OWN * (call.compiles + call.profile + (call.burst > 1))
        return call, limit

    def _counted(self, outcome: Any, case: int, call: Call) -> Outcome:
        """Add a call to the counts, and what it showed.

        Raises:
            Stopped: it is no outcome.
        """
        if not isinstance(outcome, Outcome):
            self._find("call.crashed", "the candidate's process answers something else")
            raise Stopped
        self._counts.calls += 1
        for kernel, _, by, count in outcome.launches:
            self._counts.launches[kernel, by] += count
        self._counts.operations.update(outcome.operations)
        self._counts.schedules.add(f"{call.schedule} {call.seed}")
        self._events(outcome, str(self._cases[case]))
        if outcome.scalars > _MOST_SCALARS:
            text = f"a call reads {outcome.scalars} single values of tensors on the host"
            self._find("library.host", text, case=str(self._cases[case]))
        return outcome

    def _events(self, outcome: Outcome, case: str) -> None:
        for event in outcome.events:
            self._find(
                event.code, event.text, case=case, severity=event.severity, file=event.file,
                line=event.line,
            )  # fmt: skip
        for kernel, error, _ in outcome.caught:
            if outcome.error is None:
                text = f"a launch of {kernel} failed, and the candidate went on"
                self._find("library.fallback", text, error, case)

    def _left(self) -> bool:
        return time.monotonic() < self._limits.deadline

    def _compared(self, case: int, outcome: Outcome, variant: int = 0, as_code: str = "") -> bool:
        """Compare the outcome of a call with the reference and add what differs; True if nothing does.

        Args:
            as_code: of the finding for a wrong result, where the values alone do not explain it.
        """
        one = self._cases[case]
        if outcome.error is not None:
            return self._failed(case, outcome)
        if outcome.results is None or any(e.code == "result.type" for e in outcome.events):
            return False
        differences: Optional[list[Difference]] = self._judge.examine(
            "compare", case, variant, outcome.results, outcome.after
        )
        if differences is None:  # the reference refuses such inputs
            return True
        right = True
        for difference in differences:
            code, severity = difference.code, ""
            if code in ("result.wrong", "precision.dropped", "result.shape"):
                right = False
                code, severity = self._named(one, code, as_code)
            self._find(code, difference.text, difference.numbers, str(one), severity)
        return right

    def _named(self, case: Case, code: str, as_code: str) -> tuple[str, str]:
        """Return the code and severity of a wrong result."""
        if as_code:
            return as_code, ""
        if not case.usual and self._smallest() not in self._bits:  # wrong anyway
            return code, ""
        if case.layout == "strided":
            return "layout.strides", "error" if "strided" in self._problem.layouts else ""
        if case.layout == "offset":
            return "layout.offset", ""
        if 0 in case.sizes.values():
            return "edge.empty", "error" if case.listed else ""
        return (code, "") if case.listed else ("edge.shape", "")

    def _failed(self, case: int, outcome: Outcome) -> bool:
        """Add the finding of a call that raised an error."""
        one, error = self._cases[case], outcome.error
        assert error is not None
        text = f"{error['class']}: {first_line(error['text'])}"
        place = {"file": error["file"], "line": error["line"]}
        report = error["report"]
        if report:
            code = of_report(report)
        elif "LimitError" in error["classes"]:
            code = "limits.capacity"
        else:
            code = "call.failed"
        severity = ""
        if not one.listed and 0 in one.sizes.values():
            code = "edge.empty" if not report else code
        elif code == "call.failed" and one.layout == "strided":
            severity = "error" if "strided" in self._problem.layouts else "note"
        elif code == "call.failed" and one.fill != "drawn":
            severity = "warning"
        elif code == "call.failed" and not one.listed:
            code = "edge.shape"
        self._find(code, text, error["text"] if report else "", str(one), severity, **place)
        return False

    def _listed(self) -> list[int]:
        return [index for index, case in enumerate(self._cases) if case.usual and case.listed]

    def _smallest(self) -> int:
        return min(self._listed(), key=lambda index: size_of(self._cases[index]))


def size_of(case: Case) -> float:
    volume = 1.0
    for size in case.sizes.values():
        volume *= max(1, size)
    return volume


def first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else ""
