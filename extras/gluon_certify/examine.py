"""The examination of launches: each on the simulator and as machine code, over schedules, from equal memory."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Sequence

import numpy as np

from gluon_certify.blame import blame
from gluon_certify.certificate import Compared, Examined, Finding, KernelPart, TargetPart
from gluon_certify.coverage import Counted
from gluon_certify.limits import not_modelled
from gluon_certify.regions import Memory, memory_of
from gluon_certify.subject import ROUNDING, Failed, Subject, compared, settings_of
from gluon_cli.evidence import place
from gluon_core.compiler.kernel import CompiledKernel
from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DeviceError,
    GluonError,
    LimitError,
    StageError,
)
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.targets import Target
from gluon_core.simulation import evidence

__all__ = ["Examiner", "Plan"]

_PLAIN = (
    "A kernel under @triton.jit has no simulator to be compared with. Run `python -m gluon_standin` to execute its machine "
    "code on the emulator, or make it a Gluon kernel: gluon port FILE."
)

_NARROWED = re.compile(
    r"(?:truncf|fp_to_fp).*->.*?x?(f16|bf16|f8E\w+)\b|truncf.* to .*?x(f16|bf16|f8E\w+)"
)
_IN_IR = {"f16": "fp16", "bf16": "bf16"}
_UNABLE = (ArgumentError, CapabilityError, DeviceError, LimitError, StageError)
_LIMITS = ("UnknownInstructionError", "TimeLimitError")


@dataclass(frozen=True)
class Plan:
    """The extent of an examination.

    Args:
        schedules: runs of each launch by each executor.
        seed: of the first random schedule.
        launches: of one form of a kernel that are examined.
        timeout: seconds of one run.
        tolerance: share of the largest magnitude that rounding may change; None derives it from the types.
        prove: seconds for the proof of each form; None for no proof.
        blame: find the origin of a mistake in machine code.
    """

    schedules: int = 10
    seed: int = 0
    launches: int = 4
    timeout: float = 120.0
    tolerance: Optional[float] = None
    prove: Optional[float] = None
    blame: bool = False

    def orders(self) -> list[dict[str, Any]]:
        """Return the settings of each run."""
        named: list[dict[str, Any]] = [{"schedule": "latest"}, {"schedule": "eager"}]
        seeds = range(self.seed, self.seed + max(0, self.schedules - 2))
        named += [{"schedule": "random", "seed": seed} for seed in seeds]
        return named[: self.schedules]


def spoken(order: dict[str, Any]) -> str:
    seed = f", seed {order['seed']}" if "seed" in order else ""
    return f"{order['schedule']}{seed}"


class Examiner:
    """An observer of launches, which examines each of one target.

    Args:
        target: the simulator's.
        simulator, emulator: the executors.
        kernel: the name of the only one to examine; None for all.
    """

    def __init__(
        self,
        plan: Plan,
        target: Target,
        simulator: Backend,
        emulator: Backend,
        kernel: Optional[str] = None,
    ):
        self.plan, self.target, self.kernel = plan, target, kernel
        self.simulator, self.emulator = simulator, emulator
        architecture = target.architecture
        self.part = TargetPart(str(Target(architecture.backend, architecture)))
        self.subjects: dict[int, Subject] = {}

    def __call__(self, pending: evidence.Pending) -> None:
        evidence.observers.remove(self)
        try:
            self._launch(pending)
        finally:
            evidence.observers.append(self)

    def _launch(self, pending: evidence.Pending) -> None:
        compiled = pending.compiled
        if self.kernel is not None and compiled.src.name != self.kernel:
            pending()
            return
        plain = getattr(compiled, "hardware", None) is None
        if compiled.target != self.target or plain:
            remedy = f". {_PLAIN}" if plain and compiled.target == self.target else ""
            self._elsewhere(f"{compiled.name} on {compiled.target}{remedy}")
            pending()
            return
        subject = self.subjects.get(id(compiled))
        if subject is None:
            subject = self._begun(compiled)
            self.subjects[id(compiled)] = subject
            self.part.kernels.append(subject.part)
        if len(subject.part.launches) >= self.plan.launches:
            subject.part.unexamined += 1
            pending()
            return
        self._examine(pending, subject)

    def _elsewhere(self, text: str) -> None:
        if text not in self.part.elsewhere:
            self.part.elsewhere.append(text)

    def finish(self) -> None:
        """Complete the parts of all kernels."""
        for subject in self.subjects.values():
            part = subject.part
            if subject.counted is not None:
                part.coverage = subject.counted.coverage()
            here = self.target.architecture
            if self.plan.blame and part.findings:
                part.blame = blame(subject, self.emulator, self.plan.timeout)
            forms, bare = part.coverage.forms, sorted(subject.bare)
            part.not_modelled = not_modelled(here.backend, here.arch, forms, bare)

    # -- a form --

    def _begun(self, compiled: Any) -> Subject:
        source = compiled.src
        function = source.fn
        names = function.arg_names
        constants = {names[path[0]]: str(v) for path, v in source.constants.items() if path}
        part = KernelPart(
            source.name,
            os.path.basename(function.fn.__code__.co_filename),
            function.starting_line_number,
            hashlib.sha256(source.hash().encode()).hexdigest(),
            {k: str(v) for k, v in source.signature.items() if v != "constexpr"},
            constants,
        )
        subject = Subject(compiled, None, part)
        try:
            code = compiled.hardware.kernel()
        except GluonError as error:
            part.findings.append(_finding("limit", error, ""))
            return subject
        subject.hardware = code
        part.options = _options(code)
        for stage, content in code.asm.items():
            data = content if isinstance(content, bytes) else str(content).encode()
            part.code[stage] = hashlib.sha256(data).hexdigest()
        text = code.asm.get("ptx") or code.asm.get("amdgcn") or ""
        subject.counted = Counted(str(text))
        subject.allowed = self._allowed(code)
        try:
            subject.run = self.emulator.device.launcher(code)
        except GluonError as error:
            part.findings.append(_finding("limit", error, ""))
        return subject

    def _allowed(self, code: CompiledKernel) -> float:
        """Return the share that rounding to the narrowest type on the way explains."""
        if self.plan.tolerance is not None:
            return self.plan.tolerance
        narrow = 0.0
        for match in _NARROWED.finditer(str(code.asm.get("ttgir", ""))):
            name = match[1] or match[2]
            element = _IN_IR.get(name, "fp8e5" if name.startswith("f8E5") else "fp8e4nv")
            narrow = max(narrow, ROUNDING[element])
        return narrow

    # -- a launch --

    def _examine(self, pending: evidence.Pending, subject: Subject) -> None:
        where = place(pending.where)
        memory = memory_of(pending.compiled, pending.arguments)
        subject.bare.update(memory.bare)
        examined = Examined(where, tuple(pending.grid), memory.digest())
        subject.part.launches.append(examined)
        before = memory.kept()
        if self.plan.prove is not None and subject.part.proof is None:
            self._prove(pending, subject, self.plan.prove)
            memory.restore(before)
        after = self._simulate(pending, subject, examined, memory, before)
        if subject.run is not None:
            self._emulate(pending, subject, examined, memory, (before, after))
        memory.restore(after)

    def _prove(self, pending: evidence.Pending, subject: Subject, within: float) -> None:
        """Ask the prover for its verdict on every trip count."""
        using = settings_of(self.simulator)
        with evidence.recording() as record:
            try:
                with using(prove="*", within=within, everywhere=True, timeout=self.plan.timeout):
                    pending()
            except GluonError as error:
                subject.part.findings.append(_finding("simulator", error, "proof"))
        proofs = [one.proved for one in record.launches if one.proved is not None]
        if proofs:
            one = proofs[0]
            subject.part.proof = {"verdict": one.verdict, "lines": list(one.lines)}

    def _simulate(
        self, pending: evidence.Pending, subject: Subject, examined: Examined, memory: Memory,
        before: Sequence[np.ndarray],
    ) -> list[np.ndarray]:  # fmt: skip
        """Run a launch on the simulator; return the memory after its first schedule.

        Raises:
            GluonError: the simulator's report, which ends the program.
        """
        using = settings_of(self.simulator)
        after: list[np.ndarray] = []
        for order in self.plan.orders():
            memory.restore(before)
            try:
                with using(**order, checks=True, everywhere=True, timeout=self.plan.timeout):
                    pending()
            except GluonError as error:
                limit = isinstance(error, _UNABLE) or getattr(error, "report", "") is None
                kind = "limit" if limit else "simulator"
                subject.part.findings.append(_finding(kind, error, spoken(order)))
                raise
            examined.simulated.append(spoken(order))
            now = memory.kept()
            if not after:
                after = now
                continue
            for region, one, other in zip(memory.regions, after, now):
                if region.name not in examined.varying and (one != other).any():
                    examined.varying.append(region.name)
        return after

    def _emulate(
        self, pending: evidence.Pending, subject: Subject, examined: Examined, memory: Memory,
        both: tuple[list[np.ndarray], list[np.ndarray]],
    ) -> None:  # fmt: skip
        """Run the machine code of a launch and compare its results with those of the simulator."""
        before, after = both
        worst: dict[str, Compared] = {}
        orders = self.plan.orders() if self.target.architecture.backend == "nvidia" else [{}]
        for order in orders:
            schedule = spoken(order) if order else "its waits and order, checked for every schedule"
            memory.restore(before)
            error = self._run(subject, pending, order)
            if error is not None:
                limit = isinstance(error, _UNABLE) or type(error).__name__ in _LIMITS
                kind = "limit" if limit else "emulator"
                subject.part.findings.append(_finding(kind, error, schedule))
                if not limit:
                    name = type(error).__name__
                    self._failed(subject, pending, memory, (before, after), order, name)
                break
            examined.emulated.append(schedule)
            wrong = []
            for one in compared(memory, after, subject.allowed):
                known = worst.get(one.name)
                if known is None or (one.worst, one.differing) > (known.worst, known.differing):
                    worst[one.name] = one
                if not one.passed and one.name not in examined.varying:
                    wrong.append(one)
            if wrong:
                subject.part.findings.append(_differs(wrong, schedule))
                self._failed(subject, pending, memory, (before, after), order, "")
                break
        examined.arrays = list(worst.values())

    def _failed(
        self, subject: Subject, pending: evidence.Pending, memory: Memory,
        both: tuple[list[np.ndarray], list[np.ndarray]], order: dict[str, Any], error: str,
    ) -> None:  # fmt: skip
        if subject.failed is not None:
            return
        subject.failed = Failed(pending.grid, pending.arguments, memory, *both, order, error)

    def _run(
        self, subject: Subject, pending: evidence.Pending, order: dict[str, Any]
    ) -> Optional[GluonError]:
        """Run machine code once; return its report."""
        assert subject.run is not None and subject.counted is not None
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            trace = Path(folder) / "counts"
            stack.enter_context(
                settings_of(self.emulator)(
                    **order,
                    checks=True,
                    everywhere=True,
                    timeout=self.plan.timeout,
                    trace=str(trace),
                )
            )
            try:
                subject.run(pending.grid, 0, *pending.arguments)
            except GluonError as error:
                return error
            finally:
                if trace.exists():
                    subject.counted.read(trace)
        return None


def _differs(wrong: Sequence[Compared], order: str) -> Finding:
    parts = [
        f"{one.name}: {one.differing} of {one.size} elements differ by up to {one.worst:.3g} of the "
        f"largest, and rounding explains {one.allowed:.3g}"
        if one.allowed
        else f"{one.name}: {one.differing} of {one.size} elements differ"
        for one in wrong
    ]
    message = "the machine code has other results than the simulator: " + "; ".join(parts)
    return Finding("results", "", message, schedule=order)


def _finding(kind: str, error: GluonError, schedule: str) -> Finding:
    span = error.span
    file, line = (os.path.basename(span.file), span.line) if span is not None else ("", 0)
    return Finding(kind, type(error).__name__, str(error), file, line, schedule)


def _options(code: CompiledKernel) -> dict[str, str]:
    """Return the options that decide about the code, as text."""
    kept = ("num_warps", "num_ctas", "num_stages", "maxnreg", "enable_fp_fusion", "warp_size")
    values = {name: getattr(code.metadata, name, None) for name in kept}
    return {
        name: json.dumps(value, default=str) for name, value in values.items() if value is not None
    }
