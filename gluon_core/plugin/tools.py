"""Triton's side of compiling and launching that vendors share: its driver, its tools, its settings."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import Any, Callable, Optional

from gluon_core import _triton
from gluon_core.errors import BackendError

__all__ = ["active_driver", "knobs", "run_tool", "user_allocator"]

active_driver = _triton.active_driver
knobs = _triton.knobs


def user_allocator(kind: str) -> Optional[Callable[[int, int, int], Any]]:
    """Return `f(size, alignment, stream)` for scratch memory of launches, None for the vendor's own choice.

    A program sets one with `triton.set_allocator`; for profiles newer Tritons bring one, too.

    Args:
        kind: "global" or "profile".
    """
    return _triton.user_allocator(kind)


def run_tool(name: str, code: bytes, *arguments: str) -> str:
    """Run a program of Triton's wheel, such as `cuobjdump`, on a file with `code`; return its output.

    Raises:
        BackendError: there is no such program, or it fails.
    """
    tool = _triton.tool(name)
    if tool is None:
        raise BackendError(f"the installed Triton ships no {name}")
    handle, path = tempfile.mkstemp(suffix=".cubin")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        done = subprocess.run([tool, *arguments, path], capture_output=True, text=True, check=False)
    finally:
        os.remove(path)
    if done.returncode:
        raise BackendError(f"{name} could not read the machine code", got=done.stderr.strip()[:400])
    return done.stdout
