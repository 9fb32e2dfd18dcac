"""The calls that a report suggests, as the kernel's file can write them."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Mapping, Optional, Sequence

from gluon_core.simulation.recorder import CallSite

__all__ = ["spelled"]


def spelled(texts: Sequence[str], site: Optional[CallSite], **fields: Any) -> str:
    """Return the best of several calls, as the kernel's file can write it; "" without any.

    Args:
        texts: calls by public names, such as "gl.barrier()".
        site: a call of the kernel, whose namespace decides between `texts`; None for no file.
        fields: what goes into the braces of a text.
    """
    if not texts:
        return ""
    origin = site.public.split(".") if site is not None else []
    text = max(texts, key=lambda text: _shared(origin, text.partition("(")[0].split(".")))
    path, parenthesis, arguments = text.partition("(")
    name = path if site is None else _named(path, site)
    return f"{name}{parenthesis}{arguments}".format(**fields)


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of components that two dotted names have in common at their start."""
    same = 0
    for mine, theirs in zip(one, other):
        if mine != theirs:
            break
        same += 1
    return same


def _named(path: str, site: CallSite) -> str:
    """Return an expression for an op in the file of a call: one in the namespace of the op that is called
    there, else the shortest one; `path` where there is none."""
    parts = path.split(".")
    around = site.function.split(".")[:-1]
    if around and _is_op(_value(site.scope, [*around, parts[-1]]), path):
        return ".".join([*around, parts[-1]])
    spaces = [around[:length] for length in range(len(around), 0, -1) if around[0].isidentifier()]
    spaces += [[name] for name, value in site.scope.items() if isinstance(value, ModuleType)]
    candidates = [[name] for name, value in site.scope.items() if _is_op(value, path)]
    candidates += [
        [*space, *parts[start:]]
        for space in spaces
        for start in range(1, len(parts))
        if _is_op(_value(site.scope, [*space, *parts[start:]]), path)
    ]
    return ".".join(sorted([*candidates, parts], key=len)[0])


def _value(scope: Mapping[str, Any], parts: Sequence[str]) -> Any:
    """Return the value of a dotted name; None where it has none."""
    value = scope.get(parts[0])
    try:
        for part in parts[1:]:
            value = getattr(value, part)
    except Exception:  # a foreign module may raise anything for a name that it lacks
        return None
    return value


def _is_op(value: Any, path: str) -> bool:
    return type(value).__name__ == "function" and getattr(value, "public", None) == path
