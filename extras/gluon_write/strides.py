"""Compute the distance in memory between neighbours of each dimension of an index or pointer tensor."""

from __future__ import annotations

from typing import Any, Optional

__all__ = ["Strides"]

Steps = tuple[
    Optional[int], ...
]  # in elements, per dimension; None: not known, taken for far apart
_KEEPS = ("int_cast", "convert_layout", "bitcast")


class Strides:
    """Collect the steps of values, context by context, in the order of the program."""

    def __init__(self) -> None:
        self._steps: dict[tuple[Any, int], Steps] = {}
        self._constants: dict[int, int] = {}

    def link(self, context: Any, value: Any, source: Any) -> None:
        """Give a value that control flow hands on the steps of its first source."""
        self.across(context, value, context, source)

    def across(self, inner: Any, value: Any, outer: Any, source: Any) -> None:
        known = self._steps.get((outer, id(source.resolve())))
        if known is not None:
            self._steps.setdefault((inner, id(value.resolve())), known)

    def of(self, context: Any, value: Any, rank: int) -> Steps:
        """Return the steps of a value of `rank` dimensions."""
        return self._steps.get((context, id(value.resolve())), (None,) * rank)

    def take(self, op: Any, context: Any) -> None:
        """Note the steps of an op's result."""
        if op.name == "constant" and not op.results[0].type.dims:
            if isinstance(op.args[0], int):
                self._constants[id(op.results[0])] = op.args[0]
        if len(op.results) != 1 or not op.results[0].type.dims:
            return
        result = op.results[0]
        key = (context, id(result))
        if key not in self._steps:
            self._steps[key] = self._steps_of(op, context, len(result.type.dims))

    def _steps_of(self, op: Any, context: Any, rank: int) -> Steps:
        name, operands = op.name, list(op.operands())
        if name == "make_range":
            return (1,)
        if name in ("splat", "constant"):
            if name == "splat" and id(operands[0]) in self._constants:
                self._constants[id(op.results[0])] = self._constants[id(operands[0])]
            return (0,) * rank
        if not operands:
            return (None,) * rank
        first = self.of(context, operands[0], len(operands[0].type.dims))
        if name in _KEEPS:
            return first
        if name == "broadcast":
            dims, wide = operands[0].type.dims, op.results[0].type.dims
            return tuple(0 if d != w else s for s, d, w in zip(first, dims, wide))
        if name == "expand_dims":
            axis = op.args[1]
            return (*first[:axis], 0, *first[axis:])
        if name == "trans":
            return tuple(first[d] for d in op.args[1])
        if len(operands) == 2 and rank:
            return self._of_two(name, operands, context, rank)
        if all(s == 0 for o in operands for s in self.of(context, o, len(o.type.dims) or rank)):
            return (0,) * rank
        return (None,) * rank

    def _of_two(self, name: str, operands: list[Any], context: Any, rank: int) -> Steps:
        one, other = (self.of(context, o, rank) for o in operands)
        if name in ("add", "addptr"):
            return tuple(None if a is None or b is None else a + b for a, b in zip(one, other))
        if name == "sub":
            return tuple(None if a is None or b is None else a - b for a, b in zip(one, other))
        if name == "mul":
            return tuple(self._product(a, b, operands) for a, b in zip(one, other))
        return tuple(0 if a == 0 and b == 0 else None for a, b in zip(one, other))

    def _product(self, a: Optional[int], b: Optional[int], operands: list[Any]) -> Optional[int]:
        if a == 0 and b == 0:
            return 0
        for step, uniform, factor in ((a, b, operands[1]), (b, a, operands[0])):
            known = self._constants.get(id(factor))
            if uniform == 0 and step is not None and known is not None:
                return step * known
        return None
