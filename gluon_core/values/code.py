"""Find the objects that Python code refers to, and the origin of functions and classes."""

from __future__ import annotations

import enum
import functools
import os
import sys
import types
from pathlib import Path
from typing import Any, Iterator, Mapping

from gluon_core import _triton
from gluon_core.registry.load import registry

__all__ = [
    "Attributes",
    "Closure",
    "is_fixed",
    "is_offered",
    "is_standard",
    "offered_text",
    "written_members",
]

_PACKAGES = ("gluon_core", "triton", "numpy", "torch", "ml_dtypes")
_STANDARD = Path(os.__file__).parent


class Closure:
    """The variables that a function has from those around it, as a mapping."""

    def __init__(self, function: Any):
        self.origin = function.__closure__
        self._cells = dict(zip(function.__code__.co_freevars, self.origin or ()))

    def get(self, name: str, default: Any) -> Any:
        try:
            return self._cells[name].cell_contents
        except (KeyError, ValueError):  # ValueError: it is not bound yet
            return default


class Attributes:
    """The variables of a module, as a mapping; it may make them when it is asked."""

    def __init__(self, module: types.ModuleType):
        self.origin = module

    def get(self, name: str, default: Any) -> Any:
        try:
            return getattr(self.origin, name, default)
        except Exception:  # of a module that loads others when it is asked
            return default


def is_fixed(module: Any) -> bool:
    """Return True if the disk cache's key, or Python's version, covers a module of this name."""
    top = str(module).partition(".")[0]
    return top in _PACKAGES or is_standard(top) or top in _plugins(registry())


def is_offered(value: Any) -> bool:
    """Return True if a fixed package has a function or class under its own name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not is_fixed(module):
        return False
    member: Any = sys.modules.get(module)
    for part in name.split("."):
        member = getattr(member, part, None)
    return member is value


def offered_text(value: Any) -> str:
    return f"{value.__module__}:{value.__qualname__}"


@functools.lru_cache(maxsize=None)
def is_standard(top: str) -> bool:
    """Return True if a top-level name is Python's own library, and no file of the user's hides it."""
    if top not in sys.stdlib_module_names:
        return top == "builtins"
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is None or _STANDARD in Path(file).parents


@functools.lru_cache(maxsize=1)
def _plugins(plugins: Any) -> frozenset[str]:
    """Return the packages of all backends, whose content is in the key of the disk cache."""
    return frozenset().union(*(backend.packages for backend in plugins.backends.values()))


def written_members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the members of a class that its body defines; of an enumeration, its methods."""
    members = vars(cls)
    for name, member in members.items():
        if issubclass(cls, enum.Enum) and not isinstance(member, _ENUM_MEMBERS):
            continue
        if name not in _IGNORED and not _is_generated(name, member, members):
            yield name, member


_ENUM_MEMBERS = (types.FunctionType, property, classmethod, staticmethod, _triton.JITCallable)
_IGNORED = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __qualname__ __firstlineno__ __static_attributes__ "
    "__abstractmethods__ _abc_impl __orig_bases__ __parameters__".split()
)
_GENERATED = "init repr eq lt le gt ge hash setattr delattr replace".split()


def _is_generated(name: str, member: Any, members: Mapping[str, Any]) -> bool:
    """Return whether a dataclass made a method from its fields, which are members, too."""
    return (
        "__dataclass_params__" in members
        and name.strip("_") in _GENERATED
        and isinstance(member, types.FunctionType)
        and member.__code__.co_filename == "<string>"
    )
