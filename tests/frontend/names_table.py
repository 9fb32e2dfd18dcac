"""Tables of a vendor's public names, as Triton's own Gluon has them in its several versions.

A row is (namespace, name, kind, parameters, first, last, earlier forms): the parameters are those of
the newest version that has the name, `first` and `last` the versions that do.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from pathlib import Path
from typing import Any, NamedTuple

from gluon_core import _triton
from gluon_core.language._adopted import NotInReleaseError
from gluon_core.testing import TRITON_VERSION

__all__ = ["Row", "check", "read"]

_HIDDEN = {"self", "_semantic", "_generator", "args", "kwargs"}


class Row(NamedTuple):
    namespace: str
    name: str
    kind: str
    parameters: str
    first: str
    last: str
    earlier: str

    def __str__(self) -> str:
        return f"{self.namespace.removeprefix('gluon.language.')}.{self.name}"


def read(file: Path) -> list[Row]:
    """The rows of a table."""
    return [Row(*row) for row in json.loads(file.read_text())]


def check(row: Row) -> None:
    """Assert that we have the name, its parameters in their order, and no later than upstream."""
    try:
        value = _find(row)
    except NotInReleaseError:  # absent to hasattr, as it is upstream
        assert TRITON_VERSION[:2] < _version(row.first), f"{row} is withheld, and upstream has it"
        return
    if row.kind == "module":
        assert inspect.ismodule(value)
        return
    since = getattr(value, "since", None)
    if isinstance(since, tuple):
        assert since <= _version(row.first), f"{row} is refused before Triton {since}"
    if row.kind in ("field", "property", "value"):
        return
    if not row.parameters.startswith("("):
        return
    wanted, have = _declared(row.parameters), _parameters(value)
    if have is None:
        return
    missing = [name for name in wanted if name not in have]
    assert not missing, f"{row}{tuple(have)} lacks {missing}"
    order = [name for name in have if name in wanted]
    assert order == list(wanted), f"{row}: the order is {order}, upstream's {list(wanted)}"
    for name, default in wanted.items():
        if default is not _NONE and have[name] is not _ANY:
            assert have[name] is not _NONE, f"{row}: {name} has no default"


_NONE, _ANY = object(), object()


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _find(row: Row) -> Any:
    module = importlib.import_module("gluon_core" + row.namespace.removeprefix("gluon"))
    value: Any = module
    *owners, last = row.name.split(".")
    for owner in owners:
        value = getattr(value, owner)
    if owners and row.kind in ("field", "property"):
        fields = getattr(value, "__dataclass_fields__", {})
        annotated = getattr(value, "__annotations__", {})
        if last in fields or last in annotated or hasattr(value, last):
            return None
        assert last in inspect.getsource(value.__init__), f"{row} is missing"
        return None
    return getattr(value, last)


def _declared(parameters: str) -> dict[str, Any]:
    """Name -> whether it has a default, of upstream's parameters."""
    text = parameters.replace("<factory>", "None")
    arguments = ast.parse(f"def f{text}: pass").body[0].args  # type: ignore[attr-defined]
    named = [*arguments.posonlyargs, *arguments.args]
    missing = [_NONE] * (len(named) - len(arguments.defaults))
    defaults = dict(zip((a.arg for a in named), [*missing, *arguments.defaults]))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
        defaults[argument.arg] = _NONE if default is None else default
    return {name: default for name, default in defaults.items() if name not in _HIDDEN}


def _parameters(value: Any) -> Any:
    """Name -> its default, of ours; None where it is unknown."""
    if isinstance(value, _triton.JITCallable):
        return dict.fromkeys(value.arg_names, _ANY)
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    empty = inspect.Parameter.empty
    return {
        name: _NONE if p.default is empty else p.default
        for name, p in signature.parameters.items()
        if name not in _HIDDEN
    }
