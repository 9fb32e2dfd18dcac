"""Tell which dimensions of a kernel's tensors run along the rows of its products.

Two dimensions are one axis where an op pairs their indices: those of operands and results, of what a
loop carries, of arguments and parameters. If no op mixes different indices of the axis of rows, then
two programs that have half of the rows each compute what one program with all of them does.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Optional, Sequence

from gluon_sim.tracing.ir import TERMINATORS
from gluon_sim.tracing.live import HANDS_ON, links
from gluon_sim.tracing.types import TensorType
from gluon_write.tracing.sketch import Place, Sketch

__all__ = ["Axes"]

Key = tuple[Any, ...]
# Ops whose results depend on other indices of a dimension, or whose order among partitions matters.
_MIXING = (
    "scan", "gather", "histogram", "sort", "local_", "memdesc", "barrier", "async_", "tma_",
    "warp_specialize",
)  # fmt: skip
_EFFECTS = ("store", "atomic", "print", "assert", "inline_asm")
_SCALAR_REGIONS = ("reduce", "scan", "map_elementwise")


class Axes:
    """Hold the axes of a traced kernel.

    Args:
        dim: of the products' results that counts as the rows: 1 for the columns.

    Attributes:
        size: of the axis of rows; 0 where the rows cannot be split.
    """

    def __init__(self, drawn: Sketch, dim: int = 0):
        self.drawn, self.dim = drawn, dim
        self.parent: dict[Key, Key] = {}
        self.contexts: dict[int, list[Key]] = {}  # id of a value -> contexts that it has
        self.products: list[tuple[Key, Any]] = []
        self.mixed: list[Key] = []
        self.effects: list[tuple[Key, Any]] = []
        functions = list(drawn.program.functions.values())
        kernel = next((f for f in functions if f.name == drawn.jits[0].__name__), functions[0])
        self._walk(kernel.body, ())
        self.size = self._size()

    # -- questions ------------------------------------------------------------------------------

    def rows_of(self, place: Optional[Place]) -> Optional[set[int]]:
        """Return the dimensions along the rows of the values of an expression; None where they differ."""
        values = self.drawn.returned.get(place, ()) if place else ()
        answers = {
            frozenset(d for d in range(len(value.type.dims)) if self._is_row((context, value, d)))
            for value in map(_resolved, values)
            if isinstance(value.type, TensorType)
            for context in self.contexts.get(id(value), ())
        }
        if not answers:
            return set()
        return set(answers.pop()) if len(answers) == 1 else None

    # -- the walk -------------------------------------------------------------------------------

    def _key(self, context: Key, value: Any, dim: int) -> Key:
        value = _resolved(value)
        key = (context, id(value), dim)
        if key not in self.parent:
            self.parent[key] = key
            known = self.contexts.setdefault(id(value), [])
            if context not in known:
                known.append(context)
        return key

    def _find(self, key: Key) -> Key:
        while self.parent[key] != key:
            self.parent[key] = key = self.parent[self.parent[key]]
        return key

    def _join(self, one: tuple[Key, Any, int], other: tuple[Key, Any, int]) -> None:
        first, second = self._find(self._key(*one)), self._find(self._key(*other))
        if first != second:
            self.parent[second] = first

    def _alike(self, context: Key, one: Any, inner: Key, other: Any) -> None:
        """Join the dimensions of two values of one shape, one by one."""
        if isinstance(getattr(one, "type", None), TensorType):
            for dim in range(len(one.type.dims)):
                self._join((context, one, dim), (inner, other, dim))

    def _walk(self, region: Any, context: Key) -> None:
        for block in region.blocks:
            for op in list(block.ops):
                self._take(op, context)
                if op.name not in _SCALAR_REGIONS:
                    for inner in op.regions:
                        self._walk(inner, context)

    def _take(self, op: Any, context: Key) -> None:
        name = op.name
        tensors = [v for v in op.operands() if isinstance(v.type, TensorType)]
        results = [v for v in op.results if isinstance(v.type, TensorType)]
        for value in (*tensors, *results):
            for dim in range(len(value.type.dims)):
                self._key(context, value, dim)
        if any(word in name for word in _EFFECTS) and not (name == "inline_asm" and op.args[3]):
            self.effects.append((context, op))
        if name == "call":
            self._call(op, context)
        elif name in HANDS_ON:
            for value, source in links(op):
                self._alike(context, value, context, source)
        elif name in TERMINATORS:
            pass
        elif any(name.startswith(word) or word in name for word in _MIXING):
            self._mix(context, tensors, results)
            if not tensors and not results:
                self.mixed.append(())
        elif name == "mma":
            self._product(op, context)
        elif name in ("expand_dims", "reduce", "trans", "broadcast", "reshape", "join", "split"):
            self._shaped(op, context, tensors, results)
        else:
            alike = [*tensors, *results]
            if any(v.type.dims != alike[0].type.dims for v in alike):
                self._mix(context, tensors, results)
            for value in alike[1:]:
                if value.type.dims == alike[0].type.dims:
                    self._alike(context, alike[0], context, value)

    def _mix(self, context: Key, *groups: Iterable[Any]) -> None:
        for values in groups:
            for value in values:
                for dim in range(len(value.type.dims)):
                    self.mixed.append(self._key(context, value, dim))

    def _call(self, op: Any, context: Key) -> None:
        function, arguments = op.args[0], op.args[1]
        inner = (*context, id(op))
        for parameter, argument in zip(function.arguments, arguments):
            self._alike(inner, parameter, context, argument)
        self._walk(function.body, inner)
        for block in function.body.blocks[:1]:
            end = block.get_terminator()
            for value, result in zip(end.operands() if end is not None else (), op.results):
                self._alike(inner, value, context, result)

    def _product(self, op: Any, context: Key) -> None:
        a, b, acc = op.args
        result = op.results[0]
        self._alike(context, acc, context, result)
        if isinstance(a.type, TensorType):
            self._join((context, a, 0), (context, result, 0))
        if isinstance(b.type, TensorType):
            self._join((context, b, 1), (context, result, 1))
        inner = [(context, v, d) for v, d in ((a, 1), (b, 0)) if isinstance(v.type, TensorType)]
        self.mixed += [self._key(*one) for one in inner]
        if len(inner) == 2:
            self._join(*inner)
        self.products.append((context, result))

    def _shaped(self, op: Any, context: Key, tensors: list[Any], results: list[Any]) -> None:
        name, source = op.name, tensors[0]
        if name == "reduce":
            axis = op.args[1]
            for one in tensors:
                self.mixed.append(self._key(context, one, axis))
            pairs = [(d, d - (d > axis)) for d in range(len(source.type.dims)) if d != axis]
        elif name == "expand_dims":
            pairs = [(d, d + (d >= op.args[1])) for d in range(len(source.type.dims))]
        elif name == "trans":
            pairs = [(d, i) for i, d in enumerate(op.args[1])]
        elif name == "broadcast":
            sizes = zip(source.type.dims, results[0].type.dims)
            pairs = [(d, d) for d, (one, other) in enumerate(sizes) if one == other]
        elif name == "reshape":
            pairs = list(_kept(source.type.dims, results[0].type.dims))
        else:  # join, split: of the last dimension
            pairs = [(d, d) for d in range(min(len(v.type.dims) for v in (source, *results)))]
        joined = {d for d, _ in pairs}
        for dim in set(range(len(source.type.dims))) - joined:
            if source.type.dims[dim] > 1:
                self.mixed.append(self._key(context, source, dim))
        for one in tensors:
            for result in results:
                for d, i in pairs:
                    self._join((context, one, d), (context, result, i))

    # -- the answer -----------------------------------------------------------------------------

    def _is_row(self, one: tuple[Key, Any, int]) -> bool:
        return self.size > 0 and self._find(self._key(*one)) == self.root

    def _size(self) -> int:
        roots = {
            self._find(self._key(context, value, self.dim)) for context, value in self.products
        }
        sizes = {value.type.dims[self.dim] for _, value in self.products}
        if len(roots) != 1 or len(sizes) != 1:
            return 0
        self.root = roots.pop()
        if any(key == () or self._find(key) == self.root for key in self.mixed):
            return 0
        for context, op in self.effects:
            values = [v for v in op.operands() if isinstance(v.type, TensorType)]
            rows = any(
                self._find(self._key(context, v, d)) == self.root
                for v in values
                for d in range(len(v.type.dims))
            )
            if not rows:
                return 0
        return int(sizes.pop())


def _resolved(value: Any) -> Any:
    return value.resolve()


def _kept(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the dimensions that a reshape keeps: those of equal size at the begin and at the end."""
    first = 0
    while first < min(len(before), len(after)) and before[first] == after[first]:
        yield first, first
        first += 1
    last = 1
    while last <= min(len(before), len(after)) - first and before[-last] == after[-last]:
        yield len(before) - last, len(after) - last
        last += 1
