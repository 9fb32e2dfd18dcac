"""The certificate: its content as dataclasses, and the verdicts that follow from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from gluon_cli.output import Exit

__all__ = [
    "FORMAT",
    "Blame",
    "Certificate",
    "Compared",
    "Coverage",
    "Examined",
    "Finding",
    "KernelPart",
    "TargetPart",
]

FORMAT = "gluon-certificate/1"


@dataclass(frozen=True)
class Finding:
    """A mistake, or a reason why something could not be examined.

    Args:
        of: "simulator", "emulator", "results" or "limit".
        error: the class of the report; "" for results that differ.
        message: the whole report.
        file, line: the place in the kernel's source; "" and 0 where it is not known.
        schedule: under which it came, such as "random, seed 3".
    """

    of: str
    error: str
    message: str
    file: str = ""
    line: int = 0
    schedule: str = ""

    @property
    def wrong(self) -> bool:
        """Return True for a mistake, False for a limit."""
        return self.of != "limit"


@dataclass(frozen=True)
class Compared:
    """The results of the machine code in one argument, against those of the simulator.

    Args:
        name: of the argument.
        element: its element type, as in a signature.
        size: elements in the memory behind it.
        differing: the most elements that had other bits under one schedule.
        worst: the largest distance, as a share of the largest magnitude.
        allowed: the share up to which a distance counts as rounding; 0 for the same bits.
    """

    name: str
    element: str
    size: int
    differing: int
    worst: float
    allowed: float

    @property
    def passed(self) -> bool:
        return not self.differing or self.worst <= self.allowed


@dataclass
class Examined:
    """One launch.

    Args:
        where: "file:line" of the call.
        grid: blocks, or clusters of blocks, along x, y and z.
        inputs: sha256 of the scalars and of the memory before the launch.
        simulated, emulated: the schedules that it ran under.
        arrays: the compared arguments.
        varying: arguments that did not hold the same bits after all of the simulator's schedules.
    """

    where: str
    grid: tuple[int, ...]
    inputs: str
    simulated: list[str] = field(default_factory=list)
    emulated: list[str] = field(default_factory=list)
    arrays: list[Compared] = field(default_factory=list)
    varying: list[str] = field(default_factory=list)


@dataclass
class Coverage:
    """The part of the machine code that the launches executed.

    Args:
        instructions, executed: of the code.
        sides, taken: of conditional branches, two each, and those that some warp took.
        missed: "line N: text" of the code that no warp executed, the first ones.
        forms: the executed instructions, by name.
    """

    instructions: int = 0
    executed: int = 0
    sides: int = 0
    taken: int = 0
    missed: list[str] = field(default_factory=list)
    forms: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Blame:
    """The origin of a difference between the simulator and the machine code.

    Args:
        origin: "kernel", "pass", "code generator", "emulator" or "open".
        name: of the pass, or of the stage.
        words: the reason, in a sentence.
        tried: each variant of the compilation that ran, and its outcome.
    """

    origin: str
    name: str
    words: str
    tried: tuple[tuple[str, str], ...] = ()


@dataclass
class KernelPart:
    """One form of a kernel: its code for one target.

    Args:
        name: of the kernel.
        file, line: of its source.
        source: sha256 of the source, its callees and constants included.
        signature: types of the parameters that are no constants.
        constants: text of the others.
        options: the compile options, as text.
        code: stage -> sha256 of the text or bytes.
        launches: the examined ones.
        unexamined: launches beyond the limit of one form.
        proof: the prover's verdict with its lines; None where nobody asked.
        not_modelled: the facts about the machine that neither executor has.
    """

    name: str
    file: str
    line: int
    source: str
    signature: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    launches: list[Examined] = field(default_factory=list)
    unexamined: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    findings: list[Finding] = field(default_factory=list)
    proof: Optional[dict[str, Any]] = None
    not_modelled: list[str] = field(default_factory=list)
    blame: Optional[Blame] = None

    @property
    def verdict(self) -> str:
        if any(one.wrong for one in self.findings):
            return "wrong"
        complete = self.launches and all(one.emulated for one in self.launches)
        return "certified" if complete and not self.findings else "incomplete"


@dataclass
class TargetPart:
    """All launches of the file on one architecture.

    Args:
        target: such as "nvidia:sm_90".
        elsewhere: launches that went to another target, "kernel on target".
        problem: the reason why the file ended early; "" where it did not.
    """

    target: str
    kernels: list[KernelPart] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    problem: str = ""

    @property
    def verdict(self) -> str:
        verdicts = {one.verdict for one in self.kernels}
        if "wrong" in verdicts:
            return "wrong"
        whole = verdicts == {"certified"} and not self.problem and not self.elsewhere
        return "certified" if whole else "incomplete"


@dataclass
class Certificate:
    """The launches that ran, their comparison, and the outcome.

    Args:
        file: the program.
        digest: sha256 of the file.
        arguments: of the program.
        seed: of the random schedules, and of generated arguments.
        schedules: for each launch and executor.
        tools: name -> version.
        checks: executor -> its checks, all of which were on.
    """

    file: str
    digest: str
    arguments: list[str]
    seed: int
    schedules: int
    tools: dict[str, str]
    checks: dict[str, list[str]]
    targets: list[TargetPart] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        verdicts = {one.verdict for one in self.targets}
        if "wrong" in verdicts:
            return "wrong"
        return "certified" if verdicts == {"certified"} else "incomplete"

    @property
    def exit(self) -> Exit:
        """Return the exit code of the verdict."""
        codes = {"certified": Exit.OK, "wrong": Exit.FAILED, "incomplete": Exit.UNAVAILABLE}
        return codes[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """Return the certificate as values of JSON, the verdict of each part included."""
        content = asdict(self)
        for part, target in zip(content["targets"], self.targets):
            part["verdict"] = target.verdict
            for kernel, own in zip(part["kernels"], target.kernels):
                kernel["verdict"] = own.verdict
        return {"format": FORMAT, "verdict": self.verdict, **content}
