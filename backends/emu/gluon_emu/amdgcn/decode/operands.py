"""Operands of instructions as assembly writes them."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Optional, Union

from gluon_core.errors import BackendError

__all__ = [
    "Const",
    "Operand",
    "Reg",
    "Word",
    "immediate",
    "parse_operand",
    "register",
    "split_operands",
]

# Scalar registers by number, as all generations but for M0 and NULL encode them.
VCC, TTMP, M0, NULL, EXEC, SCC = 106, 108, 124, 125, 126, 128
_NAMED = {
    "vcc": (VCC, 2),
    "vcc_lo": (VCC, 1),
    "vcc_hi": (VCC + 1, 1),
    "exec": (EXEC, 2),
    "exec_lo": (EXEC, 1),
    "exec_hi": (EXEC + 1, 1),
    "m0": (M0, 1),
    "null": (NULL, 1),
    "flat_scratch": (102, 2),
    "flat_scratch_lo": (102, 1),
    "flat_scratch_hi": (103, 1),
    "xnack_mask": (104, 2),
    "xnack_mask_lo": (104, 1),
    "xnack_mask_hi": (105, 1),
    "src_scc": (SCC, 1),
    "scc": (SCC, 1),
}


@dataclass(frozen=True)
class Reg:
    """Registers in a row.

    Args:
        kind: "v", "a" or "s"; trap temporaries and named scalars are numbered as `s`.
        first: number of the first.
        count: how many 32-bit registers.
        half: "l" or "h" where an operand is half a register.
    """

    kind: str
    first: int
    count: int = 1
    half: str = ""
    neg: bool = False
    abs: bool = False
    sext: bool = False

    def __str__(self) -> str:
        if self.kind == "s" and self.first >= TTMP and self.first < M0:
            name, first = "ttmp", self.first - TTMP
        elif self.kind == "s" and self.first >= VCC:
            names = [n for n, v in _NAMED.items() if v == (self.first, self.count)]
            return names[0] if names else f"s{self.first}"
        else:
            name, first = self.kind, self.first
        if self.count == 1:
            return f"{name}{first}{'.' + self.half if self.half else ''}"
        return f"{name}[{first}:{first + self.count - 1}]"


def _word(form: str, value: float) -> int:
    return int.from_bytes(struct.pack(form, value), "little")


@dataclass(frozen=True)
class Const:
    """An immediate: an integer, or a float where assembly writes one."""

    value: Union[int, float]
    literal: bool = False  # 32 bits in the instruction, rather than an inline constant
    neg: bool = False
    abs: bool = False

    def bits(self, kind: str) -> int:
        """Return its bits as an operand of the type `kind`, such as "f32" or "u64"."""
        value = self.value
        if isinstance(value, float):
            if kind in ("f64", "u64", "i64", "b64"):
                return _word("<d", value)
            if kind in ("f16", "h16", "pkf16"):
                return _word("<e", value)
            if kind in ("bf16", "pkbf16"):
                return _word("<f", value) >> 16
            return _word("<f", value)
        if kind == "f64" and self.literal and 0 <= value < 1 << 32:
            return value << 32
        if kind in ("f64", "u64", "i64", "b64"):
            return value & (1 << 64) - 1
        return value & 0xFFFFFFFF

    def __str__(self) -> str:
        return hex(self.value) if self.literal and isinstance(self.value, int) else str(self.value)


@dataclass(frozen=True)
class Word:
    """Anything else: `off`, a label, `sendmsg(...)`."""

    text: str

    def __str__(self) -> str:
        return self.text


Operand = Union[Reg, Const, Word]

_ACTUAL = re.compile(r"(?:v\d+|v\[\d+:\d+\])(?:\.[lh])? /\*(.*?)\*/")
_ONE = re.compile(r"(v|a|s|ttmp|acc)(\d+)(?:\.([lh]))?$")
_MANY = re.compile(r"(v|a|s|ttmp)\[(\d+)(?::(\d+))?\]$")
_INTEGER = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)$")
_FLOAT = re.compile(r"-?\d+\.\d*(?:e[-+]?\d+)?$")
_WRAPPED = re.compile(r"(neg|abs|sext)\((.*)\)$")


def register(operand: Optional[Operand]) -> Reg:
    """`operand`, where only a register makes sense.

    Raises:
        BackendError: it is none.
    """
    if not isinstance(operand, Reg):
        raise BackendError("an operand must be a register", got=_shown(operand))
    return operand


def immediate(operand: Optional[Operand]) -> int:
    """Return the integer of `operand`, where only that makes sense.

    Raises:
        BackendError: it is none.
    """
    if not isinstance(operand, Const) or not isinstance(operand.value, int):
        raise BackendError("an operand must be an integer", got=_shown(operand))
    return operand.value


def _shown(operand: Optional[Operand]) -> str:
    if operand is None:
        return "nothing"
    return f"{operand.value}" if isinstance(operand, Const) else f"{operand}"


def parse_operand(text: str) -> Operand:
    """Return one operand, its modifiers folded into it."""
    text = text.strip()
    neg = abs_ = sext = False
    while True:
        wrapped = _WRAPPED.match(text)
        if wrapped:
            neg, abs_ = neg or wrapped[1] == "neg", abs_ or wrapped[1] == "abs"
            sext, text = sext or wrapped[1] == "sext", wrapped[2]
        elif text.startswith("-") and len(text) > 1 and text[1] in "vas|t(e" and text[1:] != "inf":
            neg, text = True, text[1:]
        elif text.startswith("|") and text.endswith("|"):
            abs_, text = True, text[1:-1]
        else:
            break
    register = _register(text)
    if register is not None:
        kind, first, count, half = register
        return Reg(kind, first, count, half, neg, abs_, sext)
    if _INTEGER.match(text):
        value = int(text, 0)
        return Const(value, not -16 <= value <= 64, neg, abs_)
    if _FLOAT.match(text):
        return Const(float(text), False, neg, abs_)
    return Word(text)


def _register(text: str) -> Optional[tuple[str, int, int, str]]:
    if text in _NAMED:
        return ("s", *_NAMED[text], "")
    one = _ONE.match(text)
    if one:
        base = TTMP if one[1] == "ttmp" else 0
        return one[1][0] if one[1] != "ttmp" else "s", base + int(one[2]), 1, one[3] or ""
    many = _MANY.match(text)
    if many:
        base = TTMP if many[1] == "ttmp" else 0
        first, last = int(many[2]), int(many[3] or many[2])
        return many[1] if many[1] != "ttmp" else "s", base + first, last - first + 1, ""
    return None


_FLAGS = frozenset("offen idxen glc slc dlc sc0 sc1 nt lds tfe gds clamp scale_offset nv".split())


def split_operands(text: str) -> tuple[list[str], dict[str, str]]:
    """Texts of the operands, and modifiers (`offset:16`, `offen`) by name.

    Registers past the first 256 are written as encoded, and the register that is meant in a
    comment; the comment counts.
    """
    text = _ACTUAL.sub(r"\1", text)
    pieces, depth, start = [], 0, 0
    for index, char in enumerate(text):
        if char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
        elif char == "," and not depth:
            pieces.append(text[start:index])
            start = index + 1
    pieces.append(text[start:])
    operands: list[str] = []
    modifiers: dict[str, str] = {}
    for piece in pieces:
        words = _words(piece)
        for number, word in enumerate(words):
            name, colon, value = word.partition(":")
            if word in _FLAGS:
                modifiers[word] = "1"
            elif colon and re.match(r"[a-z_][a-z_0-9]*$", name) and not word.endswith("]:"):
                modifiers[name] = value
            elif number and operands:
                modifiers[word] = "1"
            else:
                operands.append(word)
    return operands, modifiers


def _words(piece: str) -> list[str]:
    words, depth, current = [], 0, ""
    for char in piece:
        if char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
        if char.isspace() and not depth:
            if current:
                words.append(current)
            current = ""
        else:
            current += char
    if current:
        words.append(current)
    return words
