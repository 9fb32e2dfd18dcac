"""Indent functions by spaces: lines that passes write among those of the source begin with spaces."""

from __future__ import annotations

import re
from typing import Any, Optional

from gluon_core._triton import unwrap
from gluon_core.launch.jit import GluonJITFunction
from gluon_write.text.form import rewritten

__all__ = ["with_spaces"]

_INDENT = re.compile(r"^[ \t]*\t[ \t]*", re.M)
_WIDTH, _MIXED = (
    4,
    8,
)  # of a tab: one of several in a row, and one among spaces, as Python counts it


def with_spaces(fn: Any) -> Any:
    """Return a kernel whose functions are indented by spaces alone, or the kernel."""
    return rewritten(fn, _functions_of(fn), _text)


def _functions_of(fn: Any) -> list[Any]:
    """Return a kernel and the functions that it and they name."""
    known = [fn]
    for one in known:
        scope = one.get_capture_scope()
        values = (unwrap(scope.get(name)) for name in dict.fromkeys(re.findall(r"\w+", one.src)))
        known += (v for v in values if isinstance(v, GluonJITFunction) and v not in known)
    return known


def _text(jit: Any, number: int) -> Optional[str]:
    """Return the text of a function with spaces, None where it has them."""
    indents = _INDENT.findall(jit.src)
    if not indents:
        return None
    width = _MIXED if any(" " in indent for indent in indents) else _WIDTH
    return _INDENT.sub(lambda indent: indent[0].expandtabs(width), jit.src)
