"""The threads of NumPy's BLAS while launches run: one.

The tiles of a kernel are too small for more, which must meet after each product: where another
process has the second core, a product of 0.2 ms then takes 300 ms now and then. The cores go to
the workers of `parallel`.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Iterator

try:
    from threadpoolctl import ThreadpoolController
except ImportError:  # installed without dependencies: then BLAS decides
    ThreadpoolController = None

__all__ = ["one_thread"]

_limited = threading.Lock()


@lru_cache(maxsize=1)
def _controller() -> Any:
    """Return the controller of the libraries loaded by now; looking for them takes milliseconds."""
    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS has one thread inside, and afterwards its former number.

    The number belongs to the process. The first of overlapping launches sets it and, on the same
    thread, puts it back, for OpenBLAS does not hear of it from every thread.
    """
    if ThreadpoolController is None or not _limited.acquire(blocking=False):
        yield
        return
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        _limited.release()
