"""`mbarrier.arrive` from sm_90 on: several arrivals at once."""

from __future__ import annotations

from typing import Optional

from gluon_core.plugin.ops import (
    builtin,
    semantic_layer,
)
from gluon_core.plugin.typing import Const, Scalar
from gluon_core.values import shared_memory_descriptor
from gluon_nvidia.language.mbarrier import emit_arrive

__all__ = ["arrive"]

_ARRIVE = "gl.nvidia.hopper.mbarrier.arrive"


@builtin(requires=("nvidia.mbarrier_tx",), name=_ARRIVE)
def arrive(
    mbarrier: shared_memory_descriptor,
    *,
    count: Const[int] = 1,
    pred: Scalar[bool] = True,
    from_cta: Optional[Const[int]] = None,
) -> None:
    """Count `count` arrivals; earlier writes become visible to waiting threads.

    Args:
        mbarrier: an initialized barrier.
        count: compile-time integer, 1 to 2**20 - 1.
        pred: int1 scalar; where false, do not arrive.
        from_cta: compile-time index of the one block of the cluster that arrives; Triton 3.9.

    Raises:
        ArgumentError: an illegal count; `from_cta` is no block of the cluster.
        DtypeError, LayoutError, ShapeError: an operand of another kind.
        CapabilityError: `from_cta` with an older Triton.

    ISA: PTX 9.7.13.15.13, mbarrier.arrive.
    """
    emit_arrive(semantic_layer(), mbarrier, count, pred, from_cta, _ARRIVE)
