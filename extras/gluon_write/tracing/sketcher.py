"""Trace a kernel whose layouts are left out: its ops, and the expression of each operand."""

from __future__ import annotations

import ast
import inspect
import re
from copy import copy
from functools import partial
from typing import Any, Iterable, Mapping, Optional

from gluon_core import language, portable
from gluon_core._triton import tl, unwrap
from gluon_core.errors import GluonError, LayoutError, ShapeError
from gluon_core.frontend.host_calls import is_library
from gluon_core.language.reductions import dot_fma
from gluon_core.launch.jit import GluonJITFunction
from gluon_core.layouts import AutoLayout, BlockedLayout, DotOperandLayout
from gluon_core.portable.tile_ops import tile_descriptor
from gluon_core.semantic.base import shape_of
from gluon_core.values import distributed_type, shared_memory_descriptor
from gluon_core.values.tensors import unwrap_shape
from gluon_write.text.form import public_name
from gluon_write.text.syntax import nodes_in
from gluon_write.tracing.buffers import first_layout
from gluon_write.tracing.carried import CarriedNames
from gluon_write.tracing.sketch import Place, Sketch, partition_of, place_of

__all__ = ["Sketcher", "alignments", "multiplies", "odd_names"]

# Functions whose result has no layout but the one that they take -> its position.
_TAKE_LAYOUT = {
    "gl.allocate_shared_memory": 2,
    "gl.convert_layout": 1,
    "shared_memory_descriptor.load": 0,
    "gl.histogram": 3,
}
_OF_TYPES = ("isinstance", "hasattr")


class Sketcher(CarriedNames):
    """Record which expression each op and each value belongs to."""

    drawn: Sketch

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        context = kwargs.get("caller_context")
        if context is not None and self.drawn.entered is not None:
            self.drawn.warps[self.drawn.entered] = int(context.num_warps)
        self.drawn.entered = None
        self.path: list[Place] = []
        self.inner: list[dict[Place, bool]] = []  # the places in each of the path
        self.partitions: dict[Place, int] = {}
        self.steps: set[Optional[Place]] = set()  # of ranges
        self.tests: set[Optional[Place]] = set()  # of statements
        self.own = self.is_kernel or not is_library(self.file_name)
        if self.own and self.jit_fn not in self.drawn.jits:
            self.drawn.jits.append(self.jit_fn)
        self.number = self.drawn.jits.index(self.jit_fn) if self.own else -1
        semantic: Any = self.semantic
        # Only chosen layouts can be checked.
        semantic._check_split = semantic._check_gathered = lambda *values: None
        semantic.memdesc_index = partial(self._in_rank, semantic.memdesc_index, -1)
        semantic.require_unbatched = partial(self._in_rank, semantic.require_unbatched, 0)
        builder: Any = self.builder
        record = builder.record

        def recorded(*args: Any, **kwargs: Any) -> Any:
            op = record(*args, **kwargs)
            path = self.path
            if self.own and path:
                self.drawn.nodes[id(op)] = path[-1]
                self.drawn.kept.append(op)
            return op

        builder.record = recorded

    def visit(self, node: Any) -> Any:
        place = place_of(node, self.number) if self.own else None
        if isinstance(node, (ast.If, ast.IfExp)) and self.own:
            self.tests.add(place_of(node.test, self.number))
        if place is None:
            if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
                self.steps |= {place_of(step, self.number) for step in node.iter.args[2:3]}
            return super().visit(node)
        for inner in self.inner:
            inner.setdefault(place, False)
        if self.inner:
            self.inner[-1][place] = True
        self._enter(place)
        try:
            value = super().visit(node)
        finally:
            self._leave()
        if place in self.tests and isinstance(unwrap(value), (bool, int)):
            self.drawn.asked.setdefault(place, set()).add(bool(unwrap(value)))
        if isinstance(value, tl.tensor) and value.type != tl.void:  # as `tl.store` returns
            value._flatten_ir(
                self.drawn.returned.setdefault(place, [])
            )  # hand it on, do not read it
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in _OF_TYPES:
            self.drawn.decided.setdefault(place, set()).add(bool(unwrap(value)))
        elif place in self.steps and isinstance(unwrap(value), int) and unwrap(value) < 0:
            self.drawn.falling.add(place)
        return value

    def _check_rounds(self, node: Any, called: Any) -> None:
        """Note the rounds of a compile-time loop."""
        super()._check_rounds(node, called)
        place = place_of(node.iter, self.number) if self.own else None
        if place is not None and called is tl.static_range and not node.iter.keywords:
            counts = [unwrap(self.visited[id(argument)]) for argument in node.iter.args]
            if counts and all(isinstance(count, int) for count in counts):
                self.drawn.rounds.setdefault(place, set()).add(tuple(range(*counts)))

    def _enter(self, place: Place) -> None:
        self.path.append(place)
        self.inner.append(self.drawn.within.setdefault(place, {}))

    def _leave(self) -> None:
        self.path.pop()
        self.inner.pop()

    def before_call(self, fn: Any, args: Any, kwargs: Any) -> Any:
        """Note the call of a partition, whose place is its own."""
        place = self.path[-1] if self.own and self.path else None
        if place is not None and self.drawn.functions.get(place) == "gl.warp_specialize":
            self.partitions[place] = index = self.partitions.get(place, -1) + 1
            part = partition_of(place, index)
            self.drawn.functions[part] = str(fn.__name__)
            self.drawn.called[part] = fn
            self.drawn.entered = part
            self._enter(part)
        return super().before_call(fn, args, kwargs)

    def after_call(self, passed: Any) -> None:
        super().after_call(passed)
        if self.path and self.path[-1][0].startswith("Partition"):
            self._leave()

    def _note_called(self, place: Place, called: Any) -> None:
        """Note the user's function or method that a call names."""
        if isinstance(called, GluonJITFunction):
            self.drawn.called[place] = called
        method = getattr(called, "__func__", None)
        if isinstance(method, GluonJITFunction) and not is_library(method.fn.__code__.co_filename):
            known = self.drawn.methods.setdefault(place, method)
            self.drawn.methods[place] = known if known is method else None

    def visit_Call(self, node: Any) -> Any:
        if not self.own:
            return super().visit_Call(node)
        called = unwrap(self.visit(node.func))
        if called in (language.static_print, tl.static_print):
            return None  # compiling the kernel prints it
        if any(isinstance(part, ast.Call) for part in nodes_in(node.func)):
            shown = ast.unparse(node.func)  # with its call it is nobody's name, and errors show it
            self.lscope[shown] = called
            function = ast.Name(shown, ast.Load())
            node = self._bound(node, ast.Call(function, node.args, node.keywords))
        name = public_name(called)
        place = place_of(node, self.number)
        if place is not None:
            self.partitions.pop(place, None)
            self.drawn.functions[place] = name
            if called is portable.load and node.args and isinstance(node.args[0], ast.Name):
                tiles = self.visit(node.args[0])
                if isinstance(tiles, tile_descriptor) and tiles.native:
                    self.drawn.copied.add(place)
            self._note_called(place, called)
        if name in _TAKE_LAYOUT and not _names_layout(node, name):
            if called is language.convert_layout:
                return self._converted(node, called, place)
            return self._open(node, name, called, place)
        if called in (portable.mma, dot_fma):
            return self._mma(node, called)
        if called is portable.store or name == "tile_output.store":
            return self._store(node, called)
        if multiplies(name, called):
            return self._unit(node, called)
        if name.endswith(("mma_init", "mma_wait")):
            named = self._operands(node, called)
            value = named.get("deps", next(iter(named.values()), None))
            values = list(value) if isinstance(value, (list, tuple, tl.tuple)) else [value]
            if all(isinstance(v, tl.tensor) and _is_free(v) for v in values):
                # The products decide, which were recorded without a state.
                return values[0] if len(values) == 1 else tl.tuple(values)
            return self._with_values(node, named)
        if called in (portable.load, portable.read):
            return self._apart(super().visit_Call(node), called)
        return super().visit_Call(node)

    def _apart(self, value: Any, called: Any) -> Any:
        """Return a loaded tile, which has the layout of its descriptor, or a value of any layout from it or from a sum that is read."""
        if not isinstance(value, tl.tensor) or _is_free(value):
            return value
        if called is portable.load:
            self.drawn.loads_tiles = True
            if not self.drawn.apart:
                return value
        kind = distributed_type(value.dtype, shape_of(value), AutoLayout())
        op = self.builder.record("apart", (value.handle,), [kind.to_ir(self.builder)])
        return self.semantic.make_tensor(op.results[0], kind)

    def _in_rank(self, access: Any, change: int, mem: Any, *args: Any, **kwargs: Any) -> Any:
        """Access a buffer; note the rank of layout that it would need where that is another one.

        Raises:
            LayoutError: another access needs another rank.
        """
        try:
            return access(mem, *args, **kwargs)
        except GluonError as error:
            place, whole, _ = self.drawn.origins.get(id(mem.layout), (None, 0, None))
            rank = mem.rank + change
            if place is None or rank == mem.layout.rank or rank < 1:
                raise
            if rank < whole - 1:
                error.remedy = (
                    "One dimension counts buffers: join the leading ones, and index once."
                )
                raise
            line = self.builder.get_loc().line
            known, other = self.drawn.ranks.setdefault(place, (rank, line))
            if known == rank:
                raise
            raise LayoutError(
                "a buffer is used both as a whole and by index",
                argument="layouts",
                expected=f"a layout of rank {known}, as line {other} needs it",
                got=f"a use that needs rank {rank}",
                remedy="Take parts of one buffer with slice, or allocate a buffer for each use.",
            ) from None

    def _operands(self, node: Any, called: Any) -> dict[str, Any]:
        """Return the evaluated arguments of a call by name."""
        names = list(inspect.signature(called).parameters)
        named = dict(zip(names, (self.visit(arg) for arg in node.args)))
        return named | {word.arg: self.visit(word.value) for word in node.keywords}

    def _places(self, node: Any, called: Any) -> list[Optional[Place]]:
        """Return the places of the operands a and b and of the accumulator of a call."""
        names = list(inspect.signature(called).parameters)
        nodes = dict(zip(names, node.args)) | {word.arg: word.value for word in node.keywords}
        return [place_of(nodes.get(name), self.number) for name in ("a", "b", "acc")]

    def _layouts(self, a: Any, b: Any, acc: Any, operands: str, **how: Any) -> Any:
        """Return the layouts that the target's matrix unit wants."""
        (m, k), (rows, n) = shape_of(a)[-2:], shape_of(b)[-2:]
        if rows != k or shape_of(acc)[-2:] != [m, n]:
            raise ShapeError(
                "the shapes do not multiply",
                expected="a [M, K], b [K, N], acc [M, N]",
                got=f"{shape_of(a)}, {shape_of(b)}, {shape_of(acc)}",
            )
        layouts_of: Any = portable.mma_layouts
        return unwrap(
            layouts_of(
                m, n, k, a.dtype, b.dtype, acc.dtype, operands=operands,
                _semantic=self.semantic, **how,
            )
        )  # fmt: skip

    def _mma(self, node: Any, called: Any) -> Any:
        """Record a product whose operands may have any layout."""
        named = self._operands(node, called)
        if isinstance(named.get("a"), shared_memory_descriptor):
            return self._with_values(node, named)  # of a staged loop, with an accumulator
        values = [self.semantic.require_tensor(named.get(n), n, rank=2) for n in ("a", "b", "acc")]
        a, b, acc = values
        op = self.builder.record("mma", tuple(v.handle for v in values), [acc.handle.type])
        op.attrs["places"] = self._places(node, called)
        if called is portable.mma:
            precision = named.get("input_precision")
            chosen = self._layouts(a, b, acc, "registers", input_precision=precision)
            op.attrs["layouts"] = [unwrap(getattr(chosen, f)) for f in ("a", "b", "accumulator")]
            place = place_of(node, self.number)
            if place is not None and isinstance(op.attrs["layouts"][2], BlockedLayout):
                self.drawn.unaided[place] = op.attrs["layouts"][2]
            if place is not None and a.dtype.primitive_bitwidth == 8:
                taken = self._reads_bytes(a, b, acc)
                self.drawn.bytes[place] = taken and self.drawn.bytes.get(place, True)
        return self.semantic.make_tensor(op.results[0], acc.type)

    def _reads_bytes(self, a: Any, b: Any, acc: Any) -> bool:
        """Return True if groups of warps have products of these tensors of bytes that read shared memory."""
        try:
            chosen = self._layouts(a, b, acc, "shared", b_transposed=True)
        except GluonError:
            return False
        return bool(unwrap(chosen.lowering) == "wgmma")

    def _store(self, node: Any, called: Any) -> Any:
        """Record the store of a tile, which takes a value of any layout."""
        named = self._operands(node, called)
        value = named.get("value")
        tiles = called is not portable.store or isinstance(named.get("ptr"), tile_descriptor)
        if tiles and isinstance(value, tl.tensor):
            self.builder.record("tile_store", (value.handle,), ())
            return None
        return self._with_values(node, named)

    def _unit(self, node: Any, called: Any) -> Any:
        """Evaluate a call of a vendor's matrix unit: its operands take the layouts that it demands."""
        self.semantic.check_capabilities(called.public, called.requires, None)
        named = self._operands(node, called)
        a, b, acc = (named.get(n) for n in ("a", "b", "acc"))
        if not isinstance(acc, tl.tensor) or not hasattr(b, "type"):
            return self._with_values(node, named)
        stored = isinstance(b, shared_memory_descriptor)
        how = {"b_transposed": True} if stored and _is_transposed(b) else {}
        chosen = self._layouts(a, b, acc, "shared" if stored else "registers", **how)
        if _is_free(acc):
            return self._product(node, called, (a, b, acc), chosen)
        for index, (name, value) in enumerate((("a", a), ("b", b))):
            if not isinstance(value, tl.tensor) or not _is_free(value):
                continue
            layout = self._operand_layout(index, value, acc.type.layout, chosen)
            kind = distributed_type(value.dtype, shape_of(value), layout)
            types = [kind.to_ir(self.builder)]
            op = self.builder.record("as_operand", (value.handle,), types)
            op.attrs["places"] = [self._places(node, called)[index]]
            named[name] = self.semantic.make_tensor(op.results[0], kind)
        return self._with_values(node, named)

    def _operand_layout(self, index: int, value: Any, parent: Any, chosen: Any) -> Any:
        if isinstance(parent, BlockedLayout):
            return DotOperandLayout(index, parent, 0)  # which the unit refuses for its accumulator
        own = unwrap(getattr(chosen, "ab"[index]))
        bits = value.dtype.primitive_bitwidth
        width = own.k_width if isinstance(own, DotOperandLayout) else max(1, 32 // bits)
        return DotOperandLayout(index, parent, width)

    def _product(self, node: Any, called: Any, values: Any, chosen: Any) -> Any:
        """Record a product whose accumulator takes the layout of the unit wherever it comes from."""
        a, b, acc = values
        parent = unwrap(chosen.accumulator)
        grouped = unwrap(chosen.lowering) == "wgmma"
        if isinstance(parent, BlockedLayout) or grouped != ("warpgroup" in called.__name__):
            tiles = " @ ".join(f"{v.dtype} {shape_of(v)}" for v in (a, b))
            raise ShapeError(
                f"{called.__name__} has no layout for an accumulator of these products",
                argument="acc",
                expected="tiles that the matrix unit takes",
                got=f"{tiles} with {self.builder.options.num_warps} warps",
                remedy="Use larger tiles, or gl.portable.mma, which takes any.",
            )
        op = self.builder.record("mma", tuple(v.handle for v in values), [acc.handle.type])
        op.attrs["places"] = self._places(node, called)
        op.attrs["layouts"] = [
            self._operand_layout(i, value, parent, chosen) if isinstance(value, tl.tensor) else None
            for i, value in enumerate(values[:2])
        ] + [parent]
        return self.semantic.make_tensor(op.results[0], acc.type)

    def _with_values(self, node: Any, named: Mapping[str, Any]) -> Any:
        """Evaluate a call with arguments that are values already: none is evaluated twice."""
        words = [ast.keyword(name, self._name(name, value)) for name, value in named.items()]
        result = super().visit_Call(self._bound(node, ast.Call(node.func, [], words)))
        self._forget(named)
        return result

    def _forget(self, words: Iterable[str]) -> None:
        """Drop the names of values: a loop or a branch would carry them."""
        for word in words:
            self.lscope.pop(f"the {word}", None)

    def _name(self, word: str, value: Any) -> ast.Name:
        """Return an expression for a value; no kernel has variables with such names."""
        self.lscope[f"the {word}"] = value
        return ast.Name(f"the {word}", ast.Load())

    def _bound(self, node: Any, call: ast.Call) -> Any:
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def _open(self, node: Any, name: str, called: Any, place: Optional[Place]) -> Any:
        """Evaluate a call whose layout was left out, with one to begin with."""
        layout: Any = AutoLayout()
        named: dict[str, Any] = {}
        if name == "gl.allocate_shared_memory":
            named = self._operands(node, called)
            if set(named) >= {"element_ty", "shape"}:
                shape = unwrap_shape(named["shape"])
                target, warps = self.semantic.target, self.semantic.num_warps
                if "value" in named and place is not None:
                    line = self.builder.get_loc().line
                    self.drawn.ranks.setdefault(place, (len(shape), line))
                known = self.drawn.ranks.get(place) if place is not None else None
                rank = known[0] if known is not None else None
                layout = copy(first_layout(target, warps, unwrap(named["element_ty"]), shape, rank))
                self.drawn.origins[id(layout)] = place, len(shape), layout
            node = self._bound(
                node,
                ast.Call(
                    node.func, [], [ast.keyword(n, self._name(n, v)) for n, v in named.items()]
                ),
            )
        if place is not None:
            self.drawn.opened.add(place)
        result = self._with_layout(node, layout)
        self._forget(named)
        return result

    def _converted(self, node: Any, called: Any, place: Optional[Place]) -> Any:
        """Record a conversion whose layout was left out."""
        named = self._operands(node, called)
        value = self.semantic.require_tensor(named.get("value"), "value")
        if place is not None:
            self.drawn.opened.add(place)
        kind = distributed_type(value.dtype, shape_of(value), AutoLayout())
        op = self.builder.record("convert_layout", (value.handle,), [kind.to_ir(self.builder)])
        return self.semantic.make_tensor(op.results[0], kind)

    def _with_layout(self, node: Any, layout: Any) -> Any:
        word = ast.keyword("layout", ast.Constant(layout))
        return super().visit_Call(
            self._bound(node, ast.Call(node.func, node.args, [*node.keywords, word]))
        )


def alignments(fn: Any, constexprs: Mapping[Any, Any], attrs: Mapping[Any, Any]) -> list[int]:
    """Return the divisibility of the arguments that are passed at run time."""
    passed = [i for i in range(len(fn.arg_names)) if (i,) not in constexprs]
    known = [dict(map(tuple, attrs.get((i,), ()))) for i in passed]
    return [int(facts.get("tt.divisibility", 1)) for facts in known]


def odd_names(
    fn: Any, signature: Mapping[str, Any], constexprs: Mapping[Any, Any], attrs: Mapping[Any, Any]
) -> set[str]:
    """Return the names of integers that are surely no multiples of 16: a launch notes those that are."""
    names = set()
    for i, name in enumerate(fn.arg_names):
        kind, facts = str(signature.get(name, "")), dict(map(tuple, attrs.get((i,), ())))
        param = fn.params[i]
        noted = not (param.do_not_specialize or param.do_not_specialize_on_alignment)
        integer = kind[:1] in ("i", "u") and kind[1:].isdigit() and (i,) not in constexprs
        if attrs and noted and integer and "tt.divisibility" not in facts:
            names.add(name)
    return names


def _is_transposed(buffer: Any) -> bool:
    """Return True for a matrix of bytes in shared memory whose columns are contiguous."""
    layout = unwrap(buffer.type.layout)
    return buffer.dtype.primitive_bitwidth == 8 and bool(getattr(layout, "transposed", False))


def _is_free(value: Any) -> bool:
    """Return True if the layout of a tensor is left out."""
    return isinstance(value.type.layout, AutoLayout)


def _names_layout(node: Any, name: str) -> bool:
    """Return True if a call passes the layout."""
    words = {word.arg for word in node.keywords}
    starred = None in words or any(isinstance(arg, ast.Starred) for arg in node.args)
    position = _TAKE_LAYOUT.get(name, 0)
    return starred or len(node.args) > position or "layout" in words


def multiplies(name: str, called: Any) -> bool:
    """Return True for a vendor's matrix unit with operands a, b and acc."""
    if not re.search(r"mma|mfma", name.rpartition(".")[2]) or not callable(called):
        return False
    return {"a", "b", "acc"} <= set(inspect.signature(called).parameters)
