"""Put a loop of masked steps right behind the loop of whole steps that it goes on with.

    acc, total, largest = inner(acc, total, largest, q, 0, start * BM, MASKED=False)
    acc, total, largest = inner(acc, total, largest, q, start * BM, min(start * BM + BM, length), MASKED=True)

With both functions in the kernel's text, what the second call computes for its range and its masks is between the loops.
It depends on none of their results, and comes before both:

    if low < high:
        for here in range(0, start * BM, BN):
            ...
        for here in range(low, high, BN):
            ...

The branch may be where all blocks that store anything take it. The second loop gets the first one's names: partitions find that
its step computes the same, and let it come first, where its arithmetic overlaps the product of a whole step. That pays where
products take longer than exponentials: with sums of 64 columns attention took 1.05 of the time on an H200, with those
of 128 columns 0.95.
"""

from __future__ import annotations

import ast
from difflib import SequenceMatcher
from typing import Any, Optional

from gluon_core import language, portable
from gluon_write.loops.single_step import has_at_most_one_step
from gluon_write.loops.stored_rows import StoredRows
from gluon_write.text.form import Form, edited
from gluon_write.text.syntax import argument, is_new, mentions, names_in, nodes_in, reads, stores
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["with_adjacent_loops", "with_shared_names"]

_PURE = (
    language.arange, language.cdiv, language.full, language.maximum, language.minimum, language.num_programs,
    language.program_id, language.static_assert, language.to_tensor, language.where, language.zeros,
)  # fmt: skip
_BUILTIN = ("min", "max")
_WIDE = 64  # columns of a sum, whose products take as long as the exponentials


def with_adjacent_loops(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose loops of an online softmax follow each other where nothing between them needs the first, or the kernel."""
    form = _SoftmaxLoops(fn, drawn)
    for first, between, second in _pairs(form.tree.body):
        if not between or not all(_moves(form, statement, first) for statement in between):
            continue
        if form.has_wide_sums(first) and form.are_needed(first, second):
            form.hold(_moved(form, first, between, second))
            break
    return form.copied(fn, drawn.jits)


class _SoftmaxLoops(TracedForm):
    """Read a kernel with the steps of an online softmax in its own text."""

    def __init__(self, fn: Any, drawn: Sketch):
        super().__init__(fn, 0, drawn)
        self.stored = StoredRows(fn, drawn)

    def has_wide_sums(self, loop: ast.For) -> bool:
        """Return True if products of a loop take longer than its exponentials: it carries wide sums."""
        for node in nodes_in(loop):
            if isinstance(node, ast.Call) and self.called(node) is portable.mma:
                acc, values = argument(node, 2, "acc"), self.values_of(node)
                own = mentions(acc) & stores(loop) if acc is not None else ()
                carried = any(not is_new(name, loop) for name in own)
                if carried and any(value.type.dims[-1] > _WIDE for value in values):
                    return True
        return False

    def are_needed(self, first: ast.For, second: ast.For) -> bool:
        """Return True if the second loop has one step in each block that stores anything and has steps of the first."""
        if not has_at_most_one_step(self, second):
            return False
        results = (stores(first) - _own(self, first)) | (stores(second) - _own(self, second))
        return self.stored.reach(first, second, results)


def with_shared_names(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose loops have the names of the loop right before them for the same values of a step, or the kernel."""
    form = Form(fn)
    blocks = (getattr(node, "body", None) for node in nodes_in(form.tree))
    pairs = [pair for block in blocks if isinstance(block, list) for pair in _pairs(block)]
    for first, between, second in pairs:
        names = {} if between else _names(form, first, second)
        if names:
            edits: list[tuple[ast.expr, str]] = [
                (node, names[node.id]) for node in names_in(second) if node.id in names
            ]
            form.hold(edited(form.source, edits))
            break
    return form.copied(fn, drawn.jits)


def _pairs(block: list[ast.stmt]) -> list[tuple[ast.For, list[ast.stmt], ast.For]]:
    """Return the loops of a block, each with the next one and the statements between them."""
    loops = [s for s in block if isinstance(s, ast.For) and not s.orelse]
    return [
        (one, block[block.index(one) + 1 : block.index(other)], other)
        for one, other in zip(loops, loops[1:])
    ]


def _moves(form: Form, statement: ast.stmt, loop: ast.For) -> bool:
    """Return True for a statement that computes the same in front of a loop, of names that have one value."""
    if not isinstance(statement, (ast.Assign, ast.Expr)) or reads(statement) & stores(loop):
        return False
    for node in nodes_in(statement):
        if isinstance(node, ast.Call) and ast.unparse(node.func) not in _BUILTIN:
            called = form.called(node)
            if not any(called is one for one in _PURE):
                return False
    parameters = {one.arg for one in form.tree.args.args}
    stored = [n.id for n in names_in(form.tree) if isinstance(n.ctx, ast.Store)]
    return all(
        stored.count(name) == 1 and name not in parameters and name not in mentions(loop)
        for name in stores(statement)
    )


def _moved(form: Form, first: ast.For, between: list[ast.stmt], second: ast.For) -> str:
    """Return the text with both loops in a branch, the comments right above them too, and the statements in front of it."""
    lines, indent = form.source.splitlines(), " " * first.col_offset
    place = first.lineno - 1
    while lines[place - 1].strip().startswith("#"):
        place -= 1
    assert isinstance(second.iter, ast.Call)
    begin, end, _ = form.bounds(second)
    moved: list[str] = []
    for statement in between:
        rows = slice(statement.lineno - 1, statement.end_lineno)
        moved += lines[rows]
        lines[rows] = [""] * len(lines[rows])
    stop = second.end_lineno or second.lineno
    moved += [f"{indent}# Else nothing is stored.", f"{indent}if {begin} < {end}:"]
    inner = [f"    {line}" if line.strip() else "" for line in lines[place:stop]]
    return "\n".join([*lines[:place], *moved, *inner, *lines[stop:]]) + "\n"


def _names(form: Form, first: ast.For, second: ast.For) -> dict[str, str]:
    """Return the names that a loop alone has -> those that the loop before it alone has for the same statements."""
    mine, theirs = _own(form, second), _own(form, first)
    names = _paired(first.target, second.target, {}, mine, theirs)
    one_shapes, other_shapes = ([_shape(s) for s in loop.body] for loop in (first, second))
    blocks = SequenceMatcher(None, one_shapes, other_shapes, False).get_matching_blocks()
    for one, other, size in blocks:
        for a, b in zip(first.body[one : one + size], second.body[other : other + size]):
            if names is not None:
                names = _paired(a, b, names, mine, theirs)
    if names is None or len({*names.values()}) < len(names):
        return {}
    return {name: new for name, new in names.items() if name != new}


def _own(form: Form, loop: ast.For) -> set[str]:
    """Return the names that are in a loop alone."""
    inside = {id(name) for name in names_in(loop)}
    outside = {name.id for name in names_in(form.tree) if id(name) not in inside}
    return stores(loop) - outside - {one.arg for one in form.tree.args.args}


def _paired(
    one: ast.AST, other: ast.AST, names: dict[str, str], mine: set[str], theirs: set[str]
) -> Optional[dict[str, str]]:
    """Return the names of a tree, and those of another one of the same shape; None where they are at odds."""
    for a, b in zip(nodes_in(one), nodes_in(other)):
        if isinstance(a, ast.Name) and isinstance(b, ast.Name):
            if (b.id in mine) != (a.id in theirs):
                return None
            if b.id in mine and names.setdefault(b.id, a.id) != a.id:
                return None
    return names


def _shape(statement: ast.stmt) -> str:
    """Return a statement without its names."""
    names = {id(name) for name in names_in(statement)}
    return " ".join("name" if id(node) in names else _word(node) for node in nodes_in(statement))


def _word(node: ast.AST) -> str:
    """Return the kind of a node, and what it holds besides other nodes."""
    held = (getattr(node, field, None) for field in node._fields)
    return f"{type(node).__name__}:{[one for one in held if isinstance(one, (str, int, float))]}"
