"""The door to the C engine, `c/engine.c`.

It is built with the wheel, and launches do not work without it.
"""

from __future__ import annotations

import importlib
import itertools
import struct
import sys
from typing import Any, Callable, Sequence

__all__ = ["LETTERS", "engine", "launch", "map_kind", "stream", "teach"]

_VERSION = 25  # of the interface of `engine.c`
# The letter of each type of numbers: that of the struct module; y is bfloat16.
_TYPES = "i1 i8 i16 i32 i64 u1 u8 u16 u32 u64 fp16 bf16 fp32 f32 fp64"
LETTERS = dict(zip(_TYPES.split(), "bbhiqBBHIQeyffd"))


def _opened() -> Any:
    """Return the extension module.

    Raises:
        ImportError: it is missing, or was built from another state of its source.
    """
    try:
        module = importlib.import_module("gluon_runtime._engine")
        version = getattr(module, "VERSION", 0)
        if version == _VERSION:
            return module
        reason = f"has version {version} of its interface, {_VERSION} is needed"
    except ImportError as error:
        reason = f"cannot be imported: {error}"
    remedy = "Reinstall gluon-runtime: in a checkout `pip install -e runtime`, which compiles it."
    raise ImportError(f"the launch engine gluon_runtime._engine {reason}. {remedy}")


engine = _opened()


def teach() -> None:
    """Let C read NumPy's arrays, and torch's tensors without a call into Python, if torch offers that (from 2.10)."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None:
        engine.teach(torch.Tensor)
        engine.teach(torch.nn.Parameter)
    if numpy is not None:
        engine.teach(numpy.ndarray)


def stream(stream_of: Callable[[int], int]) -> Any:
    """Return how C finds the current stream: None for its own way, by the table that torch gives, or `stream_of`."""
    torch: Any = sys.modules.get("torch")
    cuda = torch and torch.version.cuda and torch.cuda.is_initialized()
    return None if cuda and engine.teach(torch.Tensor) else stream_of


def launch(letters: str, *, call: Any, maps: Sequence[bytes] = (), **parts: Any) -> Any:
    """Return the launch of a loaded kernel, for `engine.launch`; a launcher has it as its attribute `engine` if C may make launches alone.

    Args:
        letters: one per argument: P for pointers, T for descriptors, x for constants, else one of `LETTERS`; those of a tuple
            in parentheses.
        call: the address of `cuLaunchKernelEx`, or `f(config, parameters) -> status`, which gets addresses.
        maps: of each descriptor, from `map_kind`, then those that the launch makes by `programs`, see `put_made` in C.
        parts: the index of its `device`, its `threads` per block, bytes of `shared` memory and `num_ctas`. Optional:
            `cooperative` and `dependent` launches, `hip` for HIP's attributes; the `function`; `current_device`, the
            address of `cuCtxGetDevice` where there are several devices; `allocate(programs, stream) -> (address, address,
            owner)` of scratch memory; `encode(number, descriptor) -> bytes`, for maps that the engine leaves to it;
            `encode_tiled`, the address of `cuTensorMapEncodeTiled`; `unmark`, to clear the mark of small tensors in maps.

    Raises:
        ValueError: the kernel takes more values than a launch can have.
    """
    return engine.make(letters, call, maps=b"".join(maps), **parts)


_MAP_KIND = struct.Struct("<I6i5I")
_numbers: dict[Any, int] = {}
_count = itertools.count(1)


def map_kind(key: Any, *facts: int, box: Sequence[int]) -> bytes:
    """Return a `MapKind` of `c/driver.h`.

    Args:
        key: kinds of equal keys are one; None for one that launches nothing.
        facts: its fields from `tiled` to `fp4_padded`.
        box: its extents, the slowest dimension first.
    """
    number = 0 if key is None else _numbers.setdefault(key, next(_count))
    return _MAP_KIND.pack(number, *facts, *box[::-1], *[0] * (5 - len(box)))
