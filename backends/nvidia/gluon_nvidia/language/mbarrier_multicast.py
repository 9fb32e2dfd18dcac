"""`mbarrier.arrive` from sm_107 on: at the barriers of several blocks at once."""

from __future__ import annotations

from typing import Any, Optional

from gluon_core.plugin.ops import (
    builtin,
    semantic_layer,
    unwrap,
)
from gluon_core.plugin.typing import Const, Scalar
from gluon_core.values import shared_memory_descriptor
from gluon_nvidia.language.mbarrier import emit_arrive

__all__ = ["arrive"]

_ARRIVE = "gl.nvidia.rubin.mbarrier.arrive"


@builtin(requires=("nvidia.mbarrier_tx",), name=_ARRIVE)
def arrive(
    mbarrier: shared_memory_descriptor,
    *,
    count: Const[int] = 1,
    pred: Scalar[bool] = True,
    from_cta: Optional[Const[int]] = None,
    multicast_cta: Const[int] = 0,
    cta_mask: Optional[Const[int]] = None,
) -> None:
    """As of `gl.nvidia.hopper.mbarrier`, and at the barriers of several blocks at once.

    Args:
        mbarrier, count, pred, from_cta: as there.
        multicast_cta: compile-time mask over the bits of a block's index in the cluster: each block
            arrives at all barriers whose blocks differ from it in these bits only; 0 is the own one.
        cta_mask: the name of `multicast_cta` in Triton 3.8.

    Raises:
        ArgumentError: an illegal count or mask, or a mask together with `from_cta`.
        DtypeError, LayoutError, ShapeError: an operand of another kind.
        CapabilityError: a mask before Triton 3.8, `from_cta` before 3.9.

    ISA: PTX 9.7.13.15.13, mbarrier.arrive.
    """
    mask: Any = multicast_cta if unwrap(cta_mask) is None else cta_mask
    emit_arrive(semantic_layer(), mbarrier, count, pred, from_cta, _ARRIVE, mask)
