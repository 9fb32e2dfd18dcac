"""Parse litmus tests: the header, initial values, threads, scopes and conditions."""

from __future__ import annotations

import re
from typing import Any, Callable, Mapping, Optional

from gluon_core.errors import did_you_mean
from gluon_emu.litmus.decode import decode
from gluon_emu.litmus.form import Condition, LitmusError, Operand, Program, Step, Test
from gluon_emu.litmus.text import Piece, Source, Words

__all__ = ["parse"]

_SECTION = re.compile(
    r"^[ \t]*(ScopeTree|scopeTree|exists|forall|~\s*exists|not\s+exists|filter)\b", re.M
)
_INTEGER = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)$")
_NAME = re.compile(r"[A-Za-z_][\w$]*$")
_REGISTER = re.compile(r"[Pp]?(\d+)\s*:\s*%?([A-Za-z_][\w$]*)$")
_LEVEL = {"sys": "sys", "system": "sys", "gpu": "gpu", "device": "gpu", "dev": "gpu", "cluster": "cluster",
          "cta": "cta", "block": "cta", "grid": "grid", "kernel": "grid", "warp": "warp"}  # fmt: skip
_MOST_THREADS = 16
Holds = Callable[[Mapping[str, Any]], bool]


def parse(file: str, text: str) -> Test:
    """Return the test in `text`.

    Raises:
        LitmusError: it is malformed, with the line and a caret.
    """
    source = Source(file, text)
    header = re.match(r"\s*(\S+)[ \t]*([^\n]*)", source.text)
    if header is None or header.group(1) != "PTX":
        offset = 0 if header is None else header.start(1)
        got = None if header is None else header.group(1)
        raise source.error(
            offset, "no litmus test of PTX", expected="`PTX NAME` in the first line", got=got
        )
    name = header.group(2).strip()
    if not name:
        raise source.error(header.end(1), "the test has no name", expected="PTX NAME")
    start = source.text.find("{", header.end())
    end = source.text.find("}", start)
    if start < 0 or end < 0:
        raise source.error(max(start, 0), "no initial values", expected="{ x = 0; y = 0; }")
    starts = [m for m in _SECTION.finditer(source.text, end)]
    table = source.piece(end + 1, starts[0].start() if starts else len(source.text))
    ends = [*(m.start() for m in starts[1:]), len(source.text)]
    sections: dict[str, Piece] = {}
    for match, stop in zip(starts, ends):
        key = re.sub(r"\s+", "", match.group(1)).replace("not", "~").lower()
        piece = source.piece(match.end(), stop)
        if key in sections:
            raise source.error(match.start(1), f"a second `{match.group(1)}`")
        sections[key] = piece
    builder = _Builder(source, name)
    builder.values(source.piece(start + 1, end))
    builder.rows(table)
    if "scopetree" in sections:
        builder.tree(sections.pop("scopetree"))
    dropping = sections.pop("filter", None)
    if len(sections) != 1:
        offset = len(source.text.rstrip()) if not sections else [*sections.values()][1].offset
        words = "a second condition" if sections else "no final condition"
        raise source.error(offset, words, expected="one of exists, forall, ~exists")
    ((quantifier, condition),) = sections.items()
    return builder.test(quantifier, condition, dropping)


class _Builder:
    def __init__(self, source: Source, name: str):
        self.source, self.name = source, name
        self.initial: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self.aliases: dict[str, str] = {}
        self.registers: dict[str, dict[str, Operand]] = {}
        self.names: list[str] = []
        self.places: dict[str, dict[str, str]] = {}
        self.steps: dict[str, list[Step]] = {}

    # -- initial values ----------------------------------------------------------------------------

    def values(self, piece: Piece) -> None:
        for part in piece.split(";"):
            if part.text:
                self._value(part)

    def _value(self, part: Piece) -> None:
        alias = re.match(r"(\w+)\s*(?:@\s*\w+)?\s*aliases\s+(\w+)$", part.text)
        if alias is not None:
            one, other = alias.groups()
            if one in self.initial or other not in self.initial:
                raise part.error("aliases a location that is not declared before it", other)
            self.aliases[one] = self.aliases.get(other, other)
            return
        left, equals, right = (word.strip() for word in part.text.partition("="))
        register = _REGISTER.match(left)
        if register is not None:
            if not (_INTEGER.match(right) or _NAME.match(right)):
                raise part.error(
                    "no initial value", right, expected="an integer or a location", got=right
                )
            value: Operand = int(right, 0) if _INTEGER.match(right) else right
            self.registers.setdefault(f"P{register.group(1)}", {})[register.group(2)] = value
            return
        location = left.strip("[]").split()[-1] if left else ""
        if not _NAME.match(location):
            raise part.error("no location", left, expected="such as x = 0", got=part.text)
        if location in self.initial or location in self.aliases:
            raise part.error(f"{location} is declared twice")
        barrier = re.match(r"mbarrier\s*\(\s*(\d+)\s*\)$", right)
        if barrier is not None and int(barrier.group(1)) > 0:
            self.counts[location] = int(barrier.group(1))
            self.initial[location] = (0, self.counts[location], 0)
        elif equals and not _INTEGER.match(right):
            raise part.error(
                "no initial value",
                right or "=",
                expected="an integer or mbarrier(N), N > 0",
                got=right,
            )
        else:
            self.initial[location] = int(right, 0) if equals else 0

    # -- threads -----------------------------------------------------------------------------------

    def rows(self, table: Piece) -> None:
        rows = [row for row in table.split(";") if row.text]
        if not rows:
            raise table.error("no threads", expected="P0 | P1 ;")
        for cell in rows[0].split("|"):
            self._head(cell)
        for row in rows[1:]:
            cells = list(row.split("|"))
            if len(cells) > len(self.names):
                raise cells[len(self.names)].error(
                    "more columns than threads", expected=len(self.names), got=len(cells)
                )
            for name, cell in zip(self.names, cells):
                if cell.text:
                    self.steps[name] += decode(cell, self.counts)

    def _head(self, cell: Piece) -> None:
        head = re.match(r"[Pp](\d+)\s*(?:@(.*))?$", cell.text, re.DOTALL)
        if head is None:
            raise cell.error(
                "no thread", expected="such as P0 or P0@cta 0,gpu 0", got=cell.text or "nothing"
            )
        name = f"P{head.group(1)}"
        if name in self.steps:
            raise cell.error(f"a second thread {name}")
        if len(self.names) == _MOST_THREADS:
            raise cell.error(f"more than {_MOST_THREADS} threads")
        self.names.append(name)
        self.steps[name] = []
        self.places[name] = {}
        for part in (head.group(2) or "").split(",") if head.group(2) else ():
            level, _, number = part.strip().partition(" ")
            if level not in _LEVEL or not number.strip().isalnum():
                raise cell.error(
                    "no scope",
                    part.strip(),
                    expected="such as cta 0, cluster 0 or gpu 0",
                    got=part.strip(),
                )
            self.places[name][_LEVEL[level]] = number.strip()

    def tree(self, piece: Piece) -> None:
        """Read nested lists such as (gpu 0 (cta 0 (P0) (P1)) (cta 1 P2))."""
        words, seen, count = Words(piece), set(), 0

        def node(around: Mapping[str, str]) -> None:
            nonlocal count
            inner = dict(around)
            word = words.peek()
            if word is not None and word.lower() in _LEVEL:
                words.take()
                count += 1
                number = words.peek() or ""
                key = words.take() if number.isdigit() else f"#{count}"
                inner[_LEVEL[word.lower()]] = key
            while (word := words.peek()) != ")":
                if word == "(":
                    words.take()
                    node(inner)
                    words.take(")")
                elif word in self.steps:
                    if word in seen:
                        raise words.error("a thread twice in the scope tree")
                    seen.add(word)
                    self.places[word] = dict(inner)
                    words.take()
                else:
                    raise words.error(
                        "no thread and no scope",
                        "P0, (cta ...), (cluster ...), (gpu ...) or (sys ...)",
                    )

        words.take("(")
        node({})
        words.take(")")
        if words.peek() is not None:
            raise words.error("more than one scope tree")
        missing = [name for name in self.names if name not in seen]
        if missing:
            raise piece.error(f"the scope tree lacks {', '.join(missing)}")

    def _place(self, name: str) -> tuple[tuple[str, ...], ...]:
        """Return the block, cluster and GPU of a thread: each its own by default but for the GPU, and a
        block without a cluster is a cluster of its own."""
        place = self.places[name]
        gpu = (place.get("gpu", "0"),)
        own = place.get("cta")
        cta = f"cta {own}" if own is not None else f"of {name}"
        cluster = (*gpu, place["cluster"]) if "cluster" in place else (*gpu, "of", cta)
        return (*cluster, cta), cluster, gpu

    # -- conditions --------------------------------------------------------------------------------

    def test(self, quantifier: str, condition: Piece, kept_by: Optional[Piece]) -> Test:
        threads = []
        used: set[str] = set()
        for name in self.names:
            registers = self.registers.pop(name, {})
            for step in self.steps[name]:
                if step.address and step.address not in registers:
                    used.update([step.address, *step.detail.get("addresses", ())])
            used.update(str(v) for v in registers.values() if isinstance(v, str))
            threads.append(Program(name, self._place(name), tuple(self.steps[name]), registers))
            self._labels(name)
        if self.registers:
            other = next(iter(self.registers))
            raise self.source.error(
                self.source.text.find("{"), f"initial values of {other}, which is no thread"
            )
        for location in used - self.aliases.keys():
            self.initial.setdefault(location, 0)
        final = self._condition(condition, threads)
        kept = None if kept_by is None else self._condition(kept_by, threads)
        return Test(
            self.name, self.source.file, tuple(threads), self.initial, self.counts, self.aliases,
            quantifier, final, kept,
        )  # fmt: skip

    def _labels(self, name: str) -> None:
        labels: set[str] = set()
        for step in self.steps[name]:
            if step.kind == "label":
                if step.to in labels:
                    raise LitmusError(f"a second label {step.to} of {name}", span=step.span)
                labels.add(step.to)
        for step in self.steps[name]:
            if step.kind == "bra" and step.to not in labels:
                raise LitmusError(
                    f"{name} has no label {step.to}",
                    span=step.span,
                    remedy=did_you_mean(step.to, labels),
                )

    def _condition(self, piece: Piece, threads: list[Program]) -> Condition:
        words = Words(piece)
        registers: list[tuple[str, str]] = []
        locations: list[str] = []
        by_name = {thread.name: thread for thread in threads}

        def atom() -> Holds:
            where = words.error("no value of the final state", "such as P0:r1 = 1 or x = 2")
            bracket = words.skip("[")
            name = words.take()
            while words.peek() == ":" or name.endswith(":"):
                name += words.take()
            if bracket:
                words.take("]")
            key = self._key(name, where, by_name, registers, locations)
            sign = words.take()
            if sign not in ("=", "==", "!="):
                raise where
            failure = words.error("no value", "an integer")
            number = words.take()
            if not _INTEGER.match(number):
                raise failure
            wanted, equal = int(number, 0), sign != "!="
            return lambda state: (state[key] == wanted) is equal

        if words.peek() is None:
            raise piece.error("the condition is empty", expected="such as (P0:r1 = 1 /\\ x = 2)")
        try:
            holds = _either(words, atom)
        except RecursionError:
            raise piece.error("the condition is nested too deeply") from None
        if words.peek() is not None:
            raise words.error("unexpected word after the condition")
        return Condition(
            " ".join(piece.text.split()),
            holds,
            tuple(dict.fromkeys(registers)),
            tuple(dict.fromkeys(locations)),
        )

    def _key(
        self, name: str, where: LitmusError, threads: Mapping[str, Program],
        registers: list[tuple[str, str]], locations: list[str],
    ) -> str:  # fmt: skip
        register = _REGISTER.match(name.replace("%", ""))
        if register is not None:
            thread, written = f"P{register.group(1)}", register.group(2)
            if thread not in threads:
                where.message = f"there is no thread {thread}"
                raise where
            program = threads[thread]
            known = {*program.registers, *(s.to for s in program.steps if s.kind != "bra")}
            if written not in known:
                where.message = f"{thread} never writes the register {written}"
                where.remedy = did_you_mean(written, known)
                raise where
            registers.append((thread, written))
            return f"{thread}:{written}"
        if name not in self.initial or name in self.counts:
            where.message = (
                "no location with a number" if name in self.counts else "no such location"
            )
            where.got, where.remedy = name, did_you_mean(name, self.initial)
            raise where
        locations.append(name)
        return name


def _either(words: Words, atom: Callable[[], Holds]) -> Holds:
    parts = [_both(words, atom)]
    while words.skip("\\/") or words.skip("or"):
        parts.append(_both(words, atom))
    return parts[0] if len(parts) == 1 else lambda state: any(p(state) for p in parts)


def _both(words: Words, atom: Callable[[], Holds]) -> Holds:
    parts = [_unary(words, atom)]
    while words.skip("/\\") or words.skip("and"):
        parts.append(_unary(words, atom))
    return parts[0] if len(parts) == 1 else lambda state: all(p(state) for p in parts)


def _unary(words: Words, atom: Callable[[], Holds]) -> Holds:
    if words.skip("~") or words.skip("not"):
        inner = _unary(words, atom)
        return lambda state: not inner(state)
    if words.skip("("):
        whole = _either(words, atom)
        words.take(")")
        return whole
    if words.skip("true"):
        return lambda state: True
    return atom()
