"""The text of litmus tests: places, comments and words."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Iterator, Optional

from gluon_core.errors import SourceSpan
from gluon_emu.litmus.form import LitmusError

__all__ = ["Piece", "Source", "Words"]

_COMMENT = re.compile(r"\(\*.*?\*\)|//[^\n]*", re.DOTALL)
_WORD = re.compile(r"\s*(/\\|\\/|!=|==|[A-Za-z_%$][\w$%.:]*|-?(?:0x[0-9a-fA-F]+|\d+)|\S)")


class Source:
    """The text of a file, without comments.

    Raises:
        LitmusError: a comment has no end.
    """

    def __init__(self, file: str, text: str):
        self.file, self.written = file, text
        self.text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
        self._starts = [0, *(m.end() for m in re.finditer("\n", text))]
        open_ = self.text.find("(*")
        if open_ >= 0:
            raise self.error(open_, "the comment has no end", remedy="End it with `*)`.")

    def span(self, offset: int) -> SourceSpan:
        offset = min(offset, len(self.written))
        line = bisect_right(self._starts, offset)
        start = self._starts[line - 1]
        text = self.written[start:].split("\n", 1)[0]
        return SourceSpan(self.file, line, offset - start, None, text)

    def error(self, offset: int, message: str, **facts: Any) -> LitmusError:
        return LitmusError(message, span=self.span(offset), **facts)

    def piece(self, start: int, end: int) -> Piece:
        """Return a part of the text without the blanks around it."""
        text = self.text[start:end]
        start += len(text) - len(text.lstrip())
        return Piece(self, start, text.strip())


@dataclass(frozen=True)
class Piece:
    """A part of a source, from an `offset` on."""

    source: Source
    offset: int
    text: str

    def error(self, message: str, within: str = "", **facts: Any) -> LitmusError:
        """Return the error at the first occurrence of `within`, else at the start."""
        offset = self.text.find(within) if within else 0
        return self.source.error(self.offset + max(offset, 0), message, **facts)

    def split(self, by: str) -> Iterator[Piece]:
        """Yield the parts between separators outside of brackets."""
        depth = start = 0
        for index, letter in enumerate(self.text):
            depth += (letter in "[({") - (letter in "])}")
            if letter == by and not depth:
                yield self.source.piece(self.offset + start, self.offset + index)
                start = index + 1
        yield self.source.piece(self.offset + start, self.offset + len(self.text))


class Words:
    """A reader of the words of a piece, one after the other."""

    def __init__(self, piece: Piece):
        self.piece = piece
        self._words = [(m.group(1), m.start(1)) for m in _WORD.finditer(piece.text)]
        self._next = 0

    def peek(self) -> Optional[str]:
        return self._words[self._next][0] if self._next < len(self._words) else None

    def take(self, expected: Optional[str] = None) -> str:
        """Return the next word.

        Raises:
            LitmusError: there is none, or it is another one.
        """
        word = self.peek()
        if word is None or expected not in (None, word):
            raise self.error("unexpected end" if word is None else "unexpected word", expected)
        self._next += 1
        return word

    def skip(self, word: str) -> bool:
        if self.peek() == word:
            self._next += 1
            return True
        return False

    def error(self, message: str, expected: Optional[str] = None) -> LitmusError:
        word = self.peek()
        offset = self._words[self._next][1] if word is not None else len(self.piece.text)
        source = self.piece.source
        return source.error(self.piece.offset + offset, message, expected=expected, got=word)
