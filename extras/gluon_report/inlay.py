"""A hint of an editor: the type of a name at its place in the source, and its form in JSON.

Source: Language Server Protocol 3.17, textDocument/inlayHint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Hint"]

_KIND = 1  # InlayHintKind.Type


@dataclass(frozen=True)
class Hint:
    """The type of a name at one place.

    Args:
        file: with the place.
        line: from 0.
        column: behind the name, in characters from 0.
        name: of the variable or parameter.
        label: element types and shapes, such as "bf16[128, 64]"; several where the kernel is traced in several forms.
        layouts: of registers, or of shared or tensor memory; empty for scalars and pointers.
        chosen: True if the kernel names no layouts, so that these were chosen.
    """

    file: str
    line: int
    column: int
    name: str
    label: str
    layouts: tuple[str, ...]
    chosen: bool

    def as_inlay(self) -> dict[str, Any]:
        """Return the object of the Language Server Protocol, with the file besides; `data` is for programs."""
        return {
            "uri": Path(self.file).resolve().as_uri(),
            "position": {"line": self.line, "character": self.column},
            "label": f": {self.label}",
            "kind": _KIND,
            "tooltip": "\n".join(self.layouts),
            "data": {
                "name": self.name,
                "type": self.label,
                "layouts": list(self.layouts),
                "chosen": self.chosen,
            },
        }

    @classmethod
    def of_inlay(cls, inlay: dict[str, Any], file: str) -> Hint:
        """Return the hint of a file that `as_inlay` wrote."""
        place, data = inlay["position"], inlay["data"]
        return cls(
            file, place["line"], place["character"], data["name"], data["type"], tuple(data["layouts"]), data["chosen"]
        )  # fmt: skip
