"""Address arithmetic that does not fit into its integer type.

A 32-bit offset that wraps reads another element of the same tensor, on a GPU and here. So the ops
whose results flow into addresses are watched. An element that wrapped is marked, the mark travels
with the value (`Wrapped`), and the access that uses it is the mistake: offsets of elements that are
masked off may wrap.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Optional

import numpy as np

from gluon_sim.errors import OffsetOverflowError
from gluon_sim.sanitizer.addresses import place
from gluon_sim.sanitizer.agents import Task
from gluon_sim.tracing.ir import Block, Function, Op, Value
from gluon_sim.tracing.program import Program
from gluon_sim.tracing.source import span_of
from gluon_sim.tracing.types import PointerType, ScalarType
from gluon_sim.tracing.words import called

__all__ = ["Wrapped", "guard", "guarded", "settle"]

_WATCHED = frozenset(("add", "sub", "mul", "shl"))
# Ops through which an index stays an index. A remainder or a mask makes a new one.
_THROUGH = _WATCHED | frozenset(
    "broadcast splat unsplat expand_dims reshape trans convert_layout join split cat select sdiv minsi "
    "maxsi gather".split()
)
_NARROW = ("i8", "i16", "i32")

Branches = dict[int, "list[tuple[Op, list[Value]]]"]  # by target: the branch, its arguments


# ---- which ops to watch ---------------------------------------------------------------------


def guarded(program: Program) -> set[int]:
    """Ids of the ops whose integer results flow into addresses and might not fit."""
    calls: dict[str, list[Op]] = {}
    branches: Branches = {}
    todo: list[Value] = []
    for op in program.walk_ops():
        if op.name == "call":
            calls.setdefault(op.args[0].name, []).append(op)
        elif op.name == "branch":
            branches.setdefault(id(op.args[0]), []).append((op, op.args[1]))
        operands = list(op.operands())
        if op.name == "addptr":
            todo.append(operands[1])
        elif any(isinstance(v.type.element, PointerType) for v in operands):
            if op.name not in ("load", "store", "masked_load", "masked_store"):
                # Vendors' accesses take a pointer and offsets next to it.
                todo += [v for v in operands if v.type.dims and _integer(v)]
    seen: set[int] = set()
    guards: set[int] = set()
    while todo:
        value = todo.pop().resolve()
        if id(value) in seen or not _integer(value):
            continue
        seen.add(id(value))
        owner = value.owner
        if isinstance(owner, Op):
            if owner.name in _WATCHED and str(value.type.element) in _NARROW:
                guards.add(id(owner))
            if owner.name in _THROUGH or owner.name == "int_cast" and owner.args[2]:
                todo += owner.operands()
                continue
        todo += _sources(value, calls, branches)
    return guards


def _integer(value: Value) -> bool:
    element = value.type.element
    return isinstance(element, ScalarType) and element.name[0] == "i" and element.name != "i1"


def _sources(value: Value, calls: dict[str, list[Op]], branches: Branches) -> Iterator[Value]:
    """Yield the values that a value of control flow may be."""
    owner, position = value.owner, value.index
    if isinstance(owner, Op):
        if owner.name == "call":
            for block in owner.args[0].body.blocks:
                yield from _passed(block, "ret", position)
        elif owner.name in ("if", "for"):
            for region in owner.regions:
                for block in region.blocks:
                    yield from _passed(block, "yield_op", position)
            if owner.name == "for":
                yield owner.args[3][position]
        elif owner.name == "while":
            for block in owner.regions[0].blocks:
                yield from _passed(block, "condition_op", position)
        return
    home = owner.region
    parent = home.owner if home is not None else None
    if isinstance(parent, Function):
        if parent.body.blocks and parent.body.blocks[0] is owner:
            for op in calls.get(parent.name, ()):
                yield op.args[1][position]
        for _, arguments in branches.get(id(owner), ()):
            yield arguments[position]
    elif isinstance(parent, Op) and parent.name == "for":
        if position == 0:
            yield from parent.args[:2]
        else:
            yield parent.args[3][position - 1]
            yield from _passed(owner, "yield_op", position - 1)
    elif isinstance(parent, Op) and parent.name == "while":
        if home is parent.regions[0]:
            yield parent.args[0][position]
            for block in parent.regions[1].blocks:
                yield from _passed(block, "yield_op", position)
        else:
            for block in parent.regions[0].blocks:
                yield from _passed(block, "condition_op", position)


def _passed(block: Block, name: str, position: int) -> Iterator[Value]:
    """Return the value that the terminator called `name` passes at a position."""
    for op in block.ops[-1:]:
        if op.name == name:
            values = op.args[-1]
            if position < len(values):
                yield values[position]


# ---- watching -------------------------------------------------------------------------------


def guard(op: Op, run: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """`run(a, b)` of a watched op, as a handler that also takes the task."""
    limits = np.iinfo(np.dtype(f"i{_bits(op) // 8}"))
    low, high = int(limits.min), int(limits.max)
    name = op.name

    def handler(task: Task, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        out = run(a, b)
        if not task.machine.settings.overflow:
            return out
        # The extremes tell without a look at the elements; operands are smaller than the result.
        a_low, a_high = _extremes(a)
        b_low, b_high = _extremes(b)
        if name == "add":
            least, most = a_low + b_low, a_high + b_high
        elif name == "sub":
            least, most = a_low - b_high, a_high - b_low
        else:
            if name == "shl":
                if b_low < 0 or b_high > 62:
                    return out
                b_low, b_high = 1 << b_low, 1 << b_high
            corners = (a_low * b_low, a_low * b_high, a_high * b_low, a_high * b_high)
            least, most = min(corners), max(corners)
        if least >= low and most <= high:
            return out
        wide, by = np.asarray(a).astype(np.int64), np.asarray(b).astype(np.int64)
        exact = _EXACT[name](wide, by)
        bad = (exact < low) | (exact > high)
        return Wrapped.mark(np.asarray(out), bad, op) if bad.any() else out

    return handler


def _bits(op: Op) -> int:
    """Return the dtype of the integers of a watched op."""
    element = op.results[0].type.element
    assert isinstance(element, ScalarType)
    return element.bits


_EXACT = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "shl": np.left_shift}


def _extremes(x: np.ndarray) -> tuple[int, int]:
    if x.size == 1:
        only = x.item()
        return only, only
    if not x.size:
        return 0, 0
    return int(np.minimum.reduce(x, axis=None)), int(np.maximum.reduce(x, axis=None))


# ---- wrapped values ----------------------------------------------------------------------------

_UFUNCS = frozenset(
    (
        np.add, np.subtract, np.multiply, np.left_shift, np.negative, np.floor_divide, np.minimum,
        np.maximum,
    )
)  # fmt: skip
_SHAPES = frozenset(
    (np.broadcast_to, np.expand_dims, np.reshape, np.transpose, np.ascontiguousarray)
)
_JOINS = frozenset((np.stack, np.concatenate))


class Wrapped(np.ndarray):
    """Integers of which some wrapped; index arithmetic and changes of shape keep the marks.

    Attributes:
        bad: which elements, an array of the same shape.
        op: the op in which the first of them wrapped.
    """

    bad: Optional[np.ndarray]
    op: Optional[Op]

    def __array_finalize__(self, other: Any) -> None:
        self.bad = None
        self.op = None

    @classmethod
    def mark(cls, values: Any, bad: np.ndarray, op: Optional[Op]) -> "Wrapped":
        out = np.asarray(values).view(cls)
        out.bad = np.broadcast_to(bad, out.shape)
        out.op = op
        return out

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **named: Any
    ) -> Any:
        if out is not None:
            named["out"] = tuple(_plain(o) for o in out)
        result = getattr(ufunc, method)(*(_plain(i) for i in inputs), **named)
        marks = [(i.bad, i.op) for i in inputs if isinstance(i, Wrapped) and i.bad is not None]
        if method != "__call__" or ufunc not in _UFUNCS or not marks:
            return result
        bad = np.logical_or.reduce([np.broadcast_to(marked, result.shape) for marked, _ in marks])
        if out is not None and isinstance(out[0], Wrapped):
            out[0].bad, out[0].op = bad, marks[0][1]
            return out[0]
        return Wrapped.mark(result, bad, marks[0][1])

    def __array_function__(self, func: Any, types: Any, args: Any, named: Any) -> Any:
        if func is np.where and len(args) == 3:
            result = np.where(*(_plain(a) for a in args))
            sides = [_bad(a, np.shape(a)) for a in args[1:]]
            return Wrapped.mark(result, np.where(_plain(args[0]), *sides), _op(args[1:]))
        if func in _SHAPES and isinstance(args[0], Wrapped):
            result = func(_plain(args[0]), *args[1:], **named)
            bad = func(_bad(args[0], args[0].shape), *args[1:], **named)
            return Wrapped.mark(result, bad, args[0].op)
        if func in _JOINS:
            result = func([_plain(a) for a in args[0]], *args[1:], **named)
            bad = func([_bad(a, np.shape(a)) for a in args[0]], *args[1:], **named)
            return Wrapped.mark(result, bad, _op(args[0]))
        return func(*_deep(args), **{k: _deep(v) for k, v in named.items()})

    def _both(self, name: str, *args: Any, **named: Any) -> Any:
        result = getattr(_plain(self), name)(*args, **named)
        if self.bad is None or not isinstance(result, np.ndarray):
            return result
        return Wrapped.mark(result, getattr(self.bad, name)(*args, **named), self.op)

    def reshape(self, *shape: Any, **named: Any) -> Any:
        return self._both("reshape", *shape, **named)

    def transpose(self, *axes: Any) -> Any:
        return self._both("transpose", *axes)

    def __getitem__(self, key: Any) -> Any:
        return self._both("__getitem__", key)

    def astype(self, dtype: Any, *args: Any, **named: Any) -> Any:
        result = _plain(self).astype(dtype, *args, **named)
        if self.bad is None or np.dtype(dtype).kind not in "iu":
            return result
        return Wrapped.mark(result, self.bad, self.op)


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, Wrapped) else value


def _deep(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_deep(v) for v in value)
    return _plain(value)


def _bad(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    bad = value.bad if isinstance(value, Wrapped) else None
    return np.zeros(shape, bool) if bad is None else bad


def _op(values: Iterable[Any]) -> Optional[Op]:
    return next((v.op for v in values if isinstance(v, Wrapped) and v.op is not None), None)


def settle(task: Task, access: str, addresses: Wrapped, mask: Optional[np.ndarray]) -> np.ndarray:
    """Return the addresses of an access as a plain array.

    Raises:
        OffsetOverflowError: one that is not masked off wrapped.
    """
    plain: np.ndarray = _plain(addresses)
    bad = addresses.bad
    if bad is None or not task.machine.settings.overflow:
        return plain
    if mask is not None:
        bad = bad & mask
    if not bad.any():
        return plain
    op = addresses.op
    program, element = place(task, bad)
    assert op is not None  # it made the marks
    line = task.op.loc.line
    raise OffsetOverflowError(
        f"the result of `{op.name}` does not fit into {_bits(op)} bits and becomes the address of "
        f"element {element} of program {program} in the `{called(task.op, access)}` of line {line}",
        report="overflow.offset",
        remedy="Compute the offset in 64 bits: x.to(gl.int64) before the product or the sum.",
        span=span_of(op.loc),
        program=program,
        element=element,
    )
