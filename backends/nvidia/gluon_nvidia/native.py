"""What was written in C: where it is, and what it has to be told of torch.

The extension is built with the wheel where a C compiler is there. Without it, from another state of
its source, or with `GLUON_NATIVE_LAUNCH=0`, Python does the same.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

__all__ = ["module", "stream", "teach"]

_VERSION = 5  # of what `_launch.c` offers


def module() -> Any:
    """The extension module, or None."""
    if os.environ.get("GLUON_NATIVE_LAUNCH", "1") == "0":
        return None
    try:
        from gluon_nvidia import _launch  # type: ignore[attr-defined]
    except ImportError:
        return None
    return _launch if getattr(_launch, "VERSION", 0) == _VERSION else None


def teach(launch: Any) -> None:
    """Let C read torch's tensors without a call into Python, where torch offers that (from 2.10)."""
    torch = sys.modules.get("torch")
    if torch is not None:
        launch.teach(torch.Tensor)
        launch.teach(torch.nn.Parameter)


_streams: dict[int, bool] = {}  # device -> whether C may find the stream


def stream(launch: Any, stream_of: Callable[[int], int], device: int) -> Any:
    """What C is given to find the current stream by: None for its own way, or `stream_of`.

    Its own way is taken where both were seen to say the same of a stream that is not the default.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.version.cuda or not torch.cuda.is_initialized():
        return stream_of
    same = _streams.get(device)
    if same is None:
        if torch.cuda.is_current_stream_capturing():
            return stream_of
        with torch.cuda.stream(torch.cuda.Stream(device)):
            same = launch.current_stream(device) == stream_of(device) != 0
        _streams[device] = same
    return None if same else stream_of
