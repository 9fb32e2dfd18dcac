"""Compute an index vector again where it is used in another layout: cheaper than a conversion.

    columns = start + gl.arange(0, N)
    x = gl.load(x_ptr + columns[None, :])
    seen = gl.where(columns[None, :] < length, x, 0)

The two uses of `columns` may want two layouts. An expression in place of the name has its own. A vector that
a loop moves on gets a twin that the loop moves on, too:

    for k in range(0, K, BK):
        x = gl.load(a_ptr + columns[None, :])
        y = gl.load(b_ptr + columns_2[:, None])
        columns_2 += BK
        columns += BK

A vector of at most one element for each thread is loaded again, too, where it was loaded before:

    x_again = gl.load(x_ptr + gl.arange(0, N))
    x = gl.load(x_ptr + gl.arange(0, N))
"""

from __future__ import annotations

import ast
from typing import Any, Iterable, Mapping, Optional, Sequence

from gluon_core import language
from gluon_write.text.form import edited, free_name, one_line
from gluon_write.text.syntax import nodes_in
from gluon_write.tracing.sketch import Place, Sketch, place_of
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["Definitions", "recomputing_texts"]

_MOST_DEEP = 8
_PLAIN_LOAD = 3  # arguments: pointer, mask and other


def recomputing_texts(drawn: Sketch, conversions: Iterable[Place], threads: int) -> dict[int, str]:
    """Return the texts of the functions, by number, that compute index vectors again instead of converting them.

    Args:
        conversions: places of the expressions that would be converted. threads: of a program.
    """
    texts: dict[int, str] = {}
    forms = [_Recomputer(jit, number, drawn, threads) for number, jit in enumerate(drawn.jits)]
    wanted = set(conversions)
    for form in forms:
        form.others = forms
        edits: dict[ast.expr, str] = {}
        for node in nodes_in(form.tree):
            place = place_of(node, form.number)
            if place in wanted:
                edits |= form.vectors(node)
        edits |= form.carried
        if edits:
            texts[form.number] = edited(form.source, list(edits.items()))
    return texts


class Definitions(TracedForm):
    """Find the definitions of a function's variables, and the scalars that keep their values.

    Args:
        number: of the function in the traced kernel `drawn`.

    Attributes:
        others: all functions of the kernel, whose calls say what parameters are; none unless they are given.
    """

    def __init__(self, fn: Any, number: int, drawn: Sketch):
        super().__init__(fn, number, drawn)
        self.others: Sequence[Definitions] = ()
        self.stores: dict[str, list[ast.AST]] = {}
        self._collect(self.tree)

    def _collect(self, node: ast.AST) -> None:
        """Collect the assignments to each name, but for branches that no trace took."""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.stores.setdefault(node.id, []).append(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(node, ast.If) and child in (*node.body, *node.orelse):
                if self._skipped(node.body if child in node.body else node.orelse):
                    continue
            self._collect(child)

    def _skipped(self, block: list[ast.stmt]) -> bool:
        """Return True if a block has operators on tensors, and no trace evaluated any of it."""
        parts = [node for statement in block for node in nodes_in(statement)]
        places = (self.place_of(node) for node in parts)
        if any(place in self.drawn.returned for place in places if place is not None):
            return False
        tensors = {
            node.id
            for node in nodes_in(self.tree)
            if isinstance(node, ast.Name) and self._rank(node) is not None
        }
        return any(isinstance(node, ast.Name) and node.id in tensors for node in parts)

    def _rank(self, node: ast.expr) -> Optional[int]:
        """Return the rank of the tensors that an expression gave; None of scalars."""
        return max(self.ranks_of(node), default=0) or None

    def _definition(self, name: ast.Name) -> Optional[ast.Assign]:
        """Return the statement that gave a name its value: the only one, or one before in its block."""
        stores = self.stores.get(name.id, [])
        if not stores or name.id in self.parameters:
            return None
        if len(stores) == 1:
            nearest: Any = self.parents[id(stores[0])]
        else:
            nearest = next((s for s in reversed(self._before(name)) if self._in(s, stores)), None)
        plain = isinstance(nearest, ast.Assign) and len(nearest.targets) == 1
        return nearest if plain and isinstance(nearest.targets[0], ast.Name) else None

    def _in(self, statement: ast.stmt, nodes: list[ast.AST]) -> bool:
        return any(self._encloses(statement, node) for node in nodes)

    def _before(self, node: ast.AST) -> list[ast.stmt]:
        """Return the statements of the innermost block around a node that run before its own."""
        while not isinstance(node, ast.stmt):
            node = self.parents[id(node)]
        parent = self.parents[id(node)]
        for block in (getattr(parent, "body", []), getattr(parent, "orelse", [])):
            if node in block:
                before: list[ast.stmt] = block[: block.index(node)]
                return before
        return []

    def _scalar(self, node: ast.expr, use: ast.AST, since: Optional[ast.stmt]) -> Optional[str]:
        """Return the text of a scalar whose names still have the same values at `use`."""
        places = [
            c
            for c in nodes_in(node)
            if self.called(c) in (language.program_id, language.num_programs)
        ]
        known = {id(part) for place in places for part in nodes_in(place)}
        for part in nodes_in(node):
            if id(part) in known:
                continue
            if isinstance(part, ast.Name):
                if since is not None and not self._kept(part.id, use, since):
                    return None
            elif not isinstance(part, (ast.expr_context, ast.Constant, ast.BinOp, ast.operator)):
                return None
        return self.text_of(node) if isinstance(node, (ast.Name, ast.Constant)) else (
            f"({' '.join(self.text_of(node).split())})"
        )  # fmt: skip

    def _kept(self, name: str, use: ast.AST, since: ast.stmt) -> bool:
        """Return True if a name has the same value at `use` as in the statement `since`."""
        before = self._before(use)
        if since in before:
            stored = self.stores.get(name, [])
            return not any(self._in(one, stored) for one in before[before.index(since) :])
        stores = self.stores.get(name, [])
        if len(stores) > 1 or name in self.parameters and stores:
            return False
        return not stores or self._encloses(self._loop(stores[0]), use)

    def _loop(self, node: ast.AST) -> ast.AST:
        """Return the innermost loop around a node, or the function; a loop holds its own target."""
        while not isinstance(node, (ast.For, ast.While, ast.FunctionDef)):
            node = self.parents[id(node)]
        return node

    def _encloses(self, outer: ast.AST, node: ast.AST) -> bool:
        while node is not outer and id(node) in self.parents:
            node = self.parents[id(node)]
        return node is outer

    def _size_of_range(self, name: ast.Name) -> Optional[int]:
        """Return n if a parameter is `arange(0, n)` in all calls, None if not."""
        if name.id not in self.parameters or self.stores.get(name.id):
            return None
        shapes = self.shapes_of(name)
        if any(len(shape) != 1 for shape in shapes):
            return None
        sizes = {size for (size,) in shapes}
        index = self.parameters.index(name.id)
        calls = 0
        for caller in self.others:
            for node in nodes_in(caller.tree):
                place = place_of(node, caller.number) if isinstance(node, ast.Call) else None
                called = self.drawn.called.get(place) if place else None
                if called is None or called is not self.drawn.jits[self.number]:
                    continue
                calls += 1
                assert isinstance(node, ast.Call)
                words: Mapping[Optional[str], ast.expr] = {w.arg: w.value for w in node.keywords}
                passed = node.args[index] if index < len(node.args) else words.get(name.id)
                if isinstance(passed, ast.Name):
                    definition = caller._definition(passed)
                    passed = definition.value if definition is not None else None
                if passed is None or caller.called(passed) is not language.arange:
                    return None
                assert isinstance(passed, ast.Call)
                first = passed.args[0]
                if not (isinstance(first, ast.Constant) and first.value == 0):
                    return None
        return int(sizes.pop()) if calls and len(sizes) == 1 else None


class _Recomputer(Definitions):
    """Write the vectors of one function again.

    Attributes:
        carried: edits around loops that move vectors on.
    """

    def __init__(self, fn: Any, number: int, drawn: Sketch, threads: int):
        super().__init__(fn, number, drawn)
        self.threads = threads
        self.carried: dict[ast.expr, str] = {}
        self.loaded: list[Any] = []  # vectors whose addresses are written again
        self.twins: dict[tuple[str, int], str] = {}
        self.taken = self.names_in_use()

    def vectors(self, node: ast.AST) -> dict[ast.expr, str]:
        """Return the names of index vectors in an expression, and the texts that compute them."""
        if isinstance(node, ast.Name):
            text = self.again(node, node, None, _MOST_DEEP)
            if text is None:
                return self._addresses(node)
            return {} if text == node.id else {node: text}
        texts: dict[ast.expr, str] = {}
        for child in ast.iter_child_nodes(node):
            texts |= self.vectors(child)
        return texts

    def _addresses(self, name: ast.Name) -> dict[ast.expr, str]:
        """Return `vectors` of the address and the mask of a loaded vector: it then has a layout of its own."""
        definition = self._definition(name)
        call = definition.value if definition is not None else None
        if self._rank(name) != 1 or call in self.loaded or self.called(call) is not language.load:
            return {}
        assert isinstance(call, ast.Call) and definition is not None
        self.loaded.append(call)
        return self.vectors(call) or self._loaded_again(name, call, definition)

    def _loaded_again(
        self, name: ast.Name, call: ast.Call, definition: ast.Assign
    ) -> dict[ast.expr, str]:
        """Return the name of a second vector that is loaded with the first, in place of a name; nothing where that cannot be.

        Vectors of more elements than threads would take more of the caches than a conversion takes of shared memory.
        """
        values = self.values_of(call)
        small = all(value.type.dims[0] <= self.threads for value in values)
        words = {word.arg for word in call.keywords}
        if not small or not words <= {"mask", "other"} or len(call.args) > _PLAIN_LOAD:
            return {}
        if not self._begins_line(definition):
            return {}
        key = name.id, id(call)
        if key not in self.twins:
            own = [self.again(arg, call, None, _MOST_DEEP) for arg in call.args]
            own += [self.again(word.value, call, None, _MOST_DEEP) for word in call.keywords]
            if None in own:
                return {}
            count = len(call.args)
            listed = [*own[:count], *(f"{w.arg}={t}" for w, t in zip(call.keywords, own[count:]))]
            self.twins[key] = free_name(f"{name.id}_again", self.taken)
            text = f"{self.text_of(call.func)}({', '.join(map(str, listed))})"
            self._insert(definition, f"{self.twins[key]} = {text}")
        return {name: self.twins[key]}

    def _begins_line(self, statement: ast.stmt) -> bool:
        """Return True for a statement of one line, which begins it."""
        return statement.lineno == statement.end_lineno and self.begins_line(statement)

    def again(
        self, node: ast.expr, use: ast.AST, since: Optional[ast.stmt], deep: int
    ) -> Optional[str]:
        """Return the text that computes an index vector again; None where it cannot be done.

        Args:
            use: where the text will be. since: the statement that `node` is a part of, None at `use`.
        """
        if deep == 0 or not self.space:
            return None
        if self._rank(node) is None:
            text = self._scalar(node, use, since)
            return text if text is not None else self._named(node, use, since)
        if isinstance(node, ast.Name):
            definition = self._definition(node)
            if definition is not None:
                return self.again(definition.value, use, definition, deep - 1)
            loop = self._moved_by(node)
            if loop is not None:
                return self._twin(node.id, loop, deep - 1)
            size = self._size_of_range(node)
            return None if size is None else f"{self.space}.arange(0, {size})"
        if self.called(node) is language.arange:
            assert isinstance(node, ast.Call)
            words = [self._scalar(arg, use, since) for arg in node.args]
            plain = not node.keywords and None not in words
            return one_line(self.text_of(node)) if plain else None
        if isinstance(node, ast.Subscript):
            inner = self.again(node.value, use, since, deep - 1)
            return None if inner is None else f"{inner}[{self.text_of(node.slice)}]"
        x, y = ast.Name("x", ast.Load()), ast.Name("y", ast.Load())
        if isinstance(node, ast.BinOp):
            sides = node.left, node.right
            shown: ast.expr = ast.BinOp(x, node.op, y)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            sides = node.left, node.comparators[0]
            shown = ast.Compare(x, node.ops, [y])
        else:
            return None
        left, right = (self.again(side, use, since, deep - 1) for side in sides)
        operator = ast.unparse(shown)[2:-2]
        return None if left is None or right is None else f"({left} {operator} {right})"

    def _named(self, node: ast.expr, use: ast.AST, since: Optional[ast.stmt]) -> Optional[str]:
        """Return a name for a scalar that a load gives, which the statement `since` evaluates."""
        loads = any(self.called(part) is language.load for part in nodes_in(node))
        if since is None or not loads or not self._begins_line(since):
            return None
        if not self._encloses(self._loop(since), use):
            return None
        key = "", id(node)
        if key not in self.twins:
            assert isinstance(since, ast.Assign)
            self.twins[key] = free_name(f"{self.text_of(since.targets[0])}_first", self.taken)
            self._insert(since, f"{self.twins[key]} = {self.text_of(node)}")
            self.carried[node] = self.twins[key]
        return self.twins[key]

    def _moved_by(self, name: ast.Name) -> Optional[ast.For]:
        """Return the loop around a use of a vector whose steps add a scalar to it, once each."""
        loop = self._loop(name)
        stored = [one for one in self.stores.get(name.id, ()) if self._encloses(loop, one)]
        if not isinstance(loop, ast.For) or len(stored) != 1:
            return None
        move = self.parents[id(stored[0])]
        return loop if self._moves(move) and move in loop.body else None

    def _moves(self, statement: ast.AST) -> bool:
        """Return True for a statement on a line of its own that adds a scalar to a variable."""
        if not isinstance(statement, ast.AugAssign) or statement.lineno != statement.end_lineno:
            return False
        moves = isinstance(statement.op, (ast.Add, ast.Sub)) and self.begins_line(statement)
        return moves and self._rank(statement.value) is None

    def _twin(self, name: str, loop: ast.For, deep: int) -> Optional[str]:
        """Return the name of another vector with the values of one that a loop moves on.

        A vector that begins as a copy of another begins with an expression of its own instead: both names
        shared a layout. Then None is returned.
        """
        key = name, id(loop)
        if key in self.twins:
            return self.twins[key]
        stored = self.stores[name]
        block = self._before(loop)
        own = [s for s in block if isinstance(s, ast.Assign) and s.targets[0] in stored]
        if not own or own[-1].lineno != own[-1].end_lineno:
            return None
        first = own[-1]
        text = self.again(first.value, first.value, None, deep)
        if text is None:
            return None
        if isinstance(first.value, ast.Name):
            if text != first.value.id:
                self.carried[first.value] = text
            return None
        since = [*block[block.index(first) + 1 :], loop]
        moves = [
            self.parents[id(one)] for one in stored if any(self._encloses(s, one) for s in since)
        ]
        if not all(map(self._moves, moves)):
            return None
        twin = self.twins[key] = free_name(name, self.taken)
        self._insert(first, f"{twin} = {text}")
        for move in moves:
            assert isinstance(move, ast.AugAssign)
            sign = "+=" if isinstance(move.op, ast.Add) else "-="
            self._insert(move, f"{twin} {sign} {self.text_of(move.value)}")
        return twin

    def _insert(self, statement: ast.stmt, line: str) -> None:
        """Insert a line before a statement."""
        place = {"lineno": statement.lineno, "col_offset": statement.col_offset}
        here = ast.Name("", ast.Load(), end_col_offset=statement.col_offset, **place)
        self.carried[here] = f"{line}\n{' ' * statement.col_offset}"
