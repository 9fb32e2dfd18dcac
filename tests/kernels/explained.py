"""Exceptions in the comparison of the simulator with a GPU, each with its reason."""

from __future__ import annotations

import re
from typing import Optional

__all__ = ["INPUTS", "KNOWN", "LEFT_OUT", "REPORTED", "TOLERANCE", "known", "left_out", "reported"]

_UNDETERMINED = "nothing determines an AutoLayout: no GPU compiler takes it, upstream's neither"
_POLICIES = (
    "PTX has no access with both a cache modifier and an eviction policy (9.7.9.8, 9.7.9.12)"
)

# Cases that do not run, as patterns of their whole names.
LEFT_OUT: dict[str, str] = {
    r"snippet:auto_layout-(4|5)": _UNDETERMINED,
    r"snippet:(load-12|store-10|cache_policy-1)": _POLICIES,
    "snippet:map_elementwise-3": "two elements at once of a layout with one in each thread",
    "snippet:map_elementwise-4": "a scalar, with which the module does not verify, as upstream's",
    "snippet:tuple-1": "Triton parses targets within targets, but cannot launch such a kernel",
    "snippet:(inline_asm_elementwise-3|inline_asm-0)": "its text is no PTX",
    "snippet:(inline_asm_elementwise-4|inline_asm-1)": "each thread has its own number for the one scalar",
    r"snippet:fpsan-\d+": "the sanitizer's arithmetic is not simulated",
}

# Cases that the simulator reports, and a GPU computes something arbitrary for.
REPORTED: dict[str, str] = {
    "snippet:hints-0": "the promise does not hold: o is 0, 1, 2, ...",
    "snippet:hints-2": "the promise does not hold: neighbours differ",
    "snippet:load-19": "a pointer made from a number",
    "snippet:load-22": "three elements before the array",
    "snippet:store-8": "one thread stores what another loads, without a barrier",
    r"snippet:memdesc-(4|6|7|10|gather-2)": "reads shared memory that nobody wrote",
    "snippet:memdesc-loop-0": "reads shared memory that nobody wrote",
    "snippet:atomic_load_store-6": "polls for a number that nobody stores",
}

# Arguments for snippets that give the shared ones no meaning: arrays modulo this, scalars this.
INPUTS: dict[str, dict[str, int]] = {
    r"histogram-[03]": {"ip": 16, "up": 16},
    r"histogram-.*": {"ip": 32, "up": 32},
    r"gather-[12]|memdesc-gather-2": {"ip": 16},
    "memdesc-3": {"n": 0},
    "memdesc-5": {"n": 1},
    r"aggregate-2": {"n": 1},
}

# Relative to the largest result, where an example's own tolerance is for its exact result.
TOLERANCE: dict[str, tuple[float, str]] = {
    "example:matmul fp8, warp-specialized": (
        1e-2,
        "a unit in the last place of bfloat16 (2**-7): fp8 products are summed in about 14 bits",
    ),
}

# Cases that differ although they are in none of `INEXACT`.
KNOWN: dict[str, str] = {
    "snippet:argmax-4": "tie_break_left=False: any of equal elements",
    r"snippet:memdesc-atomics-\d+": "lanes that meet at one place come in any order, and get what was there",
}


def _find(table: dict[str, str], name: str) -> Optional[str]:
    return next((why for pattern, why in table.items() if re.fullmatch(pattern, name)), None)


def left_out(name: str) -> Optional[str]:
    """Return the reason that a case does not run, None if it does."""
    return _find(LEFT_OUT, name)


def known(name: str) -> Optional[str]:
    """Return the reason that a case may differ, None if it must not."""
    return _find(KNOWN, name)


def reported(name: str) -> Optional[str]:
    """Return the reason for a report of the simulator, None if there should be none."""
    return _find(REPORTED, name)
