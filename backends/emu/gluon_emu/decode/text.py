"""AMDGCN assembly, as LLVM prints it, to a `Program`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Mapping, Optional

from gluon_core.errors import BackendError
from gluon_emu.decode.metadata import KernelInfo, read_metadata
from gluon_emu.decode.operands import Const, Operand, Word, parse_operand, split_operands

__all__ = ["Instruction", "Location", "Program", "parse"]


@dataclass(frozen=True)
class Location:
    """A line of a kernel's source; `inlined` are the calls that led to it, innermost first."""

    file: str
    line: int
    column: int
    inlined: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    Args:
        index: its place in the program.
        name: mnemonic without the suffix of the encoding.
        suffix: that suffix: "", "e32", "e64", "dpp", "sdwa", ...
        operands: destinations first, as assembly has them.
        modifiers: `offset`, `op_sel`, `row_shr`, ... by name.
        text: as it was written.
        line: of the assembly.
        location: of the kernel's source.
        second: the other half of a dual instruction.
    """

    index: int
    name: str
    suffix: str
    operands: tuple[Operand, ...]
    modifiers: Mapping[str, str]
    text: str
    line: int
    location: Optional[Location]
    second: Optional["Instruction"] = None


@dataclass
class Program:
    """A kernel's instructions with what its descriptor and its metadata say.

    Args:
        labels: label -> index of the instruction behind it.
        directives: `.amdhsa_*` by name, without that prefix.
        info: see `KernelInfo`.
        architecture: such as "gfx942".
        entry: index of the first instruction.
        data: symbol -> bytes of read-only data.
    """

    name: str
    architecture: str
    instructions: list[Instruction]
    labels: dict[str, int]
    directives: dict[str, int]
    info: KernelInfo
    entry: int = 0
    data: dict[str, bytes] = field(default_factory=dict)


_SUFFIX = re.compile(r"^(v_.*?)_(e64_dpp8|e64_dpp|dpp8|dpp|sdwa|e32|e64)$")
_LABEL = re.compile(r"^(\"[^\"]+\"|[.\w$]+):")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?')
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
_INLINED = re.compile(r"@\[ ([^\s\]]+):(\d+):\d+")
_HSA = re.compile(r"^\s*\.amdhsa_(\w+)\s+(.+)")
_TARGET = re.compile(r'^\s*\.amdgcn_target\s+".*?(gfx\w+?)(?::[^"]*)?"')
_OPCODE = re.compile(r"^\s+([a-z][a-z0-9_]*)(?:\s+(.*))?$")
_UNITS = ("s_", "v_", "ds_", "buffer_", "global_", "flat_", "scratch_", "image_", "tensor_", "tbuffer_", "cluster_")  # fmt: skip


def parse(text: str, name: Optional[str] = None) -> Program:
    """The kernel `name` of an assembly text, or its only one.

    Raises:
        BackendError: the text holds no kernel, or something that cannot be read.
    """
    reader = _Reader()
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        reader.take(number, line)
    kernels = read_metadata(text)
    if not kernels:
        raise BackendError("the assembly has no metadata of a kernel")
    info = kernels[name] if name else next(iter(kernels.values()))
    directives = reader.directives.get(info.name)
    if directives is None or info.name not in reader.labels:
        raise BackendError(f"the assembly has no kernel {info.name!r}")
    entry = reader.labels[info.name]
    program = Program(
        info.name,
        reader.architecture,
        reader.instructions,
        reader.labels,
        directives,
        info,
        entry,
        {symbol: bytes(data) for symbol, data in reader.data.items()},
    )
    _resolve(program)
    if directives.get("user_sgpr_kernarg_preload_length"):
        program.entry = _behind_prologue(program)
    return program


def _behind_prologue(program: Program) -> int:
    """Where hardware that preloads arguments starts: 256 bytes in, behind loads and a branch."""
    index = program.entry
    while program.instructions[index].name.startswith(("s_load_", "s_waitcnt", "s_wait_", "s_nop")):
        index += 1
    found = program.instructions[index]
    if found.name == "s_branch" and index > program.entry:
        return program.labels[str(found.operands[0])]
    return program.entry


_RELATIVE = re.compile(r"(\"[^\"]+\"|[.\w$]+)@rel(?:32@(lo|hi)|64)(?:\+\d+)?$")


def _resolve(program: Program) -> None:
    """Distances to functions, which code adds to the address of an instruction before."""
    base = 0
    for number, ins in enumerate(program.instructions):
        if ins.name.startswith(("s_getpc", "s_get_pc")):
            base = number + 1
        for place, operand in enumerate(ins.operands):
            found = _RELATIVE.match(operand.text) if isinstance(operand, Word) else None
            if found is None or found[1] not in program.labels:
                continue
            distance = 4 * (program.labels[found[1]] - base) & (1 << 64) - 1
            if found[2]:
                distance = distance >> (32 if found[2] == "hi" else 0) & 0xFFFFFFFF
            operands = list(ins.operands)
            operands[place] = Const(distance, literal=True)
            program.instructions[number] = replace(ins, operands=tuple(operands))


class _Reader:
    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.directives: dict[str, dict[str, int]] = {}
        self.data: dict[str, bytearray] = {}
        self.architecture = ""
        self._files: dict[int, str] = {}
        self._location: Optional[Location] = None
        self._kernel: Optional[dict[str, int]] = None
        self._code = True
        self._symbol: Optional[str] = None
        self._done = False

    def take(self, number: int, line: str) -> None:
        if self._done:
            return
        stripped = line.strip()
        if not stripped or stripped.startswith(";"):
            return
        if stripped.startswith("."):
            label = _LABEL.match(stripped)
            if label is None:
                self._directive(line, stripped)
                return
        label = _LABEL.match(stripped)
        if label:
            if self._code:
                self.labels[label[1]] = len(self.instructions)
                if stripped[label.end() :].strip():
                    self.take(number, stripped[label.end() :])
            else:
                self._symbol = label[1]
                self.data[label[1]] = bytearray()
            return
        if self._code:
            self._instruction(number, line)

    def _directive(self, line: str, stripped: str) -> None:
        if stripped.startswith(".loc"):
            found = _LOC.match(line)
            if found:
                self._place(found, line)
            return
        word = stripped.split(None, 1)[0]
        if word == ".file":
            found = _FILE.match(line)
            if found:
                folder, file = found[2], found[3]
                path = str(PurePosixPath(folder, file)) if file else folder
                self._files[int(found[1])] = path
        elif word == ".text":
            self._code = True
        elif word == ".section":
            self._code = stripped.split()[1].startswith(".text")
        elif word == ".amdgcn_target":
            found = _TARGET.match(line)
            self.architecture = found[1] if found else ""
        elif word == ".amdhsa_kernel":
            self._kernel = self.directives.setdefault(stripped.split()[1], {})
        elif word == ".end_amdhsa_kernel":
            self._kernel = None
        elif word == ".amdgpu_metadata":
            self._done = True
        elif self._kernel is not None:
            found = _HSA.match(line)
            if found:
                self._kernel[found[1]] = _number(found[2])
        elif self._symbol is not None and not self._code:
            _data(self.data[self._symbol], word, stripped[len(word) :].split(";")[0].strip())

    def _place(self, found: Any, line: str) -> None:
        number, column = int(found[2]), int(found[3])
        if not number:  # the compiler's own doing: the place before stays
            return
        inlined = tuple((file, int(at)) for file, at in _INLINED.findall(line.partition(";")[2]))
        self._location = Location(self._files.get(int(found[1]), "?"), number, column, inlined)

    def _instruction(self, number: int, line: str) -> None:
        # A kernel's own assembly starts its lines where it likes.
        code = "\t" + line.split(";")[0].strip()
        halves = code.split("::")
        found = _OPCODE.match(halves[0])
        if found is None or not found[1].startswith(_UNITS):
            raise BackendError(
                f"the emulator does not understand `{code.strip()}` at line {number}"
            )
        index = len(self.instructions)
        text = " ".join(code.split())
        second = None
        if len(halves) == 2:
            other = _OPCODE.match(" " + halves[1].strip())
            if other is None:
                raise BackendError(f"the emulator does not understand `{text}` at line {number}")
            second = self._one(index, other, text, number, None)
        self.instructions.append(self._one(index, found, text, number, second))

    def _one(
        self, index: int, found: Any, text: str, number: int, second: Optional[Instruction]
    ) -> Instruction:
        name, suffix = found[1], ""
        stripped = _SUFFIX.match(name)
        if stripped:
            name, suffix = stripped[1], stripped[2]
        raw = (found[2] or "").strip()
        whole = ("s_waitcnt", "s_delay_alu", "s_sendmsg", "s_wait_alu")
        if name.startswith(whole) and not name.startswith("s_sendmsg_rtn"):
            operands: tuple[Operand, ...] = (parse_operand(raw),) if raw else ()
            modifiers: dict[str, str] = {}
        else:
            texts, modifiers = split_operands(raw)
            operands = tuple(parse_operand(t) for t in texts)
        return Instruction(
            index, name, suffix, operands, modifiers, text, number, self._location, second
        )


def _number(text: str) -> int:
    text = text.split(";")[0].strip()
    try:
        return int(text, 0)
    except ValueError:
        return 0


_SIZES = {".byte": 1, ".short": 2, ".hword": 2, ".long": 4, ".quad": 8}


def _data(into: bytearray, word: str, rest: str) -> None:
    if word in (".asciz", ".ascii", ".string"):
        body = rest.strip('"').encode().decode("unicode_escape").encode("latin1")
        into.extend(body + (b"\0" if word != ".ascii" else b""))
    elif word in _SIZES:
        for value in rest.split(","):
            try:
                number = int(value, 0)
            except ValueError:
                return
            size = _SIZES[word]
            into.extend((number & (1 << 8 * size) - 1).to_bytes(size, "little"))
    elif word in (".zero", ".space"):
        into.extend(bytes(int(rest.split(",")[0], 0)))
