"""tcgen05 (sm_100): matrix multiplication into tensor memory, copies, commits, PTX ISA 9.7.16.

These happen on their own, after the issue: they read shared memory through the asynchronous proxy
and reach tensor memory with no fence. The operations of one partition happen in the order of issue
(9.7.16.6.1, pipelined instructions). A barrier that an op names, or a commit, is arrived at once
that op and all earlier ones of the partition are over (9.7.16.10.6, tcgen05.commit).

Sums are taken in float32, in the order of the machine's matrix product.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import ml_dtypes
import numpy as np

from gluon_core.plugin.reference import Machine, SharedBuffer
from gluon_nvidia.reference.proxy import ASYNC, before_read

__all__ = ["tcgen05_commit", "tcgen05_mma", "tcgen05_mma_scaled", "tmem_copy"]

_QUEUE = "tcgen05"
_E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
_FP4 = np.concatenate([_E2M1, -_E2M1])
_FP8 = {
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


# ---- who is signalled -------------------------------------------------------------------------


def _shared_by(layout: Any) -> int:
    """Return the bits of the block index that an operand does not depend on, as a mask."""
    bases = getattr(layout, "cga_layout", None) or []
    return sum(1 << bit for bit, basis in enumerate(bases) if not any(basis))


def _span(mask: int) -> set[int]:
    blocks = {0}
    for bit in range(mask.bit_length()):
        if mask >> bit & 1:
            blocks |= {block | 1 << bit for block in blocks}
    return blocks


def _arrivals(layouts: Sequence[Any], multicast: bool, two_ctas: bool) -> int:
    """Return the arrivals at each barrier by the blocks of a cluster that share operands.

    Only the even block of a pair issues and signals.
    """
    if not multicast:
        return 1
    blocks: set[int] = set()
    for layout in layouts:
        blocks |= _span(_shared_by(layout))
    return max(1, len({block >> 1 for block in blocks} if two_ctas else blocks))


def _all(*predicates: Any) -> Optional[np.ndarray]:
    """Return True where all predicates hold; None for everywhere."""
    live: Any = True
    for predicate in predicates:
        if predicate is not None:
            live = live & np.asarray(predicate).reshape(-1).astype(bool)
    return None if live is True or bool(np.all(live)) else np.asarray(live)


def _signal(
    machine: Machine,
    barriers: Sequence[SharedBuffer],
    predicates: Sequence[Any],
    count: int,
    pred: Any = None,
) -> None:
    """Arrive at the barriers when everything issued so far is over."""
    for i, barrier in enumerate(barriers):
        live = _all(pred, predicates[i] if i < len(predicates) else None)
        _commit(machine, barrier, count, live)


def _commit(machine: Machine, barrier: SharedBuffer, count: int, live: Any) -> None:
    def signal() -> None:
        machine.barrier_arrive(machine.select(barrier, live), count)

    machine.issue(_QUEUE, lambda: None, signal, barrier=barrier, after=True, where=live)


def tcgen05_commit(
    machine: Machine, barrier: SharedBuffer, pred: Any = None, descs: Sequence[SharedBuffer] = ()
) -> None:
    """Arrive at the barrier when all earlier work of the partition is over.

    With `descs`, as often as there are blocks that share one of these operands.
    """
    layouts = _layouts(machine)[1:]
    pairs = _paired(_layouts(machine)[0])
    count = _arrivals(layouts, bool(len(descs)), pairs)
    _signal(machine, [barrier], [], count, pred)


def _layouts(machine: Machine) -> list[Any]:
    """Return the layouts of the op's buffers, in order."""
    return [t.layout for t in machine.operand_types() if hasattr(t, "alloc_shape")]


def _paired(barrier_layout: Any) -> bool:
    """Return True if a barrier serves pairs of blocks: the lowest bit of the block index is left out."""
    bases = getattr(barrier_layout, "cga_layout", None) or []
    return bool(bases) and not any(bases[0])


# ---- multiplication ---------------------------------------------------------------------------


def _multiply(
    machine: Machine,
    sources: Sequence[SharedBuffer],
    operands: Callable[[Callable[..., Any]], tuple[np.ndarray, np.ndarray]],
    acc: SharedBuffer,
    use_acc: Any,
    pred: Any,
    precision: Any = None,
) -> None:
    live = _all(pred)

    def load(memory: SharedBuffer) -> np.ndarray:
        return machine.load_shared(machine.select(memory, live))

    def perform() -> None:
        view = machine.select(acc, live)
        left, right = operands(load)
        m, n = view.shape
        start = np.zeros((1, m, n), view.dtype)
        keep = machine.select(np.asarray(use_acc).reshape(-1), live).astype(bool)
        if keep.any():
            # Where the accumulator is not used, its content does not matter.
            start = machine.load_shared(view, None if keep.all() else keep.reshape(-1, 1, 1))
            start = np.where(keep.reshape(-1, 1, 1), start, np.zeros((), start.dtype))
        machine.store_shared(view, machine.dot(left, right, start, precision))

    before_read(machine, *sources)
    machine.issue(_QUEUE, perform, after=True, proxy=ASYNC, where=live)


def tcgen05_mma(
    machine: Machine,
    a: SharedBuffer,
    b: SharedBuffer,
    acc: SharedBuffer,
    use_acc: Any,
    pred: Any,
    barriers: Sequence[SharedBuffer] = (),
    barrier_preds: Sequence[Any] = (),
    two_ctas: bool = False,
    multicast: bool = False,
) -> None:
    """`acc + a @ b` into `acc`, or `a @ b` where `use_acc` is false. `a` may be in tensor memory.

    Float32 operands count with the precision of tf32.
    """

    def operands(load: Callable[..., Any]) -> tuple[np.ndarray, np.ndarray]:
        return load(a), load(b)

    precision = "tf32" if a.dtype == np.float32 else None
    _multiply(machine, (a, b), operands, acc, use_acc, pred, precision)
    count = _arrivals(_layouts(machine)[:2], bool(multicast), bool(two_ctas))
    _signal(machine, barriers, barrier_preds, count, pred)


def _values(raw: np.ndarray, kind: Any, axis: int) -> np.ndarray:
    """Elements in float32: fp8 as they are, fp4 two to a byte along `axis`, the first in the low bits."""
    name = str(getattr(kind, "name", kind)).lower()
    if name == "e2m1":
        codes = raw.view(np.uint8)
        both = np.stack([_FP4[codes & 15], _FP4[codes >> 4]], axis=axis + 1)
        shape = list(raw.shape)
        shape[axis] *= 2
        return both.reshape(shape)
    values: np.ndarray = raw.view(_FP8[name]).astype(np.float32)
    return values


def _scales(raw: np.ndarray) -> np.ndarray:
    """Scales in float32: bytes are powers of two (ue8m0, 255 is NaN), else e4m3."""
    if raw.dtype.itemsize == 1 and raw.dtype.kind in "iu":
        codes = raw.view(np.uint8)
        powers = np.ldexp(np.float32(1), codes.astype(np.int32) - 127).astype(np.float32)
        scales: np.ndarray = np.where(codes == 255, np.float32(np.nan), powers)
        return scales
    return raw.astype(np.float32)


def _scaled(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """[rows, K] times scales [rows, K / vector]."""
    vector = values.shape[-1] // scales.shape[-1]
    product: np.ndarray = values * np.repeat(scales, vector, axis=-1)
    return product


def tcgen05_mma_scaled(
    machine: Machine,
    a: SharedBuffer,
    b: SharedBuffer,
    acc: SharedBuffer,
    a_scale: SharedBuffer,
    b_scale: SharedBuffer,
    a_type: Any,
    b_type: Any,
    use_acc: Any,
    pred: Any,
    barriers: Sequence[SharedBuffer] = (),
    barrier_preds: Sequence[Any] = (),
    two_ctas: bool = False,
    multicast: bool = False,
) -> None:
    """`tcgen05_mma` of fp8 or fp4 operands whose elements along K share scales in tensor memory.

    `a_scale` is [M, K / v] and `b_scale` [N, K / v], with v = 32 or 16.
    """

    def operands(load: Callable[..., Any]) -> tuple[np.ndarray, np.ndarray]:
        left = _values(load(a), a_type, 2)
        right = _values(load(b), b_type, 1)
        left = _scaled(left, _scales(load(a_scale)))
        scaled = _scaled(right.swapaxes(-1, -2), _scales(load(b_scale)))
        return left, scaled.swapaxes(-1, -2)

    _multiply(machine, (a, b), operands, acc, use_acc, pred)
    count = _arrivals(_layouts(machine)[:2], bool(multicast), bool(two_ctas))
    _signal(machine, barriers, barrier_preds, count, pred)


# ---- copies -----------------------------------------------------------------------------------


def tmem_copy(machine: Machine, src: SharedBuffer, dst: SharedBuffer) -> None:
    """tcgen05.cp: shared to tensor memory; scales go to the lanes of all four warps (9.7.16.9)."""

    def perform() -> None:
        values = machine.load_shared(src)
        target = dst.shape
        machine.store_shared(dst, values.reshape(len(values), *target).view(dst.dtype))

    before_read(machine, src)
    machine.issue(_QUEUE, perform, after=True, proxy=ASYNC)
