"""Messages between the processes of the judge, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence

from gluon_judge.confine import PLANS, Confinement

__all__ = ["Call", "Case", "Difference", "Event", "Outcome", "Packed", "Sample", "Spec"]


@dataclass(frozen=True)
class Packed:
    """A tensor.

    Args:
        dtype: torch's name without the module, such as "float16".
        shape, strides, offset: in elements.
        data: the bytes of the storage.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    data: bytes


@dataclass(frozen=True)
class Case:
    """The inputs of one call.

    Args:
        sizes: of the dimensions.
        dtypes: of the names in the problem's `dtypes`.
        layout: of the inputs, such as "offset".
        fill: "drawn", or which values: "nan", "infinite", "large", "zeros", "denormal", "equal", "masked".
        listed: whether the problem lists the shape, rather than admits it.
        seed: of the generator.
        timed: whether it is for the measurement on a GPU alone.
    """

    sizes: Mapping[str, int]
    dtypes: Mapping[str, str]
    layout: str = "contiguous"
    fill: str = "drawn"
    listed: bool = True
    seed: int = 0
    timed: bool = False

    def __str__(self) -> str:
        words = [f"{name}={size}" for name, size in self.sizes.items()]
        words += [str(dtype) for dtype in dict.fromkeys(self.dtypes.values())]
        words += [word for word in (self.layout, self.fill) if word not in ("contiguous", "drawn")]
        return ", ".join([*words, f"seed {self.seed}"])

    @property
    def usual(self) -> bool:
        """Return whether its values and its layout are ordinary."""
        return self.fill == "drawn" and self.layout == "contiguous" and not self.timed


@dataclass(frozen=True)
class Difference:
    """A difference between a result and the reference.

    Args:
        code: of a finding; "" where nothing is wrong.
        text: of the finding.
        numbers: the errors in units of the last place, as a text.
    """

    code: str
    text: str
    numbers: str = ""


@dataclass(frozen=True)
class Event:
    """Something that the candidate did.

    Args:
        code: of a finding.
        text: of the finding.
        file, line: of the candidate.
        severity: "" for that of the code.
    """

    code: str
    text: str
    file: str = ""
    line: int = 0
    severity: str = ""


@dataclass(frozen=True)
class Spec:
    """A candidate.

    Args:
        files: relative path -> text.
        main: the file with the function.
        function: its name; "" for the only one.
        folder: its own, which exists.
        limits: of the process.
        secrets: names of files that it must not ask for.
        inputs: how many arguments it reads; those after them it writes.
        mutable: positions of inputs that the call may change.
        constant: positions of inputs whose values stay as long as the tensors live.
        device: of torch, that arguments are on.
        plan: see `gluon_judge.confine.PLANS`.
    """

    files: Mapping[str, str]
    main: str
    function: str
    folder: str
    limits: Confinement
    secrets: tuple[str, ...]
    inputs: int
    mutable: tuple[int, ...] = ()
    constant: tuple[int, ...] = ()
    device: str = "cpu"
    plan: tuple[str, ...] = PLANS[0]


@dataclass(frozen=True)
class Call:
    """One call of the candidate.

    Args:
        values: packed arguments.
        schedule, seed: of the simulator.
        order: seed of the order of programs of plain Triton kernels; 0 for the usual one.
        poison: byte that new memory is filled with.
        again: write the values into the arguments of the call before.
        profile: count bytes and operations.
        skips: whether launches do nothing.
        burst: how often to call, with the same values, one after the other; 1 for a single call.
        prove: seconds for a proof of each kernel; 0 for none.
        compiles: whether launched kernels are compiled for the hardware, too.
        timeout: seconds of one launch.
    """

    values: Sequence[Any]
    schedule: str = "latest"
    seed: int = 0
    order: int = 0
    poison: int = 0xFF
    again: bool = False
    profile: bool = False
    skips: bool = False
    burst: int = 1
    prove: float = 0.0
    compiles: bool = False
    timeout: float = 60.0


@dataclass
class Outcome:
    """The answer to a call.

    Args:
        results: packed tensors; None where the call raised an error.
        after: the packed inputs, after it.
        error: class, text, and the simulator's `report`, `file` and `line`.
        events: what was observed.
        launches: (kernel, target, executor instead of the simulator, count).
        caught: (kernel, error) of launches that failed.
        proofs: (verdict, name, lines) of the prover.
        operations: names of torch's operations -> count; `products` among them, and their `flops`.
        elements: of the results of those operations.
        copied: bytes that copies and fills of torch wrote.
        scalars: values of tensors that became numbers of Python.
        odd: the number of the first call of a burst whose results had other bits; 0 for none.
        counts: totals of the profile: flops, read, written, roofline seconds.
        compiled: for each kernel its registers and spills, or the error of the compiler.
    """

    results: Optional[list[Packed]] = None
    after: list[Any] = field(default_factory=list)
    error: Optional[dict[str, Any]] = None
    events: list[Event] = field(default_factory=list)
    launches: list[tuple[str, str, str, int]] = field(default_factory=list)
    caught: list[tuple[str, str, bool]] = field(default_factory=list)
    proofs: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    operations: Mapping[str, int] = field(default_factory=dict)
    products: list[str] = field(default_factory=list)
    flops: float = 0.0
    elements: int = 0
    copied: int = 0
    scalars: int = 0
    odd: int = 0
    counts: Mapping[str, float] = field(default_factory=dict)
    compiled: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)


@dataclass(frozen=True)
class Sample:
    """One timed call.

    Args:
        seconds: between events on the caller's stream.
        late: seconds that the device went on after the second event.
        changed: whether the result changed meanwhile.
        results: packed; empty unless they were asked for.
    """

    seconds: float
    late: float
    changed: bool
    results: tuple[Packed, ...] = ()
