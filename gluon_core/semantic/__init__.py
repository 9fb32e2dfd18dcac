"""The portable checks between a language function and the builder.

`Semantic` is Triton's semantic layer with layouts: every op checks its operands in Python, so that
a mistake is an error under the kernel's line and never an abort in MLIR, and ends in
`self.builder.create_x`.

Importing this package imports none of the layer: programs import the language without compiling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from gluon_core.plugin.ops import semantic_layer

if TYPE_CHECKING:
    from gluon_core.semantic.composed import Semantic

__all__ = ["layer"]


def layer() -> Semantic:
    """Return, inside an op, the semantic layer with the methods that only the core calls."""
    return cast("Semantic", semantic_layer())
