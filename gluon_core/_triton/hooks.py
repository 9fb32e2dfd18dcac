"""Arguments of Triton's hooks, and warnings of its code generator at the lines of kernels."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Mapping, Optional

__all__ = [
    "Warnings",
    "hook_is_empty",
    "jit_hook_arguments",
    "lazy_dict",
    "warn_once",
]


def hook_is_empty(hook: Any) -> bool:
    """Return True if a knob that holds a hook, or a chain of them, would call nobody."""
    if hook is None:
        return True
    calls = getattr(hook, "calls", None)
    return calls is not None and not calls


def lazy_dict(values: dict[str, Any]) -> Any:
    """Hold the argument of launch hooks: a dict whose costly entries are computed on `get()`."""
    from triton.compiler.compiler import LazyDict

    return LazyDict(values)


def jit_hook_arguments(fn: Any, key: str, info: Mapping[str, Any], target: Any) -> dict[str, Any]:
    """Return the keyword arguments of `knobs.runtime.jit_cache_hook` and its kin."""
    from triton.runtime import jit

    options = info["options"]
    data = None
    arguments = (jit.get_full_name(fn.fn), info["signature"], info["constants"], info["attrs"])
    try:
        serialize = jit.serialize_specialization_data
        words = (
            (target,) if "target" in inspect.signature(serialize).parameters else ()
        )  # from 3.7 on
        data = serialize(*arguments, options, key, *words)
    except TypeError:
        pass  # a constant that JSON cannot hold
    listed = ", ".join(f"{name}: {kind}" for name, kind in info["signature"].items())
    names = (
        "num_warps num_ctas num_stages enable_fp_fusion launch_cooperative_grid extern_libs".split()
    )
    chosen = {name: vars(options).get(name) for name in names}
    shown = ", ".join(f"{name}={value}" for name, value in list(chosen.items())[:5])
    return {
        "key": key,
        "repr": f"{fn.fn.__qualname__}[{shown}]({listed})",
        "fn": jit.JitFunctionInfo(fn.fn.__module__, fn.fn.__qualname__, fn),
        "compile": {
            "key": key,
            "signature": info["signature"],
            "device": info["device"],
            "constants": info["constants"],
            **chosen,
            "configs": [info["attrs"]],
            "specialization_data": data,
            "is_warmup": info["warmup"],
        },
        "is_manual_warmup": info["warmup"],
        "already_compiled": False,
    }


# -- warnings --------------------------------------------------------------------------------------

_shown: dict[str, dict[Any, Any]] = {}  # by file, Python's notes of the warnings that it has shown


def warn_once(text: str, category: type[Warning], file: str, line: int) -> None:
    """Warn at a line of a kernel; Python's filters say how often it is shown, once by default."""
    warnings.warn_explicit(text, category, file, line, registry=_shown.setdefault(file, {}))


class Warnings:
    """Replace the part of `warnings` that Triton's code generator calls at `and` and `or` of tensors:
    for each operand, with nowhere to note shown warnings, and with a text for the object whose
    allocation
    Python would like to show."""

    @staticmethod
    def warn_explicit(
        text: str, category: type[Warning], filename: str, lineno: Optional[int], source: Any = None
    ) -> None:
        warn_once(text, category, filename, lineno or 1)
