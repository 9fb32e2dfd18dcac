"""Read the ring buffers that a recorded kernel wrote.

`gluon_nvidia.timeline` documents the format; the metadata of the compiled kernel brings its numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

import numpy as np

__all__ = ["Launch", "Span", "decoded"]

_MAGIC = 0x6C676C75
_HEADER = 64  # bytes of each warp in front of the rows of slots
_SLOT = 8  # bytes


@dataclass(frozen=True)
class Span:
    """One passage of a warp through a scope.

    Args:
        block: linear index in the grid, all blocks of clusters counted.
        warp: index in the block.
        sm: index of the multiprocessor.
        scope: name of the scope.
        line: of `file`.
        begin, end: nanoseconds since the first warp of the launch began.
        depth: number of open scopes around it.
        file: that the scope stands in; empty where the compiler left no line information.
    """

    block: int
    warp: int
    sm: int
    scope: str
    line: int
    begin: float
    end: float
    depth: int
    file: str = ""


@dataclass(frozen=True)
class Launch:
    """The spans of one launch.

    Args:
        kernel: its name.
        spans: in the order of blocks, warps and begins.
        nanoseconds: from the first begin of a warp to the last end.
        dropped: spans that rings lost because newer ones took their place.
        unpaired: spans of warps that did not reach their end, or that make no sense.
        warps: number of warps that recorded.
    """

    kernel: str
    spans: tuple[Span, ...]
    nanoseconds: float
    dropped: int
    unpaired: int
    warps: int

    def shares(self) -> list[tuple[str, int, int, float, float]]:
        """Return (scope, line, passages, mean nanoseconds, share of the warps' time), largest share first.

        Nested scopes count for themselves and for those around them.
        """
        totals: dict[tuple[str, int], list[float]] = {}
        for span in self.spans:
            entry = totals.setdefault((span.scope, span.line), [0, 0.0])
            entry[0] += 1
            entry[1] += span.end - span.begin
        whole = max(self.nanoseconds * self.warps, 1e-9)
        rows = [
            (name, line, int(count), time / count, time / whole)
            for (name, line), (count, time) in totals.items()
        ]
        return sorted(rows, key=lambda row: -row[-1])

    def roles(self) -> list[tuple[str, list[tuple[str, float]]]]:
        """Return (warps of a block, [(scope, share of their time)]) for the warps that passed the same scopes."""
        passed: dict[int, dict[str, float]] = {}
        blocks: dict[int, set[int]] = {}
        for span in self.spans:
            times = passed.setdefault(span.warp, {})
            times[span.scope] = times.get(span.scope, 0.0) + span.end - span.begin
            blocks.setdefault(span.warp, set()).add(span.block)
        groups: dict[frozenset[str], list[int]] = {}
        for warp in sorted(passed):
            groups.setdefault(frozenset(passed[warp]), []).append(warp)
        out = []
        for scopes, warps in groups.items():
            whole = max(self.nanoseconds * sum(len(blocks[warp]) for warp in warps), 1e-9)
            parts = [(name, sum(passed[warp][name] for warp in warps) / whole) for name in scopes]
            label = f"{'warp' if len(warps) == 1 else 'warps'} {_ranges(warps)}"
            out.append((label, sorted(parts, key=lambda part: (-part[1], part[0]))))
        return out

    def limits(self) -> list[tuple[str, float]]:
        """Return (cause, share of all warps' time), the largest first; empty without automatic scopes.

        A wait at an mbarrier counts as one for data where the warp issues products or copies nothing itself,
        as one for free buffers where it issues TMA copies. `issue` is the time outside of waits.
        """
        passed: dict[int, set[str]] = {}
        for span in self.spans:
            passed.setdefault(span.warp, set()).add(span.scope)
        shares: dict[str, float] = {}
        whole = max(self.nanoseconds * self.warps, 1e-9)
        for span in self.spans:
            cause = CAUSES.get(span.scope)
            if span.scope == "mbarrier wait":
                issues = "TMA issue" in passed[span.warp]
                products = (
                    "wgmma issue" in passed[span.warp] or "tcgen05 issue" in passed[span.warp]
                )
                cause = "free buffers" if issues and not products else "memory (data of TMA)"
            if cause is not None:
                shares[cause] = shares.get(cause, 0.0) + (span.end - span.begin) / whole
        if not shares:
            return []
        shares["issue and everything else"] = max(0.0, 1 - sum(shares.values()))
        return sorted(shares.items(), key=lambda row: -row[1])


#: Automatic scopes that are waits -> the part of the machine that they wait for.
CAUSES = {
    "wgmma wait": "tensor core",
    "tcgen05 wait": "tensor core",
    "TMA store wait": "memory (stores of TMA)",
    "cp.async wait": "memory (asynchronous copies)",
    "memory wait": "memory",
    "barrier": "barrier",
    "cluster barrier": "barrier",
    "grid dependency wait": "launch",
}


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in parts)


@dataclass
class _Counts:
    dropped: int = 0
    unpaired: int = 0
    spans: list[Span] = field(default_factory=list)


def decoded(kernel: str, buffer: np.ndarray, table: Mapping[str, Any]) -> Launch:
    """Return the launch that a buffer holds.

    Args:
        kernel: name of the kernel.
        buffer: uint8, of all blocks.
        table: the entry `timeline` of the kernel's metadata.
    """
    warps, columns, first = int(table["warps"]), int(table["columns"]), int(table["rows"])
    depth = int(table["events"]) + int(table["spare"])  # rows of slots
    size = -(-(first + depth * columns * _SLOT) // 128) * 128  # bytes of a block
    blocks = buffer[: buffer.size // size * size].reshape(-1, size)
    heads = blocks[:, : warps * _HEADER].copy().view(np.uint32).reshape(-1, 4, 4)
    slots = blocks[:, first : first + depth * columns * _SLOT].copy().view(np.uint32)
    rings = slots.reshape(-1, depth, columns, 2)
    rows = [row for row in range(len(heads)) if heads[row, 0, 0] == _MAGIC]
    if not rows:
        return Launch(kernel, (), 0.0, 0, 0, 0)
    times = _wide(heads[:, :, 2], heads[:, :, 3])  # begin ns, begin cycles, end ns, end cycles
    rate = _nanoseconds_per_cycle(times[rows])
    start = int(times[rows, 0].min())
    stop = max((float(times[row, 0] - start) + (times[row, 3] - times[row, 1]) * rate
                for row in rows if times[row, 3]), default=0.0)  # fmt: skip
    counts = _Counts()
    for row in rows:
        warp = _Warp(*divmod(row, warps), int(heads[row, 0, 1]), int(times[row, 1]), int(times[row, 3]),
                     float(times[row, 0] - start), int(heads[row, 2, 0]))  # fmt: skip
        _spans(rings[warp.block, :, warp.warp], warp, rate, table, counts)
    return Launch(kernel, tuple(counts.spans), stop, counts.dropped, counts.unpaired, len(rows))


@dataclass(frozen=True)
class _Warp:
    """The header of a warp.

    Args:
        cycles, end: clock when it began and ended; `end` is 0 where it did not.
        offset: nanoseconds from the first warp's begin to its own.
        passed: spans that it wrote, those that others replaced included.
    """

    block: int
    warp: int
    sm: int
    cycles: int
    end: int
    offset: float
    passed: int


def _wide(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return low.astype(np.int64) | (high.astype(np.int64) << 32)


def _nanoseconds_per_cycle(times: np.ndarray) -> float:
    """Return the clock's period, from the warps that ran the longest by both clocks."""
    whole = times[(times[:, 3] > times[:, 1]) & (times[:, 2] > times[:, 0])]
    if not len(whole):
        return 1.0
    nanoseconds, cycles = whole[:, 2] - whole[:, 0], whole[:, 3] - whole[:, 1]
    longest = np.argsort(nanoseconds)[-max(1, len(whole) // 4) :]
    return float(nanoseconds[longest].sum() / cycles[longest].sum())


def _newest(ends: np.ndarray, numbers: np.ndarray, kept: int, events: int) -> np.ndarray:
    """Return the rows of the spans that a warp wrote last: each slot of the ring is in the newest of its rows."""
    laps = -(-len(ends) // events)
    times = np.full((laps, events), -1, np.int64)
    times.reshape(-1)[: len(ends)] = np.where(numbers > 0, ends, -1)
    newest = times.argmax(0) * events + np.arange(events)
    return np.asarray(newest[times.max(0) >= 0][:kept])


def _spans(
    ring: np.ndarray, warp: _Warp, rate: float, table: Mapping[str, Any], counts: _Counts
) -> None:
    """Add the spans of one warp.

    Begins have 32 bits and lengths fewer. The spans of a warp that ran for longer than a length can say are dropped.
    """
    scopes, bits = table["scopes"], int(table["bits"])
    if not warp.end:  # how many spans it wrote is not known, and neither is their order
        counts.unpaired += int(np.count_nonzero(ring[:, 1]))
        return
    events = int(table["events"])
    kept = min(warp.passed, events)
    counts.dropped += warp.passed - kept
    longest = 1 << (32 - bits)
    if warp.end - warp.cycles >= longest:
        counts.dropped += kept
        return
    begins = (ring[:, 0].astype(np.int64) - warp.cycles) & 0xFFFFFFFF
    words = ring[:, 1].astype(np.int64)
    ends = begins + (((words >> bits) - begins - warp.cycles) & (longest - 1))
    numbers = words & ((1 << bits) - 1)
    order = _newest(ends, numbers, kept, events)
    begins, ends, numbers = begins[order], ends[order], numbers[order]
    rows = sorted(
        zip(begins.tolist(), ends.tolist(), numbers.tolist()), key=lambda row: (row[0], -row[1])
    )
    sound: list[tuple[int, int, int]] = []
    around: list[int] = []  # ends of the spans that are open
    before = (-1, 0)  # begin and scope of the last one
    for begin, end, number in reversed(rows):
        # A scope that is open when it begins again loses its begin: its span has that of the one within.
        if not 1 <= number <= len(scopes) or (begin, number) == before:
            counts.unpaired += 1
            continue
        before = (begin, number)
        sound.append((begin, end, number))
    for begin, end, number in reversed(sound):
        while around and around[-1] < end:
            around.pop()
        name, line, file = scopes[number - 1]
        counts.spans.append(
            Span(warp.block, warp.warp, warp.sm, name, line, warp.offset + begin * rate,
                 warp.offset + end * rate, len(around), file)
        )  # fmt: skip
        around.append(end)
