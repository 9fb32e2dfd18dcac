"""wgmma.mma_async (sm_90a), PTX ISA 9.7.15.

It reads operands in shared memory through the asynchronous proxy, at any moment until a wait, and
the accumulator is there after that wait. Each multiplication is a group of its own, and they happen
in order. Sums are taken in float32: the unit's narrower intermediate sums of fp8 products
(`max_num_imprecise_acc`) are not modelled.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from gluon_core.plugin.reference import Machine, SharedBuffer, returns
from gluon_nvidia.reference.proxy import ASYNC, before_read

__all__ = ["warpgroup_mma", "warpgroup_mma_wait"]

_QUEUE = "wgmma"


@returns(lambda a, b, acc, *others, **named: acc.type)
def warpgroup_mma(
    machine: Machine,
    a: Any,
    b: SharedBuffer,
    acc: np.ndarray,
    use_acc: np.ndarray,
    precision: Any = None,
    max_num_imprecise_acc: int = 0,
    is_async: bool = False,
) -> np.ndarray:
    """`acc + a @ b`, or `a @ b` where `use_acc` is false; without `is_async` all earlier ones end too."""
    rows, columns = a.shape[-2] if not isinstance(a, np.ndarray) else None, b.shape[-1]
    depth = b.shape[-2]
    if rows is None:
        rows = machine.operand_types()[0].shape[-2]
    out = machine.promise((rows, columns), machine.result_dtype())

    def perform() -> None:
        if isinstance(a, np.ndarray):
            left = machine.full(a, (rows, depth))
        else:
            left = machine.load_shared(a)
        right = machine.load_shared(b)
        start = machine.full(np.asarray(acc), (rows, columns))
        keep = np.asarray(use_acc).reshape(-1, 1, 1)
        start = np.where(keep, start, np.zeros((), start.dtype))
        np.asarray(out)[...] = machine.dot(left, right, start, precision)

    before_read(machine, a, b)
    machine.issue(_QUEUE, perform, after=True, proxy=ASYNC, fills=out)
    machine.commit(_QUEUE)
    if not is_async:
        machine.wait_groups(_QUEUE, 0)
    return machine.settled(out)


@returns(lambda values, pending: [value.type for value in values])
def warpgroup_mma_wait(machine: Machine, values: Sequence[Any], pending: int) -> list[Any]:
    """wgmma.wait_group: finished operations have their value, the rest stays in flight."""
    machine.wait_groups(_QUEUE, pending)
    return [machine.settled(v) if isinstance(v, np.ndarray) else v for v in values]
