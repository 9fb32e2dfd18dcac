"""Value numbering of integers that partitions compute from memory: the same name where it is the same number.

Each partition may compute the amount of work for itself, with a layout of its own. A value computed by the same ops from the same arguments and the same memory is equal, if no task writes that memory meanwhile.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import numpy as np

from gluon_prove.quiet import ops_within
from gluon_prove.values import Term, term
from gluon_sim.executor.compile import constant_array
from gluon_sim.tracing.arith import ELEMENTWISE
from gluon_sim.tracing.ir import Function, Op, Region, Value
from gluon_sim.tracing.types import PointerType, ScalarType, TensorType, Type

__all__ = ["Numbering"]

_LOADS = frozenset("load masked_load".split())
_OPS = frozenset(
    "make_range splat unsplat broadcast expand_dims convert_layout int_cast addptr select reduce scan".split()
)
_LOOPS = (
    _LOADS
    | _OPS
    | frozenset("if for while yield_op condition_op poison get_program_id get_num_programs".split())
)
_MOVES = frozenset(
    "addptr splat unsplat broadcast expand_dims convert_layout select if for while call".split()
)
_WITHIN = frozenset("int_cast assert ret reduce_ret scan_ret".split())  # functions that combine


class Numbering:
    """See the module.

    Args:
        written: arguments that the kernel stores through: their targets have no names.

    Attributes:
        stored: arguments that stores and atomics were seen to go through; None for any.
        loaded: arguments whose memory has names.
    """

    def __init__(self, written: frozenset[int] = frozenset()):
        self.written = written
        self.stored: Optional[set[int]] = set()
        self.loaded: set[int] = set()
        self.lines: dict[Term, frozenset[int]] = {}  # of the loads that a name comes of
        self._names: dict[Any, Term] = {}
        self._pointers: dict[Term, frozenset[int]] = {}  # the arguments that a name comes of

    @property
    def clash(self) -> frozenset[int]:
        """Arguments whose memory has names and that are stored through."""
        return frozenset(self.loaded if self.stored is None else self.loaded & self.stored)

    def of(self, op: Op, args: Sequence[Optional[Any]]) -> Optional[list[Term]]:
        """Return the names of an op's results, from those of its operands, in order; None for none."""
        self._noted(op, args)
        pointers = frozenset().union(*(self._from(a) for a in args))
        key = None if None in args else self._key(op, args)
        if any(isinstance(a, Term) and a.name == "pointer" for a in args):
            key = None
        if op.name in _LOADS and (not pointers or pointers & self.written):
            key = None
        if key is None:
            if pointers and len(op.results) == 1 and _points(op.results[0].type):
                pointer = term(
                    "pointer", len(self._pointers)
                )  # nothing is known but to whose memory
                self._pointers[pointer] = pointers
                return [pointer]
            return None
        terms = [a for a in args if isinstance(a, Term)]
        lines = frozenset().union(*(self.lines.get(a, frozenset()) for a in terms))
        if op.name in _LOADS:
            self.loaded |= pointers
            lines |= {op.loc.line}
        return [
            self._named((*key, index), terms, pointers, lines) for index in range(len(op.results))
        ]

    def loop(self, op: Op, named: Callable[[Value], Optional[Any]]) -> Optional[list[Term]]:
        """Return the names of the results of a loop that only computes; None where its values have none.

        Args:
            named: returns the name of a value from before the loop.
        """
        before: dict[int, Any] = {}
        lines: frozenset[int] = frozenset()
        within = list(ops_within(op))
        inner = {id(result) for one in within for result in one.results}
        for one in (op, *within):
            regions = [*one.regions, *([one.args[0].body] if one.name == "call" else [])]
            inner.update(id(v) for region in regions for b in region.blocks for v in b.arguments)
            lines |= {one.loc.line} if one.name in _LOADS else frozenset()
            if one.attrs.get("volatile") or one.name == "masked_load" and one.args[2] is None:
                return None
            if one.name not in _MOVES and any(_points(result.type) for result in one.results):
                return None  # a pointer to any memory
            for value in one.operands():
                if id(value) not in inner and id(value) not in before:
                    before[id(value)] = named(value)
        terms = [name for name in before.values() if isinstance(name, Term)]
        pointers = frozenset().union(*(self._from(name) for name in terms))
        parts = tuple(_region(region, before) for region in op.regions)
        starts = tuple(_part(arg, before) for arg in op.args)
        if None in before.values() or None in (*parts, *starts) or pointers & self.written:
            return None
        if any(name.name == "pointer" for name in terms) or bool(lines) and not pointers:
            return None
        self.loaded |= pointers
        lines = lines.union(*(self.lines.get(name, frozenset()) for name in terms))
        key = op.name, parts, starts
        return [self._named((*key, i), terms, pointers, lines) for i in range(len(op.results))]

    def constant(self, op: Op) -> Optional[Term]:
        """Return the name of a constant tensor."""
        shape = _shape(op.results[0].type)
        if shape is None or op.name != "constant":
            return None
        values = np.ascontiguousarray(constant_array(op))
        return self._named(("constant", shape, values.tobytes()), [], frozenset(), frozenset())

    def _from(self, name: Optional[Any]) -> frozenset[int]:
        if not isinstance(name, Term):
            return frozenset()
        known = self._pointers.get(name, frozenset())
        return frozenset(name.args) if name.name == "memory" else known

    def _noted(self, op: Op, args: Sequence[Optional[Any]]) -> None:
        if "store" not in op.name and "atomic" not in op.name:
            return
        for value, arg in zip(op.operands(), args):
            if _points(value.type) and self.stored is not None:
                sources = self._from(arg)
                self.stored = self.stored | sources if sources else None

    def _named(
        self, key: Any, terms: Sequence[Term], pointers: frozenset[int], lines: frozenset[int]
    ) -> Term:
        name = self._names.get(key)
        if name is None:
            moving = dict.fromkeys(t for t in terms if not t.fixed)
            name = self._names[key] = term("data", len(self._names), *moving)
            self._pointers[name] = pointers
            self.lines[name] = lines
        return name

    def _key(self, op: Op, args: Sequence[Any]) -> Optional[tuple[Any, ...]]:
        """Return an op without layouts and places, operands by their names; None where it has none."""
        if op.name not in _OPS and op.name not in _LOADS and op.name not in ELEMENTWISE:
            return None
        if op.attrs.get("volatile") or op.name == "masked_load" and op.args[2] is None:
            return None  # masked elements may be anything
        names = dict(zip(map(id, op.operands()), args))
        shapes = [_shape(v.type) for v in op.results]
        parts = [
            *shapes,
            *(_region(region) for region in op.regions),
            *(_part(arg, names) for arg in (*op.args, *sorted(op.kwargs.items()))),
        ]
        return None if not shapes or None in parts else (op.name, *parts)


def _points(type: Type) -> bool:
    return isinstance(type.elem if isinstance(type, TensorType) else type, PointerType)


def _part(arg: Any, names: dict[int, Any]) -> Optional[Any]:
    """Return an argument of an op as a key."""
    if isinstance(arg, Value):
        name = names.get(id(arg.resolve()))
        return None if name is None or _shape(arg.type) is None else ("value", name)
    if isinstance(arg, Type):
        return _shape(arg)
    if arg is None or isinstance(arg, (bool, int, str)):
        return ("plain", type(arg).__name__, arg)
    if isinstance(arg, (list, tuple)):
        inner = [_part(a, names) for a in arg]
        return None if None in inner else tuple(inner)
    return None


def _shape(type: Type) -> Optional[tuple[Any, ...]]:
    """Return a type without its layout; None where it is none of integers or of pointers."""
    element = type.elem if isinstance(type, TensorType) else type
    dims = type.shape if isinstance(type, TensorType) else ()
    if isinstance(element, ScalarType) and not element.is_float:
        return (element.name, dims)
    if isinstance(element, PointerType):
        return (str(element), dims)
    return None


def _region(region: Region, before: Optional[dict[int, Any]] = None) -> Optional[tuple[Any, ...]]:
    """Describe how a region combines values: its ops, values by their places.

    Args:
        before: of a loop, the names of values from before it.
    """
    if len(region.blocks) != 1:
        return None
    block = region.blocks[0]
    places = dict(before or {})
    level = len(places)
    places.update({id(v): ("given", level, i) for i, v in enumerate(block.arguments)})
    shape: list[Any] = [len(block.arguments)]
    for index, op in enumerate(block.ops):
        parts: list[Optional[Any]] = [op.name, *(_shape(r.type) for r in op.results)]
        args, loop = op.args, before is not None
        within = op.name in _WITHIN or op.name in ELEMENTWISE or loop and op.name in _LOOPS
        if op.name == "constant":
            parts.append(np.ascontiguousarray(constant_array(op)).tobytes())
            args = ()
        elif op.name == "call" and isinstance(op.args[0], Function):
            parts.append(_region(op.args[0].body, places if loop else None))
            args = op.args[1:]
        elif not within or not loop and (op.regions or op.kwargs):
            return None
        else:
            parts += [_region(inner, places) for inner in op.regions]
            args = (*args, *sorted(op.kwargs.items()))
        parts += [_part(arg, places) for arg in args]
        if None in parts:
            return None
        shape.append(tuple(parts))
        places.update({id(r): ("made", level, index, i) for i, r in enumerate(op.results)})
    return tuple(shape)
