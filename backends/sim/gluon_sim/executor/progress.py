"""The progress of a long launch: a bar on standard error, or a line now and then where that is no terminal."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Progress"]

AFTER = 2.0  # seconds that a launch may take without a word
EVERY = 5.0  # seconds between lines where nothing can be drawn


class Progress:
    """Shows the progress of a launch from its third second on.

    Args:
        name: of the kernel.
        total: programs of the grid.
        state: gives how many of them are over, and the line that runs now (0 where unknown).
    """

    def __init__(self, name: str, total: int, state: Callable[[], tuple[int, int]]):
        self._name = name
        self._total = total
        self._state = state
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._over.set()
        self._thread.join()

    def _show(self) -> None:
        started = time.monotonic()
        if self._over.wait(AFTER):
            return
        from rich.console import Console

        console = Console(stderr=True)
        if console.is_terminal:
            self._draw(console)
            return
        while True:
            done, line = self._state()
            console.print(
                f"{self._name}: {done} of {self._total} programs, line {line}, "
                f"{time.monotonic() - started:.0f} s",
                soft_wrap=True,
                highlight=False,
            )
            if self._over.wait(EVERY):
                return

    def _draw(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=console, transient=True, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        with bar:
            task = bar.add_task(self._name, total=self._total)
            while True:
                done, line = self._state()
                bar.update(task, completed=done, description=f"{self._name}, line {line}")
                if self._over.wait(0.2):
                    return
