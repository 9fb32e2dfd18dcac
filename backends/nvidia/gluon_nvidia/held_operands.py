"""First operands of `wgmma` that all steps of a loop read from registers, kept there until the loop ends.

ptxas 12.8 to 13.0 may give such registers to other values within a step: the next step multiplies those. It does not where something behind the loop
reads the operand. A store that never runs does so here.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Callable, Iterable, NamedTuple

from gluon_nvidia.matrix_addresses import BLOCK, JUMP, functions_of, written

__all__ = ["held", "held_operands"]

_Run = Callable[[Any, "dict[str, Any]"], Any]

_PRODUCT = re.compile(r"wgmma\.mma_async\.\S+\s*\{[^}]*\},\s*\{([^}]*)\}")
_LABEL = re.compile(r"\s*(\$L_\w+):")
_TARGET = re.compile(
    r"(?P<if>@!?%p\d+\s+)?(?:bra(?:\.uni)?\s+(?P<label>[\w$]+)|(?P<table>brx)|ret|exit)\b"
)
_COPY = re.compile(
    r"\s*mov\.b32\s+(%r\d+), (%r\d+);"
)  # Triton 3.8 copies operands for each product
_TABLE = re.compile(r"\.branchtargets\b([^;]*);")
_READ = """{{
	.reg .pred never;
	.reg .b32 blocks;
	mov.u32 blocks, %nctaid.x;
	setp.eq.u32 never, blocks, 0;
{stores}
}}"""


class _Block(NamedTuple):
    first: int  # of its lines
    end: int
    successors: frozenset[int]


def held(run: _Run) -> _Run:
    """Return the stage `run`, which writes PTX, where loops hold the operands that all of their steps read."""
    return lambda source, metadata: held_operands(run(source, metadata))


def held_operands(ptx: str) -> str:
    """Return PTX that reads behind a loop the first operands of `wgmma` that the loop only reads."""
    if not _PRODUCT.search(ptx):
        return ptx
    return "".join(map(_held, functions_of(ptx)))


def _held(function: str) -> str:
    lines = function.split("\n")
    products = {
        n: match[1] for n, line in enumerate(lines) for match in [_PRODUCT.search(line)] if match
    }
    if not products:
        return function
    blocks = _blocks(lines)
    reads: dict[int, dict[str, None]] = {}  # line -> operands, in order
    for loop in _loops(blocks):
        inside = [n for block in loop for n in range(blocks[block].first, blocks[block].end)]
        changed = Counter(register for n in inside for register in written(lines[n]))
        copies = {
            match[1]: match[2]
            for n in inside
            for match in [_COPY.match(lines[n])]
            if match and changed[match[1]] == 1
        }
        kept: dict[str, None] = {}
        for n in sorted(products.keys() & set(inside)):
            origins = [copies.get(one, one) for one in re.findall(r"%r\d+", products[n])]
            if not any(map(changed.__getitem__, origins)):
                kept[", ".join(origins)] = None
        for exit in {target for block in loop for target in blocks[block].successors - loop}:
            first = blocks[exit].first
            reads.setdefault(first + bool(BLOCK.match(lines[first])), {}).update(kept)
    text: list[str] = []
    for number, line in enumerate(lines):
        if reads.get(number):
            stores = (f"\t@never st.shared.v4.b32 [blocks], {{{one}}};" for one in reads[number])
            text.append(_READ.format(stores="\n".join(stores)))
        text.append(line)
    return "\n".join(text)


def _blocks(lines: list[str]) -> list[_Block]:
    """Return the basic blocks of a function, each with those that may follow it."""
    starts = {0} | {n for n, line in enumerate(lines) if BLOCK.match(line)}
    starts |= {n + 1 for n, line in enumerate(lines) if JUMP.match(line)}
    cuts = [*sorted(starts - {len(lines)}), len(lines)]
    labels = {
        match[1]: number
        for number, first in enumerate(cuts[:-1])
        for match in [_LABEL.match(lines[first])]
        if match
    }
    tables = _TABLE.findall("\n".join(lines))
    named = frozenset(labels[one] for table in tables for one in re.findall(r"\$L_\w+", table))
    blocks = []
    for number, (first, end) in enumerate(zip(cuts, cuts[1:])):
        jump = _TARGET.match(lines[end - 1].strip())
        following = {number + 1} if end < len(lines) and (jump is None or jump["if"]) else set()
        if jump and jump["table"]:
            following |= named
        if jump and jump["label"] in labels:
            following.add(labels[jump["label"]])
        blocks.append(_Block(first, end, frozenset(following)))
    return blocks


def _loops(blocks: list[_Block]) -> Iterable[frozenset[int]]:
    """Return the blocks of each natural loop, the loops of one header as one."""
    before: list[set[int]] = [set() for _ in blocks]
    for number, block in enumerate(blocks):
        for target in block.successors:
            before[target].add(number)
    everything = frozenset(range(len(blocks)))
    above = [frozenset([0])] + [everything] * (len(blocks) - 1)  # the dominators of each block
    changed = True
    while changed:
        changed = False
        for number in range(1, len(blocks)):
            paths = [above[one] for one in before[number]]
            merged = frozenset.intersection(everything, *paths) | {number} if paths else everything
            changed |= merged != above[number]
            above[number] = merged
    loops: dict[int, set[int]] = {}
    for number, block in enumerate(blocks):
        for header in block.successors & above[number]:
            body, waiting = loops.setdefault(header, {header}), [number]
            while waiting:
                one = waiting.pop()
                if one not in body:
                    body.add(one)
                    waiting += before[one]
    return map(frozenset, loops.values())
