"""Let one program on each multiprocessor walk over the blocks of a grid.

    row = gl.program_id(0) * BM

becomes

    for program in range(gl.program_id(0), gl.num_programs(0), units):
        row = program * BM

Descriptors, barriers and partitions are made once then, and copies of the next block start while the
last one ends. Programs beyond the units return at once.

Which blocks a program takes is written by `shared_walk` where they have more and more steps along an axis, or where
consumers share tiles.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any, Iterable, Optional, Sequence

from gluon_core import language, portable
from gluon_write.partitions.programs import AXES
from gluon_write.partitions.shared_walk import (
    Grid,
    Shared,
    Sharing,
    dealt,
    grid_digits,
    shared_walk,
)
from gluon_write.partitions.useful_parts import useful_parts
from gluon_write.text.form import Form, changed_copy, edited, free_name
from gluon_write.text.syntax import argument, is_docstring, nodes_in, reads, stores
from gluon_write.tracing.sketch import Sketch

__all__ = ["Walk", "walking", "walks"]

_UNITS = "%nsmid"  # a special register, the number of multiprocessors (PTX ISA 10.5)
_PLAIN = (ast.Assign, ast.AugAssign, ast.AnnAssign)
_EFFECTS = re.compile(r"store|print|(?<!static_)assert|asm")


@dataclass(frozen=True)
class Walk:
    """Hold a kernel that walks over its grid.

    Attributes:
        kernel: the function. ends: lines that let programs without blocks return.
        shared: how consumers share tiles; None where each has a part of one block.
    """

    kernel: Any
    ends: tuple[str, ...]
    shared: Optional[Shared] = None


def walks(jits: Iterable[Any]) -> bool:
    """Return True if programs of a written kernel walk over blocks."""
    return any(_UNITS in jit.src for jit in jits)


def walking(
    fn: Any, drawn: Sketch, heavy: Optional[int] = None, sharing: Optional[Sharing] = None
) -> Optional[Walk]:
    """Return a kernel whose programs walk over the blocks of its grid; None where they cannot.

    Programs that wait for each other by atomics keep their own blocks.

    Args:
        heavy: the axis along which blocks have more and more steps; None without one.
        sharing: how consumers share tiles; None where each has a part of the same block.
    """
    if any("atomic" in op.name for op in drawn.program.walk_ops()):
        return None
    for number, jit in enumerate(drawn.jits):
        if number and re.search(r"\b(program_id|num_programs)\b", jit.src):
            return None
        if number and (sharing is not None or heavy is not None) and _EFFECTS.search(jit.src):
            return None
    return _Walker(fn, drawn).walk(heavy, sharing)


class _Walker(Form):
    def __init__(self, fn: Any, drawn: Sketch):
        super().__init__(fn)
        self.fn, self.drawn = fn, drawn

    def walk(self, heavy: Optional[int], sharing: Optional[Sharing]) -> Optional[Walk]:
        """Return the kernel; None where a program's index has no such form."""
        calls = [
            n for n in nodes_in(self.tree)
            if isinstance(n, ast.Call) and self.called(n) is language.program_id
        ]  # fmt: skip
        axes = [getattr(argument(c, 0, "axis"), "value", None) for c in calls]
        if not self.space or not calls or any(axis not in range(AXES) for axis in axes):
            return None
        taken = self.names_in_use()
        program, units = free_name("program", taken), free_name("units", taken)
        last = max(a for a in axes if isinstance(a, int))
        index = {axis: free_name(f"index_{axis}", taken) for axis in range(last + 1)}
        text = edited(self.source, [(c, index[a]) for c, a in zip(calls, axes)])  # type: ignore[index]
        body = [s for s in self.tree.body if not is_docstring(s)]
        once = self._once(body)
        if any(self._walks(s) for s in body):
            return None
        if once is None or any(isinstance(n, (ast.Return, ast.While)) for n in nodes_in(self.tree)):
            return None
        parts = self._statements(text)
        gl = self.space
        first = f"{gl}.program_id({last})"
        for axis in range(last - 1, -1, -1):
            first = f"({first} * {gl}.num_programs({axis}) + {gl}.program_id({axis}))"
        asm = f'"mov.u32 $0, {_UNITS};", "=r", [], {gl}.int32, True, 1'
        count = f"{gl}.inline_asm_elementwise({asm})"
        sides = {axis: f"{gl}.num_programs({axis})" for axis in range(last + 1)}
        lines = [line for s in once for line in parts[body.index(s)]]
        lines.append(f"{units} = {count}  # multiprocessors")
        blocks = " * ".join(sides.values())
        guard = ""
        shared: Optional[Shared] = None
        if sharing is not None:
            if sharing.axis not in sides:
                return None
            grid = Grid(gl, units, _bare(first), index, sides)
            useful = useful_parts(self.fn, self.drawn, sharing, sides[sharing.axis])
            shared = shared_walk(grid, sharing, program, useful, taken)
            lines = [one for one in lines if not re.match(rf"{sharing.part}\b", one)]
            lines.insert(0, f"{shared.member}: {gl}.constexpr = 0")
            lines += shared.before
            indices, guard = list(shared.indices), shared.guard
        elif heavy in sides:
            grid = Grid(gl, units, _bare(first), index, sides)
            before, indices, guard = dealt(grid, heavy, sides[heavy], taken)
            lines += before
        else:
            lines.append(f"for {program} in range({_bare(first)}, {blocks}, {units}):")
            indices = grid_digits(program, list(sides), index, sides)
        inner = []
        for statement in body:
            own = parts[body.index(statement)]
            if statement in once:
                continue
            if guard and self._stores(statement):
                own = [guard, *(f"    {line}" if line else "" for line in own)]
            inner += own
        lines += [f"    {line}" if line else "" for line in (*indices, *inner)]
        head = self.source.splitlines()[: body[0].lineno - 1]
        indent = " " * body[0].col_offset
        whole = "\n".join([*head, *(f"{indent}{line}" if line else "" for line in lines)]) + "\n"
        ends = (f"if {_bare(first)} >= {count}:", "    return")
        kernel = changed_copy(self.fn, self.drawn.jits, {0: whole}, {})
        return Walk(kernel, ends, shared)

    def _stores(self, statement: ast.stmt) -> bool:
        """Return True for a statement that changes memory, without loops."""
        return bool(_EFFECTS.search(self.text_of(statement)))

    def _walks(self, statement: ast.stmt) -> bool:
        """Return True for a loop around loops that begins with the program's index: the kernel's own walk."""
        if not isinstance(statement, ast.For) or not isinstance(statement.iter, ast.Call):
            return False
        inner = (n for s in statement.body for n in nodes_in(s))
        around = any(isinstance(n, ast.For) or self.called(n) in self.drawn.jits for n in inner)
        if not around or len(statement.iter.args) < 2:
            return False
        known = {
            name
            for node in nodes_in(self.tree)
            if isinstance(node, ast.Assign)
            and any(self.called(part) is language.program_id for part in nodes_in(node))
            for name in stores(node)
        }
        first = statement.iter.args[0]
        own = any(self.called(part) is language.program_id for part in nodes_in(first))
        return own or bool(reads(first) & known)

    def _once(self, body: Sequence[ast.stmt]) -> Optional[list[ast.stmt]]:
        """Return the statements that make descriptors, with those that these need; None where they differ by program."""
        chosen: list[ast.stmt] = [
            s
            for s in body
            if isinstance(s, ast.AnnAssign)
            or isinstance(s, ast.Assign)
            and self.called(s.value) is portable.descriptor
        ]
        needed = {name for s in chosen for name in reads(s)}
        for statement in reversed(body):
            if statement not in chosen and stores(statement) & needed:
                if not isinstance(statement, _PLAIN):
                    return None
                chosen.append(statement)
                needed |= reads(statement)
        if any(self.called(n) is language.program_id for s in chosen for n in nodes_in(s)):
            return None
        return [s for s in body if s in chosen]

    def _statements(self, text: str) -> list[list[str]]:
        """Return the lines of each statement of the kernel, without indent; the edits keep their lines."""
        lines = text.splitlines()
        body = [s for s in self.tree.body if not is_docstring(s)]
        listed = []
        end = body[0].lineno - 1
        for statement in body:
            part = lines[end : statement.end_lineno]
            end = statement.end_lineno or 0
            listed.append([line[statement.col_offset :] for line in part])
        return listed


def _bare(text: str) -> str:
    """Return an expression without its outer parentheses."""
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text
