"""Write a kernel with the branches alone that its constants choose.

    if CAUSAL:
        acc = attend(acc, q, k_tiles, 0, row)
    else:
        acc = attend(acc, q, k_tiles, 0, length)

becomes

    gl.static_assert(not CAUSAL)
    acc = attend(acc, q, k_tiles, 0, length)

In a function, constants are those that all of its calls pass. Questions about the types of arguments have one answer
where all calls gave it.
"""

from __future__ import annotations

import ast
from typing import Any, Callable, Mapping, Optional

from gluon_core import portable
from gluon_core._triton import unwrap
from gluon_write.text.form import Form, changed_copy, edited, factor, rewritten
from gluon_write.text.syntax import (
    arguments,
    calls_in,
    mentions,
    nodes_in,
    operands_of,
    reads,
    stores,
)
from gluon_write.tracing.sketch import Place, Sketch, place_of

__all__ = ["products_taken", "taken_alone", "taken_in_loops"]

_UNKNOWN = object()


def taken_alone(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel with one branch of each condition of constants in its functions, or the kernel.

    Args:
        drawn: the traced kernel, whose constants are known.
    """
    known: dict[int, dict[str, Any]] = {
        0: {name: unwrap(value) for name, value in drawn.constants.items()}
    }
    texts: dict[int, str] = {}
    done: set[int] = set()
    while len(done) < len(known):
        number = next(n for n in known if n not in done)
        done.add(number)
        reader = _Branches(drawn.jits[number], number, drawn.decided)
        text = reader.text(known[number])
        if text is not None:
            texts[number] = text
        for called, constants in reader.passed(drawn.jits, known[number]):
            if called in done:  # a recursive call, or a second caller of a function that is done
                return fn
            old = known.setdefault(called, constants)
            known[called] = {n: v for n, v in old.items() if constants.get(n, _UNKNOWN) == v}
    return changed_copy(fn, drawn.jits, texts, {}) if texts else fn


def taken_in_loops(fn: Any, drawn: Sketch, traced: Callable[[Any], Sketch]) -> tuple[Any, Sketch]:
    """Return a kernel whose loops load, describe and multiply operands under no condition of constants, and its trace.

        if EVEN_K:
            a = gl.load(a_ptrs)
        else:
            a = gl.load(a_ptrs, mask=columns < K - k, other=0.0)

    Args:
        drawn: the traced kernel, whose constants are known. traced: traces another kernel.
    """
    while True:
        texts: dict[int, str] = {}
        for number, jit in enumerate(drawn.jits):
            constants = {n: unwrap(v) for n, v in drawn.constants.items()} if number == 0 else {}
            text = _Branches(jit, number, drawn.asked).in_loops(constants)
            if text is not None:
                texts[number] = text
        if not texts:
            return fn, drawn
        fn = changed_copy(fn, drawn.jits, texts, {})
        drawn = traced(fn)


def products_taken(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel with the products alone that its constants choose within expressions, or the kernel.

        acc = product_in_parts(a, b, acc, P) if in_parts(P) else gl.portable.mma(a, b, acc)

    Args:
        drawn: the traced kernel, whose constants are known.
    """
    return rewritten(
        fn, drawn.jits, lambda jit, number: _Branches(jit, number, drawn.asked).in_expressions()
    )


class _Branches(Form):
    """Read one function.

    Args:
        decided: results of questions about types, by their places.
    """

    def __init__(self, fn: Any, number: int, decided: Mapping[Place, set[bool]]):
        super().__init__(fn)
        self.number, self.decided = number, decided

    def text(self, constants: Mapping[str, Any]) -> Optional[str]:
        """Return the function with one branch of each condition in its body; None where nothing changes.

        Its own text is that one from then on.
        """
        conditions = [s for s in self.tree.body if isinstance(s, ast.If) and self.space]
        taken = ((statement, self._taken(statement, constants)) for statement in conditions)
        text = self.with_lines(
            (statement, lines) for statement, lines in taken if lines is not None
        )
        if text is not None:
            self.hold(text)
        return text

    def in_loops(self, constants: Mapping[str, Any]) -> Optional[str]:
        """Return the function with one branch of conditions that load operands in a loop; None where nothing changes."""
        edits: list[tuple[ast.If, list[str]]] = []
        for loop in nodes_in(self.tree):
            calls = calls_in(loop)
            products = [call for call in calls if self.called(call) is portable.mma]
            if not isinstance(loop, ast.For) or not products or not self.space:
                continue
            operands = [one for call in products for one in operands_of(call)]
            wanted = {name for one in operands for name in reads(one)}
            if len(products) > 1:
                wanted |= stores(loop)  # masks and biases between products, which have prices
            loading = [
                one for one in loop.body
                if isinstance(one, ast.If) and (stores(one) & wanted or self._multiplies(one))
            ]  # fmt: skip
            for statement in [*self._describing(), *loading]:
                new = self._taken(statement, constants)
                if new is not None and all(statement not in nodes_in(other) for other, _ in edits):
                    nothing = statement in loading and [line.strip() for line in new] == ["pass"]
                    edits.append((statement, [] if nothing else new))
        return self.with_lines(edits)

    def in_expressions(self) -> Optional[str]:
        """Return the function with one side of each choice between products; None where nothing changes."""
        edits: list[tuple[ast.expr, str]] = []
        asserted: dict[int, str] = {}
        for statement in nodes_in(self.tree):
            if not isinstance(statement, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)):
                continue
            choice = self._choice(statement)
            if choice is None or not self.space:
                continue
            test, holds = factor(ast.unparse(choice.test)), self._holds(choice.test, {})
            edits.append((choice, self.text_of(choice.body if holds else choice.orelse)))
            condition = test if holds else f"not {test}"
            line = f"{' ' * statement.col_offset}{self.space}.static_assert({condition})"
            asserted[statement.lineno] = line
        if not edits:
            return None
        lines = edited(self.source, edits).splitlines()
        for number in sorted(asserted, reverse=True):
            lines.insert(number - 1, asserted[number])
        return "\n".join(lines) + "\n"

    def _choice(
        self, statement: ast.Assign | ast.AugAssign | ast.Expr | ast.Return
    ) -> Optional[ast.IfExp]:
        """Return the choice of a statement on a line of its own between a product and something else, if its constants make it."""
        line = self.source.splitlines()[statement.lineno - 1].encode()
        choices = [one for one in nodes_in(statement) if isinstance(one, ast.IfExp)]
        alone = not line[: statement.col_offset].strip() and len(choices) == 1
        if not alone or not self._multiplies(choices[0]):
            return None
        return None if self._holds(choices[0].test, {}) is _UNKNOWN else choices[0]

    def _multiplies(self, node: ast.AST) -> bool:
        return any(self.called(one) is portable.mma for one in nodes_in(node))

    def _describing(self) -> list[ast.If]:
        """Return the conditions in the function's own body that choose between descriptors."""
        return [
            one for one in self.tree.body
            if isinstance(one, ast.If) and any(self.called(n) is portable.descriptor for n in nodes_in(one))
        ]  # fmt: skip

    def passed(
        self, jits: list[Any], constants: Mapping[str, Any]
    ) -> list[tuple[int, dict[str, Any]]]:
        """Return the functions that the text calls, by number, with the constants that each call passes."""
        listed = []
        for node in nodes_in(self.tree):
            number = next((i for i, jit in enumerate(jits) if self.called(node) is jit), None)
            if number is None or not isinstance(node, ast.Call):
                continue
            names = [param.name for param in jits[number].params]
            values = {n: _value(v, constants) for n, v in arguments(node, names).items()}
            listed.append((number, {n: v for n, v in values.items() if v is not _UNKNOWN}))
        return listed

    def _taken(self, statement: ast.If, constants: Mapping[str, Any]) -> Optional[list[str]]:
        """Return the lines of the branch that is taken; None where that is not known."""
        conditions, block, known = [], [statement], False
        while len(block) == 1 and isinstance(block[0], ast.If):
            inner = block[0]
            holds = self._holds(inner.test, constants)
            if holds is _UNKNOWN:
                break
            known = True
            shown = ast.unparse(inner.test)
            if _value(inner.test, constants) is _UNKNOWN:
                pass  # a name may have another type later
            elif isinstance(holds, bool):
                conditions.append(factor(shown) if holds else f"not {factor(shown)}")
            else:
                conditions.append(f"{factor(shown)} {'!=' if holds else '=='} 0")
            block = inner.body if holds else inner.orelse  # type: ignore[assignment]
        if not known:
            return None
        lines, outer = self.source.splitlines(), " " * statement.col_offset
        inner_lines: list[str] = []
        if block:
            first, depth = block[0], block[0].col_offset
            part = lines[first.lineno - 1 : block[-1].end_lineno]
            own = part[0].encode()[depth:].decode()  # behind a condition on the same line
            if own.startswith("elif "):
                own = own.replace("elif ", "if ", 1)
            part[0] = " " * depth + own
            inner_lines = [
                outer + line[min(depth, len(line) - len(line.lstrip())) :] for line in part
            ]
        if conditions:
            inner_lines = [
                f"{outer}{self.space}.static_assert({' and '.join(conditions)})",
                *inner_lines,
            ]
        return inner_lines or [f"{outer}pass"]

    def _holds(self, test: ast.expr, constants: Mapping[str, Any]) -> Any:
        """Return the value of a condition, or `_UNKNOWN`."""
        results = self.decided.get(place_of(test, self.number) or ("", 0, 0, 0, 0, 0), ())
        return next(iter(results)) if len(results) == 1 else _value(test, constants)


def _value(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    """Return the value of an expression of constants."""
    names = mentions(node)
    if not names <= set(constants) or any(isinstance(n, ast.Call) for n in nodes_in(node)):
        return _UNKNOWN
    try:
        code = compile(ast.Expression(node), "<constants>", "eval")
        return eval(code, {"__builtins__": {}}, dict(constants))
    except Exception:  # such as an attribute that the value lacks
        return _UNKNOWN
