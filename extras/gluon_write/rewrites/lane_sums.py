"""Keep the sums of rows that a loop carries apart by lanes, and add the lanes up after the loop.

    for start in range(0, length, BN):
        ...
        total = total * kept + gl.sum(weight, 1)

exchanges sums between the four threads that hold a row of a product, in each step. It becomes

    total_lanes = gl.where((gl.arange(0, 4) == 0)[None, :], total[:, None], 0.0)
    for start in range(0, length, BN):
        ...
        pairs = weight.reshape([weight.shape[0], weight.shape[1] // 8, 4, 2])
        total_lanes = total_lanes * kept[:, None] + gl.sum(gl.sum(pairs, 3), 1)
    total = gl.sum(total_lanes, 1)

The sums have another order, as they have with each other layout. A loop right behind another one goes on with its lanes.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, Optional

from gluon_core import language
from gluon_core.plugin.targets import Target
from gluon_write.text.form import factor, free_name, one_line
from gluon_write.text.syntax import argument, mentions, nodes_in, stores
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["LaneSums", "summed_by_lanes"]

_LANES = 4  # that hold a row of a product (PTX 9.7.15)
_WIDTH = 2  # adjacent elements of each
_KIND = "fp32"
_LEAST_ROWS = 64  # of a product of a warp group: warps have rows of their own


def summed_by_lanes(fn: Any, drawn: Sketch, target: Target) -> Any:
    """Return a kernel whose loops of products add up lanes of rows after their last step, or the kernel."""
    if not target.has("nvidia.wgmma"):
        return fn
    return LaneSums.rewrite(fn, drawn)


@dataclass(frozen=True)
class _Sum:
    """Hold the sum of rows that a loop carries.

    Attributes:
        name: of the sum. rows: the calls `sum(x, 1)` of its steps, each with the statement that it is in.
    """

    name: str
    rows: dict[ast.Call, ast.stmt]


class LaneSums(TracedForm):
    def __init__(self, fn: Any, number: int, drawn: Sketch):
        super().__init__(fn, number, drawn)
        self.taken = self.names_in_use()
        self.sums: set[tuple[Any, str]] = set()
        self.names: dict[tuple[ast.For, str], str] = {}  # of the lanes of a loop's sums

    def text(self) -> Optional[str]:
        if not self.space:
            return None
        lines = self.source.splitlines()
        by_loop: dict[ast.For, list[_Sum]] = {}
        for loop in self.loops_of_products():
            sums = self._sums(loop)
            if sums:
                by_loop[loop] = sums
        self.sums = {(loop, one.name) for loop, sums in by_loop.items() for one in sums}
        for loop, sums in by_loop.items():
            lines[loop.lineno - 1 : loop.end_lineno] = self._written(loop, sums, lines)
        return "\n".join(lines) + "\n" if by_loop else None

    def _neighbour(self, loop: ast.For, name: str, step: int) -> Optional[ast.For]:
        """Return the loop right before (-1) or behind (1) another one that has a sum of a name, too."""
        for node in nodes_in(self.tree):
            for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
                if isinstance(block, list) and loop in block:
                    place = block.index(loop) + step
                    other = block[place] if 0 <= place < len(block) else None
                    return other if (other, name) in self.sums else None
        return None

    # -- the sums of a loop ----------------------------------------------------------------------

    def _sums(self, loop: ast.For) -> list[_Sum]:
        """Return the sums that a loop carries and uses for nothing else."""
        alone = [statement.lineno for statement in loop.body]
        if len(set(alone)) < len(alone) or alone[0] == loop.lineno:
            return []
        names = {name for statement in loop.body for name in stores(statement)}
        sums = (self._sum(name, loop) for name in sorted(names))
        return [one for one in sums if one is not None and one.rows]

    def _sum(self, name: str, loop: ast.For) -> Optional[_Sum]:
        rows: dict[ast.Call, ast.stmt] = {}
        for statement in loop.body:
            if name not in mentions(statement):
                continue
            parts = self.step_of(name, statement)
            if parts is None:
                return None
            _, added = parts
            if added is None:
                continue
            call, home = self._rows(added, loop, statement)
            if (
                call is None
                or home is None
                or self.dtype_and_shape(getattr(statement, "value", None))
                != self._kind_of_rows(call)
            ):
                return None
            rows[call] = home
        return _Sum(name, rows)

    def step_of(
        self, name: str, statement: ast.stmt
    ) -> Optional[tuple[Optional[ast.expr], Optional[ast.expr]]]:
        """Return factor and addend of `name = name * factor + addend`; None of other statements."""
        if isinstance(statement, ast.AugAssign):
            own, more = statement.target, statement.value
            if not isinstance(own, ast.Name) or own.id != name or name in mentions(more):
                return None
            if isinstance(statement.op, ast.Mult):
                return more, None
            return (None, more) if isinstance(statement.op, ast.Add) else None
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        target, value = statement.targets[0], statement.value
        if not isinstance(target, ast.Name) or target.id != name:
            return None
        added: Optional[ast.expr] = None
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            sides = [value.left, value.right]
            held = [side for side in sides if name in mentions(side)]
            if len(held) != 1:
                return None
            added = next(side for side in sides if side is not held[0])
            value = held[0]
        if isinstance(value, ast.Name):
            return None, added
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
            return None
        sides = [value.left, value.right]
        rest = [s for s in sides if not (isinstance(s, ast.Name) and s.id == name)]
        if len(rest) != 1 or name in mentions(rest[0]):
            return None
        return rest[0], added

    def _rows(
        self, added: ast.expr, loop: ast.For, statement: ast.stmt
    ) -> tuple[Optional[ast.Call], Optional[ast.stmt]]:
        """Return the call `sum(x, 1)` of an addend, and its statement; the addend may be the name of one."""
        home = statement
        if isinstance(added, ast.Name):
            name = added.id
            makers = [s for s in loop.body if name in stores(s)]
            users = [n for n in nodes_in(self.tree) if isinstance(n, ast.Name) and n.id == name]
            if len(makers) != 1 or len(users) != 2 or not isinstance(makers[0], ast.Assign):
                return None, None
            home, added = makers[0], makers[0].value
            if loop.body.index(home) > loop.body.index(statement):
                return None, None
        if self.called(added) is not language.sum or not isinstance(added, ast.Call):
            return None, None
        axis = argument(added, 1, "axis")
        if not isinstance(axis, ast.Constant) or axis.value != 1 or not added.args:
            return None, None
        if len(added.args) + len(added.keywords) != 2:
            return None, None
        return added, home

    def _kind_of_rows(self, call: ast.Call) -> Any:
        """Return the shape and the dtype of sums of rows of so many columns that lanes have equal parts."""
        kind, shape = self.dtype_and_shape(call.args[0]) or ("", ())
        if len(shape) != 2 or shape[1] % (_LANES * _WIDTH) or kind != _KIND:
            return ()
        if shape[0] < _LEAST_ROWS:
            return ()
        return kind, shape[:1]

    # -- the text --------------------------------------------------------------------------------

    def _written(self, loop: ast.For, sums: list[_Sum], lines: list[str]) -> list[str]:
        """Return the lines of a loop, those before and those behind it."""
        gl, outer, inner = self.space, " " * loop.col_offset, " " * loop.body[0].col_offset
        block = lines[loop.lineno - 1 : loop.end_lineno]
        before, after = [], []
        edits: list[tuple[ast.stmt, list[str]]] = []
        for one in sums:
            behind = self._neighbour(loop, one.name, 1)
            name = self.names[behind, one.name] if behind else ""
            if behind is None:
                name = free_name(f"{one.name}_lanes", self.taken)
                after.append(f"{outer}{one.name} = {gl}.sum({name}, 1)")
            self.names[loop, one.name] = name
            if self._neighbour(loop, one.name, -1) is None:
                first = f"({gl}.arange(0, {_LANES}) == 0)[None, :]"
                before.append(f"{outer}{name} = {gl}.where({first}, {one.name}[:, None], 0.0)")
            texts = {call: self._by_lanes(call) for call in one.rows}
            for statement in loop.body:
                calls = [call for call, home in one.rows.items() if home is statement]
                new = [line for call in calls for line in texts[call][0]]
                if one.name not in mentions(statement):
                    if calls:
                        assert isinstance(statement, ast.Assign)
                        target = self.text_of(statement.targets[0])
                        edits.append((statement, [*new, f"{target} = {texts[calls[0]][1]}"]))
                    continue
                parts = self.step_of(one.name, statement)
                assert parts is not None
                factor_of, added = parts
                text = name if factor_of is None else f"{name} * {self._column(factor_of)}"
                if added is not None:
                    text += f" + {texts[calls[0]][1] if calls else self.text_of(added)}"
                edits.append((statement, [*new, f"{name} = {text}"]))
        for statement, new in sorted(edits, key=lambda e: e[0].lineno, reverse=True):
            begin = statement.lineno - loop.lineno
            end = (statement.end_lineno or statement.lineno) - loop.lineno + 1
            block[begin:end] = [inner + line for line in new]
        note = f"{outer}# Each thread adds up its part of a row; the four parts are added up behind the loop."
        return [*([note] if before else []), *before, *block, *after]

    def _column(self, node: ast.expr) -> str:
        """Return a factor of rows as one of lanes."""
        text = one_line(self.text_of(node))
        return (
            f"{factor(text)}[:, None]"
            if any(value.type.dims for value in self.values_of(node))
            else factor(text)
        )

    def _by_lanes(self, call: ast.Call) -> tuple[list[str], str]:
        """Return lines before a statement, and the sums of rows by lanes."""
        rows = call.args[0]
        text = one_line(self.text_of(rows))
        before = []
        if not isinstance(rows, ast.Name):
            name = free_name("terms", self.taken)
            before, text = [f"{name} = {text}"], name
        pairs = free_name("pairs", self.taken)
        lanes = f"{text}.shape[1] // {_LANES * _WIDTH}, {_LANES}, {_WIDTH}"
        before.append(f"{pairs} = {text}.reshape([{text}.shape[0], {lanes}])")
        return before, f"{self.space}.sum({self.space}.sum({pairs}, 3), 1)"
