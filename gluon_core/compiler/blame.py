"""Which line of a kernel a compiler failed over, read off what it said before it did."""

from __future__ import annotations

import re
from typing import Callable, Optional

from gluon_core.errors import SourceSpan
from gluon_core.frontend.located import complaint, places_of_op

__all__ = ["blamed"]

# "ReduceOpToLLVM.cpp:31: ... matchAndRewrite(triton::ReduceOp, ...): Assertion `...' failed."
_ENDED = re.compile(r"^.*(?:Assertion `|UNREACHABLE executed|LLVM ERROR).*$", re.M)
_CLASS = re.compile(r"\b([A-Z]\w*?)Op(?=To[A-Z]|Conversion|Pattern|Lowering|Adaptor|\b)")
_FEW = 4


def blamed(
    said: str, text: Callable[[], Optional[str]]
) -> tuple[str, Optional[SourceSpan], Optional[str]]:
    """What a compiler complained of, the kernel's line, and what to do; all that is known of it.

    Args:
        text: gives the module that was compiled.
    """
    for ended in _ENDED.finditer(said):
        for name in dict.fromkeys(_CLASS.findall(ended[0])):
            places = places_of_op(text() or "", name.lower())
            if not places:
                continue
            lines = ", ".join(str(place.line) for place in places[1:_FEW])
            more = " and others" if len(places) > _FEW else ""
            remedy = (
                "Try another layout, shape or dtype there; docs/known-compiler-bugs.md may know it."
            )
            if lines:
                remedy += f" It may be another one, of line {lines}{more}."
            shown = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
            return f"the compiler ended the process over this {shown}", places[0], remedy
    found = complaint(said)
    return (*found, None) if found is not None else ("", None, None)
