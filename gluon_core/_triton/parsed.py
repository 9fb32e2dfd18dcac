"""Functions whose source is parsed once, whatever number of kernels calls them."""

from __future__ import annotations

import copy
from typing import Any, Optional

from triton.runtime.jit import JITFunction

__all__ = ["ParsedOnce", "parsed_once"]


class ParsedOnce(JITFunction):  # type: ignore[misc]  # Triton's, without types
    """A jit function whose source is parsed when it is first traced: of a tensor's `max`, say, each
    kernel has use."""

    _parsed: Optional[tuple[str, Any]] = None

    def parse(self) -> Any:
        """The syntax tree of the function, which nobody changes."""
        found = self._parsed
        if found is None or found[0] is not self.src:
            found = self._parsed = self.src, super().parse()
        return found[1]


_once: dict[JITFunction, ParsedOnce] = {}


def parsed_once(fn: JITFunction) -> JITFunction:
    """A function of Triton's own library as one that is parsed once; others as they are."""
    if type(fn) is not JITFunction or not fn.module.startswith("triton."):
        return fn
    found = _once.get(fn)
    if found is None:
        found = _once[fn] = copy.copy(fn)
        found.__class__ = ParsedOnce
    return found
