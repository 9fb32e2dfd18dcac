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

_lock = threading.Lock()
_launches = 0
_limit: Any = None


@lru_cache(maxsize=1)
def _controller() -> Any:
    """Of the libraries loaded by now; looking for them takes milliseconds."""
    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS has one thread inside, and what it had before once nobody is inside any more.

    The number belongs to the process: launches of several threads share the limit.
    """
    global _launches, _limit
    if ThreadpoolController is None:
        yield
        return
    with _lock:
        if not _launches:
            _limit = _controller().limit(limits=1, user_api="blas")
        _launches += 1
    try:
        yield
    finally:
        with _lock:
            _launches -= 1
            if not _launches:
                _limit.restore_original_limits()
