"""Read PTX modules (PTX ISA 4, 5 and 11)."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache
from typing import Optional

from gluon_core.errors import BackendError
from gluon_core.simulation.assembly import NotModelled
from gluon_emu.ptx.decode.parts import (
    Function,
    Instruction,
    Location,
    Module,
    Name,
    Parameter,
    Reference,
    Variable,
)
from gluon_emu.ptx.text import (
    Address,
    Operand,
    Reader,
    Register,
    Statement,
    Vector,
    split_operands,
)

__all__ = ["parse_module"]


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_MARKER = re.compile(r"^[ \t]*#[^\n]*", re.M)  # of a preprocessor
_ALIAS = re.compile(r"\.alias\s+([\w$%]+)\s*,\s*([\w$%]+)\s*")
_WORD = re.compile(r"[\w.$%]+")
_LABEL = re.compile(r"([%$A-Za-z_][\w$]*)\s*:(?!:)")
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:\s*,\s*function_name\s+[^,\n]*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?[^\n;]*;?"
)
_FILE = re.compile(r'\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"[^\n]*')
# PTX ISA 11.1.2; `a` and `f` are code for one architecture, and for one family.
_ARCHITECTURE = re.compile(
    r"sm_(?:[2-5][0-35]|6[0-2]|7[025]|8[06-9]|90a?|1(?:0[0137]|1[0-5]|2[01])[af]?)"
)
_LINE_DIRECTIVE = re.compile(r"\.(?:version|target|address_size)\b[^\n]*")
_VARIABLE = re.compile(
    r"(?:\.(?:extern|visible|weak|common)\s+)*\.(global|const|shared|local|param)\b(.*)", re.S
)
_DECLARED = re.compile(
    r"\s*(?:\.align\s+(\d+)\s*)?(?:\.attribute\((?:[^()]|\([^()]*\))*\)\s*)?(?:\.align\s+(\d+)\s*)?\.(?:(v2|v4)\s+\.)?(\w+)\s+(?:\.ptr\s*(?:\.(?:global|shared|const|local)\s*)?)?(?:\.align\s+(\d+)\s*)?(.*)",
    re.S,
)
_NAME = re.compile(r"([%$A-Za-z_][\w$.]*)\s*((?:\[[^\]]*\]\s*)*)(?:=\s*(.*))?$", re.S)
_REFERENCE = re.compile(
    r"(?:(0[xX][0-9A-Fa-f]+)\s*\(\s*)?(?:generic\(\s*)?([%$A-Za-z_][\w$]*)\s*\)?\s*([+-]\s*\w+)?\s*\)?"
)
_SIZES = {"pred": 1, "b128": 16, "texref": 8, "samplerref": 8, "surfref": 8}
_SIZES.update({f"{kind}{bits}": bits // 8 for kind in "busf" for bits in (8, 16, 32, 64)})
_DIRECTIVE = re.compile(
    r"\.(maxntid|reqntid|minnctapersm|maxnctapersm|maxnreg|explicitcluster|reqnctapercluster|"
    r"maxclusterrank|blocksareclusters|noreturn|pragma|abi_preserve|abi_preserve_control|unified)\b([^.{;]*)"
)
_MOST_BYTES, _MOST_ALIGN = 1 << 30, 1 << 20  # of a variable
_LAST = ("ret", "exit", "bra", "trap")
_CONTROL = ("bra", "brx", "call")


class _Modules(Reader):
    """Reads a module.

    Raises:
        BackendError: the text is no PTX.
    """

    def __init__(self, text: str):
        text = _MARKER.sub("", text)
        blank = _COMMENT.sub(lambda m: "\n" * m[0].count("\n") + " ", text)
        super().__init__(blank)
        self.module = Module(text)
        self.aliases: list[tuple[str, str, int]] = []
        self.lines = [0, *(m.end() for m in re.finditer("\n", blank))]
        self.files: dict[int, str] = {int(m[1]): m[2] for m in _FILE.finditer(blank)}
        self.function: Optional[Function] = None
        self.location: Optional[Location] = None
        self.tail: tuple[tuple[str, int], ...] = ()

    def line_at(self, offset: int) -> int:
        return bisect_right(self.lines, offset)

    def wrong(self, words: str, got: str = "", offset: Optional[int] = None) -> BackendError:
        line = self.line_at(self.at if offset is None else offset)
        shown = " ".join(got.split())
        return BackendError(f"line {line} of the PTX: {words}", got=shown[:200] or None)

    # -- the module's level --

    def read(self) -> Module:
        while True:
            self.skip_space()
            if self.at >= len(self.text):
                break
            here = self.text[self.at : self.at + 64]
            if here[0] == ";":
                self.at += 1
                continue
            word = _WORD.match(self.text, self.at)
            if word is None or not word[0].startswith("."):
                raise self.wrong("neither a directive nor a function", here)
            self.top(word[0])
        if not self.module.target:
            raise BackendError(
                "no PTX", expected="a text with .version and .target", got=self.text[:60].strip()
            )
        for name, other, offset in self.aliases:
            if other not in self.module.functions:
                raise self.wrong(f"an alias of {other}, which has no body", name, offset)
            self.module.functions[name] = self.module.functions[other]
        return self.module

    def skip_space(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def rest_of_line(self) -> str:
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end
        line, self.at = self.text[self.at : end], end
        return line

    def top(self, word: str) -> None:
        if word in (".version", ".target", ".address_size", ".file"):
            line = self.rest_of_line()
            value = line.split(None, 1)[1].strip() if len(line.split(None, 1)) > 1 else ""
            if word == ".version":
                self.module.version = value
            elif word == ".target":
                self.module.target = value.partition(",")[0].strip()
                if not _ARCHITECTURE.fullmatch(self.module.target):
                    raise self.wrong("an architecture that the PTX ISA does not have", value)
            elif word == ".address_size" and value != "64":
                raise self.wrong("addresses of 64 bits alone are known", f"{word} {value}")
            return
        if word == ".section":
            self.braces()
            return
        start = self.at
        position = self.at
        while word in (".extern", ".visible", ".weak", ".common"):
            position = _skip(self.text, position + len(word))
            match = _WORD.match(self.text, position)
            word = match[0] if match else ""
        if word in (".entry", ".func"):
            self.at = position + len(word)
            self.function_(word == ".entry")
            return
        if word == ".alias":
            offset = self.at
            alias = _ALIAS.fullmatch(self.until_semicolon())
            if alias is None:
                raise self.wrong("an alias has two names", self.text[offset : self.at], offset)
            self.aliases.append((alias[1], alias[2], offset))
            return
        if word in (".pragma", ".weakref"):
            self.until_semicolon()
            return
        if _VARIABLE.match(self.text, start):
            self.module.variables += self.variables(self.until_semicolon(), start)
            return
        raise self.wrong("a directive that is not known", word)

    def until_semicolon(self) -> str:
        start, depth = self.at, 0
        quoted = False
        for position in range(start, len(self.text)):
            letter = self.text[position]
            if letter == '"':
                quoted = not quoted
            elif quoted:
                continue
            elif letter in "{(":
                depth += 1
            elif letter in "})":
                depth -= 1
            elif letter == ";" and depth <= 0:
                self.at = position + 1
                return self.text[start:position]
        raise self.wrong("a statement does not end with a semicolon", self.text[start : start + 80])

    def braces(self) -> str:
        start = self.text.find("{", self.at)
        end = self.text.find("}", start)
        if start < 0 or end < 0:
            raise self.wrong("a brace is not closed", self.text[self.at : self.at + 80])
        self.at = end + 1
        return self.text[start:end]

    def function_(self, entry: bool) -> None:
        line = self.line_at(self.at)
        self.skip_space()
        results: list[Parameter] = []
        if self.text[self.at : self.at + 1] == "(":
            results = self.parameters()
            self.skip_space()
        name = _WORD.match(self.text, self.at)
        if name is None:
            raise self.wrong("a function has no name", self.text[self.at : self.at + 40])
        self.at = name.end()
        function = Function(name[0], entry, line, results)
        self.skip_space()
        if self.text[self.at : self.at + 1] == "(":
            function.parameters = self.parameters()
        while True:
            self.skip_space()
            directive = _DIRECTIVE.match(self.text, self.at)
            if directive is None:
                break
            numbers = tuple(int(n) for n in re.findall(r"\d+", directive[2]))
            function.directives[directive[1]] = numbers
            self.at = directive.end()
        here = self.text[self.at : self.at + 1]
        if here == ";":
            self.at += 1
            return
        if here != "{":
            raise self.wrong(f"{name[0]} has no body", self.text[self.at : self.at + 60])
        self.at += 1
        self.function = function
        self.body()
        self.module.functions[function.name] = function

    def parameters(self) -> list[Parameter]:
        end = self.text.find(")", self.at)
        if end < 0:
            raise self.wrong("a parenthesis is not closed", self.text[self.at : self.at + 60])
        inside = self.text[self.at + 1 : end]
        start, self.at = self.at, end + 1
        parameters = []
        for part in filter(str.strip, inside.split(",")):
            text = re.sub(r"^\s*\.(param|reg)\b", "", part)
            (one,) = self.declared(text, "param", start)
            kind = re.search(r"\.(pred|b128|[busf]\d+)\b", part)
            register = part.lstrip().startswith(".reg")
            parameters.append(
                Parameter(
                    one.name, one.size, one.align, ".ptr" in part, kind[1] if kind else "", register
                )
            )
        return parameters

    def variables(self, text: str, offset: int) -> list[Variable]:
        match = _VARIABLE.match(text.strip())
        if match is None:
            raise self.wrong("not a declaration of a variable", text.strip())
        return self.declared(match[2], match[1], offset)

    def declared(self, text: str, space: str, offset: int) -> list[Variable]:
        match = _DECLARED.fullmatch(text)
        if match is None or match[4] not in _SIZES:
            raise self.wrong("a declaration that is not known", text, offset)
        element = _SIZES[match[4]] * int((match[3] or "v1")[1:])
        align = max((int(n) for n in (match[1], match[2]) if n), default=element)
        variables = []
        for part in split_operands(match[6]):
            name = _NAME.fullmatch(part.strip())
            if name is None:
                raise self.wrong("a declaration that is not known", text, offset)
            counts = re.findall(r"\[\s*(\w*)\s*\]", name[2])
            opaque = match[4] in ("texref", "samplerref", "surfref")
            filled = name[3] and not opaque
            content = self.content(name[3], _SIZES[match[4]], text, offset) if filled else []
            size = element
            for count in counts:
                size *= int(count, 0) if count else 0
            if counts and not size and content:
                size = max(o + _SIZES[match[4]] for o, _ in content)
            if size > _MOST_BYTES or align & (align - 1) or align > _MOST_ALIGN:
                raise self.wrong(f"a variable of {size} bytes, aligned to {align}", text, offset)
            filled_bytes = max((o + _bytes_of(piece) for o, piece in content), default=0)
            if filled_bytes > size:
                wrong = f"{filled_bytes} bytes of values for a variable of {size} bytes"
                raise self.wrong(wrong, text, offset)
            variables.append(Variable(name[1], space, size, align, content))
        return variables

    def content(
        self, text: str, element: int, whole: str, offset: int
    ) -> list[tuple[int, bytes | Reference]]:
        items = [t.strip() for t in re.split(r"[{},]", text) if t.strip()]
        pieces: list[tuple[int, bytes | Reference]] = []
        for number, item in enumerate(items):
            name = _REFERENCE.fullmatch(item)
            if name is not None:
                mask = int(name[1], 0) if name[1] else None
                far = int(re.sub(r"\s", "", name[3] or "0"), 0)
                pieces.append((number * element, Reference(name[2], far, mask)))
                continue
            value = self.value_of(item, whole, offset)
            raw = value & ((1 << 8 * element) - 1)
            pieces.append((number * element, raw.to_bytes(element, "little")))
        return pieces

    def value_of(self, item: str, whole: str, offset: int) -> int:
        try:
            return int(self.number(item, whole).value)
        except (NotModelled, OverflowError) as error:
            words = getattr(error, "words", f"no number of this size: {item}")
            raise self.wrong(words, whole, offset) from None

    # -- a body --

    def body(self) -> None:
        function = self.function
        assert function is not None
        self.scopes = [{}]
        self.location, depth = None, 1
        for parameter in (*function.results, *function.parameters):
            if parameter.register:
                statement = self.declaration(f".reg .{parameter.type} {parameter.name}")
                function.registers.update(statement.declared)
                (parameter.name,) = statement.declared
        while True:
            self.skip_space()
            if self.at >= len(self.text):
                raise self.wrong(f"the body of {function.name} does not end")
            here = self.text[self.at]
            if here == "{":
                self.at, depth = self.at + 1, depth + 1
                self.scopes.append(self.labels_ahead())
            elif here == "}":
                self.at, depth = self.at + 1, depth - 1
                self.scopes.pop()
                if not depth:
                    self.close(function)
                    return
            elif here == ";":
                self.at += 1
            elif here == "." and self.directive():
                pass
            elif (label := _LABEL.match(self.text, self.at)) is not None:
                self.at = label.end()
                name = self.label(label[1])
                self.skip_space()
                if self.text.startswith(".branchtargets", self.at):
                    listed = self.until_semicolon().split(None, 1)[1]
                    function.tables[name] = tuple(self.label(n.strip()) for n in listed.split(","))
                elif self.text.startswith((".callprototype", ".calltargets"), self.at):
                    self.until_semicolon()
                else:
                    function.labels[name] = len(function.instructions)
            else:
                self.instruction()

    def close(self, function: Function) -> None:
        """Let a function that comes to its end return."""
        end = len(function.instructions)
        last = function.instructions[-1].statement if end else None
        ends = last is not None and last.guard is None and last.name in _LAST
        if not ends or end in function.labels.values():
            line = self.line_at(self.at - 1)
            statement = Statement("}", "ret", (), ())
            function.instructions.append(Instruction(statement, line, self.location))

    def label(self, name: str) -> str:
        """Return the unique name of a label: those of inner braces hide those outside."""
        return next((s[f":{name}"] for s in reversed(self.scopes) if f":{name}" in s), name)

    def labels_ahead(self) -> dict[str, str]:
        """Return the labels between the braces that were just opened."""
        depth, end = 1, self.at
        while depth and end < len(self.text):
            depth += {"{": 1, "}": -1}.get(self.text[end], 0)
            end += 1
        labels = {}
        for match in re.finditer(
            r"(?:^|[;\n{}])\s*([%$A-Za-z_][\w$]*)\s*:(?!:)", self.text[self.at : end]
        ):
            self.count += 1
            labels[f":{match[1]}"] = f"{match[1]}'{self.count}"
        return labels

    def directive(self) -> bool:
        function = self.function
        assert function is not None
        text, position = self.text, self.at
        if re.compile(r"\.loc\s").match(text, position):
            match = _LOC.match(text, position)
            if match is None:
                self.rest_of_line()
                return True
            self.at = match.end()
            file = self.files.get(int(match[1]), "")
            if match[4]:
                call = (self.files.get(int(match[4]), ""), int(match[5]))
                if not self.tail or self.tail[0] != call:
                    self.tail = (call,)
            else:
                self.tail = ()
            self.location = Location(file, int(match[2]), int(match[3]), self.tail)
            return True
        if text.startswith(".file", position):
            self.rest_of_line()
            return True
        if text.startswith(".pragma", position):
            self.until_semicolon()
            return True
        if text.startswith(".reg", position):
            whole = self.until_semicolon()
            try:
                statement = self.declaration(re.sub(r"\s+", " ", whole))
            except NotModelled as error:
                raise self.wrong(error.words, error.got, position) from None
            function.registers.update(statement.declared)
            return True
        match = re.compile(r"\.(local|shared|param|global|const)\b").match(text, position)
        if match is not None:
            whole = self.until_semicolon()
            for variable in self.variables(whole, position):
                if variable.space in ("global", "const"):
                    self.module.variables.append(variable)
                elif variable.space == "param" and len(self.scopes) > 1:
                    self.count += 1
                    unique = f"{variable.name}'{self.count}"
                    self.scopes[-1][variable.name] = unique
                    function.variables.append(
                        Variable(unique, "param", variable.size, variable.align)
                    )
                else:
                    function.variables.append(variable)
            return True
        return False

    def instruction(self) -> None:
        function = self.function
        assert function is not None
        position = self.at
        line = self.line_at(position)
        try:
            statement = self.statement()
        except NotModelled as error:
            raise self.wrong(error.words, error.got, position) from None
        if statement is not None:
            function.instructions.append(Instruction(statement, line, self.location))

    def operands(self, name: str, rest: str, whole: str) -> tuple[Operand, ...]:
        if name not in _CONTROL:
            return super().operands(name, rest, whole)
        # Labels and functions have no place among operands, so they are immediates of their names.
        parts: list[Operand] = []
        for part in split_operands(rest):
            part = part.strip()
            if part.startswith("("):
                inside = [p.strip() for p in split_operands(part[1:-1]) if p.strip()]
                parts.append(Vector(tuple(self.operand(p, whole) for p in inside)))
            elif name != "bra" and self.is_register(part):
                parts.append(self.operand(part, whole))
            else:
                parts.append(Name(self.label(part)))
        return tuple(parts)

    def is_register(self, name: str) -> bool:
        assert self.function is not None
        return self.named(name) in self.function.registers

    def operand(self, part: str, whole: str) -> Operand:
        part = part.strip()
        if part.startswith("$") and re.fullmatch(r"[\w$]+", part):
            return Register(part)
        return super().operand(part, whole)

    def address(self, part: str, whole: str) -> Address:
        parts = split_operands(part)
        if len(parts) == 1:
            return super().address(part, whole)
        more = tuple(self.operand(p, whole) for p in parts[1:])
        base = super().address(parts[0], whole)
        return Address(base.base, base.offset, more)


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _bytes_of(piece: bytes | Reference) -> int:
    return len(piece.bytes_of(0) if isinstance(piece, Reference) else piece)


@lru_cache(maxsize=32)
def parse_module(text: str) -> Module:
    """Return the module of a text.

    Raises:
        BackendError: the text is no PTX; the message names the line.
    """
    reader = _Modules(text)
    try:
        return reader.read()
    except (ArithmeticError, LookupError, ValueError, TypeError, RecursionError) as error:
        raise reader.wrong(f"cannot be read: {error}") from error
