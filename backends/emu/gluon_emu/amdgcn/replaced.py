"""Machine code that runs in place of the compiler's: assembly in a file, for a kernel by its name."""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Iterator, Optional

from gluon_core.errors import ArgumentError, BackendError, did_you_mean
from gluon_emu.amdgcn.decode.codeobject import assembly_of
from gluon_emu.amdgcn.decode.metadata import Argument, KernelInfo
from gluon_emu.amdgcn.decode.program import Program
from gluon_emu.amdgcn.decode.text import parse
from gluon_emu.amdgcn.machine.code import Code, bind

__all__ = ["all_used", "code_in", "files", "named_file", "replacement", "text_of"]

_launched: list[set[str]] = []  # names of kernels since `all_used` began, innermost last


def files(assembly: Optional[str]) -> dict[str, Path]:
    """Return kernel -> file of a text "KERNEL=FILE,...".

    Raises:
        ArgumentError: the text is not of this form, or there is no such file.
    """
    by_kernel = {}
    for pair in (assembly or "").split(","):
        if not pair.strip():
            continue
        name, equals, file = (piece.strip() for piece in pair.partition("="))
        if not equals or not name or not file:
            raise ArgumentError(
                "names no file for a kernel", argument="--asm", expected="KERNEL=FILE", got=pair
            )
        if not Path(file).is_file():
            raise ArgumentError(
                f"there is no file for {name}",
                argument="--asm",
                got=file,
                remedy="Write the compiler's text with gluon compile FILE:KERNEL --emit amdgcn, and "
                "change that.",
            )
        by_kernel[name] = Path(file)
    return by_kernel


@contextmanager
def all_used(assembly: Optional[str]) -> Iterator[None]:
    """Check that each kernel with a file is launched inside.

    Raises:
        ArgumentError: a kernel was not launched, or `files` refuses the text.
    """
    named = files(assembly)
    launched: set[str] = set()
    _launched.append(launched)
    try:
        yield
    finally:
        _launched.pop()
    unused = [name for name in named if name not in launched]
    if unused:
        raise ArgumentError(
            f"no kernel {unused[0]} was launched",
            argument="--asm",
            expected=", ".join(sorted(launched)) or "a file that launches kernels",
            got=unused[0],
            remedy=did_you_mean(unused[0], launched),
        )


def named_file(kernel: str, assembly: str) -> Optional[Path]:
    """Return the file whose code a launch of a kernel executes; None for the compiler's own."""
    for launched in _launched:
        launched.add(kernel)
    return files(assembly).get(kernel)


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
