"""MLIR contexts with Triton's dialects, made ahead where there is time."""

from __future__ import annotations

from typing import Any, Callable, Optional

from triton._C.libtriton import ir

__all__ = ["make_context", "ready_context", "use_spare_time"]


def make_context(load: Optional[Callable[[Any], None]] = None) -> Any:
    """Return a fresh MLIR context with Triton's dialects, and those that `load(context)` adds."""
    context = ir.context()
    ir.load_dialects(context)
    if load is not None:
        load(context)
    return context


_ready: list[tuple[Callable[[Any], None], Any]] = []


def use_spare_time(load: Callable[[Any], None]) -> None:
    """Make the context that `ready_context` gives next; for when there is time.

    Those of earlier traces wait for Python's collector: it is the program's, which may have tuned it.
    """
    if not any(kept == load for kept, _ in _ready):
        _ready[:] = [(load, make_context(load))]


def ready_context(load: Callable[[Any], None]) -> Any:
    """Return the result of `make_context`, made before where there was time."""
    try:
        kept, context = _ready.pop()
    except IndexError:
        return make_context(load)
    return context if kept == load else make_context(load)
