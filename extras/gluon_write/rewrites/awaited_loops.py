"""Wait for the products of a loop only where it has steps.

    if 0 < K:
        acc = gl.nvidia.hopper.warpgroup_mma_init(acc)
        for k in range(0, K, BK):
            ...
        acc = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[acc])

Behind a loop that may have no steps, sums of products under way meet the zeros from before it: ptxas 12.8 then waits after
each `wgmma` of some kernels, as where a step stores an operand while the product of the step before runs. On an H200 gradients
of weights took 0.89 of the time in a branch, and a product with a ReLU, which has fewer registers so, 0.87.
"""

from __future__ import annotations

import ast
from typing import Any, Mapping, Sequence

from gluon_write.text.syntax import nodes_in, stores

__all__ = ["with_awaited_loops"]

_GONE = "\0"  # a line that moves


def with_awaited_loops(text: str, conditions: Mapping[str, str]) -> str:
    """Return a function whose loops and the statements behind them that wait for their products are in branches.

    Args:
        conditions: counter of a loop's steps -> the condition that it has one.
    """
    lines = text.splitlines()
    for block in nodes_in(ast.parse(text)):
        body: Any = getattr(block, "body", None)
        for loop, behind in zip(body, body[1:]) if isinstance(body, list) else ():
            condition = conditions.get(_counter(loop))
            if condition is None or "warpgroup_mma_wait(0" not in ast.unparse(behind):
                continue
            first, last = loop.lineno - 1, behind.end_lineno
            begun = []  # sums that may be under way are of another type
            for statement in _begins(body[: body.index(loop)], stores(behind)):
                begun.append(f"    {lines[statement.lineno - 1]}")
                lines[statement.lineno - 1] = _GONE
            moved = [f"    {line}" if line.strip() else line for line in lines[first:last]]
            head = [f"{' ' * loop.col_offset}if {condition}:", *begun]
            lines[first] = "\n".join([*head, moved[0]])
            lines[first + 1 : last] = moved[1:]
    return "\n".join(line for line in lines if line != _GONE) + "\n"


def _begins(before: Sequence[ast.stmt], sums: set[str]) -> list[ast.stmt]:
    """Return the statements that let sums be under way which the one behind the loop waits for."""
    last = {name: statement for statement in before for name in sums & stores(statement)}
    begun = [one for one in last.values() if "warpgroup_mma_init(" in ast.unparse(one)]
    return [one for one in begun if isinstance(one, ast.Assign)]


def _counter(node: ast.stmt) -> str:
    """Return the name that the last statement of a loop's steps counts; "" without one."""
    last = node.body[-1] if isinstance(node, ast.For) else None
    counts = isinstance(last, ast.AugAssign) and isinstance(last.target, ast.Name)
    return last.target.id if counts else ""  # type: ignore[union-attr]
