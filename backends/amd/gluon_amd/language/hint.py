"""`gl.amd.hint`: hints to the compiler's scheduler."""

from __future__ import annotations

from typing import Optional, Sequence, Union

from gluon_amd.features import SCHED_BARRIER
from gluon_core.errors import ArgumentError
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.typing import Const

__all__ = ["sched_barrier"]

# The mask bits of LLVM's llvm.amdgcn.sched.barrier.
_CLASSES = {
    "alu": 0x1,
    "valu": 0x2,
    "salu": 0x4,
    "mfma": 0x8,
    "vmem": 0x10,
    "vmem_read": 0x20,
    "vmem_write": 0x40,
    "ds": 0x80,
    "ds_read": 0x100,
    "ds_write": 0x200,
    "transcendental": 0x400,
}


@builtin(since=SCHED_BARRIER, name="gl.amd.hint.sched_barrier")
def sched_barrier(allow: Optional[Union[Const[str], Sequence[Const[str]]]] = None) -> None:
    """Keep LLVM's scheduler from moving instructions past this point.

    Args:
        allow: classes of instructions that may still move, a name or several: "alu" (all that is
            not memory), "valu", "salu", "mfma", "vmem", "vmem_read", "vmem_write", "ds",
            "ds_read", "ds_write", "transcendental". None by default.

    Raises:
        ArgumentError: an unknown class.

    ISA: none; LLVM's llvm.amdgcn.sched.barrier.
    """
    semantic = semantic_layer()
    names = unwrap(allow)
    names = [] if names is None else [names] if isinstance(names, str) else names
    if not isinstance(names, (list, tuple, tl.tuple)):
        raise ArgumentError(
            "must name classes of instructions", argument="allow", got=semantic.describe(names)
        )
    mask = 0
    for name in names:
        mask |= _CLASSES[semantic.one_of("allow", name, tuple(_CLASSES))]
    semantic.builder.create_amd_sched_barrier(mask)
