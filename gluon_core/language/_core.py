"""Offer the parts of ops where libraries for Triton's own Gluon look for them; the language for the rest."""

from __future__ import annotations

import sys as _sys
from typing import Any

from gluon_core._triton import unwrap as _unwrap_if_constexpr
from gluon_core.layouts.base import DistributedLayout, SharedLayout
from gluon_core.layouts.base import unwrap as _unwrap_shape
from gluon_core.plugin.ops import builtin

__all__ = [
    "DistributedLayout",
    "SharedLayout",
    "_unwrap_if_constexpr",
    "_unwrap_shape",
    "builtin",
]


def __getattr__(name: str) -> Any:
    return getattr(_sys.modules[__name__.rpartition(".")[0]], name)
