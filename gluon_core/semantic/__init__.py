"""The portable checks between a language function and the builder.

`Semantic` is Triton's semantic layer with layouts: every op checks its operands in Python, so that
a mistake is an error under the kernel's line and never an abort in MLIR, and ends in
`self.builder.create_x`.
"""

from gluon_core.semantic.atomic import AtomicOps
from gluon_core.semantic.control import ControlOps
from gluon_core.semantic.multiples import MultipleOps
from gluon_core.semantic.reduce import ReduceOps
from gluon_core.semantic.shape import ShapeOps
from gluon_core.semantic.shared import SharedOps

__all__ = ["Semantic"]


class Semantic(MultipleOps, ShapeOps, ReduceOps, AtomicOps, SharedOps, ControlOps):
    """Everything a builtin can ask for. One per generated function; shares its trace's session."""
