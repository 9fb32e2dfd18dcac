"""Write the rounds of a loop of products that other warps feed: waits, releases, and the order of a schedule."""

from __future__ import annotations

import ast
import contextlib
import re
from dataclasses import dataclass
from typing import Collection, Iterable, Mapping, Optional, Sequence

from gluon_write.loops.loop_reader import LoopReader
from gluon_write.loops.loops import Loop, Tile
from gluon_write.loops.single_step import has_one_step
from gluon_write.pipelines.schedule import Schedule
from gluon_write.rewrites.column_masks import column_mask
from gluon_write.text.form import factor, free_name
from gluon_write.text.syntax import mentions, names_in, nodes_in, reads, stores

__all__ = ["Before", "Rounds"]

Names = Mapping[str, str]


@dataclass
class _Pending:
    """Hold a product under way.

    Attributes:
        name: of its result. slot: of its tiles. new: it is of this interval.
        plain: its result is a tensor again, after a wait for products before it.
        passed: arithmetic has run since it was issued.
    """

    statement: ast.stmt
    name: str
    slot: str
    new: bool = True
    plain: bool = False
    passed: bool = False


@dataclass
class _Place:
    """Hold how a statement is spelled in one place.

    Attributes:
        slot: of the round. reads, writes: other names for variables.
    """

    slot: str
    reads: Names
    writes: Names


@dataclass
class Before:
    """Hold the masked step that comes before the whole ones.

    Attributes:
        rounds: of its loop, which has one step at most, with `bounds`.
        sure: there is such a step wherever the loop of whole ones is reached.
    """

    rounds: Rounds
    bounds: tuple[str, str, str]
    sure: bool


class Apart(Exception):
    """Say that the masked step keeps statements of its own, behind those of a whole one."""


class Rounds:
    """Spell the statements of a loop that the consumer executes.

    Args:
        rings: name of a ring -> its tiles.
    """

    def __init__(self, reader: LoopReader, loop: Loop, rings: Mapping[str, list[Tile]]):
        self.reader, self.loop, self.rings = reader, loop, rings
        self.results: list[str] = []
        self.first = ""  # the loop's first step
        self.variable = ""  # of the loop, as releases read it
        self.threads = False  # another loop goes on with the slots
        self.held: dict[str, str] = {}  # tile that all steps read from shared memory -> where it is
        self.single = has_one_step(reader, loop.node)
        # Lines of statements with masks of columns.
        self.masks: dict[ast.stmt, tuple[str, ...]] = {}
        self.rare = False  # no step, as a rule: its registers count, and not its time
        loads = loop.loads
        self.all = [s for s in loop.node.body if s not in loads]
        taken = reader.names_in_use()
        self.slot, self.next = free_name("slot", taken), free_name("next_slot", taken)
        self.taken = taken

    # -- statements -----------------------------------------------------------------------------

    def statements(self, results: Collection[str]) -> list[ast.stmt]:
        """Return the statements without those that only the producer needs."""
        needed = set(results)
        kept: set[int] = set()
        changed = True
        while changed:
            changed = False
            for statement in self.all:
                pure = isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign))
                wanted = not pure or statement in self.loop.issued or stores(statement) & needed
                if id(statement) not in kept and wanted:
                    kept.add(id(statement))
                    needed |= reads(statement)
                    changed = True
        return [s for s in self.all if id(s) in kept]

    def needs(self, statements: Sequence[ast.stmt]) -> list[tuple[tuple[int, int], ...]]:
        """Return for each statement (statement, rounds ago) of the results that it waits for."""
        writers = [stores(s) for s in statements]
        listed = []
        for number, statement in enumerate(statements):
            wanted: set[tuple[int, int]] = set()
            for name in reads(statement) - self.reader.chained(statement, self.loop):
                before = [i for i in range(number) if name in writers[i]]
                after = [i for i in range(number, len(statements)) if name in writers[i]]
                if before:
                    wanted.add((before[-1], 0))
                elif after:
                    wanted.add((after[-1], 1))
            if statement in self.loop.issued:
                wanted.add((number, 2))  # its slot is released before
            listed.append(tuple(sorted(wanted)))
        return listed

    def follows(self, statements: Sequence[ast.stmt]) -> list[frozenset[int]]:
        """Return for each statement those before it that share a name which one of the two assigns."""
        named = [(stores(statement), mentions(statement)) for statement in statements]
        return [
            frozenset(
                i
                for i, (its_stores, its_names) in enumerate(named[:number])
                if its_stores & names or its_names & assigned
            )
            for number, (assigned, names) in enumerate(named)
        ]

    def possible(self, statements: Sequence[ast.stmt], late: Collection[int]) -> bool:
        """Return True if the late statements may run in the next round, after the first products of it.

        Each product has to end within its interval: the assembler lets the sums of two products be
        under way from one round to the next only one after the other.
        """
        cut = min(late)
        issued = [i for i in range(cut) if statements[i] in self.loop.issued]
        ahead = range(issued[-1] + 1)
        if {n for i in ahead for n in stores(statements[i])} & {
            n for i in late for n in stores(statements[i])
        }:
            return False
        for tile in self.loop.tiles.values():
            users = {i in late for i, s in enumerate(statements) if tile.name in self._uses(s)}
            if len(users) > 1:
                return False
        needs = self.needs(statements)
        rest = range(len(ahead), cut)
        for number, statement in enumerate(statements):
            if statement not in self.loop.issued:
                continue
            ago = int(number in late)
            later = [i for i in rest if (number, ago) in needs[i]]
            later += [i for i in late if ago and (number, 0) in needs[i]]
            if not later:
                return False
        return True

    def _uses(self, statement: ast.stmt) -> set[str]:
        """Return the names in a statement, without tiles of which it asks for the dtype alone."""
        asked = {
            id(name)
            for node in nodes_in(statement)
            if self.reader.fact_of(node, self.loop) is not None
            for name in nodes_in(node)
        }
        return {n.id for n in names_in(statement) if id(n) not in asked}

    def with_bounds(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements without those that make a mask of columns, which threads compare with a bound of their own."""
        mask = column_mask(self.reader, statements, self.taken)
        if mask is None:
            return statements
        self.masks[mask.statement] = mask.lines
        needed = {name for s in mask.makers for name in reads(s)}
        others = [s for s in self.all if s not in (*mask.makers, mask.statement)]
        unread = needed - {name for s in others for name in reads(s)} - {*self.results}
        return [s for s in statements if s not in mask.makers and not stores(s) & unread]

    # -- the text -------------------------------------------------------------------------------

    def lines(
        self, schedule: Schedule, bounds: tuple[str, str, str], results: Sequence[str]
    ) -> list[str]:
        """Return the body of the consumer's function, in the order of a schedule."""
        begin = f"{self.slot} = {next(iter(self.rings))}.consumer()"
        end = [f"return {', '.join(results)}"] if results else []
        return [begin, *self._body(schedule, bounds, results), *end]

    def threaded(
        self,
        schedule: Schedule,
        bounds: tuple[str, str, str],
        results: Sequence[str],
        masked: Optional[Before] = None,
    ) -> list[str]:
        """Return the loop, from a slot that is there before to the one after its last, all slots released.

        Args:
            masked: the step in front of the loop. Products of the first whole step overlap its arithmetic where both have the same late statements.
        """
        self.threads = True
        if masked is not None:
            self.results, self.first = list(results), bounds[0]
            with contextlib.suppress(Apart):
                return self._skewed(self.statements(results), schedule, bounds, masked)
            masked.rounds.threads = True
            step = masked.rounds._once(masked.rounds.statements(results), masked.bounds)
            return [*step, *self._body(schedule, bounds, results)]
        return self._body(schedule, bounds, results)

    def _body(
        self, schedule: Schedule, bounds: tuple[str, str, str], results: Sequence[str]
    ) -> list[str]:
        statements = self.statements(results)
        self.results, self.first = list(results), bounds[0]
        if self.threads and (self.single or self.rare):
            return self._once(statements, bounds)
        if schedule.late:
            return self._skewed(statements, schedule, bounds)
        if self.threads and self._feeds_a_sum():
            return self._once(statements, bounds)
        return self._plain(statements, bounds)

    def _feeds_a_sum(self) -> bool:
        """Return True for two products, one of which adds up what is computed from the other.

        In a partition ptxas waits after each `wgmma` where such a sum is under way in the next round.
        """
        issued = self.loop.issued
        adding = [s for s in issued if self.reader.adds(s, self.loop)]
        return len(issued) == 2 and len(adding) == 1

    def _once(self, statements: list[ast.stmt], bounds: tuple[str, str, str]) -> list[str]:
        """Return the only step that there may be, without a loop, or steps each of which ends its products."""
        target = self.loop.node.target
        assert isinstance(target, ast.Name)
        used = {name for s in statements for name in reads(s)}
        taken = {
            name: free_name(f"{name}_again", self.taken) for name in sorted({*self.held} & used)
        }
        here = _Place(self.slot, taken, {})
        statements = self.with_bounds(statements)
        lines, left = self._run([(s, here) for s in statements], [])
        again = [f"{new} = {self.held[name]}" for name, new in taken.items()]
        if again:
            note = "# By a slot of its own: ptxas computes a tile's descriptor in the loop above alone."
            again.insert(0, note)
        body = [*again, *lines, *self._over(left, len(left)), f"{self.slot} = {self.slot}.next()"]
        if not self.single:
            return [f"for {target.id} in range({', '.join(bounds)}):", *_indented(body)]
        head = ["# One step at most is left.", f"if {bounds[0]} < {bounds[1]}:"]
        return [*head, *_indented([f"{target.id} = {bounds[0]}", *body])]

    def _plain(self, statements: list[ast.stmt], bounds: tuple[str, str, str]) -> list[str]:
        """Return the loop with its statements in the order of the program."""
        target = self.loop.node.target
        assert isinstance(target, ast.Name)
        self.variable = target.id
        here = _Place(self.slot, {}, {})
        order = [(s, here) for s in statements]
        left = self._run(order, [])[1]
        body, left = self._run(order, left)
        lines = self._begun(left)
        lines.append(f"for {target.id} in range({', '.join(bounds)}):")
        lines += _indented([*body, f"{self.slot} = {self.slot}.next()"])
        last = list(dict.fromkeys(self._ring(one) for one in left)) if self.threads else []
        lines += self._over(left, len(left), release=False)
        pred = f"{bounds[0]} < {bounds[1]}"
        return [*lines, *(f"{ring}.release({self.slot}.before(), pred={pred})" for ring in last)]

    def _skewed(
        self,
        statements: list[ast.stmt],
        schedule: Schedule,
        bounds: tuple[str, str, str],
        masked: Optional[Before] = None,
    ) -> list[str]:
        """Return the loop with the late statements a round behind the others.

        Raises:
            Apart: a masked step in front of the loop has other late statements.
        """
        target = self.loop.node.target
        assert isinstance(target, ast.Name)
        first, last, step = bounds
        self.variable = before = free_name(f"{target.id}_before", self.taken)
        late = [statements[i] for i in sorted(schedule.late)]
        early = [s for i, s in enumerate(statements) if i not in schedule.late]
        count = next(n for n, i in enumerate(schedule.order) if i in schedule.late)
        read = {name for s in late for name in mentions(s)}
        # Late statements read the other names before this round assigns them.
        crossing = sorted({n for i in schedule.order[:count] for n in stores(statements[i])} & read)
        ahead = {name: free_name(f"{name}_next", self.taken) for name in crossing}
        behind = _Place(self.slot, {target.id: before}, {})
        in_front = _Place(self.next, {}, ahead)
        body = [f"{before} = {first}"]
        if masked is None:
            lines, left = self._run([(s, behind) for s in early], [])
            body += [*lines, *self._over(left, len(left))]
        else:
            body = self._either(early, late, masked)
        order = [
            (statements[i], behind if i in schedule.late else in_front) for i in schedule.order
        ]
        left = self._run(order, [], in_front)[1]
        inner, left = self._run(order, left, in_front)
        body += self._begun(left)
        start = step if first == "0" else f"{first} + {factor(step)}"
        end = last
        if masked is not None:
            end = masked.bounds[1]
            some = f"{self.reader.space}.where({last} < {end}, {first}, {start})"
            start = first if masked.sure else some
        body.append(f"for {target.id} in range({start}, {last}, {step}):")
        inner.insert(0, f"{self.next} = {self.slot}.next()")
        inner += [f"{name} = {new}" for name, new in ahead.items()]
        inner.append(f"{self.slot} = {self.next}")
        if any(re.search(rf"\b{before}\b", line) for line in inner):
            inner.insert(-1, f"{before} = {target.id}")
        body += _indented(inner)
        words = rf"\bpred=|\b({before}|{target.id})\b"
        if masked is not None and any(re.search(words, line) for line in inner):
            raise Apart  # a statement of the round before reads its place
        for one in left:
            one.new = False
        threads = self.threads
        lines, left = self._run([(s, behind) for s in late], left, release=threads)
        body += [*lines, *self._over(left, len(left), release=threads)]
        if threads:
            body.append(f"{self.slot} = {self.slot}.next()")
        if masked is not None and masked.sure:
            return body
        return [f"if {first} < {end}:", *_indented(body)]

    def _either(self, early: list[ast.stmt], late: list[ast.stmt], masked: Before) -> list[str]:
        """Return the early statements of the masked step or, without one, of the first whole step.

        Raises:
            Apart: their products or the late statements differ.
        """
        other, behind = masked.rounds, {ast.unparse(statement) for statement in late}
        own = other.statements(self.results)
        ahead = [s for s in own if ast.unparse(s) not in behind]
        count = 1 + max((i for i, s in enumerate(early) if s in self.loop.issued), default=-1)
        texts = {ast.unparse(statement) for statement in early[:count]}
        rest = [s for s in ahead if ast.unparse(s) not in texts]
        if len(own) - len(ahead) != len(late) or len(ahead) - len(rest) != count:
            raise Apart
        kept = {name for s in early[:count] for name in mentions(s)}
        moved = {name for s in late for name in stores(s)}
        target = other.loop.node.target
        assert isinstance(target, ast.Name)
        if any(
            stores(s) & kept - set(self.loop.issued.values())
            for s in rest
            if s in _before(own, late)
        ):
            raise Apart
        if any(reads(s) & moved for s in rest if s not in _before(own, late)):
            raise Apart
        if any(target.id in mentions(s) for s in early):
            raise Apart
        here = _Place(self.slot, {}, {})
        lines, left = self._run([(s, here) for s in early[:count]], [])
        lines += self._over(left, len(left))
        plain, left = self._run([(s, here) for s in early[count:]], [])
        special, more = other._run([(s, here) for s in other.with_bounds(rest)], [])
        if left or more:
            raise Apart
        special.insert(0, f"{target.id} = {masked.bounds[0]}")
        shared: list[str] = []
        while plain and special and plain[-1] == special[-1]:
            shared.insert(0, plain.pop())
            special.pop()
        if masked.sure:
            return [*lines, *special, *shared]
        lines += [f"if {masked.bounds[0]} < {masked.bounds[1]}:", *_indented(special)]
        lines += ["else:", *_indented(plain)] if plain else []
        return [*lines, *shared]

    def _begun(self, pending: list[_Pending]) -> list[str]:
        """Return lines that let sums be under way at the begin of a loop."""
        init = f"{self.reader.space}.nvidia.hopper.warpgroup_mma_init"
        names = dict.fromkeys(one.name for one in pending if not one.plain)
        return [f"{name} = {init}({name})" for name in names]

    def _run(
        self,
        order: Iterable[tuple[ast.stmt, _Place]],
        pending: list[_Pending],
        ended: _Place | None = None,
        release: bool = True,
    ) -> tuple[list[str], list[_Pending]]:
        """Return the lines of statements, and the products that are under way after them.

        Args:
            pending: those that are under way before. ended: products of this place end within.
        """
        lines: list[str] = []
        pending = [_Pending(one.statement, one.name, one.slot, False) for one in pending]
        written: set[str] = set()  # of the places' new names
        waited: set[str] = set()
        for statement, place in order:
            names = {n: place.writes[n] for n in written if n in place.writes} | dict(place.reads)
            used = self._uses(statement) - self.reader.chained(statement, self.loop)
            used = {names.get(name, name) for name in used}
            needed = [i for i, one in enumerate(pending) if one.name in used]
            if needed:
                lines += self._over(pending, needed[-1] + 1, release)
            lines += self._taken(statement, place, waited)
            piece = self.reader.piece(statement, self.loop, names, place.writes)
            lines += self.masks.get(statement, piece)
            written |= stores(statement)
            if statement not in self.loop.issued:
                for one in pending:
                    one.passed = True
            else:
                name = self.loop.issued[statement]
                pending.append(_Pending(statement, place.writes.get(name, name), place.slot))
                old = {one.name for one in pending if not one.new}
                if old and old <= {one.name for one in pending if one.new}:
                    lines += self._over(pending, sum(not one.new for one in pending), release)
        ends = [i for i, p in enumerate(pending) if not p.new or ended and p.slot == ended.slot]
        lines += self._over(pending, ends[-1] + 1 if ends else 0, release)
        return lines, pending

    def _taken(self, statement: ast.stmt, place: _Place, waited: set[str]) -> list[str]:
        """Return lines that wait for the tiles that a statement uses."""
        lines = []
        used = self._uses(statement)
        for ring, tiles in self.rings.items():
            if ring not in waited and any(tile.name in used for tile in tiles):
                waited.add(ring)
                names = ", ".join(tile.name for tile in tiles)
                lines.append(f"{names} = {ring}.wait({place.slot})")
        return lines

    def _over(self, pending: list[_Pending], count: int, release: bool = True) -> list[str]:
        """Return lines that wait for the first `count` products and release their slots."""
        if not count:
            return []
        done, pending[:] = pending[:count], pending[count:]
        over = list(dict.fromkeys(one.name for one in done))
        for one in pending:
            one.plain = one.plain or one.name in over
        names = ", ".join(over)
        hopper = f"{self.reader.space}.nvidia.hopper"
        lines = []
        late = next((p for p in done if p.passed and p.new and p.slot != self.next), None)
        if late is not None and release:
            lines.append(
                "# Its tile came long ago, but ptxas moves the next wait up to the last branch."
            )
            lines.append(f"{self._ring(late)}.wait({late.slot})")
        lines.append(f"{names} = {hopper}.warpgroup_mma_wait({len(pending)}, deps=[{names}])")
        for one in done if release else ():
            ring = self._ring(one)
            if one.new:
                lines.append(f"{ring}.release({one.slot})")
            else:
                pred = f"{self.variable} != {factor(self.first)}"
                lines.append(f"{ring}.release({self.slot}.before(), pred={pred})")
        return lines

    def _ring(self, pending: _Pending) -> str:
        """Return the ring of a product's tiles."""
        used = mentions(pending.statement)
        return next(tile.ring for tile in self.loop.tiles.values() if tile.name in used)


def _before(own: list[ast.stmt], late: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements in front of all late ones."""
    behind = {ast.unparse(statement) for statement in late}
    first = next((i for i, s in enumerate(own) if ast.unparse(s) in behind), len(own))
    return own[:first]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" if line else "" for line in lines]
