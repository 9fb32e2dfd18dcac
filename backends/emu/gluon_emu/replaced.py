"""The files whose code runs in place of the compiler's, by the names of kernels: `--asm KERNEL=FILE`."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional

from gluon_core.errors import ArgumentError, did_you_mean

__all__ = ["all_used", "files", "named_file"]

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
