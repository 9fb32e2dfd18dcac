"""One candidate before the judge: the checks, and what they find."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Protocol, Sequence

from gluon_core.plugin.targets import Target
from gluon_judge import gpu, host, source
from gluon_judge.codes import of_report
from gluon_judge.confine import NOT_GUARANTEED, Confinement
from gluon_judge.errors import JudgeError
from gluon_judge.messages import Call, Case, Difference, Outcome, Sample, Spec
from gluon_judge.problem import Problem
from gluon_judge.report import Evidence, Finding, Report

__all__ = ["Files", "Limits", "Processes", "Trial"]

POISONS = (0xFF, 0x3C)  # bytes of new memory: NaN for every floating type, then small numbers
REPEATS = 8  # calls with other values at the same addresses
_SCHEDULES = (("eager", 0, 1), ("random", 1, 2), ("random", 2, 3))  # schedule, seed, order
_LEAST_WORK = 0.7  # of operations that the problem declares
_LEAST_DERIVED = 0.4  # ... that follow from the reference: there are better algorithms


class Processes(Protocol):
    """The processes of a judge."""

    target: Target

    def examine(self, method: str, *values: Any) -> Any:
        """Return the answer of the examiner."""

    def at_host(self, method: str, *values: Any, limit: float = ...) -> Any:
        """Return the answer of the host of candidates."""

    def at_gpu(self, method: str, *values: Any, limit: float = ...) -> Any:
        """Return the answer of the host of processes on the GPU."""

    def forget(self, session: int) -> None:
        """End the process of a candidate."""


@dataclass
class _Counts:
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
    claim: Optional[float]
    patience: float


class _Stopped(Exception):
    """The candidate's process is gone, or time is over."""


class Trial:
    """One candidate before the judge."""

    def __init__(self, judge: Processes, files: Files, about: Mapping[str, Any], limits: Limits):
        self._judge, self._limits = judge, limits
        self._path, self._function = files.candidate, files.function
        self._problem: Problem = about["problem"]
        self._cases: Sequence[Case] = about["cases"]
        self._secrets = (files.reference, files.problem)
        self.report = Report(files.candidate, files.reference, str(judge.target))
        self._counts = _Counts()
        self._sessions: list[int] = []
        self._bits: dict[int, list[bytes]] = {}  # of right results, by case
        self._seen: set[tuple[Any, ...]] = set()

    # ---- findings and evidence -----------------------------------------------------------------

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

    def _evidence(self, name: str, status: str, text: str, needed: bool = True) -> None:
        self.report.evidence.append(Evidence(name, status, text, needed))

    def _graded(self, name: str, before: int, text: str) -> None:
        """Add evidence that passed if no error or doubt came since there were `before` findings."""
        grave = [one for one in self.report.findings[before:] if one.severity in ("error", "doubt")]
        self._evidence(name, "failed" if grave else "passed", text)

    # ---- the candidate's process ---------------------------------------------------------------

    def _open(self) -> int:
        texts = source.members(self._path, self._secrets)
        folder = host.folder()
        limits = Confinement(host.libraries(), (folder, "/dev/null"))
        main = os.path.basename(self._path)
        secrets = tuple(os.path.basename(one) for one in self._secrets if one)
        spec = Spec(texts, main, self._function, folder, limits, secrets, len(self._problem.inputs))
        number: int = self._judge.at_host("open", spec)
        self._sessions.append(number)
        return number

    def _ask(self, session: int, method: str, *values: Any, limit: float = 120.0) -> Any:
        """Return the answer of the candidate's process.

        Raises:
            _Stopped: there is none.
        """
        kind, value = self._judge.at_host(
            "call", session, limit, method, *values, limit=limit + 60.0
        )
        if kind == "done":
            return value
        if kind == "ended":
            how, hung, output = value
            last = "\n".join(output.strip().splitlines()[-3:])
            self._find("call.hang" if hung else "call.crashed", str(how), last)
        else:
            self._find("call.crashed", f"the candidate's process answers: {value}")
        raise _Stopped

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
        outcome: Outcome = self._ask(session, "load")
        self._events(outcome, "")
        if outcome.error is not None:
            error = outcome.error
            self._find(
                "call.failed", f"the file cannot be loaded: {error['class']}: {_line(error['text'])}",
                file=error["file"], line=error["line"],
            )  # fmt: skip
            raise _Stopped

    def _call(self, session: int, case: int, variant: int = 0, **options: Any) -> Outcome:
        values = self._judge.examine("inputs", case, variant)
        left = max(5.0, self._limits.deadline + 30.0 - time.monotonic())
        limit = min(self._limits.patience, left)
        call = Call(values, timeout=0.8 * limit, **options)
        outcome: Outcome = self._ask(session, "call", call, limit=limit)
        self._counts.calls += 1
        for kernel, _, by, count in outcome.launches:
            self._counts.launches[kernel, by] += count
        self._counts.operations.update(outcome.operations)
        self._counts.schedules.add(f"{call.schedule} {call.seed}")
        self._events(outcome, str(self._cases[case]))
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

    # ---- comparison ------------------------------------------------------------------------------

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
        text = f"{error['class']}: {_line(error['text'])}"
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

    # ---- the checks --------------------------------------------------------------------------------

    def run(self) -> Report:
        """Check the candidate until all is checked, time is over, or its process is gone."""
        texts = source.members(self._path, self._secrets)
        for seen in source.scan(texts):
            self._find(seen.code, seen.text, severity=seen.severity, file=seen.file, line=seen.line)
        try:
            session = self._open()
            self._loaded(session, first=True)
            for check in (
                self._check_results, self._check_schedules, self._check_memory, self._check_repeats,
                self._check_work, self._check_special, self._check_proof, self._check_fresh,
            ):  # fmt: skip
                if check != self._check_results and not self._bits:
                    text = "no listed case has a right result"
                    self._evidence(check.__name__.removeprefix("_check_"), "skipped", text)
                    continue
                if not self._left():
                    self._evidence(
                        check.__name__.removeprefix("_check_"), "skipped", "time is over"
                    )
                    continue
                check(session)
            self._check_libraries()
        except _Stopped:
            self._evidence("calls", "failed", "the candidate's process ended early")
        finally:
            for number in self._sessions:
                self._judge.forget(number)
        return self.report

    def _listed(self) -> list[int]:
        return [at for at, case in enumerate(self._cases) if case.usual and case.listed]

    def _smallest(self) -> int:
        return min(self._listed(), key=lambda at: _size(self._cases[at]))

    def _check_results(self, session: int) -> None:
        before, done = len(self.report.findings), 0
        usual = [
            at for at, case in enumerate(self._cases) if case.usual and 0 not in case.sizes.values()
        ]
        for at in usual:
            if not self._left() and done:
                break
            outcome = self._call(session, at)
            if self._compared(at, outcome) and outcome.results is not None:
                self._bits[at] = [one.data for one in outcome.results]
            elif outcome.results and not done:
                self._unwritten(session, at, outcome)
            done += 1
        if done < len(usual):
            self._evidence("results", "skipped", f"{done} of {len(usual)} cases within the time")
            return
        self._graded("results", before, f"{done} cases against float64 and the same precision")
        by = Counter[str]()
        for (_, executor), count in self._counts.launches.items():
            by[executor or "the simulator, with every check on"] += count
        ran = "; ".join(f"{count} launches by {name}" for name, count in by.items())
        grave = ("sync", "memory", "limits")
        wrong = any(
            one.code.startswith(grave) and one.severity == "error" for one in self.report.findings
        )
        if ran:
            self._evidence("kernels", "failed" if wrong else "passed", ran)
        else:
            text = "no kernel was launched: races, deadlocks and addresses were not looked at"
            self._evidence("kernels", "skipped", text, needed=False)

    def _check_schedules(self, session: int) -> None:
        before = len(self.report.findings)
        cases = sorted(self._listed(), key=lambda at: _size(self._cases[at]))[:2]
        names: list[str] = []
        for at in cases:
            if at not in self._bits:
                continue
            again = self._call(session, at)
            if not self._compared(at, again, 0, "cache.result"):
                del self._bits[at]
                continue
            if self._bits[at] != [one.data for one in again.results or []]:
                self._differs(at, "in a second run")
            for schedule, seed, order in _SCHEDULES:
                if not self._left() and names:
                    break
                outcome = self._call(session, at, schedule=schedule, seed=seed, order=order)
                right = self._compared(at, outcome, 0, "order.wrong")
                names.append(schedule)
                bits = [one.data for one in outcome.results or []]
                if right and bits != self._bits[at]:
                    self._differs(at, f"under the schedule {schedule}")
        counts = ", ".join(f"{count} {name}" for name, count in Counter(names).items())
        self._graded("schedules", before, f"{counts} (after the latest), programs in other orders")

    def _differs(self, at: int, when: str) -> None:
        severity = "error" if self._problem.deterministic else ""
        text = f"the result has other bits {when}"
        self._find("order.differs", text, case=str(self._cases[at]), severity=severity)

    def _check_memory(self, session: int) -> None:
        """Fill new memory with another pattern: nothing may change."""
        before, at = len(self.report.findings), self._smallest()
        if not self._varies():
            self._unwritten(session, at, self._call(session, at))
        self._graded(
            "memory",
            before,
            "results with two patterns in new memory; inputs compared after each call",
        )

    def _unwritten(self, session: int, at: int, first: Outcome) -> None:
        other = self._call(session, at, poison=POISONS[1])
        pairs = zip(first.results or [], other.results or [])
        if any(one.data != two.data for one, two in pairs):
            text = "elements of the result hold whatever memory held before"
            self._find("output.unwritten", text, case=str(self._cases[at]))

    def _check_repeats(self, session: int) -> None:
        """Call again with other values at the same addresses, then with the first ones."""
        before, at = len(self.report.findings), self._smallest()
        self._call(session, at)
        done = 0
        for number in range(1, REPEATS + 1):
            if not self._left():
                break
            variant = number % 3
            outcome = self._call(session, at, variant=variant, again=number % 4 != 3)
            if at in self._bits and self._schedules_agree():
                code = "cache.pointer" if number == 1 else "cache.result"
                self._compared(at, outcome, variant, code)
            done += 1
        self._graded(
            "repeats", before, f"{done} calls with permuted values, most at the same addresses"
        )

    def _check_work(self, session: int) -> None:
        before = len(self.report.findings)
        at = max(self._listed(), key=lambda one: _size(self._cases[one]))
        if not self._affordable(at):
            at = self._smallest()
        required: dict[str, float] = self._judge.examine("required", at)
        outcome = self._call(session, at, profile=True)
        counts = outcome.counts
        flops = counts.get("flops", 0.0) + outcome.flops
        interpreted = any(by for _, _, by, _ in outcome.launches)
        case = str(self._cases[at])
        numbers = [f"{flops:.4g} operations, {required['flops']:.4g} required"]
        least = _LEAST_WORK if required["declared"] else _LEAST_DERIVED
        if not interpreted:
            done = flops + (outcome.elements if not required["declared"] else 0)
            if required["flops"] and done < least * required["flops"]:
                self._find(
                    "work.flops",
                    f"{done / required['flops']:.0%} of the required operations were done",
                    numbers[0],
                    case,
                )
            moved = counts.get("written", 0.0) + 8.0 * outcome.elements
            if required["written"] and not outcome.launches and not outcome.elements:
                self._find("work.none", "no kernel and no operation led to the result", case=case)
            elif outcome.launches and moved < required["written"]:
                text = f"kernels wrote {moved:.0f} bytes, the result has {required['written']:.0f}"
                self._find("work.bytes", text, case=case)
            if (
                required.get("bytes")
                and counts
                and counts["footprint"] + 8.0 * outcome.elements < 0.9 * required["bytes"]
            ):
                text = f"kernels touched {counts['footprint']:.0f} bytes, the problem requires {required['bytes']:.0f}"
                self._find("work.bytes", text, case=case)
            numbers.append(
                f"{counts.get('read', 0.0):.0f} bytes read, {counts.get('written', 0.0):.0f} written"
            )
            self._graded("work", before, "; ".join(numbers))
        else:
            text = "Triton's interpreter counts neither operations nor bytes"
            self._evidence("work", "skipped", text, needed=False)
        products = sum(outcome.operations.get(name, 0) for name in outcome.products)
        if outcome.launches and products and outcome.flops > 0.5 * max(required["flops"], 1.0):
            text = f"torch did {outcome.flops:.4g} of {required['flops']:.4g} operations ({', '.join(outcome.products)})"
            self._find("library.dominates", text, case=case)
        self._check_claim(at, required)

    def measure(self, function: str) -> None:
        """Compare results on the GPU, and measure rates against the reference."""
        files = {
            "candidate": (self._path, self._function),
            "reference": (self._secrets[0], function),
        }
        sessions: dict[str, int] = {}
        try:
            for name, (path, entry) in files.items():
                secrets = self._secrets if name == "candidate" else ()
                spec = gpu.spec_for(path, entry, self._problem, secrets)
                try:
                    sessions[name] = self._judge.at_gpu("open", spec)
                except JudgeError as error:
                    raise _Stopped(str(error)) from None
                layers = self._ask_gpu(sessions[name], name, "layers")
                loaded: Outcome = self._ask_gpu(sessions[name], name, "load")
                if loaded.error is not None:
                    raise _Stopped(f"{name}: {loaded.error['text']}")
            held = ", ".join(one.name for one in layers if one.holds)
            timed = [at for at, case in enumerate(self._cases) if case.timed]
            self.report.measured = {"rates": [self._rates(at, sessions) for at in timed]}
            before = [
                one for one in self.report.findings if one.code.startswith(("gpu", "physics"))
            ]
            self._evidence(
                "gpu",
                "failed" if before else "passed",
                f"{len(timed)} cases, {gpu.ROUNDS} rounds each; confined: {held}",
            )
        except _Stopped as stopped:
            self._evidence("gpu", "failed", str(stopped))
        finally:
            for number in sessions.values():
                self._judge.at_gpu("close", number)

    def _ask_gpu(self, session: int, name: str, method: str, *values: Any) -> Any:
        limit = self._limits.patience * 4
        kind, value = self._judge.at_gpu(
            "call", session, limit, method, *values, limit=limit + 60.0
        )
        if kind == "done":
            return value
        if kind == "error":
            if name == "candidate":
                self._find("call.failed", f"on the GPU: {value}")
            raise _Stopped(f"{name}: {value}")
        how, hung, output = value
        last = "\n".join(output.strip().splitlines()[-3:])
        if name == "candidate":
            self._find("call.hang" if hung else "call.crashed", f"on the GPU: {how}", last)
        raise _Stopped(f"{name}: {how}\n{last}")

    def _rates(self, at: int, sessions: Mapping[str, int]) -> dict[str, Any]:
        case = self._cases[at]
        call = gpu.first_call(self._judge.examine("inputs", at, 0))
        first: dict[str, Sample] = {}
        for name, session in sessions.items():
            self._ask_gpu(session, name, "prepare", call)
            first[name] = self._ask_gpu(session, name, "sample", True)
        differences = self._judge.examine(
            "agree", at, first["candidate"].results, first["reference"].results
        )
        wrong = gpu.worst(differences)
        if wrong is not None:
            self._find(wrong.code, f"on the GPU: {wrong.text}", wrong.numbers, str(case))
        samples: dict[str, list[Sample]] = {"candidate": [], "reference": []}
        for order in gpu.orders(case.seed):
            for name in order:
                samples[name].append(self._ask_gpu(sessions[name], name, "sample", False))
        busy = gpu.late(samples["candidate"])
        if busy is not None:
            self._find("gpu.late", busy, case=str(case))
        rates = gpu.rates(samples, case)
        bound, text = self._bound(at, self._judge.examine("required", at))
        rates["roofline_seconds"] = bound
        if bound and rates["candidate_seconds"] < 0.9 * bound:
            numbers = f"measured {rates['candidate_seconds']:.3g} s, least {bound:.3g} s: {text}"
            self._find(
                "physics.roofline", "the measured time is below the roofline", numbers, str(case)
            )
        return rates

    def _affordable(self, at: int) -> bool:
        return _size(self._cases[at]) <= 4 * _size(self._cases[self._smallest()])

    def _check_claim(self, at: int, required: dict[str, float]) -> None:
        if self._limits.claim is None:
            return
        at = max(self._listed(), key=lambda one: _size(self._cases[one]))
        required = self._judge.examine("required", at)
        bound, text = self._bound(at, required)
        if not bound:
            self._evidence("claim", "skipped", "the target's peak rates are not known")
            return
        if self._limits.claim < bound:
            numbers = f"claimed {self._limits.claim:.3g} s, least {bound:.3g} s: {text}"
            self._find(
                "physics.roofline",
                "the claimed time is below the roofline",
                numbers,
                str(self._cases[at]),
            )
            self._evidence("claim", "failed", numbers)
        else:
            self._evidence(
                "claim", "passed", f"{self._limits.claim:.3g} s, roofline {bound:.3g} s: {text}"
            )

    def _bound(self, at: int, required: dict[str, float]) -> tuple[float, str]:
        """Return the least seconds for the required work of a case, and the reason."""
        peaks = self._judge.target.architecture.peaks
        values = self._judge.examine("inputs", at, 0)
        moved = required.get("bytes") or required["written"] + sum(
            len(getattr(one, "data", b"")) for one in values
        )
        kinds = [
            value for name, value in peaks.items() if name not in ("global", "shared", "vector")
        ]
        times = {}
        if "global" in peaks:
            times["bytes"] = moved / peaks["global"]
        if kinds and required["flops"]:
            times["operations"] = required["flops"] / max(kinds)
        if not times:
            return 0.0, ""
        name = max(times, key=lambda one: times[one])
        amount = moved if name == "bytes" else required["flops"]
        return times[name], f"{amount:.4g} {name}"

    def _check_special(self, session: int) -> None:
        before, done = len(self.report.findings), 0
        others = [
            at
            for at, case in enumerate(self._cases)
            if at not in self._bits and at not in self._listed() and not case.timed
        ]
        for at in others:
            if not self._left():
                break
            self._compared(at, self._call(session, at))
            done += 1
        if done < len(others):
            self._evidence("special", "skipped", f"{done} of {len(others)} within the time")
            return
        kinds = [
            self._cases[at].fill if self._cases[at].fill != "drawn" else self._cases[at].layout
            for at in others
        ]
        self._graded("special", before, ", ".join(dict.fromkeys(kinds)) or "no floating inputs")

    def _check_proof(self, session: int) -> None:
        """Ask the prover about each kernel, and the compiler for the hardware's limits."""
        from gluon_core.registry.load import registry

        before = len(self.report.findings)
        outcome = self._call(session, self._smallest(), compiles=True)
        for kernel, facts in outcome.compiled:
            if "error" in facts:
                self._find(
                    "limits.compile", f"{kernel} does not compile for the hardware", facts["error"]
                )
            elif facts.get("spills"):
                self._find("limits.spills", f"{kernel} spills {facts['spills']} registers")
        if outcome.compiled:
            text = "; ".join(
                f"{kernel}: {facts.get('registers')} registers"
                for kernel, facts in outcome.compiled
            )
            self._graded("limits", before, text)
        simulated_ones = any(not by for _, by in self._counts.launches)
        if "prove" not in registry().offers("service") or not simulated_ones:
            text = "no kernel for the prover" if not simulated_ones else "no prover is installed"
            self._evidence("proof", "skipped", text, needed=False)
            return
        before = len(self.report.findings)
        outcome = self._call(session, self._smallest(), prove=5.0)
        error = outcome.error
        if error is not None and error["report"]:
            self._find(
                "sync.counterexample",
                _line(error["text"]),
                error["text"],
                file=error["file"],
                line=error["line"],
            )
        verdicts = [f"{name}: {verdict}" for verdict, name, _ in outcome.proofs]
        proved = bool(verdicts) and all(verdict == "proved" for verdict, _, _ in outcome.proofs)
        status = (
            "failed" if len(self.report.findings) > before else "passed" if proved else "skipped"
        )
        self._evidence(
            "proof",
            status,
            "; ".join(dict.fromkeys(verdicts)) or "no kernel",
            needed=status == "failed",
        )

    def _check_fresh(self, session: int) -> None:
        """Run the cases in the opposite order in a new process: no bit may differ."""
        before = len(self.report.findings)
        fresh = self._open()
        self._loaded(fresh, first=False)
        done = 0
        for at in reversed(self._listed()[:4]):
            if not self._left() and done:
                break
            outcome = self._call(fresh, at)
            bits = [one.data for one in outcome.results or []]
            if at not in self._bits or not self._schedules_agree():
                continue
            if bits != self._bits[at] and not self._varies():
                text = "a new process returns other bits for the same inputs"
                self._find("state.kept", text, case=str(self._cases[at]))
            else:
                self._compared(at, outcome, 0, "state.kept")
            done += 1
        self._graded(
            "fresh process", before, f"{done} cases in the opposite order, with the same bits"
        )

    def _schedules_agree(self) -> bool:
        """Return False where a right result already depends on the schedule, and no more follows from a wrong one."""
        return all(one.code != "order.wrong" for one in self.report.findings)

    def _varies(self) -> bool:
        return any(one.code == "order.differs" for one in self.report.findings)

    def _check_libraries(self) -> None:
        forbidden = []
        for name, count in self._counts.operations.items():
            if (
                "libraries" in self._problem.forbids
                or name in self._problem.forbids
                or f"aten.{name}" in self._problem.forbids
            ):
                forbidden.append(f"aten.{name} ({count})")
        if forbidden:
            self._find("library.called", f"the candidate calls {', '.join(forbidden)}")
        if self._problem.forbids:
            status = "failed" if forbidden else "passed"
            self._evidence("libraries", status, f"forbidden: {', '.join(self._problem.forbids)}")
        elif self._counts.operations:
            names = ", ".join(f"aten.{name}" for name in sorted(self._counts.operations))
            self._evidence(
                "libraries", "skipped", f"nothing is forbidden; called: {names}", needed=False
            )


def _size(case: Case) -> float:
    volume = 1.0
    for size in case.sizes.values():
        volume *= max(1, size)
    return volume


def _line(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else ""
