"""Compute the distance in memory between neighbours of each dimension of an index or pointer tensor."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

from gluon_sim.tracing.types import PointerType

__all__ = ["Strides"]

Steps = tuple[
    Optional[int], ...
]  # in elements, per dimension; None: not known, taken for far apart
Means = tuple[Optional[float], ...]
_FOLLOW = 8  # neighbours that `gl.max_contiguous` says follow each other
_ALIGNED = 64  # more is not needed
_ADDED = frozenset("add sub addptr srem urem minsi maxsi minui maxui".split())
_SAME = frozenset(
    "splat broadcast expand_dims convert_layout int_cast bitcast trans reshape".split()
)
_DIVISIONS = ("sdiv", "udiv")
_KEEPS = ("int_cast", "convert_layout", "bitcast")
_OF_MASKS = ("and", "or", "xor", "select", "int_cast")
_COMPARES = ("icmp", "fcmp")
_RISING = "icmpSLT", "icmpULT", "icmpSGE", "icmpUGE"  # the index comes first
_FALLING = "icmpSGT", "icmpUGT", "icmpSLE", "icmpULE"


class Strides:
    """Collect the steps of values, context by context, in the order of the program."""

    def __init__(self) -> None:
        self._steps: dict[tuple[Any, int], Steps] = {}
        # For each dimension, as many neighbours as surely have these steps, from a multiple on;
        # `_ALIGNED` of them are all.
        self._runs: dict[tuple[Any, int], tuple[int, ...]] = {}
        # Steps of values whose neighbours share quotients: in the mean, which may be less than one.
        self._means: dict[tuple[Any, int], Means] = {}
        self._constants: dict[int, int] = {}
        self._compiled: set[tuple[Any, int]] = set()  # values that a compiler computes
        # A divisor of all elements, and for each dimension one of the first of as many neighbours.
        self._multiples: dict[tuple[Any, int], tuple[int, tuple[int, ...]]] = {}
        # Parameters and results of calls -> context and value that they come from.
        self._origins: dict[tuple[Any, int], tuple[Any, Any]] = {}

    def link(self, context: Any, value: Any, source: Any) -> None:
        """Give a value that control flow hands on the steps of its first source."""
        self.across(context, value, context, source)

    def passed(self, inner: Any, value: Any, outer: Any, source: Any) -> None:
        """Note the value that a call passes for a parameter, or that a function returns as its result."""
        self.across(inner, value, outer, source)
        self._origins[(inner, id(value.resolve()))] = outer, source
        if self.compiled(outer, source):
            self._compiled.add((inner, id(value.resolve())))

    def across(self, inner: Any, value: Any, outer: Any, source: Any) -> None:
        facts: Any
        for facts in (self._steps, self._runs, self._means, self._multiples):
            known = facts.get((outer, id(source.resolve())))
            if known is not None:
                facts.setdefault((inner, id(value.resolve())), known)
        self._heed(value, inner)

    def of(self, context: Any, value: Any, rank: int) -> Steps:
        """Return the steps of a value of `rank` dimensions."""
        return self._steps.get((context, id(value.resolve())), (None,) * rank)

    def means(self, context: Any, value: Any, rank: int) -> Means:
        """Return the steps in the mean, with those of quotients by a constant."""
        return self._means.get((context, id(value.resolve())), self.of(context, value, rank))

    def compiled(self, context: Any, value: Any) -> bool:
        """Return True for an index or a mask that follows from numbers of the program alone."""
        return (context, id(value.resolve())) in self._compiled

    # -- alignment ------------------------------------------------------------------------------

    def argument(self, context: Any, value: Any, multiple: int) -> None:
        """Note that a scalar is a multiple of a power of two, in elements."""
        self._multiples[(context, id(value.resolve()))] = multiple, ()

    def multiple(self, context: Any, value: Any) -> int:
        """Return a power of two that divides all elements of a value."""
        return self._multiples.get((context, id(value.resolve())), (1, ()))[0]

    def _start(self, context: Any, value: Any, dim: int) -> int:
        """Return a power of two, as many elements along `dim` as begin at a multiple of it."""
        whole, starts = self._multiples.get((context, id(value.resolve())), (1, ()))
        return starts[dim] if dim < len(starts) else whole

    def aligned(self, context: Any, pointer: Any, mask: Any, dim: int) -> int:
        """Return how many neighbours along `dim` an access surely takes together, a power of two."""
        most = min(self._start(context, pointer, dim), self._run(context, pointer, dim))
        return most if mask is None else min(most, self._constancy(context, mask, dim))

    def alike(self, context: Any, mask: Any, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Return the dimensions along which a mask treats all elements alike."""
        every = enumerate(dims)
        if mask is None:
            return tuple(range(len(dims)))
        return tuple(d for d, n in every if self._constancy(context, mask, d) >= min(n, _ALIGNED))

    def _constancy(self, context: Any, mask: Any, dim: int) -> int:
        """Return how many neighbours along `dim` a mask surely treats alike."""
        steps = self.of(context, mask, len(mask.type.dims))
        if not steps or steps[dim] == 0:
            return self._run(context, mask, dim)
        origin = self._origins.get((context, id(mask.resolve())))
        if origin is not None:
            return self._constancy(*origin, dim)
        op = mask.resolve().get_defining_op()
        if op is not None and op.name in _OF_MASKS:
            return min(self._constancy(context, part, dim) for part in op.operands())
        if op is not None and op.name in ("broadcast", "convert_layout"):
            return self._constancy(context, next(iter(op.operands())), dim)
        if op is not None and op.name == "expand_dims":
            return self._constancy(context, next(iter(op.operands())), dim - (dim > op.args[1]))
        if op is not None and op.name == "trans":
            return self._constancy(context, next(iter(op.operands())), op.args[1][dim])
        if op is not None and op.name in (*_RISING, *_FALLING):
            bounded = self._bounded(context, op, dim)
        else:
            bounded = 1
        if op is not None and op.name.startswith(_COMPARES):
            alike = min(self._constancy(context, part, dim) for part in op.operands())
            return max(bounded, alike)
        return bounded

    def _bounded(self, context: Any, op: Any, dim: int) -> int:
        """Return how many neighbours along `dim` lie on one side of a bound."""
        index, bound = op.operands() if op.name in _RISING else reversed(list(op.operands()))
        steps = self.of(context, index, len(index.type.dims))
        if steps[dim] != 1 or not self._uniform(context, bound, dim):
            return 1
        ends = [self._start(context, one, dim) for one in (index, bound)]
        return min(*ends, *(self._run(context, one, dim) for one in (index, bound)))

    def _note_multiple(self, op: Any, context: Any) -> None:
        result, operands = op.results[0], list(op.operands())
        whole = self._whole(op, [self.multiple(context, operand) for operand in operands])
        rank = len(getattr(result.type, "dims", ()))
        starts = tuple(self._starts(op, context, operands, rank, whole))
        self._multiples.setdefault((context, id(result.resolve())), (whole, starts))

    def _whole(self, op: Any, known: list[int]) -> int:
        """Return a power of two that divides all elements of a result."""
        if op.name == "constant" and isinstance(op.args[0], int):
            return _power_of(op.args[0])
        if op.name == "mul" and len(known) == 2:
            return min(_ALIGNED, known[0] * known[1])
        if op.name in (*_ADDED, "select"):
            return min(known[-2:], default=1)
        constant = self._constants.get(id(list(op.operands())[-1])) if len(known) == 2 else None
        if op.name in _DIVISIONS and constant is not None and constant > 0:
            whole, rest = divmod(known[0], constant)
            return 1 if rest else whole
        if op.name == "shl" and constant is not None and constant >= 0:
            return min(_ALIGNED, known[0] << min(constant, 6))
        return known[0] if op.name in _SAME and known else 1

    def _starts(
        self, op: Any, context: Any, operands: list[Any], rank: int, whole: int
    ) -> Iterator[int]:
        """Yield, for each dimension, a power of two that divides the first of as many elements."""
        for dim in range(rank):
            if op.name == "make_range":
                yield _power_of(next((a for a in op.args if isinstance(a, int)), 0))
            elif op.name in (*_KEEPS, "broadcast", "splat"):
                yield self._start(context, operands[0], dim)
            elif op.name == "expand_dims":
                inner = dim - (dim > op.args[1])
                yield whole if dim == op.args[1] else self._start(context, operands[0], inner)
            elif op.name == "trans":
                yield self._start(context, operands[0], op.args[1][dim])
            elif op.name in (*_ADDED, "select"):
                yield min(self._start(context, operand, dim) for operand in operands[-2:])
            elif op.name == "mul" and any(self._uniform(context, v, dim) for v in operands):
                one, other = (self._start(context, operand, dim) for operand in operands)
                yield min(_ALIGNED, one * other)
            else:
                yield whole

    def _uniform(self, context: Any, value: Any, dim: int) -> bool:
        dims = getattr(value.type, "dims", ())
        return not dims or self.of(context, value, len(dims))[dim] == 0

    # -- steps ----------------------------------------------------------------------------------

    def take(self, op: Any, context: Any) -> None:
        """Note the steps of an op's result."""
        if op.name == "for" and op.regions and op.regions[0].blocks:
            first, _, step = list(op.operands())[:3]
            number = min(self.multiple(context, first), self.multiple(context, step))
            self.argument(context, op.regions[0].blocks[0].arguments[0], number)
        if len(op.results) != 1:
            return
        if op.name == "constant" and not op.results[0].type.dims:
            if isinstance(op.args[0], int):
                self._constants[id(op.results[0])] = op.args[0]
        operands = list(op.operands())
        known = operands and not op.regions and all(self.compiled(context, v) for v in operands)
        if known or op.name in ("make_range", "constant"):
            self._compiled.add((context, id(op.results[0].resolve())))
        self._note_steps(op, context)
        self._note_multiple(op, context)
        self._heed(op.results[0], context)

    def _heed(self, result: Any, context: Any) -> None:
        """Take the claims of `gl.multiple_of` and `gl.max_contiguous` about a value."""
        claims = result.attrs or result.resolve().attrs
        if not claims:
            return
        key = (context, id(result.resolve()))
        steps, (whole, starts) = self._steps.get(key, ()), self._multiples.get(key, (1, ()))
        starts = starts or (whole,) * len(getattr(result.type, "dims", ()))
        follow = claims.get("tt.contiguity", ())
        if len(follow) == len(steps):
            known = (1 if s is None and n >= _FOLLOW else s for s, n in zip(steps, follow))
            self._steps[key] = tuple(known)
        element = getattr(result.type, "element", result.type)
        pointee = element.pointee if isinstance(element, PointerType) else None
        size = int(getattr(pointee, "bits", 8)) // 8  # claims about pointers count bytes
        divisors = [number // max(size, 1) for number in claims.get("tt.divisibility", ())]
        if divisors and not starts:
            whole = max(whole, _power_of(divisors[0]))
        elif len(divisors) == len(starts):
            starts = tuple(max(n, _power_of(d)) for n, d in zip(starts, divisors))
            runs = zip(self._runs.get(key, ()), starts, self._steps.get(key, ()))
            self._runs[key] = tuple(max(r, n) if s == 1 else r for r, n, s in runs)
        self._multiples[key] = whole, starts

    def _note_steps(self, op: Any, context: Any) -> None:
        if not op.results[0].type.dims:
            return
        result = op.results[0]
        key = (context, id(result.resolve()))
        rank = len(result.type.dims)
        if key not in self._steps:
            self._steps[key] = steps = self._steps_of(op, context, rank, self.of)
            if None in steps:
                self._means[key] = self._steps_of(op, context, rank, self.means)
            self._runs[key] = tuple(self._runs_of(op, context, dim) for dim in range(rank))

    def _steps_of(self, op: Any, context: Any, rank: int, of: Callable[..., Any]) -> Any:
        name, operands = op.name, list(op.operands())
        if name == "make_range":
            return (1,)
        if name in ("splat", "constant"):
            if name == "splat" and id(operands[0]) in self._constants:
                self._constants[id(op.results[0])] = self._constants[id(operands[0])]
            return (0,) * rank
        if not operands:
            return (None,) * rank
        first = of(context, operands[0], len(operands[0].type.dims))
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
        if len(operands) == 2 and all(len(o.type.dims) in (0, rank) for o in operands):
            return self._of_two(name, operands, context, rank, of)
        if all(s == 0 for o in operands for s in of(context, o, len(o.type.dims) or rank)):
            return (0,) * rank
        return (None,) * rank

    def _of_two(
        self, name: str, operands: list[Any], context: Any, rank: int, of: Callable[..., Any]
    ) -> Any:
        one, other = (of(context, o, rank) for o in operands)
        if name in ("add", "addptr"):
            return tuple(None if a is None or b is None else a + b for a, b in zip(one, other))
        if name == "sub":
            return tuple(None if a is None or b is None else a - b for a, b in zip(one, other))
        if name in ("srem", "urem"):  # neighbours follow each other, but where they begin anew
            return tuple(a if b == 0 else None for a, b in zip(one, other))
        if name == "mul":
            return tuple(self._product(a, b, operands) for a, b in zip(one, other))
        if name in _DIVISIONS:
            shared = [self._quotients(context, operands, dim) >= _FOLLOW for dim in range(rank)]
            number = self._constants.get(id(operands[1])) if of == self.means else None
            apart = [None if a is None or not number else a / number for a in one]
            return tuple(0 if alike else mean for alike, mean in zip(shared, apart))
        return tuple(0 if a == 0 and b == 0 else None for a, b in zip(one, other))

    def _quotients(self, context: Any, operands: list[Any], dim: int) -> int:
        """Return how many neighbours along `dim` have the same quotient, from a multiple on; 1 where that is not known."""
        index, divisor = operands
        step = self.of(context, index, len(index.type.dims))[dim]
        run = min(self._run(context, one, dim) for one in operands)
        if not self._uniform(context, divisor, dim):
            return 1
        if step == 0:
            return run
        if step != 1 or run < _ALIGNED:  # Triton knows nothing of indices that begin anew
            return 1
        alike = min(self._start(context, index, dim), self.multiple(context, divisor))
        return min(alike, _ALIGNED // 2)

    def _run(self, context: Any, value: Any, dim: int) -> int:
        """Return how many neighbours along `dim` surely have the step of a value, from a multiple on."""
        runs = self._runs.get((context, id(value.resolve())), ())
        return runs[dim] if dim < len(runs) else _ALIGNED

    def _runs_of(self, op: Any, context: Any, dim: int) -> int:
        operands = [one for one in op.operands() if getattr(one.type, "dims", ())]
        rank = len(op.results[0].type.dims)
        if op.name in _DIVISIONS and len(operands) == 2:
            return self._quotients(context, operands, dim)
        if op.name in ("srem", "urem") and len(operands) == 2:
            index, divisor = operands
            run = min(self._run(context, one, dim) for one in operands)
            again = self.of(context, index, rank)[dim] != 0
            alike = min(self.multiple(context, divisor), _ALIGNED // 2)
            return min(run, alike) if again else run
        if op.name == "expand_dims":
            inner = dim - (dim > op.args[1])
            return _ALIGNED if dim == op.args[1] else self._run(context, operands[0], inner)
        if op.name == "trans":
            return self._run(context, operands[0], op.args[1][dim])
        if all(len(one.type.dims) == rank for one in operands):
            return min((self._run(context, one, dim) for one in operands), default=_ALIGNED)
        every = (self._run(context, one, d) for one in operands for d in range(len(one.type.dims)))
        return min(every, default=_ALIGNED)

    def _product(self, a: Any, b: Any, operands: list[Any]) -> Any:
        if a == 0 and b == 0:
            return 0
        for step, uniform, factor in ((a, b, operands[1]), (b, a, operands[0])):
            known = self._constants.get(id(factor))
            if uniform == 0 and step is not None and known is not None:
                return step * known
        return None


def _power_of(number: int) -> int:
    """Return the largest power of two that divides a number, at most as much as is needed."""
    return min(_ALIGNED, number & -number) if number else _ALIGNED
