"""The work that a candidate does, against the work that the problem requires."""

from __future__ import annotations

from typing import Mapping

from gluon_judge.docket import Docket, size_of
from gluon_judge.messages import Outcome

__all__ = ["Work"]

_LEAST_WORK = 0.7  # of operations that the problem declares
_LEAST_AGAIN = 0.6  # of the work of a call with new inputs
_UNSEEN = 101  # a variant of the inputs that no other check uses
_LEAST_DERIVED = 0.4  # ... that follow from the reference: there are better algorithms


class Work(Docket):
    """The checks on operations, bytes and times."""

    def _check_work(self, session: int) -> None:
        before = len(self.report.findings)
        index = max(self._listed(), key=lambda one: size_of(self._cases[one]))
        if not self._affordable(index):
            index = self._smallest()
        required: dict[str, float] = self._judge.examine("required", index)
        outcome = self._call(session, index, profile=True)
        counts, case = outcome.counts, str(self._cases[index])
        flops = counts.get("flops", 0.0) + outcome.flops
        interpreted = any(by for _, _, by, _ in outcome.launches)
        numbers = [f"{flops:.4g} operations, {required['flops']:.4g} required"]
        if interpreted:
            text = "Triton's interpreter counts neither operations nor bytes"
            self._evidence("work", "skipped", text, needed=False)
        else:
            self._compare_flops(required, flops, outcome, case)
            self._compare_bytes(required, outcome, case)
            read, written = counts.get("read", 0.0), counts.get("written", 0.0)
            numbers.append(f"{read:.0f} bytes read, {written:.0f} written")
        self._compare_with_new_values(session, index, outcome)
        self._compare_without_kernels(session, index, outcome)
        if not interpreted:
            self._graded("work", before, "; ".join(numbers))
        products = sum(outcome.operations.get(name, 0) for name in outcome.products)
        if outcome.launches and products and outcome.flops > 0.5 * max(required["flops"], 1.0):
            text = f"torch did {outcome.flops:.4g} of {required['flops']:.4g} operations ({', '.join(outcome.products)})"
            self._find("library.dominates", text, case=case)
        self._check_claim(required)

    def _compare_flops(
        self, required: Mapping[str, float], flops: float, outcome: Outcome, case: str
    ) -> None:
        least = _LEAST_WORK if required["declared"] else _LEAST_DERIVED
        done = flops + (outcome.elements if not required["declared"] else 0)
        if required["flops"] and done < least * required["flops"]:
            text = f"{done / required['flops']:.0%} of the required operations were done"
            numbers = f"{flops:.4g} operations, {required['flops']:.4g} required"
            self._find("work.flops", text, numbers, case)

    def _compare_bytes(self, required: Mapping[str, float], outcome: Outcome, case: str) -> None:
        """Compare written bytes with those of the result, of which copies produce none."""
        counts, computed = outcome.counts, 8.0 * outcome.elements
        produced = counts.get("written", 0.0) + computed
        copied = outcome.copied if required["copies"] or outcome.launches else 0.0
        if not required["written"]:
            return
        if not outcome.launches and not outcome.elements and not copied:
            if not required["copies"]:
                self._find("work.none", "no kernel and no operation led to the result", case=case)
        elif (
            produced + copied < required["written"]
            or not required["copies"]
            and produced < required["elements"]
        ):
            text = f"kernels and operations produced {produced:.0f} bytes, the result has {required['written']:.0f}"
            self._find("work.bytes", text, case=case)
        if required.get("bytes") and counts:
            touched = counts["footprint"] + computed
            if touched < 0.9 * required["bytes"]:
                text = f"kernels touched {touched:.0f} bytes, the problem requires {required['bytes']:.0f}"
                self._find("work.bytes", text, case=case)

    def _compare_without_kernels(self, session: int, index: int, known: Outcome) -> None:
        """Call with launches that do nothing: a result that is right all the same came from elsewhere."""
        if not known.launches or index not in self._bits or not self._bits[index]:
            return
        outcome = self._call(session, index, skips=True)
        if (
            outcome.error is None
            and [one.data for one in outcome.results or []] == self._bits[index]
        ):
            text = "the result is the same if the launched kernels do nothing"
            severity = "error" if self._problem.forbids else ""
            self._find("work.show", text, case=str(self._cases[index]), severity=severity)

    def _compare_with_new_values(self, session: int, index: int, known: Outcome) -> None:
        """Compare the work of a call whose inputs were seen before with that of one whose inputs are new."""
        fresh = self._call(session, index, variant=_UNSEEN, profile=True)
        for name, mine, theirs in zip(
            ("launches", "bytes", "operations"), _done(known), _done(fresh)
        ):
            if theirs and mine < _LEAST_AGAIN * theirs:
                text = f"a call with inputs that were seen before does {mine / theirs:.0%} of the work of one with new inputs"
                numbers = f"{name}: {mine:.4g}, {theirs:.4g} with new inputs"
                self._find("cache.result", text, numbers, str(self._cases[index]))
                return

    def _affordable(self, index: int) -> bool:
        return size_of(self._cases[index]) <= 4 * size_of(self._cases[self._smallest()])

    def _check_claim(self, required: dict[str, float]) -> None:
        if self._limits.claim is None:
            return
        index = max(self._listed(), key=lambda one: size_of(self._cases[one]))
        required = self._judge.examine("required", index)
        bound, text = self._bound(required)
        if not bound:
            self._evidence("claim", "skipped", "the target's peak rates are not known")
            return
        if self._limits.claim < bound:
            numbers = f"claimed {self._limits.claim:.3g} s, least {bound:.3g} s: {text}"
            self._find(
                "physics.roofline",
                "the claimed time is below the roofline",
                numbers,
                str(self._cases[index]),
            )
            self._evidence("claim", "failed", numbers)
        else:
            self._evidence(
                "claim", "passed", f"{self._limits.claim:.3g} s, roofline {bound:.3g} s: {text}"
            )

    def _bound(self, required: dict[str, float]) -> tuple[float, str]:
        """Return the least seconds for the required work of a case, and the reason."""
        peaks = self._judge.target.architecture.peaks
        moved = required.get("bytes") or required["written"] + required["arguments"]
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


def _done(outcome: Outcome) -> tuple[float, float, float]:
    """Return the launches, the written bytes and the operations of a call."""
    launches = sum(count for _, _, _, count in outcome.launches)
    written = outcome.counts.get("written", 0.0) + 8.0 * outcome.elements
    return float(launches), written, outcome.counts.get("flops", 0.0) + outcome.flops
