"""Views of layouts as text and as pictures, which a plugin draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Optional, Protocol, Sequence, Union, runtime_checkable

__all__ = ["Picture", "Pictures", "pictures", "set_source"]


@runtime_checkable
class Picture(Protocol):
    """A drawn layout. Notebooks show it by itself; `save` writes it.

    Attributes:
        title: one line.
        text: the large text of the picture.
    """

    title: str
    text: str

    def svg(self) -> str:
        """Return the picture as one SVG document."""

    def html(self) -> str:
        """Return the picture as a page of its own."""

    def save(self, path: Union[str, Path]) -> None:
        """Write the picture to a file whose name ends in .svg or .html."""

    def _repr_html_(self) -> str: ...


class Pictures(Protocol):
    """Draws layouts. A layout is a `Layout`, a shape that of a tensor or a buffer."""

    def picture(
        self, layout: Any, shape: Optional[Sequence[int]], *, bits: Optional[int], banks: int
    ) -> Picture:
        """Return the picture of a layout."""

    def tensor_view(self, layout: Any, shape: Sequence[int]) -> str:
        """Return text: for each element, who holds it."""

    def hardware_view(self, layout: Any, shape: Sequence[int]) -> str:
        """Return text: for each piece of hardware, which elements it holds."""

    def explain_layout(self, layout: Any, shape: Sequence[int]) -> str:
        """Return text: how each index of the hardware moves through the tensor."""

    def dump(self, values: Any, layout: Any, rows: Optional[int] = 64) -> str:
        """Return text: values by thread and register, or by offset in shared memory."""

    def explain(self, src: Any, dst: Any, shape: Sequence[int], bits: Optional[int] = None) -> str:
        """Return text: the work of a conversion between two layouts in registers."""

    def compare(
        self,
        first: Any,
        second: Any,
        shape: Optional[Sequence[int]] = None,
        *,
        bits: Optional[int] = None,
        banks: int = 32,
    ) -> Picture:
        """Return the picture of two layouts of one tensor."""


_source: Callable[[], Pictures]


def set_source(source: Callable[[], Pictures]) -> None:
    """Set the function that finds the plugin that draws; `gluon_core` does, on import."""
    global _source
    _source = source


def pictures() -> Pictures:
    """Return the service that draws layouts.

    Raises:
        PluginError: no plugin does; the message names the package to install.
    """
    return _source()
