"""Which lowering a portable op takes, and why not the others."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Mapping, Optional

from gluon_core.backend import Lowering, load_path
from gluon_core.errors import ArgumentError, BackendError, CapabilityError, did_you_mean
from gluon_core.plugins import Registry, registry
from gluon_core.portable.requests import OPS
from gluon_core.targets import Target

__all__ = ["Selection", "available", "named", "select"]


@dataclass(frozen=True)
class Selection:
    """What was chosen for one op of a kernel.

    Args:
        op: the portable op.
        target: what the kernel is compiled for.
        chosen: the lowering that was taken.
        rejected: each other lowering beside the reason.
        where: `file:line` of the kernel, None where unknown.
    """

    op: str
    target: Target
    chosen: Lowering
    rejected: tuple[tuple[Lowering, str], ...]
    where: Optional[str] = None


def _unavailable(lowering: Lowering, target: Target, triton: tuple[int, int]) -> Optional[str]:
    """Why `lowering` cannot be used on `target` whatever the operands are; None if it can."""
    missing = [c for c in lowering.requires if not target.has(c)]
    if missing:
        return f"needs {', '.join(missing)}, which {target} lacks"
    if tuple(triton) < lowering.min_triton:
        wanted = ".".join(map(str, lowering.min_triton))
        return f"needs Triton >= {wanted}, found {'.'.join(map(str, triton))}"
    return None


def available(
    op: str, target: Target, triton: tuple[int, int], plugins: Optional[Registry] = None
) -> tuple[Lowering, ...]:
    """The lowerings of `op` that some operands could take on `target`, highest priority first."""
    found = _lowerings(op, plugins)
    return tuple(low for low in found if _unavailable(low, target, triton) is None)


def named(op: str, name: str) -> Lowering:
    """The lowering of `op` that is called `name`."""
    return next(found for found in _lowerings(op, None) if found.name == name)


def select(
    op: str,
    request: Any,
    target: Target,
    triton: tuple[int, int],
    plugins: Optional[Registry] = None,
    refused: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> Selection:
    """The lowering of the highest priority that the target has and whose predicate accepts.

    Args:
        op: one of `OPS`.
        request: the op's request dataclass.
        target: what the kernel is compiled for.
        triton: (major, minor) of the installed Triton.
        plugins: the registry to choose from, the default one if None.
        refused: (op, name) of lowerings that are out of the question -> the reason.

    Raises:
        CapabilityError: none fits; each lowering's reason is listed.
        BackendError: a predicate answered neither True nor a reason.
    """
    chosen: Optional[Lowering] = None
    rejected: list[tuple[Lowering, str]] = []
    for lowering in _lowerings(op, plugins):
        reason = (
            _unavailable(lowering, target, triton)
            or refused.get((op, lowering.name))
            or _refusal(lowering, request)
        )
        if reason is None and chosen is not None:
            reason = (
                f"fits, but {chosen.name} has priority {chosen.priority} over {lowering.priority}"
            )
        if reason is None:
            chosen = lowering
        else:
            rejected.append((lowering, reason))
    if chosen is None:
        listed = "".join(f"\n  {low.name}: {reason}" for low, reason in rejected)
        raise CapabilityError(f"no lowering of gl.portable.{op} fits on {target}:{listed or ' none'}")
    return Selection(op, target, chosen, tuple(rejected))


def _lowerings(op: str, plugins: Optional[Registry]) -> tuple[Lowering, ...]:
    if op not in OPS:
        raise ArgumentError(
            "not a portable op",
            argument="op",
            expected=", ".join(OPS),
            got=repr(op),
            remedy=did_you_mean(op, OPS),
        )
    return (plugins if plugins is not None else registry()).lowerings(op)


def _refusal(lowering: Lowering, request: Any) -> Optional[str]:
    """What the lowering's predicate has against the operands; None when it takes them."""
    if lowering.accepts is None:
        return None
    answer = load_path(lowering.accepts)(request)
    if answer is True:
        return None
    if isinstance(answer, str) and answer:
        return answer
    raise BackendError(
        f"the predicate of lowering {lowering.op}/{lowering.name} must answer True or a reason",
        argument=lowering.accepts,
        got=repr(answer),
    )
