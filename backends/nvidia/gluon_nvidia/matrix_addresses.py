"""Descriptors of `wgmma` that several loops share, computed where their address is known.

The compiler writes a descriptor's arithmetic in front of each loop that multiplies the tile. Where the tile's address is no constant, ptxas 12.8
may merge it with that of another loop and leave it in front of the first one. A first loop without a step is passed by, and the second one reads registers
that nothing has written. Then the kernel is assembled again, from PTX in which this arithmetic is behind the instruction that computes the address.

A block here is a basic block of the PTX.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Iterator, NamedTuple

from gluon_nvidia.inspect import instructions_of
from gluon_nvidia.undefined import reads_undefined

__all__ = ["BLOCK", "JUMP", "complete", "functions_of", "shared_addresses", "written"]

_Run = Callable[[Any, "dict[str, Any]"], Any]

# An instruction without effects whose only register is its first source.
_STEP = re.compile(
    r"\s*(?:cvt\.u64\.u32|(?:or|and|add|shl|shr|bfe)\.[bsu](?:32|64))\s+(%rd?\d+), (%rd?\d+)((?:, -?\d+)*);"
)
_RESULT = re.compile(r"\s*(?:@!?%p\d+\s+)?[a-z][\w.:]*\s+(%rd?\d+)(?:\|%p\d+)?\s*,")
_PRODUCT = re.compile(r"wgmma\.mma_async\.\S+\s*\{[^}]*\},\s*(?:\{[^}]*\}|(%rd\d+)),\s*(%rd\d+)")
_BASE = re.compile(r"\s*mov\.b32\s+%r\d+, [a-z_]\w*;")  # shared memory begins there
BLOCK = re.compile(r"\s*\$L_\w+:")
JUMP = re.compile(r"\s*(?:@!?%p\d+\s+)?(?:bra|brx|ret|exit)\b")
_FUNCTION = re.compile(r"^\s*(?:\.visible |\.weak )?\.(?:entry|func)\b", re.M)
_GROUP = re.compile(r"[^\[{]*\{([^}]*)\}")


class _Step(NamedTuple):
    line: int
    source: str


def complete(run: _Run) -> _Run:
    """Return the stage `run`, which calls ptxas, where no path leaves a descriptor undefined."""

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        cubin = run(source, metadata)
        moved = shared_addresses(source)
        return run(moved, metadata) if moved != source and _undefined(cubin) else cubin

    return stage


def _undefined(cubin: bytes) -> bool:
    listing = instructions_of(cubin)
    return listing is None or reads_undefined(listing)


def shared_addresses(ptx: str) -> str:
    """Return PTX that computes descriptors once that two blocks compute from one address."""
    if ptx.count("wgmma.mma_async") < 2:
        return ptx
    return "".join(map(_moved, functions_of(ptx)))


def functions_of(ptx: str) -> Iterator[str]:
    """Yield the text in front of the first function, then each function."""
    cuts = [0, *(match.start() for match in _FUNCTION.finditer(ptx)), len(ptx)]
    return (ptx[begin:end] for begin, end in zip(cuts, cuts[1:]))


def _moved(function: str) -> str:
    lines = function.split("\n")
    places, blocks = _definitions(lines), _blocks(lines)
    steps = _steps(lines, places)
    paths = [
        _path(register, steps)
        for line in lines
        for product in _PRODUCT.finditer(line)
        for register in filter(None, product.groups())
    ]
    readers: dict[str, set[int]] = {}  # register -> other blocks with arithmetic on it
    for step in {step for path in paths for step in path}:
        origins = places.get(step.source, [])
        if len(origins) != 1 or _BASE.match(lines[origins[0]]):
            continue
        if blocks[step.line] != blocks[origins[0]]:
            readers.setdefault(step.source, set()).add(blocks[step.line])
    behind: dict[int, set[int]] = {}
    for path in paths:
        for number, step in enumerate(path):  # the first one is nearest to the address
            if len(readers.get(step.source, ())) > 1:
                (origin,) = places[step.source]
                behind.setdefault(origin, set()).update(one.line for one in path[number:])
                break
    gone = {number for moved in behind.values() for number in moved}
    text: list[str] = []
    for number, line in enumerate(lines):
        if number not in gone:
            text += [line, *(lines[moved] for moved in sorted(behind.get(number, ())))]
    return "\n".join(text)


def _path(register: str, steps: dict[str, _Step]) -> list[_Step]:
    """Return the steps from an address to a descriptor."""
    path: list[_Step] = []
    while (step := steps.get(register)) is not None and step not in path:
        path.append(step)
        register = step.source
    return path[::-1]


def _definitions(lines: list[str]) -> dict[str, list[int]]:
    """Return the lines that write each register of addresses."""
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        for register in written(line):
            places.setdefault(register, []).append(number)
    return places


def written(line: str) -> Iterator[str]:
    """Yield the registers that a line writes."""
    match = _RESULT.match(line)
    if match:
        yield match[1]
        return
    group = _GROUP.match(line)
    if group:  # results of a load of a vector, or sums of a product
        yield from re.findall(r"%rd?\d+", group[1])


def _steps(lines: list[str], places: dict[str, list[int]]) -> dict[str, _Step]:
    """Return the arithmetic by its result, of registers that nothing else writes."""
    return {
        match[1]: _Step(number, match[2])
        for number, line in enumerate(lines)
        for match in [_STEP.match(line)]
        if match and len(places[match[1]]) == 1
    }


def _blocks(lines: list[str]) -> list[int]:
    """Return the number of each line's block."""
    numbers, block = [], 0
    for line in lines:
        block += bool(BLOCK.match(line))
        numbers.append(block)
        block += bool(JUMP.match(line))
    return numbers
