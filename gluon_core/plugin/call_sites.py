"""Calls in a kernel as its author wrote them, and the calls that a report suggests."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Iterator, Mapping, Optional, Sequence

from gluon_core.errors import SourceSpan

__all__ = ["CallSite", "Remedies", "spelled"]


@dataclass(frozen=True, eq=False)
class CallSite:
    """One call of a kernel's source.

    Args:
        function: the called expression, such as "tma.async_load" or "bufs.index(i).load".
        source: the whole call.
        public: the public name of the op, "" for other functions.
        scope: the globals of the function that makes the call.
    """

    function: str
    source: str
    span: Optional[SourceSpan]
    public: str = ""
    scope: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Remedies:
    """The calls with which kernels order asynchronous work: `REMEDIES` of a vendor's reference module.

    Each text is a call by the op's public name. `{pending}`, `{barrier}` and `{result}` are filled
    with the number of groups that may be unfinished, the barrier, and the result of the work. From
    several texts a report takes the one whose namespace is closest to the op that started the work.

    Args:
        waits: by queue, the call that waits for groups.
        finishes: the same, of queues whose work `waits` may find to have read its sources alone.
        commits: by queue, the call that closes a group.
        signals: by queue, the call that lets a barrier track earlier work.
        fences: by proxy, the fence between the generic proxy and that one.
        barrier_waits: the call that waits for a phase of a barrier.
        barrier_arrives: the call that arrives at one.
    """

    waits: Mapping[str, Sequence[str]] = field(default_factory=dict)
    finishes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    commits: Mapping[str, Sequence[str]] = field(default_factory=dict)
    signals: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fences: Mapping[str, Sequence[str]] = field(default_factory=dict)
    barrier_waits: Sequence[str] = ()
    barrier_arrives: Sequence[str] = ()

    def texts(self) -> Iterator[str]:
        """Yield every text."""
        for table in (self.waits, self.finishes, self.commits, self.signals, self.fences):
            for texts in table.values():
                yield from texts
        yield from self.barrier_waits
        yield from self.barrier_arrives


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
