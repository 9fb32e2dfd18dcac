"""The tensor data mover (gfx1250): boxes between global memory and LDS.

Builders before Triton 3.8 give the position of the box to each copy; later ones move the descriptor.
The models take either form, known by the list of offsets.

Each copy is a group of its own, as `s_wait_tensorcnt` counts them. Every warp issues its part of a
copy, so a barrier gets an arrival from each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Optional, Sequence

import numpy as np

from gluon_core.plugin.reference import Descriptor, Machine, SharedBuffer, returns

__all__ = [
    "async_tdm_copy_global_to_local",
    "async_tdm_copy_local_to_global",
    "async_tdm_fused_copy_global_to_local",
    "async_tdm_gather",
    "async_tdm_scatter",
    "async_tdm_wait",
    "make_tensor_descriptor",
    "tdm_prefetch",
    "update_tensor_descriptor",
]

_QUEUE = "tensor"


@dataclass(frozen=True)
class Switched(Descriptor):
    """A descriptor that may be switched off.

    Args:
        live: whether copies do anything, a bool for each program or one for all; None is yes.
    """

    live: Any = None

    def select(self, positions: np.ndarray) -> "Switched":
        picked = _switched(super().select(positions))
        live = self.live
        return replace(picked, live=live if live is None or len(live) == 1 else live[positions])

    @staticmethod
    def merged(parts: Sequence[tuple[np.ndarray, Descriptor]], count: int) -> "Switched":
        bare: list[tuple[np.ndarray, Descriptor]] = [
            (index, replace(_switched(part), live=None)) for index, part in parts
        ]
        live = np.ones(count, bool)
        for index, part in parts:
            own = _switched(part).live
            live[index] = True if own is None else own
        return replace(_switched(Descriptor.merged(bare, count)), live=live)


def _switched(desc: Descriptor) -> Switched:
    if isinstance(desc, Switched):
        return desc
    return Switched(**{name: getattr(desc, name) for name in Descriptor.__dataclass_fields__})


def make_tensor_descriptor(
    machine: Machine,
    type: Any,
    base: np.ndarray,
    shape: Sequence[np.ndarray],
    strides: Sequence[np.ndarray],
    padding: Any = None,
) -> Descriptor:
    """Return a descriptor; the hardware has no stride for the last dimension, it is 1."""
    block, _, layout = type.fields
    steps = tuple(strides)
    if np.any(steps[-1] != 1):
        raise ValueError(f"the last stride of a TDM descriptor is {int(np.max(steps[-1]))}, not 1")
    return Switched(
        base=base,
        shape=tuple(shape),
        strides=steps,
        dtype=machine.result_dtype(),
        block_shape=tuple(block.dims),
        layout=layout,
    )


@returns(lambda desc, *rest: desc.type)
def update_tensor_descriptor(
    machine: Machine,
    desc: Descriptor,
    offsets: Sequence[np.ndarray],
    bounds: Sequence[np.ndarray],
    pred: Any = None,
    clamp: bool = False,
) -> Descriptor:
    """Return the descriptor, moved by `offsets`, with other bounds, or switched by `pred`."""
    changed = _switched(desc)
    if offsets:
        changed = _moved(changed, offsets, clamp)
    if bounds:
        changed = replace(changed, shape=tuple(bounds))
    if pred is not None:
        changed = replace(changed, live=_live(pred))
    return changed


def _moved(desc: Switched, offsets: Sequence[np.ndarray], clamp: bool) -> Switched:
    """From `offsets` on. With `clamp` the bounds stay where they were, and in a dimension with a
    negative offset nothing is inside."""
    base, shape = desc.base, list(desc.shape)
    for i, (offset, stride) in enumerate(zip(offsets, desc.strides)):
        offset = np.asarray(offset).reshape(-1).astype(np.int64)
        base = base + offset * stride * desc.dtype.itemsize
        if clamp:
            shape[i] = np.where(offset < 0, 0, np.maximum(shape[i] - offset, 0))
    return replace(desc, base=base, shape=tuple(shape))


def _placed(desc: Descriptor, args: Sequence[Any]) -> tuple[Switched, Sequence[Any]]:
    """Return the descriptor at its box, and the arguments after the offsets, if there are any."""
    plain = _switched(desc)
    if args and isinstance(args[0], list):
        return _moved(plain, args[0], True), args[1:]
    return plain, args


def _box(desc: Switched) -> tuple[np.ndarray, np.ndarray]:
    return desc.box([np.zeros(1, np.int64)] * desc.rank)


def _live(pred: Any) -> np.ndarray:
    """Return for each program whether a predicate holds."""
    live: np.ndarray = np.asarray(pred).reshape(-1) != 0
    return live


def _fill(
    machine: Machine,
    desc: Switched,
    dest: SharedBuffer,
    addresses: np.ndarray,
    inside: np.ndarray,
    moved: Any = None,
) -> None:
    machine.store_shared(dest, machine.load_global(addresses, desc.dtype, inside), moved)


def _issue(
    machine: Machine,
    live: Optional[np.ndarray],
    perform: Any,
    barrier: Any,
    warps: Optional[int] = None,
) -> None:
    """Start a copy in the programs in which it is not switched off; `perform` works on their operands."""
    if live is not None and not live.any():
        return
    signal = None
    if barrier is not None:
        count = machine.num_warps if warps is None else warps
        signalled = machine.select(barrier, live)

        def signal() -> None:
            machine.barrier_arrive(signalled, count)

        machine.issue(_QUEUE, perform, signal, barrier=signalled, where=live)
    else:
        machine.issue(_QUEUE, perform, where=live)


def _load(
    machine: Machine,
    desc: Switched,
    dest: SharedBuffer,
    barrier: Any = None,
    warps: Optional[int] = None,
) -> None:
    """Start copying a box to LDS."""
    here, into = machine.select(desc, desc.live), machine.select(dest, desc.live)
    _issue(machine, desc.live, lambda: _fill(machine, here, into, *_box(here)), barrier, warps)


def async_tdm_copy_global_to_local(machine: Machine, desc: Descriptor, *args: Any) -> None:
    """Copy a box to LDS, with zeros outside the tensor; (offsets, dest, pred, barrier) before Triton 3.8,
    (dest, barrier, cache modifier, warps) from then on."""
    early = isinstance(args[0], list)
    placed, (dest, *rest) = _placed(desc, args)
    warps = None
    if early:
        pred, barrier = rest
        placed = replace(placed, live=_live(pred))
    else:
        barrier, hint = rest[0], rest[2] if len(rest) > 2 else None
        warps = None if hint is None else bin(hint).count("1")
    _load(machine, placed, dest, barrier, warps)
    machine.commit(_QUEUE)


def async_tdm_fused_copy_global_to_local(
    machine: Machine,
    descs: Sequence[Descriptor],
    dests: Sequence[SharedBuffer],
    hints: Sequence[int],
    *policy: Any,
) -> None:
    """Several loads, which count as one."""
    for desc, dest in zip(map(_switched, descs), dests):
        _load(machine, desc, dest)
    machine.commit(_QUEUE)


def async_tdm_copy_local_to_global(machine: Machine, desc: Descriptor, *args: Any) -> None:
    """LDS to a box, nothing outside the tensor; (offsets, source, [barrier]) before Triton 3.8,
    (source, barrier, cache modifier) from then on."""
    placed, (source, *rest) = _placed(desc, args)
    live = placed.live
    here, out = machine.select(placed, live), machine.select(source, live)

    def perform() -> None:
        addresses, inside = _box(here)
        machine.store_global(addresses, machine.load_shared(out), inside)

    _issue(machine, live, perform, rest[0] if rest else None)
    machine.commit(_QUEUE)


def _rows(
    machine: Machine, desc: Descriptor, rows: np.ndarray, args: Sequence[Any]
) -> tuple[Any, ...]:
    """(descriptor, buffer, barrier, addresses, inside, moved) of rows of a matrix; where there are
    fewer indices than the box has rows, `moved` says which of the buffer's rows have one."""
    plain = _switched(desc)
    if isinstance(args[0], np.ndarray):
        plain = _moved(plain, [np.zeros(1, np.int64), args[0]], True)
        args = args[1:]
    unsigned = rows.view(f"u{rows.dtype.itemsize}").astype(np.int64)
    columns = np.arange(plain.block_shape[1], dtype=np.int64).reshape(1, 1, -1)
    addresses, inside = plain.at([unsigned[:, :, None], columns])
    count = next(t.dims[0] for t in machine.operand_types() if len(getattr(t, "dims", ())) == 1)
    missing, moved = plain.block_shape[0] - count, None
    if missing:
        moved = (np.arange(plain.block_shape[0]) < count).reshape(1, -1, 1)
        own = np.broadcast_arrays(addresses, inside, np.empty((1, count, 1)))[:2]
        addresses, inside = (np.pad(part, ((0, 0), (0, missing), (0, 0))) for part in own)
    addresses, inside = (machine.select(part, plain.live) for part in (addresses, inside))
    return plain, args[0], args[1] if len(args) > 1 else None, addresses, inside, moved


def async_tdm_gather(machine: Machine, desc: Descriptor, rows: np.ndarray, *args: Any) -> None:
    """Rows of a matrix to LDS; ([column], dest, barrier)."""
    plain, dest, barrier, *places = _rows(machine, desc, rows, args)
    into = machine.select(dest, plain.live)
    _issue(machine, plain.live, lambda: _fill(machine, plain, into, *places), barrier)
    machine.commit(_QUEUE)


def async_tdm_scatter(machine: Machine, desc: Descriptor, rows: np.ndarray, *args: Any) -> None:
    """LDS to rows of a matrix; ([column], source, barrier)."""
    plain, source, barrier, addresses, inside, moved = _rows(machine, desc, rows, args)
    out = machine.select(source, plain.live)

    def perform() -> None:
        machine.store_global(addresses, machine.load_shared(out, moved), inside)

    _issue(machine, plain.live, perform, barrier)
    machine.commit(_QUEUE)


@returns(lambda *operands: None)
def tdm_prefetch(machine: Machine, *operands: Any) -> None:
    """Prefetch a box: no effect on results."""


def async_tdm_wait(machine: Machine, pending: int) -> None:
    machine.wait_groups(_QUEUE, pending)
