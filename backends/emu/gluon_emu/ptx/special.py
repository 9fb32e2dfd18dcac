"""Special registers: PTX ISA, chapter 10.

A program of the language is a cluster of `machine.blocks` blocks along x, or one block that was
launched without a cluster. A thread is numbered over all blocks of its program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable

import numpy as np

from gluon_core.plugin.reference import Machine
from gluon_core.registry.load import registry

__all__ = ["SPECIAL", "Special", "value_of"]

_WARP = 32
_RESERVED = 1024  # bytes of shared memory that the system keeps, at its start
_UNIT = 128  # bytes; shared memory is allocated in multiples


@dataclass(frozen=True)
class Special:
    """A special register.

    Args:
        bits: its width; 1 for a predicate.
        since: the first compute capability that has it, such as 90.
        narrow: a width at which old code may read its low bits.
    """

    bits: int
    since: int = 0
    narrow: int = 0


SPECIAL: dict[str, Special] = {}


def _add(names: Iterable[str], bits: int, since: int = 0, narrow: int = 0) -> None:
    SPECIAL.update(dict.fromkeys(names, Special(bits, since, narrow)))


_CLUSTERS = ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_add((f"{n}.{axis}" for n in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyzw"), 32, narrow=16)
_add((f"{n}.{axis}" for n in _CLUSTERS for axis in "xyzw"), 32, 90)
_add(("laneid", "warpid", "nwarpid", "smid", "nsmid", "clock"), 32)
_add(("gridid",), 64, 30, narrow=32)
_add((f"lanemask_{which}" for which in ("eq", "le", "lt", "ge", "gt")), 32, 20)
_add(("clock_hi", "total_smem_size", "dynamic_smem_size"), 32, 20)
_add(("clock64",), 64, 20)
_add(("globaltimer_lo", "globaltimer_hi"), 32, 30)
_add(("globaltimer",), 64, 30)
_add((f"pm{n}" for n in range(8)), 32, 20)
_add((f"pm{n}_64" for n in range(8)), 64, 50)
_add((f"envreg{n}" for n in range(32)), 32)
_add(("is_explicit_cluster",), 1, 90)
_add(("cluster_ctarank", "cluster_nctarank", "aggr_smem_size"), 32, 90)
_add((f"reserved_smem_offset_{w}" for w in ("begin", "end", "cap", "0", "1")), 32, 80)
_add(("current_graph_exec",), 64, 50)


@dataclass(frozen=True)
class _Threads:
    """The threads that run a text, shaped as its runs.

    Attributes:
        thread: the number of each in its block.
        block: the rank of its block in the cluster.
    """

    machine: Machine
    thread: np.ndarray
    block: np.ndarray

    def axis(self, axis: str, x: Any, other: int) -> Any:
        """Return `x` along x, `other` along y and z, and 0 along w."""
        return x if axis == "x" else 0 if axis == "w" else other

    def program(self, axis: str) -> Any:
        """Return the index of the program along an axis."""
        if axis == "w":
            return 0
        ids = [self.machine.program_id(i) for i in range(self.machine.programs)]
        along = np.array([one["xyz".index(axis)] for one in ids], np.int64)
        return along.reshape(-1, *(1,) * (self.thread.ndim - 1))

    def programs(self, axis: str) -> int:
        return 0 if axis == "w" else self.machine.grid["xyz".index(axis)]


def value_of(machine: Machine, numbers: np.ndarray, name: str) -> np.ndarray:
    """Return the value of a hardware register, as int64 or uint64, or bool for a predicate.

    Args:
        numbers: indices of the threads that read it, over the blocks of a program.
    """
    own = machine.num_warps * _WARP
    threads = _Threads(machine, numbers % own + machine.first_warp * _WARP, numbers // own)
    name, _, axis = name.partition(".")
    return np.asarray(_VALUES[name](threads, axis)) * np.ones((1,) * numbers.ndim, np.int64)


def _timer(high: bool) -> Callable[[_Threads, str], Any]:
    def read(threads: _Threads, axis: str) -> int:
        now = threads.machine.ticks()
        return now >> 32 if high else now

    return read


def _mask(which: str) -> Callable[[_Threads, str], Any]:
    def read(threads: _Threads, axis: str) -> Any:
        own = np.int64(1) << (threads.thread % _WARP)
        below, every = own - 1, 0xFFFFFFFF
        masks = {"eq": own, "lt": below, "le": below | own, "ge": every ^ below}
        return masks.get(which, every ^ (below | own))

    return read


def _grid_block(t: _Threads, axis: str) -> Any:
    return t.program("x") * t.machine.blocks + t.block if axis == "x" else t.program(axis)


def _grid_blocks(t: _Threads, axis: str) -> int:
    return t.programs(axis) * (t.machine.blocks if axis == "x" else 1)


def _multiprocessors(t: _Threads, axis: str = "") -> int:
    target = t.machine.target
    properties = registry().backend(target.architecture.backend).device.torch_properties(target)
    return int(properties["multi_processor_count"])


def _multiprocessor(t: _Threads, axis: str) -> Any:
    """Return the multiprocessor of each block: blocks are dealt out in turn, and stay."""
    x, y, _ = t.machine.grid
    program = (t.program("z") * y + t.program("y")) * x + t.program("x")
    return (program * t.machine.blocks + t.block) % _multiprocessors(t)


def _shared(t: _Threads, axis: str) -> int:
    return -(-t.machine.shared_bytes // _UNIT) * _UNIT


_VALUES: dict[str, Callable[[_Threads, str], Any]] = {
    "tid": lambda t, axis: t.axis(axis, t.thread, 0),
    "ntid": lambda t, axis: t.axis(axis, t.machine.all_warps * _WARP, 1),
    "laneid": lambda t, axis: t.thread % _WARP,
    "warpid": lambda t, axis: t.thread // _WARP,
    "nwarpid": lambda t, axis: t.machine.all_warps,
    "ctaid": _grid_block,
    "nctaid": _grid_blocks,
    "smid": _multiprocessor,
    "nsmid": _multiprocessors,
    "gridid": lambda t, axis: 0,
    "is_explicit_cluster": lambda t, axis: t.machine.blocks > 1,
    "clusterid": lambda t, axis: t.program(axis),
    "nclusterid": lambda t, axis: t.programs(axis),
    "cluster_ctaid": lambda t, axis: t.axis(axis, t.block, 0),
    "cluster_nctaid": lambda t, axis: t.axis(axis, t.machine.blocks, 1),
    "cluster_ctarank": lambda t, axis: t.block,
    "cluster_nctarank": lambda t, axis: t.machine.blocks,
    **{f"lanemask_{which}": _mask(which) for which in ("eq", "le", "lt", "ge", "gt")},
    **dict.fromkeys(("clock", "clock64", "globaltimer", "globaltimer_lo"), _timer(False)),
    **dict.fromkeys(("clock_hi", "globaltimer_hi"), _timer(True)),
    "reserved_smem_offset_begin": lambda t, axis: 0,
    "reserved_smem_offset_end": lambda t, axis: _RESERVED,
    "reserved_smem_offset_cap": lambda t, axis: _RESERVED,
    "total_smem_size": _shared,
    "aggr_smem_size": lambda t, axis: _shared(t, axis) + _RESERVED,
    "dynamic_smem_size": lambda t, axis: t.machine.shared_bytes,
    # Counters that were never set up, the driver's own registers, and launches outside of graphs.
    **{
        name: lambda t, axis: 0
        for name in SPECIAL
        if name.startswith(("pm", "envreg", "reserved_smem_offset_0", "reserved_smem_offset_1"))
    },
    "current_graph_exec": lambda t, axis: 0,
}
