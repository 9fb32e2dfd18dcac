"""Compiling what another process recorded (`specialization_data` of Triton's `jit_cache_hook`)."""

from __future__ import annotations

import json
from typing import Any

from gluon_core import _triton
from gluon_core.errors import ArgumentError
from gluon_core.registry.answers import checked_options
from gluon_core.registry.load import registry

__all__ = ["preload"]


def preload(kernel: Any, data: str) -> Any:
    """The `CompiledKernel` for recorded `data`.

    Raises:
        ArgumentError: it is of another kernel.
    """
    from gluon_core.compiler.driver import compile_source
    from gluon_core.compiler.source import GluonASTSource

    record = json.loads(data)
    own = f"{kernel.fn.__module__}.{kernel.fn.__qualname__}"
    if record["name"] != own:
        raise ArgumentError(
            "the record is of another kernel",
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
    known = checked_options(backend, backend.compiler.options(target, {}))
    given = {key: value for key, value in options.items() if key in vars(known)}
    if given.get("extern_libs"):
        given["extern_libs"] = dict(given["extern_libs"])
    strict = None if "\nstrict=False" not in str(record["key"]) else False
    source = GluonASTSource(kernel, signature, constants, attrs, strict)
    return compile_source(source, target, backend, backend.compiler.options(target, given))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _constant(value: Any) -> Any:
    if isinstance(value, str) and _triton.dtype.is_dtype(value):
        return _triton.dtype(value)
    if isinstance(value, dict) and "constexpr" in value:
        return _triton.constexpr(_tuples(value["constexpr"]))
    return _tuples(value)
