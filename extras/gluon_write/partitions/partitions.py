"""Give a whole kernel partitions: one copies the tiles of its loops, others compute a part of the rows each.

The consumers run the kernel without the copies, the producer a slice of it: the control flow around the
copies, and the arithmetic of their places. Both walk over the same slots of the same rings, through
loops around loops and through functions. Consumers that have rows of their own meet at no barrier, so one
multiplies while another computes exponentials.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Any, Optional, Sequence

from gluon_write.loops.loops import Loop
from gluon_write.loops.single_step import follows_whole_steps, has_one_step, is_sure
from gluon_write.loops.tile_loops import LoopsOfTiles, wrapped
from gluon_write.partitions.copies import Copies
from gluon_write.partitions.own_tiles import DEPTH, OwnStore, names_of
from gluon_write.partitions.programs import heavy_axis
from gluon_write.partitions.ring_plan import COMPOUND, GROUP, Crowded, Function, NoForm, by_ring
from gluon_write.partitions.shared_walk import Shared
from gluon_write.pipelines.rounds import Before, Rounds
from gluon_write.pipelines.work import Forms, forms_of
from gluon_write.rewrites.largest import negated
from gluon_write.text.form import changed_copy, function_of
from gluon_write.text.syntax import is_docstring, mentions, reads, stores
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.tracer import Tracer

__all__ = ["LAUNCHED", "MOST_PARTS", "REGISTERS", "SHARERS", "Order", "Partitions"]

MOST_PARTS = 2
REGISTERS = {
    4: (240, 24),
    8: (232, 24),
}  # of threads that multiply and copy, by the kernel's warps
# Registers that all threads have when such partitions are launched, by the kernel's warps and the parts.
LAUNCHED = {(4, 1): 255, (8, 1): 168, (4, 2): 168, (8, 2): 128, (4, 3): 128}
_SHARED_REGISTERS = 160  # where three groups of warps share tiles
SHARERS = 3
_OPERANDS = 32  # registers of a product besides its sums


def _signed(reader: LoopsOfTiles, statement: ast.stmt, name: str) -> Optional[list[str]]:
    """Return the lines of `if size < 0: name, size = -name, -size` without a branch, behind which ptxas orders a loop worse; None of others."""
    assert isinstance(statement, ast.If)
    test = statement.test
    size = ast.unparse(test.left) if isinstance(test, ast.Compare) else ""
    new = {ast.unparse(one) for one in statement.body}
    if ast.unparse(test) != f"{size} < 0" or new != {f"{name} = -{name}", f"{size} = -{size}"}:
        return None
    sign = f"{reader.space}.where({size} < 0, -1.0, 1.0)"
    return [f"{name} = {name} * {sign}.to({name}.dtype)", f"{size} = {reader.space}.abs({size})"]


@dataclass(frozen=True)
class Order:
    """Say in which order a program takes blocks and steps.

    Attributes:
        any_order: steps of loops may come in any order.
        ends: lines that let programs without blocks return, where the others walk over the grid.
        sharing: how consumers share tiles; None where each has a part of one block.
    """

    any_order: bool
    ends: Sequence[str] = ()
    sharing: Optional[Shared] = None


class Partitions(Copies):
    """Hold a kernel in partitions.

    Args:
        order: in which it takes blocks and steps.

    Attributes:
        kernel: the function.
    """

    def __init__(self, fn: Any, drawn: Sketch, traced: Tracer, parts: int, part: str, order: Order):
        group = GROUP if parts > 1 else traced.warps
        super().__init__(fn, drawn, traced, parts, part, group, bool(order.ends))
        self.warps, self.order = traced.warps, order
        self.ends, self.sharing = order.ends, order.sharing
        if self.crowded and self.loops_of(self.functions[0]) > 1:
            # ptxas computes the descriptor of an operand in shared memory in the first loop alone, even where that has no step.
            raise Crowded
        if self.crowded and not self.held <= {one.tile.name for one in self.own}:
            raise NoForm  # no registers are left for an operand of all steps
        self.written, self.texts = {}, {}
        self.counted: list[ast.stmt] = []
        if self.sharing is not None:
            body = self.functions[0].reader.tree.body
            walk = next(i for i, s in enumerate(body) if self._is_walk(s))
            self.counted = [
                s
                for s in body[:walk]
                if s not in self.before and part not in stores(s) and not is_docstring(s)
            ]
            self.before += self.counted
        self.cycles = [0.0, 0.0]  # of a round of each loop, pipelined and in partitions
        self.alone = True  # a multiprocessor holds one block of the pipelined form
        for number in self.callees_first([n for n in self.functions if n] + [0]):
            self._write(number, self.before if number == 0 else [])
        self.kernel = self._whole(self.functions[0], self.before)

    describes_late = True  # each of several consumers has a descriptor of its own
    own_depth = DEPTH  # slots of the rings of tiles that a part has for itself

    @property
    def users(self) -> int:
        """Return the number of partitions that use the tiles of a step."""
        return self.parts

    @property
    def late(self) -> list[OwnStore]:
        """Return the stores whose descriptors each consumer makes: no copy waits for them."""
        each = self.parts == 1 or self.describes_late
        return [one for one in self.stored if each and self._movable(one.maker)]

    @property
    def any_order(self) -> bool:
        """Return True if steps of loops may come in any order, and pay: the masked step of three groups in front of their loops changed ptxas's order
        of these, 0.98 of the speed on an H200."""
        return self.order.any_order and not self.crowded

    @property
    def crowded(self) -> bool:
        """Return True if units read operands of all steps from shared memory: consumers have no registers for them."""
        return self.sharing is not None and self.parts > MOST_PARTS

    @property
    def gain(self) -> float:
        """Return the time of the pipelined form over that of this one."""
        return self.cycles[0] / self.cycles[1]

    def heavy_axis(self) -> Optional[int]:
        """Return the axis along which programs have more and more steps; None without one."""
        kernel = self.functions[0]
        steps = max(len(self.makers) - 1, 0)  # the last partition that copies has tiles of steps
        name, *inner = (
            names_of(one.copies, len(self.makers))[steps]
            for one in (kernel, *(one for n, one in self.functions.items() if n))
        )
        texts = {one: self.texts[one] for one in inner}
        text, scope = self.texts[name], kernel.reader.scope
        rings = [*self.rings, *(ring for one in self.own for ring in one.rings(self.parts))]
        return heavy_axis(text, name, rings, self.drawn, scope, texts)

    # -- the copies of a function -----------------------------------------------------------------

    def _write(self, number: int, before: Sequence[ast.stmt]) -> None:
        """Write the consumer's and the producer's copy of a function."""
        one = self.functions[number]
        makers = [s for s in before if self.describes(one.reader, s)]
        skipped = [s for s in one.reader.tree.body if s in makers]
        skipped += self.counted if number == 0 else []
        if number == 0 and self.part:
            skipped += [s for s in one.reader.tree.body
                        if isinstance(s, ast.AnnAssign) and self.part in stores(s)]  # fmt: skip
        if self.sharing is not None:
            self.passing = True
            self._producer(number, one, skipped)
            self.passing = False
        self._consumer(number, one, skipped, before)
        for copying in range(len(self.makers)) if self.makers else [None]:
            if number and not self.copied_rings(copying):
                continue  # it copies tiles of the kernel's own text alone
            self.copying = copying
            self._producer(number, one, skipped)
        self.copying = None

    def _consumer(
        self, number: int, one: Function, skipped: Sequence[ast.stmt], before: Sequence[ast.stmt]
    ) -> None:
        reader = one.reader
        body = self._opening("consumer") if number == 0 else []
        body += [tile.begun("consumer", self.parts) for tile in self.own if number == 0]
        if number == 0 and self.late:
            body.append("# Described here, while the first tiles come.")
            body += [line for s in self.late for line in (s.described(reader), s.opened(reader))]
        rest = [s for s in reader.tree.body if s not in skipped and not is_docstring(s)]
        for statement in rest:
            alone = statement in before and not any(
                stores(statement) & reads(other) for other in rest if other is not statement
            )
            if not alone:  # else only descriptors need it
                body += self._consumed(one, statement, False)
        if number and not isinstance(reader.tree.body[-1], ast.Return):
            body.append(f"return {self.slot}")
        parameters = self._parameters(number, one, body, skipped)
        part = number == 0 and bool(self.part)
        words = "Compute a part of the rows." if part else self._words("consumer")
        text = reader.function_text(one.products, words, parameters, body)
        self.texts[one.products] = text
        self.written[one.products] = function_of(
            text, one.products, {**reader.scope, **self.written}
        )

    def _parameters(
        self, number: int, one: Function, body: list[str], skipped: Sequence[ast.stmt]
    ) -> list[str]:
        """Return the parameters of a copy: the rings, the slot, and the names that its body reads from outside."""
        tree = ast.parse("\n".join(body))
        own = [*one.reader.parameters]
        if number == 0:
            taken = set(own)
            own += sorted({name for s in skipped for name in stores(s)} - {self.part} - taken)
            read = mentions(tree)
            described = {s.tiles for s in self.late}
            kept = [p for p in own if p in read and p not in described]
            stored = [s.writer for s in self.stored if s not in self.late]
            own_names = [*(tile.ring for tile in self.own), *stored]
            return [
                *self._handed("consumer"),
                *own_names,
                *kept,
                *([self.part] if self.part else []),
            ]
        read = mentions(tree)
        return [*self.rings, self.slot, *(p for p in own if p in read)]

    def _forms(
        self, one: Function, loop: Loop, results: list[str], parts: int
    ) -> tuple[Rounds, Forms]:
        """Return the rounds of a loop, and their cost where so many parts share the tiles."""
        rounds = Rounds(one.reader, loop, by_ring(loop))
        depth = min(self.depth, max(self.stages, 2))
        return rounds, forms_of(
            one.reader, loop, rounds, results, depth, self.target, self.group, parts, self.walks
        )  # fmt: skip

    def cycles_of(self, parts: int) -> float:
        """Return the cycles of a round of each loop with several steps where so many parts share the tiles."""
        loops = [(one, loop) for one in self.functions.values() for loop in one.loops.values()]
        loops = [(one, loop) for one, loop in loops if not has_one_step(one.reader, loop.node)]
        listed = [(one, loop, one.reader.results_of(loop) or []) for one, loop in loops]
        return sum(self._forms(*each, parts)[1].specialized for each in listed)

    def _consumed(self, one: Function, statement: ast.stmt, inner: bool) -> list[str]:
        """Return the lines of a statement in the consumer."""
        reader = one.reader
        loop = one.loops.get(id(statement))
        if loop is not None:
            behind = self.masked_behind(one, loop)
            first = any(self.masked_behind(one, other) is loop for other in one.loops.values())
            return [] if first else self._rounds(one, loop, inner, behind)
        own = self.own_of(statement)
        if own and not isinstance(statement, ast.For):
            return own[0].taken(self.crowded and self.is_operand(one, own[0].tile.name))
        for store in self.stored:
            if statement is store.statement:
                return store.lines(reader)
        name = negated(statement)
        copied = self.crowded and any(tile.tile.name == name for tile in self.own)
        if copied and self.is_operand(one, name):
            return self._negated(reader, statement, name)
        signed = _signed(reader, statement, name) if name and self.own else None
        if signed is not None:
            return signed
        if isinstance(statement, ast.If) and any(
            s.statement in statement.body for s in self.stored
        ):
            lines = [line for s in statement.body for line in self._consumed(one, s, inner)]
            return [f"if {reader.text_of(statement.test)}:", *(f"    {line}" for line in lines)]
        calls = [call for call, _ in self.calls_in(reader, statement)]
        if isinstance(statement, ast.Return) and one is not self.functions[0]:
            if calls:
                raise NoForm
            value = statement.value
            listed = value.elts if isinstance(value, ast.Tuple) else [value] if value else []
            values = [reader.text_of(value) for value in listed]
            return [f"return {', '.join([*values, self.slot])}"]
        if isinstance(statement, COMPOUND) and self.has_loops(one, statement):
            lines = self._compound(
                reader,
                statement,
                lambda s, deep: self._consumed(one, s, deep),
                inner,
                [line for tile in own for line in tile.over(True)],
                self._span(statement, False),
            )
            if self.sharing is not None and self._is_walk(statement):
                lines += self._behind(one, self.sharing)
            closed = [s.writer for s in self.stored if s.loop is statement]
            return [*lines, *(f"{writer}.close()" for writer in closed)]
        if calls:
            return self._called(one, statement, calls, True)
        return reader.piece(statement)

    def _behind(self, kernel: Function, sharing: Shared) -> list[str]:
        """Return the lines behind the groups that a consumer has a part of: it lets the tiles of others pass."""
        call = wrapped(f"{kernel.passes}(", self.written[kernel.passes].arg_names, ")")
        return [
            f"if {sharing.member} > 0:",
            *(f"    {line}" for line in (sharing.passed[0], *call)),
        ]

    def _negated(self, reader: LoopsOfTiles, statement: ast.stmt, name: str) -> list[str]:
        """Return the lines of `if size < 0: name = -name` for a tile that units read from shared memory."""
        new = [
            f"{name}.store(-{name}.load())",
            f"{reader.space}.nvidia.hopper.fence_async_shared()",
        ]
        assert isinstance(statement, ast.If)
        lines = [f"if {reader.text_of(statement.test)}:"]
        for inner in statement.body:
            own = new if name in stores(inner) else reader.piece(inner)
            lines += [f"    {line}" for line in own]
        return lines

    def _rounds(
        self, one: Function, loop: Loop, inner: bool, behind: Optional[Loop] = None
    ) -> list[str]:
        """Return the consumer's loop in the order of its schedule.

        Args:
            behind: the loop of the masked step behind it, which comes first.
        """
        reader = one.reader
        results = reader.results_of(loop, inner)
        if results is None or not isinstance(loop.node.iter, ast.Call):
            raise NoForm
        rounds, forms = self._forms(one, loop, results, self.parts)
        rounds.slot = self.slot
        last = list(one.loops.values())[-1] is loop
        rounds.rare = not last and follows_whole_steps(reader, loop.node)
        if self.crowded:
            rounds.held = {
                own.tile.name: f"{own.ring}.wait({own.slot}.next().before())"
                for own in self.own
                if self.is_operand(one, own.tile.name)
            }
        self.alone &= forms.blocks == 1
        words = max(
            math.prod(shape) // (self.group * 32)
            for statement in loop.issued
            for shape in reader.shapes_assigned(statement)
        )
        if words + _OPERANDS > LAUNCHED[self.warps, self.parts]:
            raise NoForm  # ptxas gives no product more than these
        self.cycles = [self.cycles[0] + forms.pipelined, self.cycles[1] + forms.specialized]
        bounds = reader.bounds(loop.node)
        masked: Optional[Before] = None
        if behind is not None:
            special = Rounds(reader, behind, by_ring(behind))
            special.slot, special.held = self.slot, rounds.held
            own = reader.bounds(behind.node)
            masked = Before(special, own, is_sure(reader.tree, loop.node, own))
        return rounds.threaded(forms.schedule, bounds, results, masked)

    # -- the producer -----------------------------------------------------------------------------

    # -- the kernel -------------------------------------------------------------------------------

    def _others(self) -> str:
        """Return what the other partitions do, for a comment."""
        if self.parts == 1:
            return "the other multiplies"
        return f"{self.parts} have a part of the rows each"

    def _opened(self, reader: LoopsOfTiles) -> list[str]:
        """Return lines that make what partitions share besides rings of tiles."""
        return []

    def _calls(self, kernel: Function) -> tuple[list[list[str]], list[int], list[int]]:
        """Return the lines of each partition's call, and the warps and registers of the workers."""
        calls = []
        taken = self.written[kernel.products].arg_names
        owned = {one.ring: one.rings(self.parts) for one in self.own}
        owned |= {s.writer: names_of(s.writer, self.parts) for s in self.stored}
        for number in range(self.parts):
            names_passed = [owned[n][number] if n in owned else n for n in taken if n != self.part]
            passed = [*names_passed, *([str(number)] if self.part else [])]
            calls.append(wrapped(f"({kernel.products}, (", passed, ")),"))
        copying_parts = names_of(kernel.copies, len(self.makers))
        copies = [
            wrapped(f"({name}, (", self.written[name].arg_names, ")),") for name in copying_parts
        ]
        many, copying = REGISTERS[self.warps]
        many = _SHARED_REGISTERS if self.crowded else many
        if self.warps == self.group:  # the first part has the kernel's own warps
            workers = [GROUP] * (self.parts - 1) + [1] * len(copies)
            registers = [many] * (self.parts - 1) + [copying] * len(copies)
            calls += copies
        else:
            workers, registers = [GROUP] * self.parts, [many] * self.parts
            calls = [*copies, *calls]
        return calls, workers, registers

    def _whole(self, kernel: Function, before: Sequence[ast.stmt]) -> Any:
        reader = kernel.reader
        gl = reader.space
        lines = [*self.ends]
        makers = {id(store.maker): store for store in self.stored}
        for statement in before:
            store = makers.get(id(statement))
            if store in self.late:
                continue
            lines += [store.described(reader)] if store else reader.piece(statement)
        copying = "Partitions copy a tensor each" if self.makers else "One partition copies"
        if self.makers and self.own:
            copying = "One partition copies the tiles of rounds, one those of steps"
        lines.append(f"# {copying}, through rings of {self.depth} slots; {self._others()}.")
        more = f", consumers={self.users}" if self.users > 1 else ""
        late = ", late=True" if self.makers else ""
        for ring in self.rings:
            names = [name for name, one in self.descriptors.items() if one == ring]
            each = late
            if self.parts == 1 and self.makers:
                each = f", producers={len(names)}"
            listed = f"[{', '.join(names)}], {self.depth}"
            lines.append(f"{ring} = {gl}.nvidia.hopper.tma_ring({listed}{more}{each})")
        for one in self.own:
            lines += [
                f"{ring} = {gl}.nvidia.hopper.tma_ring([{one.tile.tiles}], {self.own_depth}{late})"
                for ring in one.rings(self.parts)
            ]
        early = [store for store in self.stored if store not in self.late]
        if early:
            lines.append("# A tile is on its way to memory while the next one is computed.")
        for store in early:
            lines += [store.opened(reader, name) for name in names_of(store.writer, self.parts)]
        calls, workers, registers = self._calls(kernel)
        lines += self._opened(reader)
        lines += [
            f"{gl}.warp_specialize(",
            "    [",
            *(f"        {line}" for call in calls for line in call),
            "    ],",
            f"    {workers},",
            f"    {registers},",
            ")",
        ]
        whole = reader.source.splitlines()
        body = [s for s in reader.tree.body if not is_docstring(s)]
        start = body[0].lineno - 1
        head = whole[:start]
        indent = " " * body[0].col_offset
        text = "\n".join([*head, *(f"{indent}{line}" if line else "" for line in lines)]) + "\n"
        return changed_copy(self.fn, self.drawn.jits, {0: text}, {}, self.written)
