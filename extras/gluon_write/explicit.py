"""Give a kernel without layouts the layouts that were chosen for a target."""

from __future__ import annotations

import ast
import contextlib
import warnings
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, Callable, Iterator, Mapping, Optional

import numpy as np

from gluon_core import _triton, language
from gluon_core.errors import GluonError, KernelWarning, LayoutError
from gluon_core.plugin.targets import Target
from gluon_write.descriptors.tiles_of_pointers import (
    in_one_walk,
    strided_tiles_pay,
    with_strided_tiles,
    with_tiles,
)
from gluon_write.partitions.partition_choice import FewerWarps, in_partitions
from gluon_write.partitions.short_launches import short_launches_of
from gluon_write.partitions.specialize import specialized
from gluon_write.partitions.tensor_memory import in_tensor_memory
from gluon_write.pipelines.accumulate import accumulated
from gluon_write.pipelines.buffered import buffered
from gluon_write.pipelines.early_loads import loaded_early
from gluon_write.pipelines.gathered import with_gathered_bases
from gluon_write.pipelines.load_order import ordered
from gluon_write.pipelines.loads_ahead import loaded_ahead, vectors_ahead
from gluon_write.pipelines.prefetch import prefetched
from gluon_write.pipelines.reductions_ahead import reduced_ahead
from gluon_write.pipelines.stage import staged
from gluon_write.pipelines.sums_ahead import summed_ahead
from gluon_write.pipelines.tiles_ahead import tiles_ahead
from gluon_write.preferred import chosen_form, chosen_warps
from gluon_write.rewrites.adjacent import with_adjacent_loops, with_shared_names
from gluon_write.rewrites.exponentials import with_fused_differences, with_summed_powers
from gluon_write.rewrites.first_products import with_first_products
from gluon_write.rewrites.guard import guarded
from gluon_write.rewrites.hoist import hoisted
from gluon_write.rewrites.inline import in_own_text
from gluon_write.rewrites.joined import joined
from gluon_write.rewrites.lane_sums import summed_by_lanes
from gluon_write.rewrites.largest import with_scaled_maxima
from gluon_write.rewrites.moving_bases import with_moving_bases
from gluon_write.rewrites.prepare import prepared
from gluon_write.rewrites.reciprocals import with_reciprocals
from gluon_write.rewrites.thread_sums import summed_by_threads
from gluon_write.solver.byte_operands import lines_of
from gluon_write.solver.graph import build
from gluon_write.solver.prices import LEAST_COPY_BITS, held_by, vector_of
from gluon_write.solver.refusals import of_solution
from gluon_write.solver.solve import Solution, plan_of
from gluon_write.solver.unknowns import Access, AnyLayout, Graph
from gluon_write.text.form import with_text
from gluon_write.text.original_places import at_original_places, original_of
from gluon_write.text.tidy import tidied_tree
from gluon_write.tracing.budget import budgeted, exhausted, refill, without_collection
from gluon_write.tracing.sketch import Place, Sketch, partition_of, place_of
from gluon_write.tracing.tracer import Tracer
from gluon_write.writing.chosen import GROUP, Chosen, as_written, improved, solved
from gluon_write.writing.converted_operands import converted_operands, through_buffers
from gluon_write.writing.dependent import awaiting, waits
from gluon_write.writing.edits import Edits, edits_of, of_triton, partitions_of, space_in
from gluon_write.writing.kept_lines import with_kept_lines

__all__ = ["chosen_for", "explicit"]

_MOST_BITS = 1 << 17  # of a tensor in a thread: 16 times the registers that it has


def chosen_for(
    fn: Any,
    signature: Mapping[str, Any],
    constexprs: Mapping[tuple[int, ...], Any],
    attrs: Mapping[tuple[int, ...], Any],
    target: Target,
    options: Any,
    fewer: bool = True,
    apart: bool = False,
) -> tuple[Graph, Solution]:
    """Return the unknown layouts of a kernel and those that were chosen for a target.

    Args:
        fewer: the kernel may have fewer warps than `options`, which the graph then says.
        apart: loaded tiles are values of any layout.

    Raises:
        LayoutError: no choice satisfies all ops; with the line of one that is left over.
    """
    if int(options.num_ctas) > 1:
        raise LayoutError(
            "layouts are chosen for one block, and this launch has a cluster",
            argument="layouts",
            expected="num_ctas=1",
            got=int(options.num_ctas),
            remedy="Write the layouts, with their cga_layout.",
        )

    options = replace(options, num_warps=chosen_warps() or options.num_warps)
    traced = Tracer(signature, constexprs, attrs, target, options, apart)
    with budgeted() as budget, without_collection():
        graph, solution = _chosen_for(fn, traced, fewer)
    return graph, solution.cut_short() if budget.short else solution


def _chosen_for(fn: Any, traced: Tracer, fewer: bool) -> tuple[Graph, Solution]:
    """Return `chosen_for`, within the steps that are left."""
    try:
        fn, drawn = prepared(fn, traced)
        try:
            chosen = _finished(fn, drawn, traced, fewer)
        except (GluonError, SyntaxError) as error:  # of a changed text, or of the kernel
            if drawn.loads_tiles and not drawn.apart and isinstance(error, LayoutError):
                return _chosen_for(fn, replace(traced, apart=True), fewer)
            chosen = as_written(fn, drawn, traced)
            if not np.isfinite(chosen.solution.price):
                raise of_solution(fn, chosen.solution) from error
            edits_of(chosen.graph, chosen.solution)  # raises where no layouts can be written
            _warn(fn, f"its loops stay as they are, for a changed one is wrong: {error}")
        graph = chosen.graph
        graph.dependent = waits(graph.jits) and not waits(drawn.jits)
        graph.short = short_launches_of(fn, drawn, graph.jits, traced)
        return graph, chosen.solution
    except FewerWarps as other:
        return _chosen_for(fn, traced.with_warps(chosen_warps() or other.warps), False)


def _finished(fn: Any, drawn: Sketch, traced: Tracer, fewer: bool) -> Chosen:
    """Return the layouts of a kernel that is prepared, in the form that costs least.

    Raises:
        LayoutError: no choice satisfies all ops.
    """
    fn, drawn = _with_loops(fn, drawn, traced, fewer)
    fn, drawn = awaiting(fn, drawn, traced)
    refill()
    for ahead in _ahead(fn, drawn, traced):
        if ahead is not fn:
            chosen = solved(*awaiting(ahead, traced(ahead), traced), traced)
            if np.isfinite(chosen.solution.price) and _copied(chosen.graph):
                return _with_buffers(improved(_loading_ahead(chosen, traced), traced), traced)
    chosen = solved(fn, drawn, traced)
    if not np.isfinite(chosen.solution.price):
        raise of_solution(fn, chosen.solution)
    chosen = improved(_loading_ahead(chosen, traced), traced)
    return _keeping_lines(_with_buffers(chosen, traced), traced)


def _with_buffers(chosen: Chosen, traced: Tracer) -> Chosen:
    """Return layouts of a kernel whose converted operands come from buffers, or those of the kernel."""
    fn, places = chosen.graph.jits[0], converted_operands(chosen.graph, chosen.solution)
    if not places or not traced.has("nvidia.cp_async"):
        return chosen
    other = through_buffers(fn, traced(fn), places)
    if other is fn or exhausted():
        return chosen
    buffered = solved(other, traced(other), traced)
    return buffered if np.isfinite(buffered.solution.price) else chosen


def _keeping_lines(chosen: Chosen, traced: Tracer) -> Chosen:
    """Return layouts of a kernel whose transposed tile stays in the L2 cache, or those of the kernel."""
    graph, solution = chosen.graph, chosen.solution
    kept = with_kept_lines(graph, solution, traced.target, _converts_tiles(graph, solution))
    return chosen if kept is graph.jits[0] or exhausted() else solved(kept, traced(kept), traced)


def _converts_tiles(graph: Graph, solution: Solution) -> bool:
    """Return True if a tile changes its layout."""
    for relation in graph.relations:
        source, result = (solution.chosen[one.number] for one in (relation.source, relation.result))
        tile = sum(size > 1 for size in relation.source.shape) > 1
        if tile and relation.wrap is not None and plan_of(relation, source, result)[1] is not None:
            return True
    return False


def _loading_ahead(chosen: Chosen, traced: Tracer) -> Chosen:
    """Return layouts of a kernel that loads ahead what nothing copies ahead, or those of the kernel."""
    if traced.stages < 2 or not traced.has("nvidia.cp_async") or chosen.drawn.warps:
        return chosen
    forms: tuple[tuple[Any, Callable[..., Any]], ...] = (
        (partial(loaded_ahead, traced), _aligned),
        (summed_by_threads, vector_of),
        (summed_ahead, vector_of),
        (reduced_ahead, vector_of),
        (ordered, vector_of),
        (with_gathered_bases, vector_of),
        (loaded_early, held_by),
    )
    for written, run_of in forms:
        runs = {
            access.place: run_of(chosen.solution.chosen[one.number], access)
            for one in chosen.graph.unknowns
            for access in one.accesses
            if access.place is not None
        }
        with contextlib.suppress(GluonError):  # a mask that an access cannot have
            other = written(chosen.fn, chosen.drawn, traced.threads, runs)
            if other is not chosen.fn and not exhausted():
                new = solved(other, traced(other), traced)
                least = chosen.solution.price if written is summed_by_threads else np.inf
                chosen = new if new.solution.price < least else chosen
    return chosen


def _aligned(_: AnyLayout, access: Access) -> int:
    """Return how many neighbours one instruction could move."""
    return access.together


def _with_loops(fn: Any, drawn: Sketch, traced: Tracer, fewer: bool) -> tuple[Any, Sketch]:
    """Return a kernel with its loops of products in the form that costs least, and its trace."""
    forms = with_strided_tiles(fn, drawn, traced) if traced.stages > 1 else ()
    for tiled, trace, any_order in forms:
        formed = _formed(tiled, trace, traced, fewer, any_order)
        if strided_tiles_pay(formed[0], trace, traced):
            return formed
    fn, drawn, any_order = in_one_walk(*with_tiles(fn, drawn, traced), traced)
    return _formed(fn, drawn, traced, fewer, any_order)


def _formed(
    fn: Any, drawn: Sketch, traced: Tracer, fewer: bool, any_order: bool
) -> tuple[Any, Sketch]:
    """Return a kernel with its loops of products in the form that costs least, and its trace.

    Args:
        any_order: steps of loops may come in any order.
    """
    fn, drawn = traced.after(
        fn,
        drawn,
        hoisted,
        *([with_adjacent_loops] if any_order else []),
        partial(with_reciprocals, target=traced.target),
        partial(summed_by_lanes, target=traced.target),
        guarded,
        with_fused_differences,
        partial(with_summed_powers, target=traced.target),
        *([with_shared_names] if any_order else []),
    )
    if traced.has("nvidia.tcgen05") and chosen_form() != "pipelined":
        special = _in_one(fn, drawn, traced)
        if special is not fn:
            return special, traced(special)
    pipelined = staged(fn, drawn, traced.stages, traced.has("nvidia.tma"), traced.room)
    if pipelined is fn:
        pipelined = tiles_ahead(fn, drawn, traced)
    form = chosen_form() or (None if pipelined is not fn else "specialized")
    for write in (
        partial(_in_partitions, fn, drawn, traced, form, fewer, any_order),
        partial(in_tensor_memory, fn, drawn, traced, form),
        partial(specialized, fn, drawn, traced, form),
    ):
        special = write()
        if special is not fn:
            return traced.after(special, traced(special), with_first_products)
    return (pipelined, traced(pipelined)) if pipelined is not fn else (fn, drawn)


def _in_partitions(
    fn: Any, drawn: Sketch, traced: Tracer, form: Optional[str], fewer: bool, any_order: bool
) -> Any:
    """Return a kernel in partitions, which scale maxima in place of all products and load vectors ahead; the kernel where that does not pay."""
    rest = (traced, form, fewer, any_order)
    scaled = with_scaled_maxima(fn, drawn)
    for one in (scaled, fn) if scaled is not fn else (fn,):
        with contextlib.suppress(GluonError):  # numbers whose types differ
            own = drawn if one is fn else traced(one)
            ahead = vectors_ahead(one, own, traced.threads)
            for other in (ahead, one) if ahead is not one else (one,):
                special = in_partitions(other, own if other is one else traced(other), *rest)
                if special is not other:
                    return special
    return fn


def _in_one(fn: Any, drawn: Sketch, traced: Tracer) -> Any:
    """Return a kernel in partitions with the loops of its functions in its own text; the kernel where that cannot be."""
    try:
        whole, own, inlined = in_own_text(fn, drawn, traced)
        if not inlined:
            return fn
        whole, own = traced.after(whole, own, hoisted)
        written = in_tensor_memory(whole, own, traced)
        return fn if written is whole else written
    except GluonError:  # a part of the kernel that no trace has seen
        return fn


def _ahead(fn: Any, drawn: Sketch, traced: Tracer) -> Iterator[Any]:
    """Yield forms of a kernel whose loops of products load ahead, the best first."""
    warps, width, threads = traced.warps, traced.target.warp_size, traced.threads
    if traced.stages > 1 and traced.has("nvidia.tcgen05") and warps >= GROUP:
        yield accumulated(fn, drawn, traced.stages, traced.room)
    if traced.stages > 1 and traced.has("nvidia.cp_async"):
        whole, own = joined(fn, drawn, traced) if traced.has("nvidia.wgmma") else (fn, drawn)
        if whole is not fn:
            ahead = prefetched(whole, own, traced)
            yield ahead if ahead is not whole else fn
        lines: dict[Place, int] = {}
        if traced.has("nvidia.wgmma") and any(drawn.bytes.values()):
            lines = lines_of(build(drawn, width, warps))
        yield prefetched(fn, drawn, traced, lines=lines)
        narrow = _narrow(build(drawn, width, warps))
        moved = with_moving_bases(fn, drawn, narrow, threads)
        if moved is not fn:
            own = traced(moved)
            rest = _narrow(build(own, width, warps))
            ahead = prefetched(moved, own, traced, rest, lines)
            yield ahead if ahead is not moved else fn
        if narrow:
            yield prefetched(fn, drawn, traced, narrow, lines)
    elif traced.stages > 1:
        yield prefetched(fn, drawn, traced)
        yield buffered(fn, drawn, threads)


def _copied(graph: Graph) -> bool:
    """Return True if every address that is copied ahead is known to be aligned as copies need it."""
    return not any("copy" in access.name for access in _unaligned(graph))


def _narrow(graph: Graph) -> set[Place]:
    """Return the places of loads whose addresses are not known to be aligned as copies need it."""
    places = (access.place for access in _unaligned(graph) if "load" in access.name)
    return {place for place in places if place is not None}


def _unaligned(graph: Graph) -> Iterator[Access]:
    for one in graph.unknowns:
        for access in one.accesses:
            together = access.together if 1 in access.strides else 1
            if together * access.bits < (access.least or LEAST_COPY_BITS):
                yield access


class _Writer(ast.NodeTransformer):
    """Put layouts and conversions into a copy of a function's tree, at the nodes' own places."""

    def __init__(self, edits: Edits, number: int, space: str):
        self.edits, self.number, self.space = edits, number, space

    def visit(self, node: Any) -> Any:
        place = place_of(node, self.number)
        if place is not None and isinstance(node, ast.Call):
            for index, listed in partitions_of(node):
                called = self.edits.calls.get(partition_of(place, index))
                listed.id = called.name if called is not None else listed.id
        if isinstance(node, ast.FunctionDef):  # annotations and defaults are not the kernel's ops
            node.body = [self.visit(statement) for statement in node.body]
            return node
        node = self.generic_visit(node)
        if place in self.edits.calls and isinstance(node, ast.Call):
            node.func = ast.copy_location(
                ast.Name(self.edits.calls[place].name, ast.Load()), node.func
            )
        if place in self.edits.layouts and isinstance(node, ast.Call):
            name = self.edits.name_of(self.edits.layouts[place])
            word = of_triton(node.func, self.edits.fn)
            if word is not None:
                named = ast.Attribute(ast.Name(self.space, ast.Load()), word, ast.Load())
                node.func = ast.copy_location(named, node.func)
            node.keywords.append(ast.keyword("layout", ast.Name(name, ast.Load())))
        if place in self.edits.conversions:
            name = self.edits.name_of(self.edits.conversions[place])
            function = ast.Attribute(ast.Name(self.space, ast.Load()), "convert_layout", ast.Load())
            wrapped = ast.Call(function, [node, ast.Name(name, ast.Load())], [])
            return ast.fix_missing_locations(ast.copy_location(wrapped, node))
        return ast.fix_missing_locations(node) if isinstance(node, ast.Call) else node


def explicit(
    fn: Any,
    signature: Mapping[str, Any],
    constexprs: Mapping[tuple[int, ...], Any],
    attrs: Mapping[tuple[int, ...], Any],
    target: Target,
    options: Any,
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return a kernel's syntax tree with the layouts for a target, the names that it reads, and the options of its launch that are chosen.

    Raises:
        LayoutError: no layouts fit.
        CapabilityError: the simulator, which records the kernel, is not installed.
    """
    graph, solution = chosen_for(fn, signature, constexprs, attrs, target, options)
    if not solution.exact:
        _warn(fn, solution.words())
    _warn_of_words(fn, graph)
    chosen: dict[str, Any] = {"num_warps": graph.warps, "asked_warps": int(options.num_warps)}
    chosen["short_launches"] = graph.short and graph.short.facts()
    chosen |= {"launch_pdl": True} if graph.dependent else {}
    return *_explicit(edits_of(graph, solution), graph), chosen


def _warn_of_words(fn: Any, graph: Graph) -> None:
    """Warn of a tensor of which a thread holds far more than its registers: compiling it takes minutes."""
    for one in graph.unknowns:
        elements = prod(one.shape) // (one.warps * graph.lanes or 1)
        if elements * one.bits > _MOST_BITS and one.first is None and not one.compiled:
            name = next(filter(str.isidentifier, one.names), "a tensor")
            note = f"{name} (line {one.line}) has {elements} elements in each thread"
            _warn(fn, f"{note}; compiling takes minutes then. Use smaller blocks, or more warps.")
            return


def _warn(fn: Any, note: str) -> None:
    code = fn.fn.__code__
    warnings.warn_explicit(
        f"{fn.__name__}: {note}", KernelWarning, code.co_filename, code.co_firstlineno
    )


def _explicit(edits: Edits, graph: Graph) -> tuple[Any, dict[str, Any]]:
    """Return the tree of a function, and its scope with the explicit copies that it calls."""
    fn = edits.fn
    scope = dict(fn.get_capture_scope())
    space = space_in(scope)
    scope[space] = language
    number = next(i for i, one in enumerate(graph.jits) if one is fn)
    tree = _Writer(edits, number, space).visit(ast.parse(fn.src))
    scope |= {name: _triton.constexpr(layout) for layout, name in edits.names.items()}
    scope |= {called.name: _copy(called, graph) for called in edits.calls.values()}
    tidied_tree(tree.body[0], space, scope)
    at_original_places(tree, fn)
    return tree, scope


def _copy(edits: Edits, graph: Graph) -> Any:
    """Return a function that compiles to the explicit form of another one."""
    tree, scope = _explicit(edits, graph)
    own: Any = with_text(edits.fn, original_of(edits.fn))
    own.__qualname__ = edits.name  # modules name functions by it
    own.parse = lambda: tree
    own.get_capture_scope = lambda: scope
    return own
