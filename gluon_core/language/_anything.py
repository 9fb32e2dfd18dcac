"""`constexpr` for checkers: an annotation that every value fits, and a callable; nothing runs this.

`BLOCK: gl.constexpr = 64` and `gl.constexpr(64)` both occur in kernels. No class is such an
annotation and `Any` cannot be called; a name that a module leaves open is both.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any: ...
