"""Prefetch operands of a product: loads through pointers become asynchronous copies some steps ahead.

    for k in range(0, K, BK):
        x = gl.load(a_ptrs, mask=..., other=0.0)
        y = gl.load(b_ptrs, mask=..., other=0.0)
        acc = gl.portable.mma(x, y, acc)
        a_ptrs += BK
        b_ptrs += BK * N

becomes a ring of buffers that `cp.async` fills. The statements that compute the addresses run twice:
for the step that is multiplied, and ahead for the step that is copied. Where the unit reads shared
memory, as `wgmma`, the product does: it is under way until a statement needs its result, while the next
copies start.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping, Optional

from gluon_core import language, portable
from gluon_core._triton import tl
from gluon_write.form import Form, bounds_of, changed_copy, free_name
from gluon_write.sketch import Sketch, place_of

__all__ = ["prefetched"]

_COPY = "nvidia.ampere.async_copy"
_PURE = (ast.Assign, ast.AugAssign)
_LEAST_WARPS = 4  # of a warp group
_LEAST_ROWS = 64


@dataclass
class _Tile:
    """Hold a load that becomes a copy.

    Attributes:
        name: of the loaded tensor. statement: of its load.
        pointer, mask: as expressions. shape, dtype: of the tensor; `dtype` as text.
    """

    name: str
    statement: ast.Assign
    pointer: ast.expr
    mask: Optional[ast.expr]
    shape: tuple[int, ...]
    bits: int
    dtype: str
    ring: str = ""


@dataclass
class _Loop:
    """Hold a loop of products.

    Attributes:
        ahead: the statements that the addresses need.
        issued: statements of asynchronous products -> the name of the result; all products or none.
    """

    node: ast.For
    tiles: dict[str, _Tile]
    products: list[ast.Call]
    ahead: list[ast.stmt] = field(default_factory=list)
    issued: dict[ast.stmt, str] = field(default_factory=dict)


def prefetched(
    fn: Any,
    drawn: Sketch,
    stages: int,
    has: Any,
    warps: int,
    room: int,
) -> Any:
    """Return a kernel with the operands of its loops of products prefetched, or the kernel.

    Args:
        drawn: the traced kernel, which knows shapes and dtypes.
        stages: buffers for each operand.
        has: tells of a capability whether the target has it.
        warps: of the program. room: bytes of shared memory of a program.
    """
    if stages < 2 or not has("nvidia.cp_async"):
        return fn
    wgmma = has("nvidia.wgmma") and warps >= _LEAST_WARPS
    texts: dict[int, str] = {}
    for number, jit in enumerate(drawn.jits):
        text = _Prefetcher(jit, number, drawn, wgmma).text(stages, room)
        if text is not None:
            texts[number] = text
    return changed_copy(fn, drawn.jits, texts, {}) if texts else fn


class _Prefetcher(Form):
    def __init__(self, fn: Any, number: int, drawn: Sketch, wgmma: bool):
        super().__init__(fn)
        self.number, self.drawn, self.stages = number, drawn, 0
        self.wgmma = wgmma
        self.space = next((n for n, value in self.scope.items() if value is language), "")

    # -- the form -------------------------------------------------------------------------------

    def text(self, stages: int, room: int) -> Optional[str]:
        """Return the function with its loops of products changed; None without one."""
        if not self.space:
            return None
        edits: list[tuple[int, int, list[str]]] = []
        taken = set(re.findall(r"\w+", self.source))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                loop = self._read(node)
                if loop is None:
                    continue
                size = sum(_size(tile.shape) * tile.bits // 8 for tile in loop.tiles.values())
                fitting = min(stages, room // size)
                if loop.issued and room // size == room // (size * (fitting + 1)) + fitting:
                    fitting += 1
                if fitting >= 2:
                    edits += self._written(loop, fitting, taken)
        if not edits:
            return None
        lines = self.source.splitlines()
        for start, stop, new in sorted(edits, key=lambda e: (e[0], e[1]), reverse=True):
            lines[start - 1 : stop] = new
        return "\n".join(lines) + "\n"

    def _read(self, node: ast.For) -> Optional[_Loop]:
        bounds = node.iter
        if not isinstance(bounds, ast.Call) or node.orelse:
            return None
        if self.called(bounds) is not tl.range and (
            ast.unparse(bounds.func) != "range" or bounds.keywords
        ):
            return None
        if not all(_plain(statement) for statement in node.body):
            return None
        products = [
            c for c in ast.walk(node)
            if isinstance(c, ast.Call) and self.called(c) is portable.mma and _operands(c)
        ]  # fmt: skip
        operands = [operand for product in products for operand in _operands(product)]
        tiles: dict[str, _Tile] = {}
        for statement in node.body:
            tile = self._tile(statement) if isinstance(statement, ast.Assign) else None
            if tile is None:
                continue
            names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == tile.name]
            read = [n for n in names if isinstance(n.ctx, ast.Load)]
            plain = [n for n in read if not _only_asked(n, node)]
            used = [o for o in operands if _viewed(o, self) == tile.name]
            if len(used) == 1 and len(plain) == 1 and len(names) - len(read) == 1:
                tiles[tile.name] = tile
        loop = _Loop(node, tiles, products)
        if not tiles or not self._slice(loop):
            return None
        loop.issued = self._issued(loop)
        return loop

    def _issued(self, loop: _Loop) -> dict[ast.stmt, str]:
        """Return the statements of the products, if the unit reads shared memory for each."""
        issued: dict[ast.stmt, str] = {}
        for statement in loop.node.body:
            if isinstance(statement, ast.Assign) and statement.value in loop.products:
                target, call = statement.targets[0], statement.value
                assert isinstance(call, ast.Call)
                if isinstance(target, ast.Name) and self._unit_reads(call, loop):
                    issued[statement] = target.id
        return issued if len(issued) == len(loop.products) else {}

    def _tile(self, statement: ast.Assign) -> Optional[_Tile]:
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
        place = place_of(call, self.number)
        values = self.drawn.returned.get(place, ()) if place else ()
        if not values:
            return None
        kind = values[-1].type
        if any(value.type.dims != kind.dims for value in values):
            return None
        bits = getattr(kind.element, "bits", 0)
        if len(kind.dims) != 2 or bits not in (8, 16, 32):
            return None
        text = self.text_of(words["pointer"])
        dtype = (
            f"({text}).dtype.element_ty"
            if not re.fullmatch(r"\w+", text)
            else f"{text}.dtype.element_ty"
        )
        return _Tile(
            target.id, statement, words["pointer"], words.get("mask"), kind.dims, bits, dtype
        )

    def _slice(self, loop: _Loop) -> bool:
        """Collect the statements that the addresses need; False if one of them is no arithmetic."""
        wanted: set[str] = set()
        for tile in loop.tiles.values():
            wanted |= _names(tile.pointer) | (_names(tile.mask) if tile.mask else set())
        loads = [tile.statement for tile in loop.tiles.values()]
        chosen: list[ast.stmt] = []
        changed = True
        while changed:
            changed = False
            for statement in loop.node.body:
                if statement in chosen or statement in loads or not _stores(statement) & wanted:
                    continue
                if not isinstance(statement, _PURE) or any(
                    isinstance(c, ast.Call) and self.called(c) in _forbidden()
                    for c in ast.walk(statement)
                ):
                    return False
                chosen.append(statement)
                wanted |= _names(statement)
                changed = True
        loop.ahead = [s for s in loop.node.body if s in chosen]
        return not wanted & set(loop.tiles)

    # -- the text -------------------------------------------------------------------------------

    def _written(
        self, loop: _Loop, stages: int, taken: set[str]
    ) -> list[tuple[int, int, list[str]]]:
        """Return the edits of a loop: first and last line, and the new lines."""
        node, gl, self.stages = loop.node, self.space, stages
        assert isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call)
        step, slot = free_name("step", taken), free_name("slot", taken)
        texts = [self.text_of(arg) for arg in node.iter.args]
        first, last, stride = bounds_of(texts)
        variable = node.target.id
        moved = {name: free_name(f"{name}_ahead", taken) for name in sorted(_changed(loop))}
        ahead = moved.setdefault(variable, free_name(f"{variable}_ahead", taken))
        for tile in loop.tiles.values():
            tile.ring = free_name(f"{tile.name}_ring", taken)
        outer, inner = " " * node.col_offset, " " * node.body[0].col_offset
        before = [
            f"{outer}# Rings of {stages} buffers: copies run {stages - 1} steps ahead of the products."
        ]
        carried = _carried(loop)
        before += [f"{outer}{moved[n]} = {n}" for n in carried]
        before.append(f"{outer}{ahead} = {first}")
        fetch = self._fetch(loop, moved, last, stride, ahead)
        opened = [
            f"{tile.ring} = {gl}.allocate_shared_memory({self._dtype(tile, moved)}, [{stages}, {', '.join(map(str, tile.shape))}])"
            for tile in loop.tiles.values()
        ]
        before += [f"{outer}{line}" for line in opened]
        before.append(f"{outer}for {step} in {gl}.static_range({stages - 1}):")
        before += [f"{outer}    {line}" for line in fetch(step)]
        before.append(f"{outer}{step} = 0")
        edits: list[tuple[int, int, list[str]]] = [(node.lineno, node.lineno - 1, before)]
        waited = [
            f"{inner}{slot} = {step} % {stages}",
            f"{inner}{gl}.{_COPY}.wait_group({stages - 2})",
        ]
        if self._on_shared(loop):
            waited.append(f"{inner}{gl}.nvidia.hopper.fence_async_shared()")
        # The copies overwrite the buffers of the step before, whose products must be over.
        copies = [f"{inner}{line}" for line in fetch(f"{step} + {stages - 1}")]
        begun, new_lines, over = self._waits(loop, copies, inner, outer)
        edits.append((node.lineno, node.lineno - 1, begun))
        loads = [tile.statement for tile in loop.tiles.values()]
        earliest = min(loads, key=lambda s: s.lineno)
        for tile in loop.tiles.values():
            load = f"{inner}{tile.name} = {tile.ring}.index({slot})"
            if not self._shared(tile, loop):
                load += ".load()"
            new = [load]
            if tile.statement is earliest:
                new = [*waited, *([] if loop.issued else copies), load]
            edits.append((tile.statement.lineno, tile.statement.end_lineno or 0, new))
        for call in loop.products:
            edits += self._product(call, loop)
        end = node.body[-1].end_lineno or 0
        over.append(f"{outer}{gl}.{_COPY}.wait_group(0)")
        edits.append((end + 1, end, [*new_lines.pop(end + 1, []), f"{inner}{step} += 1", *over]))
        edits += [(line, line - 1, lines) for line, lines in new_lines.items()]
        return edits

    def _waits(
        self, loop: _Loop, copies: list[str], inner: str, outer: str
    ) -> tuple[list[str], dict[int, list[str]], list[str]]:
        """Return lines before a loop, before lines in it, and after it: waits for products, and copies.

        A statement that needs a result waits for all products under way. The copies wait for those of
        the step before, whose buffers they overwrite.
        """
        lines: dict[int, list[str]] = {}
        # Two sums under way from one step to the next: ptxas would wait after each `wgmma`.
        sums = sum(bool(self._adds(statement, loop)) for statement in loop.issued)
        pending: list[tuple[str, int]] = []  # results under way, and how many steps ago
        for _ in range(2):  # what a step leaves is under way in the next
            lines.clear()
            pending = [(name, age + 1) for name, age in pending]
            copied = not loop.issued
            unfinished: list[str] = []  # those of a step that the next one takes from it
            for statement in loop.node.body:
                used = _mentions(statement) - self._chained(statement, loop)
                if any(name in used for name, _ in pending):
                    pending = self._over(pending, len(pending), lines, statement.lineno, inner)
                    unfinished = []
                    if not copied:
                        lines[statement.lineno] += copies
                        copied = True
                if statement not in loop.issued:
                    continue
                pending.append((loop.issued[statement], 0))
                unfinished.append(loop.issued[statement])
                old, new = (
                    {n for n, age in pending if bool(age) is past} for past in (True, False)
                )
                if not copied and old <= new:  # one chain: hardware tells its parts apart
                    line = (statement.end_lineno or 0) + 1
                    count = sum(age > 0 for _, age in pending)
                    pending = self._over(pending, count, lines, line, inner)
                    unfinished = [name for name in unfinished if name not in old]
                    lines.setdefault(line, []).extend(copies)
                    copied = True
            if not copied or sums > 1:
                line = (loop.node.body[-1].end_lineno or 0) + 1
                pending = self._over(pending, len(pending), lines, line, inner)
                unfinished = []
                lines.setdefault(line, []).extend([] if copied else copies)
        after: dict[int, list[str]] = {}
        self._over(pending, len(pending), after, 0, outer)
        begin = f"{self.space}.nvidia.hopper.warpgroup_mma_init"
        begun = [f"{outer}{name} = {begin}({name})" for name in dict.fromkeys(unfinished)]
        return begun, lines, after.get(0, [])

    def _adds(self, statement: ast.stmt, loop: _Loop) -> bool:
        """Return True if a product adds to a sum of the steps before."""
        assert isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
        acc = _argument(statement.value, 2, "acc")
        return acc is not None and loop.issued[statement] in _mentions(acc)

    def _chained(self, statement: ast.stmt, loop: _Loop) -> set[str]:
        """Return the accumulator of a product that adds to it: the unit keeps their order."""
        if statement not in loop.issued:
            return set()
        assert isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
        acc = _argument(statement.value, 2, "acc")
        own = loop.issued[statement]
        reads = [n for n in ast.walk(statement.value) if isinstance(n, ast.Name) and n.id == own]
        return {own} if isinstance(acc, ast.Name) and acc.id == own and len(reads) == 1 else set()

    def _over(
        self,
        pending: list[tuple[str, int]],
        count: int,
        lines: dict[int, list[str]],
        line: int,
        indent: str,
    ) -> list[tuple[str, int]]:
        """Wait for the first `count` products under way before a line, and return the others."""
        if count:
            names = ", ".join(dict.fromkeys(name for name, _ in pending[:count]))
            left = len(pending) - count
            wait = f"{self.space}.nvidia.hopper.warpgroup_mma_wait({left}, deps=[{names}])"
            lines.setdefault(line, []).append(f"{indent}{names} = {wait}")
        return pending[count:]

    def _dtype(self, tile: _Tile, moved: Mapping[str, str]) -> str:
        """Return the dtype of a tile as text: of the pointer's base where the text shows it."""
        root = tile.pointer
        while isinstance(root, ast.BinOp):
            root = root.left
        text = self.text_of(root)
        return f"{moved.get(text, text)}.dtype.element_ty"

    def _fetch(
        self, loop: _Loop, moved: Mapping[str, str], last: str, stride: str, ahead: str
    ) -> Any:
        """Return a function of the step that returns the lines which copy it."""
        loads = {id(tile.statement): tile for tile in loop.tiles.values()}

        def lines(step: str) -> list[str]:
            slot = step if re.fullmatch(r"\w+", step) else f"({step})"
            text = []
            for statement in loop.node.body:
                tile = loads.get(id(statement))
                if tile is not None:
                    inside = f"{ahead} < {last}"
                    mask = (
                        f"({_renamed(self.text_of(tile.mask), moved)}) & ({inside})"
                        if tile.mask
                        else inside
                    )
                    pointer = _renamed(self.text_of(tile.pointer), moved)
                    ring = f"{tile.ring}.index({slot} % {self.stages})"
                    text.append(
                        f"{self.space}.{_COPY}.async_load({ring}, {_one_line(pointer)}, mask={_one_line(mask)})"
                    )
                elif statement in loop.ahead:
                    text.append(_one_line(_renamed(self.text_of(statement), moved)))
            return [*text, f"{self.space}.{_COPY}.commit_group()", f"{ahead} += {stride}"]

        return lines

    # -- products -------------------------------------------------------------------------------

    def _unit_reads(self, call: ast.Call, loop: _Loop) -> bool:
        """Return True if the unit of a product reads shared memory: its second operand is a tile."""
        if not self.wgmma:
            return False
        a, b = (_viewed(operand, self) for operand in _operands(call))
        second = loop.tiles.get(b or "")
        first = loop.tiles.get(a or "")
        if second is None or second.bits != 16 or first is not None and first.bits != 16:
            return False
        place = place_of(_operands(call)[0], self.number)
        values = self.drawn.returned.get(place, ()) if place else ()
        rows = max((value.type.dims[:1] for value in values), default=(0,))
        return rows >= (_LEAST_ROWS,)

    def _shared(self, tile: _Tile, loop: _Loop) -> bool:
        """Return True if the product of a tile reads it from shared memory."""
        for call in loop.products:
            if tile.name in [_viewed(operand, self) for operand in _operands(call)]:
                return self._unit_reads(call, loop)
        return False

    def _on_shared(self, loop: _Loop) -> bool:
        return any(self._unit_reads(call, loop) for call in loop.products)

    def _product(self, call: ast.Call, loop: _Loop) -> list[tuple[int, int, list[str]]]:
        """Return the edit that lets a unit read shared memory."""
        if not self._unit_reads(call, loop):
            return []
        first, last = call.lineno, call.end_lineno or call.lineno
        lines = self.source.splitlines()
        before = lines[first - 1].encode()[: call.col_offset].decode()
        after = lines[last - 1].encode()[call.end_col_offset or 0 :].decode()
        a, b = (self._operand(operand, loop) for operand in _operands(call))
        acc = _argument(call, 2, "acc")
        assert acc is not None
        words = ", is_async=True" if loop.issued else ""
        if isinstance(acc, ast.Call) and self.called(acc) is language.zeros:
            words += ", use_acc=False"
        name = f"{self.space}.nvidia.hopper.warpgroup_mma"
        text = f"{before}{name}({a}, {b}, {self.text_of(acc)}{words}){after}"
        return [(first, last, text.split("\n"))]

    def _operand(self, operand: ast.expr, loop: _Loop) -> str:
        name = _viewed(operand, self)
        if name in loop.tiles and isinstance(operand, ast.Call):
            return f"{name}.permute((1, 0))"
        return self.text_of(operand)


def _argument(call: ast.Call, index: int, name: str) -> Optional[ast.expr]:
    words = {word.arg: word.value for word in call.keywords}
    return call.args[index] if index < len(call.args) else words.get(name)


def _operands(call: ast.Call) -> list[ast.expr]:
    a, b = _argument(call, 0, "a"), _argument(call, 1, "b")
    return [a, b] if a is not None and b is not None else []


def _plain(statement: ast.stmt) -> bool:
    """Return True for statements without loops, of which each step runs all or a part."""
    if isinstance(statement, ast.If):
        return all(map(_plain, (*statement.body, *statement.orelse)))
    return isinstance(statement, (*_PURE, ast.AnnAssign, ast.Assert, ast.Expr, ast.Pass))


def _viewed(operand: ast.expr, prefetcher: _Prefetcher) -> Optional[str]:
    """Return the name of an operand, which may be transposed."""
    if isinstance(operand, ast.Call) and prefetcher.called(operand) is language.permute:
        if len(operand.args) == 2 and ast.unparse(operand.args[1]) in ("(1, 0)", "[1, 0]"):
            operand = operand.args[0]
    return operand.id if isinstance(operand, ast.Name) else None


def _only_asked(name: ast.Name, within: ast.AST) -> bool:
    """Return True for `name` in `name.dtype` and `name.shape`, which a buffer has, too."""
    return any(
        isinstance(n, ast.Attribute) and n.value is name and n.attr in ("dtype", "shape")
        for n in ast.walk(within)
    )


def _names(node: Any) -> set[str]:
    return {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    } | (
        {node.target.id}
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
        else set()
    )


def _mentions(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _stores(node: ast.AST) -> set[str]:
    return {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _changed(loop: _Loop) -> set[str]:
    """Return the names that the address arithmetic assigns."""
    return {name for statement in loop.ahead for name in _stores(statement)}


def _carried(loop: _Loop) -> list[str]:
    """Return those that a step takes from the one before: they are read before they are assigned."""
    assigned: set[str] = set()
    carried: list[str] = []
    for statement in loop.node.body:
        tile = next((t for t in loop.tiles.values() if t.statement is statement), None)
        if tile is not None:
            read = _names(tile.pointer) | (_names(tile.mask) if tile.mask else set())
        elif statement in loop.ahead:
            read = _names(statement)
        else:
            continue
        changed = _changed(loop)
        carried += sorted(n for n in read & changed if n not in assigned and n not in carried)
        if statement in loop.ahead:
            assigned |= _stores(statement)
    return carried


def _forbidden() -> tuple[Any, ...]:
    """Return the functions that addresses ahead may not call: memory, and products."""
    return language.load, portable.load, portable.mma, language.atomic_add, language.atomic_cas


def _size(shape: Iterable[int]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """Return an expression or statement with its variables renamed."""
    for name, new in names.items():
        text = re.sub(rf"(?<![\w.]){name}\b(?!\s*=[^=])", new, text)
    return _targets(text, names)


def _targets(text: str, names: Mapping[str, str]) -> str:
    for name, new in names.items():
        text = re.sub(rf"(?<![\w.(,]){name}(?=\s*=[^=])", new, text)
    return text


def _one_line(text: str) -> str:
    return " ".join(text.split())
