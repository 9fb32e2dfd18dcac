"""Registers that are dead behind an instruction: nobody reads them before they are written again."""

from __future__ import annotations

from typing import Any

__all__ = ["dead_after"]


def dead_after(code: Any) -> tuple[list[tuple[str, ...]], frozenset[str]]:
    """Return the registers that die at each instruction, and those of which a function may read
    before it writes to them.

    A function's registers have names of their own, so a call neither reads nor writes those of its
    caller; arguments live under the names of their variables, which no instruction drops.
    """
    steps = code.steps
    names = sorted({n for b in steps for n in b.reads | b.writes})
    bit = {name: 1 << i for i, name in enumerate(names)}
    reads = [sum(bit[n] for n in b.reads) for b in steps]
    writes = [sum(bit[n] for n in b.writes) if b.guard is None else 0 for b in steps]
    touched = [sum(bit[n] for n in b.reads | b.writes) for b in steps]

    begins = set(code.starts.values())
    starts = [i for i, b in enumerate(steps) if i in begins or b.leads or _ends(steps[i - 1])]
    block_of = {start: n for n, start in enumerate(starts)}
    ends = [*starts[1:], len(steps)]
    uses, defines, after = [], [], []
    for start, end in zip(starts, ends):
        use = define = 0
        for i in range(start, end):
            use |= reads[i] & ~define
            define |= writes[i]
        uses.append(use)
        defines.append(define)
        after.append([block_of[t] for t in _targets(code, end - 1) if t in block_of])
    live_in = list(uses)
    changed = True
    while changed:
        changed = False
        for n in range(len(starts) - 1, -1, -1):
            out = 0
            for successor in after[n]:
                out |= live_in[successor]
            new = uses[n] | out & ~defines[n]
            if new != live_in[n]:
                live_in[n], changed = new, True
    dead: list[tuple[str, ...]] = [()] * len(steps)
    for n, (start, end) in enumerate(zip(starts, ends)):
        live = 0
        for successor in after[n]:
            live |= live_in[successor]
        for i in range(end - 1, start - 1, -1):
            gone = touched[i] & ~live
            if gone:
                dead[i] = tuple(_named(gone, names))
            live = live & ~writes[i] | reads[i]
    first = 0
    for start in code.starts.values():
        first |= live_in[block_of[start]] if start in block_of else 0
    return dead, frozenset(_named(first, names))


def _named(bits: int, names: list[str]) -> list[str]:
    chosen = []
    while bits:
        low = bits & -bits
        chosen.append(names[low.bit_length() - 1])
        bits ^= low
    return chosen


def _ends(bound: Any) -> bool:
    return bound.source.statement.name in ("bra", "brx", "ret", "exit", "trap")


def _targets(code: Any, index: int) -> list[int]:
    bound = code.steps[index]
    statement = bound.source.statement
    behind = [index + 1] if index + 1 < len(code.steps) else []
    if statement.name in ("ret", "exit", "trap"):
        return behind if bound.guard is not None else []
    if statement.name == "bra":
        prefix = "" if bound.function == code.kernel.name else f"{bound.function}:"
        target = code.labels.get(prefix + str(statement.operands[0]), index + 1)
        return [target, *behind] if bound.guard is not None else [target]
    if statement.name == "brx":
        prefix = "" if bound.function == code.kernel.name else f"{bound.function}:"
        table = code.module.functions[bound.function].tables.get(str(statement.operands[-1]), ())
        return [code.labels[prefix + label] for label in table] + behind
    return behind
