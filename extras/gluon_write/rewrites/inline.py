"""Put the loops of products that a kernel's functions hold into the kernel, for forms that read one function.

    acc, total = step(acc, total, q, low, MASKED=False)

becomes the text of the function, with names of its own and constants in place of its parameters.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Callable, Optional

from gluon_core import portable
from gluon_write.text.constant_branches import with_taken_branches
from gluon_write.text.form import Form, changed_copy, factor, free_name, one_line
from gluon_write.text.syntax import is_docstring, mentions, nodes_in, stores
from gluon_write.tracing.branches import taken_alone
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.tracer import Tracer

__all__ = ["inlined", "makers_inlined", "makes", "steps_inlined"]


def inlined(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel with the functions that multiply in its text, or the kernel where one cannot be."""
    return _with_bodies(
        fn, drawn, lambda statement, kernel, one: _multiplies(one), all_of_them=True
    )


def in_own_text(fn: Any, drawn: Sketch, traced: Tracer) -> tuple[Any, Sketch, bool]:
    """Return a kernel with the branches alone that its constants choose and with the functions that multiply in its text,
    its trace, and True if there are such functions.

    Raises:
        GluonError: a part of the kernel has no trace.
    """
    alone, before = traced.after(fn, drawn, taken_alone)
    whole, own = traced.after(alone, before, inlined)
    return whole, own, whole is not alone


def steps_inlined(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel with the functions in its text that multiply in each step of a loop, or the kernel.

    Such a loop loads ahead as one does that multiplies itself."""

    def wanted(statement: ast.Assign, kernel: Form, one: Form) -> bool:
        loops = [n for n in nodes_in(kernel.tree) if isinstance(n, ast.For) and statement in n.body]
        own = any(isinstance(n, (ast.For, ast.While)) for n in nodes_in(one.tree))
        return bool(loops) and not own and _multiplies(one)

    return _with_bodies(fn, drawn, wanted, all_of_them=False)


def makers_inlined(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel with the functions in its text that make descriptors, or hand on those that they get.

    Args:
        drawn: the traced kernel, with the branches alone that its types choose.
    """
    return _with_bodies(
        fn, drawn, lambda statement, kernel, one: makes(one) or _hands_on(one), all_of_them=False
    )


def makes(function: Form) -> bool:
    """Return True for a function that makes a descriptor."""
    return any(function.called(n) is portable.descriptor for n in nodes_in(function.tree))


def _hands_on(function: Form) -> bool:
    """Return True for a function that returns one of its arguments, and does nothing else."""
    last: Any = function.tree.body[-1]
    names = {one.arg for one in function.tree.args.args}
    alone = all(
        isinstance(getattr(s, "value", None), ast.Constant) for s in function.tree.body[:-1]
    )
    return alone and isinstance(last, ast.Return) and getattr(last.value, "id", None) in names


def _with_bodies(
    fn: Any,
    drawn: Sketch,
    wanted: Callable[[ast.Assign, Form, Form], bool],
    all_of_them: bool,
) -> Any:
    """Return a kernel with functions in its text.

    Args:
        wanted: tells of a statement, the kernel and a function that it calls whether the text is wanted.
        all_of_them: return the kernel where one of them cannot be.
    """
    kernel = Form(fn)
    taken = kernel.names_in_use()
    lines = kernel.source.splitlines()
    more: dict[str, Any] = {}
    calls = [
        (statement, one)
        for statement in nodes_in(kernel.tree)
        if isinstance(statement, ast.Assign)
        for one in drawn.jits
        if one is not fn
        and kernel.called(statement.value) is one
        and wanted(statement, kernel, Form(one))
    ]
    changed = False
    for statement, one in sorted(calls, key=lambda pair: pair[0].lineno, reverse=True):
        text = _Body(kernel, Form(one), statement, taken, more).text()
        if text is None:
            if all_of_them:
                return fn
            continue
        changed = True
        indent = " " * statement.col_offset
        new = [f"{indent}{line}" if line else "" for line in text]
        lines[statement.lineno - 1 : statement.end_lineno] = new
    if not changed:
        return fn
    return changed_copy(fn, drawn.jits, {0: "\n".join(lines) + "\n"}, {}, more)


def _multiplies(function: Form) -> bool:
    return any(function.called(node) is portable.mma for node in nodes_in(function.tree))


def _is_plain(value: ast.expr) -> bool:
    """Return True for names and constants, and for lists of them: they may be written several times."""
    if isinstance(value, (ast.List, ast.Tuple)):
        return all(map(_is_plain, value.elts))
    return isinstance(value, (ast.Name, ast.Constant))


class _Body:
    """Write a function's body for one call.

    Args:
        taken: names in use. more: takes the names that the body reads from its own file.
    """

    def __init__(
        self, kernel: Form, function: Form, statement: ast.Assign, taken: set[str], more: dict[str, Any]
    ):  # fmt: skip
        self.kernel, self.function, self.statement = kernel, function, statement
        self.taken, self.more = taken, more
        target = statement.targets[0]
        nodes = target.elts if isinstance(target, ast.Tuple) else [target]
        self.targets = [ast.unparse(node) for node in nodes]

    def text(self) -> Optional[list[str]]:
        """Return the lines; None where the function or the call has another form."""
        tree = self.function.tree
        *body, last = tree.body
        returns = [n for n in nodes_in(tree) if isinstance(n, ast.Return)]
        if returns != [last] or not isinstance(last, ast.Return) or last.value is None:
            return None
        bound = self._bound()
        if bound is None or not self._reaches():
            return None
        assigned = stores(ast.Module(body, []))
        names, lines = {}, []
        for parameter, value in bound.items():
            default = any(value is one for one in tree.args.defaults)
            text = one_line((self.function if default else self.kernel).text_of(value))
            if parameter not in assigned:
                plain = _is_plain(value)
                if not plain and parameter not in self._constants():
                    names[parameter] = free_name(parameter, self.taken)
                    lines.append(f"{names[parameter]} = {text}")
                else:
                    names[parameter] = text if plain else factor(text)
            elif isinstance(value, ast.Name) and value.id in self.targets:
                names[parameter] = value.id
            else:
                names[parameter] = free_name(parameter, self.taken)
                lines.append(f"{names[parameter]} = {text}")
        for name in sorted(assigned - set(names)):
            names[name] = free_name(name, self.taken)
        if body and is_docstring(body[0]):
            del body[0]  # the docstring
        if body:
            first = body[0]
            rows = self._renamed(names, first.lineno, last.lineno - 1, first.col_offset)
            lines += with_taken_branches("\n".join(rows) + "\n").splitlines()
        value = last.value
        results = value.elts if isinstance(value, ast.Tuple) else [value]
        texts = [self._word(result, names) for result in results]
        if len(texts) != len(self.targets):
            return None
        pairs = [pair for pair in zip(self.targets, texts) if pair[0] != pair[1]]
        if pairs:
            targets, texts = map(list, zip(*pairs))
            lines.append(f"{', '.join(targets)} = {', '.join(texts)}")
        return lines

    def _bound(self) -> Optional[dict[str, ast.expr]]:
        """Return the arguments by parameter, defaults included."""
        call, arguments = self.statement.value, self.function.tree.args
        assert isinstance(call, ast.Call)
        names = [one.arg for one in arguments.args]
        if any(isinstance(a, ast.Starred) for a in call.args) or arguments.kwonlyargs:
            return None
        bound = dict(zip(names[len(names) - len(arguments.defaults) :], arguments.defaults))
        bound |= dict(zip(names, call.args))
        for word in call.keywords:
            if word.arg is None:
                return None
            bound[word.arg] = word.value
        passed = [v.id for v in bound.values() if isinstance(v, ast.Name)]
        once = all(passed.count(name) == 1 for name in self.targets if name in passed)
        return bound if set(bound) == set(names) and once else None

    def _constants(self) -> set[str]:
        return {
            one.arg
            for one in self.function.tree.args.args
            if one.annotation is not None and "constexpr" in ast.unparse(one.annotation)
        }

    def _reaches(self) -> bool:
        """Return True if all names of the function's file mean the same in the kernel's; take those that it lacks."""
        read = mentions(self.function.tree)
        for name in read & set(self.function.scope):
            value = self.function.scope[name]
            if self.kernel.scope.get(name, self.more.get(name, value)) is not value:
                return False
            if name not in self.kernel.scope:
                self.more[name] = value
        return True

    def _word(self, node: ast.expr, names: dict[str, str]) -> str:
        text = one_line(self.function.text_of(node))
        return re.sub(r"(?<![.\w])[A-Za-z_]\w*", lambda m: names.get(m[0], m[0]), text)

    def _renamed(self, names: dict[str, str], first: int, last: int, indent: int) -> list[str]:
        """Return lines of the function with its names replaced, without their indent."""
        lines = [line.encode() for line in self.function.source.splitlines()]
        nodes = [
            n for n in nodes_in(self.function.tree) if isinstance(n, ast.Name) and n.id in names
        ]
        for node in sorted(nodes, key=lambda n: (n.lineno, n.col_offset), reverse=True):
            held = lines[node.lineno - 1]
            end = node.end_col_offset or 0
            lines[node.lineno - 1] = held[: node.col_offset] + names[node.id].encode() + held[end:]
        texts = [line.decode() for line in lines[first - 1 : last]]
        return [text[min(indent, len(text) - len(text.lstrip())) :] for text in texts]
