"""Read loops of products whose tiles come from descriptors: other warps, or other steps, may copy them."""

from __future__ import annotations

import ast
import re
import textwrap
from typing import Any, Optional, Sequence

from gluon_core import portable
from gluon_core.plugin.targets import Target
from gluon_write.loops.loop_reader import LoopReader
from gluon_write.loops.loops import Loop, Tile
from gluon_write.text.syntax import argument, is_new, nodes_in, stores
from gluon_write.tracing.sketch import Sketch

__all__ = ["LoopsOfTiles", "loops_of_tiles", "wrapped"]

_WIDTH = 96  # of a line


class LoopsOfTiles(LoopReader):
    """Read the loops of one function whose tiles of descriptors are copied ahead.

    Args:
        number: of the function in the traced kernel. warps: of the program.
    """

    def __init__(self, fn: Any, number: int, drawn: Sketch, target: Target, warps: int):
        super().__init__(fn, number, drawn, wgmma=True)
        self.target, self.warps = target, warps
        self.functions: dict[str, Any] = {}
        self.constants = {
            node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
            for node in nodes_in(self.tree)
            if isinstance(node, (ast.arg, ast.AnnAssign))
            and node.annotation is not None
            and "constexpr" in ast.unparse(node.annotation)
        }
        self.locals = {*self.parameters, *stores(self.tree)}

    # -- the loop -------------------------------------------------------------------------------

    def tile(self, statement: ast.Assign, ranks: tuple[int, ...] = (2,)) -> Optional[Tile]:
        """Return the load of a statement `name = gl.portable.load(tiles, [row, column])`, perhaps with `.T`."""
        call, target = statement.value, statement.targets[0]
        transposed = isinstance(call, ast.Attribute) and call.attr == "T"
        if isinstance(call, ast.Attribute) and transposed:
            call = call.value
        if self.called(call) is not portable.load or not isinstance(target, ast.Name):
            return None
        assert isinstance(call, ast.Call)
        kind = self.type_of(call, ranks)
        if kind is None or self.place_of(call) not in self.drawn.copied:
            return None
        if len(call.args) != 2 or call.keywords or not isinstance(call.args[0], ast.Name):
            return None
        place = call.args[1]
        if not isinstance(place, (ast.List, ast.Tuple)):
            return None
        return Tile(target.id, statement, list(place.elts), *kind, call.args[0].id, transposed)

    def ahead(self, statement: ast.stmt) -> bool:
        """Return True if the producer can run a statement: arithmetic, and loads of scalars."""
        for node in nodes_in(statement):
            if self.is_tensor(node) or self.called(node) in (portable.mma, portable.load):
                return False
        return not any(self._writes(node) for node in nodes_in(statement))

    def _writes(self, node: ast.AST) -> bool:
        """Return True for a call that changes memory, or may do so."""
        if not isinstance(node, ast.Call):
            return False
        place = self.place_of(node)
        name = self.drawn.functions.get(place, "") if place else ""
        called = self.called(node)
        known = called is None or called not in self.drawn.jits or self._is_pure(called)
        if name.endswith("inline_asm_elementwise"):
            pure = argument(node, 4, "is_pure")
            return not (isinstance(pure, ast.Constant) and pure.value is True)
        return not known or bool(re.search("store|atomic|barrier|inline_asm|print", name))

    def _is_pure(self, jit: Any) -> bool:
        """Return True for a function whose text calls nothing that changes memory."""
        return not re.search(r"store|atomic|barrier|inline_asm|print|allocate", jit.src)

    def suits(self, loop: Loop) -> bool:
        """Return True if a loop of products can have partitions."""
        return bool(loop.issued) and self.copies_alone(loop)

    def copies_alone(self, loop: Loop) -> bool:
        """Return True if nothing in a loop keeps its tiles from being copied steps ahead."""
        if any(self._writes(node) for node in nodes_in(loop.node)):
            return False
        body = [node for statement in loop.node.body for node in nodes_in(statement)]
        changed = {
            node.id
            for node in body
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        if any(tile.tiles in changed for tile in loop.tiles.values()):
            return False
        if any(isinstance(node, (ast.Return, ast.Break, ast.Continue)) for node in body):
            return False
        if any(self.called(node) is portable.load for node in body) and len(
            [n for n in body if self.called(n) is portable.load]
        ) != len(loop.tiles):
            return False
        lines = [statement.lineno for statement in loop.node.body]
        return len(set(lines)) == len(lines) and lines[0] > loop.node.lineno

    def loops(self) -> list[Loop]:
        """Return all loops that can have partitions."""
        nodes = self.for_loops()
        read = [self.read(n) for n in nodes if isinstance(n.target, ast.Name)] if self.space else []
        return [loop for loop in read if loop is not None and self.suits(loop)]

    def shapes_assigned(self, statement: ast.stmt) -> set[tuple[int, ...]]:
        """Return the shapes of the value that a statement assigns."""
        return self.shapes_of(getattr(statement, "value", None))

    def results_of(self, loop: Loop, again: bool = False) -> Optional[list[str]]:
        """Return the names that a loop assigns and the rest reads; None if one has no value before.

        Args:
            again: the loop is within another one, so that the lines before it run after it, too.
        """
        end = loop.node.end_lineno or 0
        names = [n for n in nodes_in(self.tree) if isinstance(n, ast.Name)]
        assigned = {n.id for n in nodes_in(loop.node) if isinstance(n, ast.Name)
                    and isinstance(n.ctx, ast.Store)}  # fmt: skip
        others = [n for n in nodes_in(self.tree) if isinstance(n, ast.For)
                  and not any(part is loop.node for part in nodes_in(n))]  # fmt: skip
        renewed = {
            id(name)
            for other in others
            for name in nodes_in(other)
            if isinstance(name, ast.Name) and is_new(name.id, other)
        }
        later = {n.id for n in names if isinstance(n.ctx, ast.Load) and id(n) not in renewed
                 and (n.lineno > end or again and n.lineno < loop.node.lineno)}  # fmt: skip
        before = {n.id for n in names if n.lineno < loop.node.lineno} | {*self.parameters}
        results = sorted(assigned & later)
        return results if set(results) <= before else None

    def function_text(
        self, name: str, words: str, parameters: Sequence[str], body: list[str]
    ) -> str:
        """Return the text of a partition's function."""
        listed = [f"{p}: {self.space}.constexpr" if p in self.constants else p for p in parameters]
        head = wrapped(f"def {name}(", listed, "):")
        head.append(f'    """{words}"""')
        return "\n".join([*head, *(f"    {line}" if line else "" for line in body)]) + "\n"


def loops_of_tiles(drawn: Sketch, target: Target, warps: int) -> list[LoopsOfTiles]:
    """Return a reader of each function of a kernel."""
    return [LoopsOfTiles(jit, i, drawn, target, warps) for i, jit in enumerate(drawn.jits)]


def wrapped(begin: str, parts: Sequence[str], end: str) -> list[str]:
    """Return a list in parentheses, in several lines if it is long."""
    whole = f"{begin}{', '.join(parts)}{end}"
    if len(whole) <= _WIDTH:
        return [whole.replace(", )", ",)")]
    whole_parts = ", ".join(part.replace(" ", "\0") for part in parts)  # break between parts
    inner = [line.replace("\0", " ") for line in textwrap.wrap(whole_parts, _WIDTH - 4)]
    return [begin, *(f"    {line}" for line in inner), end]
