"""PTX text of inline assembly as statements (PTX ISA 4)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Iterator, Optional, Union

from gluon_core.simulation.assembly import NotModelled
from gluon_emu.ptx.decode.expressions import evaluated

__all__ = [
    "Address",
    "Immediate",
    "Operand",
    "Pair",
    "Part",
    "Reader",
    "Register",
    "Sink",
    "Statement",
    "Vector",
    "parse",
    "split_operands",
]


@dataclass(frozen=True)
class Register:
    """A register by its name, without `%`; operands of the text are `$0`, `$1`, ..."""

    name: str
    inverted: bool = False  # written !p

    def __str__(self) -> str:
        return "!" * self.inverted + self.name


@dataclass(frozen=True)
class Immediate:
    """A number; `pattern` is its width where it was written as bits of a float (0f..., 0d...)."""

    value: Union[int, float]
    pattern: int = 0

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Vector:
    """`{a, b}`."""

    items: tuple["Operand", ...]


@dataclass(frozen=True)
class Address:
    """`[a+4]`."""

    base: "Operand"
    offset: int
    more: tuple["Operand", ...] = ()  # `[a, {x, y}]`


@dataclass(frozen=True)
class Pair:
    """`p|q`."""

    first: "Operand"
    second: "Operand"


@dataclass(frozen=True)
class Part:
    """Bytes or halves of a register, `a.b2` or `a.h10` (PTX ISA, video instructions)."""

    base: "Operand"
    selector: str


@dataclass(frozen=True)
class Sink:
    """`_`."""


Operand = Union[Register, Immediate, Vector, Address, Pair, Part, Sink]


@dataclass
class Statement:
    """One instruction.

    Args:
        text: as it was written.
        guard: the predicate of `@p`, `@!p`.
        scope: the braces around it, for the names of registers.
    """

    text: str
    name: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Optional[Register] = None
    declared: dict[str, str] = field(default_factory=dict)  # of a declaration: name -> type


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_DOLLAR = re.compile(r"\$\$|\$\{:(\w+)\}|\$\{(\d+)(?::\w+)?\}|\$(\d+)")
_SPACE = re.compile(r"\s+")
_LABEL = re.compile(r"[A-Za-z_$%\x01][\w$\x01]*\s*:(?!:)")
_GUARD = re.compile(r"@\s*(!?)\s*([%$\x01A-Za-z_][\w$\x01]*)")
_OPCODE = re.compile(r"[A-Za-z]\w*(?:(?:\.|::)[A-Za-z0-9_]+)*")
_NAME = re.compile(r"(!?)\s*(%?[A-Za-z_][\w$\x01]*(?:\.[xyzw])?|\x02\d+)")
_FAR = re.compile(r"([A-Za-z_$][\w$]*)\s*[+-]\s*\w+")
_BARE = re.compile(r"(?<![%\w$.])[A-Za-z_$][\w$]*")
_MOST = 1 << 18  # registers of one declaration
_PART = re.compile(r"([%$A-Za-z_\x02][\w$\x01]*)\.(b[0-7]{1,4}|h[0-3]{1,2})")
_DECLARATION = re.compile(r"\.reg\s*(?:\.(v[24])\s*)?\.(\w+)\s+(.*)", re.S)
_AXES = "xyzw"
_WHOLE = re.compile(r"%(?:n?tid|n?ctaid|n?clusterid|cluster_n?ctaid)")  # of four parts
_DECLARED = re.compile(r"(%?[A-Za-z_$][\w$\x01]*)\s*(?:<\s*(\d+)\s*>)?")
_FLOAT = re.compile(r"([-+]?)\s*(?:0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16}))")


def parse(text: str) -> list[Statement]:
    """Return the statements of a text with LLVM's escapes, in order; registers of inner braces renamed.

    Raises:
        NotModelled: it is no PTX that is known here.
    """
    return list(Reader(_COMMENT.sub(" ", _unescaped(text))).statements())


def _unescaped(text: str) -> str:
    r"""Operands as \x02N, which no name holds; a dollar sign as \x01."""

    def put(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "\x01"
        if match[1] is not None:
            return "0" if match[1] == "uid" else ""
        return f"\x02{match[2] or match[3]}"

    return _DOLLAR.sub(put, text)


class Reader:
    """Read statements."""

    def __init__(self, text: str):
        self.text = text
        self.at = 0
        self.scopes: list[dict[str, str]] = [{}]
        self.count = 0
        self.bare = set(_BARE.findall(text))  # what could be the name of a variable
        self.vectors: dict[str, tuple[str, ...]] = {}  # registers of several parts

    def shown(self, text: str) -> str:
        return " ".join(text.replace("\x01", "$").replace("\x02", "$").split())

    def refuse(self, words: str, got: str, remedy: Optional[str] = None) -> NotModelled:
        return NotModelled(words, self.shown(got), remedy)

    def match(self, pattern: re.Pattern[str]) -> Optional[re.Match[str]]:
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def statements(self) -> Iterator[Statement]:
        while True:
            self.match(_SPACE)
            if self.at >= len(self.text):
                break
            here = self.text[self.at]
            if here == "{":
                self.at += 1
                self.scopes.append({})
            elif here == "}":
                self.at += 1
                if len(self.scopes) == 1:
                    raise self.refuse("a brace is closed that was not opened", self.text)
                self.scopes.pop()
            elif here == ";":
                self.at += 1
            elif self.match(_LABEL) is None:
                statement = self.statement()
                if statement is not None:
                    yield statement
        if len(self.scopes) > 1:
            raise self.refuse("a brace is not closed", self.text)

    def statement(self) -> Optional[Statement]:
        end = self.text.find(";", self.at)
        if end < 0:
            raise self.refuse(
                "a statement of inline assembly does not end",
                self.text[self.at :],
                "Each ends with a semicolon.",
            )
        start, whole = self.at, self.text[self.at : end]
        if whole.startswith(".reg"):
            self.at = end + 1
            return self.declaration(whole)
        if whole.startswith((".pragma", ".loc", ".file")):
            self.at = end + 1
            return None
        guard = None
        match = self.match(_GUARD)
        if match is not None:
            name = match[2]
            guard = Register(self.named(name), match[1] == "!")
            self.match(_SPACE)
        elif self.text[self.at] == "@":
            place = re.compile(r"@\s*(!?)\s*(\x02\d+)")
            match = self.match(place)
            if match is None:
                raise self.refuse("no predicate after `@`", whole)
            guard = Register(match[2].replace("\x02", "$"), match[1] == "!")
            self.match(_SPACE)
        opcode = self.match(_OPCODE)
        if opcode is None or self.at > end:
            raise self.refuse("no instruction of inline assembly", whole)
        name, *modifiers = re.split(r"\.", opcode[0])
        rest = self.text[self.at : end].strip()
        self.at = end + 1
        operands = self.operands(name, rest, whole) if rest else ()
        shown = self.shown(self.text[start:end])
        return Statement(shown, name, tuple(modifiers), operands, guard)

    def operands(self, name: str, rest: str, whole: str) -> tuple[Operand, ...]:
        return tuple(self.operand(part, whole) for part in split_operands(rest))

    def declaration(self, whole: str) -> Statement:
        match = _DECLARATION.fullmatch(whole.strip())
        if match is None:
            raise self.refuse("a declaration that is not known", whole)
        registers: dict[str, str] = {}
        axes = [f".{axis}" for axis in _AXES[: int((match[1] or "v0")[1:])]]
        for part in match[3].split(","):
            one = _DECLARED.fullmatch(part.strip())
            if one is None:
                raise self.refuse("a declaration that is not known", whole)
            spelled, stem = one[1], one[1].lstrip("%")
            if int(one[2] or 0) > _MOST:
                raise self.refuse(f"more than {_MOST} registers of a name", whole)
            for number in ("",) if one[2] is None else range(int(one[2])):
                self.count += 1
                name = f"{stem}{number}"
                alone = len(self.scopes) == 1 and (spelled == stem or name not in self.bare)
                unique = name if alone else f"{name}'{self.count}"
                self.scopes[-1][f"{spelled}{number}"] = unique
                if axes:
                    self.vectors[unique] = tuple(unique + axis for axis in axes)
                    for axis in axes:
                        self.scopes[-1][f"{spelled}{number}{axis}"] = unique + axis
                for axis in axes or [""]:
                    registers[unique + axis] = match[2]
        return Statement(self.shown(whole), ".reg", (), (), declared=registers)

    def named(self, name: str) -> str:
        if name.startswith("\x02"):
            return "$" + name[1:]
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name.replace("\x01", "$")

    def operand(self, part: str, whole: str) -> Operand:
        part = part.strip()
        if part == "_":
            return Sink()
        if part.startswith("{") and part.endswith("}"):
            return Vector(tuple(self.operand(p, whole) for p in split_operands(part[1:-1])))
        if part.startswith("[") and part.endswith("]"):
            return self.address(part[1:-1], whole)
        if "|" in part and not part[0].isdigit():
            first, _, second = part.partition("|")
            if _NAME.fullmatch(first.strip()) or first.strip() == "_":
                return Pair(self.operand(first, whole), self.operand(second, whole))
        if re.fullmatch(r"%\d+", part):
            raise self.refuse("operands of inline assembly are $0, $1, ...", whole)
        if part.startswith("%%"):
            raise self.refuse("one percent sign is enough", whole, f"Write {part[1:]}.")
        selected = _PART.fullmatch(part)
        if selected is not None:
            return Part(self.operand(selected[1], whole), selected[2])
        match = _NAME.fullmatch(part)
        if match is not None and part != "WARP_SZ":
            name = self.named(match[2])
            if name in self.vectors:
                return Vector(tuple(Register(axis) for axis in self.vectors[name]))
            if _WHOLE.fullmatch(name):
                return Vector(tuple(Register(f"{name}.{axis}") for axis in _AXES))
            return Register(name, match[1] == "!")
        far = _FAR.fullmatch(part)
        if far is not None and self.named(far[1]) == far[1]:  # the address of a variable
            return self.address(part, whole)
        return self.number(part, whole)

    def address(self, part: str, whole: str) -> Address:
        base, sign, offset = re.fullmatch(r"([^+\-]*)([+\-]?)(.*)", part.strip(), re.S).groups()  # type: ignore[union-attr]
        far = 0
        if sign:
            number = self.number(offset.strip(), whole)
            far = int(number.value) * (-1 if sign == "-" else 1)
        return Address(self.operand(base, whole), far)

    def number(self, part: str, whole: str) -> Immediate:
        match = _FLOAT.fullmatch(part)
        if match is not None:
            digits = match[2] or match[3]
            sign = 1 << (len(digits) * 4 - 1) if match[1] == "-" else 0
            return Immediate(int(digits, 16) ^ sign, len(digits) * 4)
        if part == "WARP_SZ":
            return Immediate(32)
        try:
            return Immediate(evaluated(part))
        except (SyntaxError, ValueError, ZeroDivisionError) as error:
            raise self.refuse(
                f"neither a register nor a number: {self.shown(part)}", whole
            ) from error


def split_operands(text: str) -> list[str]:
    """Split at commas outside of braces and brackets."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return parts
