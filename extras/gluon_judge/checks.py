"""The checks on one candidate without a GPU."""

from __future__ import annotations

from collections import Counter
from typing import Mapping

from gluon_judge.docket import first_line, size_of
from gluon_judge.messages import Outcome
from gluon_judge.work import Work

__all__ = ["Checks"]

POISONS = (0xFF, 0x3C)  # bytes of new memory: NaN for every floating type, then small numbers
REPEATS = 8  # calls with other values at the same addresses
BURST = 100  # calls in a row, as far as they fit into some seconds
_SCHEDULES = (("eager", 0, 1), ("random", 1, 2), ("random", 2, 3))  # schedule, seed, order


class Checks(Work):
    """The checks, in their order."""

    def _check_results(self, session: int) -> None:
        before, done = len(self.report.findings), 0
        usual = [
            index
            for index, case in enumerate(self._cases)
            if case.usual and 0 not in case.sizes.values()
        ]
        for index in usual:
            if not self._left() and done:
                break
            outcome = self._call(session, index)
            if self._compared(index, outcome) and outcome.results is not None:
                self._bits[index] = [one.data for one in outcome.results]
            elif outcome.results and not done:
                self._unwritten(session, index, outcome)
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
        cases = sorted(self._listed(), key=lambda index: size_of(self._cases[index]))[:2]
        names: list[str] = []
        for index in cases:
            if index not in self._bits:
                continue
            again = self._call(session, index)
            if not self._compared(index, again, 0, "cache.result"):
                del self._bits[index]
                continue
            if self._bits[index] != [one.data for one in again.results or []]:
                self._differs(index, "in a second run")
            for schedule, seed, order in _SCHEDULES:
                if not self._left() and names:
                    break
                outcome = self._call(session, index, schedule=schedule, seed=seed, order=order)
                right = self._compared(index, outcome, 0, "order.wrong")
                names.append(schedule)
                bits = [one.data for one in outcome.results or []]
                if right and bits != self._bits[index]:
                    self._differs(index, f"under the schedule {schedule}")
        counts = ", ".join(f"{count} {name}" for name, count in Counter(names).items())
        self._graded("schedules", before, f"{counts} (after the latest), programs in other orders")

    def _differs(self, index: int, when: str) -> None:
        severity = "error" if self._problem.deterministic else ""
        text = f"the result has other bits {when}"
        self._find("order.differs", text, case=str(self._cases[index]), severity=severity)

    def _check_memory(self, session: int) -> None:
        """Fill new memory with another pattern: nothing may change."""
        before, smallest = len(self.report.findings), self._smallest()
        if not self._varies():
            self._unwritten(session, smallest, self._call(session, smallest))
        self._graded(
            "memory",
            before,
            "results with two patterns in new memory; inputs compared after each call",
        )

    def _unwritten(self, session: int, index: int, first: Outcome) -> None:
        other = self._call(session, index, poison=POISONS[1])
        pairs = zip(first.results or [], other.results or [])
        if any(one.data != two.data for one, two in pairs):
            text = "elements of the result hold whatever memory held before"
            self._find("output.unwritten", text, case=str(self._cases[index]))

    def _check_repeats(self, session: int) -> None:
        """Call again with other values at the same addresses, then with the first ones."""
        before, smallest = len(self.report.findings), self._smallest()
        self._call(session, smallest)
        done = 0
        for number in range(1, REPEATS + 1):
            if not self._left():
                break
            variant = number % 3
            outcome = self._call(session, smallest, variant=variant, again=number % 4 != 3)
            if smallest in self._bits and self._schedules_agree():
                code = "cache.pointer" if number == 1 else "cache.result"
                self._compared(smallest, outcome, variant, code)
            done += 1
        more = self._burst(session, smallest)
        self._graded(
            "repeats",
            before,
            f"{done} calls with permuted values, most at the same addresses{more}",
        )

    def _burst(self, session: int, index: int) -> str:
        """Call many times in a row; return a note about it."""
        if index not in self._bits or not self._left():
            return ""
        outcome = self._call(session, index, burst=BURST)
        if self._schedules_agree():
            self._compared(index, outcome, 0, "cache.result")
            if outcome.odd and not self._varies():
                text = f"call {outcome.odd} in a row with the same inputs returns other bits"
                self._find("cache.result", text, case=str(self._cases[index]))
        return f"; up to {BURST} in a row"

    def _check_special(self, session: int) -> None:
        before, done = len(self.report.findings), 0
        others = [
            index
            for index, case in enumerate(self._cases)
            if index not in self._bits and index not in self._listed() and not case.timed
        ]
        for index in others:
            if not self._left():
                break
            self._compared(index, self._call(session, index))
            done += 1
        if done < len(others):
            self._evidence("special", "skipped", f"{done} of {len(others)} within the time")
            return
        kinds = [
            self._cases[index].fill
            if self._cases[index].fill != "drawn"
            else self._cases[index].layout
            for index in others
        ]
        self._graded("special", before, ", ".join(dict.fromkeys(kinds)) or "no floating inputs")

    def _check_proof(self, session: int) -> None:
        """Ask the prover about each kernel."""
        from gluon_core.registry.load import registry

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
                first_line(error["text"]),
                error["text"],
                file=error["file"],
                line=error["line"],
            )
        verdicts = [f"{name}: {verdict}" for verdict, name, _ in outcome.proofs]
        assumed = [
            line.partition(": ")[2]
            for _, _, lines in outcome.proofs
            for line in lines
            if "gl.assume" in line
        ]
        proved = bool(verdicts) and all(verdict == "proved" for verdict, _, _ in outcome.proofs)
        status = (
            "failed" if len(self.report.findings) > before else "passed" if proved else "skipped"
        )
        self._evidence(
            "proof",
            status,
            "; ".join(dict.fromkeys([*verdicts, *assumed])) or "no kernel",
            needed=status == "failed",
        )

    def _begin_fresh(self) -> None:
        """Let a new process call the cases in the opposite order, and compile, while other checks run."""
        if self._bits and self._left():
            cases = [*reversed(self._listed()[:4])]
            cases.sort(key=lambda index: index == self._smallest())
            self._series = self._begin(self._open(), cases, compiles=True)

    def _check_fresh(self, session: int) -> None:
        """Compare the results of a new process: no bit may differ."""
        if self._series is None:
            self._evidence("fresh process", "skipped", "time is over")
            return
        before, done = len(self.report.findings), 0
        *outcomes, compiled = self._finish(self._series)
        for index, outcome in zip(self._series.cases, outcomes):
            bits = [one.data for one in outcome.results or []]
            if index not in self._bits or not self._schedules_agree():
                continue
            if bits != self._bits[index] and not self._varies():
                text = "a new process returns other bits for the same inputs"
                self._find("state.kept", text, case=str(self._cases[index]))
            else:
                self._compared(index, outcome, 0, "state.kept")
            done += 1
        self._graded(
            "fresh process", before, f"{done} cases in the opposite order, with the same bits"
        )
        self._check_limits(compiled)

    def _check_limits(self, outcome: Outcome) -> None:
        """Add the compiler's facts about each kernel on the hardware."""
        before = len(self.report.findings)
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

    def _schedules_agree(self) -> bool:
        """Return False if a result already depended on the schedule: other bits then prove nothing more."""
        return all(one.code != "order.wrong" for one in self.report.findings)

    def _varies(self) -> bool:
        return any(one.code == "order.differs" for one in self.report.findings)

    def _forbidden(self, operations: Mapping[str, int]) -> list[str]:
        """Return the operations that the problem forbids, with their counts."""
        forbids = self._problem.forbids
        return [
            f"aten.{name} ({count})"
            for name, count in operations.items()
            if "libraries" in forbids or name in forbids or f"aten.{name}" in forbids
        ]

    def _check_libraries(self) -> None:
        forbidden = self._forbidden(self._counts.operations)
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
