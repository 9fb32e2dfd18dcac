"""Describe the parameters of a kernel for launches, as the decorator and annotations declare them."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["Parameter", "parameters_of"]

_PASSED = {
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_POSITIONAL: "variadic",
}


class Parameter:
    """One parameter of a kernel.

    Attributes:
        name: of it.
        kind: of `inspect.Parameter`.
        passed: `plain`, `keyword` (by name only) or `variadic` (`*name`).
        default: None too where it has none, see `has_default`.
        is_constexpr: it is a constant of the code, and no argument of it.
        is_const: annotated as a pointer that is only read.
        annotation_type: `fp32`, `*i8`, ...; "" where the argument decides.
        align: whether code may depend on divisibility by 16.
        specialize: whether code may depend on the value at all.
    """

    def __init__(self, param: Any, kind: Any):
        self.name: str = param.name
        self.kind = kind
        self.passed = _PASSED.get(kind, "plain")
        self.default = param.default
        self.has_default: bool = param.has_default
        self.is_constexpr: bool = param.is_constexpr
        self.is_const: bool = param.is_const
        self.annotation_type: str = "" if self.is_constexpr else param.annotation_type
        self.align: bool = not param.do_not_specialize_on_alignment
        self.specialize: bool = not param.do_not_specialize
        if self.annotation_type == "u1" or self.annotation_type[:2] in ("fp", "bf"):
            self.specialize = False


def parameters_of(kernel: Any, cls: type[Parameter] = Parameter) -> tuple[Parameter, ...]:
    """Return the parameters of a jit function, in order."""
    kinds = [p.kind for p in kernel.signature.parameters.values()]
    return tuple(cls(param, kind) for param, kind in zip(kernel.params, kinds))
