"""Tensor maps that a kernel writes one after the other: their acquires come together, behind the last.

An acquire waits for the write before it to reach memory. Triton acquires each tensor map before it
writes the next, so that the waits add up; a map only has to be acquired before a copy by it.

Source: PTX ISA, 9.7.9.28 (tensormap.cp_fenceproxy), 9.7.13.5 (fence.proxy.tensormap).
"""

from __future__ import annotations

import re
from typing import Any, Callable

__all__ = ["acquired_late"]

_Run = Callable[[Any, "dict[str, Any]"], Any]

_ACQUIRE = re.compile(
    r"\t// begin inline asm\n\t(?P<fence>@%p\d+ fence\.proxy\.tensormap::generic\.acquire\.gpu [^\n]*)\n"
    r"(?:\t@%p\d+ cp\.async\.bulk\.(?:commit_group|wait_group\.read 0) ;\n)*\t// end inline asm\n"
)
# Nothing between two acquires branches, calls, uses a map, or lets another partition use one.
_ENDS = re.compile(
    r"^\s*(?:\$\w+:|(?:@!?%p\d+ )?(?:bra|brx|call|ret|exit|barrier\.|mbarrier\.arrive)\b)"
    r"|cp\.(?:async|reduce\.async)\.bulk\.(?:tensor|prefetch)|setmaxnreg",
    re.M,
)


def acquired_late(run: _Run) -> _Run:
    """Return the stage `run`, which writes PTX, with the acquires of a basic block's tensor maps in one place."""

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        return _together(run(source, metadata))

    return stage


def _together(ptx: str) -> str:
    """Return PTX in which an acquire follows the write of the next tensor map of its basic block."""
    pieces: list[str] = []
    waiting: list[str] = []  # fences
    end = 0
    acquires = list(_ACQUIRE.finditer(ptx))
    for acquire, following in zip(acquires, [*acquires[1:], None]):
        pieces.append(ptx[end : acquire.start()])
        end = acquire.end()
        if following and not _ENDS.search(ptx, acquire.end(), following.start()):
            waiting.append(acquire["fence"])
            continue
        fences = "".join(f"\t{fence}\n" for fence in waiting)
        pieces.append(acquire[0].replace("asm\n", f"asm\n{fences}", 1))
        waiting = []
    return "".join([*pieces, ptx[end:]])
