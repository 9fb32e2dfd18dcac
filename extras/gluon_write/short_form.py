"""Give a kernel in partitions a pipelined form for launches that are over soon after partitions begin.

    programs = gl.num_programs(0) * gl.num_programs(1)
    if (programs <= 3 * room) & (N <= 1024) & (programs * N <= 1024 * room):
        attention_short(q, k, v, out, N, D, BM, BN)  # and return

Here `room` is the number of multiprocessors. Partitions take some microseconds until their first product: for barriers, their
descriptors, and the registers that warps exchange. The first warps of a kernel in partitions may hold as many registers before
as those of a pipelined one.
"""

from __future__ import annotations

import ast
import math
import re
from typing import Any, Callable, Iterator, Optional

from gluon_core.errors import GluonError
from gluon_core.plugin.targets import Target
from gluon_write.form import Form, bounds_of, changed_copy, factor, free_name, function_of
from gluon_write.graph import build
from gluon_write.preferred import chosen_form, preferred_form
from gluon_write.sketch import Sketch
from gluon_write.syntax import nodes_in
from gluon_write.unknowns import Graph

__all__ = ["with_short_form"]

_ROWS = 1024  # that the loops of a multiprocessor walk over; with more, partitions took less time on an H200 alone
_ROUNDS = 3  # of programs; partitions begin once for all rounds
_GROUP = 4  # warps
_WORDS = 64  # of a thread for one tensor: with more, the first warps would spill
_WORD = 32  # bits; more are addresses
_LEAVES = re.compile(r"if (.+) >= (.+):$")  # how programs without blocks end


def with_short_form(
    fn: Any,
    drawn: Sketch,
    before: Sketch,
    traced: Callable[..., Sketch],
    target: Target,
    warps: int,
    other: Callable[[], tuple[Graph, Any]],
) -> tuple[Any, Sketch]:
    """Return a kernel that takes another form where a launch has few programs with few steps, and its trace.

    Returns the kernel itself where it has no partitions, its parameters do not bound the steps, or a caller prefers a form. Measured on
    Hopper for kernels by pointers, of which partitions make descriptors.

    Args:
        before: the trace of the kernel without partitions. warps: of the kernel.
        other: makes the graph of the kernel in the preferred form.
    """
    if chosen_form() or warps != _GROUP or "tma_ring(" not in fn.src:
        return fn, drawn
    if not target.has("nvidia.wgmma") or any("descriptor" in jit.src for jit in before.jits):
        return fn, drawn
    form = Form(fn)
    leave = next((s for s in form.tree.body if isinstance(s, ast.If)), None)
    ends = _LEAVES.match(form.text_of(leave).splitlines()[0]) if leave is not None else None
    end = _end(form)
    if leave is None or ends is None or end is None:
        return fn, drawn
    try:
        unknown = build(before, target.warp_size, warps).unknowns
        held = [one for one in unknown if one.first is None and one.bits <= _WORD]
        if any(math.prod(one.shape) > _WORDS * target.warp_size * warps for one in held):
            return fn, drawn
        with preferred_form("pipelined"):
            graph = other()[0]
        written = _with(fn, drawn, form, leave, ends[2], factor(end), graph.jits[0])
        return written, traced(written)
    except GluonError:  # it has no such form
        return fn, drawn


def _programs(form: Form, leave: ast.If) -> str:
    """Return the number of programs, which has as many axes as the programs that leave are counted along."""
    text = form.text_of(leave.test)
    space = re.findall(r"(\w+)\.program_id", text)[0]
    axes = sorted(set(re.findall(r"program_id\((?:axis=)?(\d)\)", text)))
    return " * ".join(f"{space}.num_programs({axis})" for axis in axes)


def _with(
    fn: Any, drawn: Sketch, form: Form, leave: ast.If, units: str, rows: str, short: Any
) -> Any:
    """Return the kernel with a call of `short` in front of the statement where programs leave.

    Args:
        units: how many multiprocessors there are. rows: that the loops walk over.
    """
    taken = {*re.findall(r"\w+", form.source), *form.scope}
    name = free_name(f"{fn.__name__}_short", taken)
    text = re.sub(rf"\bdef {short.__name__}\b", f"def {name}", short.src, count=1)
    called = function_of(text[text.index("def ") :], name, short.get_capture_scope())
    room, programs = free_name("room", taken), free_name("programs", taken)
    lines = [
        "# Few programs with few steps: partitions would begin too late.",
        f"{room} = {units}",
        f"{programs} = {_programs(form, leave)}",
        f"if ({programs} <= {_ROUNDS} * {room}) & ({rows} <= {_ROWS}) & ({programs} * {rows} <= {_ROWS} * {room}):",
        f"    {name}({', '.join(one.arg for one in form.tree.args.args)})",
        "    return",
    ]
    indent, place = b" " * leave.col_offset, leave.lineno - 1
    form.encoded[place:place] = [indent + line.encode() for line in lines]
    whole = b"\n".join(form.encoded).decode()
    return changed_copy(fn, drawn.jits, {0: whole}, {}, {name: called})


def _end(form: Form) -> Optional[str]:
    """Return what the loops of a partition that copies end at or before, an expression of the kernel's parameters alone."""
    known = {one.arg for one in form.tree.args.args}
    texts = (getattr(value, "src", "") for value in form.scope.values())
    for tree in (ast.parse(text).body[0] for text in texts if ".fetch(" in text):
        for loop in reversed([*_loops(tree)]):
            assert isinstance(loop.iter, ast.Call)
            end = bounds_of([ast.unparse(arg) for arg in loop.iter.args])[1]
            for bound in _bounds_of(ast.parse(dict(_assigned(tree)).get(end, end), mode="eval")):
                names = {n.id for n in nodes_in(bound) if isinstance(n, ast.Name)}
                if names and names <= known:
                    return ast.unparse(bound)
    return None


def _bounds_of(end: ast.Expression) -> list[ast.expr]:
    """Return expressions that are no less than the end of a loop: itself, or those of which it is the least."""
    value = end.body
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in (
        "min",
        "minimum",
    ):
        return value.args
    return [value]


def _loops(tree: ast.AST) -> Iterator[ast.For]:
    """Yield the loops that copy and have no loop in them."""
    for node in nodes_in(tree):
        if isinstance(node, ast.For) and ".fetch(" in ast.unparse(node):
            if not any(isinstance(inner, ast.For) for s in node.body for inner in nodes_in(s)):
                yield node


def _assigned(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield names with the expressions that they get."""
    for node in nodes_in(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts))
            yield from ((ast.unparse(one), ast.unparse(other)) for one, other in pairs)
