"""The origin of a mistake: the kernel, a pass of the compiler, its code generator, or the emulator.

The kernel is compiled again with some of the passes that only optimize, and the machine code of each variant runs
from the memory of the launch that failed. A pass whose presence alone makes the code wrong is to blame.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any, Optional

from gluon_certify.certificate import Blame
from gluon_certify.subject import Failed, Subject, compared, settings_of
from gluon_core import _triton
from gluon_core._triton.pipelines import limited, optional
from gluon_core.errors import GluonError
from gluon_core.plugin.backend import Backend

__all__ = ["blame"]

_LAST = {"nvidia": "ptx", "amd": "amdgcn"}  # the stage whose output the emulator executes
_GENERATED = ("HazardError",)  # the compiler's last stage alone keeps these rules
_COUNTED = (
    re.compile(r"(vmcnt\()\d+(\))"),
    re.compile(r"(s_wait_(?:load|async|tensor)cnt 0x)[0-9a-f]+()"),
    re.compile(r"(cp\.async\.(?:bulk\.)?wait_group(?:\.read)?\s+)\d+()"),
)
_LOWERING = "ttgpuir.to_llvmir"
_RIGHT = "right"


def blame(subject: Subject, emulator: Backend, timeout: float) -> Optional[Blame]:
    """Return the origin of the first mistake of a kernel; None where there is none.

    Args:
        emulator: the executor of its machine code.
        timeout: seconds of one run.
    """
    findings = subject.part.findings
    reported = next((one for one in findings if one.of == "simulator"), None)
    if reported is not None:
        words = "The simulator reports it for the kernel itself, before any pass."
        return Blame("kernel", reported.error, words)
    failed = subject.failed
    if failed is None:
        limit = next((one for one in findings if one.of == "limit"), None)
        if limit is None:
            return None
        unknown = limit.error in ("UnknownInstructionError", "TimeLimitError", "NotModelled")
        step, words = (
            ("emulator", "It could not execute the code.") if unknown else ("open", "Nothing ran.")
        )
        return Blame(step, limit.error, words)
    return _Search(subject, emulator, failed, timeout).run()


class _Search:
    """The variants of one compilation."""

    def __init__(self, subject: Subject, emulator: Backend, failed: Failed, timeout: float):
        self.subject, self.emulator, self.failed = subject, emulator, failed
        self.timeout = timeout
        backend = subject.simulated.target.architecture.backend
        self.stage = _LAST[backend]
        self.tried: list[tuple[str, str]] = []
        self.compiler = f"Triton {_triton.VERSION_TEXT}"

    def run(self) -> Blame:
        if self.failed.error in _GENERATED:
            words = "Distances between machine instructions are the work of LLVM's code generator."
            return self._blamed("code generator", f"LLVM of {self.compiler}", words)
        names, whole = self._variant(None)
        if whole == _RIGHT:
            return self._blamed("open", "", "A second compilation is right.")
        choice = [name for name in names if optional(name)]
        _, bare = self._variant(0)
        if bare != _RIGHT:
            return self._without(names, bare)
        low, high = 0, len(choice)  # right with `low` optional passes, wrong with `high`
        while high - low > 1:
            middle = (low + high) // 2
            _, outcome = self._variant(middle)
            low, high = (middle, high) if outcome == _RIGHT else (low, middle)
        name = f"{choice[high - 1]} of {self.compiler}"
        words = (
            f"With {low} passes that optimize the code is right, with this one more it is wrong."
        )
        return self._blamed("pass", name, words)

    def _without(self, names: list[str], outcome: str) -> Blame:
        """Blame what is there without any optimization."""
        if outcome.startswith("does not compile"):
            words = (
                "Without optimizations the kernel does not compile, so no pass can be singled out."
            )
            return self._blamed("open", "", words)
        needed = list(dict.fromkeys(name for name in names if not optional(name)))
        waiting = self._waits_at_zero()
        if waiting == _RIGHT:
            counting = next((name for name in needed if "wait" in name), f"the stage {self.stage}")
            words = "The code is right where every wait is for all copies: the number of pending copies is wrong."
            return self._blamed("pass", f"{counting} of {self.compiler}", words)
        lowering = next(
            (name for name in needed if name == _LOWERING), needed[-1] if needed else ""
        )
        words = (
            "No pass that optimizes matters. The simulator runs the module that the passes begin with, so the "
            f"lowering is wrong: {', '.join(needed)}; {lowering} gives ops their instructions."
        )
        return self._blamed("pass", f"{lowering} of {self.compiler}", words)

    def _blamed(self, step: str, name: str, words: str) -> Blame:
        return Blame(step, name, words, tuple(self.tried))

    # -- variants --

    def _variant(self, most: Optional[int]) -> tuple[list[str], str]:
        """Compile with some optional passes and run; return the names of all passes, and the outcome."""
        hardware: Any = self.subject.simulated.hardware
        with limited(most) as passes:
            try:
                code = hardware.again(self.stage)
                outcome = self._outcome(code, None)
            except GluonError as error:
                outcome = f"does not compile: {type(error).__name__}"
            names = passes.names
        label = "all passes" if most is None else f"{most} passes that optimize"
        self.tried.append((label, outcome))
        return names, outcome

    def _waits_at_zero(self) -> str:
        """Run the code with each count of pending copies set to 0."""
        code = self.subject.hardware
        assert code is not None
        text = str(code.asm[self.stage])
        for pattern in _COUNTED:
            text = pattern.sub(r"\g<1>0\g<2>", text)
        if text == code.asm[self.stage]:
            return "no counts"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"waits.{self.stage}"
            path.write_text(text)
            outcome = self._outcome(code, f"{code.metadata.name}={path}")
        self.tried.append(("every wait for all copies", outcome))
        return outcome

    def _outcome(self, code: Any, assembly: Optional[str]) -> str:
        """Return "right", the class of a report, or the share of wrong elements."""
        failed, memory = self.failed, self.failed.memory
        left = memory.kept()
        memory.restore(failed.before)
        using = settings_of(self.emulator)
        try:
            with using(
                **failed.order,
                checks=True,
                everywhere=True,
                timeout=self.timeout,
                assembly=assembly,
            ):
                run = self.emulator.device.launcher(code)
                run(failed.grid, 0, *failed.arguments)
            results = list(compared(memory, failed.after, self.subject.allowed))
        except GluonError as error:
            return type(error).__name__
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            memory.restore(left)
        wrong = [one for one in results if not one.passed]
        if not wrong:
            return _RIGHT
        return "; ".join(
            f"{one.name}: {one.differing} of {one.size} elements differ" for one in wrong
        )
