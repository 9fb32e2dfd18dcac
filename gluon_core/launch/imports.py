"""Modules of others that are told something once they are imported, and are never imported for it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Callable, Optional, Sequence

__all__ = ["when_imported"]


def when_imported(name: str, tell: Callable[[ModuleType], None]) -> None:
    """Call `tell` with the module of that name: now if it is loaded, else when it has been."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        tell(loaded)
    else:
        sys.meta_path.insert(0, _Later(name, tell))


class _Later(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, tell: Callable[[ModuleType], None]):
        self.name, self.tell = name, tell

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self.tell(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
