"""Kernels of PTX, ready to run: of a text, and of a file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Optional

from gluon_core.errors import BackendError
from gluon_emu.ptx.decode.module import parse_module
from gluon_emu.ptx.isa.families import find
from gluon_emu.ptx.machine.code import Code

__all__ = ["code_in", "code_of"]


@lru_cache(maxsize=64)
def code_of(text: str, name: Optional[str] = None) -> Code:
    """Return a kernel of a PTX text, ready to run.

    Raises:
        BackendError: the text is no PTX, or there is no such kernel.
        UnknownInstructionError: an instruction is not known here.
    """
    module = parse_module(text)
    return Code(module, module.entry(name), find)


def code_in(file: Path, kernel: Optional[str] = None) -> Code:
    """Return a kernel of a file of PTX.

    Raises:
        BackendError: the file cannot be read, or is no PTX.
    """
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BackendError(f"{file} cannot be read as PTX", got=str(error)) from None
    try:
        code = code_of(text, kernel)
    except BackendError as error:
        error.message = f"{file}: {error.message}"
        raise
    code.module.file = str(file)
    return code
