"""Loops of a kernel: their bounds and tests, and the names that they carry from round to round."""

from __future__ import annotations

import ast
from typing import Any

from gluon_core import _triton
from gluon_core._triton import code_generator, tl
from gluon_core.errors import ArgumentError, DtypeError, KernelSyntaxError, LimitError
from gluon_core.frontend.session import Session
from gluon_core.language.control import static_range

__all__ = ["LoopGenerator", "handles_of"]

_MOST_UNROLLED = 1 << 18  # rounds; each is code of its own, which compilers take minutes for


def handles_of(value: Any) -> list[Any]:
    """Return the run-time parts of a kernel's value; nothing for other values."""
    handles: list[Any] = []
    if isinstance(value, _triton.base_value) and not isinstance(value, tl.constexpr):
        value._flatten_ir(handles)
    return handles


class LoopGenerator(code_generator.CodeGenerator):  # type: ignore[misc]  # Triton has no types
    """The part of the kernel's generator that visits loops.

    Attributes:
        loop_bounds, loop_tests: ids of the nodes that are bounds and tests of loops.
        visited: id of a node -> the value of an argument that was visited already.
        looking: how many loops around are traced for the names that they carry.
        seen: the body of a loop within these, traced for that already.
        branches: ids of bodies that a kernel runs once, several times or not at all.
        left: ids of bodies that return, and of branches by compile-time conditions into these.
    """

    session: Session
    loop_bounds: set[int]
    loop_tests: set[int]
    visited: dict[int, Any]
    looking: int
    seen: Any
    branches: set[int]
    left: set[int]

    def visit_For(self, node: Any) -> Any:
        if isinstance(node.iter, ast.Call):
            self.loop_bounds.update(id(arg) for arg in node.iter.args)
            called = self.visit(node.iter.func)
            # The base class, which asks again, knows its own one.
            called = tl.static_range if called is static_range else called
            self.visited[id(node.iter.func)] = called
            self._check_rounds(node, called)
            if called is not tl.static_range:
                self.branches.add(id(node.body))
        self.semantic.passed += 1
        super().visit_For(node)
        self.semantic.passed += 1

    def _check_rounds(self, node: Any, called: Any) -> None:
        """Refuse a loop that never ends, while running or while it is unrolled."""
        if called not in (range, tl.range, tl.static_range) or len(node.iter.args) > 3:
            return
        names = ("start", "end", "step") if called is not range else ("", "", "")
        arguments = [*zip(names, node.iter.args), *((w.arg, w.value) for w in node.iter.keywords)]
        if called is not tl.static_range and len(node.iter.args) < 3 and not node.iter.keywords:
            return
        values = []
        for name, argument in arguments:
            value = self.visit(argument)
            self.visited[id(argument)] = value  # for the base class, which asks again
            values.append((name, _triton.unwrap(value)))
        words = [value for name, value in values[len(node.iter.args) :] if name == "step"]
        steps = [value for _, value in values[2 : len(node.iter.args)]] + words
        if steps and isinstance(steps[0], int) and steps[0] == 0:
            raise ArgumentError(
                "a loop with step 0 never ends",
                argument="step",
                got=ast.unparse(node.iter),
                remedy="Give it another step, or leave the loop out.",
            )
        if called is not tl.static_range:
            return
        counts = [value for _, value in values[: len(node.iter.args)]]
        if len(counts) == len(values) and counts and all(isinstance(c, int) for c in counts):
            rounds = len(range(*counts))
            self.session.unrolled += rounds
            if self.session.unrolled > _MOST_UNROLLED:
                raise LimitError(
                    "loops over gl.static_range are unrolled, and these have too many rounds",
                    expected=f"at most {_MOST_UNROLLED} rounds in one kernel",
                    got=f"{rounds} here: {ast.unparse(node.iter)}",
                    remedy="Loop over `range`.",
                )

    def visit_compound_statement(self, stmts: Any) -> Any:
        if stmts is self.seen:
            self.seen = None
            return None
        scopes = list(self.semantic.scopes)
        self.left.discard(id(stmts))
        for statement in stmts:
            self.visit(statement)
            returns = isinstance(statement, ast.If) and id(statement) in self.left
            if returns or isinstance(statement, ast.Return):
                self.left.add(id(stmts))  # nothing behind it runs
                break
        self.semantic.passed += 1
        if id(stmts) in self.branches and id(stmts) not in self.left:
            self.semantic.check_branch(scopes)

    def visit_While(self, node: Any) -> Any:
        self.loop_tests.add(id(node.test))
        self.branches.add(id(node.body))
        super().visit_While(node)
        self.semantic.passed += 1

    def _find_carries(self, node: Any, liveins: Any, ignore: Any = frozenset()) -> Any:
        """Return the names that a loop carries from round to round, their values and types on entry.

        The base class takes a name for unchanged when the first round gives it back its value on
        entry; with `before = slot` in the body that is so wherever the two were equal on entry.

        That trace is thrown away. A loop in it is traced for its own names alone, and
        stays empty: with its body traced again, each level of loops would double the time.
        """
        self.semantic.passed += 1
        self.looking += 1
        try:
            names, handles, types = super()._find_carries(node, liveins, ignore)
        finally:
            self.looking -= 1
        self.seen = node.body if self.looking else None
        self.semantic.passed += 1  # the code that was traced for its names is traced again
        parts = (n for part in node.body for n in ast.walk(part))
        stored = {n.id for n in parts if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for name, value in liveins.items():
            if name in names or name in ignore or name not in stored:
                continue
            own = handles_of(value)
            if any(handle in handles for handle in own):
                names.append(name)
                types.append(value.type)
                handles.extend(own)
        return names, handles, types

    def _check_loop(self, node: Any, value: Any) -> Any:
        """Return a loop's bound or test as the builder can take it: others would end the process."""
        test = id(node) in self.loop_tests
        if test and isinstance(value, tl.constexpr):
            raise KernelSyntaxError(
                "the test of a while loop is a compile-time constant, which no round can change",
                got=repr(value.value),
                remedy="Compare run-time values, or use a for loop.",
                span=self._span(node),
            )
        if not isinstance(value, tl.tensor):
            return value
        if value.type.is_block():
            message = (
                "the test of a loop must be one boolean"
                if test
                else "a loop's bounds must be scalars"
            )
            raise DtypeError(message, got=str(value.type), span=self._span(node))
        if test and not value.dtype.is_bool():
            return self.semantic.cast(value, tl.int1)  # as in Python, and in Triton from 3.9
        return value

    def _verify_loop_carried_variable(self, name: str, loop_val: Any, live_val: Any) -> None:
        super()._verify_loop_carried_variable(name, loop_val, live_val)
        if isinstance(live_val, tl.tuple) and self._parts(live_val) != self._parts(loop_val):
            raise DtypeError(
                f"{name!r} is a tuple that changes its types in a loop",
                expected=f"{live_val.type}, as before the loop",
                got=loop_val.type,
                remedy="Start with values of the types that it has later: None or a number that is "
                "known when compiling is none of a tensor's.",
            )

    def _parts(self, value: Any) -> list[str]:
        """Return the types of a value's parts in the module."""
        types: list[Any] = []
        value.type._flatten_ir_types(self.builder, types)
        return [str(type) for type in types]
