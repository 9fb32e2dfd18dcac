"""Accumulators that are read while a multiplication writes them: known where nothing is in between.

The multiplications of one stretch of straight code are counted as they are issued. A wait that leaves
as many unfinished as began with an accumulator's own, or more, does not cover it; its result is still
being written, and reading that, with no wait in between, is a mistake whatever else is in flight.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from gluon_core.plugin.ops import tl
from gluon_core.plugin.semantic import SemanticLayer

__all__ = ["issued", "maybe_unfinished", "raw_handle", "waited"]

_NOTE = "wgmma"


class Issued(NamedTuple):
    """A multiplication: its accumulator, when it was traced (`semantic.passed`), and its line."""

    handle: Any
    passed: int
    line: int


def issued(semantic: SemanticLayer, handle: Any, asynchronous: bool) -> None:
    """Remember a multiplication; one that is not asynchronous waits for all."""
    now = semantic.passed
    known: list[Issued] = [one for one in semantic.notes.get(_NOTE, ()) if one.passed == now]
    line = semantic.place()[1]
    semantic.notes[_NOTE] = [*known, Issued(handle, now, line)] if asynchronous else []


def waited(semantic: SemanticLayer, pending: int) -> list[Issued]:
    """Return the multiplications of this stretch that a wait for `pending` surely leaves unfinished."""
    now = semantic.passed
    known: list[Issued] = [one for one in semantic.notes.get(_NOTE, ()) if one.passed == now]
    semantic.notes[_NOTE] = left = known[-pending:] if pending else []
    return left


def maybe_unfinished(
    semantic: SemanticLayer, handle: Any, kind: Any, before: Any, left: list[Issued]
) -> tl.tensor:
    """Return the tensor of an accumulator that was waited for, which `left` may show to be unfinished."""
    own = next((one for one in left if one.handle is before), None)
    if own is None:
        tensor: tl.tensor = semantic.make_tensor(handle, kind)
        return tensor
    unfinished = _Unfinished(handle, kind, semantic, own)
    semantic.until_passed.append(unfinished.settle)
    return unfinished


def raw_handle(value: Any) -> Any:
    """Return the handle of a value that is handed on and not read."""
    return vars(value)["handle"] if isinstance(value, _Unfinished) else value.handle


class _Unfinished(tl.tensor):
    """A tensor that warns once it is read, as long as straight code goes on."""

    def __init__(self, handle: Any, kind: Any, semantic: SemanticLayer, own: Issued):
        self._semantic = semantic
        self._own: Optional[Issued] = own
        super().__init__(handle, kind)

    def settle(self) -> None:
        """Become a tensor like any other: work in flight is no longer known."""
        self.__class__ = tl.tensor  # type: ignore[assignment]

    @property
    def handle(self) -> Any:
        own, semantic = self._own, self._semantic
        if own is not None and own in semantic.notes[_NOTE]:
            self._own = None
            semantic.warn(
                f"the accumulator is read while the multiplication of line {own.line} writes it: the "
                "wait before leaves it unfinished. Wait for fewer outstanding ones, as with "
                "warpgroup_mma_wait(0, deps=[acc])."
            )
        return vars(self)["handle"]

    @handle.setter
    def handle(self, value: Any) -> None:
        self.__dict__["handle"] = value

    def _flatten_ir(self, handles: list[Any]) -> None:
        handles.append(raw_handle(self))

    def _set_name(self, builder: Any, name: str) -> None:
        own, self._own = self._own, None
        super()._set_name(builder, name)
        self._own = own
