"""AMDGCN assembly, as LLVM prints it, to a `Program`."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any, Optional, Union

from gluon_core.errors import BackendError
from gluon_emu.amdgcn.decode.data import Data, Region, without_comment
from gluon_emu.amdgcn.decode.expressions import evaluate
from gluon_emu.amdgcn.decode.link import link
from gluon_emu.amdgcn.decode.metadata import read_metadata
from gluon_emu.amdgcn.decode.operands import Operand, parse_operand, split_operands
from gluon_emu.amdgcn.decode.program import Instruction, Location, Program

__all__ = ["parse"]

Section = Union[str, Region, None]
_SUFFIX = re.compile(r"^(v_.*?)_(e64_dpp8|e64_dpp|dpp8|dpp|sdwa|e32|e64)$")
_LABEL = re.compile(r"^(\"[^\"]+\"|[.\w$]+):")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?')
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
_INLINED = re.compile(r"@\[ ([^\s\]]+):(\d+):\d+")
_HSA = re.compile(r"^\s*\.amdhsa_(\w+)\s+(.+)")
_TARGET = re.compile(r'^\s*\.amdgcn_target\s+".*?(gfx\w+?)(?::[^"]*)?"')
_OPCODE = re.compile(r"^\s+([a-z][a-z0-9_]*)(?:\s+(.*))?$")
_UNITS = ("s_", "v_", "ds_", "buffer_", "global_", "flat_", "scratch_", "image_", "tensor_", "tbuffer_", "cluster_")  # fmt: skip
_LAST = ("s_endpgm", "s_branch", "s_setpc", "s_set_pc", "s_code_end")
_UNUSED = ("inst_pref_size",)  # they depend on bytes of code, which the emulator does not count
_NUMBERED = re.compile(r"(\d+)([bf])$")
_ASSIGNED = re.compile(r"([A-Za-z_.$][\w.$]*)\s*=\s*([^=].*)$")
_WRITTEN_FOR = (
    ".macro", ".rept", ".irp", ".irpc", ".if", ".ifdef", ".ifndef", ".ifeq", ".ifne", ".include",
    ".incbin", ".altmacro",
)  # fmt: skip


def parse(text: str, name: Optional[str] = None) -> Program:
    """Return the kernel `name` of an assembly text, or its only one.

    Raises:
        BackendError: the text has no such kernel, or part of it cannot be read.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.take(number, line)
    kernels = read_metadata(text)
    if not kernels:
        raise BackendError(
            "the assembly has no metadata of a kernel",
            expected="a text with .amdgpu_metadata, as the compiler prints it",
            remedy="Keep everything of the compiler's text, and change instructions only.",
        )
    if name is not None and name not in kernels:
        raise BackendError(
            f"the assembly has no kernel {name!r}", expected=" or ".join(kernels), got=name
        )
    info = kernels[name] if name else next(iter(kernels.values()))
    directives = reader.directives.get(info.name)
    if directives is None or info.name not in reader.labels:
        missing = ".amdhsa_kernel block" if directives is None else "label"
        raise BackendError(f"the assembly has no kernel {info.name!r}: there is no {missing} of it")
    if not reader.architecture:
        raise BackendError(
            "the assembly does not say for which architecture it is",
            expected='.amdgcn_target "amdgcn-amd-amdhsa--gfx942", for example',
        )
    last = reader.instructions[-1]
    if not last.name.startswith(_LAST):  # such as a call that does not return
        end = Instruction(last.index + 1, "s_code_end", "", (), {}, "s_code_end", last.line, None)
        reader.instructions.append(end)
    program = Program(
        info.name,
        reader.architecture,
        reader.instructions,
        reader.labels,
        {},
        info,
        reader.labels[info.name],
        reader.data,
    )
    value_of = link(program, reader.sets)
    program.directives.update(
        (key, evaluate(value, value_of)) for key, value in directives.items() if key not in _UNUSED
    )
    if program.directives.get("user_sgpr_kernarg_preload_length"):
        program.entry = _behind_prologue(program)
    return program


def _behind_prologue(program: Program) -> int:
    """Return the start for hardware that preloads arguments: 256 bytes in, behind loads and a branch."""
    index = program.entry
    while program.instructions[index].name.startswith(("s_load_", "s_waitcnt", "s_wait_", "s_nop")):
        index += 1
    instruction = program.instructions[index]
    if instruction.name == "s_branch" and index > program.entry:
        return program.labels[str(instruction.operands[0])]
    return program.entry


class _Reader:
    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.directives: dict[str, dict[str, str]] = {}
        self.sets: dict[str, str] = {}
        self.data = Data()
        self.architecture = ""
        self._files: dict[int, str] = {}
        self._location: Optional[Location] = None
        self._kernel: Optional[dict[str, str]] = None
        # The section: code, a region of data, or None for one that is not loaded.
        self._section: Section = "code"
        self._sections: list[Section] = []
        self._before: Section = "code"
        self._metadata = False
        self._numbered: dict[str, int] = {}

    def take(self, number: int, line: str) -> None:
        stripped = line.strip()
        if not stripped or stripped.startswith((";", "//")):
            return
        if self._metadata:
            self._metadata = not stripped.startswith(".end_amdgpu_metadata")
            return
        label = _LABEL.match(stripped)
        if label:
            self._label(label[1].strip('"'))
            if stripped[label.end() :].strip():
                self.take(number, stripped[label.end() :])
        elif stripped.startswith("."):
            if stripped.startswith(".loc"):
                match = _LOC.match(line)
                if match:
                    self._place(match, line)
                return
            self._directive(number, line, without_comment(stripped))
        elif assigned := _ASSIGNED.match(without_comment(stripped)):
            self.sets[assigned[1]] = assigned[2]
        elif self._section == "code":
            self._instruction(number, line)

    def _label(self, name: str) -> None:
        if isinstance(self._section, Region):
            self.data.define(name, self._section)
        elif self._section == "code":
            if name.isdigit():
                self._numbered[name] = self._numbered.get(name, 0) + 1
                name = f"{name}#{self._numbered[name]}"
            self.labels[name] = len(self.instructions)

    def _enter(self, section: Section) -> None:
        self._before, self._section = self._section, section

    def _named(self, rest: str) -> Section:
        name, *more = (piece.strip() for piece in rest.split(","))
        flags = more[0].strip('"') if more else ""
        if name.startswith(".text") or "x" in flags:
            return "code"
        return self.data.region_of(name.strip('"'), flags)

    def _directive(self, number: int, line: str, stripped: str) -> None:
        word, _, rest = stripped.partition("\t") if "\t" in stripped else stripped.partition(" ")
        word, rest = word.strip(), rest.strip()
        if word == ".file":
            match = _FILE.match(line)
            if match:
                folder, file = match[2], match[3]
                path = str(PurePosixPath(folder, file)) if file else folder
                self._files[int(match[1])] = path
        elif word == ".text":
            self._enter("code")
        elif word in (".data", ".bss"):
            self._enter(self.data.region_of(word, "aw"))
        elif word in (".section", ".pushsection"):
            if word == ".pushsection":
                self._sections.append(self._section)
            self._enter(self._named(rest))
        elif word == ".popsection" and self._sections:
            self._enter(self._sections.pop())
        elif word == ".previous":
            self._enter(self._before)
        elif word == ".amdgcn_target":
            match = _TARGET.match(line)
            self.architecture = match[1] if match else ""
        elif word == ".amdhsa_kernel":
            self._kernel = self.directives.setdefault(rest.strip('"'), {})
        elif word == ".end_amdhsa_kernel":
            self._kernel = None
        elif word == ".amdgpu_metadata":
            self._metadata = True
        elif self._kernel is not None:
            match = _HSA.match(stripped)
            if match:
                self._kernel[match[1]] = match[2]
        elif word in (".set", ".equ", ".equiv"):
            symbol, _, value = rest.partition(",")
            self.sets[symbol.strip().strip('"')] = value.strip()
        elif word in (".comm", ".lcomm"):
            self.data.common(rest)
        elif word in _WRITTEN_FOR:
            raise BackendError(
                f"the emulator does not understand `{stripped}` at line {number}: it runs what an "
                "assembler has left of macros and conditions"
            )
        elif isinstance(self._section, Region):
            self.data.directive(self._section, word, rest, number)

    def _place(self, match: Any, line: str) -> None:
        number, column = int(match[2]), int(match[3])
        if not number:  # the compiler's own doing: the place before stays
            return
        inlined = tuple(
            (file, int(line_number))
            for file, line_number in _INLINED.findall(line.partition(";")[2])
        )
        self._location = Location(self._files.get(int(match[1]), "?"), number, column, inlined)

    def _instruction(self, number: int, line: str) -> None:
        # A kernel's own assembly starts its lines where it likes.
        code = "\t" + without_comment(line)
        halves = code.split("::")
        match = _OPCODE.match(halves[0])
        if match is None or not match[1].startswith(_UNITS):
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
        self.instructions.append(self._one(index, match, text, number, second))

    def _one(
        self, index: int, match: Any, text: str, number: int, second: Optional[Instruction]
    ) -> Instruction:
        name, suffix = match[1], ""
        stripped = _SUFFIX.match(name)
        if stripped:
            name, suffix = stripped[1], stripped[2]
        raw = (match[2] or "").strip()
        whole = ("s_waitcnt", "s_delay_alu", "s_sendmsg", "s_wait_alu")
        if name.startswith(whole) and not name.startswith("s_sendmsg_rtn"):
            operands: tuple[Operand, ...] = (parse_operand(raw),) if raw else ()
            modifiers: dict[str, str] = {}
        else:
            texts, modifiers = split_operands(raw)
            if name.startswith(("s_branch", "s_cbranch", "s_call")):
                texts = [self._branch_label(t) for t in texts]
            operands = tuple(parse_operand(t) for t in texts)
        return Instruction(
            index, name, suffix, operands, modifiers, text, number, self._location, second
        )

    def _branch_label(self, text: str) -> str:
        """Return the name of a label; `1b` and `1f` are the nearest label `1` before and behind."""
        numbered = _NUMBERED.match(text)
        if numbered is None:
            return text
        passed = self._numbered.get(numbered[1], 0)
        return f"{numbered[1]}#{passed + (numbered[2] == 'f')}"
