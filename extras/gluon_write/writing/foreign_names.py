"""Imports that give a written file the names which functions of other files read."""

from __future__ import annotations

import ast
import builtins
import math
import sys
from types import ModuleType
from typing import Any, Collection, Optional

import gluon_core
from gluon_core import language
from gluon_core._triton import unwrap
from gluon_core.errors import LayoutError
from gluon_write.text.form import edited, free_name
from gluon_write.text.syntax import first_of, nodes_in
from gluon_write.writing.edits import space_in

__all__ = ["Imports"]


class Imports:
    """Collect the imports that a written file needs.

    Args:
        kernel: the kernel as it is in the file. taken: words that new names must not be.
        lines: takes the imports.
    """

    def __init__(self, kernel: Any, taken: set[str], lines: list[str]):
        self.file, self.home = kernel.fn.__code__.co_filename, f"{kernel.fn.__qualname__}."
        self.scope: dict[str, Any] = dict(kernel.get_capture_scope())
        self.taken, self.lines = taken, lines

    def library(self) -> str:
        """Return the name that the file has for the library, by an import where it has none."""
        for name, value in self.scope.items():
            if value is gluon_core:
                return name
        return self._bound("gluon", gluon_core, gluon_core.__name__)

    def module(self, value: ModuleType) -> str:
        """Return the name that the file has for a module, by an import where it has none."""
        return self._bound(value.__name__, value, value.__name__)

    def with_imports(self, text: str, fn: Any, copies: Collection[str]) -> str:
        """Return the text of a written function, whose names the file has then.

        Args:
            fn: the function. copies: names of written functions that it calls.

        Raises:
            LayoutError: no import gives a name.
        """
        tree = ast.parse(text)
        nodes = [node for node in nodes_in(tree) if isinstance(node, ast.Name)]
        local = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
        local |= {arg.arg for arg in nodes_in(tree) if isinstance(arg, ast.arg)}
        own = dict(fn.get_capture_scope())
        space = space_in(own)
        own[space] = language
        around = self._around(fn)
        names: dict[str, str] = {}
        constants: list[str] = []
        for node in nodes:
            name = node.id
            if name in local or name in copies or name in names or name not in own:
                continue
            if name in around or _same(
                self.scope.get(name, getattr(builtins, name, None)), own[name]
            ):
                continue
            names[name] = name
            constant = None
            if name in fn.fn.__code__.co_freevars:
                names[space] = self._bound(space, language, "")
                constant = _constant(own[name], names[space])
            if constant is not None:
                constants.append(f"{name}: {names[space]}.constexpr = {constant}")
            else:
                names[name] = self._bound(name, own[name], str(fn.fn.__module__), fn)
        renames = [
            (node, name) for node in nodes if (name := names.get(node.id, node.id)) != node.id
        ]
        lines = edited(text, list(renames)).splitlines()
        function: Any = tree.body[0]
        first = first_of(function.body)
        place = first.lineno - 1
        while lines[place - 1].lstrip().startswith("#"):
            place -= 1
        lines[place:place] = [" " * first.col_offset + line for line in constants]
        return "\n".join(lines) + "\n"

    def _around(self, fn: Any) -> Collection[str]:
        """Return the variables of the functions around a function that are around the kernel, too."""
        home = str(fn.fn.__qualname__).rpartition(".<locals>.")[0]
        inside = bool(home) and self.home.startswith(f"{home}.")
        return (
            fn.fn.__code__.co_freevars if inside and fn.fn.__code__.co_filename == self.file else ()
        )

    def _bound(self, name: str, value: Any, module: str, fn: Any = None) -> str:
        """Return the name that an import binds to a value."""
        known = next((n for n, other in self.scope.items() if other is value), None)
        if known is not None and isinstance(value, ModuleType):
            return known
        bound = name
        if name in self.scope or name in self.taken:
            bound = free_name(name, self.taken | self.scope.keys())
        line = _import(name, value, module, bound)
        if line is None:
            raise LayoutError(
                f"{fn.__name__} leaves layouts out, and reads {name} of another file, which no import gives",
                argument="layouts",
                expected=self.file,
                got=fn.fn.__code__.co_filename,
                remedy=f"Define {name} at the top of a module, or move the function to the kernel's file.",
            )
        self.lines.append(line)
        self.scope[bound] = value
        self.taken.add(bound)
        return bound


def _constant(value: Any, space: str) -> Optional[str]:
    """Return the text of a number, a string or a type, None of other values."""
    value = unwrap(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return f'float("{value}")' if value in (math.inf, -math.inf) else repr(value)
    kinds = (name for name in dir(language) if getattr(language, name) is value)
    name = next(kinds, None) if isinstance(value, language.dtype) else None
    return None if name is None else f"{space}.{name}"


def _import(name: str, value: Any, module: str, bound: str) -> Optional[str]:
    """Return the import that binds a value, None where there is none."""
    if isinstance(value, ModuleType):
        before, _, last = value.__name__.rpartition(".")
        if before and last == bound:
            return f"from {before} import {last}"
        if before:
            return f"from {before} import {last} as {bound}"
        return f"import {last}" if last == bound else f"import {last} as {bound}"
    function = unwrap(value)
    function = getattr(function, "fn", function)
    for home, word in (
        (module, name),
        (getattr(function, "__module__", None), getattr(function, "__qualname__", None)),
    ):
        holder = sys.modules.get(home or "")
        if (
            holder is not None
            and word
            and home != "__main__"
            and _same(getattr(holder, word, None), value)
        ):
            return f"from {home} import {word}" + (f" as {bound}" if bound != word else "")
    return None


def _same(one: Any, other: Any) -> bool:
    """Return True for one value, and for one function that is compiled or not."""
    if one is other:
        return True
    one, other = (getattr(unwrap(value), "fn", unwrap(value)) for value in (one, other))
    return (
        one is other
        or isinstance(one, (bool, int, float, str))
        and type(one) is type(other)
        and bool(one == other)
    )
