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
copies start. A loop that goes on with the steps of another one (see `continued`) takes over its rings.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Collection, Mapping, Optional

from gluon_core import language
from gluon_write.loops.added_products import added_behind
from gluon_write.loops.continued import Rings, continuation
from gluon_write.loops.loads import MOST_WORDS, masked, replaced
from gluon_write.loops.loop_reader import LoopReader
from gluon_write.loops.loops import Edit, Loop, Tile
from gluon_write.loops.moved_names import base_of, carried, changed
from gluon_write.loops.packed_tiles import is_between, with_packed_tiles
from gluon_write.loops.step_tiles import buffer_of, handed_on, last_before
from gluon_write.loops.stored_tiles import stored_in_one
from gluon_write.pipelines.copy_ops import COPIES
from gluon_write.pipelines.filling import ends_in_steps, filling, fills_registers
from gluon_write.pipelines.refilled import by_tile, refills
from gluon_write.rewrites.awaited_loops import with_awaited_loops
from gluon_write.rewrites.copied_operands import copied_operands, copying
from gluon_write.text.form import free_name, one_line, renamed, rewritten
from gluon_write.text.step_masks import excludes_later_steps
from gluon_write.text.syntax import mentions, nodes_in, reads, stores
from gluon_write.text.unread import without_unread
from gluon_write.tracing.dtypes import dtype_of
from gluon_write.tracing.sketch import Place, Sketch
from gluon_write.tracing.tracer import Tracer

__all__ = ["Prefetcher", "prefetched"]

_LONG = (language.max, language.min, language.sum, language.exp, language.exp2, language.erf)
_LEAST_WARPS = 4  # of a warp group


def prefetched(
    fn: Any,
    drawn: Sketch,
    traced: Tracer,
    unaligned: Collection[Place] = (),
    lines: Mapping[Place, int] = {},
) -> Any:
    """Return a kernel with the operands of its loops of products prefetched, or the kernel.

    Args:
        unaligned: places of loads whose addresses are not known to be aligned as copies need it.
        lines: places of loads of bytes -> the dimension whose neighbours are neighbours in memory.
    """
    copies = next((ops for capability, ops in COPIES.items() if traced.has(capability)), None)
    if traced.stages < 2 or copies is None:
        return fn
    wgmma = traced.has("nvidia.wgmma") and traced.warps >= _LEAST_WARPS

    def text_of(jit: Any, number: int) -> Optional[str]:
        reader = _Pointers(jit, number, drawn, wgmma, unaligned, lines)
        reader.warps, reader.copies = traced.warps, copies
        return reader.text(traced.stages, traced.room)

    return rewritten(fn, drawn.jits, text_of)


class Prefetcher(LoopReader):
    """Write loops whose tiles are copied ahead to rings.

    Attributes:
        warps: of the program. copies: the ops of the target.
        goes_on: loops may take over the rings of those before them.
        copies_operands: copies may replace loads of operands that all steps multiply.
    """

    warps = 0
    copies = COPIES["nvidia.cp_async"]
    goes_on = False
    copies_operands = False
    takes_falling = True

    def read(self, node: ast.For) -> Optional[Loop]:
        """Return a loop of products; None of one of several whose addresses memory holds, and whose tiles registers hold."""
        loop = super().read(node)
        if loop is None:
            return None
        for tile in loop.tiles.values():
            place = self.place_of(tile.statement.value)
            across = place is not None and self.lines.get(place) == 0
            tile.flipped = across and tile.bits == 8 and self.shared(tile, loop)
        loaded = [tile for tile in loop.tiles.values() if not tile.tiles and not tile.dtype]
        if not all(self.knows_dtype(tile, loop) for tile in loaded):
            return None
        if any(map(self.addresses_in, loop.ahead)) and len(loop.products) > 1:
            return (
                loop
                if sum(tile.bytes for tile in loop.copied) > MOST_WORDS * 4 * 32 * self.warps
                else None
            )
        more = with_packed_tiles(self, loop)
        if more is not loop:
            self.with_packed[node] = more
        return loop if loop.tiles or more is not loop else None

    def _read_packed(self, node: ast.For) -> Optional[Loop]:
        """Return a loop that copies the tiles, too, from which its steps compute operands."""
        return None if self.read(node) is None else self.with_packed.get(node)

    def text(self, stages: int, room: int) -> Optional[str]:
        """Return the function with its loops of products changed; None without one."""
        self.begun: dict[ast.For, Rings] = {}
        self.awaited: dict[str, str] = {}
        self.with_packed: dict[ast.For, Loop] = {}
        self.refilled: set[ast.For] = set()
        assigned: set[str] = set()

        def edits_of(loop: Loop, taken: set[str]) -> list[Edit]:
            begun, more = self.begun.get(loop.node), self.with_packed.get(loop.node)
            if more is not None:
                same = begun and begun.tiles.keys() == more.tiles.keys()
                takes = same if begun else self._takes_more(loop, more, stages, room)
                loop = more if takes else loop
            if not loop.tiles:
                return []
            if not loop.copied or ends_in_steps(self, loop, stages, room):
                loop.issued.clear()  # ptxas would wait after each `wgmma` among so many loads
            size, left = self._room(loop, room)
            if not size:
                return self._written(loop, stages, taken) if left >= 0 else []
            fitting = min(stages, self._fitting(loop, room))
            if begun:
                fitting = begun.stages
            elif fitting < 2:
                return []
            elif loop is not more:
                fitting = filling(self, loop, fitting, size, left)
            if begun.refilled if begun else refills(self, loop, fitting, size, left):
                self.refilled.add(loop.node)
            assigned.update(stores(loop.node))
            edits = self._written(loop, fitting, taken)
            edits += added_behind(self, loop, fitting * size, taken)
            return [*edits, *stored_in_one(self, loop, fitting * size, taken)]

        text = self.edited(edits_of)
        text = with_awaited_loops(text, self.awaited) if text and self.awaited else text
        # Addresses and masks of loads that copies replace.
        return text and without_unread(text, self.scope, assigned)

    def _room(self, loop: Loop, room: int) -> tuple[int, int]:
        """Return the bytes of a step's copies, and those that tiles which are stored leave for them."""
        tiles = loop.tiles.values()
        left = room - sum(self._buffers(tile, loop) * tile.bytes for tile in tiles)
        left -= sum(tile.bytes for tile in self._operands(loop))
        return sum(tile.bytes for tile in loop.copied), left

    def _fitting(self, loop: Loop, room: int) -> int:
        """Return how many buffers have room."""
        size, left = self._room(loop, room)
        return min(self.copies.most, left // max(size, 1))

    def _takes_more(self, loop: Loop, more: Loop, stages: int, room: int) -> bool:
        """Return True if rings have room for more tiles, which between products leave a multiprocessor its programs."""
        used = []
        for one in (loop, more):
            size, left = self._room(one, room)
            used.append(room - left + stages * size)
        same = 0 < room // used[1] == room // max(used[0], 1) or not loop.tiles
        return self._fitting(more, room) >= stages and (same or not is_between(loop))

    def _buffers(self, tile: Tile, loop: Loop) -> int:
        """Return how many buffers a tile has that is stored: a product under way reads one of them."""
        return (2 if loop.issued else 1) if tile.stored else 0

    def _written(self, loop: Loop, stages: int, taken: set[str]) -> list[Edit]:
        """Return the edits of a loop: first and last line, and the new lines."""
        node, gl, self.stages = loop.node, self.space, stages
        assert isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call)
        begun, behind = self.begun.get(node), self.following(loop)
        refilled = node in self.refilled
        end = begun.end if begun else behind[-1].node if behind else node
        assert isinstance(end.iter, ast.Call)
        first = self.bounds(node)[0]
        _, last, stride = self.bounds(end)
        variable, slot = node.target.id, free_name("slot", taken)
        if begun:
            step, moved = begun.step, begun.moved
            for tile in loop.tiles.values():
                tile.ring = begun.tiles[tile.name]
        else:
            step = free_name("step", taken)
            moved = {name: free_name(f"{name}_ahead", taken) for name in sorted(changed(loop))}
            moved.setdefault(variable, free_name(f"{variable}_ahead", taken))
            self.named(loop, taken)
        ahead, self.step, self.slot = moved[variable], step, slot
        tiles = {name: tile.ring for name, tile in loop.tiles.items()}
        rings = Rings(step, moved, tiles, end, stages, refilled)
        self.begun |= {one.node: rings for one in behind}
        outer, inner = " " * node.col_offset, " " * node.body[0].col_offset
        before = []
        fetch = self._fetch(loop, moved, last, stride, ahead, end)
        arrived = self.arrived(loop, stages - 2)
        # A sum is under way until the next step's products; others are over before it.
        one_sum = self.adds_alone(loop)
        single = len(arrived) > 1 and one_sum
        if end is node and not begun and loop.issued:
            self.awaited[step] = loop.inside(first, last)
        # The buffer of the step before the last one is free as soon as all have come to a step.
        first_thing = single and stages > 3
        steps = stages - 2 if first_thing else stages - 1
        late = self._ends_with_a_store(loop)
        self.stages = stages - 1 if late or refilled else stages
        if refilled and self.stages == 1:
            slot = self.slot = "0"
        if loop.copied:
            before.append(
                f"{outer}# Rings of {self.stages} buffers: copies run {counted(steps)} ahead of the products."
            )
            before += [f"{outer}{moved[n]} = {n}" for n in carried(loop) if n != variable]
            before.append(f"{outer}{ahead} = {first}")
            before += [f"{outer}{line}" for line in self._places(loop, moved, last, ahead)]
        else:
            before.append(f"{outer}# No copies: the addresses may have any alignment.")
        before += [f"{outer}{line}" for line in self.rings_of(loop, moved)]
        if loop.copied:
            before.append(f"{outer}for {step} in {gl}.static_range({steps}):")
            before += [f"{outer}    {line}" for line in fetch(step)]
        before.append(f"{outer}{step} = 0")
        edits: list[Edit] = [(node.lineno, node.lineno - 1, [] if begun else before)]
        for tile in [] if begun else self._operands(loop):
            start = f"{gl}.{self.copies.space}.{self.copies.start}"
            edits.append(copying(self, tile, start, self.dtype_of(tile, loop, {})))
        waited = [] if slot == "0" else [f"{inner}{line}" for line in self.waited(loop, step, slot)]
        # The copies overwrite the buffers of the step before, whose products must be over.
        copies = [f"{inner}{line}" for line in fetch(f"{step} + {steps}")]
        parts, alone = [], []
        if refilled:
            parts, copies = by_tile(copies), []
            alone = [f"{inner}{line}" for line in self.arrived(loop, len(parts) * steps - 1)]
        if first_thing:
            waited += [f"{inner}{line}" for line in self.arrived(loop, stages - 3)]
            waited, copies = [*waited, *copies], []
        elif not refilled:
            waited += [f"{inner}{line}" for line in arrived]
        if not loop.copied:
            copies = []
        last_thing, copies = (copies, []) if late else ([], copies)
        started, new_lines, over = self.waits(loop, copies, inner, outer)
        edits.append((node.lineno, node.lineno - 1, started))
        loads = loop.loads
        earliest = min(loads, key=lambda s: s.lineno)
        waited += [] if loop.issued else copies
        ordered = sorted(loop.tiles.values(), key=lambda tile: tile.statement.lineno)
        for number, tile in enumerate(ordered):
            front = [*(waited if tile.statement is earliest else []), *alone]
            edits += self._tile_edits(tile, loop, front, inner, parts[number] if parts else [])
        for call in loop.products:
            edits += self.product(call, loop)
        bottom = node.body[-1].end_lineno or 0
        if loop.copied and end is node:
            over.append(f"{outer}{self.ended()}")
        ends = [*new_lines.pop(bottom + 1, []), *last_thing, f"{inner}{step} += 1", *over]
        edits.append((bottom + 1, bottom, ends))
        edits += [(line, line - 1, lines) for line, lines in new_lines.items()]
        return edits

    def adds_alone(self, loop: Loop) -> bool:
        """Return True if each product under way adds to a sum of its own."""
        own = len({*loop.issued.values()}) == len(loop.issued)
        return bool(loop.issued) and own and all(self.adds(s, loop) for s in loop.issued)

    def _tile_edits(
        self, tile: Tile, loop: Loop, before: list[str], inner: str, behind: list[str]
    ) -> list[Edit]:
        """Return the edits of a tile's statement, and the lines that hand tiles on to their products.

        Args:
            before: lines in front of the statement. behind: those behind it.
        """
        new = [f"{inner}{line}" for line in self.loaded(tile, loop, self.slot)]
        if tile.stored:
            new = [*self._own(tile), *new[1:]]
        new = [*before, *new, *behind]
        line, handed = handed_on(self, tile, loop, self.step)
        handed = [f"{inner}{one}" for one in handed]
        edits: list[Edit] = []
        if loop.issued:
            new += handed
        elif handed:  # other loads of the step are under way when threads wait
            edits.append((line, line - 1, handed))
        return [*edits, (tile.statement.lineno, tile.statement.end_lineno or 0, new)]

    def _operands(self, loop: Loop) -> list[Tile]:
        """Return the loads in front of a loop that become copies, which its first step waits for."""
        if not (self.copies_operands and loop.copied and loop.issued) or loop.node in self.begun:
            return []
        return copied_operands(self, [loop, *self.following(loop)])

    def following(self, loop: Loop) -> list[Loop]:
        """Return the loops that go on with the steps of one that has rings of its own, one behind the other."""
        behind: list[Loop] = []
        packed = loop is self.with_packed.get(loop.node)
        read = self._read_packed if packed else self.read
        one = loop if self.goes_on and loop.copied and loop.node not in self.begun else None
        while one is not None:
            one = continuation(self, one, read)
            behind += [one] if one is not None else []
        return behind

    def _ends_with_a_store(self, loop: Loop) -> bool:
        """Return True if the last tile of a step goes through a buffer, and all are products' operands in registers.

        The barrier of that tile lets copies overwrite the buffers of this step: they come last, and another
        barrier, between copies of one slot of a ring and loads of the next, is left out.
        """
        latest = max(loop.tiles.values(), key=lambda tile: tile.statement.lineno)
        return bool(loop.copied) and not loop.issued and latest.stored

    def _own(self, tile: Tile) -> list[str]:
        """Return the lines of a tile's load."""
        return self.source.splitlines()[tile.statement.lineno - 1 : tile.statement.end_lineno]

    def index_of(self, tile: Tile, loop: Loop, step: str) -> str:
        """Return the number of the buffer that a step stores a tile in."""
        return f"{step} % 2" if self._buffers(tile, loop) > 1 else "0"

    def named(self, loop: Loop, taken: set[str]) -> None:
        """Name the rings of the tiles."""
        for tile in loop.tiles.values():
            tile.ring = free_name(f"{tile.name}_ring", taken)

    def rings_of(self, loop: Loop, moved: Mapping[str, str]) -> list[str]:
        """Return the lines that make the rings."""
        return [
            self.opened(
                tile,
                loop,
                self.dtype_of(tile, loop, {} if tile.stored else moved),
                self._buffers(tile, loop) or self.stages,
            )
            for tile in loop.tiles.values()
        ]

    def opened(self, tile: Tile, loop: Loop, dtype: str, stages: int) -> str:
        """Return the line that makes the ring of a tile."""
        sizes = tile.shape[::-1] if tile.flipped else tile.shape
        shape = f"[{', '.join(map(str, (stages, *sizes)))}]"
        return f"{tile.ring} = {self.space}.allocate_shared_memory({dtype}, {shape})"

    def waited(self, loop: Loop, step: str, slot: str) -> list[str]:
        """Return the lines that begin a step."""
        return [f"{slot} = {step} % {self.stages}"] if loop.copied else []

    def arrived(self, loop: Loop, later: int) -> list[str]:
        """Return the lines that wait for the tiles of a step, while those of `later` steps are on their way."""
        if not loop.copied:
            return []
        lines = [f"{self.space}.{self.copies.space}.wait_group({later})"]
        if self.on_shared(loop) and not self._fenced(loop):
            lines.append(f"{self.space}.nvidia.hopper.fence_async_shared()")
        return lines

    def _fenced(self, loop: Loop) -> bool:
        """Return True if the first product follows the fence of a tile that is stored."""
        first = min(call.lineno for call in loop.products)
        stored = [tile for tile in loop.tiles.values() if tile.stored]
        return any(last_before(self, tile, loop).lineno < first for tile in stored)

    def loaded(self, tile: Tile, loop: Loop, slot: str) -> list[str]:
        """Return the lines that take a tile from its ring."""
        load = "" if self.shared(tile, loop) and not tile.kept else ".load()"
        return [f"{tile.name} = {buffer_of(tile, slot)}{load}"]

    def operand(self, tile: Tile, loop: Loop) -> str:
        """Return the text of a tile as an operand of a unit that reads shared memory."""
        if not tile.kept:
            return tile.name
        return buffer_of(tile, self.index_of(tile, loop, self.step) if tile.stored else self.slot)

    def ended(self) -> str:
        """Return the line behind a loop: no copy is under way."""
        return f"{self.space}.{self.copies.space}.wait_group(0)"

    def waits(
        self, loop: Loop, copies: list[str], inner: str, outer: str
    ) -> tuple[list[str], dict[int, list[str]], list[str]]:
        """Return lines before a loop, before lines in it, and after it: waits for products, and copies.

        A statement that needs a result waits for all products under way. The copies wait for those of
        the step before, whose buffers they overwrite.
        """
        lines: dict[int, list[str]] = {}
        # Two sums under way from one step to the next, and other products: ptxas would wait after each `wgmma`.
        sums = sum(bool(self.adds(statement, loop)) for statement in loop.issued)
        waits = sums > 1 and not self.adds_alone(loop)
        full = fills_registers(self, loop)
        pending: list[tuple[str, int]] = []  # results under way, and how many steps ago
        for _ in range(2):  # what a step leaves is under way in the next
            lines.clear()
            pending = [(name, age + 1) for name, age in pending]
            copied = not loop.issued
            unfinished: list[str] = []  # those of a step that the next one takes from it
            for statement in loop.node.body:
                used = mentions(statement) - self.chained(statement, loop)
                if any(name in used for name, _ in pending):
                    pending = self._over(pending, len(pending), lines, statement.lineno, inner)
                    unfinished = []
                    if not (copied or full):
                        lines.setdefault(self._copied_at(statement, loop), []).extend(copies)
                        copied = True
                if statement not in loop.issued:
                    continue
                pending.append((loop.issued[statement], 0))
                unfinished.append(loop.issued[statement])
                old, new = (
                    {n for n, age in pending if bool(age) is past} for past in (True, False)
                )
                # One chain: hardware tells its parts apart.
                if not (copied or full) and old <= new:
                    line = (statement.end_lineno or 0) + 1
                    count = sum(age > 0 for _, age in pending)
                    pending = self._over(pending, count, lines, line, inner)
                    unfinished = [name for name in unfinished if name not in old]
                    lines.setdefault(line, []).extend(copies)
                    copied = True
            if not copied or waits:
                line = (loop.node.body[-1].end_lineno or 0) + 1
                pending = self._over(pending, len(pending), lines, line, inner)
                unfinished = []
                lines.setdefault(line, []).extend([] if copied else copies)
        after: dict[int, list[str]] = {}
        self._over(pending, len(pending), after, 0, outer)
        begin = f"{self.space}.nvidia.hopper.warpgroup_mma_init"
        begun = [f"{outer}{name} = {begin}({name})" for name in dict.fromkeys(unfinished)]
        return begun, lines, after.get(0, [])

    def _copied_at(self, waits: ast.stmt, loop: Loop) -> int:
        """Return the line before which copies start that need the products before a statement to be over.

        Two steps ahead they have time: they start behind the next product, which is under way meanwhile, if little
        is computed before it. An H200 takes 0.93 of the time for a ReLU between products, and 1.09 for a softmax.
        """
        for statement in loop.issued if self.stages > 2 else ():
            if statement.lineno < waits.lineno:
                continue
            between = [s for s in loop.node.body if waits.lineno <= s.lineno < statement.lineno]
            calls = (self.called(node) for s in between for node in nodes_in(s))
            return waits.lineno if any(call in _LONG for call in calls) else _behind(statement)
        return waits.lineno

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

    def knows_dtype(self, tile: Tile, loop: Loop) -> bool:
        """Return True if the dtype of a tile can be written before its loop."""
        return base_of(tile.pointer, loop.node) is not None or self._traced_dtype(tile) is not None

    def _traced_dtype(self, tile: Tile) -> Optional[str]:
        """Return the name of a tile's dtype in the trace; None of several, and of another."""
        return dtype_of(self.values_of(tile.statement.value))

    def dtype_of(self, tile: Tile, loop: Loop, moved: Mapping[str, str]) -> str:
        """Return the dtype of a tile as text: of the pointer's base where the text shows it."""
        if tile.dtype:
            return f"{self.space}.{tile.dtype}"
        base = base_of(tile.pointer, loop.node)
        if base is None:
            return f"{self.space}.{self._traced_dtype(tile)}"
        text = self.text_of(base)
        return f"{moved.get(text, text)}.dtype.element_ty"

    def _fetch(
        self,
        loop: Loop,
        moved: Mapping[str, str],
        last: str,
        stride: str,
        ahead: str,
        end: ast.For,
    ) -> Any:
        """Return a function of the step that returns the lines which copy it.

        Args:
            end: the loop whose last step is the last one that is copied.
        """
        loads = loop.by_statement
        early, ops = self._early(loop), self.copies
        committed = f"{self.space}.{ops.space}.commit_group()"
        apart = loop.node in self.refilled

        def lines(step: str) -> list[str]:
            slot = step if re.fullmatch(r"\w+", step) else f"({step})"
            slot = "0" if apart and self.stages == 1 else f"{slot} % {self.stages}"
            text = []
            for statement in loop.node.body:
                tile = loads.get(id(statement))
                if tile is not None and tile.stored:
                    continue
                if tile is not None:
                    inside = loop.inside(ahead, last)
                    mask = renamed(self.text_of(tile.mask), moved) if tile.mask else inside
                    ends = not loop.falls and excludes_later_steps(self, tile.mask, end)
                    if tile.mask and not ends:
                        mask = f"({mask}) & ({inside})"
                    pointer = renamed(self.text_of(tile.pointer), moved)
                    ring = buffer_of(tile, slot)
                    text.append(
                        f"{self.space}.{ops.space}.{ops.start}({ring}, {one_line(pointer)}, mask={one_line(mask)}{ops.other})"
                    )
                    text += [committed] if apart else []
                elif statement in loop.ahead and statement not in early:
                    text.append(self._moved(statement, loop, moved, last, ahead))
            over = [*([] if apart else [committed]), f"{ahead} += {stride}"]
            return [*text, *over, *self._places(loop, moved, last, ahead)]

        return lines

    def _moved(
        self, statement: ast.stmt, loop: Loop, moved: Mapping[str, str], last: str, ahead: str
    ) -> str:
        """Return a statement of the addresses for the step that is copied, whose loads stay within the loop."""
        inside = loop.inside(ahead, last)
        calls = [(call, masked(self, call, inside)) for call in self.addresses_in(statement)]
        return one_line(renamed(replaced(self, statement, calls), moved))

    def _early(self, loop: Loop) -> list[ast.stmt]:
        """Return the statements up to the last address that memory holds, if they need the step's number alone.

        They run at the end of the step before: nothing waits for such an address.
        """
        loading = [statement for statement in loop.ahead if self.addresses_in(statement)]
        if not loading:
            return []
        early = loop.ahead[: loop.ahead.index(loading[-1]) + 1]
        assigned: set[str] = set()
        for statement in early:
            if reads(statement) & changed(loop) - assigned:
                return []
            assigned |= stores(statement)
        late = [statement for statement in loop.ahead if statement not in early]
        return [] if any(stores(statement) & assigned for statement in late) else early

    def _places(self, loop: Loop, moved: Mapping[str, str], last: str, ahead: str) -> list[str]:
        """Return the lines that compute the addresses of a step which memory holds."""
        return [self._moved(statement, loop, moved, last, ahead) for statement in self._early(loop)]


class _Pointers(Prefetcher):
    """Write loops whose tiles are loaded through pointers, with all that copies can do."""

    goes_on = True
    copies_operands = True
    takes_computed = True
    takes_several = True
    takes_kept = True
    takes_converted = True
    takes_addresses = True


def _behind(statement: ast.stmt) -> int:
    """Return the line behind a statement."""
    return (statement.end_lineno or 0) + 1


def counted(steps: int) -> str:
    """Return a number of steps as people write it."""
    return "a step" if steps == 1 else f"{steps} steps"
