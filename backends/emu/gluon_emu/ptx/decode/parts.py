"""Functions, variables and debug lines of a PTX module (PTX ISA 4, 5 and 11)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

from gluon_core.errors import BackendError, did_you_mean
from gluon_emu.ptx.text import Immediate, Statement

_UNMEASURED = 100  # the first generation of which no GPU was measured
__all__ = [
    "Function",
    "Instruction",
    "Location",
    "Module",
    "Name",
    "Parameter",
    "Reference",
    "Variable",
]


@dataclass(frozen=True)
class Location:
    """A place in the kernel's source.

    Args:
        inlined: the calls that brought the code there, (file, line), innermost first.
    """

    file: str
    line: int
    column: int
    inlined: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass
class Instruction:
    """A statement at its place.

    Args:
        line: of the PTX, from 1 on.
    """

    statement: Statement
    line: int
    location: Optional[Location]

    @property
    def text(self) -> str:
        return self.statement.text


@dataclass
class Parameter:
    """A parameter of a function.

    Args:
        size: bytes.
        type: such as u32.
        register: it is a register, not a variable in .param.
    """

    name: str
    size: int
    align: int
    pointer: bool = False
    type: str = ""
    register: bool = False


@dataclass(frozen=True)
class Reference:
    """The address of a variable or a function in the content of a variable.

    Args:
        mask: the byte of the address that is written, `0xFF00(NAME)`; None for all of it.
    """

    name: str
    offset: int = 0
    mask: Optional[int] = None

    def bytes_of(self, address: int) -> bytes:
        whole = address + self.offset & (1 << 64) - 1
        if self.mask is None:
            return whole.to_bytes(8, "little")
        shift = max(0, (self.mask & -self.mask).bit_length() - 1)
        return bytes([(whole & self.mask) >> shift & 255])


@dataclass
class Variable:
    """A variable in a state space.

    Args:
        space: global, const, shared, local or param.
        size: bytes; 0 for an array whose size the launch says.
        content: (offset, bytes) or (offset, what has its address there).
    """

    name: str
    space: str
    size: int
    align: int
    content: list[tuple[int, bytes | Reference]] = field(default_factory=list)


@dataclass
class Function:
    """A function with a body.

    Args:
        labels: name -> index of the instruction behind it.
        tables: label -> the labels of a `.branchtargets`.
        registers: name -> type.
        directives: such as reqntid -> numbers.
    """

    name: str
    entry: bool
    line: int
    results: list[Parameter] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class Module:
    """A module.

    Args:
        target: such as "sm_90a".
    """

    text: str
    version: str = ""
    target: str = ""
    functions: dict[str, Function] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    file: Optional[str] = None

    @property
    def caveat(self) -> str:
        """Return the limit of the evidence for the architecture; "" where a GPU of its generation was measured."""
        if self.arch < _UNMEASURED:
            return ""
        return f"the emulation of sm_{self.arch} has not been compared with silicon"

    @property
    def arch(self) -> int:
        return int(re.sub(r"\D", "", self.target.partition("_")[2]) or 0)

    def entry(self, name: Optional[str] = None) -> Function:
        """Return a kernel; the only one where there is no name.

        Raises:
            BackendError: there is none of the name, or several.
        """
        kernels = {f.name: f for f in self.functions.values() if f.entry}
        if name is None and len(kernels) == 1:
            return next(iter(kernels.values()))
        if name is None or name not in kernels:
            raise BackendError(
                "the module has several kernels" if name is None and kernels else "no such kernel",
                expected=", ".join(kernels) or "a module with an .entry",
                got=name or f"{len(kernels)} kernels",
                remedy=did_you_mean(name or "", kernels),
            )
        return kernels[name]


@dataclass(frozen=True)
class Name(Immediate):
    """A label or a function."""

    value: str = ""  # type: ignore[assignment]
