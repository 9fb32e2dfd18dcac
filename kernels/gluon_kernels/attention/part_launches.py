"""The host's side of attention whose last tiles of queries have parts of the keys: how many, their memory, and the launch that joins them."""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from gluon_kernels.attention.order import KEYS, code_of_parts, tiles_in_parts
from gluon_kernels.attention.parts import join_tiles
from gluon_kernels.dependent import overlapping_tensors
from gluon_kernels.plans import Launch, Scratch

__all__ = ["Parts", "parts_for"]

JOINED_ROWS = 16  # of a program


class Parts(NamedTuple):
    """Tiles of queries with all keys, those left, the parts of each of these, and a tile's rows and columns."""

    whole: int
    left: int
    splits: int
    rows: int
    columns: int

    @property
    def order(self) -> int:
        return code_of_parts(self.whole)

    @property
    def programs(self) -> int:
        return self.whole + self.left * self.splits

    @property
    def numbers(self) -> int:
        """Return the numbers that are joined later: sums of values, and a logarithm for each row."""
        return self.left * self.splits * self.rows * (self.columns + 1)

    def memory(self, device: torch.device) -> Scratch:
        return Scratch(self.numbers, device)

    def joining(
        self, parts: Tensor, written: Tensor, logsums: Optional[Tensor], sinks: Optional[Tensor]
    ) -> Launch:
        """Return `launch(parts, written, logsums, sinks)`, which stores the results of the tiles left."""
        _, heads, length, width = written.shape
        tensors = (parts, written, logsums, sinks)
        sizes = (written.stride()[:3], heads, length, width, self.whole, self.left, self.splits)
        return Launch(
            join_tiles,
            (self.left * self.rows // JOINED_ROWS,),
            (*tensors, *sizes, self.columns, self.rows, JOINED_ROWS),
            tensors,
            num_warps=4,
            **overlapping_tensors(*tensors),
        )


def parts_for(
    tiles: int, keys: int, rows: int, columns: int, processors: int, rate: float = 1.0
) -> Optional[Parts]:
    """Return the parts for so many tiles of queries without a mask; None where all are better whole. `rate` is that of products."""
    whole, splits, _ = tiles_in_parts(tiles, -(-keys // KEYS), rows * columns, processors, rate)
    return None if splits == 1 else Parts(whole, tiles - whole, splits, rows, columns)
