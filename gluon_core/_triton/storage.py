"""Modules in files, Triton's caches of compiled kernels, and the state that a compilation depends on."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from typing import Any, Sequence

import triton
from triton import knobs
from triton._C.libtriton import ir

__all__ = [
    "build_stamp",
    "cache_folder",
    "cache_manager",
    "compile_times",
    "invalidating_environment",
    "parse_module",
    "parse_text",
    "put_in_cache",
    "set_knobs",
]


def parse_module(path: str, context: Any) -> Any:
    """Return the MLIR module in the file `path`."""
    module = ir.parse_mlir_module(path, context)
    module.context = context
    return module


def parse_text(text: str, context: Any) -> Any:
    """Return the MLIR module that `text` says; the binding reads files alone."""
    with tempfile.NamedTemporaryFile("w", suffix=".ttgir") as file:
        file.write(text)
        file.flush()
        return parse_module(file.name, context)


def set_knobs() -> list[tuple[str, str, Any]]:
    """Return Triton's knobs that were set in this process: group, name, the value or its stand-in."""
    knobs_set = []
    for group, knob in vars(knobs).items():
        if isinstance(knob, knobs.base_knobs):
            for name, value in vars(knob).items():
                plain = isinstance(value, (str, int, float, bool, type(None)))
                knobs_set.append((group, name, value if plain else id(value)))
    return knobs_set


def cache_manager(key: str, purpose: str = "") -> Any:
    """Triton's cache manager for a hex key; `purpose` may be `override` or `dump`."""
    from triton.runtime import cache

    if purpose == "override":
        return cache.get_override_manager(key)
    if purpose == "dump":
        return cache.get_dump_manager(key)
    return cache.get_cache_manager(key)


def put_in_cache(manager: Any, data: Any, name: str) -> str:
    """Write text or bytes through a cache manager, atomically; answers the path.

    Triton's own manager makes a folder for each file and removes it again, which takes time for a small
    kernel. In its folders a file of another name is written and then renamed.
    """
    from triton.runtime.cache import FileCacheManager

    binary = isinstance(data, bytes)
    if type(manager) is not FileCacheManager or not manager.cache_dir:
        path: str = manager.put(data, name, binary=binary)
        return path
    path = os.path.join(manager.cache_dir, name)
    temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.tmp"
    try:
        with open(temporary, "wb" if binary else "w") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return path


def cache_folder() -> str:
    """Return the folder where Triton keeps compiled kernels."""
    return str(knobs.cache.dir)


def invalidating_environment() -> dict[str, str]:
    """Return the environment variables that change the compiler's output."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    return dict(get_cache_invalidating_env_vars())


def build_stamp() -> str:
    """Version of Triton with size and time of its library, cheaper than hashing 200 MB."""
    from triton._C import libtriton

    status = os.stat(libtriton.__file__)
    return f"{triton.__version__}-{status.st_size}-{status.st_mtime_ns}"


def compile_times(
    started: float, traced: float, stages: Sequence[tuple[str, float]], stored: float
) -> Any:
    """Return the argument of a compilation listener, from seconds: `stages` holds (name, end)."""
    durations, begin = [], traced
    for name, end in stages:
        durations.append((name, int((end - begin) * 1e6)))
        begin = end
    return knobs.CompileTimes(
        ir_initialization=int((traced - started) * 1e6),
        lowering_stages=durations,
        store_results=int((stored - begin) * 1e6),
    )
