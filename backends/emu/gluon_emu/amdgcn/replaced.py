"""Machine code that runs in place of the compiler's: assembly in a file, for a kernel by its name."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Optional

from gluon_core.errors import ArgumentError, BackendError
from gluon_emu.amdgcn.decode.codeobject import assembly_of
from gluon_emu.amdgcn.decode.metadata import Argument, KernelInfo
from gluon_emu.amdgcn.decode.program import Program
from gluon_emu.amdgcn.decode.text import parse
from gluon_emu.amdgcn.machine.code import Code, bind
from gluon_emu.replaced import named_file

__all__ = ["code_in", "replacement", "text_of"]


def replacement(own: Code, assembly: str) -> Code:
    """Return the code that a launch of a kernel executes: its own, or that of the file for its name.

    Raises:
        ArgumentError: the file takes other arguments, or is for another architecture.
        BackendError: the file cannot be read.
    """
    name = own.program.name
    file = named_file(name, assembly)
    if file is None:
        return own
    code = code_in(file, name)
    _check_fit(own.program, code.program, file)
    return code


def code_in(file: Path, kernel: Optional[str] = None) -> Code:
    """Return the code of a kernel in a file; read the file again when it has changed.

    Raises:
        BackendError: the file cannot be read, or has no such kernel.
    """
    state = file.stat()
    return _code_in(file, kernel, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=16)
def _code_in(file: Path, kernel: Optional[str], changed: int, size: int) -> Code:
    try:
        program = parse(text_of(file, kernel), kernel)
        program.file = str(file)
        return bind(program)
    except BackendError as error:
        error.message = f"{file}: {error.message}"
        raise


def text_of(file: Path, kernel: Optional[str] = None) -> str:
    """Return the assembly in a file, or that of a code object.

    Raises:
        BackendError: the file is neither, or no tool here reads the code object.
    """
    raw = file.read_bytes()
    if raw.startswith(b"\x7fELF"):
        return assembly_of(raw, kernel)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise BackendError(
            "neither text nor a code object", expected="AMDGCN assembly, or an ELF file"
        ) from None
    if ".amdgcn_target" not in text:
        is_ptx = ".version" in text and ".target sm_" in text
        raise BackendError(
            "no AMDGCN assembly" + (", but PTX" if is_ptx else ""),
            expected="a text with .amdgcn_target, .amdhsa_kernel and .amdgpu_metadata",
            remedy="Write one with gluon compile FILE:KERNEL --target gfx942 --emit amdgcn.",
        )
    return text


def _check_fit(own: Program, changed: Program, file: Path) -> None:
    """Refuse code that the arguments and the grid of a launch do not fit."""

    def refuse(part: str, expected: object, got: object) -> ArgumentError:
        return ArgumentError(
            f"{file} does not fit the launch of {own.name}: {part} differ",
            argument="--asm",
            expected=str(expected),
            got=str(got),
            remedy="Compile the kernel for the types and options of this launch, and change that.",
        )

    if changed.architecture != own.architecture:
        raise refuse("the architectures", own.architecture, changed.architecture)
    if changed.info.wave_size != own.info.wave_size:
        raise refuse("lanes of a wave", own.info.wave_size, changed.info.wave_size)
    key = "max_flat_workgroup_size"
    if changed.info.number(key) != own.info.number(key):
        raise refuse("threads of a workgroup", own.info.number(key), changed.info.number(key))
    expected, got = _arguments(own.info), _arguments(changed.info)
    if expected != got:
        raise refuse("the arguments", _shown(expected), _shown(got))


def _arguments(info: KernelInfo) -> list[Argument]:
    """Return the arguments that a launch passes, without those that the runtime adds."""
    return [one for one in info.arguments if not one.kind.startswith("hidden_")]


def _shown(arguments: list[Argument]) -> str:
    return ", ".join(f"{a.kind} of {a.size} bytes at {a.offset}" for a in arguments) or "none"
