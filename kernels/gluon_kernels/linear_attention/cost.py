"""The number of segments of a sequence, and of groups of warps of a program, that take the least time on Hopper.

A sequence walks through its chunks one after the other. Segments walk at a time, but once more before: with the delta rule for their maps, which are
joined in between, without it for what they take in, which each segment adds up over those before, or, where there are many, a launch in between.
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["FEW_SEGMENTS", "Walks", "least_time"]

# Microseconds on an H200, of heads of 128 channels.
RESULT = {1: 1.03, 2: 1.75}  # of a chunk with its result, by groups of warps
MAP = {1: 0.86, 2: 1.23}  # of a chunk without it
START = 4.0  # of a walk
JOIN, JOIN_MORE = (
    2.05,
    3.0,
)  # of a segment, with at most one program for each processor, and with more
LAUNCHES = 4.0  # of the walks before
# Without the delta rule: of a chunk with its result and without; of a segment before and of the walks before, with few segments and with more.
RESULT_ALONE, TAKEN = 1.12, 0.6
FEW_SEGMENTS, ADDED_FEW, ADDED = 12, (0.75, 4.0), (0.12, 6.5)
WAVES = 1.08  # how much better several waves of programs must be
BYTES_ALONE = 3.5e6  # of memory, in a microsecond of such a walk
BYTES = 4.0e6  # of memory, in a microsecond
COLUMNS = 64  # of a group of warps
LEAST_CHUNKS = 4  # of a segment
JOINED = 16  # columns of a program that joins


def _added(segments: int) -> float:
    """Return the time of the launches before segments of walks without the delta rule."""
    each, launches = ADDED_FEW if segments <= FEW_SEGMENTS else ADDED
    return segments * each + launches


class Walks(NamedTuple):
    """The walks of a call.

    Args:
        heads: of all batches.
        chunks: of a sequence.
        width, columns: of keys and of values, multiples of 64.
        delta: with the delta rule.
        channels: each channel of the keys has its own decays.
        processors: of the device.
        shared: heads that have the same keys.
        waves: without the delta rule, how many programs of segments a processor may take one after the other.
    """

    heads: int
    chunks: int
    width: int
    columns: int
    delta: bool
    channels: bool
    processors: int
    shared: int = 1
    waves: int = 1

    @property
    def share(self) -> float:
        """Return the time of a chunk, that of 128 channels with one gate being one."""
        return (0.4 + 0.6 * self.width / 128) * (1.1 if self.channels else 1.0)

    def time(self, segments: int, groups: int) -> float:
        """Return about how many microseconds the walks take."""
        per_segment = -(-self.chunks // segments)
        if not self.delta:
            return self._time_alone(segments, groups, per_segment)
        size = 128 * (self.width * (3 if self.channels else 2) + 2 * self.columns + 128)
        memory = self.heads * self.chunks * size / BYTES

        def walk(tiles: int, of_chunk: float) -> float:
            waves = -(-tiles * self.heads * segments // groups // self.processors)
            return waves * (per_segment * of_chunk * self.share + START)

        result = max(walk(self.columns // COLUMNS, RESULT[groups]), memory)
        if segments == 1:
            return result
        mapped = walk((self.columns + self.width) // COLUMNS, MAP[groups])
        joins = self.heads * -(-self.columns // JOINED)
        join = segments * (JOIN if joins <= self.processors else JOIN_MORE)
        return LAUNCHES + mapped + join + result

    def _time_alone(self, segments: int, groups: int, per_segment: int) -> float:
        programs = self.heads * segments * (self.columns // COLUMNS) / groups
        waves = max(programs / self.processors, 1.0)  # programs share a processor
        scale = waves * groups * self.share
        memory = (
            self.heads * self.chunks * 256 * (self.width / self.shared + self.columns) / BYTES_ALONE
        )
        result = max(per_segment * RESULT_ALONE * scale, memory)
        if segments == 1:
            return result
        if programs > self.processors:
            return self._time_in_waves(segments, programs, per_segment, memory)
        # Keys and values of all segments but the last are read once more.
        again = memory / 2 * (segments - 1) / segments
        taken = max(per_segment * TAKEN * scale, again)
        return result + taken + _added(segments)

    def _time_in_waves(
        self, segments: int, programs: float, per_segment: int, memory: float
    ) -> float:
        """Return the time where two programs of the walks before share a processor, and one with results has it alone."""
        before = programs * (segments - 1) / segments / self.processors
        taken = max(per_segment * TAKEN * max(before, 1.0) * self.share, memory / 2)
        waves = math.ceil(programs / self.processors)
        result = waves * (per_segment * RESULT_ALONE * self.share + START) - START
        return max(result, memory) + taken + _added(segments)


def least_time(walks: Walks) -> tuple[int, int]:
    """Return the number of segments and that of groups."""
    groups = (1, 2) if walks.columns % 128 == 0 and walks.width % 128 == 0 else (1,)
    most = min(max(walks.chunks // LEAST_CHUNKS, 1), walks.processors)
    if not walks.delta:
        room = walks.processors * walks.waves // (walks.heads * walks.columns // COLUMNS)
        most = max(min(most, room), 1)
        busy = walks.heads * walks.columns // COLUMNS > walks.processors
        groups = groups[-1:] if busy else (1,)  # groups share tiles of keys
    ways = [(s, g) for s in range(1, most + 1) for g in groups]

    def time(way: tuple[int, int]) -> float:
        """Estimates of several waves are less certain."""
        programs = walks.heads * way[0] * walks.columns // COLUMNS // way[1]
        several = not walks.delta and way[0] > 1 and programs > walks.processors
        return walks.time(*way) * (WAVES if several else 1.0)

    return min(ways, key=time)
