"""Give attention on Blackwell partitions: copies, products, exponentials of each part of the rows, and the correction of sums.

    for start in range(0, length, BN):
        key = gl.portable.load(k_tiles, [start, 0])
        score = gl.portable.mma(query, gl.permute(key, (1, 0)), nothing)
        ...
        acc = gl.portable.mma(weight, value, acc * kept[:, None])

becomes, in the partition that issues products, which is a step ahead with the first one,

    gl.nvidia.blackwell.tcgen05_mma(query, key.permute((1, 0)), scores.take(turn), use_acc=False)
    scores.done(turn)
    ...
    gl.nvidia.blackwell.mbarrier.wait(weights_ready, phase)
    gl.nvidia.blackwell.tcgen05_mma(weights, value, sums, use_acc=begun != 0)
    gl.nvidia.blackwell.tcgen05_commit(weights_free)

The partitions that have rows take scores from tensor memory and store weights there, which the unit reads. They hand
the factor of the sums to a partition that corrects them in tensor memory while the exponentials are computed.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Iterable, Optional, Sequence

from gluon_write.loops.loops import Loop, viewed
from gluon_write.loops.tile_loops import LoopsOfTiles, wrapped
from gluon_write.partitions.own_tiles import DEPTH, OwnTile, names_of, own_tiles
from gluon_write.partitions.partitions import Partitions
from gluon_write.partitions.ring_plan import GROUP, Function, NoForm
from gluon_write.pipelines.rounds import Rounds
from gluon_write.text.form import bounds_of, factor, free_name, one_line
from gluon_write.text.syntax import argument, mentions, operands_of, reads, stores

__all__ = ["RowsInTensorMemory"]

_ROWS, _COLUMNS = 128, 512  # of a part, and of tensor memory
_BITS = 16
_REGISTERS = {"rows": 168, "corrections": 96, "products": 48, "copies": 48}  # of a thread
_WORDS = {
    "rows": "Compute the weights of a part of the rows.",
    "products": "Multiply the tiles of each step, scores a step ahead.",
    "corrections": "Multiply the sums by the factors of each step.",
    "copies": "Copy the tiles of each step.",
}


@dataclass
class _Step:
    """Hold the parts of a loop's step.

    Attributes:
        score, sum: the statements of the products. name: of the sum.
        kept: name of the factor of its rows; "" of none.
        scaling: the statement that multiplies the sum by it; None where the product does.
    """

    score: ast.Assign
    sum: ast.Assign
    name: str
    kept: str = ""
    scaling: Optional[ast.stmt] = None


class RowsInTensorMemory(Partitions):
    """Hold a kernel whose loops multiply twice, by scores and by weights, in partitions."""

    splits_copies = False
    describes_late = False

    def _find(self) -> None:
        super()._find()
        if len(self.functions) != 1:
            raise NoForm
        kernel = self.functions[0]
        self.role = "rows"
        reader = kernel.reader
        self.steps = {id(loop.node): self._step(reader, loop) for loop in kernel.loops.values()}
        names = {(one.name, bool(one.kept)) for one in self.steps.values()}
        if len(names) != 1:
            raise NoForm
        self.sum, self.corrects = names.pop()
        self.last = max(kernel.loops.values(), key=lambda loop: loop.node.lineno)
        self.start = min(kernel.loops.values(), key=lambda loop: loop.node.lineno)
        self.turn, self.phase = free_name("turn", self.taken), free_name("phase", self.taken)
        self.begun = free_name("begun", self.taken)
        self.layout = free_name("rows_layout", self.taken)
        self.shared = {
            word: names_of(free_name(word, self.taken), self.parts)
            for word in ("scores", "weights", "sums", "weights_ready", "weights_free",
                         "factors", "factors_ready", "factors_free")
        }  # fmt: skip
        self.sizes = self._sizes(reader)
        self.taken.discard(kernel.products)
        self.names = {
            role: free_name(f"{reader.tree.name}_{role}", self.taken)
            for role in ("rows", "products", "corrections")
        }
        self.names["copies"] = kernel.copies
        kernel.products = self.names["rows"]

    @property
    def users(self) -> int:
        return 1  # the partition that multiplies

    def _fit(self) -> None:
        """Leave the slots of the rings to `_place_own`."""

    def _place_own(self, kernel: Function) -> None:
        """Give the parts rings of their queries, and the tiles as many slots as are asked for or there is memory for."""
        self.own = own_tiles(
            kernel.reader, lambda loop: self.is_around(kernel, loop), self.described, self.taken, True
        )  # fmt: skip
        room = self.room - self._other_memory(self.own)
        room -= self.parts * _ROWS * 4
        for self.own_depth in (DEPTH, 1):
            own = self.own_depth * self.parts * sum(one.tile.bytes for one in self.own)
            self.depth = min(max(self.stages, 2), (room - own) // self._slot_bytes)
            if self.depth > 1:
                return
        raise NoForm

    def _step(self, reader: LoopsOfTiles, loop: Loop) -> _Step:
        """Return the parts of a loop's step; raise NoForm for other loops."""
        if len(loop.issued) != 2 or loop.falls:
            raise NoForm
        score, total = sorted(loop.issued, key=lambda s: s.lineno)
        assert isinstance(score, ast.Assign) and isinstance(total, ast.Assign)
        assert isinstance(score.value, ast.Call) and isinstance(total.value, ast.Call)
        products = score.value, total.value
        begin, grown = (argument(call, 2, "acc") for call in products)
        first, second = (viewed(operands_of(call)[1], reader) for call in products)
        query = operands_of(products[0])[0]
        if begin is None or grown is None or not reader._is_zero(begin):
            raise NoForm
        if {first, second} != set(loop.tiles) or not isinstance(query, ast.Name):
            raise NoForm
        one = _Step(score, total, loop.issued[total])
        if not (isinstance(grown, ast.Name) and grown.id == one.name):
            one.kept = _factor(grown, one.name)
        for statement in loop.node.body:
            if statement is total or one.name not in mentions(statement):
                continue
            if one.kept or one.name not in stores(statement) or statement.lineno > total.lineno:
                raise NoForm
            one.kept, one.scaling = _scaled(statement, one.name), statement
        if query.id in stores(loop.node):
            raise NoForm
        return one

    def _sizes(self, reader: LoopsOfTiles) -> tuple[int, int]:
        """Return the columns of scores and of sums, and choose the number of scores."""
        pairs = [(one.score, one.sum) for one in self.steps.values()]
        shapes = [
            {shape for statement in column for shape in reader.shapes_assigned(statement)}
            for column in zip(*pairs, strict=True)
        ]
        if any(len(one) != 1 for one in shapes):
            raise NoForm
        (rows, columns), (same, width) = (next(iter(one)) for one in shapes)
        tiles = [t for loop in self.functions[0].loops.values() for t in loop.tiles.values()]
        if rows != _ROWS or same != _ROWS or any(tile.bits != _BITS for tile in tiles):
            raise NoForm
        free = _COLUMNS // self.parts - columns // 2 - width
        self.ahead = min(2, free // columns)
        if not self.ahead:
            raise NoForm
        return columns, width

    # -- the partitions -------------------------------------------------------------------------

    def _write(self, number: int, before: Sequence[ast.stmt]) -> None:
        kernel = self.functions[0]
        self._ask_for_queries(kernel)
        makers = [s for s in before if self.describes(kernel.reader, s)]
        skipped = [s for s in kernel.reader.tree.body if s in makers]
        if self.part:
            skipped += [s for s in kernel.reader.tree.body
                        if isinstance(s, ast.AnnAssign) and self.part in stores(s)]  # fmt: skip
        queries, self.own = self.own, []
        self.queries: list[OwnTile] = queries
        self._consumer(0, kernel, skipped, before)
        roles = ["products", "corrections"] if self.corrects else ["products"]
        for self.role in roles:
            self.passing = True
            self._producer(0, kernel, skipped)
        self.passing, self.role, self.own = False, "copies", queries
        self._producer(0, kernel, skipped)

    def _ask_for_queries(self, kernel: Function) -> None:
        """Raise NoForm unless a round loads the first operand of scores, which units alone read."""
        names = {ast.unparse(operands_of(one.score.value)[0]) for one in self.steps.values()
                 if isinstance(one.score.value, ast.Call)}  # fmt: skip
        if {tile.tile.name for tile in self.own} != names:
            raise NoForm
        if not all(self.is_operand(kernel, name) for name in names):
            raise NoForm

    def _copy_of(self, one: Function) -> str:
        return self.names[self.role]

    def _words(self, role: str) -> str:
        return _WORDS[self.role]

    def _opening(self, role: str) -> list[str]:
        slot = f"{self.slot} = {next(iter(self.rings))}"
        scores = f"{self.turn} = {self.shared['scores'][0]}"
        count = f"{self.phase} = 0"
        if self.role == "copies":
            return [f"{slot}.producer()"]
        if self.role == "corrections":
            gl, sums = self.functions[0].reader.space, self.shared["sums"][0]
            layout = f"{gl}.SliceLayout(1, {sums}.get_reg_layout())"
            return [f"{self.layout}: {gl}.constexpr = {layout}", count]
        if self.role == "rows":
            return [
                f"{self.turn} = {_word(self.shared['scores'][0], self.parts)}.consumer()",
                count,
            ]
        tiles = [f"{tile.slot} = {tile.rings(self.parts)[0]}.consumer()" for tile in self.queries]
        return [f"{slot}.consumer()", *tiles, f"{scores}.producer()", count]

    def _handed(self, role: str) -> list[str]:
        every = self.shared
        words = {
            "rows": ["scores", "weights", "sums", "weights_ready", "weights_free", "factors",
                     "factors_ready", "factors_free"],
            "products": ["scores", "weights", "sums", "weights_ready", "weights_free"],
            "corrections": ["sums", "weights_ready", "weights_free", "factors", "factors_ready",
                            "factors_free"],
            "copies": [],
        }[self.role]  # fmt: skip
        words = [word for word in words if self.corrects or not word.startswith("factors")]
        if self.role == "rows":
            return [_word(every[word][0], self.parts) for word in words]
        rings = [] if self.role == "corrections" else [*self.rings]
        if self.role == "products":
            rings += [ring for tile in self.queries for ring in tile.rings(self.parts)]
        return [*rings, *(name for word in words for name in every[word])]

    def _parameters(
        self, number: int, one: Function, body: list[str], skipped: Sequence[ast.stmt]
    ) -> list[str]:
        read = mentions(ast.parse("\n".join(body)))
        rings = [ring for ring in self.rings if ring in read]
        return [*rings, *super()._parameters(number, one, body, skipped)]

    # -- the rows -------------------------------------------------------------------------------

    def _consumed(self, one: Function, statement: ast.stmt, inner: bool) -> list[str]:
        if any(statement is tile.tile.statement for tile in self.queries):
            return []
        return super()._consumed(one, statement, inner)

    @property
    def _next(self) -> list[str]:
        """Return the lines that end a step: each barrier has one phase in it."""
        return [f"{self.begun} = 1", f"{self.phase} ^= 1"]

    def _barrier(self, action: str, word: str, part: int = -1) -> str:
        """Return the line that waits or arrives at a barrier; `part` -1 is the own one of a part's function.

        Args:
            action: "wait", "wait before" for the phase before the one of this step, or "arrive".
        """
        names = self.shared[word]
        name = _word(names[0], self.parts) if part < 0 else names[part]
        space = f"{self.functions[0].reader.space}.nvidia.blackwell.mbarrier"
        if action == "arrive":
            return f"{space}.arrive({name}, count=1)"
        phase = self.phase + (" ^ 1" if action == "wait before" else "")
        return f"{space}.wait({name}, {phase})"

    def _rounds(
        self, one: Function, loop: Loop, inner: bool, behind: Optional[Loop] = None
    ) -> list[str]:
        reader, step = one.reader, self.steps[id(loop.node)]
        gl = reader.space
        results = reader.results_of(loop, inner)
        assert isinstance(loop.node.iter, ast.Call) and isinstance(loop.node.target, ast.Name)
        if results is None or self.sum not in results:
            raise NoForm
        rounds = Rounds(reader, loop, {})
        needed = [name for name in results if name != self.sum]
        kept = self._kept(rounds, step, [*needed, *([step.kept] if step.kept else [])])
        scores, weights, sums = (
            _word(self.shared[w][0], self.parts) for w in ("scores", "weights", "sums")
        )
        lines = []
        for statement in kept:
            if statement is step.score:
                name = loop.issued[statement]
                lines.append(f"{name} = {gl}.convert_layout({scores}.wait({self.turn}).load())")
                lines.append(f"{scores}.release({self.turn})")
                lines.append(f"{self.turn} = {self.turn}.next()")
            elif statement is step.sum:
                assert isinstance(step.sum.value, ast.Call)
                operand = operands_of(step.sum.value)[0]
                text = one_line(reader.spelled(operand, loop, {}, {}))
                lines.append(self._barrier("wait before", "weights_free"))
                lines.append(
                    f"{weights}.store({gl}.convert_layout({text}, {weights}.get_reg_layout()))"
                )
                lines.append(self._barrier("arrive", "weights_ready"))
                lines += self._next
            elif statement is not step.scaling:
                lines += reader.piece(statement, loop)
                if step.kept and step.kept in stores(statement):
                    lines.append(self._barrier("wait before", "factors_free"))
                    lines.append(
                        f"{_word(self.shared['factors'][0], self.parts)}.store({step.kept})"
                    )
                    lines.append(self._barrier("arrive", "factors_ready"))
        bounds = reader.bounds(loop.node)
        head = [f"{self.begun} = 0"] if loop is self.start else []
        end = []
        if loop is self.last:
            end = [
                f"if {self.begun} != 0:",
                f"    {self._barrier('wait before', 'weights_free')}",
                f"    {self.sum} = {gl}.convert_layout({sums}.load())",
            ]
        return [
            *head,
            f"for {loop.node.target.id} in range({', '.join(bounds)}):",
            *(f"    {line}" if line else "" for line in lines),
            *end,
        ]

    def _kept(self, rounds: Rounds, step: _Step, results: Sequence[str]) -> list[ast.stmt]:
        """Return the statements of a step without those that only the units' sums need."""
        kept = rounds.statements(results)
        while True:
            read = {*results}
            for statement in kept:
                if statement is step.sum:
                    assert isinstance(step.sum.value, ast.Call)
                    read |= mentions(operands_of(step.sum.value)[0])
                elif statement not in (step.score, step.scaling):
                    read |= reads(statement)
            rest = [
                s
                for s in kept
                if s in (step.score, step.sum) or not isinstance(s, ast.Assign) or stores(s) & read
            ]
            if len(rest) == len(kept):
                return kept
            kept = rest

    # -- products and corrections ---------------------------------------------------------------

    def _fetched(self, one: Function, statement: ast.stmt, needed: set[str]) -> list[str]:
        if self.role == "copies":
            return super()._fetched(one, statement, needed)
        if any(statement is tile.tile.statement for tile in self.queries):
            if self.role == "corrections":
                return []
            return [
                f"{name} = {ring}.wait({tile.slot})"
                for tile in self.queries
                if tile.tile.statement is statement
                for name, ring in zip(
                    names_of(tile.tile.name, self.parts), tile.rings(self.parts), strict=True
                )
            ]
        lines = super()._fetched(one, statement, needed)
        own = [tile for tile in self.queries if tile.loop is statement]
        if self.role == "products":
            for tile in own:
                lines += [
                    f"    {self._unit('tcgen05_commit')}({ring}.empty({tile.slot}))"
                    for ring in tile.rings(self.parts)
                ]
                lines.append(f"    {tile.slot} = {tile.slot}.next()")
        return lines

    def _unit(self, name: str) -> str:
        return f"{self.functions[0].reader.space}.nvidia.blackwell.{name}"

    def _copied(self, one: Function, loop: Loop) -> list[str]:
        if self.role == "copies":
            return super()._copied(one, loop)
        assert isinstance(loop.node.iter, ast.Call) and isinstance(loop.node.target, ast.Name)
        bounds = bounds_of([one.reader.text_of(arg) for arg in loop.node.iter.args])
        head = [f"{self.begun} = 0"] if loop is self.start else []
        if self.role == "corrections":
            return [
                *head,
                *self._corrected(loop.node.target.id, bounds, self.steps[id(loop.node)].kept),
            ]
        first, last, by = bounds
        following = free_name(f"next_{self.slot}", {*self.taken})
        begin = by if first == "0" else f"{first} + {factor(by)}"
        ahead = [
            f"{following} = {self.slot}.next()",
            *self._scores(one, loop, following),
            *self._sums(one, loop),
            f"{self.slot} = {following}",
        ]
        body = [
            *self._scores(one, loop, self.slot),
            f"for {loop.node.target.id} in range({begin}, {last}, {by}):",
            *(f"    {line}" for line in ahead),
            *self._sums(one, loop),
            f"{self.slot} = {self.slot}.next()",
        ]
        return [*head, f"if {first} < {last}:", *(f"    {line}" for line in body)]

    def _operands(self, one: Function, loop: Loop, statement: ast.Assign) -> tuple[str, str, str]:
        """Return a product's second operand as the unit reads it, its name, and that of its ring."""
        assert isinstance(statement.value, ast.Call)
        operand = operands_of(statement.value)[1]
        name = viewed(operand, one.reader) or ""
        across = isinstance(operand, ast.Name) == loop.tiles[name].transposed
        return f"{name}.permute((1, 0))" if across else name, name, loop.tiles[name].ring

    def _scores(self, one: Function, loop: Loop, slot: str) -> list[str]:
        """Return the lines that issue the scores of a step."""
        statement = self.steps[id(loop.node)].score
        assert isinstance(statement.value, ast.Call)
        second, name, ring = self._operands(one, loop, statement)
        queries = names_of(ast.unparse(operands_of(statement.value)[0]), self.parts)
        lines = [f"{name} = {ring}.wait({slot})"]
        for query, scores in zip(queries, self.shared["scores"], strict=True):
            place = f"{scores}.take({self.turn})"
            lines.append(f"{self._unit('tcgen05_mma')}({query}, {second}, {place}, use_acc=False)")
            lines.append(f"{scores}.done({self.turn})")
        lines.append(f"{self._unit('tcgen05_commit')}({ring}.empty({slot}))")
        return [*lines, f"{self.turn} = {self.turn}.next()"]

    def _sums(self, one: Function, loop: Loop) -> list[str]:
        """Return the lines that add the weighted values of a step to the sums."""
        second, name, ring = self._operands(one, loop, self.steps[id(loop.node)].sum)
        lines = [f"{name} = {ring}.wait({self.slot})"]
        for part, (weights, sums) in enumerate(
            zip(self.shared["weights"], self.shared["sums"], strict=True)
        ):
            lines.append(self._barrier("wait", "weights_ready", part))
            more = f"use_acc={self.begun} != 0"
            lines.append(f"{self._unit('tcgen05_mma')}({weights}, {second}, {sums}, {more})")
            lines.append(f"{self._unit('tcgen05_commit')}({self.shared['weights_free'][part]})")
        lines.append(f"{self._unit('tcgen05_commit')}({ring}.empty({self.slot}))")
        return [*lines, *self._next]

    def _corrected(self, variable: str, bounds: Iterable[str], kept: str) -> list[str]:
        """Return the loop that multiplies sums by the factors of each step."""
        lines = []
        for part, (factors, sums) in enumerate(
            zip(self.shared["factors"], self.shared["sums"], strict=True)
        ):
            lines.append(self._barrier("wait", "factors_ready", part))
            lines.append(f"{kept} = {factors}.load({self.layout})")
            lines.append(self._barrier("arrive", "factors_free", part))
            lines.append(f"if {self.begun} != 0:")
            lines.append(f"    {self._barrier('wait before', 'weights_free', part)}")
            lines.append(f"    {sums}.store({sums}.load() * {kept}[:, None])")
            lines.append(self._barrier("arrive", "weights_ready", part))
        lines += self._next
        return [
            f"for {variable} in range({', '.join(bounds)}):",
            *(f"    {line}" for line in lines),
        ]

    # -- the kernel -----------------------------------------------------------------------------

    def _others(self) -> str:
        more = ", one corrects sums" if self.corrects else ""
        rows = (
            f"{self.parts} have a part of the rows each" if self.parts > 1 else "one has the rows"
        )
        return f"one multiplies{more}, {rows}"

    def _opened(self, reader: LoopsOfTiles) -> list[str]:
        gl, columns, width = reader.space, *self.sizes
        unit = f"{gl}.nvidia.blackwell"
        value = next(iter(self.steps.values())).sum
        loop = next(iter(self.functions[0].loops.values()))
        ring = self._operands(self.functions[0], loop, value)[2]
        memory = f"{unit}.allocate_tensor_memory"
        lines = []
        every = self.shared
        for part in range(self.parts):
            scores, weights, sums = (every[w][part] for w in ("scores", "weights", "sums"))
            lines.append(f"{scores} = {unit}.accumulator_ring([{_ROWS}, {columns}], {self.ahead})")
            for name, dtype, size in (
                (weights, f"{ring}.dtype", columns),
                (sums, f"{gl}.float32", width),
            ):
                layout = f"{unit}.TensorMemoryLayout([{_ROWS}, {size}], col_stride=1)"
                lines.append(f"{name} = {memory}({dtype}, [{_ROWS}, {size}], {layout})")
            barriers = {"weights_ready": 2 if self.corrects else 1, "weights_free": 1}
            if self.corrects:
                lines.append(
                    f"{every['factors'][part]} = {gl}.allocate_shared_memory({gl}.float32, [{_ROWS}])"
                )
                barriers |= {"factors_ready": 1, "factors_free": 1}
            for word, count in barriers.items():
                name = every[word][part]
                lines.append(f"{name} = {unit}.mbarrier.allocate_mbarrier()")
                lines.append(f"{unit}.mbarrier.init({name}, count={count})")
        return lines

    def _calls(self, kernel: Function) -> tuple[list[list[str]], list[int], list[int]]:
        calls = []
        rows = self.written[self.names["rows"]].arg_names
        owned = {_word(names[0], self.parts): names for names in self.shared.values()}
        owned |= {s.writer: names_of(s.writer, self.parts) for s in self.stored}
        for number in range(self.parts):
            passed = [owned[n][number] if n in owned else n for n in rows if n != self.part]
            passed += [str(number)] if self.part else []
            calls.append(wrapped(f"({self.names['rows']}, (", passed, ")),"))
        roles = [
            role
            for role in ("corrections", "products", "copies")
            if self.corrects or role != "corrections"
        ]
        for role in roles:
            name = self.names[role]
            calls.append(wrapped(f"({name}, (", self.written[name].arg_names, ")),"))
        workers = [GROUP] * (self.parts - 1) + [
            GROUP if role == "corrections" else 1 for role in roles
        ]
        registers = [_REGISTERS["rows"]] * (self.parts - 1) + [_REGISTERS[role] for role in roles]
        return calls, workers, registers


def _word(name: str, parts: int) -> str:
    """Return the name that a part's function has for what each part has."""
    return name.removesuffix("_0") if parts > 1 else name


def _factor(value: ast.expr, name: str) -> str:
    """Return the name in `sum * name[:, None]`; raise NoForm for other values."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        for one, other in ((value.left, value.right), (value.right, value.left)):
            if (
                isinstance(one, ast.Name)
                and one.id == name
                and ast.unparse(other).endswith("[:, None]")
            ):
                if isinstance(other, ast.Subscript) and isinstance(other.value, ast.Name):
                    return other.value.id
    raise NoForm


def _scaled(statement: ast.stmt, name: str) -> str:
    """Return the name in `sum = sum * name[:, None]`; raise NoForm for other statements."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        return _factor(
            ast.BinOp(ast.Name(statement.target.id), statement.op, statement.value), name
        )
    if isinstance(statement, ast.Assign):
        return _factor(statement.value, name)
    raise NoForm
