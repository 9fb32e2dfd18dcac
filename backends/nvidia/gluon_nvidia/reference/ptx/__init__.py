"""Inline assembly: the part of PTX that works on registers, and global memory by its addresses.

`text` reads it, `program` makes and runs it; the other files are instructions by the sections of the ISA.
"""

from typing import Any

from gluon_nvidia.reference.ptx import convert, floats, integers, memory, moves, warps  # noqa: F401
from gluon_nvidia.reference.ptx.program import Program

__all__ = ["ASSEMBLER"]


def ASSEMBLER(text: str, constraints: str, target: Any = None) -> Program:
    """A text as a program; see `gluon_core.contract.assembly`."""
    return Program(text, constraints, target)
