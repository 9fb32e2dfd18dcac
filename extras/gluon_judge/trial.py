"""A trial of one candidate: all checks, on the simulator and on a GPU."""

from __future__ import annotations

import time
from typing import Any, Mapping

from gluon_judge import gpu, host, source
from gluon_judge.checks import Checks
from gluon_judge.docket import Files, Limits, Stopped
from gluon_judge.errors import JudgeError
from gluon_judge.messages import Call, Outcome, Sample
from gluon_judge.report import Report

__all__ = ["Files", "Limits", "Trial"]


class Trial(Checks):
    """The trial of one candidate."""

    def run(self) -> Report:
        """Check the candidate until all is checked, time is over, or its process is gone."""
        texts = source.members(self._path, self._secrets)
        for seen in source.scan(texts):
            self._find(seen.code, seen.text, severity=seen.severity, file=seen.file, line=seen.line)
        try:
            with self._stage("load"):
                session = self._open()
                self._loaded(session, first=True)
            for check in (
                self._check_results, self._check_schedules, self._check_memory, self._check_repeats,
                self._check_work, self._check_special, self._check_proof, self._check_fresh,
            ):  # fmt: skip
                name = check.__name__.removeprefix("_check_")
                if check != self._check_results and not self._bits:
                    self._evidence(name, "skipped", "no listed case has a right result")
                    continue
                if not self._left():
                    self._evidence(name, "skipped", "time is over")
                    continue
                with self._stage(name):
                    check(session)
                if check == self._check_results:
                    self._begin_fresh()
            self._check_libraries()
        except Stopped:
            self._evidence("calls", "failed", "the candidate's process ended early")
        finally:
            for number in self._sessions:
                self._judge.forget(number)
        return self.report

    def measure(self, function: str) -> None:
        """Compare results on the GPU, and measure rates against the reference."""
        files = {
            "candidate": (self._path, self._function),
            "reference": (self._secrets[0], function),
        }
        sessions: dict[str, int] = {}
        before, until = len(self.report.findings), time.monotonic() + self._limits.within
        try:
            with self._stage("gpu start"):
                for name, (path, entry) in files.items():
                    sessions[name] = self._open_gpu(name, path, entry)
                layers = self._ask_gpu(sessions["candidate"], "candidate", "layers")
            held = ", ".join(one.name for one in layers if one.holds)
            timed = [index for index, case in enumerate(self._cases) if case.timed]
            rates: list[dict[str, Any]] = []
            self.report.measured = {"rates": rates}
            for index in timed:
                if rates and time.monotonic() > until:
                    break
                rates.append(self._rates(index, sessions))
            with self._stage("gpu operations"):
                seen: Outcome = self._ask_gpu(sessions["candidate"], "candidate", "seen")
            self._events(seen, "on the GPU")
            forbidden = self._forbidden(seen.operations)
            if forbidden:
                text = f"on the GPU: the candidate calls {', '.join(forbidden)}"
                self._find("library.called", text)
            text = f"{len(rates)} cases, {gpu.ROUNDS} rounds each; confined: {held}"
            if len(rates) < len(timed):
                self._evidence("gpu", "skipped", f"{len(timed)} cases, but within the time {text}")
            else:
                self._graded("gpu", before, text)
        except (Stopped, JudgeError) as stopped:
            self._evidence("gpu", "failed", f"{self._at_work_on}: {stopped}")
        finally:
            for number in sessions.values():
                self._judge.forget(number, on_gpu=True)

    def _open_gpu(self, name: str, path: str, entry: str) -> int:
        """Return the session of a file on the GPU, which has loaded it.

        Raises:
            Stopped: it does not load, or the GPU cannot be used.
        """
        secrets = self._secrets if name == "candidate" else ()
        spec = gpu.spec_for(path, entry, self._problem, secrets)
        try:
            session: int = self._judge.at_gpu("open", spec, limit=2 * host.START)
        except JudgeError as error:
            raise Stopped(str(error)) from None
        loaded: Outcome = self._ask_gpu(session, name, "load")
        if name == "candidate":
            self._events(loaded, "on the GPU")
        if loaded.error is not None:
            raise Stopped(f"{name}: {loaded.error['text']}")
        return session

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
            raise Stopped(f"{name}: {value}")
        how, hung, output = value
        last = "\n".join(output.strip().splitlines()[-3:])
        if name == "candidate":
            self._find("call.hang" if hung else "call.crashed", f"on the GPU: {how}", last)
        raise Stopped(f"{name}: {how}\n{last}")

    def _rates(self, index: int, sessions: Mapping[str, int]) -> dict[str, Any]:
        """Measure one case: round by round, in random order, and compare results in rounds that the candidate cannot predict."""
        case = self._cases[index]
        self._prepare(index, 0, sessions)
        samples: dict[str, list[Sample]] = {"candidate": [], "reference": []}
        kept = gpu.kept_rounds()
        for number, order in enumerate(gpu.orders(case.seed)):
            results = {}
            for name in order:
                one = self._sampled(name, sessions, number in kept, first=number == 0)
                samples[name].append(one)
                results[name] = one.results
            if number in kept:
                self._agree(index, results, "result.wrong" if number == 0 else "cache.result")
        self._prepare(index, 1, sessions)
        results = {name: self._sampled(name, sessions, True).results for name in sessions}
        self._agree(index, results, "cache.pointer")
        busy = gpu.late(samples["candidate"])
        if busy is not None:
            self._find("gpu.late", busy, case=str(case))
        rates = gpu.rates(samples, case)
        written = sum(len(one.data) for one in results["reference"])
        bound, text = self._bound(self._judge.examine("demanded", index, written))
        rates["roofline_seconds"] = bound
        if bound and rates["candidate_seconds"] < 0.9 * bound:
            numbers = f"measured {rates['candidate_seconds']:.3g} s, least {bound:.3g} s: {text}"
            self._find(
                "physics.roofline", "the measured time is below the roofline", numbers, str(case)
            )
        with self._stage("gpu calls by another clock"):
            self._confirm(index, sessions, rates)
        return rates

    def _sampled(
        self, name: str, sessions: Mapping[str, int], keep: bool, first: bool = False
    ) -> Sample:
        with self._stage(f"gpu {'first' if first else 'timed'} calls of the {name}"):
            sample: Sample = self._ask_gpu(sessions[name], name, "sample", keep)
        return sample

    def _prepare(self, index: int, variant: int, sessions: Mapping[str, int]) -> None:
        """Hand out the inputs of a case; those of a variant go where the ones before are."""
        with self._stage("gpu inputs"):
            values = self._judge.examine("inputs", index, variant, limit=self._limits.patience * 4)
            for name, session in sessions.items():
                self._ask_gpu(session, name, "prepare", Call(values, again=variant > 0))

    def _agree(self, index: int, results: Mapping[str, Any], code: str) -> None:
        with self._stage("gpu comparison"):
            pair = results["candidate"], results["reference"]
            limit = self._limits.patience * 4
            differences = self._judge.examine("agree", index, *pair, limit=limit)
        wrong = gpu.worst(differences)
        if wrong is not None:
            code = wrong.code if code == "result.wrong" else code
            self._find(code, f"on the GPU: {wrong.text}", wrong.numbers, str(self._cases[index]))

    def _confirm(self, index: int, sessions: Mapping[str, int], rates: dict[str, Any]) -> None:
        """Time many calls in a row by the clock of this process, which the candidate cannot reach."""
        seconds: float = rates["candidate_seconds"]
        count = max(2, min(gpu.MOST_IN_A_ROW, round(gpu.IN_A_ROW / max(seconds, 1e-6))))
        times, results = {}, {}
        for number in (1, 1 + count):
            for name in ("reference", "candidate") if number == 1 else ("candidate",):
                started = time.perf_counter()
                results[name] = self._ask_gpu(sessions[name], name, "repeat", number).results
                times[number] = time.perf_counter() - started
        self._agree(index, results, "cache.result")
        outside = max(0.0, (times[1 + count] - times[1]) / count)
        rates["outside_seconds"] = outside
        if outside > gpu.SLOWER * seconds + gpu.HOST:
            numbers = (
                f"{count} calls: {outside:.3g} s each by a clock outside, {seconds:.3g} s by events"
            )
            self._find(
                "gpu.clock", "its events measure less than a clock outside", numbers, str(self._cases[index])
            )  # fmt: skip
