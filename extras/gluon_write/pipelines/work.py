"""Estimate a round of a loop of products: its work for the matrix unit, the warps and the copies.

The numbers are those of the target's model of time, `gluon_core.plugin.timing`.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Any, Collection, Sequence

from gluon_core import language
from gluon_core.plugin.targets import Target
from gluon_core.plugin.timing import OpFacts, Timing
from gluon_core.plugin.timing import Tile as Operand
from gluon_sim.timing.session import timing_of
from gluon_write.loops.loop_reader import LoopReader
from gluon_write.loops.loops import Loop, viewed
from gluon_write.pipelines.rounds import Rounds
from gluon_write.pipelines.schedule import Schedule, Step, scheduled
from gluon_write.text.syntax import nodes_in, operands_of, reads, stores
from gluon_write.tracing.sketch import place_of

__all__ = ["Forms", "forms_of"]

_GROUP = 4  # warps
_LANES = 32
_MOST_REGISTERS = 255  # of a thread
_COPYING = 24 * _GROUP * _LANES  # registers of the group of a warp that copies
_START = 7000.0  # cycles that partitions cost a block, measured on an H200 (a GEMM of 4096)
_ROUNDS = 32  # of a loop whose rounds are not known: 2,048 keys in blocks of 64
_OWN = 48  # registers for addresses, indices and the like
_LEAST_OWN = 32  # where three groups share the unit
_OPERAND_BITS = 16
_SPECIAL = (
    language.exp, language.exp2, language.log, language.log2, language.sqrt, language.rsqrt, language.sin,
    language.cos, language.erf,
)  # fmt: skip
_REDUCTIONS = (language.max, language.min, language.sum)
_CLASSES = {language.where: "select", language.maximum: "max", language.minimum: "max"}
_FREE = (language.zeros, language.full, language.arange, language.permute, language.reshape)


@dataclass(frozen=True)
class Forms:
    """Hold the cycles of a round of each form, and the schedule of the specialized one.

    Attributes:
        blocks: of the pipelined form that a multiprocessor holds.
    """

    pipelined: float
    specialized: float
    schedule: Schedule
    blocks: int


class _Work:
    def __init__(self, reader: LoopReader, loop: Loop, timing: Timing, warps: int):
        self.reader, self.loop, self.timing, self.warps = reader, loop, timing, warps

    def elements(self, node: ast.AST) -> int:
        """Return the elements of an expression's value, 1 of a scalar."""
        values = self.reader.drawn.values_of(node, self.reader.number)
        counts = [1]
        for value in values:
            count = 1
            for size in getattr(value.type, "dims", ()):
                count *= size
            counts.append(count)
        return max(counts)

    def product(self, call: ast.Call) -> tuple[float, float]:
        """Return the cycles of a product on the matrix unit, and until its result is there."""
        tiles = []
        for operand in operands_of(call):
            place = place_of(operand, self.reader.number)
            value = self.reader.drawn.returned[place][-1].type if place else None
            bits = getattr(getattr(value, "element", None), "bits", 16)
            memory = "shared" if viewed(operand, self.reader) in self.loop.tiles else "registers"
            tiles.append(Operand(tuple(getattr(value, "dims", ())), f"fp{bits}", bits, memory))
        shape = (*tiles[0].shape[:1], *tiles[1].shape[1:])
        facts = OpFacts("warpgroup_mma", tiles, [Operand(shape, "fp32", 32)], self.warps)
        work = self.timing.works["warpgroup_mma"](facts)
        assert work is not None
        return work.busy, work.latency

    def arithmetic(self, statement: ast.stmt) -> float:
        """Return the cycles of the warps for a statement, products not counted."""
        cycles = 0.0
        for node in nodes_in(statement):
            count = self.elements(node)
            if count == 1 or not isinstance(
                node, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.BoolOp)
            ):
                continue
            kind, each = "mul", 1.0
            if isinstance(node, ast.Call):
                called = self.reader.called(node)
                if node in self.loop.products or called in _FREE:
                    continue
                kind = "special" if called in _SPECIAL else _CLASSES.get(called, "mul")
                if called is None and isinstance(node.func, ast.Attribute):
                    kind, each = "convert", 0.5  # `.to`, two elements at once
                elif called in _REDUCTIONS:
                    count = max(self.elements(arg) for arg in node.args[:1])
                    kind = "max" if called is not language.sum else "add"
            cycles += each * count * self.timing.instructions[kind][1]
        return cycles / (_LANES * self.timing.schedulers)

    def kept_bits(self, statements: Sequence[ast.stmt], late: Collection[int]) -> int:
        """Return the bits of the elements, as many as of a product, that late statements, those of the next round, take from this one."""
        read = {name for i in late for name in reads(statements[i])}
        read -= set(self.loop.issued.values())
        early = [s for i, s in enumerate(statements) if i not in late and stores(s) & read]
        kinds = [self.reader.type_of(s.value) for s in early if isinstance(s, ast.Assign)]
        least = min(map(self.elements, self.loop.products))
        whole = (bits for shape, bits in filter(None, kinds) if math.prod(shape) >= least)
        return max([_OPERAND_BITS, *whole])

    def registers(self, names: Collection[str], bits: int = _OPERAND_BITS) -> int:
        """Return the 32-bit registers of a thread for the results of products.

        Args:
            names: of results from which the next round takes elements of so many bits.
        """
        held = 0
        for statement, name in self.loop.issued.items():
            assert isinstance(statement, ast.Assign)
            # Weights take the place of the scores that they come from; those that are operands have fewer bits.
            words = self.elements(statement.value) // (self.warps * _LANES)
            held += words + (words * bits // 32 if name in names else 0)
        return held

    def operands(self) -> int:
        """Return the 32-bit registers of a thread for first operands that all steps read."""
        words: dict[str, int] = {}
        for call in self.loop.products:
            first, *_ = operands_of(call)
            kind = self.reader.type_of(first)
            named = isinstance(first, ast.Name) and first.id not in stores(self.loop.node)
            if named and kind is not None and viewed(first, self.reader) not in self.loop.tiles:
                shape, bits = kind
                words[ast.unparse(first)] = math.prod(shape) * bits // 32
        return sum(words.values()) // (self.warps * _LANES)

    def copies(self) -> float:
        """Return the cycles for which a round's tiles occupy the way to the unit."""
        moved = sum(tile.bytes for tile in self.loop.tiles.values())
        return moved / min(self.timing.copy_bytes, self.timing.port_bytes)


def forms_of(
    reader: LoopReader,
    loop: Loop,
    rounds: Rounds,
    results: list[str],
    depth: int,
    target: Target,
    warps: int,
    parts: int = 1,
    walks: bool = False,
) -> Forms:
    """Return the cost of a round in both forms.

    The pipelined form fills a unit with as many blocks as fit; the specialized one has all registers
    of a unit for one block, whose warps copy nothing.

    Args:
        depth: buffers of each tile. results: names that the loop returns.
        warps: of a partition that multiplies. parts: such partitions, which share the units.
        walks: programs begin once for all blocks.
    """
    timing: Any = timing_of(target)
    work = _Work(reader, loop, timing, warps)
    statements = rounds.statements(results)
    steps = []
    follows = rounds.follows(statements)
    for statement, needs, before in zip(statements, rounds.needs(statements), follows):
        busy, latency = work.arithmetic(statement), 0.0
        if statement in loop.issued:
            assert isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
            operands = busy
            busy, latency = work.product(statement.value)
            latency += operands
        busy *= parts
        unit = "matrix" if statement in loop.issued else "warps"
        steps.append(Step(unit, busy, latency, needs, before))
    lanes = parts * warps // _GROUP

    # The copying warp's group has registers of its own.
    threads = parts * warps * _LANES
    most = min(_MOST_REGISTERS, (timing.registers - _COPYING) // threads // 8 * 8)

    def skewed(late: Collection[int]) -> bool:
        names = {name for s, name in loop.issued.items() if statements.index(s) not in late}
        # Three groups read such operands from shared memory.
        own = _OWN + work.operands() if parts < 3 else _LEAST_OWN
        held = work.registers(names, work.kept_bits(statements, late))
        return rounds.possible(statements, late) and held + own <= most

    schedule = scheduled(steps, lanes, skewed)
    signal = timing.latency["signal"] + timing.latency["arrive"]
    begin = 0.0 if walks else _START / _ROUNDS
    special = max(schedule.interval, work.copies()) + signal + begin
    held = min(_MOST_REGISTERS, work.registers(()) + _OWN)
    shared = depth * sum(tile.bytes for tile in loop.tiles.values()) + timing.block_shared
    blocks = max(1, min(timing.registers // (threads * held), timing.shared // shared))
    alone = scheduled(steps, lanes * blocks, lambda late: False).interval
    issue = len(loop.tiles) * timing.copy_issue + timing.latency["pass"] + timing.latency["barrier"]
    return Forms(max(alone, work.copies()) + issue, special, schedule, blocks)
