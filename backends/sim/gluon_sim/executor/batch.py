"""Programs that run together, and their shared state."""

from __future__ import annotations

from typing import Optional

import numpy as np

from gluon_sim.executor.frame import Frame
from gluon_sim.memory.barriers import Barriers
from gluon_sim.memory.flight import Queue
from gluon_sim.memory.shared import SharedBuffer
from gluon_sim.sanitizer.agents import Agents
from gluon_sim.sanitizer.blocks import Blocks
from gluon_sim.sanitizer.ranks import OnRank
from gluon_sim.tracing.ir import Op

__all__ = ["NO_STEP", "Batch", "Ring"]

NO_STEP = -(1 << 40)  # of a slot into which nothing has been fetched


class Ring:
    """The contents of the slots of a pipeline, per slot and program of the batch.

    Attributes:
        step: that was fetched last.
        copied, awaited: whether its predicate was true, and whether somebody has waited for it.
        since: how many steps, of all pipelines, its task had fetched then, this one included.
        lines: by slot, where it was fetched, and by whom.
        groups: by slot, how many groups each queue of that task had closed before.
    """

    def __init__(self, stages: int, programs: int):
        shape = (stages, programs)
        self.step = np.full(shape, NO_STEP, np.int64)
        self.copied = np.zeros(shape, bool)
        self.awaited = np.zeros(shape, bool)
        self.since = np.zeros(shape, np.int64)
        self.lines: dict[int, tuple[int, str]] = {}
        self.groups: dict[int, dict[str, np.ndarray]] = {}


class Batch:
    """Programs that run together: their ids.

    Args:
        numbers: of them, from `first` on.
        rank: that they run on, where there are several.
    """

    def __init__(
        self, numbers: np.ndarray, grid: tuple[int, int, int], first: int = 0,
        rank: Optional[int] = None,
    ):  # fmt: skip
        self.rank = rank
        x, rest = (numbers - first) % grid[0], (numbers - first) // grid[0]
        self.ids = tuple(i.astype(np.int32) for i in (x, rest % grid[1], rest // grid[1]))
        self.numbers = numbers
        self.count = len(numbers)
        self.agents: Optional[Agents] = None
        self.queues: list[Queue] = []
        self.allocated: dict[Op, tuple[Frame, SharedBuffer]] = {}
        # Pipelines of tiles by the first of their buffers, and the steps that each task has fetched.
        self.rings: dict[SharedBuffer, Ring] = {}
        self.fetched: dict[str, np.ndarray] = {}
        self.barriers: list[Barriers] = []
        # Barriers that other blocks of a cluster may not know to be initialized: released yet?
        self.unannounced: dict[SharedBuffer, bool] = {}
        self.blocks: Optional[Blocks] = (
            None  # where programs are clusters, and races are looked for
        )

    def program(self, row: int) -> tuple[int, int, int]:
        x, y, z = self.ids
        program = int(x[row]), int(y[row]), int(z[row])
        return program if self.rank is None else OnRank(program, self.rank)
