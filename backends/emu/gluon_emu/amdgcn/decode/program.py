"""A kernel as instructions, labels and data: the form between its text and its execution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional

from gluon_emu.amdgcn.decode.data import Data
from gluon_emu.amdgcn.decode.metadata import KernelInfo
from gluon_emu.amdgcn.decode.operands import Operand

__all__ = ["CODE", "Instruction", "Location", "Program", "code_address"]

# An address of code is the index of an instruction; 48 bits, of which some generations extend the sign.
CODE = 0x6000 << 32


def code_address(index: int) -> int:
    """Return the address of the instruction with that index."""
    return CODE + 4 * index


@dataclass(frozen=True)
class Location:
    """A line of a kernel's source; `inlined` are the calls that led to it, innermost first."""

    file: str
    line: int
    column: int
    inlined: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    Args:
        index: its place in the program.
        name: mnemonic without the suffix of the encoding.
        suffix: that suffix: "", "e32", "e64", "dpp", "sdwa", ...
        operands: destinations first, as assembly has them.
        modifiers: `offset`, `op_sel`, `row_shr`, ... by name.
        text: as it was written.
        line: of the assembly.
        location: of the kernel's source.
        second: the other half of a dual instruction.
    """

    index: int
    name: str
    suffix: str
    operands: tuple[Operand, ...]
    modifiers: Mapping[str, str]
    text: str
    line: int
    location: Optional[Location]
    second: Optional["Instruction"] = None


@dataclass
class Program:
    """A kernel's instructions with its descriptor and metadata.

    Args:
        labels: label -> index of the instruction behind it.
        directives: `.amdhsa_*` by name, without that prefix.
        info: see `KernelInfo`.
        architecture: such as "gfx942".
        entry: index of the first instruction.
        data: constants and variables, with the addresses that the code uses.
        file: the file of the text, where it is not the compiler's own.
    """

    name: str
    architecture: str
    instructions: list[Instruction]
    labels: dict[str, int]
    directives: dict[str, int]
    info: KernelInfo
    entry: int = 0
    data: Data = field(default_factory=Data)
    file: str = ""
