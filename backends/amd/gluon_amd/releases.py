"""Wait for the stores of all waves before a barrier behind which one of them releases for the workgroup.

LLVM takes the waves of a compute unit to reach memory in order: a release at the scope of the workgroup waits for no store, and one at the scope of
the device for those of its own wave. AMD documents no such order for stores to different channels of the L2 cache.
"""

from __future__ import annotations

import re
from typing import Any, Callable

__all__ = ["awaited_by_all"]

_WAIT = "llvm.amdgcn.s.waitcnt"
_STORES = 0x0F70  # vmcnt(0) of gfx9, and no wait for the other counters

_FUNCTION = re.compile(r"^define [^\n]*\{\n(.*?)^\}", re.M | re.S)
_BLOCK = re.compile(r"^(?=[-\w.$]+:)", re.M)
_NAME = re.compile(r"[-\w.$]+(?=:)")
_TARGET = re.compile(r"\blabel %([-\w.$]+)")
# Inline assembly may have it behind another instruction: LLVM writes the end of a line as \0A.
_BARRIER = re.compile(
    r"^  .*(?:@llvm\.amdgcn\.s\.barrier\(|(?:\b|\\0[9AD])s_barrier\b)[^\n]*\n", re.M
)
_RELEASE = re.compile(
    r"^  (?:%\S+ = )?(?:atomicrmw|cmpxchg|store atomic|fence)\b(?!.*(?:addrspace\(3\)|syncscope\(\"(?:workgroup|wavefront|singlethread)))"
    r".*\b(?:release|acq_rel|seq_cst)\b",
    re.M,
)
_LINE = re.compile(r", !dbg !\d+")


def awaited_by_all(
    run: Callable[[Any, dict[str, Any]], Any],
) -> Callable[[Any, dict[str, Any]], Any]:
    """Return the stage `run`, which writes LLVM IR, with a wait for stores before each barrier from which a release at the scope of the device is reached."""

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        text: str = run(source, metadata)
        if not _RELEASE.search(text) or not _BARRIER.search(text):
            return text
        functions = list(_FUNCTION.finditer(text))
        for function in reversed(functions):
            begin, end = function.span(1)
            # A release may be behind a call, whose barrier is in the function that calls.
            body = _awaited(function[1], whole=len(functions) > 1)
            text = text[:begin] + body + text[end:]
        return (
            text if f"declare void @{_WAIT}(" in text else f"{text}\ndeclare void @{_WAIT}(i32)\n"
        )

    return stage


def _awaited(body: str, whole: bool) -> str:
    """Return a function's body with waits at the barriers in front of releases, with `whole` at all barriers."""
    blocks = _BLOCK.split(body)
    names = [name[0] if (name := _NAME.match(block)) else "" for block in blocks]
    before: dict[str, list[int]] = {}
    for number, block in enumerate(blocks):
        for target in _TARGET.findall(block):
            before.setdefault(target, []).append(number)
    chosen: set[tuple[int, int]] = set()  # a block and the place of a barrier in it
    places = [[barrier.start() for barrier in _BARRIER.finditer(block)] for block in blocks]
    if whole:
        chosen = {(number, place) for number, of_block in enumerate(places) for place in of_block}
    reached = [
        (number, release.start())
        for number, block in enumerate(blocks)
        for release in _RELEASE.finditer(block)
    ]
    seen: set[int] = set()
    while reached:
        number, end = reached.pop()
        barriers = [place for place in places[number] if place < end]
        if barriers:
            chosen.add((number, barriers[-1]))
            continue
        for other in before.get(names[number], ()):
            if other not in seen:
                seen.add(other)
                reached.append((other, len(blocks[other])))
    for number, place in sorted(chosen, reverse=True):
        block = blocks[number]
        line = _LINE.search(block[place : block.index("\n", place)])
        wait = f"  call void @{_WAIT}(i32 {_STORES}){line[0] if line else ''}\n"
        blocks[number] = block[:place] + wait + block[place:]
    return "".join(blocks)
