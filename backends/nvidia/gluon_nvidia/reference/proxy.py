"""The fences between the proxies that the compiler adds before asynchronous accesses (sm_90).

PTX ISA 8.6 (proxies), 9.7.13.4 (fence.proxy.async). Which release adds which is in `features`.
"""

from __future__ import annotations

from typing import Any

from gluon_core.layouts.dialect import follows
from gluon_core.plugin.reference import Machine
from gluon_nvidia.features import (
    FENCES_AFTER_PARTITIONS,
    FENCES_BEFORE_PARTITIONS,
    FENCES_CALLS,
    FENCES_READS,
)

__all__ = ["ASYNC", "before_read", "before_write"]

ASYNC = "async"

_FURTHER = {
    "before": FENCES_BEFORE_PARTITIONS,
    "partitions": FENCES_AFTER_PARTITIONS,
    "calls": FENCES_CALLS,
}


def _fence(machine: Machine, buffers: tuple[Any, ...], writes: bool) -> None:
    features = _FURTHER if writes else {"own": FENCES_READS, **_FURTHER}
    newer = {whose: feature.releases for whose, feature in features.items() if follows(feature)}
    known = [*(["own"] if writes else []), *newer]
    if known:
        machine.implied_fence(buffers, known, writes, newer)


def before_read(machine: Machine, *buffers: Any) -> None:
    """Record that the coming op reads `buffers` (operands that are none do not count) on its own."""
    _fence(machine, buffers, False)


def before_write(machine: Machine, *buffers: Any) -> None:
    """Record that the coming op writes `buffers` on its own."""
    _fence(machine, buffers, True)
