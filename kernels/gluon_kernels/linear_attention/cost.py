"""The number of segments of a sequence, and of groups of warps of a program, that take the least time on Hopper with the delta rule.

A sequence walks through its chunks one after the other. Segments walk at a time, but once more before, for their maps, which are joined in between.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Walks", "least_time"]

# Microseconds on an H200.
RESULT = {1: 1.17, 2: 1.7}  # of a chunk with its result, by groups of warps
MAP = {1: 0.85, 2: 1.2}  # of a chunk without it
START = 4.0  # of a walk
JOIN, JOIN_MORE = (
    2.05,
    3.0,
)  # of a segment, with at most one program for each processor, and with more
BYTES = 4.0e6  # of memory, in a microsecond
COLUMNS = 64  # of a group of warps
LEAST_CHUNKS = 4  # of a segment
JOINED = 16  # columns of a program that joins


class Walks(NamedTuple):
    """The walks of a call.

    Args:
        heads: of all batches.
        chunks: of a sequence.
        width, columns: of keys and of values, multiples of 64.
        channels: each channel of the keys has its own decays.
        processors: of the device.
    """

    heads: int
    chunks: int
    width: int
    columns: int
    channels: bool
    processors: int

    def time(self, segments: int, groups: int) -> float:
        """Return about how many microseconds the walks take."""
        per_segment = -(-self.chunks // segments)
        share = (0.4 + 0.6 * self.width / 128) * (1.1 if self.channels else 1.0)
        size = 128 * (self.width * (3 if self.channels else 2) + 2 * self.columns + 128)
        memory = self.heads * self.chunks * size / BYTES

        def walk(tiles: int, of_chunk: float) -> float:
            waves = -(-tiles * self.heads * segments // groups // self.processors)
            return waves * (per_segment * of_chunk * share + START)

        result = max(walk(self.columns // COLUMNS, RESULT[groups]), memory)
        if segments == 1:
            return result
        mapped = walk((self.columns + self.width) // COLUMNS, MAP[groups])
        joins = self.heads * -(-self.columns // JOINED)
        join = START / 2 + segments * (JOIN if joins <= self.processors else JOIN_MORE)
        return mapped + join + result


def least_time(walks: Walks) -> tuple[int, int]:
    """Return the number of segments and that of groups."""
    groups = (1, 2) if walks.columns % 128 == 0 and walks.width % 128 == 0 else (1,)
    most = max(walks.chunks // LEAST_CHUNKS, 1)
    ways = [(s, g) for s in range(1, min(most, walks.processors) + 1) for g in groups]
    return min(ways, key=lambda way: walks.time(*way))
