"""The door to the C engine, `c/engine.c`.

It is built with the wheel, and launches do not work without it.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from typing import Any, Callable, Iterator

__all__ = ["engine", "launch", "owned", "stream", "teach"]

_TENSOR, _DESCRIBED, _ARRAY = range(3)  # kinds of classes that C reads
_VERSION = 13  # of the interface of `engine.c`


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
        engine.teach(torch.Tensor, _TENSOR)
        engine.teach(torch.nn.Parameter, _TENSOR)
    if numpy is not None:
        engine.teach(numpy.ndarray, _ARRAY)


_streams: dict[int, bool] = {}  # device -> whether C may find the stream


def stream(stream_of: Callable[[int], int], device: int) -> Any:
    """Return how C finds the current stream: None for its own way, or `stream_of`.

    Its own way is taken if both were seen to give the same stream, one that is not the default.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.version.cuda or not torch.cuda.is_initialized():
        return stream_of
    same = _streams.get(device)
    if same is None:
        if torch.cuda.is_current_stream_capturing():
            return stream_of
        with torch.cuda.stream(torch.cuda.Stream(device)):
            same = engine.current_stream(device) == stream_of(device) != 0
        _streams[device] = same
    return None if same else stream_of


def launch(
    letters: str,
    *,
    attributes: tuple[Any, int],
    several: bool = False,
    current_device: int = 0,
    **parts: Any,
) -> Any:
    """Return the launch of a loaded kernel, which a launcher has as its attribute `engine`; None where C cannot make it.

    Args:
        letters: one per argument: P for pointers, T for descriptors, x for constants, else that of the
            struct module; those of a tuple in parentheses.
        attributes: of the launch, an array or buffer of `CUlaunchAttribute`, and their number.
        several: there is more than one device.
        current_device: the address of `cuCtxGetDevice`, 0 for a driver that does not offer it.
        parts: the index of its `device`; `call`, the address of `cuLaunchKernelEx`; the `function`, its `threads` per block, bytes of
            `shared` memory and `num_ctas`; `count`, the number of arguments, and `values`, the number of
            those that the kernel takes after tuples and descriptors are taken apart. Optional:
            `allocate(programs, stream) -> (address, address, owners)` of scratch memory; `maps`, a `MapKind` of
            `c/driver.h` for each descriptor; `encode(number, descriptor) -> bytes`, for maps that the engine
            leaves to it; `encode_tiled`, the address of `cuTensorMapEncodeTiled`; `unmark`, to clear the
            mark of small tensors in maps.
    """
    if several and not current_device:
        return None
    buffer, number = attributes
    address = ctypes.addressof(buffer) if number else 0
    parts.update(owner=buffer, current_device=current_device if several else 0)
    return engine.make(letters, attributes=address, number=number, **parts)


def owned(value: Any) -> Iterator[Any]:
    """Have C read descriptors; yield the objects of an argument whose addresses are part of a key, which must not
    be used again."""
    yield type(value)
    if isinstance(value, tuple):
        for item in value:
            yield from owned(item)
    elif hasattr(value, "block_shape") and hasattr(value, "base"):
        engine.teach(type(value), _DESCRIBED)
        yield type(value.base)
        yield getattr(value, "layout", None)
