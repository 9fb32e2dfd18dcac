"""Start the programs with the most steps first, so that none of them is the last one at work.

With a causal mask a program's steps grow with its index, and devices start programs in the order of
their indices. Programs may run in any order; they take each other's index.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Mapping, Optional, Sequence

from gluon_core import language
from gluon_core._triton import unwrap
from gluon_write.form import Form, changed_copy, edited
from gluon_write.sketch import Sketch

__all__ = ["heavy_axis", "reversed_programs"]

_SIZE = 4096  # of the integers that a launch passes
_SAMPLES = 8  # programs
_MOST = 1 << 18  # rounds of a program's loops; one with more says nothing in a second
_AXES = 3


def heavy_axis(text: str, name: str, rings: Sequence[str], drawn: Sketch, scope: Mapping[str, Any],
               functions: Mapping[str, str]) -> Optional[int]:  # fmt: skip
    """Return the axis along which programs have more and more steps; None without one.

    The producer's function is executed for some programs, with sizes that a launch could pass.

    Args:
        text, name: of the function. rings: its parameters that are rings.
        functions: name -> text of the functions that it calls.
    """
    for axis in range(_AXES):
        try:
            steps = [_steps(text, name, rings, drawn, scope, functions, axis, index)
                     for index in range(_SAMPLES)]  # fmt: skip
        except Exception:  # it computes by other functions
            return None
        if steps == sorted(steps) and steps[0] < steps[-1]:
            return axis
    return None


def _steps(
    text: str, name: str, rings: Sequence[str], drawn: Sketch, scope: Mapping[str, Any],
    functions: Mapping[str, str], axis: int, index: int,
) -> int:  # fmt: skip
    """Return the copies of one program."""
    fetched = [0]

    def fetch(*_: Any) -> None:
        fetched[0] += 1

    budget = iter(range(_MOST))

    def rounds(*bounds: int) -> Iterator[int]:
        for value in range(*bounds):
            next(budget)  # raises in the generator: RuntimeError
            yield value

    slot: Any = SimpleNamespace()
    slot.next = lambda: slot
    ring = SimpleNamespace(producer=lambda: slot, fetch=fetch)
    space: Any = SimpleNamespace(
        program_id=lambda a: index if a == axis else 0, num_programs=lambda a: _SAMPLES,
        minimum=min, maximum=max, cdiv=lambda a, b: -(-a // b), constexpr=int,
        multiple_of=lambda value, _: value,
    )  # fmt: skip
    names = {n: space if value is language else unwrap(value) for n, value in scope.items()}
    names["range"] = rounds
    for one in (*functions.values(), text):
        if any(isinstance(node, ast.While) for node in ast.walk(ast.parse(one))):
            raise NotImplementedError  # rounds that nothing bounds
        exec(compile(one, "<steps>", "exec"), names)
    function = names[name]
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    passed = {n: unwrap(value) for n, value in drawn.constants.items()}
    function(*(ring if p in rings else passed.get(p, _SIZE) for p in parameters))
    return fetched[0]


def reversed_programs(fn: Any, drawn: Sketch, axis: int) -> Optional[Any]:
    """Return a kernel whose programs take the index of the last one, the one before, and so on; None if it cannot.

    Programs that wait for each other by atomics keep their order.
    """
    ops = list(drawn.program.walk_ops())
    if any("atomic" in op.name for op in ops):
        return None
    texts: dict[int, str] = {}
    count = 0
    for number, jit in enumerate(drawn.jits):
        reader = Form(jit)
        space = next((n for n, value in reader.scope.items() if value is language), None)
        calls = [
            node
            for node in ast.walk(reader.tree)
            if isinstance(node, ast.Call) and reader.called(node) is language.program_id
        ]
        if any(not (len(c.args) == 1 and isinstance(c.args[0], ast.Constant)) for c in calls):
            return None
        own = [c for c in calls if getattr(c.args[0], "value", None) == axis]
        if own and space is None:
            return None
        text = f"({space}.num_programs({axis}) - 1 - {space}.program_id({axis}))"
        if own:
            texts[number] = edited(reader.source, [(call, text) for call in own])
            count += len(own)
    return changed_copy(fn, drawn.jits, texts, {}) if count else None
