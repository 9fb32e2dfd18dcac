"""Compiling ahead of a launch: all configurations of `triton.autotune` before the first is measured, and the
records of another process."""

from __future__ import annotations

import functools
import json
import sys
import weakref
from types import FrameType
from typing import Any, Iterator, Optional

from gluon_core import _triton
from gluon_core.compiler import compile_many
from gluon_core.compiler.driver import compile_source
from gluon_core.compiler.source import GluonASTSource
from gluon_core.compiler.workers import limit
from gluon_core.errors import ArgumentError
from gluon_core.registry.load import registry
from gluon_core.registry.verify import checked

__all__ = ["compile_configurations", "preload"]

_MOST_FRAMES = 40  # between a launch and the tuner that measures it


def compile_configurations(kernel: Any) -> None:
    """Compile the forms of all configurations where Triton's tuner asks for one of `kernel` that is not
    compiled, on as many processes as may compile at once.

    Those that change the arguments first (`pre_hook`) are left to the tuner, and so are those that do not
    compile: it skips such configurations, or raises.
    """
    search_of_tuner = _asked_by_tuner()
    if search_of_tuner is None:
        return
    tuner, args, named, configurations = search_of_tuner
    search = id(tuner), len(tuner.cache)  # the next one begins when this one's result is there
    if tuner.fn is not kernel or _searches.get(kernel) == search:
        return
    _searches[kernel] = search
    if getattr(tuner, "user_defined_pre_hook", False):
        return
    jobs = [
        functools.partial(_compiled, kernel, args, {**named, **configuration.all_kwargs()})
        for configuration in configurations
        if configuration.pre_hook is None
    ]
    if len(jobs) > 1 and limit() > 1:
        compile_many(jobs, errors="return")


_searches: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()


def _compiled(kernel: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    try:
        return kernel.warmup(*args, **named)
    except Exception:
        return None  # the tuner meets it again


def _frames() -> Iterator[FrameType]:
    frame: Optional[FrameType] = sys._getframe(2)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _asked_by_tuner() -> Optional[tuple[Any, tuple[Any, ...], dict[str, Any], list[Any]]]:
    """Return the tuner that asks, the arguments of its call, and its configurations; None where none does."""
    tuner = _triton.Autotuner
    measures, runs, warms = (getattr(tuner, n).__code__ for n in ("_bench", "run", "warmup"))
    within: Optional[dict[str, Any]] = None
    for frame in _frames():
        if frame.f_code is measures and within is None:
            within = frame.f_locals
        elif frame.f_code is warms:
            seen = frame.f_locals
            left = list(seen["self"].prune_configs(seen["kwargs"]))
            if seen["autotune_config"] is not left[0]:
                return None
            _searches.clear()
            return seen["self"], seen["args"], dict(seen["kwargs"]), left
        elif frame.f_code is runs and within is not None:
            pruned = frame.f_locals.get("pruned_configs")
            named = {k: v for k, v in within["meta"].items() if k != "warmup"}
            return None if pruned is None else (within["self"], within["args"], named, list(pruned))
    return None


def preload(kernel: Any, data: str) -> Any:
    """Compile the record of another process: `specialization_data` of Triton's `jit_cache_hook`.

    Raises:
        ArgumentError: it is of another kernel.
    """
    record = json.loads(data)
    own = f"{kernel.fn.__module__}.{kernel.fn.__qualname__}"
    if record["name"] != own:
        raise ArgumentError(
            "the record belongs to another kernel",
            argument="specialization_data",
            expected=own,
            got=record["name"],
        )
    constants = {
        tuple(path): _constant(value)
        for path, value in zip(record["constant_keys"], record["constant_vals"])
    }
    attrs = {tuple(path): value for path, value in zip(record["attrs_keys"], record["attrs_vals"])}
    signature = {name: _tuples(kind) for name, kind in record["signature"].items()}
    target = registry().target(str(record["key"]).split("\n")[0])
    backend = registry().backend(target.backend)
    options = {key: _tuples(value) for key, value in record["options"].items()}
    known = checked(backend, "options", backend.compiler.options(target, {}))
    kept = {key: value for key, value in options.items() if key in vars(known)}
    if kept.get("extern_libs"):
        kept["extern_libs"] = dict(kept["extern_libs"])
    strict = None if "\nstrict=False" not in str(record["key"]) else False
    source = GluonASTSource(kernel, signature, constants, attrs, strict)
    return compile_source(source, target, backend, backend.compiler.options(target, kept))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _constant(value: Any) -> Any:
    if isinstance(value, str) and _triton.dtype.is_dtype(value):
        return _triton.dtype(value)
    if isinstance(value, dict) and "constexpr" in value:
        return _triton.constexpr(_tuples(value["constexpr"]))
    return _tuples(value)
