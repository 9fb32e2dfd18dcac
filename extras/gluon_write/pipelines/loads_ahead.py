"""Load ahead into registers: loads of a loop of products that nothing copies in the background run a step ahead.

    for k in range(0, K, BK):
        packed = gl.load(b_ptrs, mask=...)
        weights = unpack(packed)
        acc = gl.portable.mma(x, weights, acc)
        b_ptrs += BK * N

becomes a loop that loads the words of the next step before it unpacks those of this one. Where addresses come
from memory, as the numbers of pages or of rows to gather, these alone are loaded a step ahead: what they name
would take registers, and the room of other programs with them. So would factors of a loop's one product,
which are on their way while it runs. Where a step writes memory, vectors alone run ahead, past the writes as copies do,
if other arguments of the kernel are their pointers. Loads of less than a word each take many instructions: the last step branches around
them.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass, field
from typing import Any, Iterator, Mapping, Optional, Sequence

from gluon_core import language, portable
from gluon_write.loops.loads import MOST_WORDS, masked, replaced
from gluon_write.loops.loop_reader import LoopReader
from gluon_write.loops.loops import falling
from gluon_write.loops.single_step import follows_whole_steps
from gluon_write.pipelines.filling import takes_all
from gluon_write.text.form import free_name, one_line, renamed, rewritten
from gluon_write.text.step_masks import ends_with
from gluon_write.text.syntax import argument, is_new, nodes_in, reads, stores
from gluon_write.text.unread import without_unread
from gluon_write.tracing.pointer_names import pointer_name
from gluon_write.tracing.sketch import Place, Sketch
from gluon_write.tracing.tracer import Tracer

__all__ = ["AheadLoop", "AheadReader", "Load", "loaded_ahead", "read_by", "vectors_ahead"]

_LATER = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension)  # parts may not be evaluated
_WRITES = re.compile(
    r"store|atomic|inline_asm|print|barrier|scatter|shared_to_global|async_copy_local"
)
_PRODUCTS = re.compile(r"mma|dot")
_COPIES = "async_copy"
_WORD, _WIDEST = 32, 128  # bits of a register, and of a load
# Instructions of a thread for loads of tiles next to products under way. On an H200 products of 64 to 2048 rows with weights
# of bytes, in tiles of 64x64 and 128x128, took 0.69 to 1.00 of the time with their one load a step ahead.
_MOST_UNDER_WAY = 2
_LANES = 4  # that hold a row of a product, each with all its rows' columns
_MOST_COLUMNS = 16  # registers of a thread for the columns of a vector
Edit = tuple[int, int, list[str]]


@dataclass
class Load:
    """Hold a load of a loop.

    Attributes:
        call: the load. statement: the one of the loop's body with it.
        words: registers of a thread for its result. narrow: each instruction loads less than one.
        is_vector: it has one dimension at most.
        name: of the result of the next step.
    """

    call: ast.Call
    statement: ast.stmt
    words: int
    narrow: bool
    is_vector: bool
    name: str = ""

    @property
    def place(self) -> list[ast.expr]:
        """Return the expressions of its address, mask and replacement."""
        return [*self.call.args, *(word.value for word in self.call.keywords)]

    def reads(self) -> set[str]:
        """Return the names that these need."""
        return {name for part in self.place for name in reads(part)}


@dataclass
class AheadLoop:
    """Hold a loop whose loads run ahead.

    Attributes:
        ahead: the statements that their addresses need. inner: loads within these.
    """

    node: ast.For
    loads: list[Load]
    ahead: list[ast.stmt] = field(default_factory=list)
    inner: list[Load] = field(default_factory=list)


def loaded_ahead(
    traced: Tracer, fn: Any, drawn: Sketch, threads: int, together: Mapping[Place, int]
) -> Any:
    """Return a kernel whose loops of products load ahead, or the kernel.

    Args:
        together: place of a load -> neighbours that one instruction can move.
    """
    for addresses in (False, True):  # those that loads of the first round read
        ahead = AheadReader.rewrite(fn, drawn, addresses, together, threads=threads)
        if ahead is not fn:
            fn, drawn, together = ahead, traced(ahead), {}
    return fn


def read_by(
    kind: type[AheadReader],
    fn: Any,
    drawn: Sketch,
    threads: int,
    together: Mapping[Place, int],
    *,
    tidy: bool = False,
) -> Any:
    """Return a kernel with the changes that readers of a kind make, or the kernel.

    Args:
        tidy: leave out what nothing reads then.
    """

    def text_of(jit: Any, number: int) -> Optional[str]:
        reader = kind(jit, number, drawn, False, together)
        text = reader.text(threads)
        return text if text is None or not tidy else without_unread(text, reader.scope)

    return rewritten(fn, drawn.jits, text_of)


class AheadReader(LoopReader):
    """Write loops whose loads run ahead.

    Args:
        addresses: take the loads alone from which others get their addresses.
        together: place of a load -> neighbours that one instruction can move.
    """

    takes_falling = True
    note = "The loads of a step are under way during the step before."
    late = False  # a step loads for the next one behind its own uses
    counts_scalars = False  # among the registers for what a step takes from the one before

    def __init__(
        self, fn: Any, number: int, drawn: Sketch, addresses: bool, together: Mapping[Place, int]
    ):
        super().__init__(fn, number, drawn, wgmma=False)
        self.addresses, self.together = addresses, together

    def text(self, threads: int) -> Optional[str]:
        """Return the function with its loops of products changed; None without one."""
        if not self.space:
            return None
        taken = self.names_in_use()
        edits: list[Edit] = []
        for node in nodes_in(self.tree):
            loop = self._loop(node, threads) if isinstance(node, ast.For) else None
            if loop is not None:
                edits += self._written(loop, taken)
        if not edits:
            return None
        lines = self.source.splitlines()
        for start, stop, new in sorted(edits, key=lambda e: (e[0], e[1]), reverse=True):
            lines[start - 1 : stop] = new
        return "\n".join(lines) + "\n"

    # -- the loop -------------------------------------------------------------------------------

    def _loop(self, node: ast.For, threads: int) -> Optional[AheadLoop]:
        """Return a loop of products with the loads that can run ahead; None of other loops."""
        calls = self.calls_of(node)
        products = [call for call in calls or () if self.multiplies(call)]
        if not calls or not products or self.is_full(products, threads):
            return None
        loads = [load for s in node.body for load in self.loads_of(s, threads)]
        loads = [load for load in loads if not _is_ahead(load, node)]
        written = [call for call in calls if self._writes(call)]
        if written:
            copied = any(_COPIES in ast.unparse(call.func) for call in calls)
            loads = [one for one in loads if copied and one.is_vector and self._apart(one, written)]
        if any(map(_is_under_way, calls)):
            tiles = [load.call for load in loads if not load.is_vector]
            if sum(self.instructions(call, threads) for call in tiles) > _MOST_UNDER_WAY:
                return None  # ptxas would wait after each `wgmma` among so many loads
        results = {id(load.call): self._follow(load, loads, node) for load in loads}
        loop = AheadLoop(node, [])
        for load in loads:
            others = [one for one in loads if one.statement is not load.statement]
            fed = [one for one in others if one.reads() & results[id(load.call)]]
            if fed:
                # Without loads of 4 bytes a program has little to do but wait, and others do that for it.
                waits = len(products) == 1 and all(one.narrow for one in fed)
                ahead = self.addresses and not waits
            elif any(load.reads() & results[id(one.call)] for one in others):
                ahead = False
            else:
                needed = len(products) > 1 or reads(products[0]) & results[id(load.call)]
                ahead = bool(needed) and not self.addresses
            if ahead and self._needs(load, loop, loads) is not None:
                loop.loads.append(load)
        if not loop.loads or sum(load.words for load in loop.loads) > MOST_WORDS:
            return None
        wanted = [self._needs(load, loop, loads) or [] for load in loop.loads]
        loop.ahead = [s for s in node.body if any(s in one for one in wanted)]
        loop.inner = [load for load in loads if load.statement in loop.ahead]
        return loop

    def is_full(self, products: list[ast.Call], threads: int) -> bool:
        """Return True if a product, which begins anew in each step, and the sum that it is added to take the registers of a thread."""
        sums = [(call, argument(call, 2, "acc")) for call in products]
        sums = [(call, acc) for call, acc in sums if acc is not None]
        if len(sums) != 1 or self.called(sums[0][1]) is not language.zeros:
            return False
        kind = self.type_of(sums[0][0])
        return kind is not None and takes_all(*kind, threads)

    def calls_of(self, node: ast.For) -> Optional[list[ast.Call]]:
        """Return the calls of a loop over a range that runs to its end; None of other loops."""
        bounds = node.iter
        if not isinstance(bounds, ast.Call) or bounds.keywords or node.orelse:
            return None
        if ast.unparse(bounds.func) != "range" or not isinstance(node.target, ast.Name):
            return None
        body = [part for statement in node.body for part in nodes_in(statement)]
        if node.target.id in {name for s in node.body for name in stores(s)}:
            return None
        if any(
            isinstance(p, (ast.For, ast.While, ast.Return, ast.Break, ast.Continue)) for p in body
        ):
            return None
        return [part for part in body if isinstance(part, ast.Call)]

    def loads_of(self, statement: ast.stmt, threads: int) -> Iterator[Load]:
        """Yield the loads of one statement that is always executed."""
        if not isinstance(statement, (ast.Assign, ast.AugAssign)):
            return
        if not self.begins_line(statement) or any(
            isinstance(node, _LATER) for node in nodes_in(statement)
        ):
            return
        for node in nodes_in(statement.value):
            if not isinstance(node, ast.Call) or self.called(node) is not language.load:
                continue
            volatile = argument(node, 6, "volatile")
            place, values = self.place_of(node), self.values_of(node)
            run = self.together.get(place, 64) if place else 64
            sizes = {_words(value, threads, run) for value in values}
            if values and volatile is None and not any(w.arg is None for w in node.keywords):
                narrow = all(run * _bits(value) < _WORD and value.type.dims for value in values)
                flat = all(len(getattr(value.type, "dims", ())) < 2 for value in values)
                yield Load(node, statement, max(sizes), narrow, flat)

    def instructions(self, call: ast.Call, threads: int) -> int:
        """Return the instructions of a thread for a load."""
        place, values = self.place_of(call), self.values_of(call)
        run = self.together.get(place, 1) if place else 1
        counts = [0]
        for value in values:
            vector = threads * max(1, min(run, _WIDEST // _bits(value)))
            counts.append(-(-math.prod(getattr(value.type, "dims", ())) // vector))
        return max(counts)

    def multiplies(self, call: ast.Call) -> bool:
        name = str(getattr(self.called(call), "__name__", ""))
        return self.called(call) is portable.mma or bool(_PRODUCTS.search(name))

    def _writes(self, call: ast.Call) -> bool:
        """Return True for a call that may change global memory."""
        called = self.called(call)
        if called is None:
            function = call.func
            method = function.attr if isinstance(function, ast.Attribute) else ""
            index = isinstance(function, ast.Attribute) and "index(" in ast.unparse(function.value)
            return bool(_WRITES.search(method)) and not index  # of a ring in shared memory
        if called in self.drawn.jits:
            return bool(_WRITES.search(called.src))
        return bool(_WRITES.search(str(getattr(called, "__name__", ""))))

    def _apart(self, load: Load, written: Sequence[ast.Call]) -> bool:
        """Return True if a load has another argument of the kernel for its pointer than those that write."""
        own, others = self._argument(load.call), [self._argument(call) for call in written]
        return not self.number and own is not None and None not in others and own not in others

    def _argument(self, call: ast.Call) -> Optional[str]:
        """Return the argument of the function that the address of an access begins with."""
        name = pointer_name(self.drawn.jits, self.place_of(call))
        arguments = {arg.arg for arg in nodes_in(self.tree.args) if isinstance(arg, ast.arg)}
        before: set[str] = set()
        while name and name not in arguments and name not in before:
            before.add(name)
            values = [
                s.value
                for s in nodes_in(self.tree)
                if isinstance(s, ast.Assign) and name in stores(s)
            ]
            value: Any = values[0] if len(values) == 1 else None
            while isinstance(value, ast.BinOp):
                value = value.left
            name = value.id if isinstance(value, ast.Name) else ""
        return name if name in arguments else None

    def _follow(self, load: Load, loads: Sequence[Load], node: ast.For) -> set[str]:
        """Return the names whose values a step computes from a load, other loads left out."""
        names = set(stores(load.statement))
        changed = True
        while changed:
            changed = False
            for statement in node.body:
                if reads(statement) & names and not stores(statement) <= names:
                    if not any(one.statement is statement for one in loads):
                        names |= stores(statement)
                        changed = True
        return names

    def _needs(
        self, load: Load, loop: AheadLoop, loads: Sequence[Load]
    ) -> Optional[list[ast.stmt]]:
        """Return the statements that an address needs; None if one of them cannot run ahead."""
        wanted = load.reads()
        chosen: list[ast.stmt] = []
        variable = stores(loop.node.target)
        changed = True
        while changed:
            changed = False
            for statement in loop.node.body:
                if statement in chosen or not stores(statement) & wanted:
                    continue
                if not isinstance(statement, (ast.Assign, ast.AugAssign)):
                    return None
                if statement is load.statement or not self._runs_ahead(statement, loads):
                    return None
                chosen.append(statement)
                wanted |= reads(statement)
                changed = True
        return chosen if chosen or wanted & variable else None

    def _loop_of_loads(self, node: ast.For, loads: list[Load]) -> Optional[AheadLoop]:
        """Return a loop all of whose loads run ahead; None where an address cannot, or nothing is loaded."""
        loop = AheadLoop(node, loads)
        wanted = [self._needs(load, loop, loads) for load in loads]
        if not wanted or None in wanted:
            return None
        loop.ahead = [s for s in node.body if any(s in (one or ()) for one in wanted)]
        loop.inner = [load for load in loads if load.statement in loop.ahead]
        loop.loads = [load for load in loads if load not in loop.inner]
        return loop

    def carried_words(self, loop: AheadLoop, threads: int) -> int:
        """Return the registers of a thread for the tensors that a step takes from the one before."""
        words = 0
        for statement in loop.node.body:
            if statement in loop.ahead or not isinstance(statement, (ast.Assign, ast.AugAssign)):
                continue
            if not all(is_new(name, loop.node) for name in stores(statement)):
                shapes = self.shapes_of(statement.value)
                sizes = [math.prod(shape) for shape in shapes if shape or self.counts_scalars]
                words += -(-max(sizes, default=0) // threads)
        return words

    def _runs_ahead(self, statement: ast.stmt, loads: Sequence[Load]) -> bool:
        """Return True for arithmetic, and for loads of addresses."""
        known = [load.call for load in loads if load.statement is statement and load.words <= 2]
        for call in nodes_in(statement):
            if not isinstance(call, ast.Call) or call in known:
                continue
            called = self.called(call)
            if called in (language.load, portable.load) or self.multiplies(call):
                return False
            if called in self.drawn.jits and re.search(r"load|mma", called.src):
                return False
        return True

    def behind(self, loop: AheadLoop) -> int:
        """Return the line behind which a step loads for the next one, if that is late."""
        return loop.node.end_lineno or 0

    # -- the text -------------------------------------------------------------------------------

    def _written(self, loop: AheadLoop, taken: set[str]) -> list[Edit]:
        """Return the edits of a loop: first and last line, and the new lines."""
        node = loop.node
        assert isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call)
        first, last, stride = self.bounds(node)
        names = {name for statement in loop.ahead for name in stores(statement)}
        moved = {name: free_name(f"{name}_ahead", taken) for name in sorted(names)}
        ahead = moved.setdefault(node.target.id, free_name(f"{node.target.id}_ahead", taken))
        for load in loop.loads:
            word = sorted(stores(load.statement))[0]
            if isinstance(load.statement, ast.AugAssign):  # which names a sum
                word = pointer_name(self.drawn.jits, self.place_of(load.call)) or word
            load.name = free_name(f"{word}_ahead", taken)
        falls = falling(node, self.number, self.drawn)
        inside = f"{ahead} {'>' if falls else '<'} {last}"
        fetch, move = self._fetch(loop, moved, inside)
        counted = f"{ahead} += {stride}"
        again = [*move, counted, *fetch]
        if not self.late and all(load.narrow for load in loop.loads):
            # Many instructions, of which the last step needs none.
            branch, early = self._fetch(loop, moved, None)[0], list(move)
            if not any(ahead in reads(ast.parse(line)) for line in move):
                branch, early = [*move, *branch], []
            again = [*early, counted, f"if {inside}:", *(f"    {line}" for line in branch)]
        outer, inner = " " * node.col_offset, " " * node.body[0].col_offset
        before = [f"{outer}# {self.note}"]
        before += [f"{outer}{moved[name]} = {name}" for name in self._carried(loop, names)]
        before.append(f"{outer}{ahead} = {first}")
        before += [f"{outer}{line}" for line in fetch]
        edits: list[Edit] = [(node.lineno, node.lineno - 1, before)]
        if self.late:
            end = self.behind(loop)
            edits.append((end + 1, end, [f"{inner}{line}" for line in again]))
        now = {id(load): load.name for load in loop.loads}
        if not self.late:
            now = {id(load): free_name(f"{load.name}_now", taken) for load in loop.loads}
        earliest = min((load.statement for load in loop.loads), key=lambda s: s.lineno)
        taken_over = [f"{now[id(load)]} = {load.name}" for load in loop.loads]
        statements = {id(load.statement): load.statement for load in loop.loads}
        for statement in statements.values():
            calls = [load for load in loop.loads if load.statement is statement]
            text = replaced(self, statement, [(load.call, now[id(load)]) for load in calls])
            new = [*taken_over, *again] if statement is earliest and not self.late else []
            lines = [f"{inner}{line}" for line in (*new, *text.splitlines())]
            edits.append((statement.lineno, statement.end_lineno or 0, lines))
        return edits

    def _fetch(
        self, loop: AheadLoop, moved: dict[str, str], inside: Optional[str]
    ) -> tuple[list[str], list[str]]:
        """Return the lines that load for a step ahead, and those that move on to the step behind it.

        Args:
            inside: the condition under which that step is one of the loop; None where it surely is.
        """

        def fetched(call: ast.Call) -> str:
            alone = inside is None or rises and ends_with(self, call, loop.node)
            return self.text_of(call) if alone else masked(self, call, inside or "")

        rises = not falling(loop.node, self.number, self.drawn)
        lines: list[str] = []
        count = 0
        for statement in loop.node.body:
            for load in loop.loads:
                if load.statement is statement:
                    lines.append(f"{load.name} = {one_line(renamed(fetched(load.call), moved))}")
                    count = len(lines)
            if statement in loop.ahead:
                calls = [load for load in loop.inner if load.statement is statement]
                text = replaced(
                    self, statement, [(load.call, fetched(load.call)) for load in calls]
                )
                lines.append(one_line(renamed(text, moved)))
        return lines[:count], lines[count:]

    def _carried(self, loop: AheadLoop, names: set[str]) -> list[str]:
        """Return those that a step takes from the one before: they are read before they are assigned."""
        assigned: set[str] = set()
        carried: list[str] = []
        for statement in loop.node.body:
            read = {n for load in loop.loads if load.statement is statement for n in load.reads()}
            read |= reads(statement) if statement in loop.ahead else set()
            carried += sorted(n for n in read & names if n not in assigned and n not in carried)
            if statement in loop.ahead:
                assigned |= stores(statement)
        return carried


def vectors_ahead(fn: Any, drawn: Sketch, threads: int) -> Any:
    """Return a kernel whose loops of several products load the vectors of a step during the step before, or the kernel.

    Args:
        threads: of the program.
    """
    return read_by(_VectorsAhead, fn, drawn, threads, {})


class _VectorsAhead(AheadReader):
    """Write loops that load the vectors of the next step right behind the last use of this step's."""

    late = True
    left = 0  # registers of a thread for the columns of a loop's vectors

    def _loop(self, node: ast.For, threads: int) -> Optional[AheadLoop]:
        self.left = _MOST_COLUMNS
        return None if follows_whole_steps(self, node) else super()._loop(node, threads)

    def loads_of(self, statement: ast.stmt, threads: int) -> Iterator[Load]:
        for load in super().loads_of(statement, threads):
            values = self.values_of(load.call)
            sizes = (math.prod(value.type.dims) * _bits(value) for value in values)
            words = max(sizes) // (_LANES * _WORD)
            if load.is_vector and words <= self.left:
                self.left -= words
                yield load

    def behind(self, loop: AheadLoop) -> int:
        names = {
            name
            for load in loop.loads
            for name in stores(load.statement)
            if load.call is getattr(load.statement, "value", None)
        }
        used = [s for s in loop.node.body if reads(s) & names]
        return max(s.end_lineno or 0 for s in (*used, *(load.statement for load in loop.loads)))


def _is_ahead(load: Load, loop: ast.For) -> bool:
    """Return True if the next step alone reads a load."""
    names, index = stores(load.statement), loop.body.index(load.statement)
    before, after = (
        any(reads(statement) & names for statement in part)
        for part in (loop.body[:index], loop.body[index + 1 :])
    )
    return before and not after


def _is_under_way(call: ast.Call) -> bool:
    """Return True for a product that is under way when it returns."""
    started = next((word.value for word in call.keywords if word.arg == "is_async"), None)
    return isinstance(started, ast.Constant) and started.value is True


def _words(value: Any, threads: int, together: int) -> int:
    """Return the registers of a thread for a tensor, at least one for each of its loads."""
    size = 1
    for extent in getattr(value.type, "dims", ()):
        size *= extent
    words = -(-size * _bits(value) // (_WORD * threads))
    return max(1, words, -(-size // (threads * together)))


def _bits(value: Any) -> int:
    """Return the bits of an element."""
    return int(getattr(getattr(value.type, "element", value.type), "bits", _WORD))
