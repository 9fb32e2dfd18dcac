"""Offer layouts and their base classes where libraries for Triton's own Gluon look for them."""

from __future__ import annotations

import sys as _sys
from typing import Any

from gluon_core.layouts.base import DistributedLayout, SharedLayout

__all__ = ["DistributedLayout", "SharedLayout"]


def __getattr__(name: str) -> Any:
    return getattr(_sys.modules[__name__.rpartition(".")[0]], name)
