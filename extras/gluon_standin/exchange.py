"""Exchange functions and classes of a module that others have imported already.

A plain function keeps its object and gets another body. Modules that imported the function by name
see the new one, and so do tables that are keyed by function objects, such as those of
`torch._dynamo`. A class, or a function that cannot change its body, is replaced in every module that
holds it.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any, Callable, Mapping

__all__ = ["answers", "exchange", "exchange_around", "replace"]

answers: dict[str, Callable[..., Any]] = {}
"""Full name of an exchanged function -> its new body."""


def exchange(module: types.ModuleType, new: Mapping[str, Callable[..., Any]]) -> None:
    """Let the functions of `module` act as `new` says under their names.

    The exchanged functions keep their name, signature and documentation.
    """
    for name, answer in new.items():
        old = getattr(module, name, None)
        if isinstance(old, types.FunctionType) and not old.__closure__:
            _give_body(old, f"{module.__name__}.{name}", answer)
        else:
            replace(module, name, _like(old, answer, name, module.__name__))


def exchange_around(
    module: types.ModuleType, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Exchange one function for `around(old)`, where `old` still does what it did."""
    old = getattr(module, name, None)
    if isinstance(old, types.FunctionType) and not old.__closure__:
        copy = types.FunctionType(
            old.__code__, old.__globals__, old.__name__, old.__defaults__, old.__closure__
        )
        copy.__kwdefaults__ = old.__kwdefaults__
        exchange(module, {name: around(copy)})
    elif old is not None:
        replace(module, name, _like(old, around(old), name, module.__name__))


def replace(module: types.ModuleType, name: str, new: Any) -> None:
    """Put `new` in the place of `module.name`, there and wherever it was imported to."""
    old = getattr(module, name, None)
    setattr(module, name, new)
    if not isinstance(old, (type, types.FunctionType)):  # modules that do not ask share a constant
        return
    for holder in list(sys.modules.values()):
        names = getattr(holder, "__dict__", None)
        if not isinstance(names, dict):
            continue
        for key in [key for key, value in list(names.items()) if value is old]:
            names[key] = new
    interfaces = sys.modules.get("torch._dynamo.device_interface")
    for holder in list(vars(interfaces).values()) if interfaces is not None else []:
        if isinstance(holder, type):  # it keeps streams and events as attributes of its classes
            for key in [key for key, value in list(vars(holder).items()) if value is old]:
                setattr(holder, key, new)


def _give_body(function: types.FunctionType, name: str, answer: Callable[..., Any]) -> None:
    answers[name] = answer
    signature = inspect.signature(function)
    text = (
        "def body(*args, **kwargs):\n"
        "    from gluon_standin.exchange import answers\n"
        f"    return answers[{name!r}](*args, **kwargs)\n"
    )
    scope: dict[str, Any] = {}
    exec(compile(text, f"<stand-in for {name}>", "exec"), scope)
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__defaults__ = function.__kwdefaults__ = None
    function.__code__ = scope["body"].__code__.replace(co_name=function.__name__)


def _like(old: Any, answer: Callable[..., Any], name: str, module: str) -> Callable[..., Any]:
    """Return a function object of its own that calls `answer` and describes itself as `old` does."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return answer(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    function.__doc__ = getattr(old, "__doc__", None) or answer.__doc__
    try:
        function.__signature__ = inspect.signature(old if callable(old) else answer)  # type: ignore[attr-defined]
    except (TypeError, ValueError):  # a function of C does not say
        pass
    return function
