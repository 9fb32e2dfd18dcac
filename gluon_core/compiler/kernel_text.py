"""Check that the file of a kernel still has the text that it had when it was imported.

Kernels are compiled from their source text, which Python reads lazily: a file that changed in
between would compile the wrong lines, or report errors at them.
"""

from __future__ import annotations

import ast
import linecache
import os
from typing import Any

from gluon_core.errors import HostFunctionError, KernelChangedError, SourceSpan

__all__ = ["changed", "check_unchanged", "host_call", "nested_unpacking", "remember"]

_Stamp = tuple[int, int]
_stamps: dict[str, _Stamp] = {}


def _stamp(path: str) -> _Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def remember(fn: Any, source: str) -> None:
    """Note the state of the file of `fn` (a Python function), whose text Python gave as `source`.

    Raises:
        KernelChangedError: the text is not that function: the file was edited after its import.
    """
    path = fn.__code__.co_filename
    current = _stamp(path)
    if current is not None:
        _stamps.setdefault(path, current)
    if f"def {fn.__name__}" not in source:
        raise changed(fn)


def changed(fn: Any) -> KernelChangedError:
    """Return the error for a function whose source is not where it was."""
    return KernelChangedError(
        f"the source of {fn.__name__} is not where it was when its file was imported",
        argument=f"{fn.__code__.co_filename}:{fn.__code__.co_firstlineno}",
        remedy="The file changed on disk; import it again.",
    )


def check_unchanged(jit_function: Any) -> None:
    """Raise if the kernel's text is no longer in its file.

    Moving it, or editing around it, does no harm: the text that was read at import is compiled.

    Raises:
        KernelChangedError: naming the file; the process has to import it again.
    """
    path = jit_function.fn.__code__.co_filename
    first = _stamps.get(path)
    if first is None:
        return
    current = _stamp(path)
    if current is None or current == first:
        return  # a file that is gone cannot mislead: the text was read already
    linecache.checkcache(path)
    known = "".join(jit_function.raw_src).rstrip()
    if known not in "".join(linecache.getlines(path)):
        raise KernelChangedError(
            f"{jit_function.__name__} changed on disk since it was imported",
            argument=f"{path}:{jit_function.starting_line_number}",
            remedy="Import the module again (restart the process) to compile the new source.",
        )


def host_call(jit_function: Any) -> HostFunctionError | None:
    """See `gluon_core.frontend.host_call`, which is loaded with the compiler and not with kernels."""
    from gluon_core.frontend import host_call

    return host_call(jit_function)


def nested_unpacking(jit_function: Any) -> SourceSpan | None:
    """Return the line where a kernel first assigns to a tuple within a tuple: `a, (b, c) = ...`."""
    path = jit_function.fn.__code__.co_filename
    starts = (i for i, text in enumerate(jit_function.raw_src) if text.lstrip().startswith("def "))
    first = jit_function.starting_line_number + next(starts, 0)  # below the decorators
    for node in ast.walk(jit_function.parse()):
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store):
            if any(isinstance(item, (ast.Tuple, ast.List)) for item in node.elts):
                line = first + node.lineno - 1
                return SourceSpan(path, line, 0, None, linecache.getline(path, line).rstrip("\n"))
    return None
