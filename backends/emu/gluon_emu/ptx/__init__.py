"""Inline assembly: the part of PTX that works on registers, and global memory by its addresses.

`text` reads it, `program` makes and runs it; the other files are instructions by the sections of the ISA.

Where the ISA leaves bits open they are those of an H200 that runs one instruction alone, as ptxas compiles
it: which NaN comes out of `neg`, `abs` and conversions between f64, f32, f16, bf16 and tf32, remainders and
quotients by zero, the upper bits of places in 64-bit fields. Unknown are the NaN of f64 arithmetic, the NaN of instructions that only sm_100 has (taken to be the one of sums), and the effect where ptxas folds
one instruction into the next. Approximate instructions are rounded to nearest here.
"""

from typing import Any

from gluon_emu.ptx import convert, floats, integers, memory, moves, warps  # noqa: F401
from gluon_emu.ptx.program import Program

__all__ = ["assemble"]


def assemble(text: str, constraints: str, target: Any = None) -> Program:
    """Return a text as a program; see `gluon_core.simulation.assembly`."""
    return Program(text, constraints, target)
