"""Limit the registers of kernels without products, where that lets more blocks run at once or more loads be under way.

ptxas does neither by itself. A kernel whose registers just exceed what one more block leaves keeps that block out, and a
loop that sums up what it loads waits for one load before it starts another, to save registers that nothing else needs.
With a limit, `.maxnreg`, ptxas takes what it allows:

- loads of a block of code that are under way together need registers for their results: with fewer than these and the
  block's sums, the limit is the most with as many blocks as those leave;
- else it is the most with one more block, if that is three quarters of the registers at least, and the block an eighth of
  those that run without: on an H200 one more than three to seven blocks took 0.70 to 0.99 of the time, one more than
  nine 1.01 and 1.04.

A limit that spills registers is dropped. Kernels whose layouts are written keep what ptxas gives them.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Optional

from gluon_nvidia.assembler import logged, spilled
from gluon_nvidia.inspect import occupancy

__all__ = ["awaited", "cap_for", "capped"]

_Run = Callable[[Any, "dict[str, Any]"], Any]
_PRODUCTS = re.compile(r"\b(wgmma|mma|tcgen05|setmaxnreg|maxnreg|minnctapersm)\b")
_ENTRY = re.compile(r"^\.reqntid [^\n]*$", re.M)
_USED = re.compile(r"Used (\d+) registers")
_BLOCK_ENDS = re.compile(r"^\s*(?:\$\w+:|(?:@!?%p\d+\s+)?(?:bra|bar|barrier)\b).*$", re.M)
_INSTRUCTION = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.]*)\s+(\{[^}]*\}|%\w+)(.*)$", re.M)
_REGISTER = re.compile(r"%(?:r|f|rs|rd|fd|h|b)\d+")
_WIDE = ("%rd", "%fd")  # two registers each
_ADDRESSES = 16  # registers for addresses and the loop
_FEWEST = 8  # of these, without which loads surely wait
_LEAST_SHARE = 0.75  # of the registers that ptxas gives by itself
_LEAST_GAIN = 1 / 8  # of the warps that run at once
_STEP, _MOST = 8, 248  # registers of a thread


def capped(run: _Run, target: Any) -> _Run:
    """Return the stage `run`, which calls ptxas, with a limit of registers where one pays."""

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        chosen = "asked_warps" in metadata and not metadata.get("maxnreg")
        if not chosen or _PRODUCTS.search(source) or len(_ENTRY.findall(source)) != 1:
            return run(source, metadata)
        result, log = logged(run, source, metadata)
        used = max(map(int, _USED.findall(log)), default=0)
        warps, shared = int(metadata["num_warps"]), int(metadata.get("shared") or 0)
        most = cap_for(target.architecture, used, warps, shared, awaited(source)) if used else None
        if most is None:
            return result
        limited = _ENTRY.sub(lambda line: f"{line[0]}\n.maxnreg {most}", source)
        other, messages = logged(run, limited, dict(metadata))
        if spilled(messages) > spilled(log):
            return result
        metadata["maxnreg"] = most
        return other

    return stage


def cap_for(architecture: Any, used: int, warps: int, shared: int, results: int) -> Optional[int]:
    """Return the limit of a thread's registers that pays; None for none.

    Args:
        used: registers without a limit. results: see `awaited`.
    """
    need = results + _ADDRESSES
    if results + _FEWEST > used:
        return _most_with(architecture, occupancy(architecture, need, warps, shared), warps, shared)
    resident = occupancy(architecture, used, warps, shared)
    if warps < _LEAST_GAIN * resident:
        return None
    most = _most_with(architecture, resident + warps, warps, shared)
    pays = most is not None and need <= most < used and most >= _LEAST_SHARE * used
    return most if pays else None


def _most_with(architecture: Any, resident: int, warps: int, shared: int) -> Optional[int]:
    """Return the most registers of a thread with which so many warps run at once."""
    for most in range(_MOST, 0, -_STEP):
        if resident and occupancy(architecture, most, warps, shared) >= resident:
            return most
    return None


def awaited(ptx: str) -> int:
    """Return how many registers the loads of a block of code fill before one result is read, with the block's sums; the most of all blocks."""
    most = 0
    for block in _BLOCK_ENDS.split(re.sub(r"//.*", "", ptx)):
        loaded: set[str] = set()
        sums: set[str] = set()
        under_way = 0
        for name, results, rest in _INSTRUCTION.findall(block):
            own = _REGISTER.findall(results)
            if name.startswith("ld.global"):
                loaded.update(own)
                under_way = max(under_way, sum(1 + one.startswith(_WIDE) for one in loaded))
            elif name.startswith("st"):
                loaded.difference_update(_REGISTER.findall(results + rest))
            else:
                read = set(_REGISTER.findall(rest))
                sums.update(read.intersection(own))
                if read & loaded:
                    loaded.clear()
        most = max(most, under_way + len(sums) if under_way else 0)
    return most
