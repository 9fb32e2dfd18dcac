"""The lowering that a portable op takes, and why not the others."""

from __future__ import annotations

import functools
import os
import traceback
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Callable, Mapping, Optional

from gluon_core.errors import (
    ArgumentError,
    BackendError,
    CapabilityError,
    GluonError,
    PluginError,
    did_you_mean,
)
from gluon_core.features import dotted
from gluon_core.plugin.language import OPS, Lowering
from gluon_core.plugin.paths import load_named
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import Registry, registry
from gluon_core.registry.names import CORE

__all__ = ["Selection", "available", "code", "named", "select"]


@dataclass(frozen=True)
class Selection:
    """The lowering of one op of a kernel.

    Args:
        op: the portable op.
        target: of the kernel.
        chosen: the lowering that was taken.
        rejected: each other lowering with the reason.
        where: `file:line` of the kernel, None where unknown.
    """

    op: str
    target: Target
    chosen: Lowering
    rejected: tuple[tuple[Lowering, str], ...]
    where: Optional[str] = None


def _unavailable(lowering: Lowering, target: Target, triton: tuple[int, int]) -> Optional[str]:
    """Return why `lowering` cannot be used on `target` whatever the operands are; None if it can."""
    missing = [c for c in lowering.requires if not target.has(c)]
    if missing:
        return f"needs {', '.join(missing)}, which {target} lacks"
    if tuple(triton) < lowering.min_triton:
        return f"needs Triton >= {dotted(lowering.min_triton)}, found {dotted(triton)}"
    return None


def available(
    op: str, target: Target, triton: tuple[int, int], plugins: Optional[Registry] = None
) -> tuple[Lowering, ...]:
    """Return the lowerings of `op` that some operands could take on `target`, highest priority first."""
    known = plugins if plugins is not None else registry()
    return tuple(low for low in _lowerings(op, known) if _unavailable(low, target, triton) is None)


def named(op: str, name: str) -> Lowering:
    """Return the lowering of `op` that is called `name`."""
    return next(lowering for lowering in _lowerings(op, registry()) if lowering.name == name)


def code(lowering: Lowering, role: str = "implement") -> Callable[..., Any]:
    """Return the function behind `implement`, `accepts` or one of the `extras` of a lowering.

    An exception of its that is no error of ours says whose it is when it reaches the kernel's author.

    Raises:
        PluginError: there is no such module or name; with plugin, lowering and path.
    """
    own = {"implement": lowering.implement, "accepts": lowering.accepts}
    path = own[role] if role in own else lowering.extras[role]
    contributor = registry().contributor(lowering).plugin
    whose = f"lowering {lowering.op}/{lowering.name} of plugin {contributor!r}"
    function = load_named(str(path), f"{whose}, {role}")
    if not callable(function):
        raise PluginError(f"{whose}, {role}: {path!r} is no function", got=repr(function))

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except GluonError:
            raise
        except Exception as error:
            if contributor != CORE and not hasattr(error, "gluon_note"):
                error.gluon_note = f"Raised by {whose}, at {_where(error, function)}."  # type: ignore[attr-defined]
            raise

    return called


def _where(error: Exception, function: Callable[..., Any]) -> str:
    """Return the innermost line of `function`'s own folder that led to `error`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = getattr(function, "__code__", None)
    folder = os.path.dirname(own.co_filename) if own is not None else ""
    callers = [frame for frame in frames if frame.filename.startswith(folder)][-1:] or frames[-1:]
    return f"{callers[0].filename}:{callers[0].lineno}"


def select(
    op: str,
    request: Any,
    target: Target,
    triton: tuple[int, int],
    plugins: Optional[Registry] = None,
    refused: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> Selection:
    """Return the lowering of the highest priority that the target has and whose predicate accepts.

    Args:
        op: one of `OPS`.
        request: the op's request dataclass.
        target: of the kernel.
        triton: (major, minor) of the installed Triton.
        plugins: the registry to choose from, the default one if None.
        refused: (op, name) of lowerings that are out of the question -> the reason.

    Raises:
        CapabilityError: none fits; each lowering's reason is listed.
        PluginError: two that fit share a priority, or two plugins have one of that name.
        BackendError: a predicate answered neither True nor a reason.
    """
    known = plugins if plugins is not None else registry()
    chosen: Optional[Lowering] = None
    rejected: list[tuple[Lowering, str]] = []
    for lowering in _lowerings(op, known):
        reason = (
            _unavailable(lowering, target, triton)
            or refused.get((op, lowering.name))
            or _refusal(lowering, request)
        )
        if reason is None and chosen is not None:
            if lowering.priority == chosen.priority:
                raise _tie(op, target, known, chosen, lowering)
            reason = (
                f"fits, but {chosen.name} has priority {chosen.priority} over {lowering.priority}"
            )
        if reason is None:
            chosen = lowering
        else:
            rejected.append((lowering, reason))
    if chosen is None:
        listed = "".join(f"\n  {low.name}: {reason}" for low, reason in rejected)
        raise CapabilityError(
            f"no lowering of gl.portable.{op} fits on {target}:{listed or ' none'}"
        )
    known.refuse_clash("lowering", f"{op}/{chosen.name}")
    return Selection(op, target, chosen, tuple(rejected))


def _tie(op: str, target: Target, known: Registry, one: Lowering, other: Lowering) -> PluginError:
    plugins = f"{known.contributor(one).origin} and {known.contributor(other).origin}"
    return PluginError(
        f"lowerings {one.name!r} and {other.name!r} of gl.portable.{op}, of plugins {plugins}, "
        f"both fit on {target} and share priority {one.priority}",
        remedy="Leave one of the plugins out with GLUON_PLUGINS, the plugins to load.",
    )


def _lowerings(op: str, known: Registry) -> tuple[Lowering, ...]:
    if op not in OPS:
        raise ArgumentError(
            "not a portable op",
            argument="op",
            expected=", ".join(OPS),
            got=repr(op),
            remedy=did_you_mean(op, OPS),
        )
    return known.lowerings(op)


def _refusal(lowering: Lowering, request: Any) -> Optional[str]:
    """Return the objection of the lowering's predicate to the operands; None when it takes them."""
    if lowering.accepts is None:
        return None
    answer = code(lowering, "accepts")(request)
    if answer is True:
        return None
    if isinstance(answer, str) and answer:
        return answer
    raise BackendError(
        f"the predicate of lowering {lowering.op}/{lowering.name} must answer True or a reason",
        argument=lowering.accepts,
        got=repr(answer),
    )
