"""In how many rounds of a loop its slots and phases come back."""

from __future__ import annotations

from math import lcm

from gluon_prove.code import Code, Enter, Fork, Move, Pure

__all__ = ["periods_of"]


def periods_of(codes: list[Code]) -> dict[int, int]:
    """Return by root in how many rounds of its loops the slots and phases come back that depend on their counters."""
    roots = _dependent(codes)
    periods: dict[int, int] = {}
    bits: dict[int, int] = {}
    for step in (step for code in codes for step in code.steps):
        if not isinstance(step, Pure) or len(step.args) != 2:
            continue
        by = step.args[1].value
        if not isinstance(by, int) or by <= 0:
            continue
        for root in roots.get(step.args[0].var, ()) if step.args[0].var is not None else ():
            if step.name in ("srem", "urem", "sdiv", "udiv"):
                periods[root] = lcm(periods.get(root, 1), by)
            elif step.name == "and":
                bits[root] = max(bits.get(root, 1), 1 << by.bit_length())
            elif step.name in ("lshr", "ashr"):
                periods[root] = lcm(periods.get(root, 1), 1 << by)
    return {root: periods.get(root, 1) * bits.get(root, 1) for root in {*periods, *bits}}


def _dependent(codes: list[Code]) -> dict[int, set[int]]:
    """Return by variable the roots whose counters it depends on."""
    sources: list[tuple[int, int]] = []  # a variable, and one that it is computed from
    roots: dict[int, set[int]] = {}
    for step in (step for code in codes for step in code.steps):
        if isinstance(step, Pure):
            sources += [(step.out, var) for var in step.uses()]
        elif isinstance(step, Move):
            pairs = zip(step.outs, step.args)
            sources += [(out, arg.var) for out, arg in pairs if arg.var is not None]
        elif isinstance(step, Fork):
            passed = (pair for pairs in step.passed for pair in pairs)
            sources += [(out, arg.var) for out, arg in passed if arg.var is not None]
        elif isinstance(step, Enter):
            loop = step.loop
            sources += [(loop.counter, step.low.var)] if step.low.var is not None else []
            for var in (loop.counter, *loop.linear):
                roots.setdefault(var, set()).update(() if loop.root is None else (loop.root,))
    changed = True
    while changed:
        changed = False
        for out, var in sources:
            more = roots.get(var, set()) - roots.get(out, set())
            if more:
                roots.setdefault(out, set()).update(more)
                changed = True
    return roots
