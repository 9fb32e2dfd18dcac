"""Which tasks may still act on a buffer."""

from __future__ import annotations

from typing import Mapping, Optional, Sequence

from gluon_prove.code import Code
from gluon_prove.state import State

__all__ = ["Acts"]


class Acts:
    """Knows from where on tasks act on a buffer.

    Args:
        codes: of the tasks.
        acts: by task and instruction, the buffers that an effect acts on; None for any.
    """

    def __init__(
        self, codes: Sequence[Code], acts: Mapping[tuple[int, int], Optional[frozenset[int]]]
    ):
        self.codes = codes
        self.acts = acts
        self._leads: dict[int, list[list[bool]]] = {}
        self._known: dict[tuple[int, ...], int] = {}

    def by(self, state: State, buffer: int) -> int:
        """Return the tasks that may still act on a buffer, as bits."""
        key = (buffer, *(task.position for task in state.tasks))
        tasks = self._known.get(key)
        if tasks is None:
            leads = self._leads.get(buffer)
            if leads is None:
                leads = self._leads[buffer] = [
                    self._leading(number, buffer) for number in range(len(self.codes))
                ]
            tasks = sum(
                1 << i for i, (task, of) in enumerate(zip(state.tasks, leads)) if of[task.position]
            )
            self._known[key] = tasks
        return tasks

    def _leading(self, task: int, buffer: int) -> list[bool]:
        code = self.codes[task]
        places = []
        for index in range(len(code.steps)):
            buffers = self.acts.get((task, index), frozenset())
            places.append(buffers is None or buffer in buffers)
        return code.leads_to(places)
