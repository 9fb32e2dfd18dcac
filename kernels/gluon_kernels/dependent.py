"""Programmatic dependent launch: a kernel begins while the one before it in the stream ends.

A launch of a few microseconds spends one of them between kernels: the last block ends, memory is flushed, blocks are placed, barriers are
set up. Prepared with the options of `overlapping`, a launch is placed as soon as each block of the kernel before has ended or has allowed it, and
`wait_for_predecessor` holds it until that kernel has ended and its stores are visible (PTX ISA 9.7.13.13, griddepcontrol). Kernels that do
not know of this keep the order of the stream: they are placed, and allow others to be, at their ends.
"""

from typing import Any, Optional

from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl

__all__ = [
    "allow_successor",
    "end_behind_predecessor",
    "overlapping",
    "overlapping_tensors",
    "wait_for_predecessor",
]

SMALL = 2.5e7  # bytes: a half of the L2 cache of an H200, which each processor has next to it


def overlapping(memory: float, most: Optional[float] = None) -> dict[str, Any]:
    """Return the options of a launch that reads and writes so many bytes: those by which it overlaps the one before, if that pays: up to `most` of them, `SMALL` by default.

    Programs that begin early run on other processors than those of the last launch. Where operands are read again, as in a loop, and fill more than
    a half of the L2 cache, they are in the half that is far: 35x4352x3584 took 14.4 us for 11.1, while 192x6784x192 took 3.8 for 4.3.
    """
    return {"launch_pdl": True} if memory < (SMALL if most is None else most) else {}


def overlapping_tensors(*tensors: Optional[Tensor], most: Optional[float] = None) -> dict[str, Any]:
    """Return the options of a launch that reads and writes these tensors."""
    memory = sum(x.numel() * x.element_size() for x in tensors if x is not None)
    return overlapping(memory, most)


@gluon.jit
def wait_for_predecessor():
    """Wait for the kernel before, and allow the one behind to be placed; call it before any access to global memory.

    All threads of a kernel execute it, before they part into roles or as the first access of each role: no block ends before the kernel in front has, so that
    whatever follows this one in the stream is behind that one, too. Where one warp copies and counts for all others, that warp alone may execute it, and copy first all
    that is older than the kernel before, if that one calls this function, too: it allows no successor before its own predecessor has ended.
    """
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; griddepcontrol.launch_dependents; mov.b32 $0, $1;", "=r,r", [0], gl.int32, False, 1
    )  # fmt: skip


@gluon.jit
def allow_successor():
    """Allow the kernel behind to be placed; call it where a program is about to end, so that those that wait take no memory from others."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; mov.b32 $0, $1;", "=r,r", [0], gl.int32, False, 1
    )  # fmt: skip


@gluon.jit
def end_behind_predecessor():
    """Wait for the kernel before, at the end of one that needs nothing of it but whatever that one has waited for.

    Launched with `launch_pdl` behind a kernel that calls `wait_for_predecessor`, the programs take processors that the last ones of that kernel leave idle.
    Stores must not overlap anything that the kernel before reads or stores.
    """
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; mov.b32 $0, $1;", "=r,r", [0], gl.int32, False, 1
    )
