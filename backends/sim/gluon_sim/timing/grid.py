"""From a sample of blocks to the time of a launch: occupancy, the share of the memory, waves, the clock."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from math import ceil
from typing import Optional, Sequence

import numpy as np

from gluon_core.plugin.timing import Timing
from gluon_sim.timing.engine import Stuck, execute
from gluon_sim.timing.lanes import Lane
from gluon_sim.timing.stream import Block, Start
from gluon_sim.timing.units import Memory, Unit

__all__ = [
    "Prediction",
    "Resources",
    "Sampled",
    "Shared",
    "predict",
    "resident_blocks",
    "sample",
    "spread",
]

_STEADY = 3  # rounds of resident blocks that are replayed; the rest follows their rhythm
_THREADS = 2048
_PUSHED = (
    0.35  # of the cache's size: so much more than it holds leaves nothing of an earlier launch
)


@dataclass(frozen=True)
class Resources:
    """The resources that a block takes of a multiprocessor.

    Args:
        warps: of a block, those of partitions included.
        shared: bytes of shared memory.
        registers: of a thread.
        lanes: threads of a warp.
        blocks: of a cluster.
    """

    warps: int
    shared: int
    registers: int
    blocks: int = 1
    lanes: int = 32


@dataclass
class Prediction:
    """The predicted time of a launch.

    Args:
        kernel: its name.
        device: the device of the model.
        nanoseconds: of the launch among others in a graph.
        span: of them, from the first block's begin to the last one's end.
        clock: GHz that was assumed.
        lanes: of the first sampled block, in cycles since it began.
        block: index of that block in the grid.
        length: cycles of that block.
        busy: unit -> share of the time in which it works, on a multiprocessor that has blocks.
        limits: (what limits the launch, share of its time), the largest first.
        moved: bytes asked of global memory; `missed` those that the cache does not have.
        resident: blocks on a multiprocessor at a time; `waves` how often it is filled.
    """

    kernel: str
    device: str
    nanoseconds: float
    span: float
    clock: float
    lanes: list[Lane] = field(default_factory=list)
    block: int = 0
    length: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)
    limits: list[tuple[str, float]] = field(default_factory=list)
    moved: int = 0
    missed: int = 0
    resident: int = 1
    waves: float = 1.0
    note: str = ""


def resident_blocks(timing: Timing, use: Resources) -> int:
    """Return how many blocks a multiprocessor holds at a time; 0 where none fits."""
    limits = [timing.blocks, timing.warps // max(use.warps, 1)]
    taken = use.shared + timing.block_shared
    limits.append(timing.shared // max(taken, 1))
    granted = ceil(use.registers / 8) * 8
    limits.append(timing.registers // max(1, granted * use.lanes * use.warps))
    return max(0, min(limits))


def sample(total: int, most: int) -> list[int]:
    """Return indices of programs of a grid, the first and the last among them.

    The others are drawn at random: programs at equal distances may all have the same kind of tile.
    """
    if total <= most:
        return list(range(total))
    return sorted({0, total - 1, *random.Random(0).sample(range(1, total - 1), most - 2)})


def spread(weights: np.ndarray) -> list[int]:
    """Return indices of programs of a grid: the first, the heaviest, the lightest and the one between these."""
    order = np.argsort(weights, kind="stable")
    chosen = {0, int(np.argmax(weights)), int(order[0]), int(order[len(order) // 2])}
    return sorted(chosen)


@dataclass(frozen=True)
class Sampled:
    """The programs of a grid that were recorded.

    Args:
        blocks: the recorded ones.
        numbers: index of each of `blocks` in the grid.
        total: blocks of the grid.
        weights: of all programs, where their work differs; the heaviest is recorded.
    """

    blocks: Sequence[Block]
    numbers: Sequence[int]
    total: int
    weights: Optional[np.ndarray] = None


@dataclass(frozen=True)
class Shared:
    """Hold the shares of the bytes of a wave that one of its blocks reads alone.

    Args:
        at_once: at about the same time, so that the cache serves several units by one access.
        soon: while the bytes stay in the cache.
    """

    at_once: float
    soon: float


@dataclass
class _Traffic:
    """Bytes that all blocks read and write, and the share of these that reaches the memory."""

    reads: float
    writes: float
    read_misses: float
    write_misses: float
    alone: float  # of the read bytes, the share that one unit reads alone


def _traffic(
    timing: Timing, blocks: Sequence[Block], total: int, touched: int, wave: Optional[Shared],
    warm: bool,
) -> _Traffic:  # fmt: skip
    """Return the traffic of the launch.

    Args:
        touched: bytes of the arrays that the launch reaches.
        wave: the shares of the bytes that one block reads alone.
        warm: the same launch ran just before.
    """
    reads = writes = 0.0
    for block in blocks:
        for stream in block.streams:
            for event in stream.events:
                if isinstance(event, Start) and event.bytes:
                    if event.writes:
                        writes += event.bytes
                    else:
                        reads += event.bytes
    scale = total / max(1, len(blocks))
    reads, writes = reads * scale, writes * scale
    unique = min(reads, float(max(touched - min(writes, touched / 2), 1)))
    footprint = min(reads + writes, float(touched))
    alone = 1.0 if wave is None else wave.at_once
    if footprint <= timing.cache_size:
        misses = 0.0 if warm else unique
        return _Traffic(reads, writes, misses / max(reads, 1.0), 0.0 if warm else 1.0, alone)
    share = unique / max(reads, 1.0)
    if wave is not None:
        share = max(wave.soon, share)
    # Slightly more than the cache holds does not push out everything.
    lost = min(1.0, (footprint / timing.cache_size - 1) / _PUSHED) if warm else 1.0
    return _Traffic(reads, writes, lost * min(1.0, share), lost, alone)


def _memory(timing: Timing, traffic: _Traffic, active: int, clock: float) -> Memory:
    """Return the memory as one of `active` multiprocessors sees it."""

    def cycles(nanoseconds: float) -> float:
        return nanoseconds * clock

    port = 1.0 / timing.port_bytes
    alone = traffic.alone
    cache = cycles(active * (alone / timing.cache_bytes + (1 - alone) / timing.shared_cache_bytes))
    read = cycles(active * traffic.read_misses / timing.memory_bytes)
    write = cycles(active * traffic.write_misses / timing.write_bytes)
    each_read = max(port, cache, read)
    each_write = max(port, cycles(active / timing.cache_write_bytes), write)
    hit, miss = timing.latency["L2"], timing.latency["memory"]
    return Memory(
        lambda size: size * each_read,
        lambda size: size * each_write,
        hit + (miss - hit) * min(1.0, traffic.read_misses),
        timing.latency["store"],
    )


def predict(
    timing: Timing, name: str, sampled: Sampled, use: Resources, touched: int, wave: Optional[Shared] = None,
    warm: bool = True,
) -> Prediction:  # fmt: skip
    """Return the time of a launch.

    Raises:
        Stuck: a block waits for others that were not recorded.
    """
    blocks, total = sampled.blocks, sampled.total
    held = resident_blocks(timing, use)
    if held < 1:
        raise Stuck
    units = timing.units
    active = min(units, total)
    traffic = _traffic(timing, blocks, total, touched, wave, warm)
    clock = timing.clock
    for _ in range(2):
        memory = _memory(timing, traffic, active, clock)
        cycles, unit, length = _span(timing, memory, sampled, held, clock)
        # Under full load the matrix units lower the clock.
        load = unit.busy.get("matrix", 0.0) / max(unit.now, 1.0) * min(1.0, active / units)
        clock = timing.clock - (timing.clock - timing.matrix_clock) * _throttled(
            load, cycles / clock
        )
    # The first block of a unit fetches the code.
    span = cycles / clock + max(block.code for block in blocks) / timing.launch["code"]
    out = Prediction(
        name, timing.device, span + timing.launch["kernel"], span, clock, unit.lanes, sampled.numbers[0], length,
        moved=int(traffic.reads + traffic.writes),
        missed=int(traffic.reads * traffic.read_misses + traffic.writes * traffic.write_misses),
        resident=min(held, ceil(total / units)), waves=total / (units * held),
    )  # fmt: skip
    out.busy = {k: v / max(unit.now, 1.0) for k, v in sorted(unit.busy.items())}
    out.limits = _limits(out, unit)
    notes = [] if timing.measured else [f"latencies and rates: {timing.source}"]
    if any(block.cut for block in blocks):
        notes.append("a sampled program was cut short")
    out.note = "; ".join(notes)
    return out


def _throttled(load: float, nanoseconds: float) -> float:
    """Return how far the clock falls, 0 to 1, where the matrix units work for the share `load` of the time."""
    return max(0.0, min(1.0, (load - 0.4) / 0.6))


def _span(
    timing: Timing, memory: Memory, sampled: Sampled, held: int, clock: float
) -> tuple[float, Unit, float]:
    """Return cycles from the first begin to the last end, the replayed unit, and the cycles of its first block."""
    units, blocks = timing.units, sampled.blocks
    pace = timing.launch["block"] * clock
    gap = pace if held > 1 else timing.launch["alone"] * clock
    each = ceil(sampled.total / units)  # blocks of the unit that gets most
    if each <= held * (_STEADY if sampled.weights is None else 1):
        # All blocks of one unit: the slowest of those that samples stand for.
        spans, slowest = [], None
        for first in range(len(blocks)):
            order = [blocks[(first + i) % len(blocks)] for i in range(each)]
            unit = Unit(timing, memory)
            spans.append(execute(unit, order, held, gap, pace))
            if slowest is None or spans[-1] >= max(spans):
                slowest = unit
            if len(blocks) * each > 64 and first >= 3:
                break
        assert slowest is not None
        begin, end = slowest.ends[0]
        return max(spans), slowest, end - begin
    times = []
    kept: Optional[Unit] = None
    for block in blocks:
        few, many = Unit(timing, memory), Unit(timing, memory)
        one = execute(few, [block] * held, held, gap, pace)
        more = execute(many, [block] * (held * _STEADY), held, gap, pace)
        times.append((one, (more - one) / (_STEADY - 1)))
        kept = kept or many
    assert kept is not None
    cycles = _scheduled(times, sampled, units * held)
    begin, end = kept.ends[0]
    return cycles, kept, end - begin


def _scheduled(times: Sequence[tuple[float, float]], sampled: Sampled, slots: int) -> float:
    """Return when the last of all blocks ends, each started where one ended, in the order of the grid.

    Args:
        times: cycles of the first round and of each further one, for each sampled block.
    """
    total, weights = sampled.total, sampled.weights
    extra = max(first - later for first, later in times)
    later = [time for _, time in times]
    if max(later) - min(later) < 0.02 * max(later):
        mean = sum(later) / len(later)
        return max(extra, 0.0) + mean * (
            total / slots if total > 4 * slots else ceil(total / slots)
        )

    # Between the sampled programs time grows with the work, or else with the number of the program. The last one's tile may be
    # smaller than all others: without weights, it stands for itself alone.
    axis = np.arange(total) if weights is None else weights
    known = sorted((float(axis[number]), time) for number, time in zip(sampled.numbers, later))
    among = known[:-1] if weights is None and len(known) > 2 else known
    durations = np.interp(axis, [place for place, _ in among], [time for _, time in among])
    if weights is None:
        durations[-1] = known[-1][1]
    heap = [0.0] * min(slots, total)
    end = 0.0
    for number in range(total):
        time = heapq.heappop(heap) + float(durations[number])
        end = max(end, time)
        heapq.heappush(heap, time)
    return max(extra, 0.0) + end


def _limits(out: Prediction, unit: Unit) -> list[tuple[str, float]]:
    """Return what the launch waits for, from the units' loads: a unit that works all the time limits it."""
    names = {
        "matrix": "matrix unit", "memory": "memory", "issue": "issue", "special": "special functions",
        "fma": "float32 pipe", "alu": "integer pipe", "shared": "shared memory", "shuffle": "shuffles",
        "vector": "vector unit",
    }  # fmt: skip
    rows = [(names.get(pipe, pipe), min(1.0, load)) for pipe, load in out.busy.items()]
    rows.append(("launch", (out.nanoseconds - out.span) / max(out.nanoseconds, 1e-9)))
    return sorted(rows, key=lambda row: -row[1])
