"""Calls in a kernel as its author wrote them, and a vendor's calls that order asynchronous work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterator, Mapping, Optional, Sequence

from gluon_core.errors import SourceSpan

__all__ = ["CallSite", "Remedies"]


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
