"""Data of a code object: strings, tables and variables, at addresses of this process.

LLVM, "User Guide for AMDGPU Backend": ELF Code Object, Relocation Records.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import Callable

import numpy as np

from gluon_core.errors import BackendError
from gluon_emu.amdgcn.decode.expressions import evaluate, symbols_of

__all__ = ["Data", "Region", "without_comment"]

_ALIGNED = 4096  # at least the alignment of any section
_SIZES = {
    ".byte": 1, ".short": 2, ".hword": 2, ".2byte": 2, ".value": 2, ".long": 4, ".int": 4,
    ".4byte": 4, ".quad": 8, ".8byte": 8,
}  # fmt: skip
_NO_SYMBOLS: dict[str, int] = {}
_FLOATS = {".float": "<f", ".single": "<f", ".double": "<d"}
_RELATIVE = re.compile(r"(.*)@(rel32|rel64|abs32|abs64)((?:[-+]\d+)?)$")


@dataclass
class Region:
    """Bytes of one kind: constants, or variables that outlive a launch."""

    name: str
    writable: bool
    content: bytearray = field(default_factory=bytearray)
    memory: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint8))

    def align(self, to: int) -> None:
        if to > 0:
            self.content.extend(bytes(-len(self.content) % to))


@dataclass(frozen=True)
class _Fixup:
    """A place for the value of an expression, filled in once all symbols have addresses."""

    region: Region
    offset: int
    size: int
    expression: str
    line: int


class Data:
    """Data as directives define it; `place` gives it addresses.

    Attributes:
        symbols: symbol -> its region, and the offset there.
    """

    def __init__(self) -> None:
        self.constants = Region("the constants of the kernel", False)
        self.variables = Region("the variables of the code object", True)
        self.symbols: dict[str, tuple[Region, int]] = {}
        self._fixups: list[_Fixup] = []
        self._slots: dict[str, int] = {}

    @property
    def regions(self) -> list[Region]:
        """Return the regions that hold something."""
        return [region for region in (self.constants, self.variables) if region.content]

    def region_of(self, section: str, flags: str) -> "Region | None":
        """Return the region of a section; None for one that is not loaded, such as debug information."""
        known = section.startswith((".data", ".bss", ".rodata"))
        if not (known or "a" in flags):
            return None
        plain = section.startswith(".rodata") or (not known and "w" not in flags)
        return self.constants if plain or ".rel.ro" in section else self.variables

    def define(self, symbol: str, region: Region) -> None:
        self.symbols[symbol] = region, len(region.content)

    def common(self, text: str) -> None:
        """Define `.comm symbol, size, alignment`: zeros that have a name."""
        symbol, size, *more = (piece.strip() for piece in text.split(","))
        self.variables.align(int(more[0], 0) if more else 16)
        self.define(symbol, self.variables)
        self.variables.content.extend(bytes(int(size, 0)))

    def directive(self, region: Region, word: str, rest: str, line: int) -> None:
        """Emit one directive in a section of data; skip those that emit nothing.

        Raises:
            BackendError: the assembler does not take its operands.
        """
        try:
            self._emit(region, word, rest, line)
        except (ValueError, IndexError, OverflowError) as error:
            raise BackendError(
                f"the emulator does not understand `{word} {rest}` at line {line}: {error}"
            ) from None

    def _emit(self, region: Region, word: str, rest: str, line: int) -> None:
        content = region.content
        if word in (".asciz", ".ascii", ".string"):
            for text in re.findall(r'"((?:[^"\\]|\\.)*)"', rest):
                content.extend(text.encode().decode("unicode_escape").encode("latin1"))
                content.extend(b"\0" if word != ".ascii" else b"")
        elif word in _SIZES:
            for expression in _pieces(rest):
                self._number(region, _SIZES[word], expression, line)
        elif word in _FLOATS:
            for number in _pieces(rest):
                content.extend(struct.pack(_FLOATS[word], float(number)))
        elif word in (".zero", ".space", ".skip"):
            length, value = (int(p, 0) for p in (*_pieces(rest), "0")[:2])
            content.extend(bytes([value & 0xFF]) * length)
        elif word == ".fill":
            count, size, value = (int(p, 0) for p in (*_pieces(rest), "1", "0")[:3])
            content.extend((value & (1 << 8 * size) - 1).to_bytes(size, "little") * count)
        elif word == ".p2align":
            region.align(1 << int(_pieces(rest)[0], 0))
        elif word in (".balign", ".align"):
            region.align(int(_pieces(rest)[0], 0))

    def _number(self, region: Region, size: int, expression: str, line: int) -> None:
        if not _RELATIVE.match(expression) and not symbols_of(expression):
            value = evaluate(expression, _NO_SYMBOLS.__getitem__)
        else:
            self._fixups.append(_Fixup(region, len(region.content), size, expression, line))
            value = 0
        region.content.extend((value & (1 << 8 * size) - 1).to_bytes(size, "little"))

    def slot(self, symbol: str) -> None:
        """Add a symbol's entry to the table of addresses that code reads (`@gotpcrel32`)."""
        if symbol not in self._slots:
            self.constants.align(8)
            offset = len(self.constants.content)
            self._slots[symbol] = offset
            self.constants.content.extend(bytes(8))
            self._fixups.append(_Fixup(self.constants, offset, 8, symbol, 0))

    # -- once it has addresses ---------------------------------------------------------------------

    def place(self) -> None:
        """Copy everything into memory of this process."""
        for region in self.regions:
            size = len(region.content)
            whole = np.zeros(size + _ALIGNED, np.uint8)
            start = -whole.ctypes.data % _ALIGNED
            region.memory = whole[start : start + size]
            region.memory[:] = np.frombuffer(bytes(region.content), np.uint8)

    def address(self, symbol: str) -> int:
        """Return the address of a symbol.

        Raises:
            KeyError: there is no such symbol.
        """
        region, offset = self.symbols[symbol]
        return int(region.memory.ctypes.data) + offset

    def slot_address(self, symbol: str) -> int:
        return int(self.constants.memory.ctypes.data) + self._slots[symbol]

    def resolve(self, value_of: Callable[[str], int]) -> None:
        """Fill in the numbers that name symbols.

        Raises:
            BackendError: one of them is not defined.
        """
        for fixup in self._fixups:
            relative = _RELATIVE.match(fixup.expression)
            try:
                if relative is None:
                    value = evaluate(fixup.expression, value_of)
                else:
                    value = evaluate(relative[1] + relative[3], value_of)
                    if relative[2].startswith("rel"):
                        value -= int(fixup.region.memory.ctypes.data) + fixup.offset
            except BackendError as error:
                if fixup.line:
                    error.message += f", in the data at line {fixup.line} of the assembly"
                raise
            raw = (value & (1 << 8 * fixup.size) - 1).to_bytes(fixup.size, "little")
            place = slice(fixup.offset, fixup.offset + fixup.size)
            fixup.region.memory[place] = np.frombuffer(raw, np.uint8)


def _pieces(text: str) -> list[str]:
    return [piece.strip() for piece in text.split(",")]


_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|;.*|//.*')


def without_comment(line: str) -> str:
    """Return a line of assembly without its comment; strings may hold the signs of one."""
    return _COMMENT.sub(lambda m: m[1] or "", line).strip()
