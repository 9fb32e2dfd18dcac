"""Give the warps of chained products rows of their own.

    score = gl.portable.mma(q, k, zeros)
    weight = exp2(score - max(score, 1)[:, None])
    acc = gl.portable.mma(weight, v, acc)

A warp that has whole rows of the first product reduces them alone, and has the operand of the second one in its
registers. A matrix unit of single warps would else share the columns of a row among warps, which exchange each sum
through shared memory, behind two barriers. Where rows are short of warps they stay shared: on an H200 causal attention
of 32 rows and four warps took 1.07 of the time with each row in two warps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterator

from gluon_sim.tracing.ir import Op

__all__ = ["rows_to_warps"]

_ROWS, _COLUMNS = 16, 8  # of an instruction of `mma.sync`


def rows_to_warps(region: Any) -> None:
    """Change the layouts that products of a traced function demand.

    Args:
        region: the body of the function.
    """
    for block in region.blocks:
        for place, op in enumerate(block.ops):
            for inner in op.regions:
                rows_to_warps(inner)
            if op.name == "mma" and _is_free(op):
                _change(op, block.ops[place + 1 :])


def _change(first: Op, later: list[Op]) -> None:
    """Change the layouts of a product and of those that multiply its result, in the same block."""
    known = {id(value) for value in first.results}
    chain = [first]
    for op in later:
        if not any(id(value) in known for value in _read(op)):
            continue
        if op.name == "mma":
            if id(op.args[0].resolve()) in known and _is_free(op):
                chain.append(op)
            continue
        known |= {id(value) for value in op.results}
    for op in chain if len(chain) > 1 else ():
        accumulator = op.attrs["layouts"][2]
        warps = accumulator.warps_per_cta[0] * accumulator.warps_per_cta[1]
        changed = replace(accumulator, warps_per_cta=[warps, 1])
        op.attrs["layouts"] = [
            *(replace(layout, parent=changed) for layout in op.attrs["layouts"][:2]),
            changed,
        ]


def _read(op: Op) -> Iterator[Any]:
    """Yield the values that an op reads, those of its regions included."""
    yield from op.operands()
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                yield from _read(inner)


def _is_free(op: Op) -> bool:
    """Return True for a product of `mma.sync` whose rows are enough for the warps."""
    layouts = op.attrs.get("layouts") or [None]
    accumulator = layouts[-1]
    if None in layouts or list(getattr(accumulator, "instr_shape", ())) != [_ROWS, _COLUMNS]:
        return False
    warps = accumulator.warps_per_cta[0] * accumulator.warps_per_cta[1]
    rows = op.results[0].type.dims[0]
    return bool(warps * _ROWS <= rows)
