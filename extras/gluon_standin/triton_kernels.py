"""Kernels of plain `@triton.jit`: their machine code, and runs in Triton's interpreter.

The interpreter is made for processes that start with TRITON_INTERPRET=1, where every jit function is
the interpreter's. Here kernels are compiled as well, so the functions that a kernel calls become the
interpreter's while it runs, and the language is restored afterwards.
"""

from __future__ import annotations

import functools
import threading
import types
from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Iterator, Mapping, Optional, Sequence

from triton.runtime.errors import InterpreterError
from triton.runtime.jit import JITFunction

from gluon_core._triton.library import as_written

__all__ = ["InterpreterError", "interpret", "machine_text", "read_when_asked", "scratch"]

_lock = threading.RLock()  # the interpreter exchanges ops of the language for all threads


def machine_text(name: str, key: str, extension: str) -> Optional[str]:
    """Return a text that Triton's compiler has left in its cache, or None where it keeps binaries alone.

    Args:
        name: of the source.
        key: the hash of the compiled kernel.
        extension: such as "amdgcn".
    """
    from triton.runtime.cache import get_cache_manager

    path = get_cache_manager(key).get_file(f"{name[:150]}.{extension}")
    if path is None:
        return None
    with open(path) as file:
        return file.read()


def read_when_asked() -> None:
    """Let `n_regs` and `n_spills` of Triton's kernels be functions of the kernel, called when read."""
    from triton.compiler.compiler import CompiledKernel

    if isinstance(vars(CompiledKernel).get("n_regs"), property):
        return
    for name in ("n_regs", "n_spills"):
        setattr(CompiledKernel, name, _read_later(f"_{name}"))


def _read_later(place: str) -> property:
    def read(kernel: Any) -> Any:
        value = getattr(kernel, place)
        if callable(value):
            value = value(kernel)
            setattr(kernel, place, value)
        return value

    return property(read, lambda kernel, value: setattr(kernel, place, value))


def scratch(size: int, alignment: int, stream: int, profile: bool = False) -> Any:
    """Return a buffer of `triton.set_allocator`'s function; None for no bytes.

    Raises:
        RuntimeError: no allocator is set, as Triton says it.
    """
    from triton.runtime import _allocation

    if not size:
        return None
    if profile:
        return _allocation._profile_allocator.get()(size, alignment, stream)
    return _allocation._allocator.get()(size, alignment, stream)


def interpret(
    kernel: JITFunction,
    grid: tuple[int, int, int],
    values: Sequence[Any],
    around: Callable[[Any], ContextManager[None]],
) -> None:
    """Run a kernel in Triton's interpreter.

    Args:
        values: one for each parameter, constants included.
        around: called with the interpreter's module; the kernel runs inside.
    """
    from triton.runtime import interpreter

    with _lock, _interpreted_calls(interpreter), around(interpreter):
        function = _rewritten(kernel)
        run = interpreter.GridExecutor(function, kernel.arg_names, grid)
        run(**dict(zip(kernel.arg_names, values)))


@contextmanager
def _interpreted_calls(interpreter: Any) -> Iterator[None]:
    """Run methods of tensors, and the jit functions that a kernel calls, in the interpreter."""
    import triton.language as tl

    kind: Any = JITFunction
    call = kind.__call__

    def interpreted(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _rewritten(self)(*args, **kwargs)

    def method(self: Any, owner: Any, cls: Any = None) -> Any:
        return functools.partial(self, owner) if isinstance(owner, tl.tensor) else self

    of_tensors = interpreter._patch_lang_tensor

    def indexed(tensor: Any, scope: Any) -> None:
        of_tensors(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = indexed
    whole = types.FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core})
    scope = interpreter._patch_lang(whole)
    kind.__call__, kind.__get__ = interpreted, method
    try:
        yield
    finally:
        kind.__call__ = call
        interpreter._patch_lang_tensor = of_tensors
        del kind.__get__
        if scope is not None:
            scope.restore()
        as_written()


_functions: dict[Any, Any] = {}


def _rewritten(kernel: JITFunction) -> Any:
    """Return the function of a kernel, or of what it calls, as the interpreter runs it."""
    function = kernel.fn
    if function not in _functions:
        from triton.runtime.interpreter import FunctionRewriter

        names: dict[str, Any] = function.__globals__
        before = set(names)
        _functions[function] = FunctionRewriter(function).rewrite_ast()
        used = _names(_functions[function].__code__)
        language = {"tl"} if not _sees_language(names, before) else set()
        for name in set(names) - before - used - language:
            del names[name]  # of the interpreter's own module, and not asked for
    return _functions[function]


def _names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _sees_language(names: Mapping[str, Any], before: set[str]) -> bool:
    import triton.language as tl

    return any(names[name] is tl or names[name] is tl.core for name in before if name in names)
