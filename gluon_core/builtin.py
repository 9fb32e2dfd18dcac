"""`builtin`: what turns a Python function into an op that kernels call.

A builtin receives the semantic layer as `_semantic` (and the code generator as `_generator` when
it asks for it). What it declares here, capabilities and Triton versions, is checked at trace time,
before its body runs.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Optional, Sequence

from gluon_core import _triton
from gluon_core.errors import CapabilityError, NotInKernelError

__all__ = [
    "adopt",
    "builtin",
    "check_capabilities",
    "compile_time",
    "is_builtin",
    "open_to_kernels",
]

_MARK = "__triton_builtin__"  # what Triton's code generator looks for


def builtin(
    fn: Optional[Callable] = None,
    *,
    requires: Sequence[str] = (),
    since: Optional[tuple[int, int]] = None,
    name: Optional[str] = None,
    instead: Optional[str] = None,
) -> Any:
    """Mark `fn` as an op.

    Args:
        requires: capabilities; the target must have every one.
        since: the first Triton (major, minor) whose builder can emit the op.
        name: the op's public name in errors, such as `gl.nvidia.ampere.mma_v2`.
        instead: what to use on targets that lack it.
    """
    if fn is None:
        return functools.partial(
            builtin, requires=requires, since=since, name=name, instead=instead
        )
    public = name or f"gl.{fn.__name__}"
    checked = bool(requires) or since is not None

    @functools.wraps(fn)
    def op(*args: Any, **kwargs: Any) -> Any:
        semantic = kwargs.get("_semantic")
        if semantic is None:
            raise NotInKernelError(
                f"{public} was called outside a kernel",
                remedy="Call it from a function decorated with @gluon.jit.",
            )
        if checked:
            if since is not None:
                _triton.require(since, public)
            check_capabilities(semantic, public, requires, instead)
        return fn(*args, **kwargs)

    setattr(op, _MARK, True)
    op.requires = tuple(requires)  # type: ignore[attr-defined]
    op.since = since  # type: ignore[attr-defined]
    op.signature = inspect.signature(fn)  # type: ignore[attr-defined]
    return op


def compile_time(fn: Callable) -> Any:
    """Mark `fn`, which computes on compile-time values (layouts, shapes, dtypes), as one that
    kernels may call too; in host code it stays what it is."""

    @functools.wraps(fn)
    def op(*args: Any, **kwargs: Any) -> Any:
        semantic = kwargs.pop("_semantic", None)
        kwargs.pop("_generator", None)
        plain = {name: _triton.unwrap(value) for name, value in kwargs.items()}
        result = fn(*map(_triton.unwrap, args), **plain)
        return result if semantic is None else _triton.constexpr(result)

    setattr(op, _MARK, True)
    op.signature = inspect.signature(fn)  # type: ignore[attr-defined]
    return op


def open_to_kernels(cls: type) -> type:
    """Let kernels call the public static methods of a class, such as a layout's constructors."""
    for name, member in list(vars(cls).items()):
        if isinstance(member, staticmethod) and not name.startswith("_"):
            if not is_builtin(member.__func__):
                setattr(cls, name, staticmethod(compile_time(member.__func__)))
    return cls


def is_builtin(value: Any) -> bool:
    return bool(getattr(value, _MARK, False))


def check_capabilities(
    semantic: Any, public: str, requires: Sequence[str], instead: Optional[str] = None
) -> None:
    """Raise `CapabilityError` for the first of `requires` that the semantic layer's target lacks."""
    target = semantic.target
    for capability in requires:
        if target.has(capability):
            continue
        holders = semantic.architectures_with(capability)
        where = f" ({', '.join(holders)})" if holders else ""
        raise CapabilityError(
            f"{public} needs {capability}{where}; target is {target}",
            remedy=f"Instead: {instead}." if instead else None,
        )


def adopt(fn: Callable, doc: str, since: Optional[tuple[int, int]] = None) -> Any:
    """A builtin of Triton's as one of ours: same signature, our checks, our documentation."""

    @functools.wraps(fn)
    def op(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    op.__doc__ = doc
    return builtin(op, since=since)
