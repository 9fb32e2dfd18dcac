"""Read the ring buffers that a recorded kernel wrote.

`gluon_nvidia.timeline` documents the format; the metadata of the compiled kernel brings its numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

import numpy as np

__all__ = ["Launch", "Span", "decoded"]

_MAGIC = 0x6C676C74
_HEADER = 4  # slots of four words before a ring


@dataclass(frozen=True)
class Span:
    """One passage of a warp through a scope.

    Args:
        block: linear index in the grid, all blocks of clusters counted.
        warp: index in the block.
        sm: index of the multiprocessor.
        scope: name of the scope.
        line: of the kernel's file.
        begin, end: nanoseconds since the first warp of the launch began.
        depth: number of open scopes around it.
    """

    block: int
    warp: int
    sm: int
    scope: str
    line: int
    begin: float
    end: float
    depth: int


@dataclass(frozen=True)
class Launch:
    """The spans of one launch.

    Args:
        kernel: its name.
        spans: in the order of blocks, warps and begins.
        nanoseconds: from the first begin of a warp to the last end.
        dropped: events that rings lost because newer ones took their place.
        unpaired: begins without an end, or ends without a begin, that no lost event explains.
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
    events, warps = int(table["events"]), int(table["warps"])
    words = buffer[: buffer.size // 16 * 16].view(np.uint32)
    slots = words.reshape(-1, _HEADER + events, 4)
    rows = [row for row in range(len(slots)) if slots[row, 0, 0] == _MAGIC]
    if not rows:
        return Launch(kernel, (), 0.0, 0, 0, 0)
    heads = slots[:, :_HEADER]
    times = _wide(heads[:, :, 2], heads[:, :, 3])  # begin ns, begin cycles, end ns, end cycles
    rate = _nanoseconds_per_cycle(times[rows])
    start = int(times[rows, 0].min())
    stop = max(
        float(times[row, 0] - start) + (times[row, 3] - times[row, 1]) * rate
        for row in rows
        if times[row, 3]
    ) if any(times[row, 3] for row in rows) else 0.0  # fmt: skip
    counts = _Counts()
    for row in rows:
        offset = float(times[row, 0] - start)
        _pair(slots[row, _HEADER:], row, warps, int(heads[row, 0, 1]), int(times[row, 1]), offset, rate,
              table["scopes"], counts)  # fmt: skip
    return Launch(kernel, tuple(counts.spans), stop, counts.dropped, counts.unpaired, len(rows))


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


def _pair(
    ring: np.ndarray, row: int, warps: int, sm: int, cycles: int, offset: float, rate: float,
    scopes: Any, counts: _Counts,
) -> None:  # fmt: skip
    """Add the spans of one warp."""
    used = ring[ring[:, 0] != 0]
    used = used[np.argsort(used[:, 1], kind="stable")]
    lost = int(used[0, 1]) if len(used) else 0
    counts.dropped += lost
    clocks = (_wide(used[:, 2], used[:, 3]) - cycles) * rate + offset
    open_scopes: list[tuple[int, float]] = []
    spans: list[Span] = []
    for code, time in zip(used[:, 0], clocks):
        number, ends = divmod(int(code), 2)
        if not ends:
            open_scopes.append((number, float(time)))
        elif open_scopes and open_scopes[-1][0] == number:
            _, begin = open_scopes.pop()
            name, line = scopes[number - 1]
            block, warp = divmod(row, warps)
            spans.append(Span(block, warp, sm, name, line, begin, float(time), len(open_scopes)))
        elif not lost:
            counts.unpaired += 1
    counts.unpaired += 0 if lost else len(open_scopes)
    counts.spans.extend(sorted(spans, key=lambda span: (span.begin, span.depth)))
