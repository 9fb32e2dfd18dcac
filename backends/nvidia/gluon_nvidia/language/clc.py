"""Cluster launch control (sm_100): a program takes over another one that has not started.

A persistent kernel asks for the next program of its own grid with `try_cancel`, waits for the
answer at a barrier, and does that program's work itself; the hardware balances the load.
"""

from __future__ import annotations

from typing import Any

from gluon_core import errors
from gluon_core.layouts import SwizzledSharedLayout
from gluon_core.plugin.ops import builtin, semantic_layer, tl
from gluon_core.plugin.typing import Const
from gluon_core.values import handle_value, shared_memory_descriptor
from gluon_nvidia.features import CLC
from gluon_nvidia.language.mbarrier import check_mbarrier

__all__ = ["clc_result", "clc_result_type", "load_result", "try_cancel"]

_REQUIRES = ("nvidia.clc",)
_NAME = "gl.nvidia.blackwell.clc"
_REMEDY = (
    "Allocate it with gl.allocate_shared_memory(gl.int64, [2], SwizzledSharedLayout(1, 1, 1, [0]))."
)


class clc_result_type(handle_value.Type):
    """Type of an answer in registers: 16 bytes that `clc_result` reads."""

    def to_ir(self, builder: Any) -> Any:
        return builder.get_int128_ty()

    def _value(self, handle: Any) -> Any:
        return clc_result(handle)

    def __str__(self) -> str:
        return "clc_result"

    def mangle(self) -> str:
        return "CLC"


class clc_result(handle_value):
    """An answer to `try_cancel`, as `load_result` brought it into registers."""

    def __init__(self, handle: Any):
        self.handle = handle
        self.type = clc_result_type()

    @builtin(requires=_REQUIRES, since=CLC, name=f"{_NAME}.clc_result.is_canceled")
    def is_canceled(self) -> tl.tensor:
        """Return an int1 scalar: true if a program was taken over, false when none was left.

        ISA: PTX 9.7.13.18, clusterlaunchcontrol.query_cancel.is_canceled.
        """
        semantic = semantic_layer()
        handle = semantic.builder.create_clc_is_canceled(self.handle)
        return semantic.make_tensor(handle, tl.int1)

    @builtin(requires=_REQUIRES, since=CLC, name=f"{_NAME}.clc_result.program_id")
    def program_id(self, dim: Const[int]) -> tl.tensor:
        """Return the id of the program that was taken over, along `dim`: an int32 scalar.

        Undefined where `is_canceled()` is false.

        Args:
            dim: of the grid, compile-time integer, 0 to 2.

        Raises:
            ArgumentError: `dim` is not 0, 1 or 2.

        ISA: PTX 9.7.13.18, clusterlaunchcontrol.query_cancel.get_first_ctaid.
        """
        semantic = semantic_layer()
        dim = semantic.compile_time_int(dim, "dim", 0, 2)
        handle = semantic.builder.create_clc_get_program_id(self.handle, dim)
        return semantic.make_tensor(handle, tl.int32)


def _check_result(value: shared_memory_descriptor, argument: str) -> shared_memory_descriptor:
    """`value` if an answer fits into it: int64 [2], the same in each block of the cluster."""
    value = semantic_layer().shared_memory(value, argument)
    if value.dtype not in (tl.int64, tl.uint64):
        raise errors.DtypeError(
            "an answer is two 64-bit integers",
            argument=argument,
            expected="int64",
            got=value.dtype,
            remedy=_REMEDY,
        )
    if list(value.shape) != [2]:
        raise errors.ShapeError(
            "an answer is 16 bytes",
            argument=argument,
            expected=[2],
            got=list(value.shape),
            remedy="Pick one of several with .index(i).",
        )
    layout = value.layout
    if not isinstance(layout, SwizzledSharedLayout):
        raise errors.LayoutError(
            "the answer must be dense in memory",
            argument=argument,
            expected="SwizzledSharedLayout(1, 1, 1, [0])",
            got=repr(layout),
            remedy=_REMEDY,
        )
    if any(any(basis) for basis in layout.cga_layout):
        raise errors.LayoutError(
            "each block of the cluster gets the whole answer",
            argument=argument,
            expected=f"cga_layout={[[0] * len(b) for b in layout.cga_layout]}",
            got=f"cga_layout={layout.cga_layout}",
        )
    return value


@builtin(requires=_REQUIRES, since=CLC, name=f"{_NAME}.try_cancel")
def try_cancel(result: shared_memory_descriptor, barrier: shared_memory_descriptor) -> None:
    """Ask for a program of this launch that has not started. Asynchronous.

    The answer is written to `result` through the asynchronous proxy and completes its 16 bytes at
    `barrier`, in each block of the cluster. Expect them with `mbarrier.expect(barrier, 16)`. Do not
    ask again after an answer that said no.

    Args:
        result: shared memory, int64 of shape [2], 16-byte aligned.
        barrier: an initialized barrier.

    Raises:
        DtypeError, LayoutError, ShapeError: an operand of another kind.
        CapabilityError: not sm_100 or newer, or a Triton older than 3.8.

    ISA: PTX 9.7.13.17, clusterlaunchcontrol.try_cancel.
    """
    result = _check_result(result, "result")
    barrier = check_mbarrier(barrier, "barrier")
    semantic_layer().builder.create_clc_try_cancel(result.handle, barrier.handle)


@builtin(requires=_REQUIRES, since=CLC, name=f"{_NAME}.load_result")
def load_result(src: shared_memory_descriptor) -> clc_result:
    """Bring an answer into registers, after the wait for its barrier.

    Args:
        src: buffer that `try_cancel` wrote.

    Returns:
        A `clc_result`.

    Raises:
        DtypeError, LayoutError, ShapeError: `src` holds no answer.

    ISA: PTX 9.7.9.8, ld.shared.
    """
    src = _check_result(src, "src")
    return clc_result(semantic_layer().builder.create_clc_load_result(src.handle))
