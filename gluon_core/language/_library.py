"""Functions of Triton's library as functions of the language, and classes whose methods kernels call."""

from __future__ import annotations

import copy
import functools
from typing import Any, Callable, Optional, TypeVar, cast

from gluon_core._triton import JITFunction, traceable
from gluon_core.plugin.ops import TracedFunction, compile_time, is_builtin

__all__ = ["library", "open_to_kernels"]

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def library(fn: Any, host: Optional[Callable[..., Any]] = None) -> Callable[[F], F]:
    """`@library(fn)` over a declaration: `fn`, a function of Triton's library that is written in the
    language, with the signature and the documentation of the declaration. Outside of kernels it is
    `host`, if there is one."""
    fn = traceable(fn)

    def put(declared: F) -> F:
        # Its module and qualified name stay: they are the function's name in IR.
        shown = ("__name__", "__doc__")
        function: Any = functools.update_wrapper(copy.copy(fn), declared, shown, ())
        if isinstance(function, JITFunction):
            function.__class__ = TracedFunction
            function.host = host
        return cast(F, function)

    return put


def open_to_kernels(cls: C) -> C:
    """Let kernels call the public static methods of a class, such as a layout's constructors."""
    for name, member in list(vars(cls).items()):
        if isinstance(member, staticmethod) and not name.startswith("_"):
            if not is_builtin(member.__func__):
                setattr(cls, name, staticmethod(compile_time(member.__func__)))
    return cls
