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
from gluon_write.text.form import Form, changed_copy, edited
from gluon_write.text.syntax import argument, nodes_in
from gluon_write.tracing.sketch import Sketch

__all__ = ["AXES", "heavy_axis", "reversed_programs"]

_SIZE = 4096  # of the integers that a launch passes
_SAMPLES = 8  # programs
_MOST = 1 << 18  # rounds of a program's loops; one with more says nothing in a second
AXES = 3  # of a grid
_TYPES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()


class _Integer(int):
    """Behave as a scalar of a kernel: its arithmetic, and conversions to other integers."""

    def to(self, *_: Any, **__: Any) -> "_Integer":
        """Return the integer, which has any width."""
        return self


def _arithmetic(name: str) -> Any:
    plain = getattr(int, name)

    def method(one: _Integer, other: Any) -> Any:
        value = plain(one, other)
        return value if value is NotImplemented else _Integer(value)

    return method


for _name in "add sub mul floordiv mod and or xor lshift rshift".split():
    for _method in (f"__{_name}__", f"__r{_name}__"):
        setattr(_Integer, _method, _arithmetic(_method))


def heavy_axis(text: str, name: str, rings: Sequence[str], drawn: Sketch, scope: Mapping[str, Any],
               functions: Mapping[str, str]) -> Optional[int]:  # fmt: skip
    """Return the axis along which programs have more and more steps; None without one.

    The producer's function is executed for some programs, with sizes that a launch could pass.

    Args:
        text, name: of the function. rings: its parameters that are rings.
        functions: name -> text of the functions that it calls.
    """
    for axis in range(AXES):
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
    ring: Any = SimpleNamespace(producer=lambda: slot, fetch=fetch, part=lambda *_: ring)
    space: Any = SimpleNamespace(
        **{name: getattr(language, name) for name in _TYPES},
        program_id=_index_of(index, axis), num_programs=lambda axis: _Integer(_SAMPLES),
        minimum=min, maximum=max, cdiv=lambda a, b: _Integer(-(-a // b)), constexpr=_Integer,
        multiple_of=lambda value, _: value, static_assert=lambda *_: None,
        where=lambda holds, value, other: value if holds else other,
        portable=SimpleNamespace(descriptor=lambda *_: None),
    )  # fmt: skip
    names = {n: space if value is language else unwrap(value) for n, value in scope.items()}
    names |= {"range": rounds, "min": space.minimum, "max": space.maximum}
    helpers = [jit.src for jit in drawn.jits if jit.__name__ not in (name, *functions)]
    for one in (*helpers, *functions.values(), text):
        if any(isinstance(node, ast.While) for node in nodes_in(ast.parse(one))):
            raise NotImplementedError  # rounds that nothing bounds
        exec(compile(one, "<steps>", "exec"), names)
    function = names[name]
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    passed = {n: unwrap(value) for n, value in drawn.constants.items()}
    function(*(ring if p in rings else passed.get(p, _Integer(_SIZE)) for p in parameters))
    return fetched[0]


def _index_of(index: int, along: int) -> Any:
    """Return `gl.program_id` of a program with an index along one axis."""
    return lambda axis: _Integer(index if axis == along else 0)


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
        space = reader.space
        calls = [
            node
            for node in nodes_in(reader.tree)
            if isinstance(node, ast.Call) and reader.called(node) is language.program_id
        ]
        axes = [argument(c, 0, "axis") for c in calls]
        if any(not isinstance(one, ast.Constant) for one in axes):
            return None
        own = [c for c, one in zip(calls, axes) if getattr(one, "value", None) == axis]
        if own and not space:
            return None
        text = f"({space}.num_programs({axis}) - 1 - {space}.program_id({axis}))"
        if own:
            texts[number] = edited(reader.source, [(call, text) for call in own])
            count += len(own)
    return changed_copy(fn, drawn.jits, texts, {}) if count else None
