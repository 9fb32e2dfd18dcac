"""Checks of the answers of a backend: options, builders, stages, launchers."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any, Mapping, TypeVar

from gluon_core.errors import BackendError
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.builder import Builder, members
from gluon_core.plugin.compiler import Stage
from gluon_core.plugin.options import Options
from gluon_core.registry.verify import Faults, Rule, both, must

__all__ = ["checked"]

T = TypeVar("T")


def _has(names: frozenset[str], expected: str) -> Rule:
    def rule(where: str, value: Any) -> Faults:
        missing = sorted(name for name in names if not hasattr(value, name))
        if missing:
            message = f"{type(value).__name__} has no {', '.join(missing)}"
            yield where, message, {"expected": f"the {expected}"}

    return rule


def _stages(value: Any) -> bool:
    if not isinstance(value, (tuple, list)) or not all(isinstance(one, Stage) for one in value):
        return False
    return 0 < len(value) == len({stage.name for stage in value})


# Method -> the rule of its answers. Ops that a builder lacks are an error of the kernel that wants
# them, and of the conformance suite.
_ANSWERS: Mapping[str, Rule] = {
    "options": both(
        must(
            lambda v: is_dataclass(v) and not isinstance(v, type) and hasattr(v, "__dict__"),
            "must answer a dataclass instance without slots, of a class derived from "
            "gluon_core.plugin.options.CompileOptions",
        ),
        _has(members(Options), "fields of gluon_core.plugin.options.Options"),
    ),
    "builder": _has(
        frozenset(n for n, part in vars(Builder).items() if callable(part) and n[0] != "_"),
        "methods of gluon_core.plugin.builder.Builder",
    ),
    "pipeline": must(
        _stages,
        "must answer stages, a tuple of gluon_core.plugin.compiler.Stage, each with a name of its own",
    ),
    "launcher": must(callable, "must answer a function: launch(grid, stream, *arguments)"),
}


def checked(backend: Backend, method: str, answer: T) -> T:
    """Return `answer`, which `method` of a facet of `backend` gave.

    Raises:
        BackendError: it is not as the contract has it.
    """
    for _, message, fields in _ANSWERS[method]("", answer):
        raise BackendError(f"backend {backend.name!r}, {method}(): {message}", **fields)
    return answer
