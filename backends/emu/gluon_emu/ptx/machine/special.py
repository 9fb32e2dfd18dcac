"""Special registers of threads that run on the machine: PTX ISA, chapter 10."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from gluon_emu.ptx.machine.group import LANES
from gluon_emu.ptx.numbers import uint

__all__ = ["reader"]

_LANE = np.arange(LANES, dtype=np.int64)[None, :]
_RESERVED = 1024
_WORKSPACE = {
    "envreg1": 32,
    "envreg2": 0,
}  # of a cooperative grid: the high and the low half of its address


def reader(name: str, bits: int) -> Callable[[Any], np.ndarray]:
    """Return a function from a group to the values of a special register."""
    stem, _, axis = name.partition(".")
    if name in _WORKSPACE:
        shift = _WORKSPACE[name]
        return lambda group: np.full(
            (1, 1), group.machine.code.workspace >> shift & 0xFFFFFFFF, np.uint32
        )
    value: Callable[[Any, str], Any] = _VALUES.get(stem, _zero)
    dtype = np.dtype(np.bool_) if bits == 1 else uint(bits)

    def read(group: Any) -> np.ndarray:
        values = np.asarray(value(group, axis))
        if values.ndim == 0:
            values = values.reshape(1, 1)
        elif values.ndim == 1:
            values = values[:, None]
        return values.astype(dtype)

    return read


def _zero(g: Any, axis: str) -> int:
    return 0


def _tid(g: Any, axis: str) -> Any:
    x, y, _ = g.machine.block_size
    number = g.threads()
    return {"x": number % x, "y": number // x % y, "z": number // (x * y)}.get(axis, 0)


def _of(values: tuple[int, int, int], axis: str) -> int:
    return values["xyz".index(axis)] if axis in ("x", "y", "z") else 0


def _ctaid(g: Any, axis: str) -> Any:
    return g.machine.block_ids[g.block, "xyz".index(axis)] if axis in ("x", "y", "z") else 0


def _cluster_id(g: Any, axis: str) -> Any:
    return _ctaid(g, axis) // _of(g.machine.cluster, axis) if axis in ("x", "y", "z") else 0


def _cluster_ctaid(g: Any, axis: str) -> Any:
    return _ctaid(g, axis) % _of(g.machine.cluster, axis) if axis in ("x", "y", "z") else 0


def _rank(g: Any, axis: str = "") -> Any:
    return g.machine.rank_of[g.block]


def _mask(which: str) -> Callable[[Any, str], Any]:
    own = np.int64(1) << _LANE
    masks = {"eq": own, "lt": own - 1, "le": own - 1 | own, "ge": 0xFFFFFFFF ^ own - 1}
    mask = masks.get(which, 0xFFFFFFFF ^ (own - 1 | own))
    return lambda g, axis: mask


def _clock(g: Any, axis: str) -> int:
    return int(g.machine.tick())


_VALUES: dict[str, Callable[[Any, str], Any]] = {
    "tid": _tid,
    "ntid": lambda g, axis: _of(g.machine.block_size, axis),
    "laneid": lambda g, axis: _LANE,
    "warpid": lambda g, axis: g.rows % g.machine.warps,
    "nwarpid": lambda g, axis: g.machine.warps,
    "ctaid": _ctaid,
    "nctaid": lambda g, axis: _of(g.machine.grid, axis),
    "smid": lambda g, axis: (g.machine.block_numbers[g.block]) % 132,
    "nsmid": lambda g, axis: 132,
    "gridid": lambda g, axis: 0,
    "is_explicit_cluster": lambda g, axis: g.machine.cluster_size > 1,
    "clusterid": _cluster_id,
    "nclusterid": lambda g, axis: _of(g.machine.grid, axis) // max(1, _of(g.machine.cluster, axis)),
    "cluster_ctaid": _cluster_ctaid,
    "cluster_nctaid": lambda g, axis: _of(g.machine.cluster, axis),
    "cluster_ctarank": _rank,
    "cluster_nctarank": lambda g, axis: g.machine.cluster_size,
    **{f"lanemask_{which}": _mask(which) for which in ("eq", "le", "lt", "ge", "gt")},
    **dict.fromkeys(("clock", "clock64", "globaltimer", "globaltimer_lo"), _clock),
    **dict.fromkeys(("clock_hi", "globaltimer_hi"), lambda g, axis: _clock(g, axis) >> 32),
    "reserved_smem_offset_end": lambda g, axis: _RESERVED,
    "reserved_smem_offset_cap": lambda g, axis: _RESERVED,
    "total_smem_size": lambda g, axis: g.machine.shared_bytes - _RESERVED,
    "dynamic_smem_size": lambda g, axis: g.machine.dynamic_shared,
    "aggr_smem_size": lambda g, axis: g.machine.shared_bytes,
}
