"""Give the statements of a changed function the places of those that they come from.

A pass writes `gl.nvidia.ampere.async_copy.async_load(x_ring.index(slot), a + k_ahead)` for `x = gl.load(a + k)`, and
lines in front of it. An error, a report of the simulator or a profile then names the line of `x = gl.load(a + k)`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

__all__ = ["at_original_places", "original_of"]

_Place = tuple[int, int, int, int]  # first line and column, last line and column
_LEAST_ALIKE = 0.2  # share of the words of two statements


def original_of(fn: Any) -> str:
    """Return the source that a changed function had first."""
    return str(getattr(fn, "original", fn.src))


def at_original_places(tree: ast.AST, fn: Any) -> None:
    """Move the nodes of a function's tree from the places of its text to those of its first source."""
    original = original_of(fn)
    if original == fn.src:
        return
    places = _places(fn.src, original)
    for node in ast.walk(tree):
        place = _place(node)
        if place is not None:
            known: Any = node
            first = places.get(place, place)
            known.lineno, known.col_offset, known.end_lineno, known.end_col_offset = first


class _Head(NamedTuple):
    """Hold a statement without the statements in it: its nodes, what distinguishes it, and its words."""

    nodes: list[ast.AST]
    key: str
    words: frozenset[str]
    place: _Place
    repeats: bool  # in a loop


def _place(node: Any) -> Optional[_Place]:
    if getattr(node, "lineno", None) is None or node.end_lineno is None:
        return None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _heads(body: Sequence[ast.stmt], repeats: bool = False) -> Iterator[_Head]:
    for statement in body:
        parts: list[ast.AST] = []
        inner: list[Sequence[ast.stmt]] = []
        for _, value in ast.iter_fields(statement):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                inner.append(value)
            elif isinstance(value, list):
                parts += (part for part in value if isinstance(part, ast.AST))
            elif isinstance(value, ast.AST):
                parts.append(value)
        kind = type(statement).__name__
        key = f"{kind} {' '.join(map(ast.dump, parts))}"
        nodes = [statement, *(node for part in parts for node in ast.walk(part))]
        names = " ".join(ast.unparse(part) for part in parts)
        first, last = statement, parts[-1] if inner and parts else statement
        place = (first.lineno, first.col_offset, *_end(last, first))
        within = repeats or isinstance(statement, (ast.For, ast.While))
        yield _Head(nodes, key, frozenset(re.findall(r"[A-Za-z]+", names)), place, within)
        for statements in inner:
            yield from _heads(statements, within)


def _end(last: Any, first: Any) -> tuple[int, int]:
    node = last if getattr(last, "end_lineno", None) else first
    return int(node.end_lineno), int(node.end_col_offset)


@lru_cache(maxsize=1 << 6)
def _places(text: str, original: str) -> dict[_Place, _Place]:
    """Return the place in a function's first source for each place of its text."""
    texts: list[Any] = [ast.parse(one).body[0] for one in (text, original)]
    heads, known = (list(_heads(one.body)) for one in texts)
    places: dict[_Place, _Place] = {}
    whole = _place(texts[1])
    loops: list[tuple[int, Optional[_Place]]] = []  # around a statement: column, place of it
    for head, number in zip(heads, _pairs(heads, known)):
        firsts: list[Optional[_Place]] = []
        loops = [loop for loop in loops if loop[0] < head.place[1]]
        if number is None and loops:
            whole = loops[-1][1]
        if number is not None:
            whole = known[number].place
            if known[number].key == head.key:
                firsts = [_place(node) for node in known[number].nodes]
        for node, first in zip(head.nodes, firsts or [whole] * len(head.nodes)):
            place = _place(node)
            if place is not None and first is not None:
                places[place] = first
        if isinstance(head.nodes[0], (ast.For, ast.While)):
            loops.append((head.place[1], whole))
    return places


def _pairs(heads: Sequence[_Head], known: Sequence[_Head]) -> Iterator[Optional[int]]:
    """Yield for each statement the number of the one that it comes from: the same one, or the one that is most alike."""
    keys = [one.key for one in known]
    blocks = SequenceMatcher(None, keys, [one.key for one in heads], autojunk=False)
    same = {
        block.b + i: block.a + i
        for block in blocks.get_matching_blocks()
        for i in range(block.size)
    }
    latest = 0
    counts = Counter(word for one in known for word in one.words)
    for index, head in enumerate(heads):
        number = same.get(index)
        if number is None:
            alike = [_alike(head, other, counts) for other in known]
            best = max(alike, default=0.0)
            near = (i for i, share in enumerate(alike) if share == best >= _LEAST_ALIKE)
            number = min(near, key=lambda i: abs(i - latest), default=None)
        latest = latest if number is None else number
        yield number


def _alike(one: _Head, other: _Head, counts: Mapping[str, int]) -> float:
    """Return the share of words that two statements have both; 1 for the same statement.

    Args:
        counts: word -> the statements that have it; a rare one says more.
    """
    if one.key == other.key:
        return 1.0
    both = sum(1 / counts[word] for word in one.words & other.words)
    every = sum(1 / counts.get(word, len(counts)) for word in one.words | other.words)
    moved_in = one.repeats and not other.repeats  # which passes seldom do
    return both / max(1e-9, every) * (0.5 if moved_in else 1.0)
