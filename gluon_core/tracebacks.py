"""Places in kernels, tracebacks and objects as reports show them."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Optional

__all__ = ["MACHINERY", "SourceSpan", "name_of_cell", "trimmed_traceback", "without_addresses"]


@dataclass(frozen=True)
class SourceSpan:
    """A place in a kernel's source: 1-based line, 0-based columns."""

    file: str
    line: int
    column: int = 0
    end_column: Optional[int] = None
    text: Optional[str] = None

    def render(self) -> str:
        """Return `file:line:column` (in a notebook: `Cell In[3], line 4`), the source line, and a caret
        under the expression."""
        cell = name_of_cell(self.file)
        head = f"{self.file}:{self.line}:{self.column + 1}"
        if cell is not None:
            head = f"{cell}, line {self.line}"
        if self.text is None:
            return head
        width = max(1, (self.end_column or self.column + 1) - self.column)
        width = min(width, max(1, len(self.text) - self.column))
        before = re.sub(r"[^\t]", " ", self.text[: self.column].ljust(self.column))
        return f"{head}\n    {self.text}\n    {before}{'^' * width}"


def name_of_cell(file: str) -> Optional[str]:
    """Return the name that a notebook or an interactive session gives to the cell with this file name."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    try:
        named = shell.compile.format_code_name(file) if shell is not None else None
    except AttributeError:  # an IPython without this method
        return None
    return " ".join(named) if named else None


# Top-level packages whose frames do not help the author of a kernel; plugins add theirs.
MACHINERY = {"gluon_core", "gluon_runtime", "triton", "pluggy"}
_LIBRARIES = {"numpy", "torch", "ml_dtypes", "importlib", *sys.stdlib_module_names}


def trimmed_traceback(traceback: Optional[TracebackType]) -> Optional[TracebackType]:
    """Return the entries of a traceback that are the user's, None where no one is."""
    kept: list[TracebackType] = []
    inside = False  # in the machinery, or in a library that it called
    while traceback is not None:
        frame = traceback.tb_frame
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if frame.f_code.co_filename.startswith("<gluon ") or top in MACHINERY:
            inside = True
        elif not (inside and top in _LIBRARIES):
            inside = False
            kept.append(traceback)
        traceback = traceback.tb_next
    chain: Optional[TracebackType] = None
    for entry in reversed(kept):
        chain = TracebackType(chain, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return chain


_OBJECT = re.compile(r"<(?:[\w<>]+\.)*(\w+) object at 0x[0-9a-fA-F]+>")
_FUNCTION = re.compile(r"<(?:built-in |bound )?(?:function|method) (\S+)(?: at 0x[0-9a-fA-F]+)?>")


def without_addresses(text: str) -> str:
    """Return `text` with objects and functions called by their kind and name, without their addresses."""
    if " at 0x" not in text and "<function" not in text and "<built-in" not in text:
        return text
    text = _OBJECT.sub(
        lambda match: "a run-time value" if match[1] == "tensor" else f"<{match[1]} object>", text
    )
    return _FUNCTION.sub(r"\1", text)
