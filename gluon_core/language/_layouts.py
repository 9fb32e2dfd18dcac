"""Where libraries for Triton's own Gluon look for layouts and their base classes."""

from __future__ import annotations

from typing import Any

from gluon_core import language as _language
from gluon_core.layouts.base import DistributedLayout, SharedLayout

__all__ = ["DistributedLayout", "SharedLayout"]


def __getattr__(name: str) -> Any:
    return getattr(_language, name)
