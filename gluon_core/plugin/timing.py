"""The model of time of an architecture: latencies and rates of one device, from which a simulator predicts times.

Cycles are of the clock of a unit (multiprocessor, compute unit). `Architecture.timing` is the path of a `Timing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, Sequence

__all__ = ["OpFacts", "Tile", "Timing", "Work"]


@dataclass(frozen=True)
class Tile:
    """An operand or a result of an op: its shape and layout (() and None for a scalar), the short name of its
    element type such as "bf16", the bits of an element, and the memory: "registers", "shared" or "tensor"."""

    shape: tuple[int, ...]
    dtype: str
    bits: int
    memory: str = "registers"
    layout: Any = None


@dataclass(frozen=True)
class OpFacts:
    """An op of a kernel, for `Timing.works`: its builder method without `create_`, its tensors, buffers and
    scalars in order, and the number of warps that execute it."""

    name: str
    operands: Sequence[Tile]
    results: Sequence[Tile]
    warps: int


@dataclass(frozen=True)
class Work:
    """The time that an op takes on units of its own, in cycles: `busy`, during which the unit accepts nothing else;
    `latency`, from its end until the result is there; `issue`, of the issuing warps, which with `serial`
    wait until it is over. Work that is `alone` shares the unit with no other task's: its warps hand over registers."""

    busy: float
    latency: float = 0.0
    issue: float = 0.0
    serial: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Timing:
    """The latencies and rates of one device.

    Args:
        device: its name.
        source: date, command or document from which the numbers come.
        measured: True for measurements of the device, False for numbers of data sheets and of relatives.
        units: multiprocessors or compute units.
        schedulers: of a unit; each issues one instruction of one warp a cycle.
        clock: GHz.
        matrix_clock: GHz at which all matrix units can multiply random numbers for long, under the limit of power.
        warps, blocks, registers, shared: that a unit holds: warps, blocks, 32-bit registers, bytes of shared memory.
        block_shared: bytes of shared memory that the system takes of each block.
        instructions: class -> (pipe, cycles for which an instruction of a warp occupies the pipe of its scheduler).
            Classes: "fma", "add", "mul", "max", "integer", "multiply", "logic", "shift", "compare", "select", "special"
            (exp2 and its like), "convert", "half", "shuffle", "move".
        latency: cycles of "arithmetic", "special", "shuffle", "shared", "L1", "L2", "memory" (global, missing all
            caches), "copy" (of a copy engine, on top of the memory's), "atomic", "store", "arrive" (at a barrier in shared
            memory), "pass" (a wait that has nothing to wait for), "signal" (from an arrival until the waiting warp goes
            on), "barrier" (of a block), "cluster".
        shared_bytes: per cycle of a unit.
        copy_bytes: per cycle that the copy engine of a unit reads at most, and `store_bytes` that it writes; `copy_issue`
            cycles for each copy.
        port_bytes: per cycle between a unit and the L2 cache.
        cache_bytes: per nanosecond between all units and the L2 cache, each byte for one unit; `shared_cache_bytes` where
            all units read the same, and `cache_write_bytes` while they read as much.
        memory_bytes: per nanosecond of global memory, reading; `write_bytes` writing.
        cache_size: bytes of the L2 cache that keep their content, under common access patterns.
        launch: nanoseconds: "kernel" (one more empty launch in a graph), "block" (one more block on a unit that holds
            others), "alone" (one more block on a unit that holds one at a time); and "code", instructions that a unit fetches
            per nanosecond when it executes them for the first time.
        works: op -> the time on the unit that executes it, for the vendor's ops and `dot`.
        matrix_queues: queues of asynchronous work that the matrix unit does.
        thread_queues: queues of copies that threads issue, 16 bytes each; a copy engine does the others.
    """

    device: str
    source: str
    measured: bool
    units: int
    schedulers: int
    clock: float
    matrix_clock: float
    warps: int
    blocks: int
    registers: int
    shared: int
    block_shared: int
    instructions: Mapping[str, tuple[str, float]]
    latency: Mapping[str, float]
    shared_bytes: float
    copy_bytes: float
    store_bytes: float
    copy_issue: float
    port_bytes: float
    cache_bytes: float
    shared_cache_bytes: float
    cache_write_bytes: float
    memory_bytes: float
    write_bytes: float
    cache_size: int
    launch: Mapping[str, float]
    works: Mapping[str, Callable[[OpFacts], Optional[Work]]] = field(default_factory=dict)
    matrix_queues: frozenset[str] = frozenset()
    thread_queues: frozenset[str] = frozenset()
