"""Programmatic dependent launch: a kernel begins while the one before it in the stream ends.

A launch of a few microseconds spends one of them between kernels: the last block ends, memory is flushed, blocks are placed, barriers are
set up. Prepared with the options of `overlapping`, a launch is placed as soon as each block of the kernel before has ended or has allowed it, and
`wait_for_predecessor` holds it until that kernel has ended and its stores are visible (PTX ISA 9.7.13.13, griddepcontrol). Kernels that do
not know of this keep the order of the stream: they are placed, and allow others to be, at their ends.
"""

from typing import Any

import gluon_core as gluon
from gluon_core import language as gl

__all__ = ["overlapping", "wait_for_predecessor"]

SHORT = 25.0  # microseconds of a launch that gains by it


def overlapping(microseconds: float) -> dict[str, Any]:
    """Return the options of a launch that takes about so long: those by which it overlaps the one before, if that pays."""
    return {"launch_pdl": True} if microseconds < SHORT else {}


@gluon.jit
def wait_for_predecessor():
    """Wait for the kernel before, and allow the one behind to be placed; call it before any access to global memory.

    All threads of a kernel execute it, before they part into roles: no block ends before the kernel in front has, so that whatever follows this
    one in the stream is behind that one, too.
    """
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; griddepcontrol.launch_dependents; mov.b32 $0, $1;", "=r,r", [0], gl.int32, False, 1
    )  # fmt: skip
