"""Names in the language that the installed Triton can do nothing with, and the namespaces of plugins."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Optional

from gluon_core.errors import CapabilityError
from gluon_core.features import Feature
from gluon_core.imports import WITHHELD, list_offers
from gluon_core.language._library import open_to_kernels
from gluon_core.layouts.dialect import compiler_version, follows
from gluon_core.plugin.ops import is_builtin

__all__ = ["NotInReleaseError", "adopt", "withhold"]


class NotInReleaseError(CapabilityError, AttributeError):
    """A name of a namespace that the installed Triton has nothing for; `hasattr` finds it missing."""


def adopt(value: Any, name: str) -> None:
    """Open a plugin's `gl.<name>` to kernels: an exported value, or a module of its namespace."""
    if isinstance(value, type):
        open_to_kernels(value)
    elif isinstance(value, ModuleType):
        list_offers(value, name)
        # Files of ops list what they define, and use what they import themselves.
        if "__all__" not in vars(value) or "." not in name:
            withhold(value, f"gl.{name}")


class _Withheld:
    """A name of a module that is refused to all but the code of the module, whose globals keep it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, module: Any, owner: Any = None) -> Any:
        raise AttributeError(self.name)  # the module's `__getattr__` says why

    def __set__(self, module: Any, value: Any) -> None:
        raise AttributeError(f"{self.name} is withheld", name=self.name, obj=module)


def withhold(module: ModuleType, path: str) -> None:
    """Refuse the names of ops that the installed Triton cannot emit to all who ask a namespace for them.

    `hasattr` and `dir` miss them, and asking for one says which release has it. The names stay among the globals
    of the module.

    Args:
        module: a namespace; ops that it defines itself stay, as its code may use them.
        path: its name for users, such as `gl.acme`.
    """
    names = vars(module)
    if WITHHELD in names:
        return
    lacking = {name: _lacks(value) for name, value in names.items() if not name.startswith("_")}
    # Name -> the feature that it needs.
    withheld = names[WITHHELD] = {
        name: feature
        for name, feature in lacking.items()
        if feature is not None and getattr(names[name], "__module__", None) != module.__name__
    }
    otherwise = names.get("__getattr__")

    def absent(name: str) -> Any:
        if name in withheld:
            refusal = withheld[name].refusal(f"{path}.{name}", compiler_version())
            raise NotInReleaseError(refusal)
        if otherwise is None:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return otherwise(name)

    if withheld:
        names["__getattr__"] = absent
        refused: dict[str, Any] = {name: _Withheld() for name in withheld}
        refused["__deepcopy__"] = (
            _itself  # Triton copies globals of kernels that are no plain modules
        )
        module.__class__ = type("Namespace", (ModuleType,), refused)


def _itself(module: ModuleType, memo: Any) -> ModuleType:
    return module


def _lacks(value: Any) -> Optional[Feature]:
    """Return the feature without which the installed Triton can do nothing with `value`."""
    if not isinstance(value, ModuleType):
        since = getattr(value, "since", None)
        return since if isinstance(since, Feature) and not follows(since) else None
    needs = [getattr(op, "since", None) for op in vars(value).values() if is_builtin(op)]
    usable = any(need is None or follows(need) for need in needs)
    return None if usable or not needs else needs[0]
