"""The tools to write ops with: `builtin`, the semantic layer, and Triton's types.

`builtin` turns a Python function into an op that kernels call. An op is declared with the parameters that kernels give, and no others: editors, checkers and
`help()` see its call. Its body asks `semantic_layer()` for the semantic layer of the kernel at
hand and `code_generator()` for the code generator; both are there while the body runs. The
capabilities and Triton versions that the op declares here are checked at trace time, before its body runs.

A plugin's modules of ops import this one; the module that its entry point names does not, because
this one imports Triton.
"""

from __future__ import annotations

import functools
import inspect
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, TypeVar, cast, overload

from gluon_core import _triton
from gluon_core._triton import (
    JITFunction,
    base_type,
    base_value,
    block_type,
    constexpr,
    constexpr_function,
    constexpr_type,
    dtype,
    gluon_ir,
    has,
    ir,
    op_builder,
    passes,
    require,
    tensor,
    tl,
    tl_core,
    tl_tuple,
    tuple_type,
    unwrap,
)
from gluon_core.errors import NotInKernelError
from gluon_core.features import Feature

if TYPE_CHECKING:  # a kernel's definition imports this module
    from gluon_core.plugin.semantic import SemanticLayer

__all__ = [
    "JITFunction", "TracedFunction", "base_type", "base_value", "block_type", "builtin",
    "code_generator", "compile_time", "constexpr", "constexpr_function", "constexpr_type", "dtype",
    "gluon_ir", "has", "ir", "is_builtin", "op_builder", "passes", "require", "semantic_layer",
    "tensor", "tl", "tl_core", "tl_tuple", "traced", "tuple_type", "unwrap",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__triton_builtin__"  # Triton's code generator looks for it
_HIDDEN = ("_semantic", "_generator")  # it passes them where `signature.parameters` has them
_ASKS = SimpleNamespace(parameters=frozenset(_HIDDEN))
_ASKS_NOTHING = SimpleNamespace(parameters=frozenset())


class _Here(threading.local):
    """Semantic layer and code generator of the op whose body runs in this thread."""

    op: Optional[tuple[SemanticLayer, Any]] = None


_here = _Here()


def semantic_layer() -> SemanticLayer:
    """Return, inside an op, the semantic layer of the function that is being traced.

    Raises:
        NotInKernelError: no op runs.
    """
    return _around()[0]


def code_generator() -> Any:
    """Return, inside an op, the code generator that traces the call; None where Python called it.

    Raises:
        NotInKernelError: no op runs.
    """
    return _around()[1]


def _around() -> tuple[SemanticLayer, Any]:
    current = _here.op
    if current is None:
        raise NotInKernelError(
            "no kernel is being traced", remedy="Call it from the body of an op."
        )
    return current


@overload
def builtin(fn: F) -> F: ...


@overload
def builtin(
    *,
    requires: Sequence[str] = (),
    since: Optional[Feature] = None,
    name: Optional[str] = None,
    instead: Optional[str] = None,
    host: bool = False,
) -> Callable[[F], F]: ...


def builtin(
    fn: Optional[Callable[..., Any]] = None,
    *,
    requires: Sequence[str] = (),
    since: Optional[Feature] = None,
    name: Optional[str] = None,
    instead: Optional[str] = None,
    host: bool = False,
) -> Any:
    """Mark `fn` as an op.

    A function written as Triton's are, with `_semantic=None` (and `_generator=None`) at the end of
    its parameters, gets them there, too; its signature does not show them.

    Args:
        requires: capabilities; the target must have every one.
        since: the line of a table of features without which no builder can emit the op.
        name: the op's public name in errors and help, such as `gl.nvidia.ampere.mma_v2`.
        instead: the remedy on targets that lack it.
        host: host code may call it, too; then there is no semantic layer.
    """
    if fn is None:
        return functools.partial(
            builtin, requires=requires, since=since, name=name, instead=instead, host=host
        )
    body = fn
    public = name or f"gl.{fn.__name__}"
    checked = bool(requires) or since is not None
    code = fn.__code__
    declared = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    wants_semantic, wants_generator = (hidden in declared for hidden in _HIDDEN)

    @functools.wraps(fn)
    def op(
        *args: Any, _semantic: Optional[SemanticLayer] = None, _generator: Any = None, **kwargs: Any
    ) -> Any:
        outer = _here.op
        if _semantic is None:
            if outer is None:
                if host:
                    return body(*args, **kwargs)
                raise _outside(public)
            _semantic, _generator = outer  # called by another op
        if checked:
            if since is not None:
                _triton.require(since, public)
            _semantic.check_capabilities(public, requires, instead)
        if wants_semantic:
            kwargs["_semantic"] = _semantic
        if wants_generator:
            kwargs["_generator"] = _generator
        _here.op = _semantic, _generator
        try:
            return body(*args, **kwargs)
        finally:
            _here.op = outer

    if wants_semantic or wants_generator:
        op.__signature__ = _shown(fn)  # type: ignore[attr-defined]
    _name(op, public)
    facts = {"public": public, "requires": tuple(requires), "since": since, "signature": _ASKS}
    vars(op).update(facts, **{_MARK: True})
    return op


def _outside(name: str) -> NotInKernelError:
    remedy = "Call it from a function decorated with @gluon.jit."
    return NotInKernelError(f"{name} was called outside a kernel", remedy=remedy)


def _name(op: Any, public: str) -> None:
    """Give `op` the name of its calls in kernels, where the code has another."""
    last = public.rpartition(".")[2].rstrip("()")
    owner, dot, _ = op.__qualname__.rpartition(".")
    op.__name__ = last
    op.__qualname__ = f"{owner}{dot}{last}" if dot and "<" not in owner else last


def _shown(fn: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(fn)
    seen = [p for name, p in signature.parameters.items() if name not in _HIDDEN]
    return signature.replace(parameters=seen)


def compile_time(fn: F) -> F:
    """Mark `fn`, which computes on compile-time values (layouts, shapes, dtypes), as one that
    kernels may call too; in host code it is unchanged."""

    @functools.wraps(fn)
    def op(
        *args: Any, _semantic: Optional[SemanticLayer] = None, _generator: Any = None, **kwargs: Any
    ) -> Any:
        plain = {name: _triton.unwrap(value) for name, value in kwargs.items()}
        result = fn(*map(_triton.unwrap, args), **plain)
        return result if _semantic is None else _triton.constexpr(result)

    vars(op).update({_MARK: True, "signature": _ASKS_NOTHING})
    return op  # type: ignore[return-value]


def traced(fn: F) -> F:
    """`fn`, written in the language: kernels that call it trace it."""
    function: Any = functools.update_wrapper(_triton.JITFunction(fn), fn, updated=())
    function.__class__ = TracedFunction
    return cast(F, function)


class TracedFunction(_triton.ParsedOnce):
    """A function of the language that kernels trace; host code calls `host`, if there is one."""

    host: Optional[Callable[..., Any]] = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.host is not None:
            return self.host(*args, **kwargs)
        raise _outside(f"gl.{self.__name__}")


def is_builtin(value: Any) -> bool:
    return bool(getattr(value, _MARK, False))
