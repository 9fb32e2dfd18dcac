"""From a sketched kernel to unknown layouts: which values share one, and how ops relate them."""

from __future__ import annotations

from math import prod
from typing import Any, Collection, Iterable, Iterator, Mapping, Optional, Sequence

from gluon_core.layouts import AutoLayout, BlockedLayout
from gluon_sim.tracing.ir import TERMINATORS
from gluon_sim.tracing.live import HANDS_ON, links, terminators
from gluon_sim.tracing.types import MemDescType, PointerType, TensorType
from gluon_write.solver.chained import rows_to_warps
from gluon_write.solver.inference import Inference
from gluon_write.solver.prices import LEAST_COPY_BITS, LONG
from gluon_write.solver.traced import at_once, bits_of, is_mask, offsets_of, own_line, scans, sited
from gluon_write.solver.unknowns import FMA, UNIT, Access, Graph, Reduction, Relation, Scan, Unknown
from gluon_write.tracing.budget import READ, spend
from gluon_write.tracing.buffers import View, is_open
from gluon_write.tracing.sketch import Place, Sketch
from gluon_write.tracing.strides import Strides

__all__ = ["build"]

Key = tuple[Any, ...]
_MADE = ("make_range", "splat", "constant", "poison")
_LIKE = ("full_like", "zeros_like")
_LAYOUT_FREE = ("arange", "full", "zeros", *_LIKE)
_VIEWS = frozenset("memdesc_index memdesc_subslice memdesc_trans memdesc_reshape".split())
_COPIES = ("async_copy_global_to_local", "buffer_load_to_local")
_STORES = ("local_store", "deferred_store")  # to shared memory; the other is of loaded values
_ANY_BUFFER = frozenset(  # ops that take a buffer in any layout; all others demand the first one
    "local_load local_alloc local_dealloc local_gather local_scatter "
    "local_atomic_scatter_rmw memdesc_reinterpret".split()
).union(_VIEWS, _COPIES, _STORES, HANDS_ON)
_SHAPES = frozenset(
    "apart broadcast expand_dims trans convert_layout reduce reshape join split".split()
)
_ROUNDS = 8  # that a loop is taken to make


class _Builder:
    def __init__(self, drawn: Sketch, apart: bool, loads: Collection[Place]):
        self.drawn, self.apart, self.loads = drawn, apart, loads
        self.parent: dict[Key, Key] = {}
        self.values: dict[Key, Any] = {}
        self.pending: list[tuple[Any, ...]] = []
        self.strides = Strides()
        self.views: dict[Key, tuple[Key, Any, tuple[Any, ...]]] = {}  # buffer, its value, steps
        self.open: set[Key] = set()  # buffers whose layout was left out
        # Key -> a change of its unknown, with its weight.
        self.about: list[tuple[Key, Any, int]] = []
        self.pairs: dict[tuple[Any, Place], Key] = {}  # call of `gl.broadcast` -> its first result
        self.weight = 1
        self.contexts: list[tuple[Any, ...]] = []  # of functions that a pass has changed
        self.tiles: list[tuple[str, Any, Any]] = []

    def key(self, context: tuple[Any, ...], value: Any) -> Key:
        value = value.resolve()
        key = (context, id(value))
        if key not in self.parent:
            self.parent[key] = key
            self.values[key] = value
        return key

    def find(self, key: Key) -> Key:
        while self.parent[key] != key:
            self.parent[key] = key = self.parent[self.parent[key]]
        return key

    def join(self, one: Key, other: Key) -> None:
        one, other = self.find(one), self.find(other)
        if one != other:
            self.parent[other] = one

    def unite(self, context: Any, values: Sequence[Any]) -> None:
        """Give values of one context one layout."""
        for value in values[1:]:
            self.join(self.key(context, values[0]), self.key(context, value))

    # -- places ---------------------------------------------------------------------------------

    def join_places(self) -> None:
        """Give the values that one expression has in the rounds of an unrolled loop one layout."""
        places: dict[int, list[Place]] = {}
        for place, values in self.drawn.returned.items():
            for value in values:
                places.setdefault(id(value.resolve()), []).append(place)
        first: dict[tuple[Any, ...], Key] = {}
        for key, value in list(self.values.items()):
            if not isinstance(value.type, TensorType) or key[0] == "mma":
                continue
            for place in places.get(key[1], ()):
                self.join(first.setdefault((key[0], place, value.type.dims), key), key)

    def join_fixed_ends(self) -> None:
        """Give both ends of an op one layout where nothing can be converted between them."""
        for kind, source, result, _, wrap, _, _ in self.pending:
            if kind == "same" and wrap is None and result[0] != "mma":
                self.join(source, result)

    def operand_at(self, op: Any, value: Any) -> Optional[tuple[str, Place]]:
        """Return the expression of an operand, within that of the op: one of its own parts first."""
        node = self.drawn.nodes.get(id(op))
        value = value.resolve()
        inner = self.drawn.within.get(node, {}) if node else {}
        for place in sorted(inner, key=lambda place: not inner[place]):
            if any(v.resolve() is value for v in self.drawn.returned.get(place, ())):
                return "before", place
        return None

    def result_at(self, op: Any) -> Optional[tuple[str, Place]]:
        """Return the expression of the result of an op."""
        node = self.drawn.nodes.get(id(op))
        if node is None:
            return None
        value = op.results[0].resolve()
        for place in (node, *self.drawn.within.get(node, ())):
            if any(v.resolve() is value for v in self.drawn.returned.get(place, ())):
                return "after", place
        return None

    # -- ops ------------------------------------------------------------------------------------

    def walk(self, region: Any, context: tuple[Any, ...]) -> None:
        for block in region.blocks:
            for op in list(block.ops):
                self.take(op, context)
                if op.name not in ("reduce", "scan", "map_elementwise"):
                    rounds = _ROUNDS if op.name in ("for", "while") else 1
                    self.weight *= rounds
                    for inner in op.regions:
                        self.walk(inner, context)
                    self.weight //= rounds

    def relate(
        self, kind: str, context: Any, source: Any, result: Any, detail: Any, op: Any, after: bool
    ) -> None:
        place = self.result_at(op) if after else self.operand_at(op, source)
        keys = self.key(context, source), self.key(context, result)
        self.pending.append((kind, *keys, detail, sited(place, context), op, self.weight))

    def note(self, context: Any, value: Any, change: Any) -> None:
        self.about.append((self.key(context, value), change, self.weight))

    def take(self, op: Any, context: tuple[Any, ...]) -> None:
        name = op.name
        tensors = [v for v in op.operands() if isinstance(v.type, TensorType)]
        results = [v for v in op.results if isinstance(v.type, TensorType)]
        for value in (*tensors, *results):
            self.key(context, value)
        self._buffers(op, context, tensors, results)
        if name == "call":
            self._call(op, context, results)
        elif name in HANDS_ON or name == "warp_specialize":
            self._links(op, context)
        elif name in TERMINATORS:
            pass  # control flow hands on each of its values on its own
        elif name in _MADE:
            self._results(op, context, results)
        elif name in _SHAPES:
            self._shaped(op, context, tensors, results)
        elif name == "mma":
            self._mma(op, context, results)
        elif name == "as_operand":
            self._demand(op, context, tensors[0], results[0].type.layout, 0)
        elif name == "deferred_store":
            self._alike(context, tensors)
        elif "load" in name or "store" in name or "atomic" in name or name in _COPIES:
            self._memory(op, context, tensors, results)
        elif name == "histogram":
            self._histogram(op, context, tensors, results)
        elif name == "scan":
            self._scan(op, context, tensors, results)
        elif name in ("gather", "local_gather"):  # the result has the layout of the indices
            self.unite(context, (tensors[-1], results[0]))
        elif "dot" in name or "mma" in name:  # whose operands may have the shape of the sum
            self._alike(context, [*tensors[-1:], *results])
        else:
            self._alike(context, [*tensors, *results], name)
        self.strides.take(op, context)

    def _alike(self, context: Any, values: list[Any], name: str = "") -> None:
        """Join operands and results of an elementwise op."""
        if values and all(v.type.dims == values[0].type.dims for v in values):
            self.unite(context, values)
            self.note(context, values[0], ("step", LONG.get(name, 1)))

    def _scan(self, op: Any, context: Any, tensors: list[Any], results: list[Any]) -> None:
        """Give the results of a scan one layout, and each operand a conversion to it."""
        self.unite(context, results)
        for value in tensors:
            self.relate("same", context, value, results[0], None, op, False)
        self.note(context, results[0], ("scan", op.args[1], op.args[2], results))

    def _links(self, op: Any, context: Any) -> None:
        """Join the values that control flow hands on, those of partitions included."""
        pairs = list(links(op))
        if op.name == "warp_specialize":
            holder = op.regions[1].blocks[0].ops[0]
            captures = list(op.args[0]) or list(holder.args[0])
            for region in holder.regions:
                pairs += zip(region.blocks[0].arguments, captures)
            for end in terminators(op.regions[0]):
                pairs += zip(op.results, end.operands())
        for value, source in pairs:
            if isinstance(value.type, TensorType):
                self.unite(context, (value, source))
            self.hand_on(context, value, context, source)
            self.strides.link(context, value, source)

    def _shaped(self, op: Any, context: Any, tensors: list[Any], results: list[Any]) -> None:
        name = op.name
        if name == "broadcast":
            self.relate("same", context, tensors[0], results[0], None, op, False)
            self._pair(op, context, tensors[0], results[0])
        elif name == "expand_dims":
            self.relate("expand", context, tensors[0], results[0], op.args[1], op, False)
        elif name == "apart":
            self.relate("same", context, tensors[0], results[0], None, op, True)
        elif name == "trans":
            self.relate("trans", context, tensors[0], results[0], op.args[1], op, True)
        elif name == "convert_layout":
            node = self.drawn.nodes.get(id(op))
            if op.attrs.get("determines"):
                self.unite(context, (tensors[0], results[0]))
            elif node in self.drawn.opened:
                self.note(context, results[0], ("site", (context, node)))
                self.relate("convert", context, tensors[0], results[0], None, op, False)
        elif name == "reduce":
            self.unite(context, tensors)  # a reduction of several takes them in one layout
            once = at_once(op, tensors)
            for source, result in zip(tensors, op.results):
                self.note(context, source, ("reduction", op.args[1], source.type, once))
                if isinstance(result.type, TensorType):
                    self.relate("reduce", context, source, result, op.args[1], op, True)
        elif tensors:
            self._inferred(op, context, tensors, results)

    def _pair(self, op: Any, context: Any, source: Any, result: Any) -> None:
        """Give both results of `gl.broadcast` one layout: it takes operands in one."""
        node = self.drawn.nodes.get(id(op))
        if node is None or self.drawn.functions.get(node, "").rpartition(".")[2] != "broadcast":
            return
        self.join(
            self.pairs.setdefault((context, node), self.key(context, result)),
            self.key(context, result),
        )
        for place, own in self.drawn.within.get(node, {}).items():
            for value in self.drawn.returned.get(place, ()) if own else ():
                kind = value.type
                alike = isinstance(kind, TensorType) and len(kind.dims) == len(result.type.dims)
                if alike and value.resolve() is not source.resolve():
                    self.relate("same", context, value, result, None, op, False)

    def _call(self, op: Any, context: tuple[Any, ...], results: list[Any]) -> None:
        function, args = op.args[0], op.args[1]
        tensors = [a for a in args if isinstance(getattr(a, "type", None), TensorType)]
        node = self.drawn.nodes.get(id(op))
        name = (self.drawn.functions.get(node, "") if node else "").rpartition(".")[2]
        if results and (name in _LIKE or not tensors and name in _LAYOUT_FREE):
            self._results(op, context, results)
            return
        inner = (*context, node or id(op))
        if node in self.drawn.called and getattr(self.drawn.called[node], "changed", False):
            if all(isinstance(call, tuple) for call in context):
                self.contexts.append(inner)
        for parameter, argument in zip(function.arguments, args):
            if isinstance(parameter.type, TensorType):
                keys = self.key(context, argument), self.key(inner, parameter)
                if scans(function.body):  # which units' layouts do not
                    wrap = sited(self.operand_at(op, argument), context)
                    self.pending.append(("same", *keys, None, wrap, op, self.weight))
                else:
                    self.join(keys[1], keys[0])
            self.hand_on(inner, parameter, context, argument)
            self.strides.passed(inner, parameter, context, argument)
        self.walk(function.body, inner)
        for block in function.body.blocks[:1]:
            end = block.get_terminator()
            if end is None or end.name != "ret":
                continue
            for value, result in zip(end.operands(), op.results):
                self.strides.passed(context, result, inner, value)
                if isinstance(result.type, TensorType):
                    wrap = sited(self.result_at(op), context)
                    keys = self.key(inner, value), self.key(context, result)
                    self.pending.append(("same", *keys, None, wrap, op, self.weight))

    def _results(self, op: Any, context: tuple[Any, ...], results: list[Any]) -> None:
        for value in results:
            node = self.drawn.nodes.get(id(op))
            called = self.drawn.functions.get(node, "") if node else ""
            if node and called.rpartition(".")[2] in _LAYOUT_FREE:
                left_out = isinstance(value.type.layout, (AutoLayout, type(None)))
                if left_out:
                    self.note(context, value, ("site", (context, node)))

    def _histogram(
        self, op: Any, context: tuple[Any, ...], tensors: list[Any], results: list[Any]
    ) -> None:
        """Let the bins have a layout of their own; the mask has that of the values."""
        self.unite(context, tensors)
        node = self.drawn.nodes.get(id(op))
        if node in self.drawn.opened:
            self.note(context, results[0], ("site", (context, node)))

    # -- shared memory --------------------------------------------------------------------------

    def hand_on(self, inner: Any, value: Any, outer: Any, source: Any) -> None:
        """Let a value of control flow or a parameter be the view that it comes from."""
        if not isinstance(getattr(source, "type", None), MemDescType):
            return
        view = self.views.get((outer, id(source.resolve())))
        if view is None:
            return
        known = self.views.setdefault((inner, id(value.resolve())), view)
        self.join(known[0], view[0])

    def _buffers(self, op: Any, context: Any, tensors: list[Any], results: list[Any]) -> None:
        """Note the buffers that an op makes, views, reads and writes."""
        name = op.name
        if name == "local_alloc":
            result = op.results[0]
            self.views[(context, id(result.resolve()))] = (self.key(context, result), result, ())
            node = self.drawn.nodes.get(id(op))
            if node in self.drawn.opened:
                self.note(context, result, ("site", (context, node)))
                if is_open(result.type.layout):
                    self.open.add(self.key(context, result))
            if tensors:
                self._seen(op, context, tensors[0], result)
            return
        operands = [v for v in op.operands() if isinstance(v.type, MemDescType)]
        for value in operands:
            view = self.views.get((context, id(value.resolve())))
            if view is None or view[0] not in self.open:
                self._note_tiles(op, context)
            if view is None:
                continue
            key, root, steps = view
            if name in _VIEWS:
                if name in ("memdesc_trans", "memdesc_reshape"):
                    kind = "permute" if name == "memdesc_trans" else "reshape"
                    steps = (*steps, (kind, tuple(op.args[1]), tuple(value.type.shape)))
                self.views[(context, id(op.results[0].resolve()))] = (key, root, steps)
            elif name == "local_load":
                node = self.drawn.nodes.get(id(op))
                if node in self.drawn.opened:
                    self.note(context, results[0], ("site", (context, node)))
                self._seen(op, context, results[0], value)
            elif name in (*_STORES, *_COPIES) and tensors:
                self._seen(op, context, tensors[0], value)
            elif name == "mma" and hasattr(root.type.layout, "get_default_for"):
                self.about.append((key, ("read", f"{UNIT}, line {op.loc.line}"), 1))
            elif name not in _ANY_BUFFER or name == "memdesc_reinterpret":
                demand = "fixed", root.type.layout, f"{op.called}, line {op.loc.line}"
                self.about.append((key, demand, 1))

    def _note_tiles(self, op: Any, context: Any) -> None:
        """Note the named views of a buffer whose layout is written."""
        for value in op.results:
            if value.name and isinstance(value.type, MemDescType) and value.type.space == "shared":
                self.tiles.append((value.name, value.type, self.home(context)))

    def home(self, context: tuple[Any, ...]) -> Any:
        """Return the function of the user's that names the values of a context."""
        return self.drawn.called.get(context[-1]) if context else self.drawn.jits[0]

    def _seen(self, op: Any, context: Any, registers: Any, buffer: Any) -> None:
        """Relate a tensor to the buffer that it is copied to or from."""
        key, _, steps = self.views[(context, id(buffer.resolve()))]
        bits = getattr(buffer.type.element, "bits", 32)
        view = View(
            steps, tuple(buffer.type.shape), bits, self.drawn.banks, op.name in _COPIES, op.name,
            op.loc.line, self.drawn.side_by_side, self.drawn.matrices and op.name == "local_load",
        )  # fmt: skip
        self.pending.append(
            ("view", self.key(context, registers), key, view, None, op, self.weight)
        )

    def _inferred(self, op: Any, context: Any, tensors: list[Any], results: list[Any]) -> None:
        if op.name == "join":
            self.unite(context, (tensors[0], tensors[1]))
        shape, after = tuple(tensors[0].type.dims), tuple(results[0].type.dims)
        rule = {
            "reshape": (Inference("reshape", shape, after), Inference("reshape", after, shape)),
            "join": (Inference("join", shape, after), Inference("split", after, shape)),
            "split": (Inference("split", shape, after), Inference("join", after, shape)),
        }[op.name]
        for result in results:
            self.relate("infer", context, tensors[0], result, rule, op, op.name != "split")
        if op.name == "split":
            self.unite(context, (results[0], results[1]))

    def _mma(self, op: Any, context: Any, results: list[Any]) -> None:
        *operands, acc = op.args
        wanted = op.attrs.get("layouts")
        if self.apart and wanted is not None:
            self._demand(op, context, acc, wanted[2], 2)
        else:
            self.unite(context, (acc, results[0]))
        if wanted is None:
            for index, operand in enumerate(operands):
                self.relate("operand", context, operand, acc, index, op, False)
            self.note(context, acc, ("step", 1))
            return
        place = self.result_at(op)
        if self.apart and place is not None:
            self._give(op, context, results[0], wanted[2], place)
        else:
            self.note(context, results[0], ("fixed", wanted[2], _unit(op, wanted[2])))
        for index, operand in enumerate(operands):
            if wanted[index] is not None:
                self._demand(op, context, operand, wanted[index], index)

    def _give(self, op: Any, context: Any, result: Any, layout: Any, place: Any) -> None:
        """Give the result of a matrix unit its layout, or a conversion from it."""
        key = ("mma", context, id(op), len(op.args))
        self.parent[key], self.values[key] = key, result
        self.about.append((key, ("fixed", layout, _unit(op, layout)), 1))
        ends = key, self.key(context, result)
        self.pending.append(("same", *ends, None, sited(place, context), op, self.weight))

    def _demand(self, op: Any, context: Any, operand: Any, layout: Any, index: int) -> None:
        """Give an operand of a matrix unit the layout that it demands, or a conversion to it."""
        key = ("mma", context, id(op), index)
        self.parent[key], self.values[key] = key, operand
        self.about.append((key, ("fixed", layout, _unit(op, layout)), 1))
        place = op.attrs["places"][index]
        wrap = sited(("before", place) if place else None, context)
        self.pending.append(("same", self.key(context, operand), key, None, wrap, op, self.weight))

    def _memory(self, op: Any, context: Any, tensors: list[Any], results: list[Any]) -> None:
        pointers = [v for v in tensors if isinstance(v.type.element, PointerType)]
        bases = [v for v in op.operands() if isinstance(v.type, PointerType)]
        if len(pointers) == 1:
            pointer, pointee = pointers[0], pointers[0].type.element.pointee
        elif len(bases) == 1 and tensors:  # a base and a tensor of offsets
            pointer, pointee = offsets_of(tensors), bases[0].type.pointee
        else:
            return
        place = self.drawn.nodes.get(id(op))
        least = 128 if self.drawn.side_by_side else LEAST_COPY_BITS
        least = least if op.name in _COPIES else 0
        self.note(context, pointer, ("access", op, pointer, pointee, context, place, least))
        for value in results:
            if place in self.loads and "load" in op.name:
                self.relate("same", context, pointer, value, None, op, True)
            else:
                self.unite(context, (pointer, value))
        for value in tensors:
            if value is not pointer:
                self.relate("same", context, value, pointer, None, op, False)


def build(
    drawn: Sketch, lanes: int, warps: int, apart: bool = False, loads: Collection[Place] = ()
) -> Graph:
    """Return the unknown layouts of a sketched kernel and their relations.

    Args:
        apart: let the accumulator and the result of a product have other layouts than the sum.
        loads: places of loads whose results may be converted from the layout of their pointers.
    """
    for function in drawn.program.functions.values():
        rows_to_warps(function.body)
    spend(READ * len(drawn.kept))
    work = _Builder(drawn, apart, loads)
    kernel = drawn.program.kernel
    for argument, number in zip(kernel.arguments, drawn.multiples):
        element = getattr(argument.type, "pointee", None)
        size = max(1, getattr(element, "bits", 8) // 8) if element is not None else 1
        work.strides.argument((), argument, max(1, number // size))
    work.walk(kernel.body, ())
    work.join_places()
    work.join_fixed_ends()
    unknowns: dict[Key, Unknown] = {}
    for key, value in work.values.items():
        if isinstance(value.type, (TensorType, MemDescType)):
            one = unknowns.setdefault(work.find(key), Unknown(len(unknowns)))
            _add_value(one, key, value, work, warps)
    for key, change, weight in work.about:
        _apply(unknowns[work.find(key)], change, work.strides, weight)
    relations = list(_relations(work, unknowns))
    known: dict[Any, dict[Any, Any]] = {}
    for relation in relations:
        relation.known = known.setdefault(relation.rule(), relation.known)
    _note_runs(unknowns.values(), relations)
    facts = drawn.jits, drawn.called, work.contexts, work.tiles
    return Graph(list(unknowns.values()), relations, lanes, warps, *facts)


def _add_value(one: Unknown, key: Key, value: Any, work: _Builder, warps: int) -> None:
    """Add the facts of a value to the unknown layout that it has."""
    dims = value.type.dims
    if not one.shape or prod(dims) > prod(one.shape):
        one.shape = dims
    bits = bits_of(value.type)
    one.bits = max(1 if bits == 1 else bits, one.bits) if one.shape else bits
    layout = value.type.layout
    around = key[1] if key[0] == "mma" else key[0]
    one.compiled &= work.strides.compiled(key[0], value)
    one.warps = next((work.drawn.warps[c] for c in around if c in work.drawn.warps), warps)
    if isinstance(value.type, MemDescType):
        one.first, one.bits = layout, bits
    stays = layout is not None and not isinstance(layout, AutoLayout) and key[0] != "mma"
    if stays and key not in work.open:
        both = isinstance(one.fixed, BlockedLayout) and isinstance(layout, BlockedLayout)
        line = own_line(value)
        if both and one.fixed != layout and isinstance(value.type, TensorType):
            one.conflict = one.conflict or (layout, f"the kernel's source, line {line}")
        else:  # units' layouts are those of their operands, which are converted
            line = (one.fixed == layout and one.fixed_line) or line
            one.fixed, one.fixed_by, one.fixed_line = layout, "the kernel's source", line
    name = getattr(value, "name", None)
    if name:
        one.homes.setdefault(name, []).append(work.home(around))
    line = own_line(value)
    if line:
        one.line = min(one.line or line, line)


def _relations(work: _Builder, unknowns: Mapping[Key, Unknown]) -> Iterator[Relation]:
    """Yield how ops relate unknown layouts."""
    drawn = work.drawn
    for kind, source, result, detail, wrap, op, weight in work.pending:
        ends = [work.values[k].type for k in (source, result)]
        first, second = (unknowns[work.find(k)] for k in (source, result))
        if first is second and kind == "same":
            continue
        bits = min(map(bits_of, ends)) if "load" in op.name else bits_of(ends[0])
        detail, inverse = detail if kind == "infer" else (detail, None)
        node = drawn.nodes.get(id(op))
        called = (drawn.functions.get(node, "") if node else "") or op.name
        yield Relation(
            kind, first, second, detail, ends[0].dims, ends[1].dims, bits, wrap, called,
            op.loc.line, weight, inverse, drawn.room, bool(drawn.warps),
        )  # fmt: skip


def _note_runs(unknowns: Iterable[Unknown], relations: list[Relation]) -> None:
    """Note of index vectors how many neighbours the accesses move together that they lead to."""
    results: dict[int, list[Unknown]] = {}
    for relation in relations:
        if relation.kind in ("same", "expand", "convert"):
            results.setdefault(relation.source.number, []).append(relation.result)
    for vector in unknowns:
        if sum(size > 1 for size in vector.shape) > 1 or vector.accesses:
            continue
        front, seen = [vector], {vector.number}
        while front:
            one = front.pop()
            vector.run = max([vector.run, *(access.together for access in one.accesses)])
            following = [r for r in results.get(one.number, ()) if r.number not in seen]
            seen |= {r.number for r in following}
            front += following


def _apply(one: Unknown, change: tuple[Any, ...], strides: Strides, weight: int) -> None:
    kind = change[0]
    if kind == "step":
        one.steps += weight * change[1]
    elif kind == "site":
        one.sites.append(change[1])
    elif kind == "fixed":
        if one.fixed_by and one.fixed is not None and one.fixed != change[1]:
            one.conflict = one.conflict or (change[1], change[2])
            return
        one.fixed, one.fixed_by = change[1], change[2]
    elif kind == "scan":
        _, axis, reverse, results = change
        one.scans.append(Scan(axis, reverse, results[0].type.dims, len(results), weight))
        one.steps += weight
    elif kind == "read":
        one.unit = change[1]
    elif kind == "reduction":
        one.reductions.append(Reduction(change[1], change[2].dims, change[3], weight))
    else:
        _, op, pointer, pointee, context, place, least = change
        dims, bits = pointer.type.dims, getattr(pointee, "bits", 32)
        steps = strides.of(context, pointer, len(dims))
        access = Access(op.name, op.loc.line, steps, dims, bits, weight, place=place, least=least)
        mask = next((v for v in op.operands() if is_mask(v, dims)), None)
        dim = next((d for d, step in enumerate(steps) if step == 1), len(dims) - 1)
        access.aligned = strides.aligned(context, pointer, None, dim)
        access.together = strides.aligned(context, pointer, mask, dim)
        access.alike = strides.alike(context, mask, dims)
        access.means = strides.means(context, pointer, len(dims))
        one.accesses.append(access)


def _unit(op: Any, layout: Any) -> str:
    """Return what multiplies: no matrix unit where a sum has a blocked layout."""
    blocked = isinstance(getattr(layout, "parent", layout), BlockedLayout)
    return f"{FMA if blocked else UNIT}, line {op.loc.line}"
