"""Read loops of products: the tiles that they load, the products, and the statements between them."""

from __future__ import annotations

import ast
from typing import Any, Callable, Collection, Mapping, Optional

from gluon_core import language, portable
from gluon_core._triton import tl
from gluon_write.loops.loops import (
    Edit,
    Loop,
    Tile,
    falling,
    may_write,
    only_asked,
    orders_memory,
    viewed,
)
from gluon_write.text.syntax import (
    argument,
    calls_in,
    mentions,
    nodes_in,
    operands_of,
    reads,
    stores,
)
from gluon_write.tracing.sketch import Place, Sketch
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["LoopReader"]

_PURE = (ast.Assign, ast.AugAssign)
_LEAST_ROWS = 64  # of a product of a warp group
_HALVES = {"fp16": "float16", "bf16": "bfloat16"}


class LoopReader(TracedForm):
    """Read the loops of one function.

    Args:
        number: of the function in the traced kernel. wgmma: products of 64 rows read shared memory.
        unaligned: places of loads whose addresses are not known to be aligned as copies need it.
        lines: places of loads of bytes -> the dimension whose neighbours are neighbours in memory.
    """

    takes_falling = False
    takes_computed = False  # second operands that a step computes
    takes_several = False  # operands of several products
    takes_kept = False  # operands whose elements other statements read
    takes_converted = False  # several products without an operand that a step loads as it is
    takes_addresses = False  # scalars and vectors that memory holds, in addresses

    def __init__(
        self,
        fn: Any,
        number: int,
        drawn: Sketch,
        wgmma: bool,
        unaligned: Collection[Place] = (),
        lines: Mapping[Place, int] = {},
    ):
        super().__init__(fn, number, drawn)
        self.unaligned, self.lines = unaligned, lines
        self.stages, self.wgmma = 0, wgmma

    def edited(self, edits_of: Callable[[Loop, set[str]], list[Edit]]) -> Optional[str]:
        """Return the function with its loops of products changed; None where no loop is.

        Args:
            edits_of: `f(loop, taken)` returns the edits of a loop; names that it makes join `taken`.
        """
        if not self.space:
            return None
        taken = self.names_in_use()
        edits: list[tuple[Edit, int]] = []  # with the last line of the loop
        for node in nodes_in(self.tree):
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                loop = self.read(node)
                if loop is not None:
                    edits += [(edit, node.end_lineno or 0) for edit in edits_of(loop, taken)]
        if not edits:
            return None
        lines = self.source.splitlines()
        # Where a loop begins behind another one, its lines come behind those that end the other.
        for (start, stop, new), _ in sorted(
            edits, key=lambda e: (e[0][0], e[0][1], e[1]), reverse=True
        ):
            lines[start - 1 : stop] = new
        return "\n".join(lines) + "\n"

    def read(self, node: ast.For) -> Optional[Loop]:
        bounds = node.iter
        if not isinstance(bounds, ast.Call) or node.orelse:
            return None
        if self.called(bounds) is not tl.range and (
            ast.unparse(bounds.func) != "range" or bounds.keywords
        ):
            return None
        if not all(_plain(statement) for statement in node.body):
            return None
        if any(stores(statement) & stores(node.target) for statement in node.body):
            return None  # steps ahead would count from its value
        if orders_memory(self, node):
            return None  # its loads are ordered behind stores of other threads
        products = [
            c for c in nodes_in(node)
            if isinstance(c, ast.Call) and self.called(c) is portable.mma and operands_of(c)
        ]  # fmt: skip
        operands = [operand for product in products for operand in operands_of(product)]
        tiles: dict[str, Tile] = {}
        for statement in node.body:
            tile = self.tile(statement) if isinstance(statement, ast.Assign) else None
            if tile is None:
                continue
            names = [n for n in nodes_in(node) if isinstance(n, ast.Name) and n.id == tile.name]
            read = [n for n in names if isinstance(n.ctx, ast.Load)]
            plain = [n for n in read if not only_asked(n, node)]
            used = [o for o in operands if viewed(o, self) == tile.name]
            most = len(used) if self.takes_several else 1
            tile.kept = self.takes_kept and len(used) < len(plain)
            alone = len(used) == len(plain) or tile.kept
            if alone and 0 < len(used) <= most and len(names) - len(read) == 1:
                tile.uses = 1 if tile.kept else len(used)
                tiles[tile.name] = tile
        if self.takes_computed and self.wgmma:
            for product in products:
                tile = self.computed(product, node)
                if tile is not None and tile.name not in tiles:
                    tiles[tile.name] = tile
        falls = falling(node, self.number, self.drawn)
        loop = Loop(node, tiles, products, falls=falls)
        empty = not tiles and not (self.takes_converted and len(products) > 1)
        if falls and not self.takes_falling or empty or not self.slices(loop):
            return None
        loop.issued = self._issued(loop)
        return loop

    def _issued(self, loop: Loop) -> dict[ast.stmt, str]:
        """Return the statements of the products, if the unit reads shared memory for each."""
        issued: dict[ast.stmt, str] = {}
        for statement in loop.node.body:
            if isinstance(statement, ast.Assign) and statement.value in loop.products:
                target, call = statement.targets[0], statement.value
                assert isinstance(call, ast.Call)
                if isinstance(target, ast.Name) and self.unit_reads(call, loop):
                    issued[statement] = target.id
        return issued if len(issued) == len(loop.products) else {}

    def tile(self, statement: ast.Assign, ranks: tuple[int, ...] = (2,)) -> Optional[Tile]:
        """Return the load of a statement `name = gl.load(pointers, mask=, other=0)`."""
        call, target = statement.value, statement.targets[0]
        if self.called(call) is not language.load or not isinstance(target, ast.Name):
            return None
        assert isinstance(call, ast.Call)
        words = {word.arg: word.value for word in call.keywords}
        words |= dict(zip(("pointer", "mask", "other"), call.args))
        other = words.pop("other", None)
        if not set(words) <= {"pointer", "mask"} or "pointer" not in words:
            return None
        if "mask" in words and not (isinstance(other, ast.Constant) and other.value == 0):
            return None
        kind = self.type_of(call, ranks)
        if kind is None:
            return None
        mask = [words["mask"]] if "mask" in words else []
        stored = self.place_of(call) in self.unaligned
        return Tile(target.id, statement, [words["pointer"], *mask], *kind, stored=stored)

    def computed(self, product: ast.Call, node: ast.For) -> Optional[Tile]:
        """Return the second operand of a product of a warp group that a step computes; None of others."""
        operand = operands_of(product)[1]
        name = viewed(operand, self)
        if name is None or self._rows(product) < _LEAST_ROWS:
            return None
        names = [n for n in nodes_in(node) if isinstance(n, ast.Name) and n.id == name]
        read = [n for n in names if isinstance(n.ctx, ast.Load) and not only_asked(n, node)]
        makers = [s for s in node.body if isinstance(s, ast.Assign) and name in stores(s)]
        stored = sum(isinstance(n.ctx, ast.Store) for n in names)
        if len(read) != 1 or stored != 1 or len(makers) != 1:
            return None
        target, value = makers[0].targets[0], makers[0].value
        values = self.values_of(value)
        kinds = {str(one.type.element) for one in values}
        kind = self.type_of(value)
        if not isinstance(target, ast.Name) or kind is None or not kinds <= set(_HALVES):
            return None
        return Tile(name, makers[0], [], *kind, stored=True, dtype=_HALVES[kinds.pop()])

    def _rows(self, product: ast.Call) -> int:
        """Return the rows of a product."""
        values = self.values_of(operands_of(product)[0])
        return max((value.type.dims[0] for value in values if value.type.dims), default=0)

    def type_of(
        self, call: ast.expr, ranks: tuple[int, ...] = (2,)
    ) -> Optional[tuple[tuple[int, ...], int]]:
        """Return shape and bits of the tiles that an expression gave; None of other values."""
        values = self.values_of(call)
        shapes = {value.type.dims for value in values}
        bits = {getattr(value.type.element, "bits", 0) for value in values}
        if len(shapes) != 1 or len(bits) != 1:
            return None
        shape, width = shapes.pop(), bits.pop()
        return (shape, width) if len(shape) in ranks and width in (8, 16, 32) else None

    def slices(self, loop: Loop) -> bool:
        """Collect the statements that the addresses need; False if one of them is no arithmetic."""
        wanted: set[str] = set()
        for tile in loop.copied:
            wanted |= tile.reads()
        loads = loop.loads
        chosen: list[ast.stmt] = []
        changed = True
        while changed:
            changed = False
            for statement in loop.node.body:
                if statement in chosen or statement in loads or not stores(statement) & wanted:
                    continue
                if not isinstance(statement, _PURE) or not self.ahead(statement):
                    return False
                chosen.append(statement)
                wanted |= reads(statement)
                changed = True
        loop.ahead = [s for s in loop.node.body if s in chosen]
        if any(map(self.addresses_in, loop.ahead)) and may_write(self, loop.node):
            return False
        return not wanted & set(loop.tiles)

    def ahead(self, statement: ast.stmt) -> bool:
        """Return True if a statement may run steps ahead: it reads no memory, and multiplies nothing."""
        calls = calls_in(statement)
        known = self.addresses_in(statement)
        return not any(self.called(call) in _forbidden() and call not in known for call in calls)

    def addresses_in(self, statement: ast.stmt) -> list[ast.Call]:
        """Return the loads of scalars and vectors in a statement that may run steps ahead, as parts of addresses."""
        if not self.takes_addresses or not isinstance(statement, ast.Assign):
            return []
        calls = calls_in(statement)
        return [call for call in calls if self._holds_addresses(call)]

    def _holds_addresses(self, call: ast.Call) -> bool:
        """Return True for a load of a scalar or vector."""
        values = self.values_of(call)
        plain = self.called(call) is language.load and argument(call, 6, "volatile") is None
        named = all(word.arg is not None for word in call.keywords) and len(call.args) <= 3
        return (
            plain
            and named
            and bool(values)
            and all(len(getattr(value.type, "dims", ())) <= 1 for value in values)
        )

    def adds(self, statement: ast.stmt, loop: Loop) -> bool:
        """Return True if a product adds to a sum of the steps before."""
        assert isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
        acc = argument(statement.value, 2, "acc")
        return acc is not None and loop.issued[statement] in mentions(acc)

    def chained(self, statement: ast.stmt, loop: Loop) -> set[str]:
        """Return the accumulator of a product that adds to it: the unit keeps their order."""
        if statement not in loop.issued:
            return set()
        assert isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
        acc = argument(statement.value, 2, "acc")
        own = loop.issued[statement]
        reads = [n for n in nodes_in(statement.value) if isinstance(n, ast.Name) and n.id == own]
        return {own} if isinstance(acc, ast.Name) and acc.id == own and len(reads) == 1 else set()

    def unit_reads(self, call: ast.Call, loop: Loop) -> bool:
        """Return True if the unit of a product reads shared memory: its second operand is a tile."""
        if not self.wgmma:
            return False
        a, b = (viewed(operand, self) for operand in operands_of(call))
        second = loop.tiles.get(b or "")
        first = loop.tiles.get(a or "")
        if second is None or self._rows(call) < _LEAST_ROWS:
            return False
        if second.bits == 8 and (first is None or first.bits == 8):
            tiles = range(2) if first is not None else (1,)
            along = (self._runs_along_depth(index, call, loop) for index in tiles)
            place = self.place_of(call)
            return place is not None and self.drawn.bytes.get(place, False) and all(along)
        if second.bits != 16 or first is not None and first.bits != 16:
            return False
        return self.place_of(call) not in self.drawn.unaided

    def _runs_along_depth(self, index: int, call: ast.Call, loop: Loop) -> bool:
        """Return True if a tile's neighbours in memory are those that a product adds: units read bytes so alone."""
        operand = operands_of(call)[index]
        tile = loop.tiles[viewed(operand, self) or ""]
        depth = 1 - index if isinstance(operand, ast.Name) else index
        place = self.place_of(tile.statement.value)
        return place is not None and self.lines.get(place) == depth and not tile.stored

    def shared(self, tile: Tile, loop: Loop) -> bool:
        """Return True if the products of a tile read it from shared memory."""
        calls = [call for call in loop.products
                 if tile.name in [viewed(operand, self) for operand in operands_of(call)]]  # fmt: skip
        return tile.uses > 1 or any(self.unit_reads(call, loop) for call in calls)

    def on_shared(self, loop: Loop) -> bool:
        return any(self.unit_reads(call, loop) for call in loop.products)

    def product(self, call: ast.Call, loop: Loop) -> list[tuple[int, int, list[str]]]:
        """Return the edit of the statement whose first product is `call`: units read shared memory, tiles of several
        products are loaded for each."""
        within = next(s for s in loop.node.body if any(node is call for node in nodes_in(s)))
        nodes = set(map(id, nodes_in(within)))
        read = [p for p in loop.products if id(p) in nodes]
        read = [p for p in read if self.unit_reads(p, loop) or self.several(p, loop)]
        if not read or call is not read[0]:
            return []
        first, last = within.lineno, within.end_lineno or within.lineno
        lines = self.source.splitlines()
        before = lines[first - 1].encode()[: within.col_offset].decode()
        after = lines[last - 1].encode()[within.end_col_offset or 0 :].decode()
        text = f"{before}{self.spelled(within, loop, {}, {})}{after}"
        return [(first, last, text.split("\n"))]

    def _is_read(self, node: ast.AST, loop: Loop) -> bool:
        """Return True for a product that is written for a unit which reads shared memory."""
        if not isinstance(node, ast.Call) or node not in loop.products:
            return False
        return not self.takes_several or self.unit_reads(node, loop)

    def several(self, call: ast.Call, loop: Loop) -> dict[int, str]:
        """Return the operands of a product, by id, that other products read, too, and the texts that load them."""
        texts: dict[int, str] = {}
        for operand in operands_of(call):
            tile = loop.tiles.get(viewed(operand, self) or "")
            if tile is not None and tile.uses > 1:
                across = "" if isinstance(operand, ast.Name) else ".permute((1, 0))"
                texts[id(operand)] = f"{tile.name}{across}.load()"
        return texts

    def multiplied(self, call: ast.Call, loop: Loop, spelled: Callable[[ast.expr], str]) -> str:
        """Return the text of a product whose unit reads shared memory."""
        parts = []
        for operand in operands_of(call):
            name = viewed(operand, self) or ""
            if name in loop.tiles:
                across = isinstance(operand, ast.Name) == loop.tiles[name].transposed
                text = self.operand(loop.tiles[name], loop)
                parts.append(f"{text}.permute((1, 0))" if across else text)
            else:
                parts.append(spelled(operand))
        acc = argument(call, 2, "acc")
        assert acc is not None
        words = ", is_async=True" if loop.issued else ""
        if self._is_zero(acc):
            words += ", use_acc=False"
        name = f"{self.space}.nvidia.hopper.warpgroup_mma"
        return f"{name}({', '.join(parts)}, {spelled(acc)}{words})"

    def operand(self, tile: Tile, loop: Loop) -> str:
        """Return the text of a tile as an operand of a unit that reads shared memory."""
        return tile.name

    def _is_zero(self, acc: ast.expr) -> bool:
        """Return True for zeros, and for a name that is nothing else."""
        if isinstance(acc, ast.Name):
            stored = [n for n in nodes_in(self.tree) if isinstance(n, ast.Name)
                      and n.id == acc.id and isinstance(n.ctx, ast.Store)]  # fmt: skip
            values = [s.value for s in nodes_in(self.tree) if isinstance(s, ast.Assign)
                      and any(target in stored for target in s.targets)]  # fmt: skip
            zeros = [value for value in values if self.called(value) is language.zeros]
            return 0 < len(stored) == len(zeros)
        return self.called(acc) is language.zeros

    # -- the text of statements ------------------------------------------------------------------

    def piece(
        self,
        statement: ast.stmt,
        loop: Optional[Loop] = None,
        loads: Mapping[str, str] = {},
        writes: Mapping[str, str] = {},
    ) -> list[str]:
        """Return the lines of a statement and the comments above it, without their indent.

        Args:
            loop: whose products take the form of the unit. loads, writes: other names for variables.
        """
        lines = self.source.splitlines()
        number = statement.lineno - 1
        while number and lines[number - 1].lstrip().startswith("#"):
            number -= 1
        above = [line.strip() for line in lines[number : statement.lineno - 1]]
        target = statement.target if isinstance(statement, ast.AugAssign) else None
        if isinstance(statement, ast.AugAssign) and isinstance(target, ast.Name):
            old, new = loads.get(target.id, target.id), writes.get(target.id, target.id)
            if old != new:
                shown = ast.unparse(ast.BinOp(ast.Name("x"), statement.op, ast.Name("y")))
                value = self.spelled(statement.value, loop, loads, writes)
                return [*above, f"{new} = {old} {shown[1:-1].strip()} ({' '.join(value.split())})"]
        text = self.spelled(statement, loop, loads, writes).splitlines()
        indent = statement.col_offset
        return [
            *above,
            text[0],
            *(line[min(indent, len(line) - len(line.lstrip())) :] for line in text[1:]),
        ]

    def spelled(
        self,
        node: ast.expr | ast.stmt,
        loop: Optional[Loop],
        loads: Mapping[str, str],
        writes: Mapping[str, str],
    ) -> str:
        """Return the text of a node with variables renamed, and products in the form of the unit."""
        edits: list[tuple[int, int, str]] = []
        loaded: dict[int, str] = {}
        for product in loop.products if loop is not None and self.takes_several else ():
            assert loop is not None
            if not self.unit_reads(product, loop):
                loaded |= self.several(product, loop)

        def visit(part: ast.AST) -> None:
            if id(part) in loaded and isinstance(part, ast.expr):
                edits.append((*self.range_of(part), loaded[id(part)]))
                return
            if loop is not None and self._is_read(part, loop):
                assert isinstance(part, ast.Call)
                text = self.multiplied(
                    part, loop, lambda inner: self.spelled(inner, loop, loads, writes)
                )
                edits.append((*self.range_of(part), text))
                return
            fact = self.fact_of(part, loop)
            if fact is not None and isinstance(part, ast.expr):
                edits.append((*self.range_of(part), fact))
                return
            if isinstance(part, ast.Name):
                names = loads if isinstance(part.ctx, ast.Load) else writes
                if part.id in names:
                    edits.append((*self.range_of(part), names[part.id]))
            for child in ast.iter_child_nodes(part):
                visit(child)

        visit(node)
        data, (copied, end) = self.source.encode(), self.range_of(node)
        text = b""
        for start, stop, new in sorted(edits):
            text += data[copied:start] + new.encode()
            copied = stop
        return (text + data[copied:end]).decode()

    def fact_of(self, node: ast.AST, loop: Optional[Loop]) -> Optional[str]:
        """Return the text for `tile.dtype` and `tile.shape[0]` of a tile in a ring; None of others."""
        wanted, index = node, None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            wanted, index = node.value, node.slice.value
        name = wanted.value if isinstance(wanted, ast.Attribute) else None
        tile = loop.tiles.get(name.id) if loop is not None and isinstance(name, ast.Name) else None
        if tile is None or not tile.tiles or not isinstance(wanted, ast.Attribute):
            return None
        if wanted.attr == "shape" and isinstance(index, int) and -2 <= index < 2:
            return str((tile.shape[::-1] if tile.transposed else tile.shape)[index])
        first = next(one for one in loop.tiles.values() if one.ring == tile.ring) if loop else None
        return f"{tile.ring}.dtype" if wanted.attr == "dtype" and first is tile else None


def _plain(statement: ast.stmt) -> bool:
    """Return True for statements without loops, of which each step runs all or a part."""
    if isinstance(statement, ast.If):
        return all(map(_plain, (*statement.body, *statement.orelse)))
    return isinstance(statement, (*_PURE, ast.AnnAssign, ast.Assert, ast.Expr, ast.Pass))


def _forbidden() -> tuple[Any, ...]:
    """Return the functions that addresses ahead may not call: memory, and products."""
    return language.load, portable.load, portable.mma, language.atomic_add, language.atomic_cas
